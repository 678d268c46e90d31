"""Waits: when the host asks a GPU for a number, it has to wait for all that it has ordered before.

A check of ids or lengths is such a question, and may not be left out: CuPy wraps a bad id around in silence. So checks are
made with `holds` and `within`. They wait at once, or, inside of `in_one_wait`, all together and with the numbers that are
wanted anyway: a step of training waits once. NumPy has every number at once, and nothing of this concerns it.

Read next: `training.py`, whose step waits once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import numpy as np

from .backend import Array, array_module, device_of, to_host

_unread: ContextVar[list[Array] | None] = ContextVar("unread", default=None)    # conditions that nobody has looked at yet


def holds(condition: Array) -> bool:
    """Whether a single boolean is true. A GPU is waited for, except inside `in_one_wait`, which will ask it later."""
    later = _unread.get()
    if later is None or device_of(condition).name == "cpu":
        return bool(condition)
    later.append(condition)
    return True


def within(x: Array, low: int, high: int) -> bool:
    """Whether all integers in x are from `low` to `high`, as `holds` tells."""
    if not x.size or low > high:
        return not x.size
    if type(x) is np.ndarray:                           # the place of an end is found faster than the end
        return low <= x.item(x.argmin()) and x.item(x.argmax()) <= high
    ends = np.iinfo(x.dtype)                            # a bound that the dtype cannot hold need not be compared with
    return holds((x.min() >= max(low, int(ends.min))) & (x.max() <= min(high, int(ends.max))))


def in_one_wait(compute: Callable[[], Sequence[Array]]) -> list[float]:
    """The numbers that `compute` returns (arrays of one element), on the host: a GPU is waited for once, at the end.

    Its checks (`holds`) would each wait, so they are taken as passed and come home with the numbers. If one has failed,
    `compute` runs again and waits at each: then the error is raised where it belongs. What must not happen on bad input, such
    as moving a parameter, belongs after this call.
    """
    conditions: list[Array] = []
    token = _unread.set(conditions)
    try:
        found = compute()
    finally:
        _unread.reset(token)
    xp = array_module(found[0])
    home = to_host(xp.stack([x.reshape(()).astype("float64") for x in (*found, *conditions)])).tolist()
    if not all(home[len(found):]):
        compute()
        raise RuntimeError("in_one_wait: a check failed, and passed when it was done again; compute must do the same each time")
    return home[:len(found)]
