"""Where a translator looked in the source while it wrote: its attention as a table, and as a picture.

Read next: `examples/claims/alignment.py`, which asks how often that is where it should.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .data.padding import in_pairs
from .data.pieces import Pieces
from .recording import record
from .tensor import no_grad
from .translation import Batch, Sides, Translator, on_device


class Alignment(NamedTuple):
    """Where a decoder looked before it wrote each piece of its target."""

    source: list[str]           # (S), what the pieces stand for
    target: list[str]           # (T)
    weights: np.ndarray         # (T, S)


def alignments(model: Translator, pieces: Pieces, sentences: Sequence[str], translations: Sequence[str]) -> list[Alignment]:
    """For each sentence, where the model looks when it writes this translation."""
    pairs = list(zip(*in_pairs("alignments", sentences=sentences, translations=translations)))
    sides = Sides.of(pairs, pieces)
    weights = attended(model, sides.batch(range(len(pairs))))
    return [Alignment(pieces.labels(source), pieces.labels(target), w[:len(target), :len(source)])
            for source, target, w in zip(*sides, weights)]


def attended(model: Translator, batch: Batch) -> np.ndarray:
    """The weights (B, T, S) by which the model looks at its sources, read with its targets: those of the last attention in it,
    which in a Transformer is the cross-attention of the last block, the mean of its heads."""
    with record(model) as log, no_grad(), model.evaluating():
        model(*on_device(model, *batch[:3]))
    probs = log.over_time(log.showing("probs")[-1], "probs")                                 # (B, N, T, S), additive (B, T, S)
    return probs.mean(1) if probs.ndim == 4 else probs


def picture(found: dict[str, Sequence[Alignment]]) -> Any:
    """Heat-maps as a matplotlib Figure, a row of them for each model by name: sources below, what was written on the left."""
    from matplotlib.figure import Figure
    columns = max(map(len, found.values()))
    figure = Figure(figsize=(4.4 * columns + 0.8, 4.4 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), columns, squeeze=False)
    for row, (name, of_model) in zip(panels, found.items()):
        image = heat_maps(row, of_model, max(float(a.weights.max()) for each in found.values() for a in each))
        row[0].set_ylabel(name, fontsize=12)
    figure.colorbar(image, ax=panels.ravel().tolist(), fraction=0.03, pad=0.01, label="weight of attention")
    return figure


def heat_maps(panels: Sequence[Any], found: Sequence[Alignment], top: float = 1.0) -> Any:
    """Draw one heat-map on each of these axes, from 0 to `top`, in fonts that have the letters; axes left over are hidden."""
    from matplotlib import rcParams

    from .fonts import lettering
    image = None
    with lettering([word for source, target, _ in found for word in (*source, *target)]) as label:
        style = {"fontfamily": rcParams["font.family"], "parse_math": False}    # the axes were made before, with the usual font
        for axes, (source, target, weights) in zip(panels, found):
            image = axes.imshow(weights, vmin=0, vmax=top, cmap="Blues", aspect="auto", interpolation="nearest")
            below, left = ([label(word.strip() or "␣") for word in side] for side in (source, target))
            axes.set_xticks(range(len(source)), below, rotation=90, **style)
            axes.set_yticks(range(len(target)), left, **style)
            axes.tick_params(length=0, labelsize=min(10.0, 200 / max(len(source), len(target))))
    for axes in panels[len(found):]:
        axes.set_visible(False)
    return image
