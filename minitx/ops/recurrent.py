"""Recurrent cells, one step each: the plain recurrent net, the gated recurrent unit, the long short-term memory.

A recurrent net reads one position after the other and keeps what it has seen in a state of fixed size. A cell takes an input
and a state and returns the next state; its backward takes the gradient by the next state back to this one.

Read next: `unroll.py`, the loop that carries a cell through time and back.
"""

from ..backend import array_module
from ..op import op
from ..sums import total
from .activations import sigmoid

# What an activation does to its argument, and its slope as seen from the result. "linear" is there to be compared with theory.
ACTIVATIONS = {
    "tanh": (lambda xp, a, out=None: xp.tanh(a, out=out), lambda y: 1 - y * y),
    "relu": (lambda xp, a, out=None: xp.maximum(a, 0, out=out), lambda y: y > 0),
    "linear": (lambda xp, a, out=None: a, lambda y: array_module(y).ones_like(y)),
}


def activation_of(caller, name):
    """The two functions of an activation, or an error in the name of the caller."""
    if name not in list(ACTIVATIONS):
        raise ValueError(f"{caller}: activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


@op("x (B, D), h (B, H), W (D, H), U (H, H), b (H) -> h_next (B, H)")
def rnn_cell(x, h, W, U, b, *, activation="tanh"):
    """One step of the plain recurrent net: h_next = tanh(x W + h U + b).

        da = dh_next (1 - h_next²),    dh = da Uᵀ

    Every step back multiplies by Uᵀ and by a slope of at most 1. `activation` is "tanh", "relu" or "linear".
    Keeps x, h, h_next and the weights.

    Stable  tanh holds the state within ±1; with "relu" and "linear" nothing does, and over many steps it may overflow
    Source  Elman 1990; docs/derivations/rnn.md

    >>> zero, one = np.zeros((1, 1)), np.ones((1, 1))
    >>> rnn_cell.vjp(zero, zero, one, 0.5 * one, zero[0])[1](one)[1].item()
    0.5
    """
    f, slope = activation_of("rnn_cell", activation)
    h_next = f(array_module(x), x @ W + h @ U + b)

    def backward(dh_next):
        da = dh_next * slope(h_next)                                                         # (B, H)
        return da @ W.T, da @ U.T, x.T @ da, h.T @ da, total(da, 0)

    return h_next, backward


@op("x (B, D), h (B, H), W (D, 3H), U (H, 3H), b (3H), bU (3H) -> h_next (B, H)")
def gru_cell(x, h, W, U, b, bU, *, watch=None):
    """One step of a gated recurrent unit, with the reset gate behind the recurrent product, as PyTorch and cuDNN have it.

        a = x W + b,    p = h U + bU                         (1) from the input, from the state
        r, z = σ(a + p)  in their thirds of a and p          (2) gates: reset, keep
        n = tanh(a_n + r ∘ p_n)                              (3) a new state, in which r lets the old one speak
        h_next = (1 - z) ∘ n + z ∘ h                         (4) a mixture of new and old

    Along the state the gradient is scaled by z, beside what goes through the gates: an update gate near 1 carries it far.

    Keeps x, h, p_n, the gates r, z, n and the weights. `watch` is shown r, z, n.

    Stable  `sigmoid` overflows nowhere; a mixture lies between the two, so a state that starts within ±1 stays there
    Source  Cho et al. 2014, arXiv 1406.1078, there with r before the product; docs/derivations/gru.md

    >>> zero, W, keep = np.zeros((1, 1)), np.zeros((1, 3)), np.array([0.0, 99.0, 0.0])
    >>> gru_cell.vjp(zero, zero + 7, W, W, keep, 0 * keep)[0].item()
    7.0
    """
    xp = array_module(x)
    a_r, a_z, a_n = xp.split(x @ W + b, 3, axis=-1)                                          # 1  (B, H) each
    p_r, p_z, p_n = xp.split(h @ U + bU, 3, axis=-1)
    r, z = sigmoid.vjp(a_r + p_r)[0], sigmoid.vjp(a_z + p_z)[0]                              # 2
    n = xp.tanh(a_n + r * p_n)                                                               # 3
    h_next = (1 - z) * n + z * h                                                             # 4
    if watch:
        show(watch, None, r=r, z=z, n=n)

    def backward(dh_next):
        dn, dz, dh = dh_next * (1 - z), dh_next * (h - n), dh_next * z                       # 4
        da_n = dn * (1 - n * n)                                                              # 3
        dr, dp_n = da_n * p_n, da_n * r
        da_r, da_z = dr * r * (1 - r), dz * z * (1 - z)                                      # 2
        da = xp.concatenate([da_r, da_z, da_n], axis=-1)                                     # 1  (B, 3H)
        dp = xp.concatenate([da_r, da_z, dp_n], axis=-1)
        return da @ W.T, dh + dp @ U.T, x.T @ da, h.T @ dp, total(da, 0), total(dp, 0)

    return h_next, backward


@op("x (B, D), h (B, H), c (B, H), W (D, 4H), U (H, 4H), b (4H) -> h_next (B, H), c_next (B, H)")
def lstm_cell(x, h, c, W, U, b, *, watch=None):
    """One step of a long short-term memory.

        i, f, g, o = σ, σ, tanh, σ  of  x W + h U + b        (1) gates: write, keep, what, show
        c_next     = f ∘ c + i ∘ g                           (2) keep part of the memory, write a new part
        h_next     = o ∘ tanh(c_next)                        (3) show part of it

    Backward walks the same three steps from the last to the first. Along the memory the gradient is only
    scaled by f: that is why an open forget gate carries it far.

    Keeps x, h, c, the four gates, tanh(c_next) and the weights. `watch` is shown i, f, g, o.

    Stable  `sigmoid` overflows nowhere, and h stays within ±1; c is a sum, and grows by at most 1 a step
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
    if watch:
        show(watch, None, i=i, f=f, g=g, o=o)

    def backward(dh_next, dc_next):
        do = dh_next * tanh_c                                                                # 3
        dc_next = dc_next + dh_next * o * (1 - tanh_c * tanh_c)
        di, df, dg, dc = dc_next * g, dc_next * c, dc_next * i, dc_next * f                  # 2
        da = xp.concatenate([di * i * (1 - i), df * f * (1 - f),                             # 1
                             dg * (1 - g * g), do * o * (1 - o)], axis=-1)                   # (B, 4H)
        return da @ W.T, da @ U.T, dc, x.T @ da, h.T @ da, total(da, 0)

    return (h_next, c_next), backward


def show(watch, step, **arrays):
    """Let `watch` see arrays by their names."""
    for name, array in arrays.items():
        watch(name, array, step)
