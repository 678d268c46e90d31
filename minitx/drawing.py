"""What pictures and their text forms have in common: names of steps, the ends of a scale, and what no scale can show.

Read next: `terminal.py`, which draws in letters; `plots.py`, which draws in colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}
NO_NUMBER = "padding or NaN"


def names(caller: str, tokens: Sequence[Any] | None, count: int, of: str = "time steps") -> list[str]:
    """Tokens for a reader: blanks leave some ink. There are as many as there is to name, or none."""
    if tokens is None:
        return []
    words = ["".join(SIGNS.get(c, c) for c in str(token)) or "∅" for token in tokens]
    if len(words) != count:
        raise ValueError(f"{caller}: there are {len(words)} tokens for {count} {of}; give one for each")
    return words


def limits(sizes: np.ndarray) -> tuple[float, float]:
    """The ends of a logarithmic scale for sizes. No scale goes beyond 1e±100: what is still larger stands at its end."""
    shown = np.clip(sizes[np.isfinite(sizes) & (sizes > 0)], 1e-100, 1e100)
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.1, 1.0)
    return (low, high) if low < high else (low / 2, high * 2)


def odd(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Where sizes are what a logarithmic scale cannot show, by the word for it; only what there is."""
    places = {"zero": sizes == 0, "infinite": np.isinf(sizes), NO_NUMBER: np.isnan(sizes)}
    return {word: where for word, where in places.items() if where.any()}
