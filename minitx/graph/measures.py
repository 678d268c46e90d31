"""What is measured: the cost of a function, forward and backward, and the paths through it.

Read next: `examples/claims/`, where the numbers are put to use.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import backend, ops
from ..nn import Module
from ..tape import gradients
from ..tensor import Tensor, no_grad, tracking
from .arrays import asarray
from .chains import Longest, Shortest, follow
from .library import DEVICE


class Products(NamedTuple):
    """The matrix products of one way."""

    work: int       # the arithmetic of all of them, in FLOP: 2 M N K for (M, K) @ (K, N)
    span: int       # how many in a row, at most, each of which needs the one before


class Cost(NamedTuple):
    """The matrix products of a computation. Prints as a table."""

    forward: Products
    backward: Products

    def __str__(self) -> str:
        rows = [f"{way:<10}{of.work:>20,}{of.span:>22,}" for way, of in self._asdict().items()]
        return "\n".join([f"{'products':<10}{'work, FLOP':>20}{'span, in a row':>22}", *rows])


def cost(function: Callable, *inputs: Any, **options: Any) -> Cost:
    """Work and span of the matrix products in `function(*inputs, **options)`, and in the way back from all that it returns.

    Args:
        function: a Module, a method of one such as `model.loss`, an op, or any function of Tensors. What it computes with must
            be among its inputs, modules included.
        inputs: Tensors, arrays, Modules, in lists and dicts too; anything else is passed on. Every array of floats gets a
            gradient. The computation runs on copies of them, without dropout; nothing of yours is changed.

    The way back starts with everything that the way forward made, so its span counts only what it adds.

    >>> x, h, W, U, b = np.ones((2, 7, 3)), np.ones((2, 4)), np.ones((3, 4)), np.ones((4, 4)), np.ones(4)
    >>> print(cost(ops.rnn, x, h, W, U, b))
    products            work, FLOP        span, in a row
    forward                    784                     7
    backward                 1,568                     7
    """
    if not tracking.get():
        raise RuntimeError("cost: called under no_grad(), where nothing can go back; call it outside")
    with follow(Longest()) as chains:
        outputs = run("cost", function, [moved(x) for x in inputs], options)
        forward = Products(*chains.lap())
        if tracked := [ops.sum(y) for y in outputs if y.requires_grad]:
            gradients(functools.reduce(ops.add, tracked))
        return Cost(forward, Products(*chains.lap()))


def paths(function: Callable, x: Any, *inputs: Any, operations: bool = False, **options: Any) -> np.ndarray:
    """The fewest products on a way from position s of `x` to position t of what `function(x, ...)` returns: (T_out, T_in).

    Args:
        function: as in `cost`; of several outputs the first is looked at, which must be (B, T_out, ...).
        x: (B, T_in, ...), floats such as embedded text, or ids (B, T_in).
        inputs, options: what else the function takes.
        operations: count every operation on the way, not only matrix products.

    `paths[t, s]` is inf where no way leads from s to t, as from the future in a causal model. A number that is exactly 0 leads
    nowhere, so x and weights should not hold any by accident. Between two ways that are open the shorter counts, however
    weak it is.

    >>> x, h, W, U, b = np.ones((1, 3, 2)), np.ones((1, 2)), np.ones((2, 2)), np.ones((2, 2)), np.ones(2)
    >>> paths(ops.rnn, x, h, W, U, b).tolist()
    [[1.0, inf, inf], [2.0, 1.0, inf], [3.0, 2.0, 1.0]]
    """
    x = getattr(x, "array", x)
    if not backend.is_array(x):
        raise TypeError(f"paths: x is a {type(x).__name__}; expected a Tensor or an array, ids too: np.array(ids)")
    values = backend.to_host(x)
    if values.ndim < 2 or not len(values):
        raise ValueError(f"paths: x has shape {values.shape}; expected (B, T) or more axes, B > 0, positions along axis 1")
    T = values.shape[1]
    with follow(Shortest(T, operations)), no_grad():
        array, here = asarray(values), np.where(np.eye(T, dtype=bool), 0, np.inf)            # (T, source)
        array.chain[...] = here.reshape(T, *[1] * (values.ndim - 2), T)
        y = run("paths", function, [Tensor(array), *map(moved, inputs)], options)[0].array
    if y.ndim < 2:
        raise ValueError(f"paths: the function returned shape {y.shape}; expected (B, T, ...), positions along axis 1")
    return y.chain.min(tuple(axis for axis in range(y.ndim) if axis != 1))


def moved(x: Any) -> Any:
    """A copy on the tracing device: of a Module, also when asked through its method, of arrays, of what holds them."""
    if isinstance(x, Module):
        return copy.deepcopy(x).to(DEVICE.name).eval()
    if inspect.ismethod(x):
        return getattr(moved(x.__self__), x.__name__)
    if isinstance(x, Tensor) or backend.is_array(x):
        array = backend.to_device(getattr(x, "array", x), DEVICE.name)
        return Tensor(array, requires_grad=array.dtype.kind == "f")
    if type(x) in (list, tuple):
        return type(x)(map(moved, x))
    return {key: moved(value) for key, value in x.items()} if type(x) is dict else x


def run(caller: str, function: Callable, inputs: list[Any], options: dict[str, Any]) -> list[Tensor]:
    """Everything that the function returns, computed on the tracing device."""
    if not callable(function):
        raise TypeError(f"{caller}: function is a {type(function).__name__}; expected a Module, an op or a function of Tensors")
    return tensors(caller, moved(function)(*inputs, **moved(options)))


def tensors(caller: str, out: Any) -> list[Tensor]:
    """As one list: one Tensor, several, or nested as those of an LSTM are, hs, (h, c)."""
    if isinstance(out, list | tuple):
        return [y for part in out for y in tensors(caller, part)]
    if not isinstance(out, Tensor):
        raise TypeError(f"{caller}: the function returned a {type(out).__name__}; expected a Tensor, or several")
    return [out]
