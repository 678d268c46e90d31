"""Ops that move numbers without changing them. The backward of each is the same move the other way round.

Where a number goes to one place, its gradient comes back from that place. Where it goes to several places or to none, see
`indexing.py`.

Read next: `indexing.py`.
"""

import itertools

from ..backend import array_module
from ..op import op


@op()
def reshape(x, *, shape):
    """The same numbers in the same order, in another shape; one length may be -1.

    >>> reshape.vjp(np.arange(6.0), shape=(2, -1))[0].tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    before = x.shape
    return x.reshape(shape), lambda dy: dy.reshape(before)


@op()
def transpose(x, *, axes=None):
    """Axis `axes[i]` of x becomes axis i of y; without `axes` their order is reversed. Backward sorts them again.

    >>> y, backward = transpose.vjp(np.array([[1.0, 2.0, 3.0]]), axes=(1, 0))
    >>> y.tolist(), backward(y).tolist()
    ([[1.0], [2.0], [3.0]], [[1.0, 2.0, 3.0]])
    """
    y = x.transpose(axes)
    places = list(range(x.ndim))[::-1] if axes is None else [a % x.ndim for a in axes]
    back = sorted(range(x.ndim), key=places.__getitem__)
    return y, lambda dy: dy.transpose(back)


@op()
def pad(x, *, widths, value=0.0):
    """`value` around x. `widths` is a pair (before, after) for every axis, one pair for all, or one number for all sides.

    Backward cuts the edge off again.

    >>> y, backward = pad.vjp(np.array([1.0, 2.0]), widths=(1, 2))
    >>> y.tolist(), backward(y).tolist()
    ([0.0, 1.0, 2.0, 0.0, 0.0], [1.0, 2.0])
    """
    if isinstance(widths, int):
        widths = (widths, widths)
    if all(isinstance(width, int) for width in widths):
        widths = (widths,) * x.ndim
    if len(widths) != x.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
        raise ValueError(f"widths must be a pair (before, after) of lengths for each of {x.ndim} axes, got {widths}")
    if not isinstance(value, int | float) or (x.dtype.kind != "f" and x.dtype.type(value) != value):
        raise TypeError(f"value must be a number that fits {x.dtype}, got {value!r}")
    inside = tuple(slice(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True))
    y = array_module(x).full([before + n + after for (before, after), n in zip(widths, x.shape, strict=True)], value, x.dtype)
    y[inside] = x
    return y, lambda dy: dy[inside]


def check_joinable(xs):
    """At least one array, all of one dtype: NumPy would widen float32 beside int64 to float64."""
    if not xs:
        raise ValueError("needs at least one array")
    if len(dtypes := sorted({str(x.dtype) for x in xs})) > 1:
        raise TypeError(f"the arrays must have one dtype, got {' and '.join(dtypes)}; convert them with tensor(x, dtype=...)")


@op()
def concatenate(*xs, axis=-1):
    """Join arrays along an axis that they have. Backward cuts dy at the seams.

    >>> y, backward = concatenate.vjp(np.array([1.0]), np.array([2.0, 3.0]))
    >>> y.tolist(), [x.tolist() for x in backward(y)]
    ([1.0, 2.0, 3.0], [[1.0], [2.0, 3.0]])
    """
    check_joinable(xs)
    ends = [0]
    for x in xs:
        ends.append(ends[-1] + x.shape[axis])

    def backward(dy):
        dy = dy.swapaxes(0, axis)
        return [dy[a:b].swapaxes(0, axis) for a, b in itertools.pairwise(ends)]

    return array_module(xs[0]).concatenate(xs, axis=axis), backward


@op("*xs:any (...) -> y")
def stack(*xs, axis=0):
    """Join arrays of one shape along a new axis. Backward takes them apart again.

    >>> stack.vjp(np.array([1.0, 2.0]), np.array([3.0, 4.0]), axis=1)[0].tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    check_joinable(xs)
    y = array_module(xs[0]).stack(xs, axis)

    def backward(dy):
        return list(array_module(dy).moveaxis(dy, axis, 0))

    return y, backward


@op()
def unstack(x, *, axis=0):
    """Take an array apart along `axis`: as many outputs as the axis is long. Backward stacks their gradients.

    One node for a whole walk over time: `for x_t in unstack(x, axis=1)` costs O(T) going back, where T separate
    `x[:, t]`, each with a dx as large as x, cost O(T²).

    >>> ys, backward = unstack.vjp(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> [y.tolist() for y in ys], backward(*ys).tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]])
    """
    xp = array_module(x)
    if x.shape[axis] == 0:
        raise ValueError(f"axis {axis} of an array of shape {x.shape} has nothing to take apart")

    def backward(*dys):
        return xp.stack(dys, axis)

    return tuple(xp.moveaxis(x, axis, 0)), backward


@op()
def split(x, *, sections, axis=-1):
    """Cut an array along `axis`: into `sections` equal parts, or into parts of the given lengths.

    Backward joins the gradients of the parts.

    >>> ys, backward = split.vjp(np.array([1.0, 2.0, 3.0]), sections=(1, 2))
    >>> [y.tolist() for y in ys], backward(*ys).tolist()
    ([[1.0], [2.0, 3.0]], [1.0, 2.0, 3.0])
    """
    xp, n = array_module(x), x.shape[axis]
    lengths = (n // max(sections, 1),) * sections if isinstance(sections, int) else tuple(sections)
    if not lengths or min(lengths) < 0 or sum(lengths) != n:
        raise ValueError(f"axis {axis} has length {n}, which sections={sections} does not divide; "
                         f"the parts must add up to {n}, none of them below 0")
    cuts = [sum(lengths[:i]) for i in range(1, len(lengths))]
    return tuple(xp.split(x, cuts, axis)), lambda *dys: xp.concatenate(dys, axis)
