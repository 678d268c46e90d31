"""Attention in the textbook's three steps, for reading: each step is an op of its own, and so is its way back.

Read next: `attention.py`, the same mathematics in fewer passes over the scores.
"""

import math

from ..backend import array_module
from ..op import op
from .basic import matmul, unbroadcast
from .dropout import dropout
from .softmax import softmax


@op("q (B, N, Tq, K), k (B, M, Tk, K), v (B, M, Tk, Kv), mask?:bool ~(B, N, Tq, Tk), bias? ~(B, N, Tq, Tk), "
    "keep?:bool (B, N, Tq, Tk) -> y (B, N, Tq, Kv)")
def textbook_attention(q, k, v, mask=None, bias=None, keep=None, *, causal=False, scale=None, p=0.0, watch=None):
    """Scaled dot-product attention, step by step; `attention` tells what the arguments are.

        scores = q kᵀ scale + bias           (1) how well does each query fit each key?
        probs  = softmax(scores)             (2) weights that sum to one, over what may be looked at
        y      = probs v                     (3) the average of the values, by these weights

    Back through the three in reverse: the weighted sum, the softmax, the product. Between (2) and (3) stands the dropout, if
    `keep` is given. Where several heads of queries share keys, the keys are repeated, and their gradients summed.

    Source  Vaswani et al. 2017, arXiv 1706.03762; docs/derivations/attention.md

    >>> q, k, v = np.array([[[[9.0, 0.0]]]]), np.array([[[[9.0, 0.0], [0.0, 9.0]]]]), np.array([[[[1.0], [2.0]]]])
    >>> textbook_attention.vjp(q, k, v)[0].item()
    1.0
    """
    xp, (B, N, Tq, K), (M, Tk) = array_module(q), q.shape, k.shape[1:3]
    scale, mask, to_bias = scale_of(scale, K), allowed(xp, mask, causal, Tq, Tk), None if bias is None else bias.shape
    each = queries_per_key(N, M)
    keys, values = k.repeat(each, 1), v.repeat(each, 1)                                      # (B, N, Tk, ·)

    scores, through_product = matmul.vjp(q, keys.swapaxes(-1, -2))                           # 1  (B, N, Tq, Tk)
    scores = scores * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = xp.where(mask, scores, -math.inf)
    probs, through_softmax = softmax.vjp(scores)                                             # 2
    if watch:
        watch("probs", probs, None)
    kept, through_dropout = (probs, lambda d: (d,)) if keep is None else dropout.vjp(probs, keep, p=p)
    y, through_average = matmul.vjp(kept, values)                                            # 3  (B, N, Tq, Kv)

    def backward(dy):
        dkept, dvalues = through_average(dy)                                                 # 3
        dscores = through_softmax(through_dropout(dkept)[0])                                 # 2
        dq, dkeys = through_product(dscores * scale)                                         # 1  dkeys (B, N, K, Tk)
        dk, dv = (d.reshape(B, M, each, *d.shape[2:]).sum(2) for d in (dkeys.swapaxes(-1, -2), dvalues))
        return dq, dk, dv, None, unbroadcast(dscores, to_bias), None

    return y, backward


def scale_of(scale, K):
    """The factor on the scores: 1/√K unless given."""
    if scale is None:
        return 1 / math.sqrt(K)
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, or None for 1/√K, got {scale!r}")
    return scale


def allowed(xp, mask, causal, Tq, Tk):
    """The mask, with that of causal attention: the last query stands beside the last key and sees them all."""
    if not causal or Tq == 1:
        return mask
    past = xp.tri(Tq, Tk, Tk - Tq, dtype=bool)                                               # (Tq, Tk)
    return past if mask is None else mask & past


def queries_per_key(N, M):
    """How many heads of queries share one head of keys."""
    if not M or N % M:
        raise ValueError(f"the {N} heads of queries must be a multiple of the {M} heads of keys and values")
    return N // M
