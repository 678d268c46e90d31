"""Positions: attention sees a set of vectors; what stands where has to be told to it.

Three ways, besides a learned table: added to the input (`sinusoid`), turned into queries and keys (`rotary`), or subtracted
from the scores (`distance_bias`). All take positions as numbers, so that a text can go on anywhere.

Read next: `attention.py`.
"""

import math

from ..backend import array_module
from ..op import op

PAIRINGS = ("halves", "neighbours")


@op("x (B, N, T, K), positions:int ~(B, T) -> y (B, N, T, K)")
def rotary(x, positions, *, pairing="halves", rotated=None, base=10000.0, stretch=1.0):
    """Turn pairs of channels by an angle that grows with the position: rotary position embedding.

        θ_j = (position / stretch) · base^(-2j/R),   j = 0 … R/2 - 1                   (1)
        y_a = x_a cos θ_j - x_b sin θ_j                                                (2)
        y_b = x_a sin θ_j + x_b cos θ_j

    A query at m and a key at n, both turned, have a product that depends on m - n alone. Lengths stay. Going back is turning
    back, by -θ. Keeps the angles only.

    pairing   which channels (a, b) make pair j: "halves" (j, j + R/2), as GPT-NeoX and Hugging Face have it, or "neighbours"
              (2j, 2j + 1), as the paper, Meta's Llama and GGUF files; the two differ by an order of the channels
    rotated   R, how many of the K channels are turned; the others pass (all, unless given)
    stretch   above 1, positions are squeezed into the range that training saw (position interpolation)

    Source  Su et al. 2021, arXiv 2104.09864; interpolation: Chen et al. 2023, arXiv 2306.15595; docs/derivations/positions.md

    >>> q = np.array([1.0, 2, 3, 4]).reshape(1, 1, 1, 4)
    >>> rotary.vjp(q, np.array([3]), pairing="neighbours")[0].ravel().round(4).tolist()
    [-1.2722, -1.8389, 2.8787, 4.0882]
    """
    xp, K = array_module(x), x.shape[3]
    R = K if rotated is None else rotated
    check_rotary(K, R, pairing, base, stretch)
    frequencies = base ** (-2 * xp.arange(R // 2) / R) / stretch                             # 1  (R/2), float64
    theta = positions[..., None] * frequencies                                               # (T, R/2) or (B, T, R/2)
    theta = theta if theta.ndim < 3 else theta[:, None]                                      # the same for all heads
    cos, sin = xp.cos(theta).astype(x.dtype), xp.sin(theta).astype(x.dtype)
    first, second = pairs(R, pairing)

    def turn(x, sin):                                                                        # 2
        y = x.copy()
        a, b = x[..., first], x[..., second]
        y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
        return y

    def backward(dy):
        return turn(dy, -sin), None

    return turn(x, sin), backward


def pairs(R, pairing):
    """The places of the first and of the second channel of every pair."""
    if pairing == "halves":
        return slice(0, R // 2), slice(R // 2, R)
    return slice(0, R, 2), slice(1, R, 2)


def check_rotary(K, R, pairing, base, stretch):
    if pairing not in PAIRINGS:
        raise ValueError(f"pairing must be one of {', '.join(PAIRINGS)}, got {pairing!r}")
    if not isinstance(R, int) or not 0 <= R <= K or R % 2:
        raise ValueError(f"rotated must be an even number of at most K = {K} channels, got {R!r}")
    for name, value in (("base", base), ("stretch", stretch)):
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, got {value!r}")


def sinusoid(positions, D, *, base=10000.0):
    """The code of 2017: sines and cosines of D/2 wavelengths, from 2π to 2π · base; positions (...) -> (..., D), float64.

        code[2j], code[2j + 1] = sin, cos of  position · base^(-2j/D)

    A shift by k is a fixed linear map of the code, whatever the position: each pair turns by k · base^(-2j/D). An odd D ends
    with a sine.

    Source  Vaswani et al. 2017, arXiv 1706.03762, section 3.5

    >>> sinusoid(np.array([0, 1]), 3).round(4).tolist()
    [[0.0, 1.0, 0.0], [0.8415, 0.5403, 0.0022]]
    """
    xp = array_module(positions)
    channels = xp.arange(D)
    angles = positions[..., None] * base ** (-2.0 * (channels // 2) / D)
    return xp.where(channels % 2 == 0, xp.sin(angles), xp.cos(angles))


def alibi_slopes(N):
    """One slope for each of N heads: 2^(-8/N), 2^(-16/N), … 2^-8 where N is a power of two; else those of the power below it,
    and then every second one of the power above, as the authors' code has it.

    Source  Press, Smith & Lewis 2021, arXiv 2108.12409

    >>> alibi_slopes(2), alibi_slopes(3)
    ([0.0625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    below = 2 ** int(math.log2(N))
    return [2 ** (-8 * i / below) for i in range(1, below + 1)] + [2 ** (-4 * i / below) for i in range(1, 2 * (N - below), 2)]


def distance_bias(N, queries, keys):
    """What ALiBi adds to the scores: minus the distance, times the slope of the head; positions (Tq), (Tk) -> (N, Tq, Tk).

    >>> distance_bias(2, np.arange(2, 3), np.arange(3))[0].tolist()
    [[-0.125, -0.0625, -0.0]]
    """
    slopes = array_module(keys).asarray(alibi_slopes(N))[:, None, None]
    return -slopes * abs(queries[:, None] - keys)
