"""Batches in which some symbols are hidden, for a model that reads in both directions and learns by guessing them.

Read next: `minitx/models/encoder.py`, which guesses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..backend import numbers
from ..options import kind, number, whole
from .padding import PADDING, Ids, mask_of
from .text import as_ids


def masked(ids: ArrayLike, lengths: ArrayLike, V: int, rng: np.random.Generator, mask_id: int, *,
           share: float = 0.15) -> tuple[Ids, Ids, Ids]:
    """Hide symbols of a padded batch: (ids (B, T), lengths (B), targets (B, T)), int64.

    Every real symbol is chosen with probability `share`. Of those that are chosen

        80 % become `mask_id`       to be guessed from what stands around them
        10 % become any of the V    so that no symbol can be trusted,
        10 % stay as they are       and what is seen may still be right

    since where the model is used nothing will be hidden. The targets are the symbols that stood there; all others are -100,
    which counts for nothing. Draw anew for each epoch: other symbols are hidden then.

    Source  Devlin et al. 2018, arXiv 1810.04805, section 3.1

    >>> ids, lengths, targets = masked([[5, 6, 7], [8, 0, 0]], [3, 1], 9, np.random.default_rng(1), mask_id=1, share=0.5)
    >>> ids.tolist(), targets.tolist()
    ([[5, 6, 1], [8, 0, 0]], [[-100, -100, 7], [-100, -100, -100]])
    """
    whole("masked", V=V)
    whole("masked", 0, mask_id=mask_id)
    kind("masked", np.random.Generator, "give np.random.default_rng(seed)", rng=rng)
    number("masked", 0, 1, share=share)
    rows = numbers("masked", ids)
    if rows.ndim != 2 or mask_id >= V:
        raise ValueError(f"masked: ids has shape {rows.shape}, V is {V}, mask_id is {mask_id}; expected ids (B, T), as "
                         f"data.pad makes them, and a mask_id below V")
    true = as_ids("masked", rows.reshape(-1), V).reshape(rows.shape)
    ends = as_ids("masked", lengths)
    if len(ends) != len(true):
        raise ValueError(f"masked: there are {len(true)} rows and {len(ends)} lengths; give one for each")
    fate = rng.random(true.shape)
    chosen = mask_of(ends, rows.shape[1]) & (fate < share)
    seen = np.where(chosen & (fate < 0.8 * share), mask_id, true)
    swapped = chosen & (fate >= 0.8 * share) & (fate < 0.9 * share)
    seen = np.where(swapped, rng.integers(V, size=true.shape), seen)
    return seen, ends, np.where(chosen, true, PADDING)
