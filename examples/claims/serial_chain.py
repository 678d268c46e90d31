"""Must an RNN finish step t-1 before it can begin step t, while attention does all positions at once?

    python examples/claims/serial_chain.py

Claim      "An RNN must finish step t-1 before step t; attention does all positions at once."
Statistic  the span: the longest row of matrix products of which each needs the one before, in the forward pass of one layer of
           equal width, traced through minitx's own ops; its slope against the length T.
Rule       slope > 0.9 products per step for RNN, GRU and LSTM, < 0.01 for the Transformer block.
Control    all products together, as the tracer counts them, are the work that the closed form says.

The clock is not asked: with enough processors, only what stands in a row must be waited for. The right picture shows the other
side, how much there is to do. At equal width that is not equal, and for long texts attention has more of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import Verdict, lines, one_thread, options, report, slope, table

from minitx import graph, nn

D, HEADS = 64, 4                                        # the width of all models
LENGTHS, FULL_LENGTHS = (16, 32, 64, 128, 256), (16, 32, 64, 128, 256, 512, 1024, 2048)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: nn.RNN(D, D),
    "GRU": lambda: nn.GRU(D, D),
    "LSTM": lambda: nn.LSTM(D, D),
    "Transformer": lambda: nn.TransformerBlock(D, HEADS, causal=True),
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def work(name: str, T: int) -> int:
    """FLOP of the forward products for one sequence: two for each multiplication and addition."""
    if name == "Transformer":               # q k v, output, and up and down with F = 4 D; scores and weighted averages
        return 2 * T * (4 * D * D + 2 * D * 4 * D) + 4 * T * T * D
    return 2 * T * GATES[name] * (D * D + D * D)


def measure(lengths: tuple[int, ...]) -> dict[str, Any]:
    """Work and span of every model at every length, forward and backward, and the work by the closed form."""
    models = {}
    for name, make in MODELS.items():
        costs = [graph.cost(make(), np.ones((1, T, D), "float32")) for T in lengths]
        models[name] = {way: {"work": [getattr(c, way).work for c in costs], "span": [getattr(c, way).span for c in costs]}
                        for way in ("forward", "backward")}
        models[name]["formula"] = [work(name, T) for T in lengths]
    return {"lengths": lengths, "models": models}


def verdict(numbers: dict[str, Any], way: str = "forward") -> Verdict:
    """The rule, for the forward or the backward pass. Backward there is twice the work: a product for each of two factors."""
    models, times = numbers["models"], {"forward": 1, "backward": 2}[way]
    slopes = {name: slope(numbers["lengths"], of[way]["span"]) for name, of in models.items()}
    parts: dict[str, bool | None] = {f"{name}: another product in a row for every step (slope {slopes[name]:.3f} > 0.9)":
                                     slopes[name] > 0.9 for name in GATES}
    flat = slopes["Transformer"]
    parts[f"Transformer: the same row at every length (slope {flat:.3f} < 0.01)"] = abs(flat) < 0.01
    right = all(of[way]["work"] == [times * w for w in of["formula"]] for of in models.values())
    return Verdict(parts, {f"the work that was counted going {way} equals the closed form": right})


def rows(numbers: dict[str, Any], way: str) -> list[list[Any]]:
    """Spans by length, then work and how much of it could be done at once."""
    T = numbers["lengths"][-1]
    found: list[list[Any]] = [[f"products in a row, {way}", *(f"T={t}" for t in numbers["lengths"]), "slope",
                               f"MFLOP, T={T}", "MFLOP at once"]]
    for name, of in numbers["models"].items():
        work, span = of[way]["work"], of[way]["span"]
        found.append([name, *span, f"{slope(numbers['lengths'], span):.3f}", f"{work[-1] / 1e6:.2f}",
                      f"{work[-1] / span[-1] / 1e6:.3f}"])
    return found


def draw_spans(panel: Any, numbers: dict[str, Any], way: str) -> None:
    lines(panel, numbers["lengths"], {name: of[way]["span"] for name, of in numbers["models"].items()})
    panel.set(title="what must be done one after the other", xlabel="length T", ylabel=f"matrix products in a row, {way}")


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    draw_spans(left, numbers, "forward")
    lines(right, numbers["lengths"], {n: np.array(of["forward"]["work"]) / 1e6 for n, of in numbers["models"].items()})
    right.set(title="what there is to do", xlabel="length T", ylabel="MFLOP of matrix products, forward")
    figure.suptitle(f"One layer of width {D}, one sequence: must step t wait for step t-1?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_LENGTHS if args.full else LENGTHS)
    report("serial_chain", args, numbers, verdict(numbers), table(*rows(numbers, "forward")), draw)


if __name__ == "__main__":
    main()
