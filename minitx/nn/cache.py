"""What attention has seen so far: keys and values of earlier positions, kept so that a new position is all that is computed.

Without it, generating the n-th symbol computes n positions anew; with it, one. The price is memory that grows with the text.

Read next: `transformer.py`, whose attention fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import backend
from ..backend import Array, array_module, device_of, is_array, to_device
from ..options import whole
from ..tensor import Tensor


class Cache:
    """The keys and values of every attention of a model, for `B` rows, in buffers of at most `T` positions.

    Buffers are made once, with the first keys, and then filled: no step copies what is there. Rows of unequal length have their
    padding in front: `blank` (B) says how many places that is, so that all rows end at the same place, and a row's positions
    count from its own first symbol.

    What a decoder looks at in a source does not grow: it is made `once`.
    """

    def __init__(self, T: int, blank: Array | None = None) -> None:
        whole("Cache", T=T)
        if blank is not None and not (is_array(blank) and blank.ndim == 1 and blank.dtype.kind in "iu"):
            raise TypeError(f"Cache: blank is a {type(blank).__name__}; expected an array of whole numbers (B), or None")
        self.T, self.blank, self.length = T, blank, 0
        self.buffers: dict[int, list[Array]] = {}       # of each attention: keys and values, (B, M, T, K)
        self.sources: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}   # of each: the memory, and its keys and values

    def extend(self, attention: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values (B, M, T_new, K) of new positions; all there are by now, (B, M, length + T_new, K)."""
        refuse_gradients(k)
        keys, values = self.append(attention, k.array, v.array)
        return Tensor(keys), Tensor(values)

    def append(self, attention: Any, k: Array, v: Array) -> tuple[Array, Array]:
        """The same for arrays."""
        end = self.length + k.shape[2]
        if end > self.T:
            raise ValueError(f"Cache: it has room for {self.T} positions, and these would be {end}; make a larger one")
        if id(attention) not in self.buffers:
            self.buffers[id(attention)] = [array_module(x).empty((*x.shape[:2], self.T, x.shape[3]), x.dtype) for x in (k, v)]
        keys, values = self.buffers[id(attention)]
        keys[:, :, self.length:end], values[:, :, self.length:end] = k, v
        return keys[:, :, :end], values[:, :, :end]

    def once(self, attention: Any, memory: Any, make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The keys and values of a memory: those of the last step if it looked at this one too, else what `make()` returns."""
        seen, made = self.sources.get(id(attention), (None, ()))
        if seen is not memory:
            made = make()
            refuse_gradients(made[0])
            self.sources[id(attention)] = memory, made
        return made

    def positions(self, T: int, device: str) -> Array:
        """The positions of T new symbols: (T), or (B, T) where rows begin at different places; padding has position 0."""
        xp = backend.device(device).xp
        places = xp.arange(self.length, self.length + T)
        return places if self.blank is None else xp.maximum(places - self.blank[:, None], 0)

    def within(self, mask: Array | None, T: int) -> Array | None:
        """Where T new symbols may look, by a mask and as far as padding goes; it broadcasts to (B, N, T, length + T)."""
        if self.blank is None:
            return mask
        real = (array_module(self.blank).arange(self.length + T) >= self.blank[:, None])[:, None, None]
        return real if mask is None else real & mask

    def advance(self, T: int) -> None:
        """T more positions are in all buffers."""
        self.length += T

    def select(self, rows: np.ndarray) -> Cache:
        """A cache of these rows (indices on the host), for a beam that goes on with some of its beginnings.

        It has buffers of its own, into which the filled places are copied. Memories are shared: a row may take the place of
        another that looks at the same one.
        """
        def picked(x: Array) -> Array:
            return x[to_device(rows, device_of(x).name)]

        def moved(buffer: Array) -> Array:
            other = array_module(buffer).empty((len(rows), *buffer.shape[1:]), buffer.dtype)
            other[:, :, :self.length] = picked(buffer[:, :, :self.length])
            return other

        other = Cache(self.T, None if self.blank is None else picked(self.blank))
        other.length, other.sources = self.length, self.sources
        other.buffers = {attention: [moved(buffer) for buffer in pair] for attention, pair in self.buffers.items()}
        return other

    @property
    def nbytes(self) -> int:
        """How much memory the buffers take, filled or not, and the keys and values of memories."""
        made = [tensor.array for _, pair in self.sources.values() for tensor in pair]
        return sum(array.nbytes for pair in [*self.buffers.values(), made] for array in pair)


def refuse_gradients(k: Tensor) -> None:
    if k.requires_grad:
        raise RuntimeError("Cache: no gradient goes through what is kept from step to step; generate under no_grad()")
