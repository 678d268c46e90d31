"""erfc(x) = 1 - erf(x), which NumPy lacks: to its last digits, also far out, where erf(x) is 1 and nothing is left but these.

Of z = |x| we take out how fast erfc falls. What is left,

    y = (1 + 2z) exp(z²) erfc(z),

goes smoothly from 1 at z = 0 to 2/√π at infinity, and more so over u = (z - 3)/(z + 3), from -1 to 1: a polynomial of 12 terms
has the 8 digits of float32 there, one of 24 all 16 of float64. It is not copied from a table. It is drawn through values that
Python's erfc and a continued fraction give, at the points where a polynomial strays least in between (Chebyshev's).

Source  Shepherd & Laframboise 1981, Mathematics of Computation 36 (y, and u with 3.75 in place of 3); the continued fraction:
        Laplace 1805, https://dlmf.nist.gov/7.9

Read next: whoever you came from.
"""

from __future__ import annotations

import functools
import math

import numpy as np

_BLOCK = 16384      # numbers at a time, so that what is made on the way stays in the processor's cache


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x) for floats x of any shape, in their dtype: float32 rounded as it should be, float64 to 1e-15 of its size."""
    y = np.empty(x.shape, x.dtype)
    numbers, results = x.reshape(-1), y.reshape(-1)
    with np.errstate(under="ignore"):       # far out it is 0
        for i in range(0, x.size, _BLOCK):
            results[i : i + _BLOCK] = _erfc(numbers[i : i + _BLOCK])
    return y


def _erfc(x: np.ndarray) -> np.ndarray:
    z = np.minimum(np.abs(x), 30, dtype="float64")
    u = (z - 3) / (z + 3)
    first, second, *others = _polynomial(24 if x.dtype == "float64" else 12)
    y = first * u + second
    for coefficient in others:
        y *= u
        y += coefficient
    square = z * z
    if x.dtype == "float64":                # what was rounded off the square, exp would make far larger
        half = z.astype("float32").astype("float64")                                # of half the digits: its square is exact
        y -= y * ((half * half - square) + (z - half) * (z + half))
    y *= np.exp(-square)
    y /= 1 + 2 * z
    return np.where(x < 0, 2 - y, y)


@functools.cache
def _polynomial(terms: int) -> list[float]:
    """The coefficients of y over u, highest first: of the polynomial through `terms` Chebyshev points."""
    u = np.cos(np.pi * (np.arange(terms) + 0.5) / terms)
    y = [(1 + 2 * z) * _scaled(z) for z in (3 * (1 + u) / (1 - u)).tolist()]
    return np.linalg.solve(np.vander(u), y).tolist()


def _scaled(z: float) -> float:
    """exp(z²) erfc(z) for one z ≥ 0: as it stands while both are moderate, else 1/√π · 1/(z + ½/(z + 1/(z + 1½/(z + ...))))."""
    if z < 2:
        return math.exp(z * z) * math.erfc(z)
    fraction = z
    for n in range(100, 0, -1):
        fraction = z + n / 2 / fraction
    return 1 / (math.sqrt(math.pi) * fraction)
