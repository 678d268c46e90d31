"""Arithmetic and reductions: the smallest ops, and what broadcasting does to a gradient.

Repeating a number along an axis spends it several times, so going back its gradients are *summed* over that axis. That is all
there is to broadcasting, and sum and broadcast are each other's backward.

Read next: `powers.py`.
"""

import math

from ..backend import array_module, is_array
from ..op import op
from ..sums import narrow, total, wide


def broadcasting(*shapes):
    """arrays that broadcast"""
    for axis in range(-max(map(len, shapes), default=0), 0):
        lengths = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(lengths) > 1:
            raise ValueError(f"these shapes do not broadcast: axis {axis} has lengths {sorted(lengths)}; "
                             f"lengths must be equal or 1")


def unbroadcast(dz, shape):
    """Sum `dz` over the axes along which an operand of this shape was repeated. No shape, no gradient: None."""
    if shape is None:
        return None
    if dz.shape == shape:
        return dz
    new = dz.ndim - len(shape)
    repeated = tuple(i for i, n in enumerate(dz.shape) if i < new or (shape[i - new] == 1 and n != 1))
    return total(dz, repeated).reshape(shape)


def alike(x, y):
    """x, y with integers brought to the float dtype of the other (NumPy alone would make float32 * int64 float64).

    Also the shapes to which their gradients go back: None for what has no gradient, a Python number or integers.
    """
    x_float, y_float = is_array(x) and x.dtype.kind == "f", is_array(y) and y.dtype.kind == "f"
    if x_float and not y_float and is_array(y):
        y = y.astype(x.dtype)
    if y_float and not x_float and is_array(x):
        x = x.astype(y.dtype)
    return x, y, x.shape if x_float else None, y.shape if y_float else None


@op(broadcasting)
def add(x, y):
    """z = x + y, with broadcasting; dx = dz and dy = dz, each summed where its operand was repeated.

    >>> backward = add.vjp(np.zeros((3, 2)), np.zeros(2))[1]
    >>> backward(np.ones((3, 2)))[1].tolist()
    [3.0, 3.0]
    """
    x, y, to_x, to_y = alike(x, y)
    z = x + y

    def backward(dz):
        return unbroadcast(dz, to_x), unbroadcast(dz, to_y)

    return z, backward


@op(broadcasting)
def sub(x, y):
    """z = x - y, with broadcasting; dx = dz and dy = -dz, each summed where its operand was repeated.

    >>> backward = sub.vjp(np.array([5.0]), np.array([3.0]))[1]
    >>> [d.item() for d in backward(np.ones(1))]
    [1.0, -1.0]
    """
    x, y, to_x, to_y = alike(x, y)
    z = x - y

    def backward(dz):
        return unbroadcast(dz, to_x), unbroadcast(-dz, to_y)

    return z, backward


@op(broadcasting)
def mul(x, y):
    """z = x y, element by element, with broadcasting; dx = dz y and dy = dz x. Keeps both operands.

    >>> backward = mul.vjp(np.array([5.0]), np.array([3.0]))[1]
    >>> [d.item() for d in backward(np.ones(1))]
    [3.0, 5.0]
    """
    x, y, to_x, to_y = alike(x, y)
    z = x * y

    def backward(dz):
        return unbroadcast(dz * y, to_x), unbroadcast(dz * x, to_y)

    return z, backward


@op(broadcasting)
def div(x, y):
    """z = x / y, element by element, with broadcasting; dx = dz / y and dy = -dz z / y. Keeps y and z.

    >>> backward = div.vjp(np.array([6.0]), np.array([2.0]))[1]
    >>> [d.item() for d in backward(np.ones(1))]
    [0.5, -1.5]
    """
    x, y, to_x, to_y = alike(x, y)
    z = x / y

    def backward(dz):
        dx = dz / y
        return unbroadcast(dx, to_x), unbroadcast(-dx * z, to_y)

    return z, backward


@op("x:any (...) -> y (...)")
def neg(x):
    """y = -x; dx = -dy.

    >>> neg.vjp(np.array([1.0, -2.0]))[0].tolist()
    [-1.0, 2.0]
    """
    return -x, lambda dy: -dy


def inner_axes(x, y):
    """x (..., M, K), y (..., K, N): the last axis of x meets the last but one of y; a vector is x (K) or y (K)"""
    if not x or not y:
        raise ValueError("both arguments need at least one axis; use * for a number")
    if x[-1] != y[-2:][0]:
        raise ValueError(f"inner lengths differ: x has {x[-1]} columns, y has {y[-2:][0]} rows; transpose one")
    broadcasting(x[:-2], y[:-2])


@op(inner_axes)
def matmul(x, y):
    """The matrix product z = x y, over all leading axes, which broadcast.

        z_mn = Σ_k x_mk y_kn        dx = dz yᵀ        dy = xᵀ dz

    Each gradient is a product of the same kind: what one operand lost its index to, the other puts back.
    A vector counts as a row on the left and as a column on the right.

    >>> matmul.vjp(np.array([[1.0, 2.0], [3.0, 4.0]]), np.eye(2))[0].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    x, y, *_ = alike(x, y)
    rows = x[None, :] if x.ndim == 1 else x                                  # (..., M, K)
    cols = y[:, None] if y.ndim == 1 else y                                  # (..., K, N)
    full = rows @ cols                                                       # (..., M, N)
    x_shape, y_shape, shape = x.shape, y.shape, full.shape
    z = full.reshape(shape[:-2] + shape[-2:-1] * (x.ndim > 1) + shape[-1:] * (y.ndim > 1))

    def backward(dz):
        dz = dz.reshape(shape)
        drows = unbroadcast(dz @ cols.swapaxes(-1, -2), rows.shape)
        dcols = unbroadcast(rows.swapaxes(-1, -2) @ dz, cols.shape)
        return drows.reshape(x_shape), dcols.reshape(y_shape)

    return z, backward


def axes_of(x, axis):
    """The axes of a reduction, as a tuple: `axis` is one of them, several, or None for all."""
    return tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)


@op()
def sum(x, *, axis=None, keepdims=False):
    """Add up along `axis` (one, several, or all): y = Σ x. Every summand gets the whole gradient: dx = dy, repeated.

    >>> y, backward = sum.vjp(np.array([1.0, 2.0, 3.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (6.0, [1.0, 1.0, 1.0])
    """
    kept = total(x, axis, keepdims=True)
    y = kept if keepdims else kept.squeeze(axis)
    shape, kept_shape, xp = x.shape, kept.shape, array_module(x)

    def backward(dy):
        return xp.broadcast_to(dy.reshape(kept_shape), shape)

    return y, backward


@op()
def mean(x, *, axis=None, keepdims=False):
    """The average along `axis` (one, several, or all): y = Σ x / n. Every summand gets its share: dx = dy / n, repeated.

    >>> y, backward = mean.vjp(np.array([1.0, 2.0, 3.0, 6.0]))
    >>> y.item(), backward(np.ones(())).tolist()
    (3.0, [0.25, 0.25, 0.25, 0.25])
    """
    n = math.prod(x.shape[a] for a in axes_of(x, axis))
    if n == 0:
        raise ValueError(f"the mean along axis {axis} of an array of shape {x.shape} has nothing to average")
    kept = narrow(x.sum(axis, dtype=wide(x), keepdims=True) / n, x)
    y = kept if keepdims else kept.squeeze(axis)
    shape, kept_shape, xp = x.shape, kept.shape, array_module(x)

    def backward(dy):
        return xp.broadcast_to(dy.reshape(kept_shape) * (1 / n), shape)          # n itself may be too large for float16

    return y, backward
