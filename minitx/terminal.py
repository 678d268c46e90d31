"""What was recorded, in letters for a terminal: tables, and bars and shades in the place of colours.

    print(log.text.gradients())

Read next: `plots.py`, the same as pictures.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .backend import expecting_overflow
from .drawing import NO_NUMBER, limits, names, odd
from .log import Log
from .options import whole

BARS, SHADES = "▁▂▃▄▅▆▇█", " ·░▒▓█"
SPECIAL = {"zero": "·", "infinite": "∞", NO_NUMBER: "–"}


class Text:
    """A log in letters. `width` is how many letters the time may take; then each stands for the mean of several steps."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def table(self) -> str:
        """The numbers of `log.summary()` as two tables."""
        log = self.log
        if not log.steps:
            return "nothing was recorded yet; run a step inside `with log:`"
        classes, modules = {path: type(m).__name__ for path, m in log.model.named_modules()}, log.summary()["modules"]
        state = f"incomplete, it ended with {log.trouble}" if log.trouble else "mean lengths √Σx² of the rows"
        columns = ["output", "doutput"] + [name for name in ("dh_first", "dh_last", "dc_first", "dc_last")
                                           if any(name in numbers for numbers in modules.values())]
        rows = [[log.label(path), classes[path], str(len(log.calls(path))), *(short(numbers.get(n)) for n in columns)]
                for path, numbers in modules.items()]
        sizes = [[path, *map(short, numbers.values())] for path, numbers in log.parameters.items()]
        return "\n".join([f"recorded step {log.steps}: {state}",
                          "", *aligned(["module", "class"], ["calls", *columns], rows),
                          "", *aligned(["parameter"], ["norm", "gradient", "update"], sizes)])

    def gradients(self, *, width: int = 64) -> str:
        """How long the gradient is at every time step, by layer, on a logarithmic scale; beside it the first and the last."""
        rows = self.log.gradients()
        bars = {name: fitted("gradients", sizes, width) for name, sizes in rows.items()}
        every = np.concatenate(list(bars.values()))
        low, high = map(math.log, limits(every))
        lines = [[name, drawn(bars[name], low, high, math.log), short(sizes[0]), short(sizes[-1])]
                 for name, sizes in rows.items()]
        return "\n".join([*aligned(["gradient", "time →"], ["first", "last"], lines),
                          f"{BARS[0]} {math.exp(low):.3g} … {BARS[-1]} {math.exp(high):.3g} on a logarithmic scale"
                          f"{marks(odd(every))}; mean over the batch"])

    def gates(self, layer: int | str = 0, *, sample: int = 0, width: int = 64) -> str:
        """How open the gates of a recurrence were at every time step, for one sequence of the batch, mean over the units."""
        path, gates = self.log.gates(layer, sample)
        lines, nothing = [], False
        for name in filter(gates.__contains__, "iforz"):
            with expecting_overflow():
                steps = gates[name].mean(1)
            bars, there = fitted("gates", steps, width), steps[~np.isnan(steps)]
            nothing |= bool(np.isnan(bars).any())
            lines.append([name, drawn(bars, 0.0, 1.0), short(float(there.mean()) if there.size else math.nan)])
        return "\n".join([f"{self.log.label(path)}, sequence {sample} of the batch",
                          *aligned(["gate", "time →"], ["mean"], lines),
                          f"{BARS[0]} closed … {BARS[-1]} open{marks([NO_NUMBER] * nothing)}"])

    def attention(self, layer: int | str | None = 0, head: int | None = 0, *, sample: int = 0,
                  tokens: Sequence[Any] | None = None) -> str:
        """Where every query looks: a row for each query, two letters for each key; `tokens` name the queries. None for the
        layer, or the head, is all of them, one below the other."""
        return "\n\n".join(f"{self.log.label(path)}, head {n}, sequence {sample} of the batch; keys →\n{shaded(probs, tokens)}"
                           for path, heads in self.log.attention(layer, head, sample).items() for n, probs in heads.items())


def shaded(probs: np.ndarray, tokens: Sequence[Any] | None) -> str:
    """Weights (Tq, Tk) as shades, and what these mean."""
    words = names("attention", tokens, len(probs), "queries") or list(map(str, range(len(probs))))
    top, pad = float(probs.max(initial=0)) or 1.0, max(map(columns, words), default=0)
    rows = [" " * (pad - columns(word)) + word + " " + "".join(2 * shade(p / top) for p in row).rstrip()
            for word, row in zip(words, probs.tolist())]
    return "\n".join([*rows, ", ".join(f"{letter} {top * (i / 5) ** 2:.2g}" for i, letter in enumerate(SHADES) if i)])


def fitted(caller: str, values: np.ndarray, width: int) -> np.ndarray:
    """Means over neighbours, as many as there is room for."""
    whole(caller, width=width)
    if len(values) <= width:
        return values
    with expecting_overflow():
        return np.array([part.mean() for part in np.array_split(values, width)])


def marks(words: Iterable[str]) -> str:
    """What the signs beside the bars mean."""
    return "".join(f", {SPECIAL[word]} {word}" for word in words)


def drawn(values: np.ndarray, low: float, high: float, scale: Callable[[float], float] = float) -> str:
    """A bar for each value; on a logarithmic scale there is a sign for what it cannot show."""
    signs = {i: SPECIAL[word] for word, where in odd(values).items() for i in where.nonzero()[0].tolist()
             if scale is math.log or word == NO_NUMBER}
    return "".join(signs.get(i) or BARS[round(7 * min(max((scale(value) - low) / (high - low), 0), 1))]
                   for i, value in enumerate(values.tolist()))


def shade(part: float) -> str:
    """A letter whose darkness goes like the root, so that a little can be seen."""
    return SPECIAL[NO_NUMBER] if math.isnan(part) else SHADES[round(5 * math.sqrt(part))]


def columns(text: str) -> int:
    """How many columns a terminal takes for a text: two for a Chinese character."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def short(number: float | None) -> str:
    return "–" if number is None else f"{number:.3g}"


def aligned(words: list[str], numbers: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of columns below a head: words begin below each other, numbers end below each other."""
    head = [*words, *numbers]
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    sides = [str.ljust] * len(words) + [str.rjust] * len(numbers)
    return ["  ".join(side(cell, w) for side, cell, w in zip(sides, row, widths)).rstrip() for row in [head, *rows]]
