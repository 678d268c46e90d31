"""Activations: functions of one number, applied to every element. dx = dy f'(x), and f' is often cheaper from y than from x.

Read next: `embedding.py`.
"""

import math

from ..backend import array_module, erfc
from ..op import op


@op("x (...) -> y (...)")
def sigmoid(x):
    """A number squeezed into (0, 1): y = 1 / (1 + exp(-x)); dx = dy y (1 - y). Keeps y.

    The slope is at most 1/4: a chain of sigmoids shrinks a gradient at every link.

    Stable  exp is only asked for -|x|: both tails keep their precision and nothing overflows

    >>> y, backward = sigmoid.vjp(np.array([0.0, 99.0]))
    >>> y.tolist(), backward(np.ones(2)).tolist()
    ([0.5, 1.0], [0.25, 0.0])
    """
    xp = array_module(x)
    e = xp.exp(-xp.abs(x))
    y = xp.where(x >= 0, 1, e) / (1 + e)

    def backward(dy):
        return dy * y * (1 - y)

    return y, backward


@op("x (...) -> y (...)")
def tanh(x):
    """A number squeezed into (-1, 1): y = tanh(x); dx = dy (1 - y²). Keeps y.

    >>> y, backward = tanh.vjp(np.array([0.0, 99.0]))
    >>> y.tolist(), backward(np.ones(2)).tolist()
    ([0.0, 1.0], [1.0, 0.0])
    """
    y = array_module(x).tanh(x)

    def backward(dy):
        return dy * (1 - y * y)

    return y, backward


@op("x (...) -> y (...)")
def relu(x):
    """The positive part: y = max(x, 0); dx = dy where x > 0, else 0 (also *at* 0, by convention). Keeps a boolean mask.

    >>> y, backward = relu.vjp(np.array([-2.0, 0.0, 3.0]))
    >>> y.tolist(), backward(np.ones(3)).tolist()
    ([0.0, 0.0, 3.0], [0.0, 0.0, 1.0])
    """
    positive = x > 0
    return array_module(x).maximum(x, 0), lambda dy: dy * positive


@op("x (...) -> y (...)")
def softplus(x):
    """A smooth relu: y = log(1 + exp(x)); dx = dy σ(x), and σ(x) = 1 - exp(-y). Keeps y.

    Stable  logaddexp takes the larger of x and 0 out first, and expm1 keeps the digits of a slope near 0

    >>> y, backward = softplus.vjp(np.array([0.0, 1000.0]))
    >>> y.round(4).tolist(), backward(np.ones(2)).round(4).tolist()
    ([0.6931, 1000.0], [0.5, 1.0])
    """
    xp = array_module(x)
    y = xp.logaddexp(x, 0)
    return y, lambda dy: dy * -xp.expm1(-y)


@op("x (...) -> y (...)")
def silu(x):
    """x times its own sigmoid, s = σ(x): y = x s; dx = dy s (1 + x (1 - s)). Keeps x and s.

    Source  Hendrycks & Gimpel 2016, arXiv 1606.08415; as swish: Ramachandran et al. 2017, arXiv 1710.05941

    >>> y, backward = silu.vjp(np.array([0.0, 99.0]))
    >>> y.tolist(), backward(np.ones(2)).tolist()
    ([0.0, 99.0], [0.5, 1.0])
    """
    s, _ = sigmoid.vjp(x)
    return x * s, lambda dy: dy * (s * (1 + x * (1 - s)))


@op("x (...) -> y (...)")
def gelu(x, *, approximate="tanh"):
    """A smooth relu: y = x p, where p is the probability that a standard normal number is below x.

        exactly         p = erfc(-x/√2) / 2,   dx = dy (p + x exp(-x²/2) / √(2π))               approximate="none"
        nearly          p = (1 + tanh u) / 2,  u = c (x + a x³),   c = √(2/π),  a = 0.044715    approximate="tanh"
                        dx = dy p (1 + 2 x (1 - p) u'),   u' = c (1 + 3 a x²)

    They differ by up to 5e-4. The tanh form is the one of GPT-2, and much faster in NumPy. Keeps x and p.

    Stable  1 + erf would lose the left tail, erfc keeps it; beyond |x| = 10 the tanh is 1 and beyond 40 the bell is 0 to the
            last bit of float64, so x is clipped there before it is cubed or squared
    Source  Hendrycks & Gimpel 2016, arXiv 1606.08415

    >>> gelu.vjp(np.array([-1.0, 0.0, 1.0, 99.0]))[0].round(3).tolist()
    [-0.159, 0.0, 0.841, 99.0]
    """
    if approximate not in ("tanh", "none"):
        raise ValueError(f"approximate must be 'tanh' or 'none', got {approximate!r}")
    xp = array_module(x)
    if approximate == "none":
        p, near = erfc(x * -math.sqrt(0.5)) * 0.5, x.clip(-40, 40)

        def exact_backward(dy):
            return dy * (p + near * xp.exp(near * near * -0.5) * (1 / math.sqrt(2 * math.pi)))

        return x * p, exact_backward
    c, a = math.sqrt(2 / math.pi), 0.044715
    near = x.clip(-10, 10)
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
