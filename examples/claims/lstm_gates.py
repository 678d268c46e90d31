"""Does a step of an LSTM cost four times a step of a plain RNN?

    python examples/claims/lstm_gates.py

Claim      "An LSTM step costs about four times a plain RNN step."
Statistic  the arithmetic of all matrix products, forward and backward, of LSTM over RNN with equal input and hidden size.
Rule       the ratio is 4 within 0.1 at every size.
Control    GRU over RNN is 3 within 0.1: it has three blocks of weights.

Reported, and not part of the rule: the time of forward and backward, and that of the products alone, done in the same order
without anything else. The difference is what the clock sees and the arithmetic does not: Python, and element-wise work (for
each unit and step an RNN has one tanh, an LSTM five, and more sums and products of single numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import COLOURS, Verdict, medians, one_thread, options, report, table

import minitx as mx
from minitx import backend, graph, nn

B, T = 32, 64                                           # sequences and steps that are timed
SIZES, FULL_SIZES = (32, 64, 128, 256), (32, 64, 128, 256, 512, 1024)
KINDS: dict[str, Callable[[int], nn.Module]] = {"RNN": lambda H: nn.RNN(H, H), "GRU": lambda H: nn.GRU(H, H),
                                                "LSTM": lambda H: nn.LSTM(H, H)}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def products(H: int, gates: int, device: str) -> Callable[[], None]:
    """The matrix products of a sequence and of its way back, and nothing else."""
    xp, rng = backend.device(device).xp, np.random.default_rng(0)
    x, h, da, W, U = (xp.asarray(rng.standard_normal(shape, "float32")) for shape in
                      ((T * B, H), (B, H), (T * B, gates * H), (H, gates * H), (H, gates * H)))

    def run() -> None:
        x @ W                                                                # forward: all inputs, then step by step
        for _ in range(T):
            h @ U
        for t in range(T):                                                   # backward: step by step, then dx, dW and dU
            da[t * B:(t + 1) * B] @ U.T
        da @ W.T, x.T @ da, x.T @ da

    return run


def measure(sizes: tuple[int, ...], device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"sizes": sizes, **{what: {name: [] for name in KINDS} for what in ("flop", "ms", "products_ms")}}
    for H in sizes:
        x = mx.tensor(np.random.default_rng(0).standard_normal((B, T, H), "float32"), device=device, requires_grad=True)
        models = {name: make(H).to(device) for name, make in KINDS.items()}
        for name, model in models.items():
            cost = graph.cost(model, np.ones((1, 2, H), "float32"))          # every step of every sequence costs the same
            found["flop"][name].append((cost.forward.work + cost.backward.work) * B * T // 2)
        steps = {name: lambda model=model, x=x: mx.gradients(model(x)[0].sum()) for name, model in models.items()}
        alone = {f"{name} products": products(H, gates, device) for name, gates in GATES.items()}
        ms = medians(steps | alone, device)
        for name in KINDS:
            found["ms"][name].append(ms[name])
            found["products_ms"][name].append(ms[f"{name} products"])
    return found


def ratios(of: dict[str, list[float]], name: str) -> np.ndarray:
    """What a kind costs in units of the plain RNN, at every size."""
    return np.array(of[name]) / np.array(of["RNN"])


def verdict(numbers: dict[str, Any]) -> Verdict:
    def off(name: str, expected: float) -> float:
        return float(abs(ratios(numbers["flop"], name) - expected).max())

    lstm, gru = off("LSTM", 4), off("GRU", 3)
    return Verdict({f"the products of an LSTM are 4 ± 0.1 times the work of an RNN's (off by {lstm:.3f} at most)": lstm <= 0.1},
                   {f"those of a GRU 3 ± 0.1 times (off by {gru:.3f} at most)": gru <= 0.1})


def text(numbers: dict[str, Any]) -> str:
    rows = [["", "MFLOP", "ratio", "ms", "ratio", "products alone, ms", "ratio"]]
    for i, H in enumerate(numbers["sizes"]):
        for name in KINDS:
            row = [f"{name}, H = {H}"]
            for what, unit in ("flop", 1e6), ("ms", 1), ("products_ms", 1):
                row += [f"{numbers[what][name][i] / unit:.1f}", f"{ratios(numbers[what], name)[i]:.2f}"]
            rows.append(row)
    return f"{B} sequences of {T} steps, forward and backward; ratios to the RNN of equal size\n\n{table(*rows)}"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    titles = {"flop": "arithmetic of the matrix products", "ms": "time (dashed: of the products alone)"}
    for panel, (what, title) in zip((left, right), titles.items(), strict=True):
        for name in KINDS:
            panel.plot(numbers["sizes"], ratios(numbers[what], name), "o-", color=COLOURS[name], linewidth=2.5, label=name)
            if what == "ms":
                panel.plot(numbers["sizes"], ratios(numbers["products_ms"], name), "--", color=COLOURS[name], linewidth=1.2)
        panel.set_xscale("log", base=2)
        panel.set_xticks(numbers["sizes"], map(str, numbers["sizes"]))
        panel.set(title=title, xlabel="hidden size H")
    figure.legend(handles=left.get_lines()[::-1], loc="outside right center", frameon=False)
    left.set(ylabel="times that of the plain RNN", ylim=(0, None))
    figure.suptitle("What do gates cost, forward and backward?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_SIZES if args.full else SIZES, args.device)
    report("lstm_gates", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
