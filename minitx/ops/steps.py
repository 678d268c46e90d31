"""Recurrences as one op each, from what the inputs bring to all steps: the loop through time, and nothing but the loop.

What depends on time is h U alone; x W + b of all steps is one product, made before (`sequences.py`). Going back, whatever does
not depend on the gradient that arrives is computed for all steps at once: the loop is left with a few multiplications and one
product per step. These are small, so they take as long as it takes to find their numbers. Time is the first axis, so that one
step is one block of memory, and each gate is one, too; where a product wants the gates side by side in its rows, (B, 4, H),
there is a copy.

`lengths` are those of sequences that end before T: there the state stands still, see `lengths.py`; h and c are those at each
one's own end. `watch` is shown NaN in the padding.

Read next: `sequences.py`.
"""

from ..backend import array_module, fused
from ..op import op
from ..panels import multiplier
from ..sums import total
from .lengths import entering, live_steps, only_live, stand_still, through, watching
from .recurrent import activation_of, show


@op("a (B, T, H), h0 (B, H), U (H, H), lengths?:int (B) -> hs (B, T, H), h (B, H)")
def rnn_steps(a, h0, U, lengths=None, *, activation="tanh", watch=None):
    """The steps of a plain recurrent net: h_t = tanh(a_t + h_{t-1} U). Returns all states and the last one.

        da_t = dh_t (1 - h_t²),    dh_{t-1} = da_t Uᵀ + what arrives at h_{t-1} from outside

    `watch` is shown dh of every step, the gradient by the state that it returned. Keeps all h and U.

    Stable  as `rnn_cell`
    Source  Elman 1990; docs/derivations/rnn.md

    >>> a, one = np.zeros((1, 10, 1)), np.ones((1, 1))
    >>> [rnn_steps.vjp(a, 0 * one, u * one)[1](a, one)[1].item() for u in (0.5, 1, 2)]
    [0.0009765625, 1.0, 1024.0]
    """
    xp, (B, T, H) = array_module(a), a.shape
    f, slope = activation_of("rnn_steps", activation)
    live = live_steps("rnn_steps", lengths, T)                                                     # (T, B, 1), or None
    watch = watching(live, watch)
    hs, times_U = xp.empty((T + 1, B, H), a.dtype), multiplier(U, B)
    hs[0], hs[1:] = h0, only_live(live, a.swapaxes(0, 1))
    for t in range(T):
        h = hs[t + 1]
        h += times_U(entering(live, t, hs[t]))
        f(xp, h, out=h)
        stand_still(live, t, hs)

    def backward(dhs, dh):
        before, after = only_live(live, hs[:-1]), only_live(live, hs[1:])                    # what a step read, returned
        da, dhs, times_UT = xp.empty((T, B, H), hs.dtype), only_live(live, dhs.swapaxes(0, 1)), multiplier(U.T, B)
        da[:] = slope(after)
        for t in reversed(range(T)):
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            da[t] *= dh
            dh = times_UT(da[t])
            if past is not None:
                dh += past
        dU = before.reshape(T * B, H).T @ da.reshape(T * B, H)
        return da.swapaxes(0, 1), dh, dU, None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1]), backward


