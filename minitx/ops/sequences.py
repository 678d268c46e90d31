"""Whole recurrent sequences as one op each: `unroll` of a cell, with the work that does not depend on time taken out.

    a = x W + b         of all steps: one large product before the loop      (forward)
    h_t = f(a_t + h_{t-1} U, h_{t-1})                     the loop, in `steps.py`
    dx, dW, db          of all steps: from da, one large product each after it  (backward)

`reference=` names the readable form, which is a cell, step by step. `lengths` and `watch` are those of `steps.py`.

Read next: `attention.py`, which has no loop.
"""

from ..op import op
from .lengths import live_steps, only_live
from .linear import linear
from .recurrent import gru_cell, lstm_cell, rnn_cell
from .steps import gru_steps, lstm_steps, rnn_steps
from .unroll import unroll


def inputs(op_name, x, W, b, lengths):
    """a = x W + b of every step, with zeros for x in the padding, and the way back. Time is the first axis in memory, as the
    steps like it."""
    xs = only_live(live_steps(op_name, lengths, x.shape[1]), x.swapaxes(0, 1))            # (T, B, D)
    a, backward = linear.vjp(xs, W, b)

    def to_inputs(da):
        dx, dW, db = backward(da.swapaxes(0, 1))
        return dx.swapaxes(0, 1), dW, db

    return a.swapaxes(0, 1), to_inputs


@op("x (B, T, D), h0 (B, H), W (D, H), U (H, H), b (H), lengths?:int (B) -> hs (B, T, H), h (B, H)",
    reference=unroll(rnn_cell))
def rnn(x, h0, W, U, b, lengths=None, *, activation="tanh", watch=None):
    """The plain recurrent net over a whole sequence: `rnn_steps` from x W + b. Returns all states and the last one.

    Keeps x, all h and the weights. Source  Elman 1990; docs/derivations/rnn.md

    >>> x, zero, one = np.zeros((1, 10, 1)), np.zeros((1, 1)), np.ones((1, 1))
    >>> [rnn.vjp(x, zero, one, u * one, zero[0])[1](x, one)[1].item() for u in (0.5, 1, 2)]
    [0.0009765625, 1.0, 1024.0]
    """
    a, to_inputs = inputs("rnn", x, W, b, lengths)
    (hs, h), to_steps = rnn_steps.vjp(a, h0, U, lengths, activation=activation, watch=watch)

    def backward(dhs, dh):
        da, dh0, dU, _ = to_steps(dhs, dh)
        dx, dW, db = to_inputs(da)
        return dx, dh0, dW, dU, db, None

    return (hs, h), backward


@op("x (B, T, D), h0 (B, H), W (D, 3H), U (H, 3H), b (3H), bU (3H), lengths?:int (B) -> hs (B, T, H), h (B, H)",
    reference=unroll(gru_cell))
def gru(x, h0, W, U, b, bU, lengths=None, *, watch=None):
    """A gated recurrent unit over a whole sequence: `gru_steps` from x W + b. Returns all states and the last one.

    Keeps x, all h, the gates, p_n and the weights. Source  Cho et al. 2014, arXiv 1406.1078; docs/derivations/gru.md

    >>> x, zero, W, keep = np.zeros((1, 100, 1)), np.zeros((1, 1)), np.zeros((1, 3)), np.array([0.0, 99.0, 0.0])
    >>> gru.vjp(x, zero, W, W, keep, 0 * keep)[1](x, zero + 1)[1].item()
    1.0
    """
    a, to_inputs = inputs("gru", x, W, b, lengths)
    (hs, h), to_steps = gru_steps.vjp(a, h0, U, bU, lengths, watch=watch)

    def backward(dhs, dh):
        da, dh0, dU, dbU, _ = to_steps(dhs, dh)
        dx, dW, db = to_inputs(da)
        return dx, dh0, dW, dU, db, dbU, None

    return (hs, h), backward


@op("x (B, T, D), h0 (B, H), c0 (B, H), W (D, 4H), U (H, 4H), b (4H), lengths?:int (B) -> "
    "hs (B, T, H), h (B, H), c (B, H)", reference=unroll(lstm_cell))
def lstm(x, h0, c0, W, U, b, lengths=None, *, watch=None):
    """A long short-term memory over a whole sequence: `lstm_steps` from x W + b. Returns all h, the last h, the last c.

    Keeps x, all h and c, the gates, tanh(c) and the weights.
    Source  Hochreiter & Schmidhuber 1997; Gers, Schmidhuber & Cummins 2000; docs/derivations/lstm.md

    >>> x, zero, W = np.zeros((1, 100, 1)), np.zeros((1, 1)), np.zeros((1, 4))
    >>> lstm.vjp(x, zero, zero, W, W, np.array([-99.0, 99.0, 0.0, 0.0]))[1](x, zero, zero + 1)[2].item()
    1.0
    """
    a, to_inputs = inputs("lstm", x, W, b, lengths)
    (hs, h, c), to_steps = lstm_steps.vjp(a, h0, c0, U, lengths, watch=watch)

    def backward(dhs, dh, dc):
        da, dh0, dc0, dU, _ = to_steps(dhs, dh, dc)
        dx, dW, db = to_inputs(da)
        return dx, dh0, dc0, dW, dU, db, None

    return (hs, h, c), backward
