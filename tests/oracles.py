"""Oracles: the forward pass of every op a second time, independently: loops over numbers, `math`, exact decimals.

They are slow, take arrays of float64 and know nothing of stability tricks: exp and log of `Decimal` do not overflow.
"""

import cmath
import itertools
import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np

ORACLES: dict[str, Callable] = {}


def oracle_of(*ops: str) -> Callable:
    def enter(oracle: Callable) -> Callable:
        ORACLES.update(dict.fromkeys(ops, oracle))
        return oracle
    return enter


def elementwise(f: Callable) -> Callable:
    """The oracle that applies a function of numbers to every element, or to every pair that broadcasting makes."""
    def oracle(*xs, **static):
        xs = np.broadcast_arrays(*xs)
        values = [f(*numbers, **static) for numbers in zip(*(x.ravel().tolist() for x in xs))]
        return np.array(values, "float64").reshape(xs[0].shape)
    return oracle


def along(f: Callable, x: np.ndarray, axis: int) -> np.ndarray:
    """A function of a list of numbers, on every line of x along an axis."""
    lines = np.moveaxis(x, axis, -1)
    y = np.empty(lines.shape)
    for at in np.ndindex(lines.shape[:-1]):
        y[at] = f(lines[at].tolist())
    return np.moveaxis(y, -1, axis)


# Arithmetic and reductions

oracle_of("add")(elementwise(lambda x, y: x + y))
oracle_of("sub")(elementwise(lambda x, y: x - y))
oracle_of("mul")(elementwise(lambda x, y: x * y))
oracle_of("div")(elementwise(lambda x, y: x / y))
oracle_of("neg")(elementwise(lambda x: 0 - x))
oracle_of("exp")(elementwise(math.exp))
oracle_of("tanh")(elementwise(math.tanh))
oracle_of("relu")(elementwise(lambda x: x if x > 0 else 0.0))
oracle_of("dropout")(elementwise(lambda x, keep, p: x / (1 - p) if keep and p < 1 else 0.0))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


oracle_of("sigmoid")(elementwise(sigmoid))


@oracle_of("gelu")
@elementwise
def gelu(x, approximate="tanh"):
    if approximate == "none":
        return x * math.erfc(-x / math.sqrt(2)) / 2
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * sigmoid(2 * u)                                                # (1 + tanh u) / 2


@oracle_of("matmul")
def matmul(x, y):
    rows, columns = "k" if x.ndim == 1 else "...mk", "k" if y.ndim == 1 else "...kn"
    product = (rows + columns).replace("k", "").replace("m...n", "mn")
    return np.einsum(f"{rows},{columns}->{product}", x, y)


@oracle_of("sum")
def sum_(x, axis=None, keepdims=False):
    summed = {a % x.ndim for a in (range(x.ndim) if axis is None else np.atleast_1d(axis))}
    kept = np.zeros([1 if a in summed else n for a, n in enumerate(x.shape)])
    for at in np.ndindex(x.shape):
        kept[tuple(0 if a in summed else i for a, i in enumerate(at))] += x[at]
    return kept if keepdims else kept.reshape([n for a, n in enumerate(x.shape) if a not in summed])


@oracle_of("mean")
def mean(x, axis=None, keepdims=False):
    return sum_(x, axis, keepdims) / sum_(np.ones(x.shape), axis, keepdims)


# Moving numbers


@oracle_of("reshape")
def reshape(x, shape):
    y = np.empty(np.empty(x.shape, bool).reshape(shape).shape)
    y.flat[:] = list(x.flat)
    return y


@oracle_of("transpose")
def transpose(x, axes=None):
    axes = range(x.ndim)[::-1] if axes is None else [range(x.ndim)[a] for a in axes]
    y = np.empty([x.shape[a] for a in axes])
    for at in np.ndindex(x.shape):
        y[tuple(at[a] for a in axes)] = x[at]
    return y


@oracle_of("getitem")
def getitem(x, index):
    """One axis after the other, by `take`. Two integer arrays must stand side by side: they become one, over a joint axis."""
    parts, axis = list(index) if isinstance(index, tuple) else [index], 0
    parts = [np.asarray(p, None if len(p) else int) if isinstance(p, (list, tuple, range)) else p for p in parts]
    while parts:
        part = parts.pop(0)
        if part is None:
            x = np.expand_dims(x, axis)
            axis += 1
        elif part is Ellipsis:
            axis = x.ndim - len(parts)
        elif isinstance(part, slice):
            x = np.take(x, np.arange(x.shape[axis])[part], axis)
            axis += 1
        elif np.asarray(part).dtype == "bool":
            x = x.reshape(x.shape[:axis] + (-1,) + x.shape[axis + part.ndim:])
            x = np.take(x, [i for i, yes in enumerate(part.flat) if yes], axis)
            axis += 1
        elif parts and isinstance(part, np.ndarray):
            rows, columns = x.shape[axis:axis + 2]
            x = x.reshape(x.shape[:axis] + (-1,) + x.shape[axis + 2:])
            parts[0] = part % rows * columns + parts[0] % columns
        else:
            x = np.take(x, part, axis)
            axis += np.ndim(part)
    return x


