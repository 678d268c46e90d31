"""Backprop through time: the loop that carries a cell through a sequence, and its gradient back.

Learning means going back the way that the reading went, step by step: this is where gradients explode or vanish.

Read next: `sequences.py`, the same mathematics with far less Python.
"""

import functools
import inspect

from ..backend import array_module, wide
from ..contract import Spec
from ..op import op
from .lengths import live_steps, only_live, through
from .recurrent import show


@functools.cache
def unroll(cell):
    """Make the whole-sequence op of a cell: forward through time, and backprop through time.

    `cell(x, *state, *weights)` returns its next state(s). The op takes x (B, T, D), the first states, the weights and perhaps
    `lengths` (B), and returns the first state at every step, hs (B, T, H), then all states at the end, which is for each
    sequence the end of its own. In the padding hs is zero.

    Forward keeps one backward per step. Going back, the state's gradient arrives from two sides, the output at t
    and the step after; it passes through the cell, and every step adds its share to the weights it has in common
    with all others. Multiplying by the same Jacobian T times is where gradients explode or vanish: `watch` is shown
    them on the way, at `step` t = 0 … T-1 the gradient of the states that step t returned, before it enters the cell;
    going forward it is shown the gates, if the cell has a `watch`, and the states besides the first.

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
    lengths_line = Spec("lengths", x_line.axes[:1], optional=True, kind="int")

    @op(f"{over_time(x_line, 'x')}, {', '.join(map(str, [*rest_lines, lengths_line]))} -> {over_time(states[0], 'hs')}, "
        f"{', '.join(map(str, states))}")
    @rename(f"unroll({cell.name})", cell)
    def sequence(x, *rest, watch=None, **static):
        rest, [lengths] = rest[:len(rest_lines)], rest[len(rest_lines):] or [None]
        inspect.signature(cell.vjp).bind(x, *rest, **static)                 # also where T is 0 and the cell is never asked
        xp, (B, T, _) = array_module(x), x.shape
        live = live_steps(f"unroll({cell.name})", lengths, T)                                # (T, B, 1)
        xs = only_live(live, x.swapaxes(0, 1))
        state, weights = rest[:len(names)], rest[len(names):]
        hs, backwards = xp.empty((T, B, state[0].shape[1]), x.dtype), []
        for t in range(T):
            if watch and "watch" in cell.static:
                static["watch"] = at_step(watch, t)
            following, back = cell.vjp(xs[t], *state, *weights, **static)
            following = following if isinstance(following, tuple) else (following,)
            if live is not None:                                                             # the end: stand still
                following = tuple(xp.where(live[t], new, old) for new, old in zip(following, state, strict=True))
            state, hs[t] = following, following[0]
            backwards.append(back)
            if watch:
                show(watch, t, **dict(zip(names[1:], state[1:], strict=True)))
        hs = only_live(live, hs).swapaxes(0, 1)

        def backward(dhs, *dstate):
            dx = xp.empty_like(x)
            dhs = only_live(live, dhs.swapaxes(0, 1))
            dweights = [xp.zeros(w.shape, wide(w)) for w in weights]
            for t in reversed(range(T)):
                dstate = (dstate[0] + dhs[t], *dstate[1:])
                dstate, past = zip(*(through(live, t, d) for d in dstate), strict=True)
                if watch:
                    show(watch, t, **{f"d{name}": d for name, d in zip(names, dstate, strict=True)})
                dx[:, t], *grads = backwards[t](*dstate)
                dstate = tuple(grads[:len(names)])
                if live is not None:
                    dstate = tuple(d + by for d, by in zip(dstate, past, strict=True))
                for dweight, share in zip(dweights, grads[len(names):], strict=True):
                    dweight += share
            return dx, *dstate, *[dw.astype(w.dtype, copy=False) for dw, w in zip(dweights, weights, strict=True)], None

        return (hs, *state), backward

    return sequence


def at_step(watch, t):
    """The watch of a cell, which does not know the time."""
    return lambda name, array, _: watch(name, array, t)


def over_time(spec, name):
    """The line of an array (B, D) of every step, all steps together: (B, T, D)."""
    return str(spec._replace(name=name, axes=(spec.axes[0], "T", *spec.axes[1:])))


def rename(name, cell):
    """Give the sequence op of a cell its name, its home (an op made of a user's cell is the user's) and its options."""
    def named(function):
        function.__name__, function.__module__ = name, cell.__module__
        given = inspect.signature(cell.vjp).parameters.values()
        arrays = [p for p in given if p.kind is not p.KEYWORD_ONLY]
        options = [p for p in given if p.kind is p.KEYWORD_ONLY and p.name != "watch"]
        watch = inspect.signature(function).parameters["watch"]
        lengths = inspect.Parameter("lengths", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        function.__signature__ = inspect.Signature([*arrays, lengths, *options, watch])
        return function
    return named
