"""Whole recurrent sequences as one op each: `unroll` of a cell, with the work that does not depend on time taken out.

    x W of all steps is one large product before the loop; inside, only h U remains       (forward)
    the loop back leaves da of all steps; dx, dW, dU are one large product each after it  (backward)

Inside, time is the first axis, so that one step is one block of memory. `reference=` names the readable form. `lengths` are
those of sequences that end before T: there the state stands still, see `lengths.py`; h and c are those at each one's own end.
`watch` is shown NaN in the padding.

Read next: `attention.py`, which has no loop.
"""

from ..backend import array_module, total
from ..op import op
from .lengths import entering, live_steps, only_live, stand_still, through, watching
from .recurrent import activation_of, gru_cell, lstm_cell, rnn_cell, show
from .unroll import unroll


def time_first(x, live):
    """(B, T, D) -> (T B, D), one row per step and sequence; padding is zero."""
    B, T, D = x.shape
    return only_live(live, x.swapaxes(0, 1)).reshape(T * B, D)


def parts(gates, count):
    """(B, count H) -> as many views (B, H), one per gate."""
    B, width = gates.shape
    return gates.reshape(B, count, width // count).swapaxes(0, 1)


@op("x (B, T, D), h0 (B, H), W (D, H), U (H, H), b (H), lengths?:int (B) -> hs (B, T, H), h (B, H)",
    reference=unroll(rnn_cell))
def rnn(x, h0, W, U, b, lengths=None, *, activation="tanh", watch=None):
    """The plain recurrent net over a whole sequence; see `rnn_cell` for the step.

        a = x W + b of all steps                                     (1) one product
        h_t = tanh(a_t + h_{t-1} U)                                  (2) the state of step t

    Returns all states and the last one. `watch` is shown dh of every step, the gradient by the state that it returned.
    Keeps x, all h and the weights.

    Stable  as `rnn_cell`
    Source  Elman 1990; docs/derivations/rnn.md

    >>> x, zero, one = np.zeros((1, 10, 1)), np.zeros((1, 1)), np.ones((1, 1))
    >>> [rnn.vjp(x, zero, one, u * one, zero[0])[1](x, one)[1].item() for u in (0.5, 1, 2)]
    [0.0009765625, 1.0, 1024.0]
    """
    xp, (B, T, D), H = array_module(x), x.shape, U.shape[0]
    f, slope = activation_of("rnn", activation)
    live = live_steps("rnn", lengths, T)                                                     # (T, B, 1), or None
    watch = watching(live, watch)
    xs, hs = time_first(x, live), xp.empty((T + 1, B, H), x.dtype)
    hs[0] = h0
    hs[1:] = (xs @ W + b).reshape(T, B, H)                                                   # 1 the inputs of all steps
    for t in range(T):                                                                       # 2 the state, step by step
        a = hs[t + 1]
        a += entering(live, t, hs[t]) @ U
        f(xp, a, out=a)
        stand_still(live, t, hs)

    def backward(dhs, dh):
        da, dhs = xp.empty((T, B, H), hs.dtype), only_live(live, dhs.swapaxes(0, 1))
        before, after = only_live(live, hs[:-1]), only_live(live, hs[1:])                    # what a step read, returned
        for t in reversed(range(T)):                                                         # 2
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            xp.multiply(dh, slope(after[t]), out=da[t])
            dh = da[t] @ U.T
            if past is not None:
                dh += past
        da = da.reshape(T * B, H)
        dx = (da @ W.T).reshape(T, B, D).swapaxes(0, 1)                                      # 1
        return dx, dh, xs.T @ da, before.reshape(T * B, H).T @ da, total(da, 0), None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1]), backward


@op("x (B, T, D), h0 (B, H), W (D, 3H), U (H, 3H), b (3H), bU (3H), lengths?:int (B) -> hs (B, T, H), h (B, H)",
    reference=unroll(gru_cell))
