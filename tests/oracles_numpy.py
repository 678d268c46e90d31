"""Oracles of the ops that NumPy has too, and of the losses beside cross-entropy: loops over numbers, as in `oracles.py`."""

import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np

from .oracles import along, elementwise, oracle_of, sigmoid

oracle_of("power")(elementwise(lambda x, y: x ** y))
oracle_of("log")(elementwise(math.log))
oracle_of("sqrt")(elementwise(math.sqrt))
oracle_of("abs")(elementwise(lambda x: x if x > 0 else 0 - x))
oracle_of("maximum")(elementwise(lambda x, y: x if x > y else y))
oracle_of("minimum")(elementwise(lambda x, y: y if x > y else x))
oracle_of("where")(elementwise(lambda condition, x, y: x if condition else y))
oracle_of("softplus")(elementwise(lambda x: (1 + Decimal(x).exp()).ln()))
oracle_of("silu")(elementwise(lambda x: x * sigmoid(x)))


@oracle_of("clip")
@elementwise
def clip(x, low=None, high=None):
    return low if low is not None and x < low else high if high is not None and x > high else x


def reducing(f: Callable) -> Callable:
    """The oracle that makes one number of all that differ only in their place along `axis`."""
    def oracle(x, axis=None, keepdims=False, **static):
        axes = range(x.ndim) if axis is None else np.atleast_1d(np.array(axis, int)) % max(x.ndim, 1)
        kept = np.empty([1 if a in axes else n for a, n in enumerate(x.shape)])
        for place in np.ndindex(kept.shape):
            f_of = [x[at] for at in np.ndindex(x.shape) if all(a in axes or i == j for a, (i, j) in enumerate(zip(at, place)))]
            kept[place] = f(f_of, **static)
        return kept if keepdims else kept.reshape([n for a, n in enumerate(x.shape) if a not in axes])
    return oracle


oracle_of("max")(reducing(lambda numbers: sorted(numbers)[-1]))
oracle_of("min")(reducing(lambda numbers: sorted(numbers)[0]))
oracle_of("norm")(reducing(lambda numbers: math.hypot(*numbers)))
oracle_of("prod")(reducing(math.prod))
oracle_of("logsumexp")(reducing(lambda numbers: sum((Decimal(v).exp() for v in numbers), Decimal(0)).ln()))


@oracle_of("var")
@reducing
def var(numbers, ddof=0):
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((v - mean) ** 2 for v in numbers) / (len(numbers) - ddof)


@oracle_of("cumsum")
def cumsum(x, axis=None):
    if axis is None:
        x, axis = x.reshape(-1), 0
    return along(lambda numbers: [math.fsum(numbers[:i + 1]) for i in range(len(numbers))], x, axis)


@oracle_of("pad")
def pad(x, widths, value=0.0):
    pairs = np.broadcast_to(widths, (x.ndim, 2)) if x.ndim else []
    y = np.full([before + n + after for n, (before, after) in zip(x.shape, pairs)], float(value))
    for at in np.ndindex(x.shape):
        y[tuple(i + before for i, (before, _) in zip(at, pairs))] = x[at]
    return y


@oracle_of("take")
def take(x, ids, axis=0):
    slices = [np.moveaxis(x, axis, 0)[i] for i in ids.ravel()]
    rest = np.moveaxis(x, axis, 0).shape[1:]
    y = np.array(slices).reshape(ids.shape + rest)
    return np.moveaxis(y, range(ids.ndim), range(axis % x.ndim, axis % x.ndim + ids.ndim))


@oracle_of("gather")
def gather(x, ids, axis=-1):
    y = np.empty(ids.shape)
    for at in np.ndindex(ids.shape):
        place = list(at)
        place[axis] = ids[at]
        y[at] = x[tuple(place)]
    return y


@oracle_of("rms_norm")
def rms_norm(x, gamma, eps=1e-6):
    def scaled(row):
        length = math.sqrt(math.fsum(v * v for v in row) / len(row) + eps)
        return [g * v / length for v, g in zip(row, gamma)]
    return along(scaled, x, -1)


def reduced(losses: np.ndarray, reduction: str) -> np.ndarray:
    return np.asarray(losses if reduction == "none" else
                      math.fsum(losses.flat) / (losses.size or 1 if reduction == "mean" else 1))


@oracle_of("mse")
def mse(y, target, reduction="mean"):
    return reduced(elementwise(lambda a, b: (a - b) ** 2)(y, target), reduction)


@oracle_of("binary_cross_entropy")
def binary_cross_entropy(logits, target, reduction="mean"):
    def surprise(x, t):                                                      # -t log p - (1 - t) log(1 - p)
        return Decimal(t) * (1 + Decimal(-x).exp()).ln() + Decimal(1 - t) * (1 + Decimal(x).exp()).ln()
    return reduced(elementwise(surprise)(logits, target), reduction)


@oracle_of("kl_divergence")
def kl_divergence(log_q, p, reduction="mean"):
    losses = np.empty(p.shape[:-1])
    for row in np.ndindex(losses.shape):
        losses[row] = math.fsum(v * (math.log(v) - u) for u, v in zip(log_q[row], p[row]))
    return reduced(losses, reduction)
