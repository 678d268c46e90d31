"""The Transformer of 2017: an encoder reads the source, a decoder writes the target and looks at both.

It has the interface of `seq2seq.py`, where recurrences do the same: the same batches train it, the same search decodes it.

Read next: `decoding.py`, which finds the best target.
"""

from __future__ import annotations

import math
from typing import Any

from .. import backend, nn, ops
from ..backend import Array
from ..nn.cache import Cache
from ..ops.positions import sinusoid
from ..options import number, whole
from ..tensor import Tensor
from .encoder import padding_mask
from .language import Model
from .transformer import Tied


class EncoderDecoder(Model):
    """Source ids (B, S) and target ids (B, T) -> logits (B, T, V) of the symbol behind each of the target.

    Args:
        V: one vocabulary for both languages; its embedding is shared by source, target and head, as in the paper.
        L: blocks of the encoder, and as many of the decoder.
        norm: "pre", with a norm behind each stack, or "post", the form of the paper.
        smoothing: the share of probability that the loss wants spread over all symbols (label smoothing).
        T: the longest target that `step` can write.

    Embeddings have size 1/√D and are multiplied by √D; sinusoids tell the places.

    Source  Vaswani et al. 2017, arXiv 1706.03762
    """

    def __init__(self, V: int, D: int, N: int, L: int, T: int = 256, *, F: int | None = None, norm: str = "pre",
                 feed: str = "relu", smoothing: float = 0.1, dropout: float = 0.1, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("EncoderDecoder", V=V, D=D, N=N, L=L, T=T)
        number("EncoderDecoder", 0, 1, smoothing=smoothing)
        options: dict[str, Any] = {"norm": norm, "feed": feed, "dropout": dropout, "rng": rng, "dtype": dtype}
        self.tokens = nn.Embedding(V, D, std=1 / math.sqrt(D), rng=rng, dtype=dtype)
        self.encoder = [nn.TransformerBlock(D, N, F, **options) for _ in range(L)]
        self.decoder = [nn.TransformerBlock(D, N, F, causal=True, cross=True, **options) for _ in range(L)]
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(D, dtype=dtype) if norm == "pre" else None for _ in range(2))
        self.head, self.dropout = Tied(self.tokens), nn.Dropout(dropout, rng=rng)
        self.D, self.T, self.smoothing = D, T, smoothing

    def embed(self, ids: Any, positions: Array | None = None) -> Tensor:
        x = self.tokens(ids) * math.sqrt(self.D)
        positions = backend.device(x.device).xp.arange(x.shape[1]) if positions is None else positions
        return self.dropout(x + sinusoid(positions, self.D).astype(x.dtype))

    def encode(self, source: Any, lengths: Any = None) -> tuple[Tensor, Array | None]:
        """What the decoder looks at: a vector for each symbol of the source (B, S, D), and which of them are padding."""
        x, mask = self.embed(source), None if lengths is None else padding_mask(lengths, source.shape[1])
        for block in self.encoder:
            x = block(x, mask)
        return (x if self.encoder_norm is None else self.encoder_norm(x)), mask

    def decode(self, ids: Any, memory: Tensor, memory_mask: Array | None = None, cache: Cache | None = None) -> Tensor:
        """The logits (B, T, V) behind each symbol of the target (B, T)."""
        T, positions = ids.shape[1], None
        if cache is not None:
            positions = cache.positions(T, memory.device)
        x = self.embed(ids, positions)
        for block in self.decoder:
            x = block(x, cache=cache, memory=memory, memory_mask=memory_mask)
        if cache is not None:
            cache.advance(T)
        return self.head(x if self.decoder_norm is None else self.decoder_norm(x))

    def forward(self, source: Any, lengths: Any, inputs: Any) -> Tensor:
        return self.decode(inputs, *self.encode(source, lengths))

    def loss(self, *batch: Any) -> Tensor:
        """Of a batch as `data.pair_batch` makes it: (source, lengths, inputs, targets)."""
        source, lengths, inputs, targets = batch
        smoothing = self.smoothing if self.training else 0.0
        return ops.cross_entropy(self(source, lengths, inputs), targets, label_smoothing=smoothing)
