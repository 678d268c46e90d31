"""Powers, roots, exponentials and logarithms, element by element: dx = dy times the slope.

At 0 the slopes of √x, of log x and of powers below 1 are infinite. So are the gradients there, as mathematics has it. `where`
in `extremes.py` shows how to keep such a point out.

Read next: `extremes.py`.
"""

import math

from ..backend import array_module
from ..op import op
from .basic import alike, broadcasting, unbroadcast


@op(broadcasting)
def power(x, y):
    """z = x^y, with broadcasting; one of the two may be a Python number.

        dx = dz y x^(y-1)           0 where y = 0, since x^0 is 1 everywhere, also at 0
        dy = dz z log x             0 where x = 0 and y ≥ 0; NaN where x < 0, since x^y is no real number a little beside y

    Keeps x, y and z.

    >>> z, backward = power.vjp(np.array([3.0, 0.0]), np.array([2.0, 0.0]))
    >>> z.tolist(), backward(np.ones(2))[0].tolist()
    ([9.0, 1.0], [6.0, 0.0])
    """
    x, y, to_x, to_y = alike(x, y)
    z = x ** y

    def backward(dz):
        dx = dy = None
        if to_x is not None:
            dx = unbroadcast(dz * (y * x ** (y - (y != 0))), to_x)           # where y is 0 the exponent stays, and y makes it 0
        if to_y is not None:
            xp = array_module(y)
            base = xp.asarray(x, dz.dtype)
            base = xp.where((base == 0) & (y >= 0), 1, xp.where(base < 0, math.nan, base))
            dy = unbroadcast(dz * z * xp.log(base), to_y)
        return dx, dy

    return z, backward


@op("x (...) -> y (...)")
def exp(x):
    """y = exp(x); dx = dy y: the function that is its own slope. Keeps y.

    >>> y, backward = exp.vjp(np.array([0.0, 1.0, 2.0]))
    >>> y[0].item(), bool((backward(np.ones(3)) == y).all())
    (1.0, True)
    """
    y = array_module(x).exp(x)

    def backward(dy):
        return dy * y

    return y, backward


@op("x (...) -> y (...)")
def log(x):
    """The natural logarithm: y = log x; dx = dy / x. At 0 both are infinite. Keeps x.

    >>> y, backward = log.vjp(np.array([1.0, 2.0, 4.0]))
    >>> y[0].item(), backward(np.ones(3)).tolist()
    (0.0, [1.0, 0.5, 0.25])
    """
    return array_module(x).log(x), lambda dy: dy / x


@op("x (...) -> y (...)")
def sqrt(x):
    """The square root: y = √x; dx = dy / (2 y), infinite at 0. Keeps y.

    >>> y, backward = sqrt.vjp(np.array([1.0, 4.0, 16.0]))
    >>> y.tolist(), backward(np.ones(3)).tolist()
    ([1.0, 2.0, 4.0], [0.5, 0.25, 0.125])
    """
    y = array_module(x).sqrt(x)
    return y, lambda dy: dy / (2 * y)


@op("x:any (...) -> y (...)")
def abs(x):
    """The absolute value: y = |x|; dx = dy where x > 0, -dy where x < 0, and 0 at 0, by convention. Keeps x.

    >>> abs.vjp(np.array([-2.0, 0.0, 3.0]))[1](np.ones(3)).tolist()
    [-1.0, 0.0, 1.0]
    """
    xp = array_module(x)
    return xp.abs(x), lambda dy: dy * xp.sign(x)
