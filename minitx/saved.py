"""What a backward keeps: reading the memory of an op off the function that it returned.

A backward is a closure, and what it needs from the forward pass is exactly what it closes over. So the memory of a training
step is no mystery: it can be listed, and the test suite holds that list in a table.

Read next: `op.py`.
"""

from __future__ import annotations

import functools
import inspect
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

    >>> saved(ops.exp.vjp(np.zeros(3))[1])
    [Saved(name='y', shape=(3,), bytes=24)]
    """
    seen: set[int] = set()
    rows = []
    for name, array in kept_arrays(backward):
        owner = backend.owner(array)
        rows.append(Saved(name, array.shape, 0 if id(owner) in seen else owner.nbytes))
        seen.add(id(owner))
    return rows


def kept_arrays(backward: Callable) -> Iterator[tuple[str, Array]]:
    """(name, array) of all that a backward holds: what it closes over, its default arguments, and so on through nested
    backwards, partials, lists and dicts. Attributes of other objects are not looked into."""
    return _arrays("", backward, set())


def _arrays(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Array]]:
    if backend.is_array(value):
        yield name, value
        return
    if id(value) in seen:                       # a function that calls itself, say
        return
    parts: dict[str, Any] = {}
    if isinstance(value, dict):
        parts = {f"[{key!r}]": item for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"[{i}]": item for i, item in enumerate(value)}
    elif isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, **value.keywords}
    elif inspect.isfunction(value):
        closed = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts = {n: cell.cell_contents for n, cell in closed if not _unbound(cell)}
        parts |= {"defaults": value.__defaults__, **(value.__kwdefaults__ or {})}
    seen.add(id(value))
    for part, item in parts.items():
        dot = "." if name and not part.startswith("[") else ""
        yield from _arrays(f"{name}{dot}{part}", item, seen)


def _unbound(cell: Any) -> bool:
    """Whether a closed-over name has no value, because the op did not bind it."""
    try:
        return cell.cell_contents is _unbound
    except ValueError:
        return True


def keeps(backward: Callable, array: Array) -> bool:
    """Whether `backward` holds `array` or a view that overlaps it; when it cannot be looked into, it may."""
    if not inspect.isfunction(backward):
        return True
    return any(type(kept) is type(array) and backend.array_module(array).may_share_memory(kept, array)
               for _, kept in kept_arrays(backward))
