"""Losses beside cross-entropy: how far what a model says is from what is true.

`reduction` is "mean", "sum" or "none". The mean of no losses is 0, so that an empty batch does not end a training.

Read next: `recurrent.py`.
"""

from ..backend import array_module
from ..op import op
from ..sums import narrow, total, wide
from ..waits import holds
from .activations import sigmoid
from .basic import alike, unbroadcast


def reduced(losses, reduction):
    """The losses as "mean", "sum" or "none" asks, and the weight that each has in the result."""
    if reduction == "none":
        return losses, 1
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    weight = 1 / max(losses.size, 1) if reduction == "mean" else 1
    return narrow(losses.sum(dtype=wide(losses)) * weight, losses), weight


@op("y (...), target (...) -> loss")
def mse(y, target, *, reduction="mean"):
    """The squared distance: loss = (y - target)²; dy = 2 (y - target) dloss and dtarget = -dy. Keeps the difference.

    >>> loss, backward = mse.vjp(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    >>> loss.item(), backward(np.ones(()))[0].tolist()
    (2.0, [0.0, -2.0])
    """
    difference = y - target
    loss, weight = reduced(difference * difference, reduction)

    def backward(dloss):
        dy = difference * (dloss * (2 * weight))
        return dy, -dy

    return loss, backward


@op("logits (...), target:any (...) -> loss")
def binary_cross_entropy(logits, target, *, reduction="mean"):
    """The surprise at a yes or no, told by `logits` = log(p / (1 - p)) that it is yes with probability p. In nats.

        loss = log(1 + exp(logits)) - target logits
        dlogits = σ(logits) - target,    dtarget = -logits          times the gradient of that loss

    `target` is 1 for yes and 0 for no, or a probability in between; integers and booleans get no gradient. Keeps both.

    Stable  log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), and what cancels is taken away first; log p is never formed

    >>> loss, backward = binary_cross_entropy.vjp(np.array([0.0]), np.array([1.0]))
    >>> np.allclose(loss, np.log(2)), backward(np.ones(()))[0].tolist()
    (True, [-0.5])
    """
    if not holds(((target >= 0) & (target <= 1)).all()):
        raise ValueError("target must be between 0 and 1 everywhere")
    logits, target, _, to_target = alike(logits, target)
    xp = array_module(logits)
    losses = xp.maximum(logits, 0) - target * logits + xp.log1p(xp.exp(-xp.abs(logits)))
    loss, weight = reduced(losses, reduction)

    def backward(dloss):
        share = dloss * weight
        return (sigmoid.vjp(logits)[0] - target) * share, unbroadcast(-logits * share, to_target)

    return loss, backward


@op("log_q (..., V), p (..., V) -> loss")
def kl_divergence(log_q, p, *, reduction="mean"):
    """How much is lost when q stands for p: Σ_v p (log p - log q) of every row, in nats; never negative.

        dlog_q = -p,    dp = log p - log q + 1                      times the gradient of that row

    `log_q` holds logarithms, as log_softmax gives them, p probabilities. "mean" is over rows. Where p is 0 nothing is lost,
    whatever q, and p gets no gradient. Keeps p and log p - log q.

    >>> p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    >>> kl_divergence.vjp(np.log(p), p)[0].item(), round(kl_divergence.vjp(np.log(q), p)[0].item(), 4)
    (0.0, 0.1308)
    """
    if not holds((p >= 0).all()):
        raise ValueError("p must not be negative anywhere")
    xp, some = array_module(p), p > 0
    ratio = xp.where(some, xp.log(xp.where(some, p, 1)) - log_q, 0)
    loss, weight = reduced(total(p * ratio, -1), reduction)

    def backward(dloss):
        share = dloss[..., None] * weight
        return -p * share, xp.where(p > 0, ratio + 1, 0) * share

    return loss, backward
