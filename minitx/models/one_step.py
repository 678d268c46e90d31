"""One symbol more for one text: what a recurrent model does when it writes. Why so: see `one_symbol.py`, the Transformer's.

The readable forms are the cells in `ops/recurrent.py`, and run where `fits` says no; `tests/test_one_step.py` holds both equal.

Read next: `generation.py`, which asks for one symbol after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn
from ..nn.recurrent import GRULayer, LSTMLayer, RNNLayer
from ..ops.recurrent import activation_of
from ..tensor import Tensor
from .one_symbol import Write, linear_of, plain, row

Step = Callable[..., np.ndarray]        # x (D), and the state of a layer, (H) each, which becomes that behind x -> its h


def fits(model: Any) -> bool:
    """Whether `writer` knows the form of this RecurrentLM."""
    recurrence = model.recurrence
    return (plain(model) and type(model.tokens) is nn.Embedding and type(model.head) is nn.Linear
            and type(recurrence) in (nn.RNN, nn.GRU, nn.LSTM) and recurrence.directions == 1
            and type(recurrence.dropout) is type(model.dropout) is nn.Dropout
            and all(type(layer) in STEPS for layer in recurrence.layers))


def writer(model: Any) -> Write:
    """How this model reads on from the state of one text, without dropout."""
    table, head = model.tokens.table.array, linear_of(model.head)
    steps = [STEPS[type(layer)](layer) for layer in model.recurrence.layers]

    def write(symbol: int, state: Any) -> tuple[np.ndarray, Any]:
        x, new = row(table, symbol), [s.array.copy() for s in as_tuple(state)]               # (D), and (L, 1, H) each
        for l, step in enumerate(steps):
            x = step(x, *(s[l, 0] for s in new))                                             # (H)
        final = tuple(map(Tensor, new))
        return head(x), final if len(final) > 1 else final[0]

    return write


def as_tuple(state: Any) -> Any:
    """Of an LSTM h and c; others have h alone."""
    return state if isinstance(state, tuple | list) else (state,)


def rnn(layer: RNNLayer) -> Step:
    """See `ops.rnn_cell`."""
    W, U, b = layer.W.array, layer.U.array, layer.b.array
    f, _ = activation_of("RNN", layer.activation)

    def step(x: np.ndarray, h: np.ndarray) -> np.ndarray:
        h[:] = f(np, x.dot(W) + b + h.dot(U))
        return h

    return step


def gru(layer: GRULayer) -> Step:
    """See `ops.gru_steps`."""
    W, U, b, bU = layer.W.array, layer.U.array, layer.b.array, layer.bU.array

    def step(x: np.ndarray, h: np.ndarray) -> np.ndarray:
        a, p = (x.dot(W) + b).reshape(3, -1), (h.dot(U) + bU).reshape(3, -1)
        rz = a[:2] + p[:2]
        rz *= 0.5
        np.tanh(rz, out=rz)                                                                  # σ(a) = ½ + ½ tanh(a/2)
        rz *= 0.5
        rz += 0.5
        n = np.tanh(a[2] + rz[0] * p[2])
        h -= n
        h *= rz[1]
        h += n
        return h

    return step


def lstm(layer: LSTMLayer) -> Step:
    """See `ops.lstm_steps`: σ(a) = ½ + ½ tanh(a/2), so that one tanh serves all four gates."""
    W, U, b, H = layer.W.array, layer.U.array, layer.b.array, len(layer.U)
    half = np.full(4 * H, 0.5, W.dtype)                                                      # ½ for i, f, o
    half[2 * H:3 * H] = 1                                                                    # g is a plain tanh
    rest = 1 - half

    def step(x: np.ndarray, h: np.ndarray, c: np.ndarray) -> np.ndarray:
        a = x.dot(W)
        a += h.dot(U)
        a += b
        a *= half
        np.tanh(a, out=a)
        a *= half
        a += rest
        i, f, g, o = a.reshape(4, H)
        c *= f
        c += i * g
        return np.multiply(o, np.tanh(c), out=h)

    return step


STEPS: dict[type, Callable[[Any], Step]] = {RNNLayer: rnn, GRULayer: gru, LSTMLayer: lstm}
