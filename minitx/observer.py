"""The observer slot: the one place through which ops, modules and the tape let somebody look on.

It is empty by default. Recording, profiling and the experiments put an `Observer` of theirs into it; nothing below knows more
of them than the methods here.

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

    def module(self, module: Any) -> Callable:
        """What to call in place of `module.forward`; it must return what that returns."""
        return module.forward

    def watch(self, op: str) -> Callable[[str, Array, int | None], None] | None:
        """For an op whose inside is worth seeing: what this returns is called with it, `watch(name, array, step)`."""
        return None

    def around(self, op: Op) -> Callable:
        """What to call in place of `op.vjp`; it must return what that returns."""
        return op.vjp

    def output(self, op: str, outputs: Sequence[Array]) -> Callable[[list[Array]], None] | None:
        """Called with what an op made; what it returns is called with the gradients of that on the way back."""
        return None

    def leaves(self, found: dict[Tensor, Array]) -> None:
        """Called at the end of the way back with the gradients of the leaves, before anything is added up or clipped."""


observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextlib.contextmanager
def observe(who: Observer) -> Iterator[Observer]:
    """Let `who` look on inside the block."""
    before = observer.set(who)
    try:
        yield who
    finally:
        observer.reset(before)
