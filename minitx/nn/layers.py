"""The small modules: parameters around one op each.

`rng` draws the initial values (by default the shared stream that `minitx.seed` starts), `dtype` is theirs.

Read next: `recurrent.py` and `transformer.py`.
"""

from __future__ import annotations

from typing import Any

from .. import init, ops, randomness
from ..backend import Array
from ..options import kind, number, whole
from ..tensor import Tensor
from .module import Module


class Linear(Module):
    """y = x W + b on (..., D_in), with W (D_in, D_out) normal with standard deviation gain/√D_in, and b zero."""

    def __init__(self, D_in: int, D_out: int, *, bias: bool = True, gain: float = 1.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("Linear", D_in=D_in, D_out=D_out)
        self.W = init.fan_in(D_in, D_out, gain=gain, rng=rng, dtype=dtype)
        self.b = init.constant(D_out, value=0.0, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.W, self.b)


class Embedding(Module):
    """A row of D numbers for each of V symbols: ids (...) -> (..., D). Rows are normal with standard deviation `std`."""

    def __init__(self, V: int, D: int, *, std: float = 1.0, rng: Any = None, dtype: str = "float32") -> None:
        whole("Embedding", V=V, D=D)
        self.table = init.normal(V, D, std=std, rng=rng, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self.table)


class LayerNorm(Module):
    """Rows (..., D) with mean 0 and variance 1, then a learned scale gamma (starts at 1) and shift beta (starts at 0)."""

    def __init__(self, D: int, *, eps: float = 1e-5, dtype: str = "float32") -> None:
        whole("LayerNorm", D=D)
        number("LayerNorm", 0, eps=eps)
        self.gamma, self.beta = init.constant(D, value=1.0, dtype=dtype), init.constant(D, value=0.0, dtype=dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.gamma, self.beta, eps=self.eps)


class RMSNorm(Module):
    """Rows (..., D) with a root mean square of 1, then a learned scale gamma (starts at 1)."""

    def __init__(self, D: int, *, eps: float = 1e-6, dtype: str = "float32") -> None:
        whole("RMSNorm", D=D)
        number("RMSNorm", 0, eps=eps)
        self.gamma, self.eps = init.constant(D, value=1.0, dtype=dtype), eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.gamma, eps=self.eps)


class Dropout(Module):
    """Zero each element with probability p while training, and scale up the rest. In evaluation, and with p = 0, x itself.

    The masks come from `rng`, by default the shared stream; identity draws nothing from it.
    """

    def __init__(self, p: float, *, rng: Any = None) -> None:
        if not isinstance(p, int | float) or not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be a probability between 0 and 1, got {p!r:.60}")
        if rng is not None and not hasattr(rng, "random"):
            raise TypeError(f"Dropout: rng is a {type(rng).__name__}; expected a generator, np.random.default_rng(seed) say")
        self.p, self.rng = p, rng

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor:
            kind("Dropout", Tensor, "make one with minitx.tensor(...)", x=x)
        return ops.dropout(x, self.mask(x.shape, x.device), p=self.p) if self.drops() else x

    def drops(self) -> bool:
        return self.training and self.p > 0

    def mask(self, shape: tuple[int, ...], device: str) -> Array | None:
        """What to keep of an array of this shape; None: everything."""
        return randomness.keep_mask(self.rng or randomness.stream(), shape, self.p, device) if self.drops() else None
