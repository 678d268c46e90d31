"""Optimisers: what turns gradients into better parameters.

    optimizer.zero_grad(); loss.backward(); clip_grad_norm(...); optimizer.step()

Read next: `clipping.py` and `schedules.py`, and then `training.py`, the loop around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import backend
from .backend import Array, array_module, as_array, fused, is_array
from .options import number
from .sums import wide
from .tensor import Tensor


class Optimizer:
    """Base: the parameters, the learning rate `lr` (set it before each step to follow a schedule)."""

    moments: tuple[str, ...] = ()       # the optimiser's memory: attributes {number of a parameter that was moved: array}

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = [p for p in tensors(type(self).__name__, parameters) if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"{type(self).__name__}: no parameters that require a gradient; pass model.parameters()")
        if made := [p.made_by for p in self.parameters if p.made_by]:
            raise ValueError(f"{type(self).__name__}: an output of {made[0]} is no parameter; pass leaves, "
                             f"as model.parameters() does")
        if len(set(self.parameters)) < len(self.parameters):
            raise ValueError(f"{type(self).__name__}: a parameter is given twice and would be moved twice; "
                             f"pass each once, as model.parameters() does")
        number(type(self).__name__, 0, lr=lr)
        self.lr = float(lr)
        self.counts = np.zeros(len(self.parameters), "int64")   # how often each was moved: one may get its first gradient late

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient; none, if one of these does not look like its parameter."""
        for i, p in enumerate(self.parameters):
            g, w = p.grad, p.array
            if g is not None and (type(g) is not type(w) or g.shape != w.shape or g.dtype != w.dtype):
                self.check_gradient(i, p)
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                self.counts[i] += 1
                self.move(i, p.array, p.grad)
                p.version[0] += 1       # type: ignore[index]   # as `assign_` does

    def check_gradient(self, i: int, p: Tensor) -> None:
        """Raise ValueError unless the gradient of parameter i looks like it; the scalars that NumPy makes of 0-d arrays do."""
        g: Any = as_array(p.grad)
        if type(g) is not type(p.array) or g.shape != p.shape or g.dtype != p.dtype:
            given = f"{g.dtype} of shape {g.shape} on {backend.device_of(g).name}" if is_array(g) else f"a {type(g).__name__}"
            raise ValueError(f"{type(self).__name__}: the gradient of parameter {i} is {given}, and the parameter is {p.dtype} "
                             f"of shape {p.shape} on {p.device}; set .grad to an array like it. Nothing was moved")

    def move(self, i: int, w: Array, g: Array) -> None:
        """Move parameter i, whose numbers are w and whose gradient is g, in place."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, np.ndarray]:
        """What the optimiser remembers, as arrays on the host: the counts and the moments, by parameter number."""
        state = {"counts": self.counts.copy()}
        for name in self.moments:
            state |= {f"{name}.{i}": np.array(backend.to_host(m)) for i, m in getattr(self, name).items()}
        return state

    def check_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError unless `load_state_dict` can take this state: the moments of every parameter that was moved."""
        me, remedy = type(self).__name__, "resume with the optimiser and the model of the saved run"
        if not isinstance(state, Mapping) or not all(isinstance(a, np.ndarray) for a in state.values()):
            raise TypeError(f"{me}: the saved state must be arrays by name, as state_dict() gives them; {remedy}")
        counts = state.get("counts")
        if counts is None or counts.shape != self.counts.shape or counts.dtype != self.counts.dtype or (counts < 0).any():
            raise ValueError(f"{me}: the saved state lacks the counts of {len(self.parameters)} parameters; {remedy}")
        due = {f"{name}.{i}": self.parameters[i] for name in self.moments for i in counts.nonzero()[0].tolist()}
        missing, unknown = sorted(due.keys() - state.keys()), sorted(state.keys() - due.keys() - {"counts"})
        if missing or unknown:
            raise ValueError(f"{me}: the saved state has other names; missing: {', '.join(missing) or 'none'}; "
                             f"unknown: {', '.join(unknown) or 'none'}; {remedy}")
        for key, p in due.items():
            if state[key].shape != p.shape or state[key].dtype not in (p.dtype, wide(p.array)):
                raise ValueError(f"{me}: the saved {key} is {state[key].dtype} of shape {state[key].shape}, and the parameter "
                                 f"is {p.dtype} of shape {p.shape}; {remedy}")

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Remember what another optimiser of this kind did. Nothing is changed unless all of it fits."""
        self.check_state_dict(state)
        self.counts = state["counts"].copy()
        for name in self.moments:
            setattr(self, name, {})
        for key, array in state.items():
            name, _, i = key.partition(".")
            if i:
                getattr(self, name)[int(i)] = backend.to_device(array.copy(), self.parameters[int(i)].device)


class SGD(Optimizer):
    """Gradient descent with momentum: m = momentum m + g, w -= lr m. `weight_decay` λ adds λ w to g."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr)
        number("SGD", 0, momentum=momentum, weight_decay=weight_decay)
        self.momentum, self.weight_decay = float(momentum), float(weight_decay)
        self.m: dict[int, Array] = {}
        self.moments = ("m",) if momentum else ()

    def move(self, i: int, w: Array, g: Array) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * w
        if self.momentum:
            g = self.m[i] = self.momentum * self.m[i] + g if i in self.m else g.copy()
        w -= self.lr * g


