"""The Transformer that writes: blocks of causal attention, from symbols so far to the next one.

One class has the members of the family: learned, sinusoid, rotary positions or ALiBi; layer or RMS norm, before or after; GELU,
ReLU or SwiGLU; heads that share keys; an output tied to the input. GPT-2 and Llama are two choices of its options.

Read next: `encoder.py`, which reads in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import backend, init, nn, ops
from ..backend import Array, to_device
from ..data.padding import pad
from ..nn.cache import Cache
from ..ops.positions import distance_bias, sinusoid
from ..options import kind, whole
from ..tensor import Tensor
from . import one_symbol
from .language import HEAD_GAIN, LanguageModel

POSITIONS = ("learned", "sinusoid", "rotary", "alibi", "none")


class Embedded(nn.Module):
    """Symbols as vectors that know their place: ids (B, T) -> (B, T, D).

    "learned" and "sinusoid" positions are added here; "rotary" and "alibi" enter in attention, and "none" nowhere. Symbols
    start with size 0.1. Beside sinusoids, of size 1, they start with 1/√D and are multiplied by √D, as in the paper of 2017:
    so they are as large as those, and the scores of a tied head are not.
    """

    def __init__(self, V: int, D: int, T: Any, positions: str, *, rng: Any = None, dtype: str = "float32") -> None:
        self.tokens = nn.Embedding(V, D, std=1 / math.sqrt(D) if positions == "sinusoid" else 0.1, rng=rng, dtype=dtype)
        self.kind, self.D = positions, D
        if positions == "learned":
            self.positions = init.normal(T, D, std=0.1, rng=rng, dtype=dtype)                # (T, D)

    def forward(self, ids: Any, positions: Array | None = None) -> Tensor:
        """`positions` (T) or (B, T) are 0 … T - 1 unless given."""
        x = self.tokens(ids)
        if self.kind == "learned":
            if positions is None:
                T = x.shape[1]
                return x + (self.positions if T == self.positions.shape[0] else self.positions[:T])
            return x + ops.embedding(positions, self.positions)
        if self.kind == "sinusoid":
            positions = backend.device(x.device).xp.arange(x.shape[1]) if positions is None else positions
            return x * math.sqrt(self.D) + sinusoid(positions, self.D).astype(x.dtype)
        return x


def turns(caller: str, positions: str, T: int | None, rotary: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The rotary options of the blocks, or None where nothing turns; what does not go together is refused."""
    if positions not in POSITIONS:
        raise ValueError(f"{caller}: positions must be one of {', '.join(POSITIONS)}, got {positions!r}")
    if T is not None:
        whole(caller, T=T)
    elif positions == "learned":
        raise ValueError(f"{caller}: T is None, but learned positions need a longest length; give T, or other positions")
    if positions == "rotary":
        return {} if rotary is None else rotary
    if rotary is not None:
        raise ValueError(f"{caller}: rotary options were given, but positions are {positions!r}; give positions='rotary'")
    return None


