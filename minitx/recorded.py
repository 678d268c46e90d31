"""What one call of a module showed while it was recorded: arrays by name, copies that stay on their device until asked for.

Read next: `log.py`, the calls of a whole step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from .backend import Array, array_module, expecting_overflow, read_only, to_host


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


class Call(Mapping[str, np.ndarray]):
    """What one call of a module showed, as host arrays by name.

        input, output       the first Tensor that came in, and the first that went out
        dinput, doutput     the gradients by these two, all their uses together
        i f g o c, r z n    gates and memory of a recurrence, (B, T, H)
        dh, dc              going back: the gradients by the states that each step returned, (B, T, H)
        probs               what attention attends to, (B, N, Tq, Tk)

    A cell shows one step for every time that it ran. A second sequence or attention in the same call shows "dh.1", "probs.1".
    Of a recorder with `norms=True` these are the lengths of the rows, without the last axis, and there are no probs.
    """

    def __init__(self, norms: bool) -> None:
        self.norms, self.open, self.runs = norms, True, Counter[str]()     # how often each op ran in this call
        self._shown: dict[str, dict[int | None, Array]] = {}    # by name and time step; None: all steps in one array

    def note(self, name: str, array: Array, step: int | None = None) -> None:
        """Keep a copy on the device, while the recorded step is going on."""
        if self.open:
            with expecting_overflow():
                self._shown.setdefault(name, {})[step] = length(array) if self.norms else array.copy()

    def __getitem__(self, name: str) -> np.ndarray:
        return self._all_steps(name, lambda part: part)

    def lengths(self, name: str) -> np.ndarray:
        """√Σx² over the last axis, (B, T); with `norms=True` and without, the same numbers."""
        with expecting_overflow():
            return self._all_steps(name, (lambda part: part) if self.norms else length)

    def _all_steps(self, name: str, change: Callable[[Array], Array]) -> np.ndarray:
        if name not in self._shown:
            raise KeyError(f"record: this call did not show {name!r}, only {', '.join(self) or 'nothing'}; gradients need a "
                           f"backward pass inside the block, and probs a recorder without norms=True")
        parts = {step: change(part) for step, part in self._shown[name].items()}
        if None in parts:
            return read_only(to_host(parts[None]))
        some, last = next(iter(parts.values())), max(step for step in parts if step is not None)
        if other := [part.shape for part in parts.values() if part.shape != some.shape]:
            raise ValueError(f"record: {name!r} was shown in shapes {some.shape} and {other[0]}; put each cell into a module "
                             f"of its own, and it gets a path of its own")
        xp = array_module(some)
        never = xp.full_like(some, math.nan)        # a way back that was broken off did not reach the first steps
        return read_only(to_host(xp.stack([parts.get(t, never) for t in range(last + 1)], 1)))

    def __contains__(self, name: object) -> bool:
        return name in self._shown

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown)

    def __len__(self) -> int:
        return len(self._shown)

    def __repr__(self) -> str:
        return f"<{', '.join(f'{name} {self.shape(name)}' for name in self) or 'nothing'}>"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of `self[name]`; nothing is moved for it."""
        parts = self._shown[name]
        some, steps = next(iter(parts.values())), [step for step in parts if step is not None]
        return (some.shape[0], max(steps) + 1, *some.shape[1:]) if steps else some.shape
