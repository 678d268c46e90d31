"""Recurrent cells, one step each, and the loop that carries them through time and back.

A recurrent net reads one position after the other and keeps what it has seen in a state of fixed size. Learning means going
back the same way, step by step: this is where gradients explode or vanish, and `unroll` is the place where it happens.

Read next: `sequences.py`, the same mathematics with far less Python.
"""

import functools
import inspect

from ..backend import array_module, total, wide
from ..op import op
from .activations import sigmoid

# What an activation does to its argument, and its slope as seen from the result. "linear" is there to be compared with theory.
ACTIVATIONS = {
    "tanh": (lambda xp, a, out=None: xp.tanh(a, out=out), lambda y: 1 - y * y),
    "relu": (lambda xp, a, out=None: xp.maximum(a, 0, out=out), lambda y: y > 0),
    "linear": (lambda xp, a, out=None: a, lambda y: array_module(y).ones_like(y)),
}


def activation_of(name):
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@op("x (B, D), h (B, H), W (D, H), U (H, H), b (H) -> h_next (B, H)")
def rnn_cell(x, h, W, U, b, *, activation="tanh"):
    """One step of the plain recurrent net: h_next = tanh(x W + h U + b).

        da = dh_next (1 - h_next²),    dh = da Uᵀ

    Every step back multiplies by Uᵀ and by a slope of at most 1. `activation` is "tanh", "relu" or "linear".
    Keeps x, h, h_next and the weights.

    Source  Elman 1990; docs/derivations/rnn.md

    >>> zero, one = np.zeros((1, 1)), np.ones((1, 1))
    >>> rnn_cell.vjp(zero, zero, one, 0.5 * one, zero[0])[1](one)[1].item()
    0.5
    """
    f, slope = activation_of(activation)
    h_next = f(array_module(x), x @ W + h @ U + b)

    def backward(dh_next):
        da = dh_next * slope(h_next)                                                         # (B, H)
        return da @ W.T, da @ U.T, x.T @ da, h.T @ da, total(da, 0)

    return h_next, backward


@op("x (B, D), h (B, H), c (B, H), W (D, 4H), U (H, 4H), b (4H) -> h_next (B, H), c_next (B, H)")
def lstm_cell(x, h, c, W, U, b):
    """One step of a long short-term memory.

        i, f, g, o = σ, σ, tanh, σ  of  x W + h U + b        (1) gates: write, keep, what, show
        c_next     = f ∘ c + i ∘ g                           (2) keep part of the memory, write a new part
        h_next     = o ∘ tanh(c_next)                        (3) show part of it

    Backward walks the same three steps from the last to the first. Along the memory the gradient is only
    scaled by f: that is why an open forget gate carries it far.

    Keeps x, h, c, the four gates, tanh(c_next) and the weights.

    Source  Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber & Cummins 2000; docs/derivations/lstm.md

    >>> zero, W, forget_nothing = np.zeros((1, 1)), np.zeros((1, 4)), np.array([-99.0, 99.0, 0.0, 0.0])
    >>> lstm_cell.vjp(zero, zero, zero + 7, W, W, forget_nothing)[0][1].item()
    7.0
    """
    xp = array_module(x)
    i, f, g, o = xp.split(x @ W + h @ U + b, 4, axis=-1)                                     # (B, H) each
    i, f, g, o = sigmoid.vjp(i)[0], sigmoid.vjp(f)[0], xp.tanh(g), sigmoid.vjp(o)[0]         # 1
    c_next = f * c + i * g                                                                   # 2
    tanh_c = xp.tanh(c_next)
    h_next = o * tanh_c                                                                      # 3

    def backward(dh_next, dc_next):
        do = dh_next * tanh_c                                                                # 3
        dc_next = dc_next + dh_next * o * (1 - tanh_c * tanh_c)
        di, df, dg, dc = dc_next * g, dc_next * c, dc_next * i, dc_next * f                  # 2
        da = xp.concatenate([di * i * (1 - i), df * f * (1 - f),                             # 1
                             dg * (1 - g * g), do * o * (1 - o)], axis=-1)                   # (B, 4H)
        return da @ W.T, da @ U.T, dc, x.T @ da, h.T @ da, total(da, 0)

    return (h_next, c_next), backward