@oracle_of("concatenate")
def concatenate(*xs, axis=-1):
    rows = [row for x in xs for row in np.moveaxis(x, axis, 0)]
    lines = np.empty((len(rows), *np.moveaxis(xs[0], axis, 0).shape[1:]))
    for i, row in enumerate(rows):
        lines[i] = row
    return np.moveaxis(lines, 0, axis)


@oracle_of("stack")
def stack(*xs, axis=0):
    return concatenate(*(np.expand_dims(x, axis) for x in xs), axis=axis)


@oracle_of("unstack")
def unstack(x, axis=0):
    return tuple(x.take(i, axis) for i in range(x.shape[axis]))


@oracle_of("split")
def split(x, sections, axis=-1):
    if isinstance(sections, int):
        sections = [x.shape[axis] // sections] * sections
    places = iter(range(x.shape[axis]))
    return tuple(x.take(np.array([next(places) for _ in range(length)], int), axis) for length in sections)


@oracle_of("split_heads")
def split_heads(x, heads):
    K, places = x.shape[2] // sum(heads), itertools.count()
    return tuple(np.stack([x[:, :, i * K:(i + 1) * K] for _, i in zip(range(n), places)], 1) for n in heads)


@oracle_of("merge_heads")
def merge_heads(y):
    return np.concatenate([y[:, n] for n in range(y.shape[1])], -1)


# Softmax and losses


def weights(scores: list[float]) -> list[Decimal]:
    """The softmax of a list, exactly; of nothing but -inf, zeros."""
    e = [Decimal(s).exp() for s in scores]
    return [x / (sum(e) or 1) for x in e]


@oracle_of("softmax")
def softmax(x, axis=-1):
    return along(weights, x, axis)


@oracle_of("log_softmax")
def log_softmax(x, axis=-1):
    return along(lambda scores: [w.ln() for w in weights(scores)], x, axis)


@oracle_of("cross_entropy")
def cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    V, losses, counted = logits.shape[-1], np.zeros(targets.shape), 0
    for at in np.ndindex(targets.shape):
        if targets[at] != ignore_index:
            truth = [label_smoothing / V + (1 - label_smoothing) * (k == targets[at]) for k in range(V)]
            losses[at] = -sum(Decimal(p) * w.ln() for p, w in zip(truth, weights(logits[at].tolist())) if p)
            counted += 1
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / max(counted, 1)}[reduction]


# Layers


@oracle_of("linear")
def linear(x, W, b=None):
    y = np.zeros(x.shape[:-1] + W.shape[1:])
    for *at, o in np.ndindex(y.shape):
        y[(*at, o)] = math.fsum(x[tuple(at)] * W[:, o]) + (0 if b is None else b[o])
    return y


@oracle_of("layer_norm")
def layer_norm(x, gamma, beta, eps=1e-5):
    def normal(row):
        mean = math.fsum(row) / len(row)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in row) / len(row) + eps)
        return [g * (v - mean) / spread + b for v, g, b in zip(row, gamma, beta)]
    return along(normal, x, -1)


@oracle_of("embedding")
def embedding(ids, table):
    return (np.arange(len(table)) == ids[..., None]).astype(float) @ table   # one-hot rows


@oracle_of("attention", "textbook_attention", "flash_attention")
def attention(q, k, v, mask=None, bias=None, keep=None, causal=False, scale=None, p=0.0, tile=None):
    B, N, Tq, K = q.shape
    Tk, y = k.shape[2], np.zeros((B, N, Tq, v.shape[3]))
    mask = np.broadcast_to(True if mask is None else mask, (B, N, Tq, Tk))
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, N, Tq, Tk))
    for b, n, t in np.ndindex(B, N, Tq):
        keys = [s for s in range(Tk) if mask[b, n, t, s] and not (causal and Tq - t > Tk - s)]    # counted from the end
        m = n * k.shape[1] // N                                              # the head of keys that this one uses
        scores = [math.fsum(q[b, n, t] * k[b, m, s]) * (K**-0.5 if scale is None else scale) + bias[b, n, t, s] for s in keys]
        for weight, s in zip(weights(scores), keys):
            if keep is None or (keep[b, n, t, s] and p < 1):
                y[b, n, t] += float(weight) / (1 if keep is None else 1 - p) * v[b, m, s]
    return y