class TransformerLM(LanguageModel):
    """Embedding, `L` causal blocks of width `D` with `N` heads, final norm, head.

    Args:
        T: the longest input, `context`; with positions that are not learned None means any.
        positions: "learned", "sinusoid", "rotary", "alibi" or "none"; `rotary` are options of `ops.rotary`.
        norm, normaliser, eps, feed, F, M, use_bias, dropout: those of `nn.TransformerBlock`.
        tied: the head is the embedding again, transposed.
    """

    def __init__(self, V: int, D: int, N: int, L: int, T: int | None, *, F: int | None = None, positions: str = "learned",
                 rotary: Mapping[str, Any] | None = None, norm: str = "pre", normaliser: str = "layer", eps: float = 1e-5,
                 feed: str = "gelu", M: int | None = None, use_bias: bool = True, tied: bool = False, dropout: float = 0.0,
                 rng: Any = None, dtype: str = "float32") -> None:
        whole("TransformerLM", V=V, D=D, N=N, L=L)
        kind("TransformerLM", bool, "give True or False", tied=tied)
        turned = turns("TransformerLM", positions, T, rotary)
        self.embedded = Embedded(V, D, T, positions, rng=rng, dtype=dtype)
        self.blocks = [nn.TransformerBlock(D, N, F, norm=norm, normaliser=normaliser, eps=eps, feed=feed, causal=True, M=M,
                                           rotary=turned, use_bias=use_bias, dropout=dropout, rng=rng, dtype=dtype)
                       for _ in range(L)]
        self.final_norm = nn.transformer.NORMS[normaliser](D, eps=eps, dtype=dtype)
        self.head = (Tied(self.embedded.tokens) if tied else
                     nn.Linear(D, V, bias=use_bias, gain=HEAD_GAIN, rng=rng, dtype=dtype))
        self.dropout = nn.Dropout(dropout, rng=rng)
        self.N, self.alibi, self.context = N, positions == "alibi", T

    def embed(self, ids: Any, positions: Array | None = None) -> Tensor:
        T = ids.shape[1]
        if self.context is not None and T > self.context:
            raise ValueError(f"TransformerLM: got {T} symbols, but it has positions for {self.context}; "
                             f"cut the input or build the model with T = {T}")
        return self.dropout(self.embedded(ids, positions))

    def body(self, x: Tensor, positions: Array | None = None, cache: Cache | None = None) -> Tensor:
        T, seen = x.shape[1], cache.length if cache else 0
        bias = None
        if self.alibi:
            places = backend.device(x.device).xp.arange(seen + T)
            bias = distance_bias(self.N, places[seen:], places).astype(x.dtype)                        # (N, T, Tk)
        for block in self.blocks:
            x = block(x, bias=bias, positions=positions, cache=cache)
        return self.final_norm(x)

    def step(self, ids: Any, state: Cache | None = None) -> tuple[Tensor, Cache]:
        """Read on: the logits (B, T, V) of ids (B, T) that come after what is in the cache, and the cache with them in it.

        Without a cache, from the beginning, with a new one of `context` positions (one of your own can have another length, or
        rows that begin with padding). A text read in pieces gives the logits that it gives in one. The cache itself is filled:
        to go on from one place twice, `select` a copy.
        """
        if state is None:
            if self.context is None:
                raise ValueError("TransformerLM: a model for texts of any length needs to be told how long this one may get; "
                                 "give step(ids, Cache(T))")
            state = Cache(self.context)
        return self.head(self.extend(self.checked(ids), state)), state

    def read(self, texts: Sequence[np.ndarray], room: int) -> Cache:
        """See `LanguageModel`. Shorter texts have padding in front, which nobody looks at."""
        ids, lengths = pad([text[::-1] for text in texts])                   # backwards, "behind" is in front
        blank = ids.shape[1] - lengths
        cache = Cache(room, to_device(blank, self.device) if blank.any() else None)
        if ids.shape[1]:
            self.extend(to_device(ids[:, ::-1], self.device), cache)
        return cache

    def writer(self) -> one_symbol.Write | None:
        quick = type(self) is TransformerLM and type(self.embedded) is Embedded and one_symbol.fits(self)
        return one_symbol.writer(self) if quick else None

    def select(self, state: Cache, rows: np.ndarray) -> Cache:
        return state.select(rows)

    def extend(self, ids: Any, cache: Cache) -> Tensor:
        """What the body makes of ids (B, T) that come after those in the cache, with them in it."""
        T = ids.shape[1]
        positions = cache.positions(T, self.device)
        x = self.body(self.embed(ids, positions), positions, cache)
        cache.advance(T)
        return x


class Tied(nn.Module):
    """The scores of all symbols by their embeddings: x (..., D) -> x tableᵀ (..., V). It has no parameters of its own.

    Source  Press & Wolf 2016, arXiv 1608.05859
    """

    def __init__(self, tokens: nn.Embedding) -> None:
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.tokens.table.T, None)
