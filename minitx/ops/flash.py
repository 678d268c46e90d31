"""Attention without the square: no array of all scores, so twice the length takes twice the memory, and not four times.

`attention.py` keeps a weight for every pair of positions, for the way back. Here the scores are made tile by tile, used, and
forgotten; going back they are made again. Nothing is approximated.

Read next: `docs/derivations/flash_attention.md`; before this `attention.py`, the same in one piece.
"""

import math

from ..backend import array_module, row_sum, wide
from ..op import op
from ..options import whole
from .attention import attention
from .basic import unbroadcast
from .textbook import queries_per_key, scale_of


@op("q (B, N, Tq, K), k (B, M, Tk, K), v (B, M, Tk, Kv), mask?:bool ~(B, N, Tq, Tk), bias? ~(B, N, Tq, Tk) "
    "-> y (B, N, Tq, Kv)", reference=attention)
def flash_attention(q, k, v, mask=None, bias=None, *, causal=False, scale=None, tile=112, watch=None):
    """Scaled dot-product attention in memory that grows with the length, not with its square.

    Keys and queries are cut into pieces of `tile`. For each piece of keys, and each piece of the queries that may see it:

        scores  = q kᵀ scale + bias                     one tile of the square                     (1)
        higher  = max(top, scores)                      the largest score of each query so far     (2)
        fade    = exp(top - higher)                     what was measured from the old top
        weights = exp(scores - higher)                  is measured from the new one
        total   = fade total + Σ weights                                                           (3)
        y       = fade y + weights v
        y       = y / total,  lse = top + log(total)    when all keys were seen                    (4)

    `lse`, the log-sum-exp of a row of scores, is all that backward needs to make its weights again, probs = exp(scores - lse).
    From there it is the way back of `attention`, one tile at a time, with one product more: that of the scores.

    Arguments as in `attention`, without dropout, whose mask would be the square again; a query that may look at nothing gets
    zeros and gives zero gradients. `watch` is shown `probs` (B, N, Tq, Tk), put together only for it. float16 is computed,
    and kept, as float32. The default `tile` keeps a product with K = 64 under 10⁶ multiplications: up to there OpenBLAS
    neither copies its operands first nor wakes other threads. A GPU likes larger ones.

    Keeps q, k, v, y, mask, bias, and lse, one number for each query.

    Stable  top is subtracted before exp, and lse is never below top: no exponent is above 0, forward or back
    Source  Dao et al. 2022, arXiv 2205.14135; the running softmax: Milakov & Gimelshein 2018, arXiv 1805.02867;
            derived in docs/derivations/flash_attention.md

    >>> v = np.arange(6.0).reshape(1, 1, 3, 2)
    >>> flash_attention.vjp(v, v, v, causal=True, tile=2)[0][0, 0, 0].tolist()
    [0.0, 1.0]
    """
    xp, (B, N, Tq, K), (M, Tk), dtype = array_module(q), q.shape, k.shape[1:3], q.dtype
    whole("flash_attention", tile=tile)
    scale, each, to_bias = scale_of(scale, K), queries_per_key(N, M), None if bias is None else bias.shape
    q, k, v = (x.astype(wide(x), copy=False) for x in (q, k, v))
    mask, bias = (None if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (mask, bias))
    ahead = Tk - Tq if causal else Tk       # the query at t may see the keys up to t + ahead

    def tiles():                            # pieces of the keys, each with the pieces of the queries that see some of it
        for s in range(0, Tk, tile):
            yield slice(s, s + tile), [slice(t, t + tile) for t in range(max(s - ahead, 0), Tq, tile)]

    def rows(x):                            # (B, N, t, ·) -> (B, M, N/M t, ·), as in attention
        return x.reshape(B, M, each * x.shape[2], x.shape[3])

    def heads(x):                           # and back
        return x.reshape(B, N, x.shape[2] // each, x.shape[3])

    def scores_of(at, to, keys):
        scores = heads(rows(q[:, :, at]) @ keys)                                             # (B, N, t, s)
        if bias is not None:
            scores += part(bias, at, to)
        if mask is not None:
            xp.copyto(scores, -math.inf, where=~part(mask, at, to))
        if to.stop > at.start + ahead + 1:  # the tile lies across the diagonal
            xp.copyto(scores, -math.inf, where=~xp.tri(*scores.shape[2:], at.start + ahead - to.start, dtype=bool))
        return scores

    def probs_of(at, to, keys):
        probs = scores_of(at, to, keys)
        probs -= lse[:, :, at]
        return xp.exp(probs, out=probs)

    y, total = xp.zeros_like(q, shape=(B, N, Tq, v.shape[3])), xp.zeros((B, N, Tq, 1), q.dtype)
    top = xp.full_like(total, -math.inf)
    for to, queries in tiles():
        keys = upright(k[:, :, to] * scale)
        for at in queries:
            weights = scores_of(at, to, keys)                                                # 1
            higher = xp.maximum(top[:, :, at], weights.max(-1, keepdims=True))               # 2
            level = finite(higher)
            fade = xp.exp(top[:, :, at] - level)
            weights -= level
            xp.exp(weights, out=weights)
            top[:, :, at] = higher
            total[:, :, at] *= fade                                                          # 3
            total[:, :, at] += row_sum(weights)
            y[:, :, at] *= fade
            y[:, :, at] += heads(rows(weights) @ v[:, :, to])
    total = xp.where(total == 0, 1, total)                                                   # 4
    y /= total
    lse = finite(top) + xp.log(total)
    if watch:
        probs = xp.zeros((B, N, Tq, Tk), q.dtype)
        for to, queries in tiles():
            for at in queries:
                probs[:, :, at, to] = probs_of(at, to, upright(k[:, :, to] * scale))
        watch("probs", probs.astype(dtype, copy=False), None)

    def backward(dy):
        mean = row_sum(dy * y)                                                               # Σ dprobs probs = Σ dy y
        dq, dk, dv = (xp.zeros_like(x) for x in (q, k, v))
        dbias = xp.zeros(() if bias is None else bias.shape, q.dtype)
        for to, queries in tiles():
            keys, values = upright(k[:, :, to] * scale), upright(v[:, :, to])
            for at in queries:
                probs, dy_at = probs_of(at, to, keys), rows(dy[:, :, at])
                dv[:, :, to] += rows(probs).swapaxes(-1, -2) @ dy_at                         # 3
                dscores = heads(dy_at @ values)                                              # dprobs
                dscores -= mean[:, :, at]                                                    # 2
                dscores *= probs
                dq[:, :, at] += heads(rows(dscores) @ k[:, :, to])                           # 1
                dk[:, :, to] += rows(dscores).swapaxes(-1, -2) @ rows(q[:, :, at])
                if bias is not None:
                    dbias_at = part(dbias, at, to)
                    dbias_at += unbroadcast(dscores, dbias_at.shape)
        dq *= scale
        dk *= scale
        dq, dk, dv, dbias = (x.astype(dtype, copy=False) for x in (dq, dk, dv, dbias))
        return dq, dk, dv, None, None if bias is None else dbias.reshape(to_bias)

    return y.astype(dtype, copy=False), backward


def part(x, at, to):
    """Of x, which broadcasts to (B, N, Tq, Tk), what belongs to the queries `at` and the keys `to`."""
    return x[:, :, at if x.shape[2] > 1 else slice(None), to if x.shape[3] > 1 else slice(None)]


def upright(x):
    """(..., t, K) -> (..., K, t), in an order in which the product with it reads along the rows: a third faster on a CPU."""
    return x.swapaxes(-1, -2).copy()


def finite(top):
    """The largest score, or 0 where none was seen: -inf - 0 has an exponential, -inf - -inf has not."""
    return array_module(top).where(top == -math.inf, 0, top)
