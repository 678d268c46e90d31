"""Recurrent modules: layers of a recurrence over whole sequences, in one direction or two, from any state.

Each layer is a module of its own around one op; `Recurrence` stacks them, and the rest of this file is three sets of options.

Read next: `transformer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import init, ops
from ..ops.recurrent import activation_of
from ..options import kind, number, whole
from ..tensor import Tensor, zeros
from .layers import Dropout
from .module import Module, as_lengths, check_sequences


class Symbols(NamedTuple):
    """An input that is looked up: ids (B, T) and the table (V, D) with a vector for each symbol.

    Where there are many more places than symbols, a first layer works out what a symbol brings to a step, x W + b, once for
    each of the V, and looks that up: the same numbers, for V products in place of B T.
    """

    ids: Any
    table: Tensor

    @property
    def ndim(self) -> int:
        return 3

    @property
    def shape(self) -> tuple[int, int, int]:
        return *self.ids.shape, self.table.shape[1]

    def vectors(self) -> Tensor:
        """(B, T, D)."""
        return ops.embedding(self.ids, self.table)

    def times(self, W: Tensor, b: Tensor) -> Tensor:
        """x W + b for every place, (B, T, width of W)."""
        return ops.embedding(self.ids, ops.linear(self.table, W, b))


class RNNLayer(Module):
    """h_t = f(x_t W + h_{t-1} U + b). U starts as a random rotation times `gain`: with 1, a state keeps its length until the
    activation squeezes it."""

    states, options = ("h",), ("activation", "gain")

    def __init__(self, D: int, H: int, *, activation: str = "tanh", gain: float = 1.0, rng: Any, dtype: str) -> None:
        activation_of("RNN", activation)
        number("RNN", gain=gain)
        self.W = init.fan_in(D, H, rng=rng, dtype=dtype)
        self.U = init.orthogonal(H, gain=gain, rng=rng, dtype=dtype)
        self.b = init.constant(H, value=0.0, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor | Symbols, h: Tensor, lengths: Any = None) -> tuple[Tensor, Tensor]:
        if isinstance(x, Symbols):
            return ops.rnn_steps(x.times(self.W, self.b), h, self.U, lengths, activation=self.activation)
        return ops.rnn(x, h, self.W, self.U, self.b, lengths, activation=self.activation)


class GRULayer(Module):
    """See `ops.gru_cell`. The three blocks of U start as random rotations, both biases at zero."""

    states, options = ("h",), ()

    def __init__(self, D: int, H: int, *, rng: Any, dtype: str) -> None:
        self.W = init.fan_in(D, 3 * H, rng=rng, dtype=dtype)
        self.U = init.orthogonal(H, 3, rng=rng, dtype=dtype)
        self.b, self.bU = init.constant(3 * H, value=0.0, dtype=dtype), init.constant(3 * H, value=0.0, dtype=dtype)

    def forward(self, x: Tensor | Symbols, h: Tensor, lengths: Any = None) -> tuple[Tensor, Tensor]:
        if isinstance(x, Symbols):
            return ops.gru_steps(x.times(self.W, self.b), h, self.U, self.bU, lengths)
        return ops.gru(x, h, self.W, self.U, self.b, self.bU, lengths)


class LSTMLayer(Module):
    """See `ops.lstm_cell`. The four blocks of U start as random rotations. The bias of the forget gate starts at `forget_bias`:
    with 1, a memory is kept to 73 % per step before anything is learned (Gers 2000; Jozefowicz 2015)."""

    states, options = ("h", "c"), ("forget_bias",)

    def __init__(self, D: int, H: int, *, forget_bias: float = 1.0, rng: Any, dtype: str) -> None:
        number("LSTM", forget_bias=forget_bias)
        self.W = init.fan_in(D, 4 * H, rng=rng, dtype=dtype)
        self.U = init.orthogonal(H, 4, rng=rng, dtype=dtype)
        self.b = init.constant(4 * H, value=0.0, dtype=dtype)
        self.b.array[H:2 * H] = forget_bias

    def forward(self, x: Tensor | Symbols, h: Tensor, c: Tensor, lengths: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(x, Symbols):
            return ops.lstm_steps(x.times(self.W, self.b), h, c, self.U, lengths)
        return ops.lstm(x, h, c, self.W, self.U, self.b, lengths)


class Recurrence(Module):
    """L layers, one above the other: x (B, T, D) -> hs (B, T, H), and the state in which each ended.

    Args:
        bidirectional: a second recurrence in each layer reads backwards; hs is (B, T, 2H), forwards first, then backwards.
        dropout: the probability with which what goes from one layer to the next is dropped while training.
        learned_state: the first state is a parameter, starting at zero, in place of zero for ever.

    x is a Tensor, or `Symbols`.

    `forward(x, state, lengths)`: without a state, from zero (or the learned one). `lengths` (B) integers, in any order, 0 to T:
    the steps behind them are padding; hs is zero there, and all results are those of runs without it.

    The state is h (S, B, H), for an LSTM the pair (h, c): one row for each of S = L × directions recurrences, layer by layer,
    forwards before backwards, as in PyTorch. It is where a recurrence stopped reading: forwards, behind the last symbol of each
    sequence; backwards, behind its *first*, which was read last. A sequence of length 0 ends in the state it started from.
    """

    layer: Any              # the class of one layer

    def __init__(self, D: int, H: int, L: int = 1, *, bidirectional: bool = False, dropout: float = 0.0,
                 learned_state: bool = False, rng: Any = None, dtype: str = "float32", **options: Any) -> None:
        name = type(self).__name__
        whole(name, D=D, H=H, L=L)
        kind(name, bool, "give True or False", bidirectional=bidirectional, learned_state=learned_state)
        if unknown := sorted(options.keys() - set(self.layer.options)):
            known = ", ".join((*self.layer.options, "bidirectional", "dropout", "learned_state", "rng", "dtype"))
            raise TypeError(f"{name}: it has no option {', '.join(unknown)}; its options are {known}")
        self.directions = 2 if bidirectional else 1
        self.layers = [self.layer(D if s < self.directions else self.directions * H, H, rng=rng, dtype=dtype, **options)
                       for s in range(L * self.directions)]
        self.dropout = Dropout(dropout, rng=rng)
        self.start = [init.constant(len(self.layers), 1, H, value=0.0, dtype=dtype)
                      for _ in self.layer.states] if learned_state else None

    def forward(self, x: Any, state: Any = None, lengths: Any = None) -> tuple[Tensor, Any]:
        if isinstance(x, Symbols) and self.directions == 2:
            x = x.vectors()
        check_sequences(type(self).__name__, x)
        starts = list(zip(*(ops.unstack(s) for s in self.initial_states(x.shape[0], state)), strict=True))
        lengths = as_lengths(type(self).__name__, lengths, self.layers[0].U.device)
        ends = []
        for s in range(0, len(self.layers), self.directions):
            x, outputs = self.dropout(x) if s else x, []
            for back in range(self.directions):
                read = ops.reverse(x, lengths) if back else x
                hs, *end = self.layers[s + back](read, *starts[s + back], lengths)
                outputs.append(ops.reverse(hs, lengths) if back else hs)
                ends.append(end)
            x = ops.concatenate(*outputs) if len(outputs) > 1 else outputs[0]
        final = tuple(ops.stack(*of_one) for of_one in zip(*ends, strict=True))              # (S, B, H) each
        return x, final if len(final) > 1 else final[0]

    def initial_states(self, B: int, state: Any) -> Any:
        """The states to start from, (S, B, H) each: those given, else the learned ones, else zeros."""
        names, (S, H) = self.layer.states, (len(self.layers), self.layers[0].U.shape[0])
        if state is None:
            nothing = zeros(S, B, H, like=self.layers[0].U)
            return [nothing + start for start in self.start] if self.start else [nothing] * len(names)
        given = state if isinstance(state, tuple | list) else (state,)
        if len(given) != len(names) or any(getattr(s, "shape", None) != (S, B, H) for s in given):
            shown = ", ".join(str(getattr(s, "shape", type(s).__name__)) for s in given) or f"an empty {type(state).__name__}"
            raise ValueError(f"{type(self).__name__}: state is {shown}; expected {' and '.join(names)} of shape "
                             f"{(S, B, H)}, (layers × directions, B, H), as this module returns it")
        return given

    def to_torch(self) -> dict[str, np.ndarray]:
        """The weights in the names and layout of `torch.nn.RNN`, `GRU` or `LSTM`: transposed, with two biases (for RNN and LSTM
        the second is zero, since only their sum counts). A learned first state has no place there."""
        found: dict[str, np.ndarray] = {}
        for s, layer in enumerate(self.layers):
            b = layer.b.numpy()
            second = layer.bU.numpy() if hasattr(layer, "bU") else np.zeros_like(b)
            arrays = layer.W.numpy().T.copy(), layer.U.numpy().T.copy(), b, second
            found.update(zip(self.torch_names(s), arrays, strict=True))
        return found

    def load_torch(self, state: Mapping[str, Any]) -> None:
        """Take the weights of a `torch.nn` module, arrays by name; nothing is written unless all names and shapes fit."""
        own = {path: p.numpy() for path, p in self.named_parameters() if path.startswith("start")}
        kind(type(self).__name__, Mapping, "give state_dict() of a torch.nn module", state=state)
        shapes = {name: array.shape for name, array in self.to_torch().items()}
        if shapes.keys() != state.keys():
            missing, unknown = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
            raise ValueError(f"{type(self).__name__}: the names differ; missing: {', '.join(missing) or 'none'}; "
                             f"unknown: {', '.join(unknown) or 'none'}; build it with the same layers and directions, and give "
                             f"both biases (zeros, if it had none)")
        for name, shape in shapes.items():
            if np.shape(state[name]) != shape:
                raise ValueError(f"{type(self).__name__}: {name} has shape {tuple(np.shape(state[name]))}; expected {shape}; "
                                 f"build it with the same D and H")
        for s, layer in enumerate(self.layers):
            W, U, b, second = (np.asarray(state[name]) for name in self.torch_names(s))
            own |= {f"layers.{s}.W": W.T, f"layers.{s}.U": U.T}
            own |= {f"layers.{s}.b": b, f"layers.{s}.bU": second} if hasattr(layer, "bU") else {f"layers.{s}.b": b + second}
        self.load_state_dict(own)

    def torch_names(self, s: int) -> list[str]:
        """The names of the four arrays of recurrence s."""
        end = f"_l{s // self.directions}{'_reverse' * (s % self.directions)}"
        return [f"{part}{end}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


class RNN(Recurrence):
    """The plain recurrent net: a `Recurrence` whose `activation` is "tanh", "relu" or "linear", with U a rotation times `gain`.
    """

    layer = RNNLayer


class GRU(Recurrence):
    """The gated recurrent unit: a `Recurrence` of `ops.gru` (Cho et al. 2014, arXiv 1406.1078)."""

    layer = GRULayer


class LSTM(Recurrence):
    """The long short-term memory: a `Recurrence` of `ops.lstm`, whose forget gates start with the bias `forget_bias`
    (Hochreiter & Schmidhuber 1997)."""

    layer = LSTMLayer
