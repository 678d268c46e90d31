"""Attention: every position looks at every other, directly, and takes a weighted average of what it finds.

Between any two positions lies *one* step, whatever their distance; compare `recurrent.py`, where it is the distance itself.

Read next: `nn/module.py`, how ops become models; before this `textbook.py`, the same in three steps.
"""

import math

from ..backend import array_module
from ..op import op
from ..sums import row_dot, row_max, row_sum
from .basic import unbroadcast
from .dropout import dropout
from .textbook import allowed, queries_per_key, scale_of, textbook_attention


@op("q (B, N, Tq, K), k (B, M, Tk, K), v (B, M, Tk, Kv), mask?:bool ~(B, N, Tq, Tk), bias? ~(B, N, Tq, Tk), "
    "keep?:bool (B, N, Tq, Tk) -> y (B, N, Tq, Kv)", reference=textbook_attention)
def attention(q, k, v, mask=None, bias=None, keep=None, *, causal=False, scale=None, p=0.0, watch=None):
    """Scaled dot-product attention: each query takes the values whose keys resemble it.

        scores = q kᵀ scale + bias                   scale = 1/√K unless given         (1)
        probs  = softmax(scores), where allowed                                        (2)
        kept   = probs ∘ keep / (1 - p)              dropout, where `keep` is given    (3)
        y      = kept v                                                                (4)

    N heads of queries may share M heads of keys and values, N/M each: "grouped" heads, and with M = 1 "multi-query".
    `mask` is boolean, True = may be attended; `causal` lets a query see no later key, with the last query beside the last key.
    A query that may look at nothing gets zeros and gives zero gradients. `bias` is added to the scores and has a gradient.
    `watch` is shown `probs`.

    Keeps q, k, v, y, probs (B, N, Tq, Tk) and what dropout keeps: memory grows with the square of the length.

    Stable  the row maximum is subtracted before exp; without the scale, scores grow like √K and softmax saturates
    Source  Vaswani et al. 2017, arXiv 1706.03762; grouped heads: Ainslie et al. 2023, arXiv 2305.13245;
            derived in docs/derivations/attention.md

    >>> v = np.arange(6.0).reshape(1, 1, 3, 2)
    >>> attention.vjp(v, v, v, causal=True)[0][0, 0, 0].tolist()
    [0.0, 1.0]
    """
    xp, (B, N, Tq, K), (M, Tk) = array_module(q), q.shape, k.shape[1:3]
    scale, each, to_bias = scale_of(scale, K), queries_per_key(N, M), None if bias is None else bias.shape
    q, mask = q * scale, allowed(xp, mask, causal, Tq, Tk)

    def rows(x):                        # (B, N, Tq, ·) -> (B, M, N/M Tq, ·): heads that share keys are rows of one product
        return x if each == 1 else x.reshape(B, M, each * Tq, x.shape[3])

    def product(a, b, like, shape):     # a b, in memory as `like` is: heads that are views of one row make heads that are, too
        return xp.matmul(a, b, out=xp.empty_like(like, shape=shape)) if each == 1 else (a @ b).reshape(shape)

    probs = (rows(q) @ k.swapaxes(-1, -2)).reshape(B, N, Tq, Tk)                             # 1
    if bias is not None:
        probs += bias
    if mask is not None:
        xp.copyto(probs, -math.inf, where=~mask)
    if Tk:                                                                                   # 2
        probs -= xp.maximum(row_max(probs), xp.finfo(probs.dtype).min)                       # -inf - -inf would be NaN
    xp.exp(probs, out=probs)
    probs /= xp.maximum(row_sum(probs), 1)                               # the largest is exp(0), or all are exp(-inf)
    if watch:
        watch("probs", probs, None)
    kept, through_dropout = (probs, None) if keep is None else dropout.vjp(probs, keep, p=p)  # 3
    y = product(rows(kept), v, q, (B, N, Tq, v.shape[3]))                                    # 4

    def backward(dy):
        dv = product(rows(kept).swapaxes(-1, -2), rows(dy), v, v.shape)                      # 4
        dscores = (rows(dy) @ v.swapaxes(-1, -2)).reshape(B, N, Tq, Tk)                      # dkept
        if through_dropout:
            dscores = through_dropout(dscores)[0]                                            # 3
        dscores -= row_dot(dy, y)                                                            # 2  Σ dprobs probs = Σ dy y
        dscores *= probs
        dq = product(rows(dscores), k, q, q.shape)                                           # 1
        dq *= scale
        dk = product(rows(dscores).swapaxes(-1, -2), rows(q), k, k.shape)                    # q is scaled by now
        return dq, dk, dv, None, unbroadcast(dscores, to_bias), None

    return y, backward