class Adam(Optimizer):
    """Every number gets a step of its own size: about lr, whatever the scale of its gradient.

        m = β₁ m + (1 - β₁) g          the running mean of the gradient
        v = β₂ v + (1 - β₂) g²         and of its square
        w -= lr m̂ / (√v̂ + eps)         m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ): without the hats, both start too small

    `weight_decay` λ adds λ w to g, where it is divided by √v̂ as well; see `AdamW`. Moments of float16 parameters are float32.
    Float32 cannot hold the square of a gradient above 1.8e19: v becomes infinite, and that number never moves again. Clip.
    Source  Kingma & Ba 2014, arXiv 1412.6980
    """

    moments = ("m", "v")
    decoupled = False

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr)
        me = type(self).__name__
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"{me}: betas is {betas!r}; expected two numbers, such as (0.9, 0.999)")
        number(me, 0, 1 - 1e-12, beta1=betas[0], beta2=betas[1])
        number(me, 0, eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay = (float(betas[0]), float(betas[1])), float(eps), float(weight_decay)
        self.m: dict[int, Array] = {}
        self.v: dict[int, Array] = {}

    def move(self, i: int, w: Array, g: Array) -> None:
        (b1, b2), t, xp = self.betas, int(self.counts[i]), array_module(w)
        g = g.astype(wide(g), copy=False)
        if i not in self.m:
            self.m[i], self.v[i] = xp.zeros_like(g), xp.zeros_like(g)
        if self.weight_decay and not self.decoupled:
            g = g + self.weight_decay * w.astype(g.dtype, copy=False)
        step, unbiased = xp.empty_like(g), math.sqrt(1 - b2 ** t)
        adam(step, self.m[i], self.v[i], g, b1, b2, 1 - b1, 1 - b2, self.eps * unbiased, self.lr * unbiased / (1 - b1 ** t))
        if self.weight_decay and self.decoupled:
            w *= 1 - self.lr * self.weight_decay
        w -= step


@fused
def adam(xp, step, m, v, g, b1, b2, fresh1, fresh2, eps, rate):
    """The equations of `Adam`: new m and v, and in `step` what is to be taken from w. fresh = 1 - β.

    The hats are in two numbers:  lr m̂ / (√v̂ + eps) = rate m / (√v + eps √(1 - β₂ᵗ)).
    """
    m *= b1
    xp.multiply(g, fresh1, out=step)
    m += step
    v *= b2
    xp.multiply(g, g, out=step)
    step *= fresh2
    v += step
    xp.sqrt(v, out=step)
    step += eps
    xp.divide(m, step, out=step)
    step *= rate


class AdamW(Adam):
    """Adam with weight decay apart from the gradient: w shrinks by the factor 1 - lr λ at every step, for all numbers alike.

    Source  Loshchilov & Hutter 2017, arXiv 1711.05101
    """

    decoupled = True

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.01) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)


def tensors(caller: str, parameters: Any) -> list[Tensor]:
    """The parameters as a list, or an error in the name of the caller."""
    several = isinstance(parameters, Iterable) and not isinstance(parameters, Tensor)
    found = list(parameters) if several else []
    other = [type(p).__name__ for p in found if not isinstance(p, Tensor)]
    if other or not several:
        given = f"a {other[0]} is among the parameters" if other else f"parameters is a {type(parameters).__name__}"
        raise TypeError(f"{caller}: {given}; expected several Tensors, such as model.parameters()")
    return found