def gru(x, h0, W, U, b, bU, lengths=None, *, watch=None):
    """A gated recurrent unit over a whole sequence; see `gru_cell` for the step.

        a = x W + b of all steps                                     (1) one product
        p = h_{t-1} U + bU                                           (2) from the state
        r, z = σ(a + p) in their thirds                              (3) gates of step t
        n = tanh(a_n + r p_n)                                        (4) a new state
        h_t = n + z (h_{t-1} - n)                                    (5) a mixture of new and old

    Returns all states and the last one. `watch` is shown r, z, n of every step, and dh going back. Keeps x, all h, the gates,
    p_n and the weights.

    Stable  σ(a) = ½ + ½ tanh(a/2) has no exp that could overflow; n + z (h - n) lies between n and h
    Source  Cho et al. 2014, arXiv 1406.1078, with r behind the product; docs/derivations/gru.md

    >>> x, zero, W, keep = np.zeros((1, 100, 1)), np.zeros((1, 1)), np.zeros((1, 3)), np.array([0.0, 99.0, 0.0])
    >>> gru.vjp(x, zero, W, W, keep, 0 * keep)[1](x, zero + 1)[1].item()
    1.0
    """
    xp, (B, T, D), H = array_module(x), x.shape, U.shape[0]
    live = live_steps("gru", lengths, T)
    watch = watching(live, watch)
    xs = time_first(x, live)
    gates = (xs @ W + b).reshape(T, B, 3 * H)                                                # 1
    hs, p_n = xp.empty((T + 1, B, H), x.dtype), xp.empty((T, B, H), x.dtype)
    hs[0] = h0
    for t in range(T):
        h = entering(live, t, hs[t])
        p = h @ U + bU                                                                       # 2
        rz, n = gates[t, :, :2 * H], gates[t, :, 2 * H:]
        rz += p[:, :2 * H]                                                                   # 3  σ(a) = ½ + ½ tanh(a/2)
        rz *= 0.5
        xp.tanh(rz, out=rz)
        rz *= 0.5
        rz += 0.5
        r, z = rz[:, :H], rz[:, H:]
        p_n[t] = p[:, 2 * H:]                                                                # 4
        n += r * p_n[t]
        xp.tanh(n, out=n)
        xp.add(n, z * (h - n), out=hs[t + 1])                                                # 5
        stand_still(live, t, hs)
        if watch:
            show(watch, t, r=r, z=z, n=n)

    def backward(dhs, dh):
        da, dhs = xp.empty((T, B, 3 * H), hs.dtype), only_live(live, dhs.swapaxes(0, 1))
        dp = xp.empty_like(da)                              # as da, but for n: there r stands between
        before = only_live(live, hs[:-1])
        for t in reversed(range(T)):
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            r, z, n = parts(gates[t], 3)
            da_r, da_z, da_n = parts(da[t], 3)
            xp.multiply(dh * (before[t] - n), z * (1 - z), out=da_z)                         # 5
            xp.multiply(dh * (1 - z), 1 - n * n, out=da_n)                                   # 4
            xp.multiply(da_n * p_n[t], r * (1 - r), out=da_r)                                # 3
            dp[t] = da[t]                                                                    # 2
            dp[t, :, 2 * H:] *= r
            dh = dh * z + dp[t] @ U.T
            if past is not None:
                dh += past
        da, dp = da.reshape(T * B, 3 * H), dp.reshape(T * B, 3 * H)
        dx = (da @ W.T).reshape(T, B, D).swapaxes(0, 1)                                      # 1
        return (dx, dh, xs.T @ da, before.reshape(T * B, H).T @ dp, total(da, 0), total(dp, 0), None)

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1]), backward


@op("x (B, T, D), h0 (B, H), c0 (B, H), W (D, 4H), U (H, 4H), b (4H), lengths?:int (B) -> "
    "hs (B, T, H), h (B, H), c (B, H)", reference=unroll(lstm_cell))