@op("a (B, T, 3H), h0 (B, H), U (H, 3H), bU (3H), lengths?:int (B) -> hs (B, T, H), h (B, H)")
def gru_steps(a, h0, U, bU, lengths=None, *, watch=None):
    """The steps of a gated recurrent unit; see `gru_cell`. Returns all states and the last one.

        p = h_{t-1} U + bU                                           (1) from the state
        r, z = σ(a_t + p) in their thirds                            (2) gates of step t
        n = tanh(a_n + r p_n)                                        (3) a new state
        h_t = n + z (h_{t-1} - n)                                    (4) a mixture of new and old

    `watch` is shown r, z, n of every step, and dh going back. Keeps all h, the gates, p_n and U.

    Stable  σ(a) = ½ + ½ tanh(a/2) has no exp that could overflow; n + z (h - n) lies between n and h
    Source  Cho et al. 2014, arXiv 1406.1078, with r behind the product; docs/derivations/gru.md

    >>> a, zero = np.zeros((1, 100, 3)) + [0, 99, 0], np.zeros((1, 1))
    >>> gru_steps.vjp(a, zero, np.zeros((1, 3)), np.zeros(3))[1](a[:, :, :1], zero + 1)[1].item()
    1.0
    """
    xp, (B, T, _), H = array_module(a), a.shape, U.shape[0]
    live = live_steps("gru_steps", lengths, T)
    watch = watching(live, watch)
    gates, p_n, hs = (xp.empty((*n, B, H), a.dtype) for n in ((T, 3), (T,), (T + 1,)))
    gates[:] = only_live(live, a.swapaxes(0, 1)).reshape(T, B, 3, H).swapaxes(1, 2)
    hs[0], times_U, bU = h0, multiplier(U, B), bU.reshape(3, H)
    for t in range(T):
        h = entering(live, t, hs[t])
        p = times_U(h).reshape(B, 3, H)
        p += bU                                                                              # 1
        p_n[t] = p[:, 2]
        gru_gates(gates[t, :2], p[:, :2].swapaxes(0, 1))                                     # 2
        r, z, n = gates[t]
        gru_state(n, r, z, p_n[t], h, hs[t + 1])                                             # 3, 4
        stand_still(live, t, hs)
        if watch:
            show(watch, t, r=r, z=z, n=n)

    def backward(dhs, dh):
        r, z, n = gates.swapaxes(0, 1)                                                       # (T, B, H) each
        before, dhs, times_UT = only_live(live, hs[:-1]), only_live(live, dhs.swapaxes(0, 1)), multiplier(U.T, B)
        da_n = (1 - z) * (1 - n * n)                                                         # 4, 3  slopes, for all steps
        dp = xp.empty((T, B, 3, H), hs.dtype)
        xp.multiply(da_n * p_n, r * (1 - r), out=dp[:, :, 0])                                # 2
        xp.multiply(before - n, z * (1 - z), out=dp[:, :, 1])                                # 4
        xp.multiply(da_n, r, out=dp[:, :, 2])                                                # 3
        for t in reversed(range(T)):
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            da_n[t] *= dh
            dp[t] *= dh[:, None]
            dh = dh * z[t]
            dh += times_UT(dp[t].reshape(B, 3 * H))                                          # 1
            if past is not None:
                dh += past
        da = dp.copy()                                                                       # as dp, but for n: there r
        da[:, :, 2] = da_n                                                                   # stands between
        da, dp = da.reshape(T, B, 3 * H), dp.reshape(T * B, 3 * H)
        return da.swapaxes(0, 1), dh, before.reshape(T * B, H).T @ dp, total(dp, 0), None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1]), backward


@fused
def gru_gates(xp, rz, p):
    """Steps 2 of `gru_steps`, in place of a_t in rz: σ(a) = ½ + ½ tanh(a/2)."""
    rz += p
    rz *= 0.5
    xp.tanh(rz, out=rz)
    rz *= 0.5
    rz += 0.5


@fused
def gru_state(xp, n, r, z, p_n, h, h_next):
    """Steps 3 and 4 of `gru_steps`, in place of a_n in n."""
    n += r * p_n
    xp.tanh(n, out=n)
    xp.add(n, z * (h - n), out=h_next)


