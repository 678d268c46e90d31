"""Pictures of what was recorded: gradients through time, gates, attention.

    log.plot.gradients().savefig("gradients.png")

Each is a matplotlib Figure of its own, apart from pyplot; a notebook shows it. Its colours can be told apart by all eyes.

Read next: `fonts.py`, how Chinese comes into them; `terminal.py`, the same in letters.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import Colormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from .drawing import NO_NUMBER, limits, names, odd
from .fonts import MissingFont, font_for, lettering
from .log import Log

__all__ = ["MissingFont", "Picture", "Plots", "font_for"]

LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]       # Okabe & Ito 2008
SPECIAL = {"zero": "#d9d9d9", "infinite": "#d7191c", NO_NUMBER: "#ff9edb"}
GATES = {"i": "i: write", "f": "f: keep", "o": "o: show", "r": "r: reset", "z": "z: keep"}  # between 0 and 1
INSIDE = {"g": "g: what", "n": "n: new", "c": "c: memory"}                                  # of either sign


class Picture(Figure):
    """A Figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


class Plots:
    """The pictures of a log. `tokens` name the time steps: a string, or a list of strings."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def gradients(self, *, tokens: Sequence[Any] | None = None) -> Picture:
        """How long the gradient is at every time step, by layer: a heat-map on a logarithmic colour scale, and curves."""
        rows = self.log.gradients()
        words = names("gradients", tokens, max(map(len, rows.values())))
        every = np.concatenate(list(rows.values()))
        low, high = limits(every)
        with lettering([*rows, *words]) as label:
            heights = [0.5 + 0.28 * len(rows), 2.8]
            picture = Picture(figsize=(9.5, sum(heights) + 0.7), layout="constrained")
            (heat, bar), (curves, legend) = picture.subplots(2, 2, width_ratios=[50, 1], height_ratios=heights)
            scale = LogNorm(low, high)
            for i, (name, sizes) in enumerate(rows.items()):
                drawn = np.where(np.isfinite(sizes) & (sizes > 0), np.clip(sizes, low, high), np.nan)
                shown = np.where(sizes == 0, low / 10, np.where(np.isinf(sizes), high * 10, drawn))
                image = heat.pcolormesh(np.arange(len(sizes) + 1) - 0.5, [i - 0.5, i + 0.5], shown[None], norm=scale,
                                        cmap=colours("viridis"))
                style = "--" if name.split()[-1].startswith("dc") else "-"
                curves.plot(drawn, style, color=LINES[i % len(LINES)], marker="o", markersize=2.5, label=label(name))
            heat.set_title("Length of the gradient at every time step, mean over the batch", fontsize=11, loc="left")
            heat.set_ylim(-0.5, len(rows) - 0.5)
            heat.set_yticks(range(len(rows)), [label(name) for name in rows])
            heat.tick_params(length=0, labelbottom=False)
            picture.colorbar(image, cax=bar)
            curves.set(yscale="log", ylim=(low / 1.3, high * 1.3), xlabel="time step",
                       ylabel="√Σx², mean over the batch")
            curves.grid(color="0.9")
            for axes in (heat, curves):
                axes.set_xlim(-0.5, max(map(len, rows.values())) - 0.5)
            steps(curves.xaxis, list(map(label, words)), 8)
            legend.axis("off")
            marks = [Patch(color=SPECIAL[kind], label=kind) for kind in odd(every)]
            legend.legend(handles=[*curves.get_lines()[::-1], *marks], loc="upper left", bbox_to_anchor=(-1, 1),
                          frameon=False, fontsize=9)
        return picture

    def gates(self, layer: int | str = 0, *, sample: int = 0, tokens: Sequence[Any] | None = None) -> Picture:
        """What the gates of a recurrence did for one sequence of the batch: time × unit, and the mean over the units.

        `layer` is a number among the recurrences that were recorded, or a path.
        """
        path, gates = self.log.gates(layer, sample)
        T, H = next(iter(gates.values())).shape
        words = names("gates", tokens, T)
        with lettering([path, *words]) as label:
            picture = Picture(figsize=(9.5, 1.25 * len(gates) + 2.6), layout="constrained")
            *panels, below = picture.subplots(len(gates) + 1, 2, width_ratios=[50, 1], height_ratios=[1.0] * len(gates) + [1.4])
            curves, nothing = below
            for (name, values), (heat, bar) in zip(gates.items(), panels):
                top = largest(abs(values)) if name == "c" else 1.0
                low, ramp = (0.0, "viridis") if name in GATES else (-top, "PuOr")
                image = heat.imshow(finite(values.T), vmin=low, vmax=top, cmap=colours(ramp), aspect="auto", origin="lower",
                                    interpolation="nearest")
                heat.set_ylabel((GATES | INSIDE)[name])
                heat.set_yticks([0, H - 1])
                heat.tick_params(length=0, labelbottom=False)
                picture.colorbar(image, cax=bar, ticks=[low, (low + top) / 2, top])
                if name in GATES:
                    curves.plot(values.mean(1), marker="o", markersize=2.5, label=name,
                                color=LINES[len(curves.get_lines()) % len(LINES)])
            panels[0][0].set_title(f"Gates of {label(path)} by unit, sequence {sample} of the batch", fontsize=11, loc="left")
            curves.set(xlim=(-0.5, T - 0.5), ylim=(-0.03, 1.03), xlabel="time step", ylabel="mean over units")
            curves.grid(color="0.9")
            steps(curves.xaxis, list(map(label, words)), 8)
            nothing.axis("off")
            nan = any(np.isnan(values).any() for values in gates.values())
            marks = [Patch(color=SPECIAL[NO_NUMBER], label=NO_NUMBER)] * nan
            nothing.legend(handles=[*curves.get_lines(), *marks], loc="upper left", bbox_to_anchor=(-1, 1), frameon=False)
        return picture

    def attention(self, layer: int | str | None = None, head: int | None = None, *, sample: int = 0,
                  tokens: Sequence[Any] | None = None, keys: Sequence[Any] | None = None) -> Picture:
        """Where every query looks, for one sequence of the batch: a panel for each layer and head, or for those asked for.

        `tokens` name the queries, and the keys too unless `keys` do.
        """
        layers = self.log.attention(layer, head, sample)
        every = [p for heads in layers.values() for p in heads.values()]
        (Tq, Tk), columns, top = every[0].shape, max(map(len, layers.values())), max(map(largest, every))
        keys = tokens if keys is None and Tq == Tk else keys
        [*_, queries] = [names("attention", tokens, len(p), "queries") for p in every]
        [*_, keys] = [names("attention", keys, p.shape[1], "keys") for p in every]
        width = min(5.5, max(1.8, 11 / columns))
        height = width * min(2.0, max(0.5, Tq / Tk))
        with lettering([*layers, *queries, *keys]) as label:
            picture = Picture(figsize=(width * columns + 1.4, height * len(layers) + 0.9), layout="constrained")
            panels = picture.subplots(len(layers), columns, squeeze=False, sharex=True, sharey=True)
            for row, (path, heads) in zip(panels, layers.items()):
                for axes, (number, p) in zip(row, heads.items()):
                    image = axes.imshow(finite(p), vmin=0, vmax=top, cmap=colours("Blues"), aspect="auto",
                                        interpolation="nearest")
                    axes.set_title(f"head {number}", fontsize=9)
                    steps(axes.xaxis, list(map(label, keys)), width)
                    steps(axes.yaxis, list(map(label, queries)), height)
                    axes.label_outer()
                row[0].set_ylabel(label(path))
            picture.supxlabel("key", fontsize=10)
            picture.suptitle(f"Attention of sequence {sample} of the batch: each row is a query", fontsize=11)
            picture.colorbar(image, ax=panels.ravel().tolist(), fraction=0.03, pad=0.01)
        return picture


def colours(ramp: str) -> Colormap:
    """A colour map of matplotlib, with colours of our own for what is not on it."""
    return colormaps[ramp].with_extremes(under=SPECIAL["zero"], over=SPECIAL["infinite"], bad=SPECIAL[NO_NUMBER])


def finite(values: np.ndarray) -> np.ndarray:
    """The values with a gap wherever there is no number to show."""
    return np.where(np.isfinite(values), values, np.nan)


def largest(values: np.ndarray) -> float:
    """The end of a scale that starts at 0."""
    return float(np.nan_to_num(values, nan=0, posinf=0).max(initial=0)) or 1.0


def steps(axis: Axis, words: list[str], inches: float) -> None:
    """Name the places along an axis, in letters as large as there is room for; where there is too little, some of them."""
    if not words:
        axis.set_major_locator(MaxNLocator(integer=True))
        return
    room = 60 * inches / len(words)
    size = min(room, 8.0) if room >= 5 else 8.0
    every = 1 if room >= 5 else math.ceil(len(words) / (50 * inches / size))
    upright = isinstance(axis, XAxis) and max(map(len, words)) > 1
    axis.set_ticks(range(0, len(words), every), words[::every], fontsize=size, rotation=90 if upright else 0, parse_math=False)
