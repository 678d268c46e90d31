"""The floor of a training step: its matrix products alone, replayed with the same operands on the same threads.

They are recorded in one step of minitx, not derived from formulas. The model runs once on a device of its own, registered as
any device is, whose arrays are NumPy's and write down every `@`, `matmul` and `dot` that they take part in. Each shard keeps a
list of its own; a replay lets as many threads work off those lists, with one BLAS thread each, as `Shards` does.

Counted are products of two matrices, or of stacks of them. A product with a vector, or with a matrix of one row or column, is
a sum in disguise and is left out. The results go into arrays that are there already, so the floor has no allocations.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from peer_minitx import Step, host, model_of, use_threads
from workloads import Work, batch

from minitx import backend
from minitx.shards import Shards

__all__ = ["build", "host", "use_threads"]

Product = tuple[np.ndarray, np.ndarray, np.ndarray]        # two factors, and where the result goes
_seen: dict[int, list[Product]] = defaultdict(list)        # by thread


class Recorded(np.ndarray):
    """An array that writes down the matrix products it takes part in."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if "out" in options:
            options["out"] = tuple(map(plain, options["out"]))
        inputs = tuple(map(plain, inputs))
        result = getattr(ufunc, method)(*inputs, **options)
        if ufunc is np.matmul:
            note(*inputs, result)
        return recorded(result)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        result = super().__array_function__(function, types, args, options)
        if function is np.dot:
            note(*map(plain, args[:2]), plain(result))
        return recorded(result)


class Recording:
    """NumPy whose arrays are all `Recorded`."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if isinstance(value, type | np.ufunc) or not callable(value):
            return value
        return lambda *args, **options: recorded(value(*args, **options))


def plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Recorded) else x


def recorded(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(recorded, x))
    return np.asarray(x).view(Recorded) if isinstance(x, np.ndarray | np.generic) else x


def note(a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
    if min(a.ndim, b.ndim) > 1 and min(*a.shape[-2:], *b.shape[-2:]) > 1:
        _seen[threading.get_ident()].append((a, b, result))


backend.register(backend.Device("recorded", Recording(), Recorded, plain, blas=True))


def products(work: Work) -> list[list[Product]]:
    """The matrix products of one step, a list for each shard."""
    _seen.clear()
    threads = Shards(model_of(work, "cpu")).threads
    with Shards(model_of(work, "recorded"), threads) as shards:
        shards.backward([batch(work)])
    return list(_seen.values())


def build(work: Work, variant: str = "", device: str = "cpu") -> Step:
    """Replay the products; what comes out is their arithmetic in GFLOP, two for each multiplication and addition."""
    lists = products(work)
    pool = ThreadPoolExecutor(len(lists))
    gflop = sum(2 * result.size * a.shape[-1] for shard in lists for a, _, result in shard) / 1e9

    def replay(shard: list[Product]) -> None:
        for a, b, result in shard:
            np.matmul(a, b, out=result)

    def step() -> float:
        list(pool.map(replay, lists))
        return gflop

    if len(lists) > 1:
        use_threads(1)

    return step
