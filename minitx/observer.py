"""The observer slot: the one place through which ops, modules and the tape let somebody look on.

It is empty by default. Recording, profiling and the experiments put an `Observer` of theirs into it, one beside the other;
nothing below knows more of them than the methods here.

Read next: `op.py`, which asks the slot at every call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .backend import Array

if TYPE_CHECKING:
    from .op import Op
    from .tensor import Tensor


class Observer:
    """Whoever looks on; override what you want to see. `observe` puts one in the slot; without one nothing here costs a thing.
    """

    def module(self, module: Any, forward: Callable) -> Callable:
        """What to call in place of `forward`, that of the module; it must return what that returns."""
        return forward

    def watch(self, op: Op, arrays: Sequence[Any]) -> Callable[[str, Array, int | None], None] | None:
        """For an op whose inside is worth seeing: what this returns is called with it, `watch(name, array, step)`."""
        return None

    def around(self, op: Op, vjp: Callable) -> Callable:
        """What to call in place of `vjp`, that of the op; it must return what that returns."""
        return vjp

    def output(self, op: Op, arrays: Sequence[Any], outputs: Sequence[Array]) -> Callable[[list[Array]], None] | None:
        """Called with what an op made of its arrays; what it returns is called with the gradients of that on the way back."""
        return None

    def leaves(self, found: dict[Tensor, Array]) -> None:
        """Called at the end of the way back with the gradients of the leaves, before anything is added up or clipped."""


class Chain(Observer):
    """All that look on at the moment, from the outermost block in: each sees everything."""

    def __init__(self, *links: Observer) -> None:
        self.links = links

    def module(self, module: Any, forward: Callable) -> Callable:
        for who in self.links:
            forward = who.module(module, forward)
        return forward

    def watch(self, op: Op, arrays: Sequence[Any]) -> Callable | None:
        return all_of([who.watch(op, arrays) for who in self.links])

    def around(self, op: Op, vjp: Callable) -> Callable:
        for who in self.links:
            vjp = who.around(op, vjp)
        return vjp

    def output(self, op: Op, arrays: Sequence[Any], outputs: Sequence[Array]) -> Callable | None:
        return all_of([who.output(op, arrays, outputs) for who in self.links])

    def leaves(self, found: dict[Tensor, Array]) -> None:
        for who in self.links:
            who.leaves(found)


def all_of(functions: Sequence[Callable | None]) -> Callable | None:
    """One function that calls those that are there."""
    there = [function for function in functions if function is not None]

    def call(*seen: Any) -> None:
        for function in there:
            function(*seen)
    return call if there else None


observer: ContextVar[Chain | None] = ContextVar("observer", default=None)


def looking() -> tuple[Observer, ...]:
    """Those in the slot."""
    return () if (chain := observer.get()) is None else chain.links


@contextlib.contextmanager
def observe(who: Observer) -> Iterator[Any]:
    """Let `who` look on inside the block, beside those who do already."""
    if any(link is who for link in looking()):
        raise RuntimeError(f"observe: this {type(who).__name__} looks on already; make one for each block in a block")
    observer.set(Chain(*looking(), who))
    try:
        yield who
    finally:                            # blocks may end in any order
        rest = [link for link in looking() if link is not who]
        observer.set(Chain(*rest) if rest else None)
