"""Ops that pick numbers by their place.

Going back, the gradient of a number returns from where it went. A number that nobody picked gets zero, one that was picked
twice gets the sum of both.

Read next: `activations.py`.
"""

from types import EllipsisType

from ..backend import array_module, is_array
from ..op import op
from ..sums import wide
from ..waits import within
from .softmax import check_ids


def put_back(dy, index, shape):
    """Zeros of this shape with dy added up at `index`, whose integers may name a place more than once."""
    xp = array_module(dy)
    dx = xp.zeros(shape, wide(dy))
    xp.add.at(dx, index, dy.astype(dx.dtype, copy=False))
    return dx.astype(dy.dtype, copy=False)


@op()
def getitem(x, *, index):
    """y = x[index], for every index that NumPy knows: numbers, slices, None, ..., integer and boolean arrays.

    dx is zero but for dx[index] = dy. An integer array may name an element twice: then it gets the sum.

    >>> y, backward = getitem.vjp(np.array([1.0, 2.0, 3.0]), index=[0, 0, 2])
    >>> y.tolist(), backward(np.ones(3)).tolist()
    ([1.0, 1.0, 3.0], [2.0, 0.0, 1.0])
    """
    xp, shape, parts = array_module(x), x.shape, index if isinstance(index, tuple) else (index,)
    index = tuple([xp.asarray(i, None if len(i) else int) if isinstance(i, list | tuple | range) else
                   i.copy() if is_array(i) else i for i in parts])         # its own copy: backward must go where forward went
    integers = not all(isinstance(i, int | slice | EllipsisType | None) or (is_array(i) and i.dtype == "bool") for i in index)
    y = x[index]
    if integers:
        check_places(index, shape)

    def backward(dy):
        if integers:
            return put_back(dy, index, shape)
        dx = xp.zeros(shape, dy.dtype)
        dx[index] = dy
        return dx

    return y, backward


def check_places(index, shape):
    """Integer arrays in an index must stay within their axes. NumPy sees to it, but CuPy wraps those that are too large."""
    widths = [i.ndim if is_array(i) and i.dtype == "bool" else int(i is not None and i is not ...) for i in index]
    axis, left = 0, len(shape) - sum(widths)
    for ids, width in zip(index, widths, strict=True):
        if is_array(ids) and ids.dtype != "bool" and not within(ids, -(n := shape[axis]), n - 1):
            low, high = int(ids.min()), int(ids.max())
            raise IndexError(f"ids along axis {axis} must be from {-n} to {n - 1}, got {low if low < -n else high}")
        axis += left if ids is ... else width


@op()
def take(x, ids, *, axis=0):
    """Slices of x by number: y is x with the axes of `ids` in place of `axis`. Keeps the ids.

    `embedding` is this for the rows of a table. A slice that was taken twice gets the sum of both gradients.

    >>> y, backward = take.vjp(np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]))
    >>> y.tolist(), backward(np.ones(3))[0].tolist()
    ([3.0, 1.0, 3.0], [1.0, 0.0, 2.0])
    """
    check_numbers(ids, x.shape[axis])
    shape, index = x.shape, (slice(None),) * (axis % x.ndim) + (ids,)
    return x[index], lambda dy: (put_back(dy, index, shape), None)


@op()
def gather(x, ids, *, axis=-1):
    """One number for every id, along `axis`: y_ij = x_i,ids_ij where that is the last of two. Keeps the ids.

    `ids` has the axes of x, and their lengths but for `axis`. Cross-entropy picks its targets this way.

    >>> gather.vjp(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1], [0]]))[0].tolist()
    [[2.0], [3.0]]
    """
    check_numbers(ids, x.shape[axis])
    xp, shape, axis = array_module(x), x.shape, axis % x.ndim
    if ids.ndim != x.ndim or ids.shape != shape[:axis] + ids.shape[axis:axis + 1] + shape[axis + 1:]:
        raise ValueError(f"ids must have the lengths {shape} of x along all axes but {axis}, got {ids.shape}; "
                         f"take picks whole slices")
    numbers = xp.ix_(*[xp.arange(n) for n in ids.shape])                     # of every axis, and they broadcast
    index = (*numbers[:axis], ids, *numbers[axis + 1:])
    return x[index], lambda dy: (put_back(dy, index, shape), None)


def check_numbers(ids, size):
    dtype = getattr(ids, "dtype", type(ids))
    if getattr(dtype, "kind", None) not in ("i", "u"):
        raise TypeError(f"ids must be an array of integers, got {dtype}")
    check_ids(ids, size, "ids")
