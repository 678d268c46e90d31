"""The Transformer that reads: every position sees all others, and becomes a vector that knows its context.

Read next: `encoder_decoder.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import nn, ops
from ..backend import Array
from ..data.padding import mask_of
from ..nn.module import as_lengths
from ..options import kind, whole
from ..tensor import Tensor
from .language import Model, check_ids
from .transformer import Embedded, Tied, turns


class Encoder(nn.Module):
    """`L` blocks of attention in both directions: ids (B, T) and lengths (B) -> (B, T, D).

    Padding, behind the `lengths` of the sequences, is seen by nobody; what comes out in its place means nothing. Options as in
    `TransformerLM`; `embedding_norm` puts a norm behind the embedding, as BERT has it, and `types` adds one of so many vectors
    to each symbol (BERT's segments). With norm="post" there is no norm behind the last block.
    """

    def __init__(self, V: int, D: int, N: int, L: int, T: int | None, *, F: int | None = None, positions: str = "learned",
                 rotary: Mapping[str, Any] | None = None, norm: str = "pre", normaliser: str = "layer", eps: float = 1e-5,
                 feed: str = "gelu", embedding_norm: bool = False, types: int = 0, dropout: float = 0.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("Encoder", V=V, D=D, N=N, L=L)
        whole("Encoder", 0, types=types)
        kind("Encoder", bool, "give True or False", embedding_norm=embedding_norm)
        if positions == "alibi":
            raise ValueError("Encoder: ALiBi looks back only; choose learned, sinusoid, rotary or none")
        turned = turns("Encoder", positions, T, rotary)
        self.embedded = Embedded(V, D, T, positions, rng=rng, dtype=dtype)
        self.types = nn.Embedding(types, D, std=0.1, rng=rng, dtype=dtype) if types else None
        self.embedding_norm = nn.LayerNorm(D, eps=eps, dtype=dtype) if embedding_norm else None
        self.blocks = [nn.TransformerBlock(D, N, F, norm=norm, normaliser=normaliser, eps=eps, feed=feed, rotary=turned,
                                           dropout=dropout, rng=rng, dtype=dtype) for _ in range(L)]
        self.final_norm = nn.transformer.NORMS[normaliser](D, eps=eps, dtype=dtype) if norm == "pre" else None
        self.dropout, self.context = nn.Dropout(dropout, rng=rng), T

    def forward(self, ids: Any, lengths: Any = None, types: Any = None) -> Tensor:
        T = check_ids("Encoder", ids).shape[1]
        if self.context is not None and T > self.context:
            raise ValueError(f"Encoder: got {T} symbols, but it has positions for {self.context}; cut the input or build it "
                             f"with T = {T}")
        x = self.embedded(ids)
        if types is not None and (self.types is None or check_ids("Encoder", types, "types").shape != ids.shape):
            raise ValueError(f"Encoder: types of shape {types.shape} were given for ids {ids.shape}; give one for each symbol, "
                             f"to an encoder that was built with types=2, say")
        if self.types is not None:
            x = x + self.types(ids * 0 if types is None else types)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x, mask = self.dropout(x), padding_mask("Encoder", lengths, x)
        for block in self.blocks:
            x = block(x, mask)
        return x if self.final_norm is None else self.final_norm(x)


def padding_mask(caller: str, lengths: Any, x: Tensor) -> Array | None:
    """Who may be looked at in x (B, T, D): (B, 1, 1, T), True for a symbol, False for padding; None: everybody."""
    lengths = as_lengths(caller, lengths, x.device)
    if lengths is None:
        return None
    if len(lengths) != len(x):
        raise ValueError(f"{caller}: there are {len(lengths)} lengths for {len(x)} sequences; give one for each")
    return mask_of(lengths, x.shape[1])[:, None, None]


class MaskedLM(Model):
    """An encoder that learns by guessing what was hidden (BERT, Devlin et al. 2018, arXiv 1810.04805).

    The batch is (ids, lengths, targets), as `data.masked` makes it: targets (B, T) are -100 where nothing was hidden.
    """

    divisible = True

    def __init__(self, V: int, D: int, N: int, L: int, T: int | None, **options: Any) -> None:
        self.encoder = Encoder(V, D, N, L, T, **options)
        self.head = Tied(self.encoder.embedded.tokens)

    def forward(self, ids: Any, lengths: Any = None) -> Tensor:
        return self.head(self.encoder(ids, lengths))

    def loss(self, *batch: Any) -> Tensor:
        ids, lengths, targets = batch
        return ops.cross_entropy(self(ids, lengths), targets)
