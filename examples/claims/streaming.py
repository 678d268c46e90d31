"""Does an RNN answer each symbol at once and in constant memory, however much it has read?

    python examples/claims/streaming.py

Claim      "An RNN answers each token at once in constant memory"; a Transformer does not.
Statistic  for one symbol more behind a history of n symbols: the time from the symbol to the scores of the next, and the bytes
           that are kept of the history. Language models of equal width and depth, with random weights.
Rule       while the history grows from the shortest to the longest, 32-fold or more,
           RNN, GRU, LSTM: the time grows by less than a half, and the bytes not at all;
           Transformer with a cache: the bytes grow in proportion to the history (within 1 %);
           Transformer without: the time grows to four times at least.
Control    every model, reading on from what it keeps, gives the scores that it gives after reading all at once (within 1e-4).

Without a cache a Transformer keeps the ids, and reads all again. With one its time grows too, since every new symbol looks at
all others; at these sizes that is little beside the work that does not depend on the history. On the CPU the clock is that of
the process: it counts what the program computes, not what it waits for while others do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import COLOURS, Verdict, one_thread, options, report, table, worst
from kv_cache import Rereading, in_turns

import minitx as mx
from minitx import backend
from minitx.models import LanguageModel, RecurrentLM, TransformerLM

V, D, N, L = 75, 96, 4, 2
LENGTHS, FULL_LENGTHS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROUNDS = 15
RECURRENT = ("RNN", "GRU", "LSTM")
CACHED, UNCACHED = "Transformer, with a cache", "Transformer, without"


def models(T: int) -> dict[str, LanguageModel]:
    """All of them, able to read T symbols."""
    rng = np.random.default_rng(0)
    found: dict[str, LanguageModel] = {name: RecurrentLM(V, D, D, L, cell=name.lower(), rng=rng) for name in RECURRENT}
    return found | {name: kind(V, D, N, L, T, positions="rotary", rng=np.random.default_rng(0))
                    for name, kind in ((CACHED, TransformerLM), (UNCACHED, Rereading))}


def kept(state: Any) -> int:
    """The bytes of a state: arrays, Tensors, tuples of them, or a cache."""
    if isinstance(state, tuple):
        return sum(map(kept, state))
    return state.array.nbytes if isinstance(state, mx.Tensor) else state.nbytes


def measure(lengths: tuple[int, ...], device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"lengths": lengths, "ms": {}, "bytes": {}, "error": {}}
    for n in lengths:
        ids = np.random.default_rng(n).integers(0, V, n + 1)
        new, steps = backend.to_device(ids[None, n:], device), {}
        for name, model in models(n + ROUNDS + 3).items():
            model.to(device).eval()
            with mx.no_grad():
                state = model.read([ids[:n]], n)
                at_once = model(backend.to_device(ids[None], device)).numpy()[0, -1]
                found["bytes"].setdefault(name, []).append(kept(state))
                state = model.read([ids[:n]], n + 2 * ROUNDS + 3)           # room for all rounds, each of which adds two
                answer = model.step(new, state)[0].numpy()[0, -1]
            found["error"][name] = worst([found["error"].get(name, 0.0), abs(answer - at_once).max()])
            steps[name] = answering(model, new, state)
        for name, seconds in in_turns(steps, device, ROUNDS).items():
            found["ms"].setdefault(name, []).append(1e3 * seconds)
    return found


def answering(model: LanguageModel, new: Any, state: Any) -> Callable[[], None]:
    """Read one symbol more, behind the same history."""
    def step() -> None:
        with mx.no_grad():
            model.step(new, state)
    return step


def growth(of: dict[str, list[float]], name: str) -> float:
    """From the shortest history to the longest."""
    return of[name][-1] / of[name][0]


def verdict(numbers: dict[str, Any]) -> Verdict:
    ms, size, longer = numbers["ms"], numbers["bytes"], numbers["lengths"][-1] / numbers["lengths"][0]
    parts: dict[str, bool | None] = {
        f"{name}: at once ({growth(ms, name):.2f} times the time for {longer:g} times the history), in constant memory":
        growth(ms, name) < 1.5 and len(set(size[name])) == 1 for name in RECURRENT}
    more, slower = growth(size, CACHED), growth(ms, UNCACHED)
    parts[f"Transformer with a cache: its memory grows with the history ({more:.1f} times)"] = abs(more / longer - 1) <= 0.01
    parts[f"Transformer without: its time grows with the history ({slower:.1f} times)"] = slower >= 4
    off = worst(numbers["error"].values())
    return Verdict(parts, {f"each scores as if it had read all at once (to {off:.0e})": off <= 1e-4})


def text(numbers: dict[str, Any]) -> str:
    rows = [["behind a history of", *(f"{n:,}" for n in numbers["lengths"]), "growth"]]
    for what, unit, form in ("ms", 1, "{:.2f}"), ("bytes", 1e3, "{:,.1f}"):
        rows.append([{"ms": "ms for one symbol", "bytes": "kB kept"}[what], *[""] * (len(rows[0]) - 1)])
        rows += [[f"  {name}", *(form.format(x / unit) for x in of), f"×{growth(numbers[what], name):.2f}"]
                 for name, of in numbers[what].items()]
    return f"Language models of {L} layers, {D} wide\n\n{table(*rows)}"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    for panel, what, unit in (left, "ms", 1), (right, "bytes", 1e3):
        for name, of in numbers[what].items():
            panel.plot(numbers["lengths"], np.array(of) / unit, "o--" if name == UNCACHED else "o-", label=name,
                       linewidth=6 if name == "RNN" else 2.5, color=COLOURS[name.split(",")[0]])     # GRU lies on top of RNN
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(numbers["lengths"], map(str, numbers["lengths"]))
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.set(xlabel="symbols read before")
    left.set(title="time to answer one symbol", ylabel="ms")
    right.set(title="what is kept of the history", ylabel="kB")
    figure.legend(handles=left.get_lines()[::-1], loc="outside right center", frameon=False, handlelength=3.5)
    figure.suptitle("One symbol more: how long does the answer take, and what is remembered?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_LENGTHS if args.full else LENGTHS, args.device)
    report("streaming", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
