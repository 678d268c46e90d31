"""Sequences of unequal length in batches of one length: padding, masks, and how to waste little.

A batch is a rectangle. A short sequence beside a long one is filled up with padding, and every step computed there is wasted.
Batches of sequences of like length waste less, but always meeting the same neighbours in the same order is bad for learning:
`length_batches` sorts within pools, and shuffles the rest.

Read next: `minitx/seq2seq.py`, which learns from such batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..backend import Array, is_array, numbers
from ..ops.lengths import live_steps
from ..options import kind, whole
from .text import as_ids

PADDING = -100  # the target that cross-entropy ignores
Ids = NDArray[np.int64]


def pad(sequences: Iterable[ArrayLike], value: int = 0) -> tuple[Ids, Ids]:
    """Rows of ids as one int64 array (B, T), T that of the longest, `value` behind the shorter ones; and their lengths (B).

    >>> ids, lengths = pad([[5, 6, 7], [8]])
    >>> ids.tolist(), lengths.tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(value) > np.iinfo(np.int64).max:
        raise TypeError(f"pad: value is {value!r:.60}; expected a whole number that int64 can hold, as the ids are")
    rows = [as_ids("pad", row) for row in listed("pad", sequences)]
    lengths = np.array([row.size for row in rows], np.int64)
    ids = np.full((len(rows), lengths.max(initial=0)), value, np.int64)
    for row, padded in zip(rows, ids):
        padded[: row.size] = row
    return ids, lengths


def mask_of(lengths: Array, T: int) -> Array:
    """Booleans (B, T), True in the first `lengths[b]` steps: a real symbol. On the device of the lengths.

    >>> mask_of(np.array([3, 1]), 3).tolist()
    [[True, True, True], [True, False, False]]
    """
    whole("mask_of", 0, T=T)
    if not is_array(lengths) or lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        given = f"of shape {lengths.shape} and {lengths.dtype}" if is_array(lengths) else f"a {type(lengths).__name__}"
        raise TypeError(f"mask_of: lengths is {given}; expected an array of whole numbers (B)")
    return live_steps("mask_of", lengths, T)[:, :, 0].T                                      # (T, B, 1) -> (B, T)


def pair_batch(sources: Iterable[ArrayLike], targets: Iterable[ArrayLike], *, start: int,
               stop: int) -> tuple[Ids, Ids, Ids, Ids]:
    """A batch to learn from with teacher forcing: (source (B, S), lengths (B), inputs (B, T), targets (B, T)).

    The decoder reads `inputs`, the start symbol and then the target, and is to predict `targets`, the target and then the stop
    symbol: at each step the next symbol, whatever it would have said itself. Padded targets are -100, which count for nothing.

    >>> [part.tolist() for part in pair_batch([[5, 6]], [[7, 8, 9]], start=1, stop=2)]
    [[[5, 6]], [2], [[1, 7, 8, 9]], [[7, 8, 9, 2]]]
    """
    whole("pair_batch", 0, start=start, stop=stop)
    source, lengths = pad(sources)
    rows = [as_ids("pair_batch", row) for row in listed("pair_batch", targets)]
    if len(rows) != len(source):
        raise ValueError(f"pair_batch: there are {len(source)} sources and {len(rows)} targets; give one for each")
    inputs, _ = pad([[start, *row] for row in rows])
    return source, lengths, inputs, pad([[*row, stop] for row in rows], PADDING)[0]