@oracle_of("rotary")
def rotary(x, positions, pairing="halves", rotated=None, base=10000.0, stretch=1.0):
    """Each pair as a complex number, times e^(iθ)."""
    y, R = x.copy(), x.shape[3] if rotated is None else rotated
    places = np.broadcast_to(positions, (x.shape[0], x.shape[2]))
    for b, n, t, j in np.ndindex(*x.shape[:3], R // 2):
        first, second = (j, j + R // 2) if pairing == "halves" else (2 * j, 2 * j + 1)
        turned = complex(x[b, n, t, first], x[b, n, t, second]) * cmath.exp(1j * places[b, t] / stretch / base ** (2 * j / R))
        y[b, n, t, first], y[b, n, t, second] = turned.real, turned.imag
    return y


@oracle_of("additive_attention")
def additive_attention(q, k, v, w, mask=None):
    (B, Tq, A), Tk = q.shape, k.shape[1]
    y, mask = np.zeros((B, Tq, v.shape[2])), np.broadcast_to(True if mask is None else mask, (B, Tq, Tk))
    for b, t in np.ndindex(B, Tq):
        keys = [s for s in range(Tk) if mask[b, t, s]]
        scores = [math.fsum(w[i] * math.tanh(q[b, t, i] + k[b, s, i]) for i in range(A)) for s in keys]
        for weight, s in zip(weights(scores), keys):
            y[b, t] += float(weight) * v[b, s]
    return y


# Recurrences, unit by unit


def preactivation(x, h, W, U, b, unit):
    return product(x, W, unit) + product(h, U, unit) + b[unit]


def product(x, W, unit):
    return math.fsum(x * W[:, unit])


@oracle_of("rnn_cell")
def rnn_cell(x, h, W, U, b, activation="tanh"):
    f = {"tanh": math.tanh, "relu": lambda a: max(a, 0.0), "linear": float}[activation]
    h_next = np.empty(h.shape)
    for n, j in np.ndindex(h.shape):
        h_next[n, j] = f(preactivation(x[n], h[n], W, U, b, j))
    return h_next


@oracle_of("lstm_cell")
def lstm_cell(x, h, c, W, U, b):
    H, h_next, c_next = h.shape[1], np.empty(h.shape), np.empty(h.shape)
    for n, j in np.ndindex(h.shape):
        i, f, g, o = (preactivation(x[n], h[n], W, U, b, gate * H + j) for gate in range(4))
        c_next[n, j] = sigmoid(f) * c[n, j] + sigmoid(i) * math.tanh(g)
        h_next[n, j] = sigmoid(o) * math.tanh(c_next[n, j])
    return h_next, c_next


@oracle_of("gru_cell")
def gru_cell(x, h, W, U, b, bU):
    H, h_next = h.shape[1], np.empty(h.shape)
    for k, j in np.ndindex(h.shape):
        a, p = ([product(v[k], M, gate * H + j) + bias[gate * H + j] for gate in range(3)]
                for v, M, bias in ((x, W, b), (h, U, bU)))
        r, z = sigmoid(a[0] + p[0]), sigmoid(a[1] + p[1])
        h_next[k, j] = z * h[k, j] + (1 - z) * math.tanh(a[2] + r * p[2])
    return h_next


def walk(cell, states):
    """The oracle of a sequence: the oracle of its cell, step after step, for every sequence alone and as far as it goes."""
    def sequence(x, *rest, **static):
        lengths = rest[-1] if rest[-1].dtype.kind == "i" else np.full(len(x), x.shape[1])
        state, weights = [s.copy() for s in rest[:states]], [w for w in rest[states:] if w.dtype.kind == "f"]
        hs = np.zeros((*x.shape[:2], state[0].shape[1]))
        for b, n in enumerate(lengths):
            own = [s[b:b + 1] for s in state]
            for t in range(n):
                new = cell(x[b:b + 1, t], *own, *weights, **static)
                own = new if isinstance(new, tuple) else [new]
                hs[b, t] = own[0][0]
            for s, last in zip(state, own):
                s[b] = last[0]
        return hs, *state
    return sequence


oracle_of("rnn", "unroll(rnn_cell)")(walk(rnn_cell, states=1))
oracle_of("gru", "unroll(gru_cell)")(walk(gru_cell, states=1))
oracle_of("lstm", "unroll(lstm_cell)")(walk(lstm_cell, states=2))


def steps(cell, states):
    """The oracle of the steps alone: inputs that go straight to the units, by an identity for W."""
    def sequence(a, *rest, **static):
        width = a.shape[-1]
        return walk(cell, states)(a, *rest[:states], np.eye(width), rest[states], np.zeros(width), *rest[states + 1:], **static)
    return sequence


oracle_of("rnn_steps")(steps(rnn_cell, states=1))
oracle_of("gru_steps")(steps(gru_cell, states=1))
oracle_of("lstm_steps")(steps(lstm_cell, states=2))


@oracle_of("reverse")
def reverse(x, lengths=None):
    y = np.zeros(x.shape)
    for b in range(len(x)):
        n = x.shape[1] if lengths is None else lengths[b]
        for t in range(n):
            y[b, t] = x[b, n - 1 - t]
    return y
