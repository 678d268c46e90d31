"""Does a cache of keys and values make generation ten times faster, and what does it cost in memory?

    python examples/claims/kv_cache.py

Claim      "Caching makes generation about ten times faster; its memory grows with the conversation."
Statistic  symbols per second against the length that is generated, by the Transformer of `train_language_model.py` with random
           weights, with a cache and without, which is reading the whole text again for each symbol; bytes of the cache.
Rule       at least 10 times as many symbols per second over the longest text; and the bytes per symbol are the same at every
           length (within 1 %), so the memory is proportional to it.
Control    both write the same symbols. The first, before which nothing was read that could be kept, takes equally long: within
           a third.

Without a cache the n-th symbol costs n positions, so n symbols cost n²/2; with it, n. The ratio has no limit, so "ten times" is
the answer for one length: the table says where it is reached. Each step has some work whatever the length (Python, and the
matrices that are read from memory), which is why a cache gains nothing in short texts.

The two ways take turns, symbol by symbol, and of each 16 symbols in a row the median counts. On the CPU the clock is that of
the process: it counts what the program computes, not what it waits for while others do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, table

import minitx as mx
from minitx import backend
from minitx.generation import generate
from minitx.memory import keep_freed_memory
from minitx.models import LanguageModel, TransformerLM

V, D, N, L = 75, 96, 4, 2                                # as in train_language_model.py
LENGTHS, FULL_LENGTHS = (1, 16, 64, 128, 256, 512, 1024), (1, 16, 64, 128, 256, 512, 1024, 2048)
BLOCK = 16


class Rereading(TransformerLM):
    """The same model, which keeps the ids that it has read and nothing else."""

    read, step, select = LanguageModel.read, LanguageModel.step, LanguageModel.select   # type: ignore[assignment]


WAYS = {"with a cache": TransformerLM, "without": Rereading}


def timed(step: Callable[[], Any], device: str) -> float:
    """Its seconds: on the CPU those that it computes, elsewhere those that pass."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    step()
    backend.device(device).synchronize()
    return clock() - start


def in_turns(steps: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """The median seconds of each step, after one round to warm up. Right before it, it runs once without being timed, or it
    would begin with what the others left in the processor's memory."""
    keep_freed_memory()
    times = [[(step(), timed(step, device))[1] for step in steps.values()] for _ in range(rounds + 1)]
    return dict(zip(steps, np.median(times[1:], axis=0).tolist(), strict=True))


def measure(lengths: tuple[int, ...], device: str) -> dict[str, Any]:
    T = lengths[-1]
    models = {way: kind(V, D, N, L, T, rng=np.random.default_rng(0)).to(device) for way, kind in WAYS.items()}

    def writing(way: str, count: int) -> Iterator[int]:
        return generate(models[way], [1], count, rng=np.random.default_rng(0))

    first = in_turns({way: lambda way=way: next(writing(way, T)) for way in WAYS}, device, rounds=31)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    written: dict[str, list[int]] = {way: [] for way in WAYS}
    texts = {way: writing(way, T) for way in WAYS}
    for _ in range(T):
        for way, text in texts.items():
            seconds[way].append(timed(lambda way=way, text=text: written[way].append(next(text)), device))
    found = {way: [total(seconds[way][:n]) if n > 1 else first[way] for n in lengths] for way in WAYS}
    with mx.no_grad():
        sizes = [models["with a cache"].read([np.zeros(n, int)], n).nbytes for n in lengths]
    return {"lengths": lengths, "seconds": found, "bytes": sizes, "same": written["with a cache"] == written["without"]}


def total(seconds: list[float]) -> float:
    """The time of all symbols, each block of which counts by its median."""
    blocks = [seconds[i:i + BLOCK] for i in range(0, len(seconds), BLOCK)]
    return float(sum(len(block) * np.median(block) for block in blocks))


def gains(numbers: dict[str, Any]) -> np.ndarray:
    """How many times as fast the cache makes it, at every length."""
    return np.array(numbers["seconds"]["without"]) / np.array(numbers["seconds"]["with a cache"])


def verdict(numbers: dict[str, Any]) -> Verdict:
    gain, longest = gains(numbers), numbers["lengths"][-1]
    each = np.array(numbers["bytes"]) / np.array(numbers["lengths"])
    return Verdict({f"ten times faster over {longest} symbols ({gain[-1]:.1f} times)": bool(gain[-1] >= 10),
                    f"its memory is proportional to the length ({each[0]:,.0f} to {each[-1]:,.0f} bytes per symbol)":
                    bool(each.max() <= 1.01 * each.min())},
                   {"with a cache and without, the same symbols": numbers["same"],
                    f"the first symbol takes equally long ({gain[0]:.2f} times)": bool(3 / 4 <= gain[0] <= 4 / 3)})


def text(numbers: dict[str, Any]) -> str:
    rows = [["symbols written", *(f"{n:,}" for n in numbers["lengths"])]]
    rows += [[f"symbols/s {way}", *(f"{n / s:,.0f}" for n, s in zip(numbers["lengths"], of))]
             for way, of in numbers["seconds"].items()]
    rows += [["times as fast", *(f"{gain:.1f}" for gain in gains(numbers))],
             ["cache, kB", *(f"{size / 1e3:,.1f}" for size in numbers["bytes"])]]
    return f"A Transformer of {L} blocks, {D} wide, one text\n\n{table(*rows)}"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    n = np.array(numbers["lengths"])
    for way, style in ("with a cache", "o-"), ("without", "o--"):
        left.plot(n, n / np.array(numbers["seconds"][way]), style, color="black", linewidth=2.5, label=way)
    right.plot(n, np.array(numbers["bytes"]) / 1e3, "o-", color="black", linewidth=2.5)
    for i, gain in enumerate(gains(numbers)):
        if gain >= 1.5:
            left.annotate(f"×{gain:.1f}", (n[i], n[i] / numbers["seconds"]["without"][i]), xytext=(-12, -14),
                          textcoords="offset points", ha="right", fontsize=11)
    for panel in left, right:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(n, map(str, n))
        panel.set_xlabel("symbols written")
    left.yaxis.set_major_formatter("{x:,g}")
    right.yaxis.set_major_formatter("{x:,g}")
    bottom, top = left.get_ylim()
    left.set(title="speed", ylabel="symbols per second", ylim=(bottom / 2, top * 1.5))
    left.legend(frameon=False, handlelength=3.5)
    right.set(title="memory of the cache", ylabel="kB")
    figure.suptitle("What does a cache of keys and values give, and what does it cost?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_LENGTHS if args.full else LENGTHS, args.device)
    report("kv_cache", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
