"""Initial values of parameters. They are drawn on the host, so a seed gives the same weights on every device.

Each function returns a tracked leaf. `rng` is a NumPy generator, by default the shared stream that `minitx.seed` starts.

Read next: `nn/module.py`.
"""

from __future__ import annotations

import math

import numpy as np

from .options import kind, number
from .randomness import stream
from .tensor import Tensor


def normal(*shape: int, std: float, rng: np.random.Generator | None = None, dtype: str = "float32") -> Tensor:
    """Normal numbers with mean 0 and standard deviation `std`."""
    number("init.normal", 0, std=std)
    return leaf(generator(rng).standard_normal(shape) * std, dtype)


def fan_in(D: int, *outputs: int, gain: float = 1.0, rng: np.random.Generator | None = None,
           dtype: str = "float32") -> Tensor:
    """Normal with standard deviation gain/√D: with gain 1, D inputs of variance 1 give outputs of variance 1.

    Source  LeCun et al. 1998, Efficient BackProp
    """
    number("init.fan_in", gain=gain)
    return normal(D, *outputs, std=gain / math.sqrt(D), rng=rng, dtype=dtype)


def orthogonal(H: int, blocks: int = 1, *, gain: float = 1.0, rng: np.random.Generator | None = None,
               dtype: str = "float32") -> Tensor:
    """`blocks` random rotations side by side, (H, blocks H), times `gain`: each alone scales every length by `gain`.

    Source  Saxe, McClelland & Ganguli 2013, arXiv 1312.6120
    """
    number("init.orthogonal", gain=gain)

    def rotation() -> np.ndarray:
        Q, R = np.linalg.qr(generator(rng).standard_normal((H, H)))
        return Q * np.sign(np.diag(R))          # without the signs, the rotations would not be drawn evenly

    return leaf(gain * np.concatenate([rotation() for _ in range(blocks)], axis=1), dtype)


def constant(*shape: int, value: float, dtype: str = "float32") -> Tensor:
    """The same number everywhere."""
    number("init.constant", value=value)
    return leaf(np.full(shape, value), dtype)


def generator(rng: np.random.Generator | None) -> np.random.Generator:
    """Whom to ask for numbers: this generator, or the shared stream."""
    if rng is None:
        return stream()
    kind("init", np.random.Generator, "give np.random.default_rng(seed)", rng=rng)
    return rng


def leaf(values: np.ndarray, dtype: str) -> Tensor:
    """These values as a tracked leaf."""
    try:
        floats = np.dtype(dtype).kind == "f"
    except TypeError:
        floats = False
    if not floats:
        raise TypeError(f"init: dtype is {dtype!r}; expected a dtype of floats, 'float16', 'float32' or 'float64'")
    return Tensor(values.astype(dtype), requires_grad=True)
