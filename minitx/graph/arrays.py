"""Traced arrays: NumPy's, with a chain at every element.

A traced array is a NumPy array of records (value, chain). So what moves numbers about moves both at once, and a view of the
array is a view of its values and of its chains.

Numbers that carry a chain do not leave: `item()`, `float()` or a move to another device refuse, since the chain would be lost.
Only `bool` and, of integers, `int` let a program look, for its checks.

Read next: `library.py`, the functions of these arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .chains import current

HERE = "minitx/graph/arrays.py"


class Traced:
    """An array of records (value, chain); both are views of it."""

    __slots__ = ("record",)
    __array_ufunc__ = None      # NumPy's arrays and scalars leave an operator to us
    __hash__ = None             # type: ignore[assignment]
    base = None                 # versions are not kept here: what is measured is not written to

    def __init__(self, record: np.ndarray) -> None:
        self.record = record

    value = property(lambda self: self.record["value"])
    chain = property(lambda self: self.record["chain"])     # the shape of the value, and the width of a chain
    dtype = property(lambda self: self.record.dtype["value"])
    shape = property(lambda self: self.record.shape)
    ndim = property(lambda self: self.record.ndim)
    size = property(lambda self: self.record.size)
    nbytes = property(lambda self: self.value.nbytes)
    T = property(lambda self: Traced(self.record.T))
    mT = property(lambda self: Traced(self.record.swapaxes(-1, -2)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("trace: NumPy would lose the chains of this array; call the function from array_module(x)")

    def astype(self, dtype: Any, copy: bool = True) -> Traced:
        return self if self.dtype == dtype and not copy else made(self.value.astype(dtype), self.chain)

    # A part of it

    def __getitem__(self, index: Any) -> Traced:
        places, chain = places_of(self, index)
        part = Traced(self.record[places])
        return part if chain is None else made(part.value, current.get().combine(part.chain, chain))

    def __setitem__(self, index: Any, value: Any) -> None:
        places, chain = places_of(self, index)
        if chain is not None:
            raise TypeError(f"trace: no rule for writing at places that depend on what is measured; write one in {HERE}")
        self.record[places] = (value if isinstance(value, Traced) else asarray(value, self.dtype)).record

    def take(self, ids: Traced, axis: int = 0) -> Traced:
        return self[(slice(None),) * (axis % self.ndim) + (ids,)]

    def __len__(self) -> int:
        return len(self.record)

    def __iter__(self) -> Iterator[Traced]:
        return (self[i] for i in range(len(self)))

    # What leaves

    def carries(self) -> bool:
        """Whether any element has a chain."""
        chains = current.get()
        return bool((chains.combine(self.chain, chains.none) != chains.none).any())

    def leave(self, how: str) -> np.ndarray:
        if self.carries():
            raise TypeError(f"trace: {how} takes numbers out that depend on what is measured, and their chains would be lost; "
                            f"stay with arrays, or take numbers out after measuring")
        return self.value.copy()

    def item(self) -> Any: return self.leave("item").item()
    def tolist(self) -> Any: return self.leave("tolist").tolist()
    def __float__(self) -> float: return float(self.leave("float"))
    def __int__(self) -> int: return int(self.value if self.dtype.kind in "iub" else self.leave("int"))
    def __bool__(self) -> bool: return bool(self.value)
    def __repr__(self) -> str: return f"Traced({self.value}, chain={self.chain[..., 0]})"


def made(value: Any, chain: Any) -> Traced:
    """A new traced array."""
    chains, value = current.get(), np.asarray(value)
    record = np.empty(value.shape, [("value", value.dtype), ("chain", float, (chains.width,))])
    record["value"], record["chain"] = value, chain
    record["chain"] = chains.carried(value, record["chain"])
    return Traced(record)


def asarray(x: Any, dtype: Any = None) -> Traced:
    """The way in. What comes from outside has no chain."""
    if isinstance(x, Traced):
        return x.astype(dtype or x.dtype, copy=False)
    return made(np.array(x, dtype), current.get().none)


def value_of(x: Any) -> Any:
    """An operand for NumPy: the values of a traced array, or a Python number as it is."""
    if isinstance(x, np.ndarray):
        raise TypeError("trace: a NumPy array among traced ones; move it to the device first")
    return x.value if isinstance(x, Traced) else x


def chain_of(x: Any) -> Any:
    return x.chain if isinstance(x, Traced) else current.get().none


def places_of(x: Traced, index: Any) -> tuple[tuple, np.ndarray | None]:
    """An index for NumPy, which makes arrays also of single elements, and the chain of what it looks up, if it has one.

    That a row was looked up by an id that depends on something is a link too: with `table[ids]` a path begins at the ids.
    """
    parts = index if isinstance(index, tuple) else (index,)
    places = tuple(map(value_of, parts))
    if not any(part is ... for part in parts):
        places += (...,)
    chained = [i for i, part in enumerate(parts) if isinstance(part, Traced) and part.carries()]
    if not chained:
        return places, None
    ids, axis = parts[chained[0]], chained[0]
    if ids.dtype.kind == "b" or not all(isinstance(part, slice) for part in parts if part is not ids):
        raise TypeError(f"trace: no rule for this index, whose numbers depend on what is measured; write one in {HERE}")
    return places, ids.chain.reshape(ids.shape + (1,) * (x.ndim - 1 - axis) + ids.chain.shape[-1:])
