"""Sequence to sequence: an encoder reads a whole source, then a decoder writes a target of another length, symbol by symbol.

    Decoder                 all it knows of the source is the state that it starts from, of fixed size
    AdditiveDecoder         Bahdanau: the state *before* a step looks back at the source, and what it finds enters the step
    MultiplicativeDecoder   Luong: the recurrence runs first; the state *after* a step looks back

The additive one needs the attention of a step to take the step, so it goes from step to step on the tape. The multiplicative
one does not, so its recurrence stays one op over all steps, and its attention another.

Read next: `decoding.py`, which finds the best target.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import init, nn, ops
from .backend import Array, to_device
from .data.padding import mask_of
from .models import CELLS, HEAD_GAIN, Model
from .models.transformer import Tied
from .nn.module import as_lengths
from .options import number, whole
from .tensor import Tensor

State = tuple[Tensor, ...]      # h (R, H), and c for an LSTM; a tuple of rows, as `decoding.py` wants it


class Memory(NamedTuple):
    """What a decoder looks back at: B sources of S symbols."""

    values: Tensor              # (B, S, H): what was read at each place
    keys: Tensor                # (B, S, H): by what it is found
    mask: Array | None          # (B, 1, S), True where a symbol is; None: everywhere


class SharedTokens(nn.Embedding):
    """One table for both languages and the head: rows of size 1/√D, as scores want them, and times √D where they are read.

    Source  Vaswani et al. 2017, arXiv 1706.03762, section 3.4
    """

    def __init__(self, V: int, D: int, *, rng: Any, dtype: str) -> None:
        super().__init__(V, D, std=1 / math.sqrt(D), rng=rng, dtype=dtype)

    def forward(self, ids: Any) -> Tensor:
        return super().forward(ids) * math.sqrt(self.table.shape[1])


class Encoder(nn.Module):
    """Read sources in both directions: ids (B, S) -> hs (B, S, H), and the state in which the top layer ended.

    Half of each h has read what stands before its place, half what comes after it. The state is the ends of the two, side by
    side: a decoder starts from it.
    """

    def __init__(self, V: int, D: int, H: int, L: int, *, tokens: nn.Embedding | None, cell: str, dropout: float,
                 **options: Any) -> None:
        self.tokens, self.dropout = tokens or nn.Embedding(V, D, **options), nn.Dropout(dropout, rng=options["rng"])
        self.recurrence = CELLS[cell](D, H // 2, L, bidirectional=True, dropout=dropout, **options)

    def forward(self, ids: Any, lengths: Any) -> tuple[Tensor, State]:
        hs, ends = self.recurrence(self.dropout(self.tokens(ids)), None, lengths)            # (B, S, H); (2L, B, H/2)
        ends = ends if isinstance(ends, tuple) else (ends,)
        return hs, tuple(ops.concatenate(end[-2], end[-1], axis=-1) for end in ends)         # (B, H)


class Decoder(nn.Module):
    """Write without looking back: ids (R, T), memory, state -> logits (R, T, V), and the state behind the last step.

    With T symbols at once, or one by one, each time from the state before: the numbers are the same. The R rows are R/B targets
    for each of the B sources in the memory, those of one source side by side.

    Source  Cho et al. 2014, arXiv 1406.1078; Sutskever, Vinyals & Le 2014, arXiv 1409.3215
    """

    def __init__(self, V: int, D: int, H: int, *, step: int | None = None, combine: int | None = None,
                 tokens: nn.Embedding | None, cell: str, dropout: float, **options: Any) -> None:
        self.tokens, self.dropout = tokens or nn.Embedding(V, D, **options), nn.Dropout(dropout, rng=options["rng"])
        self.recurrence = CELLS[cell](step or D, H, **options)                               # what enters a step
        self.combine = nn.Linear(combine or H, D if tokens else H, **options)                # what is known after it
        self.head = Tied(tokens) if tokens else nn.Linear(H, V, gain=HEAD_GAIN, **options)

    def forward(self, ids: Any, memory: Memory, state: State) -> tuple[Tensor, State]:
        hs, state = self.run(self.embed(ids), state)
        return self.logits(hs), state

    def embed(self, ids: Any) -> Tensor:
        return self.dropout(self.tokens(ids))                                                # (R, T, D)

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The recurrence over (R, T, ·), from a state and to a state of rows."""
        hs, ends = self.recurrence(x, tuple(s[None] for s in state))                         # (R, T, H); (1, R, H)
        return hs, tuple(end[0] for end in (ends if isinstance(ends, tuple) else (ends,)))

    def logits(self, *parts: Tensor) -> Tensor:
        """What a step knows, side by side, through one tanh layer to a score for every symbol."""
        return self.head(self.dropout(ops.tanh(self.combine(ops.concatenate(*parts, axis=-1)))))

    def memory(self, hs: Tensor, mask: Array | None) -> Memory:
        return Memory(hs, hs, mask)


