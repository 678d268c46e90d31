"""The linear map: where the parameters of a network are, and most of its arithmetic.

Read next: `norm.py`.
"""

import math

from ..op import op
from ..sums import column_sum, narrow


@op("x (..., D), W (D, O), b? (O) -> y (..., O)")
def linear(x, W, b=None):
    """y = x W + b, for every row of x.

        dx = dy Wᵀ                      each input gets back what it gave, weighted alike
        dW = xᵀ dy,   db = Σ dy         summed over all rows: they share the weights

    All leading axes become rows of one matrix, so that the work is one product forward and two backward.
    Keeps x and W.

    >>> y, backward = linear.vjp(np.zeros((3, 2)), np.eye(2), np.array([5.0, 7.0]))
    >>> y[0].tolist(), backward(np.ones((3, 2)))[2].tolist()
    ([5.0, 7.0], [3.0, 3.0])
    """
    shape, D, with_bias = x.shape, x.shape[-1], b is not None
    rows = x.reshape(math.prod(shape[:-1]), D)                               # (rows, D)
    y = rows @ W                                                             # (rows, O)
    if with_bias:
        y += b

    def backward(dy):
        dy = dy.reshape(rows.shape[0], W.shape[1])                           # (rows, O)
        dx = (dy @ W.T).reshape(shape)                                       # (..., D)
        dW = rows.T @ dy
        return dx, dW, narrow(column_sum(dy), dy) if with_bias else None

    return y.reshape(*shape[:-1], W.shape[1]), backward
