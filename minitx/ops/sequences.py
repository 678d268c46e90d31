"""Whole recurrent sequences as one op each: `unroll` of a cell, with the work that does not depend on time taken out.

    x W of all steps is one large product before the loop; inside, only h U remains       (forward)
    the loop back leaves da of all steps; dx, dW, dU are one large product each after it  (backward)

Inside, time is the first axis, so that one step is one block of memory. `reference=` names the readable form.

Read next: `attention.py`, which has no loop.
"""

from ..backend import array_module, total
from ..op import op
from .recurrent import activation_of, lstm_cell, rnn_cell, unroll


def time_first(x):
    """(B, T, D) -> (T B, D), one row per step and sequence."""
    B, T, D = x.shape
    return x.swapaxes(0, 1).reshape(T * B, D)


def four(gates):
    """(B, 4H) -> four views (B, H), one per gate."""
    B, H4 = gates.shape
    return gates.reshape(B, 4, H4 // 4).swapaxes(0, 1)


@op("x (B, T, D), h0 (B, H), W (D, H), U (H, H), b (H) -> hs (B, T, H), h (B, H)", reference=unroll(rnn_cell))
def rnn(x, h0, W, U, b, *, activation="tanh", watch=None):
    """The plain recurrent net over a whole sequence; see `rnn_cell` for the step.

        a = x W + b of all steps                                     (1) one product
        h_t = tanh(a_t + h_{t-1} U)                                  (2) the state of step t

    Returns all states and the last one. `watch` is shown dh of every step, the gradient by the state that it returned.
    Keeps x, all h and the weights.

    Source  Elman 1990; docs/derivations/rnn.md

    >>> x, zero, one = np.zeros((1, 10, 1)), np.zeros((1, 1)), np.ones((1, 1))
    >>> [rnn.vjp(x, zero, one, u * one, zero[0])[1](x, one)[1].item() for u in (0.5, 1, 2)]
    [0.0009765625, 1.0, 1024.0]
    """
    xp, (B, T, D), H = array_module(x), x.shape, U.shape[0]
    f, slope = activation_of(activation)
    xs, hs = time_first(x), xp.empty((T + 1, B, H), x.dtype)
    hs[0] = h0
    hs[1:] = (xs @ W + b).reshape(T, B, H)                                                   # 1 the inputs of all steps
    for t in range(T):                                                                       # 2 the state, step by step
        a = hs[t + 1]
        a += hs[t] @ U
        f(xp, a, out=a)

    def backward(dhs, dh):
        da = xp.empty((T, B, H), hs.dtype)
        for t in reversed(range(T)):                                                         # 2
            dh = dh + dhs[:, t]
            if watch:
                watch("dh", dh, t)
            xp.multiply(dh, slope(hs[t + 1]), out=da[t])
            dh = da[t] @ U.T
        da = da.reshape(T * B, H)
        dx = (da @ W.T).reshape(T, B, D).swapaxes(0, 1)                                      # 1
        return dx, dh, xs.T @ da, hs[:-1].reshape(T * B, H).T @ da, total(da, 0)

    return (hs[1:].swapaxes(0, 1), hs[-1]), backward


@op("x (B, T, D), h0 (B, H), c0 (B, H), W (D, 4H), U (H, 4H), b (4H) -> hs (B, T, H), h (B, H), c (B, H)",
    reference=unroll(lstm_cell))
def lstm(x, h0, c0, W, U, b, *, watch=None):
    """A long short-term memory over a whole sequence; see `lstm_cell` for the step.

        a = x W + b of all steps                                     (1) one product
        a_t += h_{t-1} U;  i, f, g, o = σ, σ, tanh, σ of a_t         (2) gates of step t
        c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)                   (3) memory and state of step t

    σ(a) = ½ + ½ tanh(a/2), so one tanh serves all four gates. Returns all h, the last h, the last c.
    `watch` is shown dh and dc of every step, the gradients by the two states that it returned (so dc is without the part
    that comes through h). Keeps x, all h and c, the gates, tanh(c) and the weights.

    Source  Hochreiter & Schmidhuber 1997; Gers, Schmidhuber & Cummins 2000; docs/derivations/lstm.md

    >>> x, zero, W = np.zeros((1, 100, 1)), np.zeros((1, 1)), np.zeros((1, 4))
    >>> lstm.vjp(x, zero, zero, W, W, np.array([-99.0, 99.0, 0.0, 0.0]))[1](x, zero, zero + 1)[2].item()
    1.0
    """
    xp, (B, T, D), H = array_module(x), x.shape, U.shape[0]
    half = xp.full(4 * H, 0.5, x.dtype)                                                      # ½ for i, f, o
    half[2 * H:3 * H] = 1                                                                    # g is a plain tanh
    xs, U_half = time_first(x), U * half
    gates = ((xs @ W + b) * half).reshape(T, B, 4 * H)                                       # 1
    hs, cs, tanh_c = (xp.empty((n, B, H), x.dtype) for n in (T + 1, T + 1, T))
    hs[0], cs[0] = h0, c0
    for t in range(T):
        gate = gates[t]                                                                      # 2
        gate += hs[t] @ U_half
        xp.tanh(gate, out=gate)
        gate *= half
        gate += 1 - half
        i, f, g, o = four(gate)                                                              # (B, H) each
        xp.multiply(f, cs[t], out=cs[t + 1])                                                 # 3
        cs[t + 1] += i * g
        xp.tanh(cs[t + 1], out=tanh_c[t])
        xp.multiply(o, tanh_c[t], out=hs[t + 1])

    def backward(dhs, dh, dc):
        da = xp.empty((T, B, 4 * H), hs.dtype)
        for t in reversed(range(T)):
            i, f, g, o = four(gates[t])
            dh = dh + dhs[:, t]
            if watch:
                watch("dh", dh, t)
                watch("dc", dc, t)
            dc = dc + dh * o * (1 - tanh_c[t] * tanh_c[t])                                   # 3
            da_i, da_f, da_g, da_o = four(da[t])                                             # 2
            xp.multiply(dc * g, i * (1 - i), out=da_i)
            xp.multiply(dc * cs[t], f * (1 - f), out=da_f)
            xp.multiply(dc * i, 1 - g * g, out=da_g)
            xp.multiply(dh * tanh_c[t], o * (1 - o), out=da_o)
            dc = dc * f
            dh = da[t] @ U.T
        da = da.reshape(T * B, 4 * H)
        dx = (da @ W.T).reshape(T, B, D).swapaxes(0, 1)                                      # 1
        return dx, dh, dc, xs.T @ da, hs[:-1].reshape(T * B, H).T @ da, total(da, 0)

    return (hs[1:].swapaxes(0, 1), hs[-1], cs[-1]), backward
