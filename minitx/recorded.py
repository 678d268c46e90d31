"""What one call of a module showed while it was recorded: arrays by name, copies that stay on their device until asked for.

Read next: `log.py`, the calls of a whole step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .backend import Array, array_module, expecting_overflow, is_array, read_only, to_host
from .op import Op


def length(x: Array, axis: int | None = -1) -> Array:
    """√Σx² in float64, which has room for the squares of narrower numbers. Its own are divided by the largest meanwhile, so
    that none overflows or vanishes."""
    xp, wide = array_module(x), x.astype("float64").reshape(x.shape or 1)
    if x.dtype != "float64" or not x.size:
        wide *= wide
        return xp.sqrt(wide.sum(axis))
    top = abs(wide).max(axis, keepdims=True)
    scale = xp.where(xp.isfinite(top) & (top > 0), top, 1)
    wide /= scale
    wide *= wide
    return (scale * xp.sqrt(wide.sum(axis, keepdims=True))).squeeze(axis)


@dataclass(eq=False)
class Run:
    """What one op showed in a call, or what it showed step by step: a cell, a decoder that asks for one query at a time."""

    op: Op | None = None
    shape: tuple[int, ...] = ()                         # of its first array
    lasting: Sequence[Array] = ()                       # what it has in common with its other steps: weights, or keys
    lengths: Array | None = None                        # of its sequences
    names: Sequence[str] = ()                           # what it may show last; counted in any case
    shown: dict[str, dict[Any, Array]] = field(default_factory=dict)       # by name and step; None: all steps in one array
    steps: Counter[str] = field(default_factory=Counter)                   # how many it took, forward and back

    @property
    def single(self) -> bool:
        """Whether it took one step of time: on (B, D), or on one of (B, T, D)."""
        return (len(self.shape) == 2 or self.shape[-2:-1] == (1,)) and self.lengths is None

    def goes_on(self, before: Run) -> bool:
        """Whether this is the next step of what was there before."""
        return (self.single and (self.op, self.shape) == (before.op, before.shape)
                and all(x.shape == y.shape and (x is y or array_module(x).shares_memory(x, y))
                        for x, y in zip(self.lasting, before.lasting, strict=False)))


def run_of(op: Op, arrays: Sequence[Any]) -> Run:
    """Weights are what does not begin with the axis of the batch."""
    inputs, given = op.shapes.inputs, dict(zip(op.arrays, arrays, strict=False))
    lasting = [given[spec.name] for spec in inputs if is_array(given.get(spec.name))
               and (spec.name == "k" or spec.axes[:1] != inputs[0].axes[:1])]
    states = [spec.name.removesuffix("_next") for spec in op.shapes.outputs]
    lengths = given.get("lengths")
    return Run(op, getattr(arrays[0], "shape", ()), lasting, None if lengths is None else lengths.copy(),
               [*states, *(f"d{state}" for state in states)])


class Call(Mapping[str, np.ndarray]):
    """What one call of a module showed, as host arrays by name.

        input, output       the first Tensor that came in, and the first that went out
        dinput, doutput     the gradients by these two, all their uses together
        i f g o c, r z n    gates and memory of a recurrence, (B, T, H)
        dh, dc              going back: the gradients by the states that each step returned, (B, T, H)
        probs               what attention attends to, (B, N, Tq, Tk)

    What a recurrence showed is NaN in the padding. A cell shows one step for every time that it ran, and so does attention that
    is asked for one query at a time. A second recurrence or attention in the same call shows "dh.1", "probs.1".
    Of a recorder with `norms=True` these are the lengths of the rows, without the last axis, and there are no probs.
    """

    def __init__(self, norms: bool, above: tuple = ()) -> None:
        self.norms, self.above, self.open = norms, above, True      # the calls that it is part of, from the inside out
        self._runs = [Run()]                                        # the first is the module's own

    def run(self, op: Op, arrays: Sequence[Any]) -> Run:
        """Where an op shows itself."""
        new = run_of(op, arrays)
        found = next((run for run in self._runs if new.goes_on(run)), None)
        self._runs += [new] * (found is None)
        return found or new

    def note(self, name: str, array: Array, step: int | None = None, run: Run | None = None) -> None:
        """Keep a copy on the device, while the recorded step is going on."""
        if self.open:
            if name == "probs" and step is not None:
                array = array[..., 0, :]                            # of one query
            with expecting_overflow():
                (run or self._runs[0]).shown.setdefault(name, {})[step] = length(array) if self.norms else array.copy()

    def close(self) -> None:
        """Nothing more is shown."""
        self.open = False
        for run in self._runs:
            run.lasting = ()

    def __getitem__(self, name: str) -> np.ndarray:
        return read_only(to_host(self._all_steps(name)))

    def lengths(self, name: str) -> np.ndarray:
        """√Σx² over the last axis, (B, T); with `norms=True` and without, the same numbers."""
        with expecting_overflow():
            return read_only(to_host(self._all_steps(name) if self.norms else length(self._all_steps(name))))

    def live(self, name: str) -> np.ndarray:
        """Where this is no padding, booleans (B, T)."""
        (run, _, _), (B, T) = self._found(name), self.shape(name)[:2]
        return np.broadcast_to(np.arange(T) < (T if run.lengths is None else to_host(run.lengths)[:, None]), (B, T))

    def _named(self) -> dict[str, tuple[Run, str]]:
        """All that was shown, by name; what was shown under the name of something else is numbered."""
        before, named = Counter[str](), {}
        for run in self._runs:
            for name in dict.fromkeys([*run.shown, *run.names]):
                if name in run.shown:
                    named[f"{name}.{before[name]}" if before[name] else name] = run, name
                before[name] += 1
        return named

    def _found(self, name: str) -> tuple[Run, dict[Any, Array], int]:
        """Who showed this, its steps, and the axis along which they belong."""
        if name not in self:
            raise KeyError(f"record: this call did not show {name!r}, only {', '.join(self) or 'nothing'}; gradients need a "
                           f"backward pass inside the block, and probs a recorder without norms=True")
        run, own = self._named()[name]
        parts = run.shown[own]
        return run, parts, next(iter(parts.values())).ndim - 1 if own == "probs" else 1

    def _all_steps(self, name: str) -> Array:
        _, parts, axis = self._found(name)
        if None in parts:
            return parts[None]
        some = next(iter(parts.values()))
        xp = array_module(some)
        never = xp.full_like(some, math.nan)        # a way back that was broken off did not reach the first steps
        return xp.stack([parts.get(t, never) for t in range(max(parts) + 1)], axis)

    def __contains__(self, name: object) -> bool:
        return name in self._named()

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __repr__(self) -> str:
        return f"<{', '.join(f'{name} {self.shape(name)}' for name in self) or 'nothing'}>"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `self[name]`; nothing is moved for it."""
        _, parts, axis = self._found(name)
        some = next(iter(parts.values())).shape
        return some if None in parts else (*some[:axis], max(parts) + 1, *some[axis:])