@functools.cache
def unroll(cell):
    """Make the whole-sequence op of a cell: forward through time, and backprop through time.

    `cell(x, *state, *weights)` returns its next state(s). The op takes x (B, T, D), the first states and the weights, and
    returns the first state at every step, hs (B, T, H), then all states at the end.

    Forward keeps one backward per step. Going back, the state's gradient arrives from two sides, the output at t
    and the step after; it passes through the cell, and every step adds its share to the weights it has in common
    with all others. Multiplying by the same Jacobian T times is where gradients explode or vanish: `watch` is shown
    them on the way, at `step` t = 0 … T-1 the gradient of the states that step t returned, before it enters the cell.

    Source  Werbos 1990; Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063; docs/derivations/bptt.md

    >>> zero, one = np.zeros((1, 1)), np.ones((1, 1))
    >>> unroll(rnn_cell).vjp(np.ones((1, 3, 1)), zero, one, one, zero[0], activation="linear")[0][0].tolist()
    [[[1.0], [2.0], [3.0]]]
    """
    (x_line, *rest_lines), states = cell.shapes.inputs or [None], cell.shapes.outputs
    if x_line is None or not states:
        raise ValueError(f"unroll: the cell {cell.name} needs a shape line that names its input and its next states; "
                         f"write @op('x (B, D), h (B, H), … -> h_next (B, H)')")
    names = [state.name.removesuffix("_next") for state in states]

    @op(f"{over_time(x_line, 'x')}, {', '.join(map(str, rest_lines))} -> {over_time(states[0], 'hs')}, "
        f"{', '.join(map(str, states))}")
    @rename(f"unroll({cell.name})", cell)
    def sequence(x, *rest, watch=None, **static):
        inspect.signature(cell.vjp).bind(x, *rest, **static)                 # also where T is 0 and the cell is never asked
        xp, (B, T, _) = array_module(x), x.shape
        state, weights = rest[:len(names)], rest[len(names):]
        hs, backwards = xp.empty((B, T, state[0].shape[1]), x.dtype), []
        for t in range(T):
            state, back = cell.vjp(x[:, t], *state, *weights, **static)
            state = state if isinstance(state, tuple) else (state,)
            hs[:, t] = state[0]
            backwards.append(back)

        def backward(dhs, *dstate):
            dx = xp.empty_like(x)
            dweights = [xp.zeros(w.shape, wide(w)) for w in weights]
            for t in reversed(range(T)):
                dstate = (dstate[0] + dhs[:, t], *dstate[1:])
                if watch:
                    for name, d in zip(names, dstate, strict=True):
                        watch(f"d{name}", d, t)
                dx[:, t], *grads = backwards[t](*dstate)
                dstate = grads[:len(names)]
                for dweight, share in zip(dweights, grads[len(names):], strict=True):
                    dweight += share
            return dx, *dstate, *[dw.astype(w.dtype, copy=False) for dw, w in zip(dweights, weights, strict=True)]

        return (hs, *state), backward

    return sequence


def over_time(spec, name):
    """The line of an array (B, D) of every step, all steps together: (B, T, D)."""
    return str(spec._replace(name=name, axes=(spec.axes[0], "T", *spec.axes[1:])))


def rename(name, cell):
    """Give the sequence op of a cell its name, its home (an op made of a user's cell is the user's) and its options."""
    def named(function):
        function.__name__, function.__module__ = name, cell.__module__
        own = inspect.signature(function).parameters
        given = inspect.signature(cell.vjp).parameters.values()
        arrays = [p for p in given if p.kind is not p.KEYWORD_ONLY]
        options = [p for p in given if p.kind is p.KEYWORD_ONLY]
        function.__signature__ = inspect.Signature([*arrays, *options, own["watch"]])
        return function
    return named