@op("a (B, T, 4H), h0 (B, H), c0 (B, H), U (H, 4H), lengths?:int (B) -> hs (B, T, H), h (B, H), c (B, H)")
def lstm_steps(a, h0, c0, U, lengths=None, *, watch=None):
    """The steps of a long short-term memory; see `lstm_cell`. Returns all h, the last h, the last c.

        i, f, g, o = σ, σ, tanh, σ of a_t + h_{t-1} U                (1) gates of step t
        c_t = f c_{t-1} + i g                                        (2) memory
        h_t = o tanh(c_t)                                            (3) state

    `watch` is shown the gates and c of every step, and going back dh and dc, the gradients by the two states that the step
    returned (so dc is without the part that comes through h). Keeps all h and c, the gates, tanh(c) and U.

    Stable  σ(a) = ½ + ½ tanh(a/2): no exp that could overflow, and one tanh serves all four gates
    Source  Hochreiter & Schmidhuber 1997; Gers, Schmidhuber & Cummins 2000; docs/derivations/lstm.md

    >>> a, zero = np.zeros((1, 100, 4)) + [-99, 99, 0, 0], np.zeros((1, 1))
    >>> lstm_steps.vjp(a, zero, zero, np.zeros((1, 4)))[1](a[:, :, :1] * 0, zero, zero + 1)[2].item()
    1.0
    """
    xp, (B, T, _), H = array_module(a), a.shape, U.shape[0]
    live = live_steps("lstm_steps", lengths, T)
    watch = watching(live, watch)
    half = xp.full((B, 4, H), 0.5, a.dtype)                                                  # ½ for i, f, o
    half[:, 2] = 1                                                                           # g is a plain tanh
    rest, times_U = 1 - half, multiplier(U, B)
    gates, tanh_c, hs, cs = (xp.empty((*n, B, H), a.dtype) for n in ((T, 4), (T,), (T + 1,), (T + 1,)))
    a, hs[0], cs[0] = only_live(live, a.swapaxes(0, 1)).reshape(T, B, 4, H), h0, c0
    for t in range(T):
        p = times_U(entering(live, t, hs[t])).reshape(B, 4, H)
        lstm_gates(p, a[t], half, rest, gates[t].swapaxes(0, 1))                             # 1
        i, f, g, o = gates[t]
        lstm_state(i, f, g, o, entering(live, t, cs[t]), cs[t + 1], tanh_c[t], hs[t + 1])    # 2, 3
        stand_still(live, t, hs)
        stand_still(live, t, cs)
        if watch:
            show(watch, t, i=i, f=f, g=g, o=o, c=cs[t + 1])

    def backward(dhs, dh, dc):
        i, f, g, o = gates.swapaxes(0, 1)                                                    # (T, B, H) each
        before, memory = only_live(live, hs[:-1]), only_live(live, cs[:-1])
        da, d = xp.empty((T, B, 4, H), hs.dtype), xp.empty((B, 4, H), hs.dtype)
        dhs, times_UT = only_live(live, dhs.swapaxes(0, 1)), multiplier(U.T, B)
        dc_dh = (1 - tanh_c * tanh_c) * o                                                    # 3  slopes, for all steps
        xp.multiply(i * (1 - i), g, out=da[:, :, 0])                                         # 1, 2
        xp.multiply(f * (1 - f), memory, out=da[:, :, 1])
        xp.multiply(1 - g * g, i, out=da[:, :, 2])
        xp.multiply(o * (1 - o), tanh_c, out=da[:, :, 3])                                    # 1, 3
        for t in reversed(range(T)):
            dh, dh_past = through(live, t, dh + dhs[t])
            dc, dc_past = through(live, t, dc)
            if watch:
                show(watch, t, dh=dh, dc=dc)
            dc, kept = lstm_back(dh, dc, dc_dh[t], f[t])                                     # 3, 2
            d[:, :3], d[:, 3] = dc[:, None], dh                                              # what arrives at i, f, g; at o
            da[t] *= d                                                                       # 2, 1
            dh, dc = times_UT(da[t].reshape(B, 4 * H)), kept
            if live is not None:
                dh += dh_past
                dc += dc_past
        da = da.reshape(T, B, 4 * H)
        dU = before.reshape(T * B, H).T @ da.reshape(T * B, 4 * H)
        return da.swapaxes(0, 1), dh, dc, dU, None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1], cs[-1]), backward


@fused
def lstm_gates(xp, p, a, half, rest, gates):
    """Step 1 of `lstm_steps`, in place of h U in p, and from there gate by gate."""
    p += a
    p *= half
    xp.tanh(p, out=p)
    p *= half
    p += rest
    gates[...] = p


@fused
def lstm_state(xp, i, f, g, o, c, c_next, tanh_c, h_next):
    """Steps 2 and 3 of `lstm_steps`, into the last three."""
    xp.multiply(f, c, out=c_next)
    c_next += i * g
    xp.tanh(c_next, out=tanh_c)
    xp.multiply(o, tanh_c, out=h_next)


@fused
def lstm_back(xp, dh, dc, dc_dh, f):
    """The way back along the memory: all of dc, and what of it goes to the step before."""
    dc = dc + dh * dc_dh
    return dc, dc * f
