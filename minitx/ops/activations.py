"""Activations: functions of one number, applied to every element. dx = dy f'(x), and f' is often cheaper from y than from x.

Read next: `linear.py`.
"""

import math

from ..backend import array_module
from ..op import op


@op("x (...) -> y (...)")
def sigmoid(x):
    """A number squeezed into (0, 1): y = 1 / (1 + exp(-x)); dx = dy y (1 - y). Keeps y.

    The slope is at most 1/4: a chain of sigmoids shrinks a gradient at every link.

    Stable  exp is only asked for -|x|: both tails keep their precision and nothing overflows
    """
    xp = array_module(x)
    e = xp.exp(-xp.abs(x))
    y = xp.where(x >= 0, 1, e) / (1 + e)

    def backward(dy):
        return dy * y * (1 - y)

    return y, backward


@op("x (...) -> y (...)")
def tanh(x):
    """A number squeezed into (-1, 1): y = tanh(x); dx = dy (1 - y²). Keeps y."""
    y = array_module(x).tanh(x)

    def backward(dy):
        return dy * (1 - y * y)

    return y, backward


@op("x (...) -> y (...)")
def relu(x):
    """The positive part: y = max(x, 0); dx = dy where x > 0, else 0 (also *at* 0, by convention). Keeps a boolean mask."""
    positive = x > 0
    return array_module(x).maximum(x, 0), lambda dy: dy * positive


@op("x (...) -> y (...)")
def gelu(x, *, approximate="tanh"):
    """A smooth relu: x times the probability that a standard normal number is below x.

        y = x p,   p = (1 + tanh u) / 2,   u = c (x + a x³),   c = √(2/π),  a = 0.044715
        dx = dy p (1 + 2 x (1 - p) u'),   u' = c (1 + 3 a x²)

    Keeps x and p. This is the tanh form, the one of GPT-2.

    Stable  beyond |x| = 10 the tanh is 1 to the last bit of float64, so x is clipped there before it is cubed
    Source  Hendrycks & Gimpel 2016, arXiv 1606.08415
    """
    if approximate != "tanh":
        raise ValueError(f"approximate must be 'tanh', got {approximate!r}")
    xp = array_module(x)
    c, a = math.sqrt(2 / math.pi), 0.044715
    near = xp.clip(x, -10, 10)
    p = xp.asarray(near * near)                                              # of one number, NumPy makes a scalar
    p *= c * a
    p += c
    p *= near                                                                # u
    xp.tanh(p, out=p)
    p += 1
    p *= 0.5

    def backward(dy):
        dx = near * near
        dx *= 6 * a * c
        dx += 2 * c
        dx *= near                                                           # 2 x u'
        dx *= 1 - p
        dx += 1
        dx *= p
        dx *= dy
        return dx

    return x * p, backward
