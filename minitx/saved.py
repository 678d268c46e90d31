"""What a backward keeps: reading the memory of an op off the function that it returned.

A backward is a closure, and what it needs from the forward pass is exactly what it closes over. So the memory of a training
step is no mystery: it can be listed, and the test suite holds that list in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import backend
from .backend import Array


class Saved(NamedTuple):
    """An array that a backward keeps: the variable that holds it, its shape, and the bytes that live on because of it."""

    name: str
    shape: tuple[int, ...]
    bytes: int


def saved(backward: Callable) -> list[Saved]:
    """List what `backward` (the second result of `op.vjp`) keeps for its turn.

    A view keeps the whole array that it looks into; memory that several names share is counted at the first of them.
    """
    seen: set[int] = set()
    rows = []
    for name, array in kept_arrays(backward):
        owner = backend.owner(array)
        rows.append(Saved(name, array.shape, 0 if id(owner) in seen else owner.nbytes))
        seen.add(id(owner))
    return rows


def kept_arrays(backward: Callable) -> Iterator[tuple[str, Array]]:
    """(name, array) of everything that a backward closes over, through nested backwards and lists."""
    code, cells = getattr(backward, "__code__", None), getattr(backward, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        try:
            yield from _arrays(name, cell.cell_contents)
        except ValueError:                      # a name that the op has not bound
            continue


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    if backend.is_array(value):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _arrays(f"{name}[{i}]", item)
    elif hasattr(value, "__closure__"):
        for inner, array in kept_arrays(value):
            yield f"{name}.{inner}", array


def keeps(backward: Callable, array: Array) -> bool:
    """Whether `backward` holds `array` or a view that overlaps it."""
    return any(type(kept) is type(array) and backend.array_module(array).may_share_memory(kept, array)
               for _, kept in kept_arrays(backward))
