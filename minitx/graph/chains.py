"""Chains: how many matrix products stand in a row behind a number.

Every element of a traced array carries a chain, a length. An operation combines the chains of all that goes in, and a matrix
product adds one. There are two ways to combine, for two questions:

    Longest     by maximum: the span. With any number of processors, how many products must still wait for one another?
    Shortest    by minimum: the path. How few products can a signal pass on its way from one place to another?

Read next: `arrays.py`, where they are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np


class Chains:
    """What the array library asks. A chain is a row of `width` lengths; `none` is that of a constant."""

    combine: np.ufunc
    none: float
    width = 1
    step = 0            # what an operation adds that is no matrix product
    work = 0            # the arithmetic of all matrix products so far, in FLOP: 2 for each multiplication and addition

    def carried(self, value: np.ndarray, chain: np.ndarray) -> np.ndarray:
        """The chain of a result, given that of its operands."""
        return chain

    def chosen(self, chain: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The chains that count in a maximum, minimum or clip, given which elements were chosen; at a tie, several."""
        return chain

    def product(self, x: Any, y: Any) -> np.ndarray:
        """The chain of the matrix product of two traced arrays (..., M, K) and (..., K, N): (..., M, N, width)."""
        raise NotImplementedError


class Longest(Chains):
    """The longest chain that has been made. It is program order: a product with zeros is waited for like any other.

    `lap` starts anew: what was made before counts as constant from then on. So `none` rises to the longest chain there is, and
    chains go on from there.
    """

    combine, none = np.maximum, 0.0

    def __init__(self) -> None:
        self.longest = 0.0

    def product(self, x: Any, y: Any) -> np.ndarray:
        rows = x.chain.max(-2, initial=self.none)                                            # (..., M, 1)
        columns = y.chain.max(-3, initial=self.none)                                         # (..., N, 1)
        chain = 1 + np.maximum(rows[..., :, None, :], columns[..., None, :, :])
        self.longest = max(self.longest, chain.max(initial=self.none))
        return chain

    def lap(self) -> tuple[int, int]:
        """Work and span since the last lap."""
        work, span = self.work, int(self.longest - self.none)
        self.work, self.none = 0, self.longest
        return work, span


class Shortest(Chains):
    """The shortest chain from each of `width` sources; inf where there is none.

    A floating point number that is exactly 0 carries nothing on, and of a maximum only the winner does. So a masked score is no
    link, nor is a product with a weight of 0, and what causal attention may not see is out of reach. (A 0 by accident is no
    link either: ask at random numbers.) With `operations`, every operation adds one, not only matrix products.
    """

    combine, none = np.minimum, np.inf

    def __init__(self, width: int, operations: bool = False) -> None:
        self.width, self.step = width, int(operations)

    def carried(self, value: np.ndarray, chain: np.ndarray) -> np.ndarray:
        return np.where((value == 0)[..., None], self.none, chain) if value.dtype.kind == "f" else chain

    def chosen(self, chain: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return np.where(chosen[..., None], chain, self.none)

    def product(self, x: Any, y: Any) -> np.ndarray:
        shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + (x.shape[-2], y.shape[-1], self.width)
        chain = np.full(shape, self.none)
        for k in range(x.shape[-1]):                                                         # x_mk y_kn
            link = np.minimum(x.chain[..., :, k, None, :], y.chain[..., None, k, :, :])
            both = (x.value[..., :, k, None] != 0) & (y.value[..., None, k, :] != 0)         # (..., M, N)
            chain = np.minimum(chain, np.where(both[..., None], link, self.none))
        return 1 + chain


_unread = Longest()         # outside a measurement traced arrays have chains too, which nobody asks for
current: ContextVar[Chains] = ContextVar("chains", default=_unread)


@contextlib.contextmanager
def follow(chains: Any) -> Iterator[Any]:
    """Let traced arrays carry these chains inside the block."""
    before = current.set(chains)
    try:
        yield chains
    finally:
        current.reset(before)
