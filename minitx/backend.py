"""Devices: the one file that knows which array libraries exist.

Every op is written once, in the part of NumPy that CuPy has too. It asks `array_module(x)` for the library of its input and
otherwise uses methods and operators. What the two libraries do differently is settled here, each difference with a test.

Read next: `tensor.py`, the value that flows through a model.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from . import special

Array = Any  # np.ndarray, cupy.ndarray, or the array class of another registered device


@dataclass(frozen=True)
class Device:
    """One place where arrays live: its name, its array library `xp`, the class of its arrays, and the way home."""

    name: str
    xp: ModuleType | Any
    array: type
    to_host: Callable[[Array], np.ndarray]
    synchronize: Callable[[], None] = lambda: None
    erfc: Callable[[Array], Array] | None = None        # 1 - erf(x), where the library has it
    fuse: Callable[[Callable], Callable] | None = None  # f(xp, *arrays) as one kernel(*arrays), where the library makes one
    blas: bool = False                                  # whether products with ones add up faster than the library's `sum`


_BY_NAME: dict[str, Device] = {}
_BY_TYPE: dict[type, Device] = {}


def register(device: Device) -> Device:
    """Add a device, so that ops, modules and checks work on its arrays."""
    _BY_NAME[device.name] = _BY_TYPE[device.array] = device
    return device


register(Device("cpu", np, np.ndarray, lambda x: x, blas=True))


def _load_cuda() -> Device:
    try:
        import cupy
    except ImportError as missing:
        raise RuntimeError("device 'cuda': needs CuPy, which is not installed; "
                           "install minitx[cuda12] or minitx[cuda13], or use device 'cpu'") from missing
    if not cupy.is_available():
        raise RuntimeError("device 'cuda': CuPy finds no usable GPU on this machine; use device 'cpu'")
    from cupyx.scipy.special import erfc

    def fuse(function: Callable) -> Callable:
        return cupy.fuse(kernel_name=function.__name__)(functools.partial(function, cupy))

    return register(Device("cuda", cupy, cupy.ndarray, cupy.asnumpy, lambda: cupy.cuda.Device().synchronize(), erfc, fuse))


def device(name: str) -> Device:
    """The device called `name`; CuPy is imported when "cuda" is first asked for."""
    if name == "cuda" and name not in _BY_NAME:
        return _load_cuda()
    try:
        return _BY_NAME[name]
    except (KeyError, TypeError):
        raise ValueError(f"device {name!r}: expected one of {sorted({*_BY_NAME, 'cuda'})}") from None


def device_of(x: Array) -> Device:
    """The device on which the array `x` lives."""
    try:
        return _BY_TYPE[type(x)]
    except KeyError:
        pass
    if isinstance(x, (np.ndarray, np.generic)):      # subclasses such as np.memmap, and NumPy's scalars
        return _BY_NAME["cpu"]
    if type(x).__module__.split(".")[0] == "cupy":   # an array that the caller made with CuPy before we loaded it
        return _load_cuda()
    raise TypeError(f"expected an array, got {type(x).__name__}; make one with minitx.tensor(...)")


def array_module(x: Array) -> Any:
    """The library of the array `x`: `numpy` or `cupy`."""
    device = _BY_TYPE.get(type(x))
    return device.xp if device else device_of(x).xp


def is_array(x: object) -> bool:
    return type(x) in _BY_TYPE


def as_array(x: Any) -> Any:
    """NumPy makes scalars of 0-d results: those as arrays again, all else as it is."""
    return x if type(x) is np.ndarray or not isinstance(x, np.generic) else np.asarray(x)


def owner(x: Array) -> Array:
    """The array that owns the memory of `x`: `x` itself, unless it is a view."""
    while is_array(getattr(x, "base", None)):
        x = x.base
    return x


def numbers(caller: str, data: Any, dtype: Any = None) -> np.ndarray:
    """(Nested lists of) numbers as a NumPy array, or an error in the name of the caller."""
    try:
        return np.array(data, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{caller}: cannot make an array of this {type(data).__name__} ({' '.join(str(error).split())}); "
                         f"give numbers, in lists of equal lengths") from None


def to_device(x: Array, name: str) -> Array:
    """Move `x` to the device `name`; an array that is there already is returned as it is."""
    source, target = device_of(x), device(name)
    return x if source is target else target.xp.asarray(source.to_host(x))


def to_host(x: Array) -> np.ndarray:
    """`x` as a NumPy array: the same array when it is one, otherwise a copy (which waits for the device)."""
    return np.asarray(device_of(x).to_host(x))


def read_only(x: Array) -> Array:
    """A view of `x` that refuses writes, where the library can make one (CuPy cannot)."""
    view = x.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def wide(x: Array) -> Any:
    """The dtype in which sums over x are kept: float32 for float16, that of x for other floats, else NumPy's choice, None."""
    return None if x.dtype.kind != "f" else np.dtype("float32") if x.dtype == "float16" else x.dtype


