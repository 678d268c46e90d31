"""Sequences of unequal length in one batch: where a sequence has ended, nothing happens any more.

A batch (B, T, D) holds sequence b in its first `lengths[b]` steps; what stands behind them is padding. A recurrence then
stands still: its state stays, its output is zero, and no gradient goes into the padding. What is computed there all the same
reads nothing but zeros, so that it is finite, and 0 times it is 0. So a padded run gives the very numbers of the runs of its
sequences one by one.

Read next: `unroll.py`, which uses this in its loop.
"""

import math

from ..backend import array_module
from ..op import op
from ..waits import within


def live_steps(op_name, lengths, T):
    """Whether sequence b goes on at step t, booleans (T, B, 1); None without lengths."""
    if lengths is None:
        return None
    if not within(lengths, 0, T):
        low, high = int(lengths.min()), int(lengths.max())
        raise ValueError(f"{op_name}: lengths must be from 0 to T = {T}, got {low if low < 0 else high}; "
                         f"count the steps of each sequence")
    return (array_module(lengths).arange(T)[:, None] < lengths)[:, :, None]


def only_live(live, x):
    """x (T, B, D) with zeros in the padding, whatever stood there."""
    return x if live is None else array_module(x).where(live, x, 0)


def entering(live, t, state):
    """The state (B, H) as step t reads it: zeros where a sequence has ended, for it may have ended at inf."""
    return state if live is None else only_live(live[t], state)


def stand_still(live, t, states):
    """Carry the state over step t of states (T+1, B, H) where a sequence has ended."""
    if live is not None:
        array_module(states).copyto(states[t + 1], states[t], where=~live[t])


def through(live, t, d):
    """Split the gradient by the state after step t: what goes back through the step, and what passes it by."""
    if live is None:
        return d, None
    xp = array_module(d)
    return xp.where(live[t], d, 0), xp.where(live[t], 0, d)


def watching(live, watch):
    """The watch of a sequence op: it is shown NaN where a sequence has ended. Nothing happened there, and 0 would look dead."""
    if watch is None or live is None:
        return watch
    return lambda name, array, t: watch(name, array_module(array).where(live[t], array, math.nan), t)


@op("x (B, T, D), lengths?:int (B) -> y (B, T, D)")
def reverse(x, lengths=None):
    """Each sequence backwards, within its own length; padding stays behind it, and becomes zero.

        y_t = x_{n-1-t}   for t < n = lengths[b],   else 0

    Twice gives the sequence back, and the gradient goes back by the same rule. Keeps the places only.

    >>> reverse.vjp(np.array([[[1.0], [2.0], [4.0], [0.0]]]), np.array([3]))[0].ravel().tolist()
    [4.0, 2.0, 1.0, 0.0]
    """
    if lengths is None:
        return x[:, ::-1], lambda dy: (dy[:, ::-1], None)
    xp, (B, T, _) = array_module(x), x.shape
    live = live_steps("reverse", lengths, T).swapaxes(0, 1)                                  # (B, T, 1)
    rows, steps = xp.arange(B)[:, None], xp.arange(T)
    places = xp.where(live[:, :, 0], lengths.astype("int64")[:, None] - 1 - steps, steps)    # (B, T)

    def backward(dy):
        return xp.where(live, dy[rows, places], 0), None

    return xp.where(live, x[rows, places], 0), backward
