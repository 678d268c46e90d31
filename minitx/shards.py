"""The step on threads: each goes forward and back with its own rows of the batch, on a tape of its own.

    batch (B rows)  ->  shard 0 | shard 1 | ...      forward, loss, backward: one thread each
                        gradient = Σ share · gradient of the shard,    share = its symbols / all symbols

The rows of a batch meet in the mean of the loss and nowhere else, so this is the mathematics of the step in one piece. The
threads run at the same time because NumPy lets go of Python's lock inside its loops. Against two threads *within* every matrix
product, it is a third faster: the work between the products is shared out, too, and there are two synchronisations per step
in place of two per product. The sums are taken in the order of the shards, so a run is reproducible for one number of threads.

Read next: `training.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from .backend import Array, array_module, as_array, is_array, to_device
from .data.padding import PADDING
from .models import Model
from .observer import looking
from .options import whole
from .parallel import one_blas_thread
from .randomness import can_jump, generators, stand_in, stream
from .tape import gradients
from .tensor import Tensor

Batch = tuple[Any, ...]         # what the loss of the model takes, the targets last
SMALL = 150_000                 # parameters: below, a thread has less to do than it takes to start it
MOST = 8                        # threads, where their number is left to us: each brings gradients that are to be added up


class Shards:
    """A model with its loss and the threads on which it goes back: `backward(group)` adds to the gradients.

    Args:
        threads: on how many a batch is shared out, at most one per row. None: as many as this process may use cores, up to 8;
            one for models of fewer than 150,000 parameters, and on a GPU.

    Several threads have one BLAS thread each; one thread works on the whole batch, with the BLAS threads that the process has.
    A batch stays whole where its rows cannot be told apart (`model.divisible` is False, or its arrays are of unequal length),
    and while an observer watches, who wants to see all of it. The numbers are the same up to rounding (if the loss is float16,
    that of the shares, too), but for those that are drawn: dropout draws in thread k from a stream that is k jumps ahead.

    `symbols` is how many the last group had, padding left out. Counting them waits for a GPU if the targets are there.
    """

    def __init__(self, model: Model, threads: int | None = None) -> None:
        if threads is not None:
            whole("Shards", threads=threads)
        if threads is not None and threads > 1 and not model.divisible:
            raise ValueError(f"Shards: a {type(model).__name__} reads a batch as a whole, so its rows cannot go to {threads} "
                             f"threads; give threads=1, or None")
        self.model, self.device, self.symbols = model, model.parameters()[0].device, 0
        if threads is None:
            worth = model.divisible and self.device == "cpu" and model.count_parameters() >= SMALL
            threads = min(cores(), MOST) if worth and all(map(can_jump, generators(model).values())) else 1
        self.threads, self.rngs = threads, list(generators(model).values()) if threads > 1 else []
        if stuck := [type(rng.bit_generator).__name__ for rng in self.rngs if not can_jump(rng)]:
            raise ValueError(f"Shards: the model draws from a {stuck[0]}, which cannot jump ahead, so its draws cannot be told "
                             f"apart on {threads} threads; build it with np.random.default_rng(seed), or give threads=1")

    def __enter__(self) -> Shards:
        self.pool = ThreadPoolExecutor(max(1, self.threads - 1))
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def backward(self, group: Sequence[Batch]) -> Array:
        """The mean loss over all symbols of the batches, one number in float64, where the model is (`float` of it waits for a
        GPU); its gradient is added to the `.grad` of every parameter."""
        divided = [[(shard, counted(shard)) for shard in self.divided(batch)] for batch in group]
        self.symbols, value = sum(n for shards in divided for _, n in shards), np.float64(0)
        for shards in divided:                              # of padding alone one is enough, with a share of nothing
            found = self.run([(shard, n / self.symbols) for shard, n in shards if n] or [(shards[0][0], 0.0)])
            value = value + sum(loss for loss, _ in found)
            add_up([leaves for _, leaves in found])
        return value

    def divided(self, batch: Batch) -> list[Batch]:
        """The rows of a batch in as many parts as there are threads for it, the larger ones first."""
        rows = {part.shape[:1] for part in batch}               # () of a single number
        if self.threads == 1 or len(rows) > 1 or () in rows or looking():
            return [batch]
        count = max(1, min(self.threads, *rows.pop()))
        cuts = [array_module(part).array_split(part, count) for part in batch]
        return list(zip(*cuts, strict=True))

    def run(self, shards: Sequence[tuple[Batch, float]]) -> list[tuple[Array, dict[Tensor, Array]]]:
        """(loss, gradients) of every shard times its share, the first here and the others in the pool."""
        if len(shards) == 1:
            return [self.one(*shards[0])]
        rngs, others = [*self.rngs, stream()], []
        with one_blas_thread():
            for k, shard in enumerate(shards[1:], 1):
                context = copy_context()            # what is set here (no_grad, NumPy's errstate) is set there
                context.run(stand_in, rngs, k)
                others.append(self.pool.submit(partial(context.run, self.one, *shard)))
            try:
                return [self.one(*shards[0]), *(other.result() for other in others)]
            finally:
                wait(others)

    def one(self, batch: Batch, share: float) -> tuple[Array, dict[Tensor, Array]]:
        """Forward and back with one shard."""
        loss = self.model.loss(*[to_device(part, self.device) for part in batch])
        return loss.array.astype("float64") * share, gradients(loss, share)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def add_up(found: Sequence[dict[Tensor, Array]]) -> None:
    """Add the gradients that the shards found to those of the leaves, in the order of the shards."""
    parts: dict[Tensor, list[Array]] = {}
    for leaves in found:
        for leaf, gradient in leaves.items():
            parts.setdefault(leaf, [] if leaf.grad is None else [leaf.grad]).append(gradient)
    for leaf, (first, *others) in parts.items():
        leaf.grad = as_array(reduce(add, others, first)) if others else first.copy()


def checked(caller: str, batch: Any) -> Batch:
    """A batch as it must be, or an error in the name of the caller."""
    if not (isinstance(batch, tuple | list) and len(batch) >= 2 and all(map(is_array, batch))):
        several = isinstance(batch, tuple | list)
        given = f"({', '.join(type(part).__name__ for part in batch)})" if several else f"a {type(batch).__name__}"
        raise TypeError(f"{caller}: a batch is {given}; expected arrays, the targets last, such as a pair (ids, targets)")
    return tuple(batch)


def counted(batch: Batch) -> int:
    """How many of the targets are symbols to predict; the others are padding."""
    return int(array_module(batch[-1]).count_nonzero(batch[-1] != PADDING))
