"""Recurrences as one op each, from what the inputs bring to all steps: the loop through time, and nothing but the loop.

What depends on time is h U alone; x W + b of all steps is one product, made before (`sequences.py`). Inside, time is the first
axis, so that one step is one block of memory. Going back, whatever does not depend on the gradient that arrives is computed
for all steps at once: the loop is left with a few multiplications and one product per step.

`lengths` are those of sequences that end before T: there the state stands still, see `lengths.py`; h and c are those at each
one's own end. `watch` is shown NaN in the padding.

Read next: `sequences.py`.
"""

from ..backend import array_module, fused, panels, product, total
from ..op import op
from .lengths import entering, live_steps, only_live, stand_still, through, watching
from .recurrent import activation_of, show


def parts(gates, count):
    """(..., count H) -> as many views (..., H), one per gate."""
    H = gates.shape[-1] // count
    return [gates[..., k * H:(k + 1) * H] for k in range(count)]


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
    hs, wide_U = xp.empty((T + 1, B, H), a.dtype), panels(U, B)
    hs[0], hs[1:] = h0, only_live(live, a.swapaxes(0, 1))
    for t in range(T):
        h = hs[t + 1]
        h += product(entering(live, t, hs[t]), wide_U)
        f(xp, h, out=h)
        stand_still(live, t, hs)

    def backward(dhs, dh):
        before, after = only_live(live, hs[:-1]), only_live(live, hs[1:])                    # what a step read, returned
        da, dhs, back_U = xp.empty((T, B, H), hs.dtype), only_live(live, dhs.swapaxes(0, 1)), panels(U.T, B)
        da[:] = slope(after)
        for t in reversed(range(T)):
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            da[t] *= dh
            dh = product(da[t], back_U)
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
    gates, hs, p_n = (xp.empty((n, B, k * H), a.dtype) for n, k in ((T, 3), (T + 1, 1), (T, 1)))
    gates[:], hs[0], wide_U = only_live(live, a.swapaxes(0, 1)), h0, panels(U, B)
    for t in range(T):
        h = entering(live, t, hs[t])
        p = product(h, wide_U) + bU                                                          # 1
        rz, n = gates[t, :, :2 * H], gates[t, :, 2 * H:]
        gru_gates(rz, p[:, :2 * H])                                                          # 2
        r, z = parts(rz, 2)
        p_n[t] = p[:, 2 * H:]
        gru_state(n, r, z, p_n[t], h, hs[t + 1])                                             # 3, 4
        stand_still(live, t, hs)
        if watch:
            show(watch, t, r=r, z=z, n=n)

    def backward(dhs, dh):
        r, z, n = parts(gates, 3)                                                            # (T, B, H) each
        before, dhs, back_U = only_live(live, hs[:-1]), only_live(live, dhs.swapaxes(0, 1)), panels(U.T, B)
        da, dp = xp.empty((T, B, 3 * H), hs.dtype), xp.empty((T, B, 3 * H), hs.dtype)
        da_r, da_z, da_n = parts(da, 3)
        xp.multiply(z * (1 - z), before - n, out=da_z)                                       # 4  slopes, for all steps
        xp.multiply(1 - z, 1 - n * n, out=da_n)                                              # 3
        xp.multiply(r * (1 - r), p_n, out=da_r)                                              # 2
        for t in reversed(range(T)):
            dh, past = through(live, t, dh + dhs[t])
            if watch:
                watch("dh", dh, t)
            da_z[t] *= dh                                                                    # 4
            da_n[t] *= dh                                                                    # 3
            da_r[t] *= da_n[t]                                                               # 2
            dp[t] = da[t]                                                                    # 1  as da, but for n: there r
            dp[t, :, 2 * H:] *= r[t]                                                         #    stands between
            dh = dh * z[t]
            dh += product(dp[t], back_U)
            if past is not None:
                dh += past
        dp = dp.reshape(T * B, 3 * H)
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
    half = xp.full(4 * H, 0.5, a.dtype)                                                      # ½ for i, f, o
    half[2 * H:3 * H] = 1                                                                    # g is a plain tanh
    rest, half_U = 1 - half, panels(U * half, B)
    live = live_steps("lstm_steps", lengths, T)
    watch = watching(live, watch)
    gates, hs, cs, tanh_c = (xp.empty((n, B, k * H), a.dtype) for n, k in ((T, 4), (T + 1, 1), (T + 1, 1), (T, 1)))
    hs[0], cs[0] = h0, c0
    xp.multiply(only_live(live, a.swapaxes(0, 1)), half, out=gates)
    for t in range(T):
        gate = gates[t]
        lstm_gates(gate, product(entering(live, t, hs[t]), half_U), half, rest)              # 1
        i, f, g, o = parts(gate, 4)
        lstm_state(i, f, g, o, entering(live, t, cs[t]), cs[t + 1], tanh_c[t], hs[t + 1])    # 2, 3
        stand_still(live, t, hs)
        stand_still(live, t, cs)
        if watch:
            show(watch, t, i=i, f=f, g=g, o=o, c=cs[t + 1])

    def backward(dhs, dh, dc):
        i, f, g, o = parts(gates, 4)                                                         # (T, B, H) each
        before, memory = only_live(live, hs[:-1]), only_live(live, cs[:-1])
        da, dhs, back_U = 1 - gates, only_live(live, dhs.swapaxes(0, 1)), panels(U.T, B)
        dc_dh = (1 - tanh_c * tanh_c) * o                                                    # 3  slopes, for all steps
        da *= gates                                                                          # 1  σ' = σ (1 - σ)
        da_i, da_f, da_g, da_o = parts(da, 4)
        da_i *= g
        da_f *= memory
        xp.multiply(1 - g * g, i, out=da_g)
        da_o *= tanh_c
        for t in reversed(range(T)):
            dh, dh_past = through(live, t, dh + dhs[t])
            dc, dc_past = through(live, t, dc)
            if watch:
                show(watch, t, dh=dh, dc=dc)
            dc = lstm_back(dh, dc, dc_dh[t], f[t], da_i[t], da_f[t], da_g[t], da_o[t])       # 3, 2, 1
            dh = product(da[t], back_U)
            if live is not None:
                dh += dh_past
                dc += dc_past
        dU = before.reshape(T * B, H).T @ da.reshape(T * B, 4 * H)
        return da.swapaxes(0, 1), dh, dc, dU, None

    return (only_live(live, hs[1:]).swapaxes(0, 1), hs[-1], cs[-1]), backward


@fused
def lstm_gates(xp, gate, p, half, rest):
    """Step 1 of `lstm_steps`, in place of a_t in `gate`; what belongs to a σ is halved already."""
    gate += p
    xp.tanh(gate, out=gate)
    gate *= half
    gate += rest


@fused
def lstm_state(xp, i, f, g, o, c, c_next, tanh_c, h_next):
    """Steps 2 and 3 of `lstm_steps`, into the last three."""
    xp.multiply(f, c, out=c_next)
    c_next += i * g
    xp.tanh(c_next, out=tanh_c)
    xp.multiply(o, tanh_c, out=h_next)


@fused
def lstm_back(xp, dh, dc, dc_dh, f, da_i, da_f, da_g, da_o):
    """The way back of a step: da in place of its slopes; returns dc of the step before."""
    dc = dc + dh * dc_dh
    da_i *= dc
    da_f *= dc
    da_g *= dc
    da_o *= dh
    return dc * f
