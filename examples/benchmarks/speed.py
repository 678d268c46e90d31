"""How fast minitx is, against PyTorch eager and JAX: same weights, same data, same number of threads, float32.

    python examples/benchmarks/speed.py
    python examples/benchmarks/speed.py --work W1,W2 --threads 1 --out speed.json
    python examples/benchmarks/speed.py --device cuda

The workloads are those of `workloads.py`, W1 to W5. Before anything is timed, losses, values, gradients or symbols must agree
with PyTorch's. Each library runs each workload in a process of its own, so that the threads and the memory allocator of one do
not touch another, and they take turns, so that a busy moment of the machine meets all. After some turns all processes start
anew. A turn gives the median of its steps, a ratio is taken round by round, and what is shown is the median over the rounds.
Read the ratio, not the milliseconds; it is trustworthy when its range is narrow. JAX is left out where it is not installed.

Below a training step stand its matrix products replayed alone, the least that it could take (`peer_products.py`), the share of
each op, and memory; below the others the share of each line (`lines.py`); at the end the goals (`goals.py`). And beside a step
stands what its calls take alone: the same step with next to no arithmetic, the same calls in the same order for sizes near 1.

On a GPU it is minitx against PyTorch, and those calls are launches of kernels: where the two are equal, the GPU waits for
Python. The recurrent and attention kernels of PyTorch may choose another way for small sizes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import goals
import numpy as np
import tables
import worker
from workloads import GROUPS, Work, hollow

import minitx
from minitx import backend

TOLERANCE = 1e-4                                # of the largest number of an array: float32, added up in another order
PACKAGES = ("numpy", "torch", "jax", "cupy-cuda12x", "cupy-cuda13x")
STARTS = 3                                      # sets of processes: where their memory lies can make a third of the time
LONGEST = 30.0                                  # seconds: from then on a set of processes takes no second turn


def contenders(work: Work, args: argparse.Namespace) -> list[str]:
    """Who takes part. "products" is the floor of a training step."""
    names = ["minitx", "minitx flash", "torch"] if work.kind == "attention" else ["minitx", "torch"]
    if args.device == "cpu":
        names += ["jax"] * args.jax + ["products"] * (work.kind == "training")
    return names


def start() -> Executor:
    """A new process for one contender."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def compare(work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """The results of one workload: all must agree, then they take turns, in one set of processes after the other."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders(work, args)}
    end = time.perf_counter() + LONGEST
    for turns in np.array_split(range(args.rounds), min(STARTS, args.rounds)):
        with ExitStack() as stack:
            processes = {name: stack.enter_context(start()) for name in rounds}
            asked = {name: process.submit(worker.prepare, name, work, args.threads, args.device)
                     for name, process in processes.items()}
            found = {name: future.result() for name, future in asked.items()}
            agree(work, {name: steps for name, steps in found.items() if name != "products"})
            for turn in turns:
                if turn == turns[0] or time.perf_counter() < end:
                    for name, process in processes.items():
                        rounds[name].append(process.submit(worker.measure, name, args.seconds).result())
            more = looked_into(work, args, processes) if turns[-1] == args.rounds - 1 else {}
    result = summary(work, rounds) | more
    if "products" in found:
        result["products"]["gflop"] = float(found["products"][0][0])
    return result


def looked_into(work: Work, args: argparse.Namespace, processes: dict[str, Executor]) -> dict[str, Any]:
    """Where the time goes, and what the kernel is asked for."""
    if "products" in processes:
        faults = {name: processes[name].submit(worker.page_faults, name).result() for name in ("minitx", "torch")}
        return {"shares": processes["minitx"].submit(worker.shares, "minitx").result(), "page_faults": faults}
    if work.kind in ("op", "generation") and args.device == "cpu":
        return {"lines": processes["minitx"].submit(worker.lines, "minitx").result()}
    return {}


def agree(work: Work, found: dict[str, list[list[np.ndarray]]]) -> None:
    """End here unless all contenders computed the same: what is not the same work cannot be compared."""
    for name, steps in found.items():
        for step, (ours, theirs) in enumerate(zip(steps, found["torch"], strict=True)):
            for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                if not alike(a, b):
                    sys.exit(f"{work.name}: result {place} of step {step} differs between {name} and torch, so the times "
                             f"cannot be compared: {briefly(a)} and {briefly(b)}")


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Symbols equal, floats up to rounding; NaN is like nothing."""
    bound = 0 if b.dtype.kind in "iu" else TOLERANCE * np.abs(b).max()
    return a.shape == b.shape and bool(np.abs(a - b).max() <= bound)


def briefly(a: np.ndarray) -> str:
    return f"{a.shape} {np.array2string(a.ravel()[:3], precision=6, separator=', ')}"


def summary(work: Work, rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and ratios with their range: of time, for generation of speed."""
    def ratio(above: str, below: str) -> dict[str, float]:
        found = [a / b for a, b in zip(rounds[above], rounds[below])]
        return {"median": median(found), "low": min(found), "high": max(found)}

    others = [name for name in rounds if name not in ("torch", "products")]
    speed = work.kind == "generation"
    result: dict[str, Any] = {
        "kind": work.kind, "sizes": work.sizes, "rounds_ms": rounds, "ms": {name: median(ms) for name, ms in rounds.items()},
        "ratios": {name: ratio("torch", name) if speed else ratio(name, "torch") for name in others}}
    if speed:
        result["count"] = work.sizes["count"]
    if "products" in rounds:
        step = ratio("minitx", "products")
        result["products"] = {"ms": result["ms"]["products"], "step": step["median"], **step}
    return result


