"""What each technique of `docs/speed.md` is worth: one is switched off at a time, and the same step taken with and without.

    python examples/benchmarks/techniques.py --out docs/speed/techniques.json

The step is that of `speed.py`. A switch puts the readable form, or nothing, in the place of one name, in a process of its own:
nothing in minitx knows of it. First the numbers that come out must agree; then all take turns, and what is shown is the time
without the technique over that with all of them, round by round, as the median with its range; a range wider than 25 % is
"unsteady". The same program a second time, "nothing", shows what the noise is. It takes three minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import goals
import numpy as np
import peer_minitx
import speed
import tables
import worker
from workloads import GROUPS, NARROW, Work, attention, weights

from minitx import backend, ops, panels, special
from minitx.models import LanguageModel, RecurrentLM, one_symbol
from minitx.shards import SMALL, Shards

ALL = "all"                                     # nothing is switched off
ERFC = Work("erfc", "function", "erfc", {"x": NARROW})
SQUARES = [attention(T) for T in (128, 256, 512, 1024)]
TRAINING = [GROUPS[name][0] for name in ("W1", "W1s", "W2", "W2s")]
SHARED = [work.name for work in TRAINING if sum(w.size for w in weights(work).values()) >= SMALL]       # on threads, as a rule
WORKS = {work.name: work for work in (*TRAINING, *SQUARES, GROUPS["W5"][0], ERFC)}
Put = Callable[[Any, str, Any], None]           # `setattr`, or what keeps book of it


# The switches: what stands in place of the fast form

def nothing(put: Put) -> None:
    """The same program a second time."""


def one_shard(put: Put) -> None:
    """The whole batch on one thread of Python, and every product on as many threads of BLAS."""
    put(peer_minitx, "Shards", partial(Shards, threads=1))


def a_shard_for_every_thread(put: Put) -> None:
    """Small models too are shared out."""
    put(peer_minitx, "Shards", partial(Shards, threads=2))


def freed_memory_goes_back(put: Put) -> None:
    put(peer_minitx, "keep_freed_memory", lambda: False)


def one_panel(put: Put) -> None:
    """The recurrent weights as they are: one product with all columns."""
    put(panels, "panels", lambda W, rows: W)


def slopes_in_the_loop(put: Put) -> None:
    put(ops.lstm_steps, "vjp", partial(slopes_step_by_step, ops.lstm_steps.vjp))


def slopes_step_by_step(fast: Callable, a: Any, h0: Any, c0: Any, U: Any, lengths: Any = None, **options: Any) -> Any:
    """`lstm_steps` without padding, with a backward that goes through time as `lstm_cell` does."""
    value, backward = fast(a, h0, c0, U, lengths, **options)
    kept = inspect.getclosurevars(backward).nonlocals
    gates, hs, cs, tanh_c = (kept[name] for name in ("gates", "hs", "cs", "tanh_c"))
    T, B, H = tanh_c.shape

    def readable(dhs: Any, dh: Any, dc: Any) -> Any:
        da, times_UT = np.empty((T, B, 4 * H), gates.dtype), panels.multiplier(U.T, B)
        for t in reversed(range(T)):
            i, f, g, o = gates[t]
            dh = dh + dhs[:, t]
            do = dh * tanh_c[t]
            dc = dc + dh * o * (1 - tanh_c[t] * tanh_c[t])
            di, df, dg, dc = dc * g, dc * cs[t], dc * i, dc * f
            da[t] = np.concatenate([di * i * (1 - i), df * f * (1 - f), dg * (1 - g * g), do * o * (1 - o)], axis=-1)
            dh = times_UT(da[t])
        return da.swapaxes(0, 1), dh, dc, hs[:-1].reshape(T * B, H).T @ da.reshape(T * B, 4 * H), None

    return value, readable


def look_up_before_the_product(put: Put) -> None:
    put(RecurrentLM, "forward", LanguageModel.forward)


def cells(put: Put) -> None:
    """The recurrence in its readable form, cell by cell, which has neither panels nor table nor slopes at once."""
    look_up_before_the_product(put)
    put(ops.lstm, "vjp", ops.lstm.reference.vjp)


def whole_square(put: Put) -> None:
    put(ops.flash_attention, "vjp", ops.flash_attention.reference.vjp)


def sums_by_sum(put: Put) -> None:
    backend.register(dataclasses.replace(backend.device("cpu"), blas=False))


def attention_in_three_steps(put: Put) -> None:
    put(ops.attention, "vjp", ops.attention.reference.vjp)


def gelu_as_written(put: Put) -> None:
    put(ops.gelu, "vjp", plain_gelu)


def plain_gelu(x: Any, *, approximate: str = "tanh") -> Any:
    """The formulas of `ops.gelu` as they stand, each operator with an array of its own."""
    c, a, near = math.sqrt(2 / math.pi), 0.044715, x.clip(-10, 10)
    p = (1 + np.tanh(c * near * (1 + a * near * near))) / 2
    return x * p, lambda dy: dy * p * (1 + 2 * near * (1 - p) * c * (1 + 3 * a * near * near))


def every_symbol_through_the_model(put: Put) -> None:
    put(one_symbol, "fits", lambda model: False)


def number_by_number(put: Put) -> None:
    put(special, "erfc", lambda x: np.array([math.erfc(v) for v in x.ravel().tolist()], x.dtype).reshape(x.shape))


# each with the workloads where it is in use
SWITCHES: dict[str, tuple[Callable[[Put], None], list[str]]] = {
    "nothing": (nothing, [work.name for work in TRAINING]),
    "shards": (one_shard, SHARED),
    "one shard for small models": (a_shard_for_every_thread, [work.name for work in TRAINING if work.name not in SHARED]),
    "memory that stays": (freed_memory_goes_back, [work.name for work in TRAINING]),
    "panels": (one_panel, ["W1"]),
    "slopes at once": (slopes_in_the_loop, ["W1", "W1s"]),
    "vocabulary table": (look_up_before_the_product, ["W1"]),
    "all of the recurrence": (cells, ["W1", "W1s"]),
    "sums as products": (sums_by_sum, ["W2", "W2s"]),
    "attention in place": (attention_in_three_steps, ["W2", "W2s"]),
    "gelu in place": (gelu_as_written, ["W2", "W2s"]),
    "attention in tiles": (whole_square, [work.name for work in SQUARES]),
    "one symbol at a time": (every_symbol_through_the_model, ["W5 gpt"]),
    "erfc as a polynomial": (number_by_number, ["erfc"]),
}


# Measuring

def prepare(off: str, work: Work, threads: int) -> list[list[np.ndarray]]:
    """In a process of its own: switch one technique off, build the step, and take it; what came out."""
    peer_minitx.BUILDERS["function"] = function
    if off != ALL:
        SWITCHES[off][0](setattr)
    return worker.prepare(contender(work), work, threads, "cpu")


def contender(work: Work) -> str:
    return "minitx flash" if work.kind == "attention" else "minitx"


def function(work: Work, _: str, device: str) -> Callable[[], Any]:
    x = np.random.default_rng(0).standard_normal(work.sizes["x"]).astype("float32")
    return lambda: backend.erfc(x)


def compare(work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """A workload with all techniques, and without each: they agree, then they take turns."""
    names = [ALL, *(name for name, (_, works) in SWITCHES.items() if work.name in works)]
    with ExitStack() as stack:
        processes = {name: stack.enter_context(speed.start()) for name in names}
        asked = {name: process.submit(prepare, name, work, args.threads) for name, process in processes.items()}
        agree(work, {name: future.result() for name, future in asked.items()})
        rounds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name, process in processes.items():
                rounds[name].append(process.submit(worker.measure, contender(work), args.seconds).result())
    return {"ms": {name: median(ms) for name, ms in rounds.items()},
            "without": {name: ratio(rounds[name], rounds[ALL]) for name in names[1:]}}


def ratio(without: list[float], with_all: list[float]) -> dict[str, Any]:
    found = [a / b for a, b in zip(without, with_all, strict=True)]
    r = {"median": median(found), "low": min(found), "high": max(found)}
    return r | {"steady": goals.agreed(r)}


def agree(work: Work, found: dict[str, list[list[np.ndarray]]]) -> None:
    """End here unless the numbers are the same without any technique, up to rounding."""
    for name, results in found.items():
        for ours, expected in zip(results, found[ALL], strict=True):
            if not all(map(speed.alike, ours, expected)):
                sys.exit(f"{work.name} without {name}: {speed.briefly(ours[0])}; expected {speed.briefly(expected[0])}, "
                         f"so the times cannot be compared")


def main() -> None:
    args = arguments()
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), str(args.threads)))
    about, results = speed.machine(args), {}
    for work in (WORKS[name] for name in args.work):
        results[work.name] = compare(work, args)
        print(f"{work.name}: {results[work.name]['ms'][ALL]:.2f} ms; without")
        for name, r in results[work.name]["without"].items():
            noise = "" if r["steady"] else "  unsteady"
            print(f"    {name:<34}{r['median']:6.2f} of that {tables.brackets(r)}{noise}", flush=True)
    speed.write(args.out, {**about, "workloads": results})


def arguments() -> argparse.Namespace:
    parser = speed.parser_of(__doc__, WORKS, rounds=5, seconds=0.2)
    parser.set_defaults(device="cpu")
    return speed.checked(parser)


if __name__ == "__main__":
    main()
