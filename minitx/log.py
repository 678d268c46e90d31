"""The log of a recorded step: the calls of all modules by path, and the ways in which they belong together.

Steps make a walk through time, blocks make a stream, and all of it a table.

Read next: `recording.py`, which fills it; `plots.py` and `terminal.py`, which draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

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
        step after the other, in all of them put together: NaN where one showed nothing. For probs the queries are the time."""
        return self._over_time(path, name, Call.lengths if lengths else Call.__getitem__)

    def _over_time(self, path: str, name: str, part: Callable[[Call, str], np.ndarray]) -> np.ndarray:
        loop = self._loop(path)
        last = part(next((call for call in reversed(loop) if name in call), self[path]), name)
        axis, never = last.ndim - 2 if name.startswith("probs") else 1, np.full_like(last, np.nan)
        steps = [part(call, name) if name in call else never for call in loop]
        by_step = last.ndim > axis and last.shape[axis] == 1 and {step.shape for step in steps} == {last.shape}
        return np.concatenate(steps, axis) if by_step else last

    def _loop(self, path: str) -> list[Call]:
        """The last calls of a module that may be steps of one loop: those inside one call of another module, the first from the
        inside out that has several of them; outside of all modules, those of one way forward."""
        calls = self.calls(path)
        for above in zip(*(call.above for call in calls)):
            if len(set(map(id, above))) < len(calls):
                return [call for call, one in zip(calls, above) if one is above[-1]]
        return calls[-1:]

    def mean(self, path: str, name: str) -> np.ndarray:
        """How long what a module showed was at every time step, (T,): the mean over the sequences that have not ended."""
        sizes, live = self.over_time(path, name, lengths=True), self._over_time(path, name, Call.live)
        with expecting_overflow():
            return np.where(live, sizes, 0).sum(0) / live.sum(0)

    def gradients(self) -> dict[str, np.ndarray]:
        """How long the gradient is at every time step, (T,) for each layer: the mean over the batch of √Σ over the units, which
        leaves padding out.

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
        sizes = {(path, name): self.over_time(path, name, lengths=True) for path, name in rows if name in self[path]}
        if found := [of for of, size in sizes.items() if size.ndim == 2 and size.size]:
            return {f"{self.label(path)} {name}": self.mean(path, name) for path, name in found}
        raise ValueError("gradients: no gradient over time was recorded; run loss.backward() inside `with log:`, "
                         "on a model that reads sequences")

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
        """The path of a recurrence, and what was inside it for one sequence of the batch, (T, H) by name, NaN in the padding.
        `layer` is a number among the recurrences that showed gates, or a path; with a second one it is "path i.1"."""
        found = self._found("i", "r")
        [label] = self._chosen("gates", layer, found)
        if self.norms:
            raise ValueError("gates: this recorder kept the lengths only; make one without norms=True")
        path, first = found[label]
        inside = {name: name + first[1:] for name in ("ifogc" if first[0] == "i" else "rzn")}
        return label, {name: one("gates", self.over_time(path, shown), sample=sample)
                       for name, shown in inside.items() if shown in self[path]}

    def attention(self, layer: int | str | None = None, head: int | None = None,
                  sample: int = 0) -> dict[str, dict[int, np.ndarray]]:
        """Where one sequence of the batch looked: (Tq, Tk) by path and head. `layer` is a number among the modules that showed
        their probs, or a path, or "path probs.1"; None is all of them, as it is of `head`."""
        found, chosen = self._found("probs"), {}
        for label in self._chosen("attention", layer, found):
            probs = one("attention", self.over_time(*found[label]), sample=sample)
            probs = probs[None] if probs.ndim == 2 else probs       # additive attention has no heads
            heads = range(len(probs)) if head is None else [head]
            chosen[label] = {n: one("attention", probs, head=n) for n in heads}
        return chosen

    def _found(self, *names: str) -> dict[str, tuple[str, str]]:
        """What was shown under these names, or under them with a number: (path, name), by path, or path and name."""
        found: dict[str, tuple[str, str]] = {}
        for path in self.paths:
            for name in self[path]:
                if name.split(".")[0] in names:
                    found[f"{path} {name}".strip() if path in found else path] = path, name
        return found

    def _chosen(self, caller: str, layer: int | str | None, found: Iterable[str]) -> list[str]:
        paths = list(found)
        if layer is None and paths:
            return paths
        if is_number(layer) and -len(paths) <= layer < len(paths):      # type: ignore[operator]
            return [paths[layer]]                                       # type: ignore[index]
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
                    steps = self.mean(path, name)
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
    if not is_number(number) or not -len(array) <= number < len(array):
        raise ValueError(f"{caller}: {name} is {number!r}; expected a number from 0 to {len(array) - 1}")
    return array[number]


def is_number(choice: Any) -> bool:
    return isinstance(choice, int | np.integer) and not isinstance(choice, bool)
