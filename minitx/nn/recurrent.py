"""Recurrent modules: one layer over a whole sequence, from a given or a zero state.

Read next: `transformer.py`.
"""

from __future__ import annotations

from typing import Any

from .. import init, ops
from ..options import number, whole
from ..tensor import Tensor, zeros
from .module import Module, check_sequences


class RNN(Module):
    """The plain recurrent net: x (B, T, D) -> hs (B, T, H) and the last state h (B, H).

    U starts as a random rotation times `gain`: with 1, a state keeps its length until the activation squeezes it.
    `activation` is "tanh", "relu" or "linear".
    """

    def __init__(self, D: int, H: int, *, activation: str = "tanh", gain: float = 1.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("RNN", D=D, H=H)
        self.W = init.fan_in(D, H, rng=rng, dtype=dtype)
        self.U = init.orthogonal(H, gain=gain, rng=rng, dtype=dtype)
        self.b = init.constant(H, value=0.0, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        check_sequences("RNN", x)
        h = zeros(x.shape[0], self.U.shape[0], like=self.U) if h is None else h
        return ops.rnn(x, h, self.W, self.U, self.b, activation=self.activation)


class LSTM(Module):
    """The long short-term memory: x (B, T, D) -> hs (B, T, H) and the last state (h, c), (B, H) each.

    The four blocks of U start as random rotations. The bias of the forget gate starts at `forget_bias`: with 1, a memory
    is kept to 73 % per step before anything is learned (Gers 2000; Jozefowicz 2015).
    """

    def __init__(self, D: int, H: int, *, forget_bias: float = 1.0, rng: Any = None, dtype: str = "float32") -> None:
        whole("LSTM", D=D, H=H)
        number("LSTM", forget_bias=forget_bias)
        self.W = init.fan_in(D, 4 * H, rng=rng, dtype=dtype)
        self.U = init.orthogonal(H, 4, rng=rng, dtype=dtype)
        self.b = init.constant(4 * H, value=0.0, dtype=dtype)
        self.b.array[H:2 * H] = forget_bias

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        check_sequences("LSTM", x)
        if state is not None and not (isinstance(state, tuple | list) and len(state) == 2):
            raise TypeError(f"LSTM: state is a {type(state).__name__}; expected a pair (h, c) of Tensors, as it returns them")
        h, c = state or [zeros(x.shape[0], self.U.shape[0], like=self.U)] * 2
        hs, h, c = ops.lstm(x, h, c, self.W, self.U, self.b)
        return hs, (h, c)