def narrow(y: Array, x: Array) -> Array:
    """What was added up over x in `wide(x)`, in the dtype of x again, or as it is if x holds no floats."""
    return y.astype(x.dtype, copy=False) if x.dtype.kind == "f" else y


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum of x, added up in a dtype that is wide enough, in the dtype of x (integers and booleans: as NumPy does)."""
    return narrow(x.sum(axis, dtype=wide(x), keepdims=keepdims), x)


@functools.lru_cache(32)
def ones(xp: Any, n: int, dtype: Any) -> Array:
    """n ones to multiply by, kept for the next time."""
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


def panels(W: Array, rows: int) -> Array:
    """W (K, N), to be multiplied by few rows again and again: cut into column panels (P, K, N/P).

    A product whose three lengths multiply to at most 10⁶ is done by OpenBLAS at once. For a larger one it first copies both
    factors into another order, which for few rows, as in a recurrence, takes as long as the product. W in one panel where that
    is small enough, or where panels do not help.
    """
    home, (K, N) = device_of(W), W.shape
    if not home.blas:
        return W
    P = next((P for P in (1, N // 64, N // 32, N // 16) if P and N % P == 0 and rows * K * N <= P * 1e6), 1)
    return home.xp.ascontiguousarray(W.reshape(K, P, N // P).swapaxes(0, 1))


def multiplier(W: Array, rows: int) -> Callable[[Array], Array]:
    """The function x -> x W for x (rows, K) and a W (K, N) that stays, in `panels`: (rows, N), in the same memory each time."""
    xp, parts = array_module(W), panels(W, rows)
    y = xp.empty((rows, W.shape[1]), W.dtype)
    by_panel = y.reshape(rows, *parts.shape[:-2], parts.shape[-1]).swapaxes(0, -2)

    def product(x: Array) -> Array:
        xp.matmul(x, parts, out=by_panel)
        return y

    return product


def clear_rows(x: Array, which: Array) -> None:
    """Write zeros into the rows of x (n, D) that the booleans `which` (n) name.

    NumPy touches only those; CuPy would wait to learn how many they are, so it passes over all of x.
    """
    if type(x) is np.ndarray:
        x[which] = 0
    else:
        array_module(x).copyto(x, 0, where=which[:, None])


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


def erfc(x: Array) -> Array:
    """1 - erf(x), with all digits in the tail. CuPy has it; NumPy has not, so it stands in `special.py`."""
    home = device_of(x)
    if home.erfc:
        return home.erfc(x).astype(x.dtype, copy=False)
    return to_device(special.erfc(to_host(x)), home.name)


def fused(function: Callable) -> Callable:
    """Decorates an element-wise `function(xp, *arrays and numbers)`; it is called without the xp, an array first.

        @fused
        def descend(xp, w, g, lr):
            w -= lr * g

    NumPy runs it as it stands. CuPy would start a kernel for every operator, and read and write all memory each time; so it
    runs the function once to see what becomes of *one* element, and makes a single kernel of that (`cupy.fuse`).

    It may use operators, ufuncs with or without `out=`, `xp.where` and `xp.clip`, and may write into arrays that are as large
    as all its arguments together; it returns arrays of that size, or nothing. Numbers meet arrays only, never one another:
    CuPy would take `1 - beta` for float16. So that is done before the call. The stand-in of the tests refuses all else.
    """
    kernels: dict[type, Callable] = {}

    @functools.wraps(function)
    def call(first: Array, *others: Any) -> Any:
        kernel = kernels.get(type(first))
        if kernel is None:
            home = device_of(first)
            kernel = kernels[type(first)] = home.fuse(function) if home.fuse else functools.partial(function, home.xp)
        return kernel(first, *others)

    return call


def expecting_overflow() -> contextlib.AbstractContextManager[Any]:
    """The scope for code that means to overflow, such as an exploding recurrence: infinities without warnings.

    NumPy warns of them, CuPy never does.
    """
    return np.errstate(over="ignore", invalid="ignore")
