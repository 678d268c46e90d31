"""Tensor: an array that knows whether it is tracked and where it came from.

Read next: `tape.py`, the way back from a loss to its leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backend, options
from .backend import Array, device_of, owner
from .tape import Node, gradients

tracking: ContextVar[bool] = ContextVar("tracking", default=True)


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Inside `with no_grad():` (or a function decorated with `@no_grad()`) ops do not enter the tape and nothing is kept.

    >>> x = mx.tensor([1.0, 2.0], requires_grad=True)
    >>> with no_grad():
    ...     y = 2 * x
    >>> y.requires_grad, (2 * x).requires_grad
    (False, True)
    """
    before = tracking.set(False)
    try:
        yield
    finally:
        tracking.reset(before)


class Tensor:
    """An array, whether it is tracked, and where it came from.

    A leaf (made by `tensor`, or a parameter) may be tracked with `requires_grad=True`; what an op returns is tracked when an
    input is. `array` is the raw array: read it freely, write through `assign_` only.
    """

    __slots__ = ("__weakref__", "array", "grad", "made_by", "node", "requires_grad", "slot", "version")
    __array_ufunc__ = None  # NumPy leaves `array * tensor` to Tensor

    def __init__(self, array: Array, requires_grad: bool = False) -> None:
        if not backend.is_array(array):
            raise TypeError(f"Tensor: expected an array, got {type(array).__name__}; make a Tensor with minitx.tensor(...)")
        if requires_grad and array.dtype.kind != "f":
            raise TypeError(f"Tensor: requires_grad needs floating point numbers, got dtype {array.dtype}; "
                            f"pass dtype='float32' or leave requires_grad out")
        self.array, self.requires_grad = array, requires_grad
        self.grad: Array | None = None
        self.node: Node | None = None           # the op call that made this Tensor; None for a leaf
        self.slot = 0                           # which of that op's outputs it is
        self.made_by: str | None = None         # the op's name, tracked or not
        # raised by every write: one cell for all Tensors that share the memory of a leaf; None where nobody may write
        self.version: list[int] | None = [0]

    if TYPE_CHECKING:       # operators and methods that `ops/methods.py` adds
        def __iter__(self) -> Iterator[Tensor]: ...
        def _method(self, *args: Any, **static: Any) -> Tensor: ...
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _method
        __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = __getitem__ = _method
        __lt__ = __le__ = __gt__ = __ge__ = _method
        sum = mean = max = min = prod = norm = logsumexp = var = cumsum = _method
        exp = log = sqrt = abs = clip = tanh = sigmoid = relu = softmax = log_softmax = _method
        reshape = transpose = _method
        T: Tensor

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    device = property(lambda self: device_of(self.array).name)

    @property
    def data(self) -> Array:
        """The array as a view that refuses writes (a plain view on CuPy, which cannot refuse)."""
        return backend.read_only(self.array)

    def numpy(self) -> np.ndarray:
        """A copy on the host, cut from the tape; it never changes later."""
        return np.array(backend.to_host(self.array))

    def item(self) -> float:
        """The single number in this Tensor, as a Python number."""
        return self._number("item")

    def _number(self, asked: str) -> Any:
        if self.size != 1:
            raise ValueError(f"{asked}: a Tensor of shape {self.shape} is not a single number; "
                             f"reduce it, with sum() or max() say, or pick one number by its index")
        return self.array.item()

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __bool__(self) -> bool:
        return bool(self._number("bool"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a Tensor of shape () is a single number, without axes to count or to walk along; use item()")
        return self.shape[0]

    def __contains__(self, value: Any) -> bool:
        raise TypeError("in: Tensors are compared as objects, not by their numbers; ask (t.data == value).any()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """For NumPy, which may look at the numbers but not write."""
        if self.requires_grad or not isinstance(self.array, np.ndarray):
            why = "is tracked, and NumPy would forget how it was made" if self.requires_grad else f"lives on {self.device}"
            raise TypeError(f"__array__: this Tensor {why}; take t.numpy(), or t.detach() to keep a Tensor")
        return np.array(self.data, dtype, copy=copy)

    def __repr__(self) -> str:
        made = f", made by {self.made_by}" if self.made_by else ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(backend.to_host(self.array), precision=4, separator=", ", threshold=20)
        return f"Tensor({values}, shape={self.shape}, dtype={self.dtype}, device={self.device}{made})"

    def detach(self) -> Tensor:
        """The same array without its history: gradients stop here."""
        cut = Tensor(self.array)
        cut.made_by, cut.version = self.made_by, self.version
        return cut

    def to(self, device: str) -> Tensor:
        """This Tensor on another device. A leaf becomes a new leaf there; move leaves before computing with them."""
        if self.device == device:
            return self
        if self.node is not None:
            raise RuntimeError(f"to: the tracked output of {self.made_by} cannot change device, since its gradient could "
                               f"not come back; move the leaves before the forward pass, or detach() first")
        return Tensor(backend.to_device(self.array, device), self.requires_grad)

    def assign_(self, value: Any) -> Tensor:
        """Overwrite a leaf in place. A backward pass that still needs the old numbers will say so."""
        if self.made_by:
            raise RuntimeError(f"assign_: this Tensor is an output of {self.made_by} and may share memory with its inputs; "
                               f"assign to a leaf, or make one with minitx.tensor(t.data)")
        value, own = value.array if isinstance(value, Tensor) else value, self.array
        if not backend.is_array(value):
            value = backend.numbers("assign_", value)
            if value.dtype.kind not in "fiub" or (value.dtype.kind == "f" and self.dtype.kind != "f"):
                raise TypeError(f"assign_: expected numbers that fit {self.dtype}, got {value.dtype}")
            value = backend.to_device(value.astype(self.dtype), self.device)
        if value.shape != own.shape or value.dtype != own.dtype or type(value) is not type(own):
            raise ValueError(f"assign_: expected shape {self.shape}, {self.dtype} on {self.device}, "
                             f"got {value.shape}, {value.dtype} on {device_of(value).name}")
        own[...] = value
        self.version[0] += 1    # type: ignore[index]
        return self

    def backward(self, seed: Any = None, *, create_graph: bool = False) -> None:
        """Add d(seed · self)/d(leaf) to the `.grad` of every tracked leaf. `seed` is 1 for a single number.

        The tape is used up: a second call needs a new forward pass.
        """
        if create_graph:
            raise NotImplementedError("backward: double backward is out of minitx's scope; gradients are plain arrays "
                                      "that remember nothing, so create_graph=True cannot be served")
        for leaf, grad in gradients(self, seed).items():
            leaf.grad = grad.copy() if leaf.grad is None else backend.as_array(leaf.grad + grad)


def made(array: Array, by: str, node: Node | None, slot: int, writable: Sequence[tuple]) -> Tensor:
    """Output `slot` of the op `by`, a plain array of its device: a Tensor without the checks of `Tensor(...)`, for speed.

    A view of an argument that can be written (see `Node`) changes with it.
    """
    t = Tensor.__new__(Tensor)
    t.array, t.made_by, t.grad, t.slot = array, by, None, slot
    t.node = node if array.dtype.kind == "f" else None
    t.requires_grad = t.node is not None
    t.version = None
    if writable:
        memory = owner(array)
        for _, argument, version, _ in writable:
            if owner(argument) is memory:
                t.version = version
                break
    return t


def tensor(data: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A Tensor with its own copy of `data`: an array, a Tensor, or (nested lists of) numbers.

    Arrays keep their dtype and device unless told otherwise; Python floats become float32, the dtype of modules.

    >>> tensor([1, 2.5]).dtype.name, tensor(np.array([1, 2.5])).dtype.name
    ('float32', 'float64')
    """
    array = data.array if isinstance(data, Tensor) else data
    if not backend.is_array(array):
        python_numbers = _python_numbers(array)
        array = backend.numbers("tensor", array)
        if array.dtype == "float64" and python_numbers and dtype is None:
            dtype = "float32"
    try:
        dtype = np.dtype(dtype or array.dtype)
    except TypeError:
        raise TypeError(f"tensor: dtype is {dtype!r}; expected the name of a NumPy dtype, such as 'float32'") from None
    if array.dtype.kind not in "fiub" or dtype.kind not in "fiub":
        raise TypeError(f"tensor: expected numbers or booleans, got {type(data).__name__} of {array.dtype} to hold as {dtype}")
    array = backend.to_device(array, device or device_of(array).name)
    with backend.expecting_overflow():
        converted = array.astype(dtype, copy=True)
    if dtype.kind in "iu" and dtype != array.dtype and not bool((converted == array).all()):
        raise ValueError(f"tensor: {dtype} cannot hold all of these numbers unchanged; round or clip them first")
    return Tensor(converted, requires_grad)


def _python_numbers(data: Any) -> bool:
    """Whether these are (nested lists of) Python's own numbers, with no array among them."""
    if isinstance(data, (list, tuple)):
        return all(map(_python_numbers, data))
    return isinstance(data, (bool, int, float)) and not isinstance(data, np.generic)


def zeros(*shape: int, like: Tensor) -> Tensor:
    """Zeros with the dtype and on the device of another Tensor."""
    options.kind("zeros", Tensor, "make one with minitx.tensor(...)", like=like)
    options.whole("zeros", 0, **{f"axis {i}": n for i, n in enumerate(shape)})
    return Tensor(backend.array_module(like.array).zeros(shape, like.dtype))