def length_batches(lengths: ArrayLike, B: int, rng: np.random.Generator, *, pool: int | None = 50,
                   budget: int | None = None) -> list[list[int]]:
    """The batches of one epoch: lists of at most B places in `lengths`, every place in one of them.

    Args:
        lengths: (N), or (N, 2) for pairs, which are sorted by the first, where that is equal by the second.
        pool: so many batches are drawn together and sorted by length before they are cut. 1 is plain shuffling; None sorts all,
            which wastes least, but puts the same examples together in every epoch.
        budget: the most steps that a batch may have, rows times the longest, padding and both of a pair included. A batch of
            short sequences may then have more rows than one of long ones. An example that is longer stands alone.

    The batches come shuffled. What is left over makes a smaller batch, so no example is lost. The same rng state gives the same
    batches.
    """
    sizes = as_lengths("length_batches", lengths)
    whole("length_batches", B=B)
    kind("length_batches", np.random.Generator, "give np.random.default_rng(seed)", rng=rng)
    for name, option in (("pool", pool), ("budget", budget)):
        if option is not None:
            whole("length_batches", **{name: option})
    order = rng.permutation(len(sizes))
    together = len(sizes) if pool is None else pool * B
    batches: list[list[int]] = []
    for i in range(0, len(order), max(together, 1)):
        drawn = order[i : i + together]
        by_length = drawn[np.lexsort(sizes[drawn].T[::-1])]  # of equal lengths, as drawn
        batches += cut(by_length.tolist(), sizes, B, budget)
    return [batches[i] for i in rng.permutation(len(batches))]


def cut(order: Sequence[int], sizes: Ids, B: int, budget: int | None) -> Iterator[list[int]]:
    """Batches in this order, each as large as B and the budget allow."""
    batch: list[int] = []
    longest = 0
    for i in order:
        longest = np.maximum(longest, sizes[i])
        if batch and (len(batch) == B or (budget and (len(batch) + 1) * longest.sum() > budget)):
            yield batch
            batch, longest = [], sizes[i]
        batch.append(i)
    if batch:
        yield batch


def padding_share(lengths: ArrayLike, batches: Iterable[Sequence[int]]) -> float:
    """Which part of all steps of these batches is padding, from 0 to 1; `lengths` (N), or (N, 2) for pairs.

    >>> padding_share([4, 1, 4, 1], [[0, 1], [2, 3]]), padding_share([4, 1, 4, 1], [[0, 2], [1, 3]])
    (0.375, 0.0)
    """
    sizes = as_lengths("padding_share", lengths)
    places = [as_ids("padding_share", batch) for batch in listed("padding_share", batches)]
    for batch in places:
        if batch.size and not 0 <= batch.min() <= batch.max() < len(sizes):
            raise ValueError(f"padding_share: a batch has places from {batch.min()} to {batch.max()}; expected 0 to "
                             f"{len(sizes) - 1}, since there are {len(sizes)} lengths; give what length_batches made of them")
    groups = [sizes[batch] for batch in places]
    real = sum(int(group.sum()) for group in groups)
    steps = sum(len(group) * int(group.max(0, initial=0).sum()) for group in groups)
    return 1 - real / steps if steps else 0.0


def as_lengths(caller: str, lengths: ArrayLike) -> Ids:
    """Lengths (N) or (N, 2) as (N, 1) or (N, 2), or an error in the name of the caller."""
    array = numbers(caller, lengths)
    fit = not array.size or (array.dtype.kind in "iu" and 0 <= array.min() <= array.max() <= np.iinfo(np.int64).max)
    if array.shape[1:] not in ((), (2,)) or not array.ndim or not fit:
        raise ValueError(f"{caller}: lengths has shape {array.shape} and dtype {array.dtype}; expected whole numbers of at "
                         f"least 0, one for each sequence (N), or two for each pair (N, 2)")
    return array.reshape(len(array), -1 if array.size else 1).astype(np.int64)


def listed(caller: str, rows: Iterable, of: str = "rows of ids") -> list:
    """Several rows as a list, or an error in the name of the caller."""
    if isinstance(rows, str) or not isinstance(rows, Iterable) or getattr(rows, "ndim", 1) == 0:
        raise TypeError(f"{caller}: got a {type(rows).__name__}; expected several {of}")
    return list(rows)


def in_pairs(caller: str, **lists: Iterable) -> list[list]:
    """Several rows of each as lists, or an error in the name of the caller: ValueError where there are not equally many."""
    found = [listed(caller, rows, name) for name, rows in lists.items()]
    if len(set(map(len, found))) > 1:
        counts = " and ".join(f"{len(rows)} {name}" for name, rows in zip(lists, found))
        raise ValueError(f"{caller}: got {counts}; expected as many of each")
    return found
