"""The Transformer of 2017: an encoder reads the source, a decoder writes the target and looks at both.

It has the interface of `seq2seq.py`, where recurrences do the same: the same batches train it, the same search decodes it.

Read next: `decoding.py`, which finds the best target.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import backend, nn, ops
from ..backend import Array, to_device
from ..nn.cache import Cache
from ..ops.positions import sinusoid
from ..options import number, whole
from ..tensor import Tensor
from .encoder import padding_mask
from .language import Model
from .transformer import Tied


class Memory(NamedTuple):
    """What a decoder looks at: B sources of S symbols."""

    values: Tensor              # (B, S, D): what the encoder made of them
    mask: Array | None          # (B, 1, 1, S), True where a symbol is; None: everywhere


class EncoderDecoder(Model):
    """Source ids (B, S) and target ids (B, T) -> logits (B, T, V) of the symbol behind each of the target.

    Args:
        V: one vocabulary for both languages; its embedding is shared by source, target and head, as in the paper.
        L: blocks of the encoder, and as many of the decoder.
        norm: "pre", with a norm behind each stack, or "post", the form of the paper.
        smoothing: the share of probability that the loss wants spread over all symbols (label smoothing).
        T: the longest target that can be written, start symbol included.

    Embeddings have size 1/√D and are multiplied by √D; sinusoids tell the places.

    Source  Vaswani et al. 2017, arXiv 1706.03762
    """

    divisible = True

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

    def encode(self, source: Any, lengths: Any = None) -> tuple[Memory, None]:
        """Read sources (B, S): what the decoder can look at, and the state that it starts from, which is none."""
        x = self.embed(self.checked(source, "source"))
        mask = padding_mask("EncoderDecoder", lengths, x)
        for block in self.encoder:
            x = block(x, mask)
        return Memory(x if self.encoder_norm is None else self.encoder_norm(x), mask), None

    def decode(self, ids: Any, memory: Memory, state: Cache | None = None) -> tuple[Tensor, Cache | None]:
        """Read target symbols (R, T): logits (R, T, V) for those that come next, and the state with them in it.

        Without a state they are the whole target so far, and gradients go through. The R rows are R/B targets for each of the
        B sources in the memory, those of one source side by side.
        """
        T, positions = self.checked(ids, "inputs").shape[1], None
        if state is not None:
            positions = state.positions(T, memory.values.device)
        x = self.embed(ids, positions)
        for block in self.decoder:
            x = block(x, cache=state, memory=memory.values, memory_mask=memory.mask)
        if state is not None:
            state.advance(T)
        return self.head(x if self.decoder_norm is None else self.decoder_norm(x)), state

    def step(self, ids: np.ndarray, memory: Memory, state: Cache | None) -> tuple[Tensor, Cache]:
        """One symbol in each row, ids (R) on the host: logits (R, V). With a memory in it, this is a step of `decoding.py`:

            memory, state = model.encode(source, lengths)
            greedy(lambda ids, state: model.step(ids, memory, state), state, [start] * B, stop=stop, steps=50)
        """
        cache = Cache(self.T) if state is None else state
        logits, _ = self.decode(to_device(ids[:, None], memory.values.device), memory, cache)
        return logits[:, 0], cache

    def forward(self, source: Any, lengths: Any, inputs: Any) -> Tensor:
        return self.decode(inputs, *self.encode(source, lengths))[0]

    def loss(self, *batch: Any) -> Tensor:
        """Of a batch as `data.pair_batch` makes it: (source, lengths, inputs, targets)."""
        source, lengths, inputs, targets = batch
        smoothing = self.smoothing if self.training else 0.0
        return ops.cross_entropy(self(source, lengths, inputs), targets, label_smoothing=smoothing)
