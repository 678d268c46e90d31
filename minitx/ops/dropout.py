"""Dropout: training on a different random part of the network at every step.

Read next: `losses.py`.
"""

from ..op import op


@op("x (...), keep:bool ~(...) -> y (...)")
def dropout(x, keep, *, p):
    """y = x / (1 - p) where `keep`, else 0: what is left is scaled up, so that the expected value stays. dx likewise.

    `keep` is a boolean mask, True with probability 1 - p. An op draws no random numbers itself: with the mask as an argument,
    forward and backward cannot disagree, and the same mask gives the same run. p = 1 gives zeros. Keeps the mask.

    Source  Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting

    >>> x, keep = np.ones(4), np.array([True, False, True, False])
    >>> dropout.vjp(x, keep, p=0.5)[0].tolist(), dropout.vjp(x, np.zeros(4, bool), p=1)[0].tolist()
    ([2.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability between 0 and 1, got {p}")
    scale = 1 / (1 - p) if p < 1 else 0.0
    return x * keep * scale, lambda dy: (dy * keep * scale, None)
