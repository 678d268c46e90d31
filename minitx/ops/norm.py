"""Normalisation: keep the numbers that flow through a deep network at one scale.

Read next: `recurrent.py`, where an op is a step through time.
"""

from ..backend import array_module
from ..op import op
from ..sums import column_sum, row_dot, row_sum, wide


def check_eps(eps):
    if not eps >= 0:
        raise ValueError(f"eps must be a number of at least 0, got {eps}")


@op("x (..., D), gamma (D), beta (D) -> y (..., D)")
def layer_norm(x, gamma, beta, *, eps=1e-5):
    """Give every row mean 0 and variance 1, then a learned scale and shift.

        centred = x - mean(x)                                       (1)
        rstd    = 1 / √(mean(centred²) + eps)                       (2)
        xhat    = centred rstd                                      (3)
        y       = gamma xhat + beta                                 (4)

    Going back, a row can lose neither mean nor length, so dx is what is left of dxhat without its part along 1 and along xhat:

        dx = rstd (dxhat - mean(dxhat) - xhat mean(dxhat xhat)),    dxhat = dy gamma

    Both means are sums over dy with the weights gamma. Keeps xhat, rstd and gamma.

    Stable  the variance is taken of the centred row; mean(x²) - mean(x)² loses all its digits when the mean is large
    Source  Ba, Kiros & Hinton 2016, arXiv 1607.06450; derived in docs/derivations/layer_norm.md

    >>> x = np.array([[-1.0, 1.0], [-10.0, 10.0], [-5.0, 15.0]])
    >>> layer_norm.vjp(x, np.ones(2), np.zeros(2))[0].round(3).tolist()
    [[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]
    """
    check_eps(eps)
    xp, dtype, width, D = array_module(x), x.dtype, wide(x), x.shape[-1]
    gamma = gamma.astype(width, copy=False)
    xhat = x - x.sum(-1, dtype=width, keepdims=True) / D    # 1  centred; `sum` adds in pairs and loses less than row_sum
    rstd = 1 / xp.sqrt(row_dot(xhat, xhat) / D + eps)                                        # 2
    xhat *= rstd                                                                             # 3
    y = gamma * xhat                                                                         # 4
    y += beta

    def backward(dy):
        dgammas = dy * xhat
        dgamma, dbeta = column_sum(dgammas), column_sum(dy)                                  # 4
        shares = gamma / D
        dx = dy * gamma                                                                      # dxhat
        dx -= row_sum(dy, shares)                                                            # mean(dxhat)
        dx -= xhat * row_sum(dgammas, shares)                                                # mean(dxhat xhat)
        dx *= rstd                                                                           # 3, 2, 1
        return dx.astype(dtype, copy=False), dgamma.astype(dtype, copy=False), dbeta.astype(dtype, copy=False)

    return y.astype(dtype, copy=False), backward


@op("x (..., D), gamma (D) -> y (..., D)")
def rms_norm(x, gamma, *, eps=1e-6):
    """Give every row a root mean square of 1, then a learned scale: layer norm without the mean.

        rstd = 1 / √(mean(x²) + eps)                                (1)
        xhat = x rstd                                               (2)
        y    = gamma xhat                                           (3)

    Going back, a row can still not lose its length: dx is what is left of dxhat without its part along xhat:

        dx = rstd (dxhat - xhat mean(dxhat xhat)),    dxhat = dy gamma

    Keeps xhat, rstd and gamma.

    Source  Zhang & Sennrich 2019, arXiv 1910.07467; derived in docs/derivations/layer_norm.md

    >>> y = rms_norm.vjp(np.array([[3.0, 4.0], [30.0, 40.0]]), np.ones(2))[0]
    >>> (y * y).mean(-1).round(3).tolist(), np.allclose(y[0], y[1])
    ([1.0, 1.0], True)
    """
    check_eps(eps)
    xp, dtype, D = array_module(x), x.dtype, x.shape[-1]
    rows, gamma = x.astype(wide(x), copy=False), gamma.astype(wide(x), copy=False)
    rstd = 1 / xp.sqrt(row_dot(rows, rows) / D + eps)                                        # 1
    xhat = rows * rstd                                                                       # 2
    y = gamma * xhat                                                                         # 3

    def backward(dy):
        dgammas = dy * xhat
        dgamma = column_sum(dgammas)                                                         # 3
        dx = dy * gamma                                                                      # dxhat
        dx -= xhat * row_sum(dgammas, gamma / D)
        dx *= rstd                                                                           # 2, 1
        return dx.astype(dtype, copy=False), dgamma.astype(dtype, copy=False)

    return y.astype(dtype, copy=False), backward