def memory(work: Work, args: argparse.Namespace) -> dict[str, float]:
    """The peak of each contender, in a new process each."""
    found = {}
    for name in contenders(work, args):
        if name != "products":
            with start() as process:
                found[name] = process.submit(worker.memory, name, work, args.threads, args.device).result()
    return found


def measured(work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """All that is asked of a workload."""
    result = compare(work, args)
    if args.device != "cpu":
        result["launches_ms"] = compare(hollow(work), args)["ms"]
        return result
    if work.kind in ("training", "attention"):
        result["memory_mib"] = memory(work, args)
    if work.kind in ("training", "generation"):
        result["calls_ms"] = calls(work, args)
    return result


def calls(work: Work, args: argparse.Namespace) -> float:
    """What a step of minitx takes with next to no arithmetic, in a new process."""
    with start() as process:
        process.submit(worker.prepare, "minitx", hollow(work), args.threads, args.device).result()
        return median(process.submit(worker.measure, "minitx", args.seconds).result() for _ in range(3))


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """Where and with what this was measured."""
    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"cpu": cpu, "cores": os.cpu_count(), "load": load, "threads": args.threads, "device": args.device,
            "python": platform.python_version(),
            "versions": {"minitx": minitx.__version__, **{name: installed(name) for name in PACKAGES}}}


def main() -> None:
    args = arguments()
    if importlib.util.find_spec("torch") is None:
        sys.exit("This benchmark compares with PyTorch, which is not installed: pip install torch")
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), str(args.threads)))
    begin, about = time.perf_counter(), machine(args)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if number)
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load']}; {args.threads} thread{'s' * (args.threads > 1)} "
          f"for each; {versions}")
    if args.device == "cpu" and importlib.util.find_spec("jax") is None:
        print("JAX is not installed, so it is left out")
    results: dict[str, Any] = {}
    for kind, works in by_kind(args.work):
        print(tables.title(kind, contenders(works[0], args)), flush=True)
        for work in works:
            result = results[work.name] = measured(work, args)
            print("\n".join([tables.row(work.name, result), *tables.details(result)]), flush=True)
    verdicts = goals.judged(results, args.threads) if args.device == "cpu" else []
    if verdicts:
        print(f"\n{tables.verdicts(verdicts)}")
    if unsteady := [name for name, result in results.items() if not goals.steady(result)]:
        print(f"\nThe rounds of {', '.join(unsteady)} differ by more than 25 %: measure again when the machine is idle")
    print(f"\n{time.perf_counter() - begin:.0f} seconds, load at the end {machine(args)['load']}")
    write(args.out, {**about, "workloads": results, "goals": verdicts})


def write(out: str | None, results: dict[str, Any]) -> None:
    """Into the file of `--out`, if there is one."""
    if out:
        Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {out}")


def by_kind(groups: Sequence[str]) -> list[tuple[str, list[Work]]]:
    """The workloads of these groups, those of one kind together."""
    works = [work for group in groups for work in GROUPS[group]]
    return [(kind, [work for work in works if work.kind == kind]) for kind in dict.fromkeys(work.kind for work in works)]


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, GROUPS, rounds=7, seconds=0.4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-jax", dest="jax", action="store_false", help="leave JAX out")
    args = checked(parser)
    if args.device == "cuda":
        try:
            backend.device("cuda")
        except RuntimeError as error:
            parser.error(f"--device: {error}")
    args.jax = args.jax and importlib.util.find_spec("jax") is not None
    return args


def parser_of(doc: str, works: Collection[str], rounds: int, seconds: float) -> argparse.ArgumentParser:
    """What all programs that measure workloads ask for."""
    def known(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        if unknown := set(names) - set(works):
            raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(works)}")
        return names

    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--work", type=known, default=list(works), help="such as W1,W2s (default: all)")
    parser.add_argument("--threads", type=int, default=2, help="for each process (default: 2)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns that each takes (default: {rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of a turn (default: {seconds})")
    parser.add_argument("--out", help="a JSON file for all numbers")
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, or an end before anything is measured: a number too low, results that could not be written."""
    args = parser.parse_args()
    for name, low in (("threads", 1), ("rounds", 1), ("seconds", 0)):
        if not getattr(args, name, low) >= low:
            parser.error(f"--{name}: {getattr(args, name)}; expected at least {low}")
    if args.out and not Path(args.out).parent.is_dir():
        parser.error(f"--out: {args.out}; there is no folder {Path(args.out).parent}")
    return args


if __name__ == "__main__":
    main()