class MultiplicativeDecoder(Decoder):
    """Look back with the new state, by products: score = h_t W h_s (Luong's "general"), logits from tanh([c_t; h_t] W_c).

    Source  Luong, Pham & Manning 2015, arXiv 1508.04025
    """

    def __init__(self, V: int, D: int, H: int, **options: Any) -> None:
        super().__init__(V, D, H, combine=2 * H, **options)
        self.keys = nn.Linear(H, H, bias=False, rng=options["rng"], dtype=options["dtype"])

    def forward(self, ids: Any, memory: Memory, state: State) -> tuple[Tensor, State]:
        hs, state = self.run(self.embed(ids), state)
        return self.logits(self.look(hs, memory), hs), state

    def look(self, hs: Tensor, memory: Memory) -> Tensor:
        """What the states (R, T, H) find, (R, T, H): those of one source are so many queries to it."""
        B, S, H = memory.values.shape
        q, k, v = hs.reshape(B, 1, -1, H), memory.keys.reshape(B, 1, S, H), memory.values.reshape(B, 1, S, H)
        mask = None if memory.mask is None else memory.mask[:, None]                         # (B, 1, 1, S)
        return ops.attention(q, k, v, mask, scale=1.0).reshape(hs.shape)

    def memory(self, hs: Tensor, mask: Array | None) -> Memory:
        return Memory(hs, self.keys(hs), mask)


class AdditiveDecoder(Decoder):
    """Look back with the old state, by a small network: score = w · tanh(h_{t-1} W_q + h_s W_k); what is found enters step t.

    The logits are from tanh([x_t; h_t; c_t] W_c), where the paper has a maxout layer. There the first state is a layer of the
    backward reader's end; here it is both readers' ends.

    Source  Bahdanau, Cho & Bengio 2014, arXiv 1409.0473
    """

    def __init__(self, V: int, D: int, H: int, **options: Any) -> None:
        super().__init__(V, D, H, step=D + H, combine=D + 2 * H, **options)
        draw = {"rng": options["rng"], "dtype": options["dtype"]}
        self.queries, self.keys, self.w = nn.Linear(H, H, bias=False, **draw), nn.Linear(H, H, **draw), init.fan_in(H, **draw)

    def forward(self, ids: Any, memory: Memory, state: State) -> tuple[Tensor, State]:
        x = self.embed(ids)                                                                  # (R, T, D)
        hs, contexts = [], []
        for x_t in ops.split(x, sections=x.shape[1], axis=1):                                # (R, 1, D)
            c_t = self.look(state[0], memory)
            h_t, state = self.run(ops.concatenate(x_t, c_t, axis=-1), state)
            hs.append(h_t)
            contexts.append(c_t)
        return self.logits(x, ops.concatenate(*hs, axis=1), ops.concatenate(*contexts, axis=1)), state

    def look(self, h: Tensor, memory: Memory) -> Tensor:
        """What the states (R, H) find, (R, 1, H): those of one source are so many queries to it."""
        B, _, H = memory.values.shape
        q = self.queries(h).reshape(B, -1, H)
        return ops.additive_attention(q, memory.keys, memory.values, self.w, memory.mask).reshape(h.shape[0], 1, H)

    def memory(self, hs: Tensor, mask: Array | None) -> Memory:
        return Memory(hs, self.keys(hs), mask)


DECODERS = {"additive": AdditiveDecoder, "multiplicative": MultiplicativeDecoder, "none": Decoder}


