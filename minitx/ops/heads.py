"""Heads: a wide row at every position, seen as several narrow ones that attend each for itself.

Nothing is computed here, and next to nothing is copied: q, k and v of all heads are views of one product.

Read next: `textbook.py`, what a head does with them.
"""

import itertools

from ..backend import array_module
from ..op import op


@op("x (B, T, C)")
def split_heads(x, *, heads):
    """Cut x (B, T, C) into C/K heads of equal width K, and those into groups: `heads=(N, M, M)` gives q (B, N, T, K), k and v
    (B, M, T, K). Backward puts the gradients side by side again.

    >>> (q, k), backward = split_heads.vjp(np.array([[[1.0, 2.0, 3.0]]]), heads=(2, 1))
    >>> q.tolist(), k.tolist(), backward(q, k).tolist()
    ([[[[1.0]], [[2.0]]]], [[[[3.0]]]], [[[1.0, 2.0, 3.0]]])
    """
    (B, T, C), xp, count = x.shape, array_module(x), sum(heads)
    if not heads or min(heads) < 1 or C % count:
        raise ValueError(f"heads must be numbers of heads that share a width of {C} equally, got {heads}")
    apart = x.reshape(B, T, count, C // count).transpose(0, 2, 1, 3)                         # (B, C/K, T, K)
    ends = itertools.accumulate(heads, initial=0)

    def backward(*dys):
        return xp.concatenate([side_by_side(dy) for dy in dys], -1)

    return tuple(apart[:, a:b] for a, b in itertools.pairwise(ends)), backward


@op("y (B, N, T, K) -> x")
def merge_heads(y):
    """What N heads found, side by side: y (B, N, T, K) -> x (B, T, N K). Backward cuts dx apart again.

    >>> merge_heads.vjp(np.array([[[[1.0]], [[2.0]]]]))[0].tolist()
    [[[1.0, 2.0]]]
    """
    B, N, T, K = y.shape
    return side_by_side(y), lambda dx: dx.reshape(B, T, N, K).transpose(0, 2, 1, 3)


def side_by_side(y):
    """(B, N, T, K) -> (B, T, N K): a view, if y lies in memory in this order, as what `attention` makes of views does."""
    B, N, T, K = y.shape
    return y.transpose(0, 2, 1, 3).reshape(B, T, N * K)
