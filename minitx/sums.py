"""Sums: in a dtype that is wide enough, and by products, which BLAS adds up faster than NumPy.

Rows are along the last axis, whatever stands before it. Each function has a form for NumPy and one for CuPy, in this order.

Read next: `panels.py`, the one product that is not a plain one.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .backend import Array, array_module, device_of, read_only

_FLOAT32 = np.dtype("float32")


def wide(x: Array) -> Any:
    """The dtype in which sums over x are kept: float32 for float16, that of x for other floats, else NumPy's choice, None."""
    return None if x.dtype.kind != "f" else _FLOAT32 if x.dtype.itemsize == 2 else x.dtype


def narrow(y: Array, x: Array) -> Array:
    """What was added up over x in `wide(x)`, in the dtype of x again, or as it is if x holds no floats."""
    return y.astype(x.dtype, copy=False) if x.dtype.kind == "f" else y


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum of x, added up in a dtype that is wide enough, in the dtype of x (integers and booleans: as NumPy does)."""
    return narrow(x.sum(axis, dtype=wide(x), keepdims=keepdims), x)


@functools.lru_cache(32)
def ones(xp: Any, n: int, dtype: Any) -> Array:
    """n ones to multiply by, kept for the next time: for short rows they would take as long as the product."""
    return read_only(xp.ones(n, dtype))


def row_sum(x: Array, weights: Array | None = None) -> Array:
    """The sum Σ_d x_d w_d of every row of the floats x (..., D): (..., 1), in `wide(x)`. The weights (D) are 1 unless given.

    For NumPy a product: BLAS adds up four times as fast as `sum`. It rounds a little more, since it does not add in pairs.
    """
    home = device_of(x)
    if home.blas:
        return (x @ (ones(home.xp, x.shape[-1], wide(x)) if weights is None else weights))[..., None]
    return (x if weights is None else x * weights).sum(-1, dtype=wide(x), keepdims=True)


def row_dot(x: Array, y: Array) -> Array:
    """The sum Σ_d x_d y_d of every row of the floats x and y (..., D): (..., 1), in `wide(x)`. NumPy has one call for it."""
    if type(x) is np.ndarray:
        return np.vecdot(x, y, dtype=wide(x))[..., None]
    return (x * y).sum(-1, dtype=wide(x), keepdims=True)


def column_sum(x: Array) -> Array:
    """The sum over all rows of the floats x (..., D): (D), in `wide(x)`. For NumPy a product, as in `row_sum`."""
    home, rows = device_of(x), x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return ones(home.xp, len(rows), wide(x)) @ rows if home.blas else rows.sum(0, dtype=wide(x))


def row_max(x: Array) -> Array:
    """The largest number of every row of x (..., D): (..., 1), NaN where there is one.

    NumPy finds the place of it in less than half the time in which it finds the number: each row costs `max` a start.
    """
    if type(x) is not np.ndarray:
        return x.max(-1, keepdims=True)
    rows = x.reshape(-1, x.shape[-1])
    return rows[np.arange(len(rows)), rows.argmax(-1)].reshape(*x.shape[:-1], 1)


def scatter_add(ids: Array, rows: Array, size: int) -> Array:
    """Sum the rows (n, D) with equal id into a table (size, D); ids (n) may repeat.

    `table[ids] += rows` would keep one row per id. `add.at` keeps them all. CuPy's accepts every float dtype (but no int64, so
    never add integers); NumPy's goes from number to number, and keeps all other threads waiting.
    """
    xp, n, D = array_module(rows), len(ids), rows.shape[-1]
    rows, dtype = rows.reshape(n, D).astype(wide(rows), copy=False), rows.dtype
    table = xp.zeros((size, D), rows.dtype)
    if xp is not np:
        places = ids.astype("int64")[:, None] * D + xp.arange(D)                 # (n, D)
        xp.add.at(table.reshape(-1), places.reshape(-1), rows.reshape(-1))
    elif size <= 100 and math.isfinite(np.vdot(rows, rows)):                     # 0 · ∞ would be NaN, for every id
        one_hot = np.zeros((size, n), rows.dtype)
        one_hot[ids, np.arange(n)] = 1
        table = one_hot @ rows
    else:
        order = ids.argsort(kind="stable")
        ids, sums = ids.take(order), rows.take(order, 0)                         # a copy of our own
        nth, step = np.arange(n) - ids.searchsorted(ids), 1                      # 0, 1, 2, ... among those with the same id
        while len(at := (nth % (2 * step) == step).nonzero()[0]):                # add every second to the one before it,
            sums[at - step] += sums.take(at, 0)                                  # then every fourth, ...
            step *= 2
        first = (nth == 0).nonzero()[0]
        table[ids.take(first)] = sums.take(first, 0)
    return table.astype(dtype, copy=False)
