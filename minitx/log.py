"""The log of a recorded step: the calls of all modules by path, and the ways in which they belong together.

Steps make a walk through time, blocks make a stream, and all of it a table.

Read next: `recording.py`, which fills it; `plots.py` and `terminal.py`, which draw it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .backend import expecting_overflow
from .nn import Module
from .recorded import Call

if TYPE_CHECKING:
    from .plots import Plots
    from .terminal import Text

Numbers = dict[str, float | None]


class Log:
    """One step of a model: `log[path]` is the last call of a module, `log.calls(path)` has all of them.

    `parameters` has three numbers for every parameter: "norm", its length √Σp² when the step began; "gradient", that of its
    gradient, all backward passes of the step together and before clipping, None if none arrived; and "update", the length of
    its change in the step divided by "norm", about 0.001 in a healthy training.
    """

    model: Module
    norms: bool
    steps: int                              # how many were recorded; the log holds the last
    trouble: str                            # the error that ended it, or nothing
    parameters: dict[str, Numbers]
    _calls: dict[str, list[Call]]

    def __getitem__(self, path: str) -> Call:
        return self.calls(path)[-1]

    def calls(self, path: str) -> list[Call]:
        """All calls of a module, in order: one for each batch that was accumulated, or for each step of a loop over time."""
        if path not in self._calls:
            raise KeyError(f"record: {path!r} was not called; there are "
                           f"{', '.join(map(repr, self.paths)) or 'no calls yet: run a step inside `with log:`'}")
        return list(self._calls[path])

    @property
    def paths(self) -> list[str]:
        """The modules that were called, in the order of the model's tree."""
        return [path for path, _ in self.model.named_modules() if path in self._calls]

    def showing(self, *names: str) -> list[str]:
        """The modules that showed all of these, such as "probs"."""
        return [path for path in self.paths if set(names) <= set(self[path])]

    def label(self, path: str) -> str:
        """The name of a module for a reader: its path, and for the model itself its class."""
        return path or type(self.model).__name__

    # Through time and through blocks

    def over_time(self, path: str, name: str, *, lengths: bool = False) -> np.ndarray:
        """What a module showed, (B, T, H), or (B, T) for its `lengths`: in its last call, or, where it was called for one
        step after the other, in all of them put together. For probs the queries are the time."""
        arrays = [call.lengths(name) if lengths else call[name] for call in self.calls(path) if name in call]
        axis = -2 if name == "probs" else 1
        by_step = len(arrays) > 1 and all(a.ndim > 1 and a.shape[axis] == 1 for a in arrays)
        return np.concatenate(arrays, axis) if by_step else arrays[-1] if arrays else self[path][name]

    def gradients(self) -> dict[str, np.ndarray]:
        """How long the gradient is at every time step, (T,) for each layer: the mean over the batch of √Σ over the units.

        For a recurrence these are dh, and dc of an LSTM; for blocks, the gradient by the stream as it enters the first and
        leaves each; where there is neither, that by the output of each module. A layer that reads backwards counts its own
        steps.
        """
        rows = [(path, name) for path in self.paths for name in self[path] if name.split(".")[0] in ("dh", "dc")]
        through_time = [f"{path}." for path, _ in rows]
        for blocks in self.chains().values():
            if not any(path.startswith(f"{block}.") for path in through_time for block in blocks):
                rows += [(path, f"d{name}") for path, name in stream_of(blocks)]
        rows = rows or [(path, "doutput") for path in self.paths]
        sizes = {f"{self.label(path)} {name}": self.over_time(path, name, lengths=True)
                 for path, name in rows if name in self[path]}
        sizes = {label: size for label, size in sizes.items() if size.ndim == 2 and size.size}
        if not sizes:
            raise ValueError("gradients: no gradient over time was recorded; run loss.backward() inside `with log:`, "
                             "on a model that reads sequences")
        with expecting_overflow():
            return {label: size.mean(0) for label, size in sizes.items()}

    def chains(self) -> dict[str, list[str]]:
        """Modules of one class that stand in one list and were called, by the path of the list, such as "blocks"."""
        classes, found = {path: type(module) for path, module in self.model.named_modules()}, dict[str, list[str]]()
        for path in self.paths:
            stem, _, last = path.rpartition(".")
            inside = any(stem.startswith(f"{block}.") for blocks in found.values() for block in blocks)
            if last.isdigit() and not inside:
                found.setdefault(stem, []).append(path)
        return {stem: blocks for stem, blocks in found.items() if len({classes[path] for path in blocks}) == 1}

    def stream(self, blocks: str | None = None) -> np.ndarray:
        """The residual stream (L+1, B, T, D): as it enters the first of L blocks, and as it leaves each of them.

        `blocks` is the path of their list, where there are several. With `norms=True`, the lengths (L+1, B, T).
        """
        return self._stream("", blocks)

    def dstream(self, blocks: str | None = None) -> np.ndarray:
        """The gradient by `stream`, of the same shape."""
        return self._stream("d", blocks)

    def _stream(self, d: str, blocks: str | None) -> np.ndarray:
        chains = self.chains()
        name = next(iter(chains)) if blocks is None and len(chains) == 1 else blocks
        if name not in chains:
            raise ValueError(f"stream: blocks is {blocks!r}; expected the path of a list of modules that were called, which is "
                             f"here one of: {', '.join(chains) or 'none'}")
        rows = [self[path][f"{d}{part}"] for path, part in stream_of(chains[name])]
        if shapes := {row.shape for row in rows if row.shape != rows[0].shape}:
            raise ValueError(f"stream: {name} makes {min(shapes)} of {rows[0].shape}; only what keeps its shape is a stream, "
                             f"look at each module with log[path]")
        return np.stack(rows)

    def gates(self, layer: int | str = 0, sample: int = 0) -> tuple[str, dict[str, np.ndarray]]:
        """The path of a recurrence, and what was inside it for one sequence of the batch, (T, H) by name. `layer` is a number
        among the recurrences that showed gates, or a path."""
        [path] = self._chosen("gates", layer, [*self.showing("i", "f"), *self.showing("r", "z")])
        if self.norms:
            raise ValueError("gates: this recorder kept the lengths only; make one without norms=True")
        inside = [name for name in ("i", "f", "o", "r", "z", "g", "n", "c") if name in self[path]]
        return path, {name: one("gates", self.over_time(path, name), sample=sample) for name in inside}

    def attention(self, layer: int | str | None = None, head: int | None = None,
                  sample: int = 0) -> dict[str, dict[int, np.ndarray]]:
        """Where one sequence of the batch looked: (Tq, Tk) by path and head. `layer` is a number among the modules that showed
        their probs, or a path; None is all of them, as it is of `head`."""
        found = {}
        for path in self._chosen("attention", layer, self.showing("probs")):
            probs = one("attention", self.over_time(path, "probs"), sample=sample)
            probs = probs[None] if probs.ndim == 2 else probs       # additive attention has no heads
            heads = range(len(probs)) if head is None else [head]
            found[path] = {n: one("attention", probs, head=n) for n in heads}
        return found

    def _chosen(self, caller: str, layer: int | str | None, paths: list[str]) -> list[str]:
        if layer is None and paths:
            return paths
        if isinstance(layer, int) and -len(paths) <= layer < len(paths):
            return [paths[layer]]
        if layer in paths:
            return [str(layer)]
        raise ValueError(f"{caller}: layer is {layer!r}; recorded were {', '.join(map(repr, paths)) or 'none'}, "
                         f"by path or by number{' (norms=True keeps no probs)' * (self.norms and not paths)}")

    # In numbers

    def summary(self) -> dict[str, dict[str, Numbers]]:
        """The step in plain numbers: of each module the mean length of its output and of the gradient by it, and in a
        recurrence that of dh (and dc) at the first and at the last time step; and `parameters`."""
        modules: dict[str, Numbers] = {path: {} for path in self.paths}
        with expecting_overflow():
            for path, numbers in modules.items():
                for name in ("output", "doutput"):
                    sizes = [call.lengths(name).ravel() for call in self.calls(path) if name in call]
                    if sum(size.size for size in sizes):
                        numbers[name] = float(np.concatenate(sizes).mean())
                for name in {"dh", "dc"} & set(self[path]):
                    steps = self.over_time(path, name, lengths=True).mean(0)
                    numbers |= {f"{name}_first": float(steps[0]), f"{name}_last": float(steps[-1])}
        return {"modules": modules, "parameters": self.parameters}

    def table(self) -> str:
        """The numbers of `summary` as two tables."""
        return self.text.table()

    __repr__ = __str__ = table

    # In pictures

    @property
    def plot(self) -> Plots:
        """`log.plot.gradients()`, `.gates()`, `.attention()`: pictures, each a matplotlib Figure."""
        try:
            from .plots import Plots
        except ModuleNotFoundError as missing:
            raise ImportError(f'plot: needs {missing.name}, which is not installed; pip install "minitx[plots]", '
                              f'or take log.text') from missing
        return Plots(self)

    @property
    def text(self) -> Text:
        """`log.text.gradients()`, `.gates()`, `.attention()`: the same for a terminal, as text."""
        from .terminal import Text
        return Text(self)


