"""Does the gradient of step 5 have to wait for that of step 6?

    python examples/claims/backward_chain.py

Claim      "In an RNN the gradient of step 5 waits for step 6; in attention all gradients are computed at once."
Statistic  the span of the backward pass, as in `serial_chain.py`: the longest row of dependent matrix products that it adds.
Rule       slope > 0.9 products per step for RNN, GRU and LSTM, < 0.01 for the Transformer block.
Control    all products of the backward pass are twice the work of the forward pass by the closed form.

Reported, and not part of the rule: the milliseconds of a training step, forward and backward, with the same number of tokens
cut into sequences of length T. The clock measures all of it: products, element-wise work, and Python's loop over the steps
(on a GPU, the launches). What is in a row costs a recurrence twice: it cannot be shared out, and every single product is small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import serial_chain
from common import lines, medians, one_thread, options, report, table

import minitx as mx

TOKENS = 4096                           # of a training step, at every length


def milliseconds(lengths: tuple[int, ...], device: str) -> dict[str, list[float]]:
    """Of forward and backward, at every length."""
    models = {name: make().to(device) for name, make in serial_chain.MODELS.items()}
    found: dict[str, list[float]] = {name: [] for name in models}
    for T in lengths:
        numbers = np.random.default_rng(0).standard_normal((max(TOKENS // T, 1), T, serial_chain.D), "float32")
        x = mx.tensor(numbers, device=device, requires_grad=True)

        def step(model: mx.nn.Module, x: mx.Tensor = x) -> None:
            y = model(x)
            mx.gradients((y[0] if isinstance(y, tuple) else y).sum())

        steps = {name: lambda model=model, step=step: step(model) for name, model in models.items()}
        for name, ms in medians(steps, device).items():
            found[name].append(ms)
    return found


def text(numbers: dict[str, Any]) -> str:
    times = [[f"ms per training step of {TOKENS} tokens", *(f"T={t}" for t in numbers["lengths"])]]
    times += [[name, *(f"{ms:.1f}" for ms in of)] for name, of in numbers["ms"].items()]
    return f"{table(*serial_chain.rows(numbers, 'backward'))}\n\n{table(*times)}"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    serial_chain.draw_spans(left, numbers, "backward")
    lines(right, numbers["lengths"], numbers["ms"])
    right.set(title="what the clock says", xlabel="length T", ylabel=f"ms per training step of {TOKENS} tokens")
    figure.suptitle(f"One layer of width {serial_chain.D}: must the gradient of step t wait for step t+1?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = serial_chain.measure(serial_chain.FULL_LENGTHS if args.full else serial_chain.LENGTHS)
    numbers["ms"] = milliseconds(numbers["lengths"], args.device)
    report("backward_chain", args, numbers, serial_chain.verdict(numbers, "backward"), text(numbers), draw)


if __name__ == "__main__":
    main()
