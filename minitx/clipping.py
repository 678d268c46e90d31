"""Gradient clipping: a step of at most a given length, whatever the gradient does.

Read next: `schedules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .backend import Array, array_module, as_array, expecting_overflow
from .optim import tensors
from .sums import wide
from .tensor import Tensor


def grad_norm(parameters: Iterable[Tensor]) -> float:
    """The length of all gradients together, √(Σ g²)."""
    with expecting_overflow():
        return math.sqrt(float(squared_length(parameters)))


def squared_length(parameters: Iterable[Tensor]) -> Array:
    """Σ g² of all gradients, one number where they are (`float` of it waits for a GPU). In float64, where the square of no
    float32 overflows; that of a float64 above 1e154 is infinite."""
    total: Any = np.float64(0)
    for p in parameters:
        if p.grad is not None:
            g = p.grad.astype("float64")
            total = total + (g * g).sum()
    return total


def clip_grad_norm(parameters: Iterable[Tensor] | Mapping[str, Tensor], max_norm: float, *, norm: float | None = None) -> float:
    """Scale all gradients by one factor so that their length is at most `max_norm`; returns the length before.

    The direction stays; gradients that are short enough are not touched. Clipping cures an exploding gradient, never a
    vanished one. Raises FloatingPointError when a gradient or its squared length is not finite, and changes nothing
    then. Give a dict (of `named_parameters`) to have the parameter called by its name, and `norm` if the length is known.

    Source  Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063

    >>> x = mx.tensor(np.zeros(2), requires_grad=True)
    >>> x.grad = np.array([3.0, 4.0])
    >>> clip_grad_norm([x], 1.0), x.grad.round(9).tolist()
    (5.0, [0.6, 0.8])
    """
    named = dict(parameters) if isinstance(parameters, Mapping) else {
        f"parameter {i}": p for i, p in enumerate(tensors("clip_grad_norm", parameters))}
    tensors("clip_grad_norm", named.values())
    if not isinstance(max_norm, int | float) or not max_norm > 0:
        raise ValueError(f"clip_grad_norm: max_norm must be above 0, got {max_norm}")
    norm = grad_norm(named.values()) if norm is None else norm
    if not math.isfinite(norm):
        grads = {name: p.grad for name, p in named.items() if p.grad is not None}
        ill = [name for name, g in grads.items() if not array_module(g).isfinite(g).all()]
        what = f"gradient of {ill[0]}" if ill else "squared length of the gradient"
        raise FloatingPointError(f"clip_grad_norm: the {what} is not finite, and nothing was changed; "
                                 f"lower the learning rate, or look at the loss of this step")
    if norm > max_norm:
        for p in named.values():
            if p.grad is not None:
                p.grad = as_array((p.grad.astype(wide(p.grad)) * (max_norm / norm)).astype(p.grad.dtype))
    return norm
