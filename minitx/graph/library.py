"""The device "trace": the array library of traced arrays.

Every function computes on the values, as NumPy does, and says what becomes of the chains:

    MOVING        they move with the numbers: the same function on the records
    element-wise  every ufunc, and `clip`: the chains of the operands are combined, broadcast like them; CHOOSING ones say which
    REDUCING      they are combined along the axis; RUNNING: up to each place
    MAKING        there are none
    matmul        those of row and column are combined, and one is added; `tensordot` is one too

A function for which no rule is written here raises: better no answer than a wrong chain.

Read next: `measures.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import backend
from .arrays import Traced, asarray, chain_of, made, places_of, value_of
from .chains import current

MOVING = """broadcast_to concatenate copy expand_dims flip moveaxis ravel repeat reshape roll split squeeze stack swapaxes tile
    transpose"""
MOVING_METHODS = "copy ravel repeat reshape squeeze swapaxes transpose view"
REDUCING = "all any max mean min prod std sum var"
RUNNING = "cumprod cumsum"
CHOOSING = (np.maximum, np.minimum, np.fmax, np.fmin, np.clip, np.max, np.min)     # of these only the winner goes on
MAKING = "arange empty eye full linspace ones tri zeros"
ALIKE = "empty_like full_like ones_like zeros_like"
HERE = "minitx/graph/library.py"


# One maker for each kind of rule


def moving(function: Callable) -> Callable:
    def moved(*args: Any, **options: Any) -> Any:
        return traced(function(*map(records, args), **options))
    return moved


def records(x: Any) -> Any:
    """Traced arrays as records, in lists and tuples too."""
    if isinstance(x, list | tuple):
        return [records(part) for part in x]
    return x.record if isinstance(x, Traced) else value_of(x)


def traced(x: Any) -> Any:
    return [traced(part) for part in x] if isinstance(x, list | tuple) else Traced(x)


class Elementwise:
    """A function of single numbers."""

    def __init__(self, function: Callable) -> None:
        self.function, self.__name__ = function, function.__name__

    def __call__(self, *operands: Any, out: Traced | None = None, dtype: Any = None) -> Traced:
        chains, count = current.get(), list(map(chain_of, operands))
        value = self.function(*map(value_of, operands), **({} if dtype is None else {"dtype": dtype}))
        if self.function in CHOOSING:
            count = [chains.chosen(chain, value_of(x) == value) for chain, x in zip(count, operands, strict=True)]
        result = made(value, chains.step + functools.reduce(chains.combine, count))
        if out is None:
            return result
        out[...] = result
        return out

    def at(self, x: Traced, index: Any, operand: Any) -> None:
        """x[index] = function(x[index], operand), one after the other where the index names an element more than once."""
        places, chain = places_of(x, index)
        if chain is not None:
            raise TypeError(f"trace: no rule for {self.__name__}.at, where the places depend on what is measured; "
                            f"write one in {HERE}")
        self.function.at(x.value, places, value_of(operand))                # type: ignore[attr-defined]
        rows = (*places, slice(None))
        current.get().combine.at(x.chain, rows, current.get().step + chain_of(operand))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trace: no rule for {self.__name__}.{name}; write one in {HERE}")


def reducing(function: Callable) -> Callable:
    def reduced(x: Traced, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Traced:
        chains, chain = current.get(), x.chain
        value = function(x.value, axis, keepdims=True, **options)
        if function in CHOOSING:
            chain = chains.chosen(chain, x.value == value)
        axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        chain = chains.combine.reduce(chain, tuple(a % x.ndim for a in axes), keepdims=True, initial=chains.none)
        result = made(value, chains.step + chain)
        return result if keepdims else Traced(result.record.squeeze(axes))
    return reduced


def running(function: Callable) -> Callable:
    def ran(x: Traced, axis: int, dtype: Any = None) -> Traced:
        chains = current.get()
        chain = chains.combine.accumulate(x.chain, axis % x.ndim)
        return made(function(x.value, axis, dtype=dtype), chains.step + chain)
    return ran


def making(function: Callable) -> Callable:
    return lambda *args, **options: made(function(*args, **options), current.get().none)


def alike(function: Callable) -> Callable:
    return lambda x, *args, **options: made(function(x.value, *args, **options), current.get().none)


def matmul(x: Any, y: Any, out: Traced | None = None) -> Traced:
    rows, columns = x[None, :] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y
    value, chains = value_of(rows) @ value_of(columns), current.get()
    chains.work += 2 * value.size * rows.shape[-1]
    product = made(value, chains.product(rows, columns))
    result = Traced(product.record.squeeze((-2,) * (x.ndim == 1) + (-1,) * (y.ndim == 1)))
    if out is None:
        return result
    out[...] = result
    return out


def tensordot(x: Any, y: Any, axes: int) -> Traced:
    """As one matrix product, for which the last `axes` of x and the first of y become one."""
    if not isinstance(axes, int):
        raise TypeError(f"trace: no rule for tensordot with axes {axes}; give a number, or write a rule in {HERE}")
    left, inner, right = x.shape[:x.ndim - axes], math.prod(y.shape[:axes]), y.shape[axes:]
    product: Any = matmul(x.reshape(math.prod(left), inner), y.reshape(inner, math.prod(right)))
    return product.reshape(left + right)


def where(condition: Any, x: Any, y: Any) -> Traced:
    """What was chosen, and why: a result also depends on the condition."""
    here, combine = np.asarray(value_of(condition)), current.get().combine
    chain = np.where(here[..., None], chain_of(x), chain_of(y))
    return made(np.where(here, value_of(x), value_of(y)), combine(chain, chain_of(condition)))


def copyto(target: Traced, source: Any, where: Any = True) -> None:
    target[...] = source if where is True else RULES["where"](where, source, target)


def take_along_axis(x: Traced, ids: Traced, axis: int) -> Traced:
    return Traced(np.take_along_axis(x.record, ids.leave("take_along_axis"), axis))


def ix_(*ids: Traced) -> tuple[Traced, ...]:
    return tuple(asarray(places) for places in np.ix_(*[i.leave("ix_") for i in ids]))


RULES: dict[str, Callable] = {
    **{name: moving(getattr(np, name)) for name in MOVING.split()},
    **{name: reducing(getattr(np, name)) for name in REDUCING.split()},
    **{name: running(getattr(np, name)) for name in RUNNING.split()},
    **{name: making(getattr(np, name)) for name in MAKING.split()},
    **{name: alike(getattr(np, name)) for name in ALIKE.split()},
    "matmul": matmul, "tensordot": tensordot, "where": where, "copyto": copyto,
    "take_along_axis": take_along_axis, "ix_": ix_, "take": Traced.take, "clip": Elementwise(np.clip),
    "asarray": asarray, "array": asarray, "ndarray": Traced, "finfo": np.finfo,
}


class Library:
    """`xp` of traced arrays: the functions that have a rule, and no others."""

    def __getattr__(self, name: str) -> Any:
        found = RULES.get(name) or getattr(np, name, None)
        if isinstance(found, np.ufunc) and found.signature is None and found.nout == 1:
            found = Elementwise(found)
        elif not (name in RULES or isinstance(found, float) or (isinstance(found, type) and issubclass(found, np.generic))):
            raise AttributeError(f"trace: no rule for xp.{name}; say in {HERE} what becomes of the chains: enter it under "
                                 f"MOVING, REDUCING, RUNNING or MAKING, or write it out as `where` is")
        setattr(self, name, found)
        return found


LIBRARY = Library()


# Methods and operators of Traced call them


def _moving_method(name: str) -> Callable:
    return lambda self, *args, **options: traced(getattr(self.record, name)(*args, **options))


def _method(name: str) -> Callable:
    return lambda self, *args, **options: getattr(LIBRARY, name)(self, *args, **options)


def _operator(name: str, reverse: bool = False, inplace: bool = False) -> Callable:
    function = getattr(LIBRARY, name)

    def operator(self: Traced, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", "none") is None and not isinstance(other, Traced):
            return NotImplemented       # a Tensor, which asked for its own turn
        operands = (other, self) if reverse else (self, other)
        return function(*operands, out=self) if inplace else function(*operands)

    return operator


for _name in MOVING_METHODS.split():
    setattr(Traced, _name, _moving_method(_name))
for _name in f"{REDUCING} {RUNNING} clip".split():
    setattr(Traced, _name, _method(_name))
for _short, _name in {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "pow": "power",
                      "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
                      "xor": "bitwise_xor", "matmul": "matmul"}.items():
    setattr(Traced, f"__{_short}__", _operator(_name))
    setattr(Traced, f"__r{_short}__", _operator(_name, reverse=True))
    if _short != "matmul":
        setattr(Traced, f"__i{_short}__", _operator(_name, inplace=True))
for _short, _name in {"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater",
                      "ge": "greater_equal"}.items():
    setattr(Traced, f"__{_short}__", _operator(_name))
for _short, _name in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
    setattr(Traced, f"__{_short}__", _method(_name))

DEVICE = backend.register(backend.Device("trace", LIBRARY, Traced, lambda x: x.leave("a move to another device"),
                                         erfc=Elementwise(backend.erfc)))
