"""Choosing one of several numbers: the gradient goes to the one that was chosen.

At a tie none was. Then the gradient is shared in equal parts, which add up to the whole.

Read next: `reductions.py`.
"""

import math

from ..backend import array_module, is_array
from ..op import op
from ..sums import wide
from .basic import alike, axes_of, broadcasting, unbroadcast


@op(broadcasting)
def maximum(x, y):
    """The larger of two numbers, with broadcasting; dz goes to it, and half to each at a tie. NaN wins. Keeps two masks.

    >>> backward = maximum.vjp(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))[1]
    >>> [d.tolist() for d in backward(np.ones(3))]
    [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]
    """
    x, y, to_x, to_y = alike(x, y)
    z = array_module(x if is_array(x) else y).maximum(x, y)
    return z, divided(x > y, x >= y, to_x, to_y)


@op(broadcasting)
def minimum(x, y):
    """The smaller of two numbers, with broadcasting; dz goes to it, and half to each at a tie. NaN wins. Keeps two masks.

    >>> backward = minimum.vjp(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))[1]
    >>> [d.tolist() for d in backward(np.ones(3))]
    [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]
    """
    x, y, to_x, to_y = alike(x, y)
    z = array_module(x if is_array(x) else y).minimum(x, y)
    return z, divided(x < y, x <= y, to_x, to_y)


def divided(ahead, not_behind, to_x, to_y):
    """The backward of a choice between x and y. The share of x is the mean of two masks: 1, 0, or one half at a tie."""
    def backward(dz):
        dx = dz * ((ahead.astype(dz.dtype) + not_behind) / 2)
        return unbroadcast(dx, to_x), unbroadcast(dz - dx, to_y)

    return backward


@op("x:any (...) -> y (...)")
def clip(x, *, low=None, high=None):
    """x, but at least `low` and at most `high`: dx = dy where low ≤ x ≤ high (the ends count), else 0. Keeps a boolean mask.

    >>> y, backward = clip.vjp(np.array([-2.0, 0.5, 1.0]), low=-1, high=1)
    >>> y.tolist(), backward(np.ones(3)).tolist()
    ([-1.0, 0.5, 1.0], [0.0, 1.0, 1.0])
    """
    if low is None and high is None:
        raise ValueError("give low, high or both")
    lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
    if not lowest <= highest:                                                # NaN is refused here too
        raise ValueError(f"low must not be above high, got low = {low}, high = {high}")
    inside = (x >= lowest) & (x <= highest)
    return array_module(x).clip(x, low, high), lambda dy: dy * inside


@op(broadcasting)
def where(condition, x, y):
    """x where the condition (booleans) holds, else y, with broadcasting; dz goes to the one that was chosen.

    The other gets a gradient of 0. But if what stands behind it has an infinite slope there, 0 · ∞ is NaN. So where a function
    must not be asked, choose its *input* too:

        where(x > 0, sqrt(x), 0)                            at x = 0 the gradient is NaN
        where(x > 0, sqrt(where(x > 0, x, 1)), 0)           at x = 0 the gradient is 0

    Keeps the condition.

    >>> x = mx.tensor([0.0, 4.0], requires_grad=True)
    >>> mx.gradients(where(x > 0, sqrt(where(x > 0, x, 1)), 0).sum())[x].tolist()
    [0.0, 0.25]
    """
    if getattr(condition, "dtype", None) != "bool":
        raise TypeError(f"condition must be an array of booleans, got {getattr(condition, 'dtype', type(condition).__name__)}; "
                        f"compare something, as in x > 0")
    x, y, to_x, to_y = alike(x, y)
    xp = array_module(condition)

    def backward(dz):
        return None, unbroadcast(xp.where(condition, dz, 0), to_x), unbroadcast(xp.where(condition, 0, dz), to_y)

    return xp.where(condition, x, y), backward


@op("x:any (...) -> y")
def max(x, *, axis=None, keepdims=False):
    """The largest number along `axis` (one, several, or all); dy goes to it, in equal parts to all at a tie. Keeps a mask.

    >>> y, backward = max.vjp(np.array([1.0, 3.0, 3.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (3.0, [0.0, 0.5, 0.5])
    """
    refuse_nothing(x, axis, "largest")
    return chosen(x, x.max(axis, keepdims=True), axis, keepdims)


@op("x:any (...) -> y")
def min(x, *, axis=None, keepdims=False):
    """The smallest number along `axis` (one, several, or all); dy goes to it, in equal parts to all at a tie. Keeps a mask.

    >>> y, backward = min.vjp(np.array([1.0, 1.0, 3.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (1.0, [0.5, 0.5, 0.0])
    """
    refuse_nothing(x, axis, "smallest")
    return chosen(x, x.min(axis, keepdims=True), axis, keepdims)


def refuse_nothing(x, axis, which):
    if any(x.shape[a] == 0 for a in axes_of(x, axis)):
        raise ValueError(f"along axis {axis} an array of shape {x.shape} has no numbers, so none is the {which}")


def chosen(x, kept, axis, keepdims):
    """The value and the backward of an extreme of x, which was found with its axes kept."""
    here, shape = x == kept, kept.shape

    def backward(dy):
        share = dy.reshape(shape) / here.sum(axis, dtype=wide(dy), keepdims=True)
        return here * share.astype(dy.dtype, copy=False)

    return kept if keepdims else kept.squeeze(axis), backward
