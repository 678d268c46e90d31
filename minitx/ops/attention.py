"""Attention: every position looks at every other, directly, and takes a weighted average of what it finds.

Between any two positions lies *one* step, whatever their distance; compare `recurrent.py`, where it is the distance itself.

Read next: `nn/module.py`, how ops become models.
"""

import math

from ..backend import array_module, wide
from ..op import op


@op("q (B, N, Tq, K), k (B, N, Tk, K), v (B, N, Tk, Kv), mask?:bool ~(B, N, Tq, Tk) -> y (B, N, Tq, Kv)")
def attention(q, k, v, mask=None, *, causal=False, scale=None, watch=None):
    """Scaled dot-product attention: each query takes the values whose keys resemble it.

        scores = q kᵀ scale                          scale = 1/√K unless given         (1)
        probs  = softmax(scores), where allowed                                        (2)
        y      = probs v                                                               (3)

    `mask` is boolean, True = may be attended; `causal` lets a query see no later key, with the last query beside the last key.
    A query that may look at nothing gets zeros and gives zero gradients. `watch` is shown `probs`.

    Keeps q, k, v, y and probs (B, N, Tq, Tk): memory grows with the square of the length.

    Stable  the row maximum is subtracted before exp; without the scale, scores grow like √K and softmax saturates
    Source  Vaswani et al. 2017, arXiv 1706.03762; derived in docs/derivations/attention.md

    >>> v = np.arange(6.0).reshape(1, 1, 3, 2)
    >>> attention.vjp(v, v, v, causal=True)[0][0, 0, 0].tolist()
    [0.0, 1.0]
    """
    xp, Tq, Tk = array_module(q), q.shape[2], k.shape[2]
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, or None for 1/√K, got {scale!r}")
    if causal:
        past = xp.tri(Tq, Tk, Tk - Tq, dtype=bool)                                           # (Tq, Tk)
        mask = past if mask is None else mask & past

    probs = (q * scale) @ k.swapaxes(-1, -2)                                                 # 1  (B, N, Tq, Tk)
    if mask is not None:
        xp.copyto(probs, -math.inf, where=~mask)
    if Tk:                                                                                   # 2
        top = probs.max(-1, keepdims=True)
        probs -= top if mask is None else xp.where(top == -math.inf, 0, top)
    xp.exp(probs, out=probs)
    total = probs.sum(-1, dtype=wide(q), keepdims=True)
    probs /= total if mask is None else xp.where(total == 0, 1, total)
    y = probs @ v                                                                            # 3  (B, N, Tq, Kv)
    if watch:
        watch("probs", probs, None)

    def backward(dy):
        dv = probs.swapaxes(-1, -2) @ dy                                                     # 3
        dscores = dy @ v.swapaxes(-1, -2)                                                    # dprobs (B, N, Tq, Tk)
        dscores -= (dy * y).sum(-1, keepdims=True)                                           # 2  Σ dprobs probs = Σ dy y
        dscores *= probs
        dq, dk = dscores @ k, dscores.swapaxes(-1, -2) @ q                                   # 1
        dq *= scale
        dk *= scale
        return dq, dk, dv, None

    return y, backward
