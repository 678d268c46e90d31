"""One symbol more for one text: what a recurrent model does when it writes. Why so: see `one_symbol.py`, the Transformer's.

The readable forms are the cells in `ops/recurrent.py`, and run where `fits` says no; `tests/test_one_step.py` holds both equal.

Read next: `generation.py`, which asks for one symbol after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import nn
from ..nn.recurrent import GRULayer, LSTMLayer, RNNLayer
from ..ops.recurrent import activation_of
from ..tensor import Tensor
from .one_symbol import active, linear, plain


def fits(model: Any, ids: Any, state: Any) -> bool:
    """Whether `logits` can read these ids: one symbol for one text that was begun, and no gradient or observer waits for it."""
    tokens, recurrence, head = model.tokens, model.recurrence, model.head
    return (type(tokens) is nn.Embedding and plain(model, ids, table := tokens.table.array)
            and type(head) is nn.Linear and head.W.dtype == table.dtype
            and type(recurrence) in (nn.RNN, nn.GRU, nn.LSTM) and recurrence.directions == 1
            and not active(model.dropout) and not active(recurrence.dropout)
            and all(type(layer) in STEPS for layer in recurrence.layers)
            and len(states := as_tuple(state)) == len(recurrence.layer.states)
            and all(type(s) is Tensor and type(s.array) is np.ndarray and s.dtype == table.dtype
                    and s.shape == (len(recurrence.layers), 1, len(recurrence.layers[0].U)) for s in states))


def as_tuple(state: Any) -> Any:
    """Of an LSTM h and c; others have h alone."""
    return state if isinstance(state, tuple | list) else (state,)


def logits(model: Any, symbol: int, state: Any) -> tuple[np.ndarray, Any]:
    """The scores (V) of what comes after `symbol`, and the state behind it."""
    x, ends = model.tokens.table.array[symbol], []                                           # (D)
    olds = zip(*(s.array[:, 0] for s in as_tuple(state)), strict=True)                       # (H) each, layer by layer
    for layer, old in zip(model.recurrence.layers, olds, strict=True):
        x, *rest = STEPS[type(layer)](layer, x, *old)                                        # (H)
        ends.append((x, *rest))
    final = tuple(Tensor(np.array(of_one)[:, None]) for of_one in zip(*ends, strict=True))   # (L, 1, H) each
    return linear(model.head, x), final if len(final) > 1 else final[0]


def rnn(layer: RNNLayer, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray]:
    """See `ops.rnn_cell`."""
    f, _ = activation_of("RNN", layer.activation)
    return f(np, linear(layer, x) + h.dot(layer.U.array)),


def gru(layer: GRULayer, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray]:
    """See `ops.gru_cell`."""
    a = linear(layer, x).reshape(3, -1)
    p = (h.dot(layer.U.array) + layer.bU.array).reshape(3, -1)
    r, z = sigmoid(a[:2] + p[:2])
    n = np.tanh(a[2] + r * p[2])
    return n + z * (h - n),


def lstm(layer: LSTMLayer, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See `ops.lstm_cell`."""
    a = (linear(layer, x) + h.dot(layer.U.array)).reshape(4, -1)
    i, f, _, o = sigmoid(a)                                  # one call for all four; g has another function
    c = f * c + i * np.tanh(a[2])
    return o * np.tanh(c), c


def sigmoid(x: np.ndarray) -> np.ndarray:
    """See `ops.sigmoid`: ½ + ½ tanh(x/2)."""
    y = 0.5 * x
    np.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y


STEPS: dict[type, Any] = {RNNLayer: rnn, GRULayer: gru, LSTMLayer: lstm}
