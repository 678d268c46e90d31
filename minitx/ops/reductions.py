"""Reductions beyond sum, mean and max: many numbers become one, and going back each gets its part.

`axis` is one axis, several as a tuple, or None for all, as in NumPy.

Read next: `shaping.py`, ops that only move numbers.
"""

import math

from ..backend import array_module
from ..op import op
from ..sums import narrow, wide
from .basic import axes_of
from .softmax import peak


@op("x (...) -> y")
def logsumexp(x, *, axis=None, keepdims=False):
    """y = log Σ exp(x) along `axis`, a smooth maximum; dx = dy softmax(x). Keeps softmax's numerators and their sums.

    Stable  the maximum is taken out before exp and put back after log; a row of -inf, or of nothing, gives -inf and no gradient

    >>> [round(logsumexp.vjp(np.array(x))[0].item(), 4) for x in ([5.0], [5.0, 5.0], [1000.0, 5.0])]
    [5.0, 5.6931, 1000.0]
    """
    xp, dtype, top = array_module(x), x.dtype, peak(x, axis)
    e = xp.exp(x - top)
    denominator = e.sum(axis, dtype=wide(x), keepdims=True)
    empty = denominator == 0
    denominator = xp.where(empty, 1, denominator)
    kept = xp.where(empty, -math.inf, xp.log(denominator) + top).astype(dtype, copy=False)

    def backward(dy):
        return (e * (dy.reshape(denominator.shape) / denominator)).astype(dtype, copy=False)

    return kept if keepdims else kept.squeeze(axis), backward


@op("x (...) -> y")
def var(x, *, axis=None, ddof=0, keepdims=False):
    """The variance along `axis`: y = Σ (x - mean)² / (n - ddof); dx = dy 2 (x - mean) / (n - ddof). Keeps x - mean.

    With `ddof` = 1 it is the unbiased estimate from a sample. The mean moves with x too, but Σ (x - mean) = 0 hides that.

    Stable  the mean is taken out before squaring; mean(x²) - mean(x)² loses all its digits when the mean is large

    >>> [var.vjp(np.array([1.0, 3.0]) + shift)[0].item() for shift in (0, 1e8)]
    [1.0, 1.0]
    """
    n, dtype = math.prod(x.shape[a] for a in axes_of(x, axis)), x.dtype
    if not n > ddof:
        raise ValueError(f"along axis {axis} an array of shape {x.shape} has {n} numbers; more than ddof = {ddof} are needed")
    rows = x.astype(wide(x), copy=False)
    centred = rows - rows.sum(axis, keepdims=True) / n
    kept = ((centred * centred).sum(axis, keepdims=True) / (n - ddof)).astype(dtype, copy=False)
    shape = kept.shape

    def backward(dy):
        return (centred * (dy.reshape(shape) * (2 / (n - ddof)))).astype(dtype, copy=False)

    return kept if keepdims else kept.squeeze(axis), backward


@op("x (...) -> y")
def norm(x, *, axis=None, keepdims=False):
    """The Euclidean length along `axis`: y = √Σ x²; dx = dy x / y, and 0 where y is 0, by convention. Keeps x and y.

    Stable  x is divided by its largest magnitude before it is squared, so nothing overflows or vanishes on the way

    >>> y, backward = norm.vjp(np.array([3.0, 4.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (5.0, [0.6, 0.8])
    """
    xp, dtype = array_module(x), x.dtype
    top = peak(xp.abs(x), axis)
    top = top + (top == 0)                                                   # 1 where all are zero
    unit = x / top
    kept = (xp.sqrt((unit * unit).sum(axis, dtype=wide(x), keepdims=True)) * top).astype(dtype, copy=False)

    def backward(dy):
        return x / xp.where(kept == 0, 1, kept) * dy.reshape(kept.shape)

    return kept if keepdims else kept.squeeze(axis), backward


@op("x:any (...) -> y")
def prod(x, *, axis=None, keepdims=False):
    """The product along `axis`: y = Π x; dx_i = dy times the product of all others. Keeps x.

    Stable  the others are multiplied up from both ends, never y / x_i: a zero among them is no trouble

    >>> y, backward = prod.vjp(np.array([2.0, 0.0, 5.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (0.0, [0.0, 10.0, 0.0])
    """
    kept = narrow(x.prod(axis, dtype=wide(x), keepdims=True), x)
    shape = kept.shape

    def backward(dy):
        others = products_of_others(x.astype(wide(x), copy=False), axes_of(x, axis))
        return (others * dy.reshape(shape)).astype(dy.dtype, copy=False)

    return kept if keepdims else kept.squeeze(axis), backward


def products_of_others(x, axes):
    """For every number the product of all that share its place but for `axes`: of those before it times those after it."""
    xp, last = array_module(x), tuple(range(-len(axes), 0))
    moved = xp.moveaxis(x, axes, last)
    rows = moved.reshape(*moved.shape[:x.ndim - len(axes)], math.prod(x.shape[a] for a in axes))      # (..., n)
    ones, back = xp.ones_like(rows[..., :1]), rows[..., ::-1]
    before = xp.cumprod(xp.concatenate([ones, rows[..., :-1]], -1), -1)
    after = xp.cumprod(xp.concatenate([ones, back[..., :-1]], -1), -1)[..., ::-1]
    return xp.moveaxis((before * after).reshape(moved.shape), last, axes)


@op("x:any (...) -> y")
def cumsum(x, *, axis=None):
    """The running sum along `axis`, or over all of x in one row if None: y_i = x_0 + … + x_i.

    A number counts in its own sum and all that follow, so dx_i = dy_i + … + dy_n: a running sum from the other end.

    >>> y, backward = cumsum.vjp(np.array([1.0, 2.0, 3.0]))
    >>> y.tolist(), backward(np.ones(3)).tolist()
    ([1.0, 3.0, 6.0], [3.0, 2.0, 1.0])
    """
    xp, shape, dtype = array_module(x), x.shape, x.dtype
    along = 0 if axis is None else axis
    y = narrow(xp.cumsum(x.reshape(-1) if axis is None else x, along, dtype=wide(x)), x)

    def backward(dy):
        dx = xp.flip(xp.cumsum(xp.flip(dy, along), along, dtype=wide(dy)), along)
        return dx.astype(dtype, copy=False).reshape(shape)

    return y, backward
