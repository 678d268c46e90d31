"""What runs in the process of a contender: build its step, take the time of it, look at its memory.

A contender is a library, and perhaps a variant: "torch", "minitx flash". Every process may use as many cores as there are to be
threads, where the system can be told so; no library then takes more.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from workloads import Work

PAUSE = 0.05                                    # seconds: threads of the one before may still be looking for work
Step = Callable[[], Any]
_steps: dict[str, Step] = {}                    # what this process has built, by contender


def prepare(contender: str, work: Work, threads: int, device: str) -> list[list[np.ndarray]]:
    """Build the step and take it three times; returns what came out of each, on the host."""
    peer, variant = peer_of(contender, threads)
    step = _steps[contender] = peer.build(work, variant, device)
    found = [step() for _ in range(3 if work.kind == "training" else 1)]
    return [[peer.host(x) for x in (results if isinstance(results, list | tuple) else [results])] for results in found]


def peer_of(contender: str, threads: int) -> tuple[Any, str]:
    """The module of a contender, and its variant."""
    keep_to(threads)
    library, _, variant = contender.partition(" ")
    peer = importlib.import_module(f"peer_{library}")
    peer.use_threads(threads)
    return peer, variant


def keep_to(cores: int) -> None:
    """Use so many cores and no more: libraries that choose their threads look at this."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def measure(contender: str, seconds: float) -> float:
    """The median time of a step in ms, over as many as fit into so many seconds, after one that is not counted."""
    step, times = _steps[contender], []
    time.sleep(PAUSE)
    step()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def page_faults(contender: str, steps: int = 10) -> float:
    """How often a step asks the kernel for a page of memory, once it has settled."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        _steps[contender]()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps


def shares(contender: str) -> list[dict[str, Any]]:
    """Where the time of a step of minitx goes, by op."""
    return importlib.import_module("peer_minitx").shares(_steps[contender])


def lines(contender: str) -> list[dict[str, Any]]:
    """The same by source line, for what is no training step."""
    return importlib.import_module("lines").by_line(_steps[contender])


def memory(contender: str, work: Work, threads: int, device: str) -> float:
    """In a new process: the peak in MiB of three training steps above the imports, weights and moments included; of attention,
    of the first call above its inputs, once a short one has loaded what is needed."""
    peer, variant = peer_of(contender, threads)
    if work.kind == "training":
        start = reset_peak()
        step = peer.build(work, variant, device)
        for _ in range(3):
            step()
    else:
        shapes = {name: (*shape[:2], min(128, shape[2]), shape[3]) for name, shape in work.sizes.items()}
        peer.build(work._replace(sizes=shapes), variant, device)()
        step = peer.build(work, variant, device)
        start = reset_peak()
        kept = step()                           # noqa: F841  the results count
    return peak() - start


def reset_peak() -> float:
    """Let the peak be what is in use now, without memory that was freed, where the system can; the peak."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)        # of glibc
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """The largest memory of this process so far, in MiB. In `ru_maxrss` Linux counts that of the parent, too."""
    status = Path("/proc/self/status")
    if status.is_file():
        [kib] = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(kib) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20       # in bytes on macOS
