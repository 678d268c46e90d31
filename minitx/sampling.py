"""From the scores of all symbols to one of them: the likeliest, or one that is drawn.

Read next: `generation.py`, which does it again and again.
"""

from __future__ import annotations

import math

import numpy as np

from .backend import expecting_overflow
from .decoding import largest
from .options import kind, number, whole


def probabilities(logits: np.ndarray, *, temperature: float = 1.0, top_k: int | None = None,
                  top_p: float | None = None) -> np.ndarray:
    """With what probability each symbol is drawn, (V) float64, given the scores of all, logits (V).

        p = softmax(logits / temperature)                                                       (1)
        the top_k likeliest symbols stay, all others get 0; p = p / Σ p                         (2)
        of these the likeliest stay, as few as have a sum of top_p or more; p = p / Σ p         (3)

    Args:
        temperature: 1 is what the model believes; below 1 it dares less, and 0 takes the likeliest symbol.
        top_k: None, or V and above: all stay.
        top_p: from 0 to 1; None or 1: all stay. The symbol that reaches the sum stays, so one always does.

    Of equally likely symbols that with the lower id comes first. The sum of (3) is over what (2) has left, renormalised.

    Source  top-k: Fan, Lewis & Dauphin 2018, arXiv 1805.04833; top-p, "nucleus": Holtzman et al. 2019, arXiv 1904.09751

    >>> logits = np.log([0.1, 0.5, 0.15, 0.25])
    >>> [probabilities(logits, top_p=top_p).round(2).tolist() for top_p in (0.4, 0.7)]
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.67, 0.0, 0.33]]
    """
    check_sampling("probabilities", temperature, top_k, top_p)
    check_logits("probabilities", logits)
    if temperature == 0:
        temperature, top_k = 1, 1
    with expecting_overflow():                                              # -inf / temperature, where that is tiny
        p = np.exp((logits.astype("float64") - logits.max()) / temperature)                              # 1
    p /= p.sum()
    if top_k is None and top_p in (None, 1):
        return p
    stay = largest(p, len(p) if top_k is None else top_k)                   # places, the likeliest first  # 2
    if top_p not in (None, 1):                                              # 1: not even what rounding would drop
        reached = np.cumsum(p[stay]) / p[stay].sum()                                                     # 3
        stay = stay[:1 + np.searchsorted(reached, top_p)]
    kept = np.zeros_like(p)
    kept[stay] = p[stay] / p[stay].sum()
    return kept


def draw(logits: np.ndarray, rng: np.random.Generator, *, temperature: float = 1.0, top_k: int | None = None,
         top_p: float | None = None) -> int:
    """One symbol, given the scores of all, logits (V). With temperature 0 nothing is drawn from `rng`, else one number."""
    check_sampling("probabilities", temperature, top_k, top_p)
    check_logits("probabilities", logits)
    return drawn(logits, rng, temperature=temperature, top_k=top_k, top_p=top_p)


def drawn(logits: np.ndarray, rng: np.random.Generator, *, temperature: float, top_k: int | None, top_p: float | None) -> int:
    """`draw` for arguments that have been checked."""
    if temperature == 0:
        return int(logits.argmax())
    p = probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return int(rng.choice(p.size, p=p))


def check_logits(caller: str, logits: np.ndarray) -> None:
    kind(caller, np.ndarray, "give the scores of all symbols, (V), on the host", logits=logits)
    if logits.ndim != 1 or not logits.size or logits.dtype.kind not in "iuf":
        raise ValueError(f"{caller}: logits has shape {logits.shape} and dtype {logits.dtype}; expected real numbers (V), "
                         f"one score for each symbol; give one row at a time")
    check_finite(caller, logits)


def check_sampling(caller: str, temperature: float, top_k: int | None, top_p: float | None) -> None:
    number(caller, 0, temperature=temperature)
    if top_k is not None:
        whole(caller, top_k=top_k)
    if top_p is not None:
        number(caller, 0, 1, top_p=top_p)


def check_finite(caller: str, logits: np.ndarray) -> None:
    """Some scores may be -inf, symbols that never come; of the largest the others are measured."""
    if not math.isfinite(logits.max()):
        raise FloatingPointError(f"{caller}: the largest score of the model is {logits.max()}, so no symbol can be drawn; "
                                 f"its parameters have blown up: train it anew, with a lower learning rate")