class Seq2Seq(Model):
    """An encoder of `L` layers and a decoder of one, both with states of H numbers, for V_source and V symbols.

        attention   "additive", "multiplicative" or "none"
        cell        "rnn", "gru" or "lstm"
        tied        one vocabulary for both languages, one table (V, D) for source, target and head
        smoothing   the share of probability that the loss wants spread over all symbols while training (label smoothing)

    `model(source, lengths, inputs)`, with source (B, S) padded behind its `lengths` (B), and inputs (B, T), gives logits
    (B, T, V) for the symbol that comes after each of the inputs. `data.pair_batch` makes such batches. Padding changes nothing:
    the loss of a batch is the mean over the symbols of its pairs, whatever stands beside them.
    """

    divisible = True

    def __init__(self, V_source: int, V: int, D: int, H: int, L: int = 1, *, attention: str = "additive", cell: str = "gru",
                 tied: bool = False, smoothing: float = 0.0, dropout: float = 0.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("Seq2Seq", V_source=V_source, V=V, D=D, H=H, L=L)
        number("Seq2Seq", 0, 1, smoothing=smoothing)
        for name, value, known in (("attention", attention, DECODERS), ("cell", cell, CELLS)):
            if value not in list(known):
                raise ValueError(f"Seq2Seq: {name} must be one of {', '.join(known)}, got {value!r}")
        if H % 2:
            raise ValueError(f"Seq2Seq: H is {H}; expected an even number, since half of the encoder reads in each direction")
        if tied and V_source != V:
            raise ValueError(f"Seq2Seq: tied means one vocabulary, but V_source is {V_source} and V is {V}; give one for both")
        tokens = SharedTokens(V, D, rng=rng, dtype=dtype) if tied else None
        options: dict[str, Any] = {"tokens": tokens, "cell": cell, "dropout": dropout, "rng": rng, "dtype": dtype}
        self.smoothing = smoothing
        self.encoder = Encoder(V_source, D, H, L, **options)
        self.decoder = DECODERS[attention](V, D, H, **options)

    def forward(self, source: Any, lengths: Any, inputs: Any) -> Tensor:
        return self.decode(inputs, *self.encode(source, lengths))[0]

    def loss(self, source: Any, lengths: Any, inputs: Any, targets: Any) -> Tensor:
        """The mean surprise at the targets (B, T), in nats per symbol; each is predicted from the true symbols before it."""
        smoothing = self.smoothing if self.training else 0.0
        return ops.cross_entropy(self(source, lengths, inputs), targets, label_smoothing=smoothing)

    def encode(self, source: Any, lengths: Any = None) -> tuple[Memory, State]:
        """Read sources (B, S): what the decoder can look back at, and the state that it starts from."""
        B, S = self.checked(source, "source").shape
        if not B:
            raise ValueError("Seq2Seq: source has no rows; give at least one")
        lengths = as_lengths("Seq2Seq", lengths, self.parameters()[0].device)
        hs, state = self.encoder(source, lengths)
        return self.decoder.memory(hs, None if lengths is None else mask_of(lengths, S)[:, None]), state

    def decode(self, ids: Any, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Read target symbols (R, T) from this state on: logits (R, T, V) for those that come next, and the state after."""
        R, T = self.checked(ids, "inputs").shape
        B, rows = memory.values.shape[0], state[0].shape[0]
        if not T or R != rows or R % B:
            raise ValueError(f"Seq2Seq: inputs have shape {(R, T)}, for {B} sources and a state of {rows} rows; expected one "
                             f"symbol at least, the start, in as many rows as the state has, equally many for each source")
        return self.decoder(ids, memory, state)

    def step(self, ids: np.ndarray, memory: Memory, state: State) -> tuple[Tensor, State]:
        """One symbol in each row, ids (R) on the host: logits (R, V). With a memory in it, this is a step of `decoding.py`:

            memory, state = model.encode(source, lengths)
            greedy(lambda ids, state: model.step(ids, memory, state), state, [start] * B, stop=stop, steps=50)
        """
        logits, state = self.decode(to_device(ids[:, None], memory.values.device), memory, state)
        return logits[:, 0], state
