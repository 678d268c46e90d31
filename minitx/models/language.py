"""Language models: what they have in common, and the recurrent one.

`model(ids)` takes ids (B, T) and returns logits (B, T, V): at each position, scores for the symbol that comes next, computed
from the symbols up to there. Each is embed → body → head, and the three can be called apart: `gradients_through_time.py`
does, to look at the gradient between them.

Read next: `transformer.py`, the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import nn, ops
from ..backend import array_module, to_device
from ..data.padding import pad
from ..options import whole
from ..tensor import Tensor
from . import one_step
from .one_symbol import Write

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
OFTEN = 8           # symbols are few where each comes this often, on average
HEAD_GAIN = 0.1     # a head that starts small makes the first guess nearly uniform: a first loss of about ln V


class Model(nn.Module):
    """What `training.train` asks for: a loss of a batch, which is a tuple of arrays with the targets as its last.

    `divisible` says that the rows of a batch meet in the mean of the loss and nowhere else, so that threads may share them.
    A model of your own has to say so.
    """

    divisible = False

    def loss(self, *batch: Any) -> Tensor:
        """The mean over all targets but those of -100, in nats."""
        raise NotImplementedError(f"{type(self).__name__}: a Model needs a loss method")

    def checked(self, ids: Any, name: str = "ids") -> Any:
        """ids, or ValueError unless they are an array (B, T)."""
        return check_ids(type(self).__name__, ids, name)


def check_ids(caller: str, ids: Any, name: str = "ids") -> Any:
    """ids, or ValueError in the name of the caller unless they are an array (B, T)."""
    if getattr(ids, "ndim", None) != 2:
        given = f"an array of shape {ids.shape}" if hasattr(ids, "shape") else f"a {type(ids).__name__}"
        raise ValueError(f"{caller}: {name} came as {given}; expected an array of integers (B, T), one row for each sequence")
    return ids


class LanguageModel(Model):
    """What both models share: the composition and the loss."""

    divisible = True
    context: int | None                 # the longest input that the model can take; None: any
    embed: Callable[[Any], Tensor]      # ids (B, T) -> what enters the body, (B, T, D)
    body: Callable[[Tensor], Tensor]    # (B, T, D) -> (B, T, H): all that moves information between positions
    head: nn.Module                     # (B, T, H) -> logits (B, T, V)

    def forward(self, ids: Any) -> Tensor:
        return self.head(self.body(self.embed(self.checked(ids))))

    def loss(self, ids: Any, targets: Any) -> Tensor:
        """The mean surprise at the targets (B, T), in nats per symbol; divide by ln 2 for bits."""
        return ops.cross_entropy(self(ids), targets)

    # How a model reads on, when it writes (`generation.py`): `state` is what it remembers of B texts. Here that is all their
    # ids, and every step reads all of them again. Models with a better memory have their own three methods.

    def read(self, texts: Sequence[np.ndarray], room: int) -> Any:
        """The state behind these texts (ids each, of any length, also 0). No text will have more than `room` symbols in all."""
        ids, lengths = pad(texts)
        if (lengths < ids.shape[1]).any():
            raise ValueError(f"{type(self).__name__}: the texts have from {lengths.min()} to {lengths.max()} symbols, and this "
                             f"model knows no padding; give one text at a time")
        return to_device(ids, self.device)

    def step(self, ids: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Read ids (B, T) that come after those in the state, if any: their logits (B, T, V), and the state behind them."""
        T = self.checked(ids).shape[1]
        seen = ids if state is None else array_module(ids).concatenate([state, ids], axis=1)
        logits = self(seen)
        return logits[:, logits.shape[1] - T:], seen

    def select(self, state: Any, rows: np.ndarray) -> Any:
        """The state of these rows (indices on the host): one may come twice, or not at all."""
        return state[to_device(rows, self.device)]

    def writer(self) -> Write | None:
        """A quicker `step` of evaluation for one symbol of one text at a time, if this model has one.

        It is a function of the symbol and the state: the scores (V) of the next symbol, and the new state. It reads with the
        arrays that the model had when it was made.
        """
        return None

    @property
    def device(self) -> str:
        return next(self.named_parameters())[1].device


class RecurrentLM(LanguageModel):
    """Embedding, `L` recurrent layers of `H` units, linear head. `cell` is "rnn", "gru" or "lstm"; `options` go to its module.

    Its memory of a text is a state, so it can go on from one piece of it to the next: see `step`.
    """

    def __init__(self, V: int, D: int, H: int, L: int = 1, *, cell: str = "lstm", dropout: float = 0.0, rng: Any = None,
                 dtype: str = "float32", **options: Any) -> None:
        whole("RecurrentLM", V=V, D=D, H=H, L=L)
        if cell not in list(CELLS):
            raise ValueError(f"RecurrentLM: cell must be one of {', '.join(CELLS)}, got {cell!r}")
        if options.get("bidirectional"):
            raise ValueError("RecurrentLM: bidirectional=True would read the symbols that are to be predicted; leave it out")
        self.tokens = nn.Embedding(V, D, rng=rng, dtype=dtype)
        self.recurrence = CELLS[cell](D, H, L, dropout=dropout, rng=rng, dtype=dtype, **options)
        self.dropout = nn.Dropout(dropout, rng=rng)
        self.head = nn.Linear(H, V, gain=HEAD_GAIN, rng=rng, dtype=dtype)
        self.context = None

    def forward(self, ids: Any) -> Tensor:
        """head(body(embed(ids))), but that a few symbols for many places go to the first layer as such; see `nn.Symbols`."""
        few = OFTEN * len(self.tokens.table) <= self.checked(ids).size
        return self.head(self.body(nn.Symbols(ids, self.tokens.table) if few else self.embed(ids)))

    def embed(self, ids: Any) -> Tensor:
        return self.tokens(ids)

    def body(self, x: Tensor | nn.Symbols) -> Tensor:
        return self.dropout(self.recurrence(x)[0])

    def step(self, ids: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Read on, from the state in which an earlier `step` ended: the logits (B, T, V) of ids (B, T), and the new state.

        A text read in pieces gives the logits that it gives in one. Gradients go back through the state as far as the tape
        does; `detach()` it to cut them there, as `Carried` does.
        """
        hs, state = self.recurrence(self.embed(self.checked(ids)), state)
        return self.head(self.dropout(hs)), state

    def read(self, texts: Sequence[np.ndarray], room: int) -> Any:
        """See `LanguageModel`. The state is as large after a long text as after a short one."""
        ids, lengths = pad(texts)
        padded = (lengths < ids.shape[1]).any()
        return self.recurrence(self.embed(to_device(ids, self.device)), None, lengths if padded else None)[1]

    def writer(self) -> Write | None:
        return one_step.writer(self) if type(self) is RecurrentLM and one_step.fits(self) else None

    def select(self, state: Any, rows: np.ndarray) -> Any:
        places = (slice(None), to_device(rows, self.device))                 # (S, B, H): the rows are the second axis
        return tuple(s[places] for s in state) if isinstance(state, tuple) else state[places]