def stream_of(blocks: list[str]) -> list[tuple[str, str]]:
    """Where blocks show their stream: (path, name)."""
    return [(blocks[0], "input"), *((path, "output") for path in blocks)]


def one(caller: str, array: np.ndarray, **choice: int) -> np.ndarray:
    """One part of an array along its first axis, `sample=0` say."""
    [(name, number)] = choice.items()
    if not isinstance(number, int) or not -len(array) <= number < len(array):
        raise ValueError(f"{caller}: {name} is {number!r}; expected a number from 0 to {len(array) - 1}")
    return array[number]


SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}


def visible(tokens: Sequence[str] | None) -> list[str]:
    """Tokens for a reader: blanks leave some ink."""
    return ["".join(SIGNS.get(c, c) for c in token) or "∅" for token in tokens or ()]


def limits(sizes: np.ndarray) -> tuple[float, float]:
    """The ends of a logarithmic scale for sizes. No scale goes beyond 1e±100: what is still larger stands at its end."""
    shown = np.clip(sizes[np.isfinite(sizes) & (sizes > 0)], 1e-100, 1e100)
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.1, 1.0)
    return (low, high) if low < high else (low / 2, high * 2)


def odd(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Where sizes are what a logarithmic scale cannot show, by the word for it; only what there is."""
    places = {"zero": sizes == 0, "infinite": np.isinf(sizes), "not a number": np.isnan(sizes)}
    return {word: where for word, where in places.items() if where.any()}
