"""Schedules: the learning rate of every step.

Read next: `training.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .options import number, whole


def warmup_cosine(peak: float, *, total: int, warmup: int = 0, floor: float = 0.0) -> Callable[[int], float]:
    """The learning rate of step 0, 1, …: up in a straight line to `peak` over `warmup` steps, then down to `floor` along half a
    cosine until step `total`, and `floor` ever after.

    Source  Loshchilov & Hutter 2016, arXiv 1608.03983

    >>> rate = warmup_cosine(1.0, total=6, warmup=2)
    >>> [round(rate(step), 3) for step in range(8)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    whole("warmup_cosine", 0, total=total)
    number("warmup_cosine", 0, peak=peak)
    number("warmup_cosine", 0, peak, floor=floor)
    if not isinstance(warmup, int) or not 0 <= warmup <= total:
        raise ValueError(f"warmup_cosine: warmup must be from 0 to total = {total} steps, got {warmup}")

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        if step >= total:
            return floor
        return floor + (peak - floor) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2

    return rate


def inverse_sqrt(peak: float, *, warmup: int) -> Callable[[int], float]:
    """The learning rate of step 0, 1, …: up in a straight line to `peak` over `warmup` steps, then down as 1/√step for ever.

    The schedule of the first Transformer, whose peak was 1/√(D warmup). It needs no total, so a training may go on.

    Source  Vaswani et al. 2017, arXiv 1706.03762, equation 3

    >>> rate = inverse_sqrt(1.0, warmup=4)
    >>> [round(rate(step), 3) for step in (0, 1, 2, 3, 4, 15, 63)]
    [0.25, 0.5, 0.75, 1.0, 0.894, 0.5, 0.25]
    """
    whole("inverse_sqrt", warmup=warmup)
    number("inverse_sqrt", 0, peak=peak)

    def rate(step: int) -> float:
        return peak * min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))

    return rate