def lstm(x, h0, c0, W, U, b, lengths=None, *, watch=None):
    """A long short-term memory over a whole sequence; see `lstm_cell` for the step.

        a = x W + b of all steps                                     (1) one product
        a_t += h_{t-1} U;  i, f, g, o = σ, σ, tanh, σ of a_t         (2) gates of step t
        c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)                   (3) memory and state of step t

    Returns all h, the last h, the last c.
    `watch` is shown the gates and c of every step, and going back dh and dc, the gradients by the two states that the step
    returned (so dc is without the part that comes through h). Keeps x, all h and c, the gates, tanh(c) and the weights.

    Stable  σ(a) = ½ + ½ tanh(a/2): no exp that could overflow, and one tanh serves all four gates
    Source  Hochreiter & Schmidhuber 1997; Gers, Schmidhuber & Cummins 2000; docs/derivations/lstm.md

    >>> x, zero, W = np.zeros((1, 100, 1)), np.zeros((1, 1)), np.zeros((1, 4))
    >>> lstm.vjp(x, zero, zero, W, W, np.array([-99.0, 99.0, 0.0, 0.0]))[1](x, zero, zero + 1)[2].item()
    1.0
    """
    xp, (B, T, D), H = array_module(x), x.shape, U.shape[0]
    half = xp.full(4 * H, 0.5, x.dtype)                                                      # ½ for i, f, o
    half[2 * H:3 * H] = 1                                                                    # g is a plain tanh
    live = live_steps("lstm", lengths, T)
    watch = watching(live, watch)
    xs, U_half = time_first(x, live), U * half
    gates = ((xs @ W + b) * half).reshape(T, B, 4 * H)                                       # 1
    hs, cs, tanh_c = (xp.empty((n, B, H), x.dtype) for n in (T + 1, T + 1, T))
    hs[0], cs[0] = h0, c0
    for t in range(T):
        gate = gates[t]                                                                      # 2
        gate += entering(live, t, hs[t]) @ U_half
        xp.tanh(gate, out=gate)
        gate *= half
        gate += 1 - half
        i, f, g, o = parts(gate, 4)                                                          # (B, H) each
        xp.multiply(f, entering(live, t, cs[t]), out=cs[t + 1])                              # 3
        cs[t + 1] += i * g
        xp.tanh(cs[t + 1], out=tanh_c[t])
        xp.multiply(o, tanh_c[t], out=hs[t + 1])
        stand_still(live, t, hs)
        stand_still(live, t, cs)
        if watch:
            show(watch, t, i=i, f=f, g=g, o=o, c=cs[t + 1])

    def backward(dhs, dh, dc):
        da, dhs = xp.empty((T, B, 4 * H), hs.dtype), only_live(live, dhs.swapaxes(0, 1))
        before, memory = only_live(live, hs[:-1]), only_live(live, cs[:-1])
        for t in reversed(range(T)):
            i, f, g, o = parts(gates[t], 4)
            dh, dh_past = through(live, t, dh + dhs[t])
            dc, dc_past = through(live, t, dc)
            if watch:
                show(watch, t, dh=dh, dc=dc)
            dc = dc + dh * o * (1 - tanh_c[t] * tanh_c[t])                                   # 3
            da_i, da_f, da_g, da_o = parts(da[t], 4)                                         # 2
            xp.multiply(dc * g, i * (1 - i), out=da_i)
            xp.multiply(dc * memory[t], f * (1 - f), out=da_f)
            xp.multiply(dc * i, 1 - g * g, out=da_g)
            xp.multiply(dh * tanh_c[t], o * (1 - o), out=da_o)
            dc = dc * f
            dh = da[t] @ U.T
            if live is not None:
                dh += dh_past
                dc += dc_past
        da = da.reshape(T * B, 4 * H)
        dx = (da @ W.T).reshape(T, B, D).swapaxes(0, 1)                                      # 1
        return dx, dh, dc, xs.T @ da, before.reshape(T * B, H).T @ da, total(da, 0), None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1], cs[-1]), backward
