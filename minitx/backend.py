"""Devices: the one file that knows which array libraries exist.

Every op is written once, in the part of NumPy that CuPy has too. It asks `array_module(x)` for the library of its input and
otherwise uses methods and operators. What the two libraries do differently is settled here, each difference with a test.

Read next: `sums.py`, and then `tensor.py`, the value that flows through a model.
"""

from __future__ import annotations

import contextlib
import functools
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
    while (base := x.base) is not None and is_array(base):
        x = base
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


def clear_rows(x: Array, which: Array) -> None:
    """Write zeros into the rows of x (n, D) that the booleans `which` (n) name.

    NumPy touches only those; CuPy would wait to learn how many they are, so it passes over all of x.
    """
    if type(x) is np.ndarray:
        x[which] = 0
    else:
        array_module(x).copyto(x, 0, where=which[:, None])


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
