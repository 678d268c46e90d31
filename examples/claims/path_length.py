"""How many steps does a signal need from one position to another?

    python examples/claims/path_length.py

Claim      "A signal crosses n steps in an RNN, and a constant number in attention."
Statistic  the shortest chain of matrix products from input s to output t, for all pairs, traced through minitx's own ops at
           random weights; its slope against the distance t - s > 0. Models of equal width; the Transformer has two blocks.
Rule       slope > 0.9 for the recurrences (RNN, GRU, LSTM), < 0.01 for the Transformer.
Control    for the RNN it is exactly t - s + 1: one product into the state, and one for every step. And from the future no way
           leads to the present, in any model.

What the gates do to this claim is worth a look. Into the memory of an LSTM leads one product; from there on
c_t = f c_{t-1} + i g multiplies number by number, with no matrix in between; out of it leads none. So a signal passes *one*
product at any distance, fewer than in attention (v, the weighted average and the output make three). The GRU has such a
way as well. That is what gates were invented for: along this way the gradient meets no matrix that could turn and stretch it.
The way is still walked step by step: counted in operations of any kind (lower row) it grows with the distance, as it does not
in attention. And at each step it multiplies by f < 1: that a way is short says not how much of the signal arrives
(`gradients_through_time.py` does).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, slope, table

from minitx import graph, nn

D, HEADS = 16, 2
T, FULL_T = 32, 96
RECURRENT = ("RNN", "GRU", "LSTM")
COUNTS = {"products": False, "operations": True}        # what is counted on the way


class Blocks(nn.Module):
    """Two causal Transformer blocks."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.blocks = [nn.TransformerBlock(D, HEADS, causal=True, rng=rng) for _ in range(2)]

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


MODELS: dict[str, Callable[[np.random.Generator], nn.Module]] = {
    "RNN": lambda rng: nn.RNN(D, D, rng=rng),
    "GRU": lambda rng: nn.GRU(D, D, rng=rng),
    "LSTM": lambda rng: nn.LSTM(D, D, rng=rng),
    "Transformer": Blocks,
}


def measure(T: int) -> dict[str, Any]:
    """For each model and what is counted, paths[t][s] from input s to output t; None where there is none."""
    found: dict[str, Any] = {"T": T, **{count: {} for count in COUNTS}}
    for name, make in MODELS.items():
        rng = np.random.default_rng(0)
        model, x = make(rng), rng.standard_normal((1, T, D), "float32")
        for count, operations in COUNTS.items():
            paths = graph.paths(model, x, operations=operations)
            found[count][name] = [[int(p) if np.isfinite(p) else None for p in row] for row in paths]
    return found


def matrix(paths: list[list[int | None]]) -> np.ndarray:
    return np.array(paths, float)                       # None becomes nan


def slope_by_distance(paths: list[list[int | None]]) -> float:
    """Products more for each step of distance, over all pairs with s < t between which there is a way."""
    t, s = np.nonzero(np.tril(np.isfinite(matrix(paths)), -1))
    return slope(t - s, matrix(paths)[t, s])


def verdict(numbers: dict[str, Any]) -> Verdict:
    products = numbers["products"]
    slopes = {name: slope_by_distance(products[name]) for name in products}
    parts: dict[str, bool | None] = {f"{name}: another product for every step of distance (slope {slopes[name]:.3f} > 0.9)":
                                     slopes[name] > 0.9 for name in RECURRENT}
    flat = slopes["Transformer"]
    parts[f"Transformer: the same number at any distance (slope {flat:.3f} < 0.01)"] = abs(flat) < 0.01
    t, s = np.indices(matrix(products["RNN"]).shape)
    past = s <= t
    exact = bool((matrix(products["RNN"])[past] == (t - s + 1)[past]).all())
    causal = all(np.isnan(matrix(of)[~past]).all() and not np.isnan(matrix(of)[past]).any() for of in products.values())
    return Verdict(parts, {"RNN: exactly t - s + 1": exact, "from the past there is a way, from the future none": causal})


def text(numbers: dict[str, Any]) -> str:
    last = numbers["T"] - 1
    near, half = (last - 1, last // 2)
    rows = [["shortest way to the last position from", f"position {near}", f"position {half}", "position 0", "slope"]]
    for count in COUNTS:
        for name, paths in numbers[count].items():
            rows.append([f"{name}, {count}", *(paths[last][s] for s in (near, half, 0)), f"{slope_by_distance(paths):.3f}"])
    return table(*rows)


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    shown = [name for name in MODELS if name != "GRU"]
    grid = figure.subplots(len(COUNTS), len(shown), sharex=True, sharey=True)
    for row, count in zip(grid, COUNTS, strict=True):
        top = max(np.nanmax(matrix(numbers[count][name])) for name in shown)
        for panel, name in zip(row, shown, strict=True):
            image = panel.imshow(matrix(numbers[count][name]), cmap="viridis", vmin=0, vmax=top)
            panel.set_title(f"{name}: slope {slope_by_distance(numbers[count][name]):.2f}")
            panel.set_facecolor("0.93")
        figure.colorbar(image, ax=list(row), label=f"{count} on the shortest way")
        row[0].set_ylabel("to output t")
    for panel in grid[-1]:
        panel.set_xlabel("from input s")
    figure.suptitle("How far is it from input s to output t?  (grey: out of reach)", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_T if args.full else T)
    report("path_length", args, numbers, verdict(numbers), text(numbers), draw, size=(13, 8))


if __name__ == "__main__":
    main()
