"""Batches of windows, cut from one long row of ids: at random places, or reading on; once and in order for evaluation.

Every batch is a pair `(x, y)` of int64 arrays (B, T), and y is x one character later: `y[b, t]` is what a model should
predict after reading `x[b, : t + 1]`. The ids come from `text.py`. Read `minitx/training.py` next: it feeds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..options import whole
from .text import as_ids

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def windows(ids: ArrayLike, B: int, T: int, rng: np.random.Generator, *, steps: int | None = None) -> Iterator[Batch]:
    """Training batches `(x, y)`, int64 (B, T) each, from `ids` (N): without end, or `steps` of them.

    Every epoch cuts the text anew, from a random first character on, into windows of T+1 characters, shuffles them and
    gives full batches. Neighbours share one character, the last of one and the first of the next, so that an epoch
    predicts a character at most once. What it leaves out, fewer than B windows and the ends of the text, is left to
    chance: other epochs have it.

    Give it an `rng` of its own: the same seed then gives the same batches. To go on after n of them, make the
    iterator again and skip n. A text shorter than B·T + 1 characters raises ValueError.
    """
    ids = as_ids("windows", ids)
    whole("windows", B=B, T=T)
    if steps is not None:
        whole("windows", 0, steps=steps)
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"windows: rng is a {type(rng).__name__}; expected a np.random.Generator; give np.random.default_rng(seed)"
        )
    if ids.size < B * T + 1:
        raise ValueError(
            f"windows: ids has {ids.size} characters, but a batch of B={B} windows of T={T} needs "
            f"B·T + 1 = {B * T + 1}; give a longer text or a smaller B or T"
        )
    return islice(_epochs(ids, B, T, rng), steps)


def _epochs(ids: NDArray[np.int64], B: int, T: int, rng: np.random.Generator) -> Iterator[Batch]:
    while True:
        first = rng.integers(min(T, ids.size - B * T))  # at any such place at least B windows fit behind it
        starts = first + T * rng.permutation((ids.size - 1 - first) // T)
        for i in range(0, starts.size - B + 1, B):
            at = starts[i : i + B, None] + np.arange(T)  # (B, T)
            yield ids[at], ids[at + 1]


def streams(ids: ArrayLike, B: int, T: int, *, steps: int | None = None) -> Iterator[Batch]:
    """Batches `(x, y)`, int64 (B, T) each, whose rows read on: without end, or `steps` of them.

    B readers start at equal distances in `ids` (N); row b of a batch goes on where row b of the one before ended, and behind
    the last character comes the first again. For models that carry their state from batch to batch (`Carried`).
    N // (B T) steps read about everything once. A text shorter than B·T + 1 characters raises ValueError.
    """
    ids = as_ids("streams", ids)
    whole("streams", B=B, T=T)
    if steps is not None:
        whole("streams", 0, steps=steps)
    if ids.size < B * T + 1:
        raise ValueError(
            f"streams: ids has {ids.size} characters, but {B} readers of T={T} need B·T + 1 = {B * T + 1}; "
            "give a longer text or a smaller B or T"
        )
    return islice(_reading_on(ids, B, T), steps)


def _reading_on(ids: NDArray[np.int64], B: int, T: int) -> Iterator[Batch]:
    starts = np.arange(B)[:, None] * (ids.size // B)
    for i in count(step=T):
        at = starts + i + np.arange(T)  # (B, T)
        yield ids[at % ids.size], ids[(at + 1) % ids.size]


def sequential(ids: ArrayLike, B: int, T: int) -> Iterator[Batch]:
    """All of `ids` (N) once, in order, for evaluation: every character but the first is predicted exactly once.

    The rows of a batch are neighbouring windows; every window starts with no memory of the one before. Batches are
    (B, T), but the last may have fewer rows, and a rest shorter than T comes after it as one batch of one shorter row.
    So the mean over the text weighs each batch by `y.size`. Fewer than 2 characters raise ValueError.
    """
    ids = as_ids("sequential", ids)
    whole("sequential", B=B, T=T)
    if ids.size < 2:
        raise ValueError(f"sequential: ids has {ids.size} characters, but predicting one needs 2; give a longer text")
    return _in_order(ids, B, T)


def _in_order(ids: NDArray[np.int64], B: int, T: int) -> Iterator[Batch]:
    full = (ids.size - 1) // T * T  # characters predicted in windows of full length
    for i in range(0, full, B * T):
        end = min(i + B * T, full)
        yield ids[i:end].reshape(-1, T).copy(), ids[i + 1 : end + 1].reshape(-1, T).copy()
    if full < ids.size - 1:
        yield ids[None, full:-1].copy(), ids[None, full + 1 :].copy()
