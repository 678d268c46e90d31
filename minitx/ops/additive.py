"""Additive attention: a query and a key are compared by a small network, not by their product.

It came three years before `attention.py`, to let a recurrent decoder look back at every step at the whole source, which
until then had to pass through one vector of fixed size.

Read next: `nn/module.py`, how ops become models.
"""

import math

from ..backend import array_module
from ..op import op
from ..sums import total
from .softmax import softmax


@op("q (B, Tq, A), k (B, Tk, A), v (B, Tk, D), w (A), mask?:bool ~(B, Tq, Tk) -> y (B, Tq, D)")
def additive_attention(q, k, v, w, mask=None, *, watch=None):
    """Bahdanau's attention: a hidden layer of A units scores every pair of a query and a key.

        a      = tanh(q_t + k_s)                     for every query t and key s           (1)
        scores = a · w                                                                     (2)
        probs  = softmax(scores), where allowed                                            (3)
        y      = probs v                                                                   (4)

    q and k are projections by a `linear` each, so that the keys of a source are projected once for all queries to come.
    `mask` is boolean, True = may be attended. A query that may look at nothing gets zeros and gives zero gradients.
    `watch` is shown `probs`.

    Keeps v, w, probs and a (B, Tq, Tk, A): A times the memory of a product q kᵀ, which is the price of the network.

    Stable  |a| < 1, so no score leaves ±Σ|w|, however large the queries; softmax subtracts the largest
    Source  Bahdanau, Cho & Bengio 2014, arXiv 1409.0473; derived in docs/derivations/additive_attention.md

    >>> v = np.array([[[1.0], [3.0]]])
    >>> [additive_attention.vjp(np.full((1, 1, 1), q), v, v, np.ones(1))[0].round(2).item() for q in (-2.0, 0.0, 99.0)]
    [2.64, 2.12, 2.0]
    """
    xp = array_module(q)
    a = xp.tanh(q[:, :, None] + k[:, None])                                                  # 1  (B, Tq, Tk, A)
    scores = a @ w                                                                           # 2  (B, Tq, Tk)
    if mask is not None:
        xp.copyto(scores, -math.inf, where=~mask)
    probs, through_softmax = softmax.vjp(scores)                                             # 3
    y = probs @ v                                                                            # 4  (B, Tq, D)
    if watch:
        watch("probs", probs, None)

    def backward(dy):
        dv = probs.swapaxes(-1, -2) @ dy                                                     # 4
        dscores = through_softmax(dy @ v.swapaxes(-1, -2))                                   # 3
        dw = xp.tensordot(dscores, a, 3)                                                     # 2
        dsum = (1 - a * a) * w                                                               # 1  da/d(q_t + k_s) · w
        dsum *= dscores[..., None]
        return total(dsum, 2), total(dsum, 1), dv, dw, None

    return y, backward
