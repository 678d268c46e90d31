"""Attention without the square: no array of all scores, so twice the length takes twice the memory, and not four times.

`attention.py` keeps a weight for every pair of positions, for backward. Here the scores are made tile by tile, used, and
forgotten; going back they are made again. Nothing is approximated. Heads know nothing of each other, so some go side by side.

Read next: `docs/derivations/flash_attention.md`; before this `attention.py`, the same in one piece.
"""

import math
from functools import partial
from typing import NamedTuple

from ..backend import array_module, device_of, expecting_overflow
from ..op import op
from ..options import whole
from ..parallel import in_parallel
from ..sums import row_sum, wide
from .attention import attention
from .basic import unbroadcast
from .textbook import queries_per_key, scale_of

HEADS = 4       # made together on a CPU: of more, the tiles do not stay in the cache; for fewer, a call takes too long
BOUND = 60      # exp(60), and the sum of as many as a text has symbols, is far from the end of float32, and so is exp(-60)
ALL = slice(None)


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
    From there it is the backward of `attention`, one tile at a time, with one product more: that of the scores.

    A score is at most |q| |k| scale. If that leaves all of them within ±60, exp needs no help: 0 does for `top`, nothing fades,
    and (2) is left out. It is never left out where there is a bias, or on a GPU, which would have to wait for the answer.

    Arguments as in `attention`, without dropout, whose mask would be the square again; a query that may look at nothing gets
    zeros and gives zero gradients. `watch` is shown `probs` (B, N, Tq, Tk), put together only for it. float16 is computed,
    and kept, as float32. The default `tile` keeps a product with K = 64 under 10⁶ multiplications: up to there OpenBLAS
    neither copies its operands first nor wakes other threads. A GPU likes larger ones.

    Keeps q, k, v, y, mask, bias, and lse, one number for each query.

    Stable  top is subtracted before exp, unless all scores are small, and lse from then on: no exponent is above 60
    Source  Dao et al. 2022, arXiv 2205.14135; the running softmax: Milakov & Gimelshein 2018, arXiv 1805.02867;
            derived in docs/derivations/flash_attention.md

    >>> v = np.arange(6.0).reshape(1, 1, 3, 2)
    >>> flash_attention.vjp(v, v, v, causal=True, tile=2)[0][0, 0, 0].tolist()
    [0.0, 1.0]
    """
    xp, (B, N, Tq, K), (M, Tk), dtype, on_cpu = array_module(q), q.shape, k.shape[1:3], q.dtype, device_of(q).name == "cpu"
    whole("flash_attention", tile=tile)
    scale, each, to_bias = scale_of(scale, K), queries_per_key(N, M), None if bias is None else bias.shape
    q, k, v = (x.astype(wide(x), copy=False) for x in (q, k, v))
    mask, bias = (None if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (mask, bias))
    bounded = on_cpu and bias is None and longest(q) * longest(k) * abs(scale) < BOUND
    tiling = Tiling(scale, Tk - Tq if causal else Tk, tile, bounded)

    y, probs = xp.zeros_like(q, shape=(B, N, Tq, v.shape[3])), xp.zeros((B, N, Tq, Tk), q.dtype) if watch else None
    groups = groups_of(B, M, each, HEADS if on_cpu else B * N)
    backs = in_parallel([partial(in_tiles, q[b, n], k[b, m], v[b, m], part(mask, b, n), part(bias, b, n), y[b, n],
                                 part(probs, b, n), tiling) for b, n, m in groups])
    if probs is not None:
        watch("probs", probs.astype(dtype, copy=False), None)

    def backward(dy):
        dq, dk, dv = (xp.zeros_like(x) for x in (q, k, v))
        dbias = None if bias is None else xp.zeros(bias.shape, q.dtype)
        jobs = [partial(back, dy[b, n], dq[b, n], dk[b, m], dv[b, m], part(dbias, b, n))
                for back, (b, n, m) in zip(backs, groups)]
        in_parallel(jobs, independent=bias is None)         # they may add to the same dbias
        dq, dk, dv = (x.astype(dtype, copy=False) for x in (dq, dk, dv))
        return dq, dk, dv, None, None if dbias is None else dbias.astype(dtype, copy=False).reshape(to_bias)

    return y.astype(dtype, copy=False), backward


class Tiling(NamedTuple):
    """What all heads have in common."""

    scale: float
    ahead: int          # the query at t may see the keys up to t + ahead
    tile: int
    bounded: bool       # all scores are within ±BOUND


def in_tiles(q, k, v, mask, bias, y, probs, tiling):
    """Some of the heads: writes their y, and their probs if wanted; returns their backward, which writes all gradients."""
    xp, (B, N, Tq, _), (M, Tk) = array_module(q), q.shape, k.shape[1:3]
    (scale, ahead, tile, bounded), each = tiling, N // M

    def tiles():                # slices: a piece of the keys, with the pieces of the queries that see some of it
        for s in range(0, Tk, tile):
            yield slice(s, s + tile), [slice(t, t + tile) for t in range(max(s - ahead, 0), Tq, tile)]

    def rows(x):                # (B, N, t, ·) -> (B, M, N/M t, ·), as in attention
        return x if each == 1 else x.reshape(B, M, each * x.shape[2], x.shape[3])

    def heads(x):               # and back
        return x if each == 1 else x.reshape(B, N, x.shape[2] // each, x.shape[3])

    def scores_of(queries, keys, kT):
        scores = heads(rows(q[:, :, queries]) @ kT)                                          # (B, N, t, s)
        if bias is not None:
            scores += part(bias, ALL, ALL, queries, keys)
        if mask is not None:
            xp.copyto(scores, -math.inf, where=~part(mask, ALL, ALL, queries, keys))
        if keys.stop > queries.start + ahead + 1:                                            # the tile lies across the diagonal
            xp.copyto(scores, -math.inf, where=~xp.tri(*scores.shape[2:], queries.start + ahead - keys.start, dtype=bool))
        return scores

    def probs_of(queries, keys, kT):
        probs = scores_of(queries, keys, kT)
        probs -= lse[:, :, queries]
        return xp.exp(probs, out=probs)

    total = xp.zeros((B, N, Tq, 1), q.dtype)
    top = xp.full_like(total, -math.inf)
    for keys, pieces in tiles():
        kT = upright(k[:, :, keys] * scale)
        for queries in pieces:
            weights = scores_of(queries, keys, kT)                                           # 1
            if not bounded:
                higher = xp.maximum(top[:, :, queries], weights.max(-1, keepdims=True))      # 2
                level = finite(higher)
                fade = xp.exp(top[:, :, queries] - level)
                weights -= level
                top[:, :, queries] = higher
                total[:, :, queries] *= fade
                y[:, :, queries] *= fade
            xp.exp(weights, out=weights)
            total[:, :, queries] += row_sum(weights)                                         # 3
            y[:, :, queries] += heads(rows(weights) @ v[:, :, keys])
    total = xp.where(total == 0, 1, total)                                                   # 4
    y /= total
    lse = finite(top) + xp.log(total)
    if probs is not None:
        for keys, pieces in tiles():
            for queries in pieces:
                probs[:, :, queries, keys] = probs_of(queries, keys, upright(k[:, :, keys] * scale))

    def backward(dy, dq, dk, dv, dbias):
        mean = row_sum(dy * y)                                                               # Σ dprobs probs = Σ dy y
        for keys, pieces in tiles():
            kT, vT = upright(k[:, :, keys] * scale), upright(v[:, :, keys])
            for queries in pieces:
                probs, dy_here = probs_of(queries, keys, kT), rows(dy[:, :, queries])
                dv[:, :, keys] += rows(probs).swapaxes(-1, -2) @ dy_here                     # 3
                dscores = heads(dy_here @ vT)                                                # dprobs
                dscores -= mean[:, :, queries]                                               # 2
                dscores *= probs
                dq[:, :, queries] += heads(rows(dscores) @ k[:, :, keys])                    # 1
                dk[:, :, keys] += rows(dscores).swapaxes(-1, -2) @ rows(q[:, :, queries])
                if bias is not None:
                    dbias_here = part(dbias, ALL, ALL, queries, keys)
                    dbias_here += unbroadcast(dscores, dbias_here.shape)
        dq *= scale
        dk *= scale

    return backward


def groups_of(B, M, each, heads):
    """Slices (rows of the batch, heads of queries, heads of keys) of so many heads of queries, or as few more as need be."""
    rows, few = max(1, heads // (M * each or 1)), max(1, heads // (each or 1))
    return [(slice(b, b + rows), slice(m * each, (m + few) * each), slice(m, m + few))
            for b in range(0, B, rows) for m in range(0, M, few)]


def part(x, *slices):
    """Of x, which broadcasts to (B, N, Tq, Tk), what belongs to slices of these axes, from the first on; None of None."""
    return None if x is None else x[tuple(s if size > 1 else ALL for s, size in zip(slices, x.shape))]


def longest(x):
    """The length of the longest row of x (B, N, T, K)."""
    with expecting_overflow():
        return math.sqrt(row_sum(x * x).max(initial=0))


def upright(x):
    """(..., t, K) -> (..., K, t), in an order in which the product with it reads along the rows: a third faster on a CPU."""
    return x.swapaxes(-1, -2).copy()


def finite(top):
    """The largest score, or 0 where none was seen, or looked for: -inf - 0 has an exponential, -inf - -inf has not."""
    return array_module(top).where(top == -math.inf, 0, top)
