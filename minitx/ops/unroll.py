"""Backprop through time: the loop that carries a cell through a sequence, and its gradient back.

Learning means going back the way that the reading went, step by step: this is where gradients explode or vanish.

Read next: `sequence_of.py`, which makes an op of the loop, then `sequences.py`, the same mathematics with far less Python.
"""

import functools

from ..backend import array_module
from ..sums import wide
from .lengths import entering, only_live, through
from .recurrent import show
from .sequence_of import sequence_of, states_of


@functools.cache
def unroll(cell):
    """Make the whole-sequence op of a cell: forward through time, and backprop through time.

    `cell(x, *state, *weights)` returns its next state(s). The op takes x (B, T, D), the first states, the weights and perhaps
    `lengths` (B), and returns the first state at every step, hs (B, T, H), then all states at the end, which is for each
    sequence the end of its own. In the padding hs is zero, and the cell reads zeros.

    Forward keeps one backward per step. Going back, the state's gradient arrives from two sides, the output at t
    and the step after; it passes through the cell, and every step adds its share to the weights it has in common
    with all others. Multiplying by the same Jacobian T times is where gradients explode or vanish: `watch` is shown
    them on the way, at `step` t = 0 … T-1 the gradient of the states that step t returned, before it enters the cell;
    going forward it is shown the gates, if the cell has a `watch`, and the states besides the first. Padding is shown as NaN.

    Stable  the shares of T steps are added up in float32 at least; against explosion nothing is done here, but clipping after
    Source  Werbos 1990; Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063; docs/derivations/bptt.md

    >>> zero, one = np.zeros((1, 1)), np.ones((1, 1))
    >>> unroll(rnn_cell).vjp(np.ones((1, 3, 1)), zero, one, one, zero[0], activation="linear")[0][0].tolist()
    [[[1.0], [2.0], [3.0]]]
    """
    names = states_of(cell)

    @sequence_of(cell)
    def sequence(step, x, state, weights, live, watch):
        xp, T = array_module(x), x.shape[1]
        xs = only_live(live, x.swapaxes(0, 1))                                               # (T, B, D)
        hs, backwards = xp.empty((T, *state[0].shape), x.dtype), []                          # (T, B, H)
        for t in range(T):
            following, back = step(t, xs[t], *(entering(live, t, s) for s in state), *weights)
            if live is not None:                                                             # the end: stand still
                following = tuple(xp.where(live[t], new, old) for new, old in zip(following, state, strict=True))
            state, hs[t] = following, following[0]
            backwards.append(back)
            if watch:
                show(watch, t, **dict(zip(names[1:], state[1:], strict=True)))

        def backward(dhs, *dstate):
            dx, dhs = xp.empty_like(x), only_live(live, dhs.swapaxes(0, 1))
            dweights = [None if w is None else xp.zeros(w.shape, wide(w)) for w in weights]
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
                    if share is not None:                                                    # of a weight that was given
                        dweight += share
            return dx, *dstate, *(dw if dw is None else dw.astype(w.dtype, copy=False)
                                  for dw, w in zip(dweights, weights, strict=True)), None

        return (only_live(live, hs).swapaxes(0, 1), *state), backward

    return sequence
