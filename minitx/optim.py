"""Optimisers: what turns gradients into better parameters.

    optimizer.zero_grad(); loss.backward(); clip_grad_norm(...); optimizer.step()

Read next: `clipping.py` and `schedules.py`, and then `training.py`, the loop around them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import backend
from .backend import Array, array_module, fused
from .options import number
from .sums import narrow, wide
from .tensor import Tensor

BUNDLE = 2 ** 16        # numbers: the arrays of an update of so many stay in the cache from one pass to the next


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
        self.lr = lr
        self.counts = np.zeros(len(self.parameters), "int64")   # how often each was moved: one may get its first gradient late

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                self.counts[i] += 1
                p.assign_(self.moved(i, p.array, p.grad).astype(p.dtype, copy=False))

    def moved(self, i: int, w: Array, g: Array) -> Array:
        """The new value of parameter i, from its value and its gradient."""
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
        self.momentum, self.weight_decay = momentum, weight_decay
        self.m: dict[int, Array] = {}
        self.moments = ("m",) if momentum else ()

    def moved(self, i: int, w: Array, g: Array) -> Array:
        if self.weight_decay:
            g = g + self.weight_decay * w
        if self.momentum:
            g = self.m[i] = self.momentum * self.m[i] + g if i in self.m else g.copy()
        return w - self.lr * g


class Adam(Optimizer):
    """Every number gets a step of its own size: about lr, whatever the scale of its gradient.

        m = β₁ m + (1 - β₁) g          the running mean of the gradient
        v = β₂ v + (1 - β₂) g²         and of its square
        w -= lr m̂ / (√v̂ + eps)         m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ): without the hats, both start too small

    `weight_decay` λ adds λ w to g, where it is divided by √v̂ as well; see `AdamW`. Moments of float16 parameters are float32.
    Float32 cannot hold the square of a gradient above 1.8e19: v becomes infinite, and that number never moves again. Clip.

    The equations are the same for all numbers, and most parameters are small; so those that are neighbours, and were moved
    as often, are moved in one go, up to 65,536 numbers: docs/speed.md.
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
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.m: dict[int, Array] = {}           # views of the moments of bundles
        self.v: dict[int, Array] = {}
        self.bundles: list[Bundle] = []
        self.bundled: list[tuple] = []          # what the bundles were made for

    def step(self) -> None:
        due = [(i, type(p.array), p.dtype) for i, p in enumerate(self.parameters) if p.grad is not None]
        if due != self.bundled:
            self.bundles, self.bundled = list(self.in_bundles([i for i, *_ in due])), due
        for bundle in self.bundles:
            self.move(bundle)

    def in_bundles(self, due: Sequence[int]) -> Iterator[Bundle]:
        """The numbers of the parameters to move, in runs that are of one kind, were moved as often and are small together."""
        def kind(i: int) -> tuple:
            p = self.parameters[i]
            return self.counts[i], type(p.array), p.dtype

        bundle: list[int] = []
        size = 0
        for i in due:
            size += self.parameters[i].size
            if bundle and (size > BUNDLE or kind(i) != kind(bundle[0])):
                yield self.bundle(bundle)
                bundle, size = [], self.parameters[i].size
            bundle.append(i)
        if bundle:
            yield self.bundle(bundle)

    def bundle(self, members: list[int]) -> Bundle:
        """Lay the moments of these parameters side by side, as far as there are any yet."""
        parameters = [self.parameters[i] for i in members]
        ends, made = np.cumsum([0, *(p.size for p in parameters)]).tolist(), []
        xp, dtype = array_module(parameters[0].array), wide(parameters[0].array)
        for moment in (self.m, self.v):
            flat = xp.zeros(ends[-1], dtype)
            for i, p, a, b in zip(members, parameters, ends, ends[1:], strict=False):
                if i in moment:
                    flat[a:b] = moment[i].reshape(-1)
                moment[i] = flat[a:b].reshape(p.shape)
            made.append(flat)
        return Bundle(members, [slice(a, b) for a, b in itertools.pairwise(ends)], *made)

    def move(self, bundle: Bundle) -> None:
        """One step of the parameters of a bundle."""
        members, (b1, b2), decay = [self.parameters[i] for i in bundle.members], self.betas, self.lr * self.weight_decay
        self.counts[bundle.members] += 1
        g, t = side_by_side([p.grad for p in members]), int(self.counts[bundle.members[0]])
        if self.weight_decay and not self.decoupled:
            g = g + self.weight_decay * side_by_side([p.array for p in members])
        step, unbiased = array_module(g).empty_like(g), math.sqrt(1 - b2 ** t)
        adam(step, bundle.m, bundle.v, g, b1, b2, 1 - b1, 1 - b2, self.eps * unbiased, self.lr * unbiased / (1 - b1 ** t))
        for p, cut in zip(members, bundle.cuts, strict=True):
            w = p.array * (1 - decay) if decay and self.decoupled else p.array
            p.assign_(narrow(w - step[cut].reshape(w.shape), w))

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        super().load_state_dict(state)
        self.bundled = []


class Bundle(NamedTuple):
    """Parameters that `Adam` moves in one go: their numbers, their places in the moments, and those, side by side."""

    members: list[int]
    cuts: list[slice]
    m: Array
    v: Array


def side_by_side(arrays: Sequence[Array]) -> Array:
    """The numbers of all arrays in one row, in a dtype that is wide enough."""
    rows = [x.reshape(-1) for x in arrays]
    row = rows[0] if len(rows) == 1 else array_module(rows[0]).concatenate(rows)
    return row.astype(wide(row), copy=False)


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
