"""Softmax, its logarithm, and the loss that is made of it.

Read next: `linear.py`, where the parameters are.
"""

import math

from ..backend import array_module, clear_rows
from ..op import op
from ..sums import narrow, row_dot, row_max, row_sum, wide
from ..waits import within


@op("x (...) -> y (...)")
def softmax(x, *, axis=-1):
    """Turn scores into weights: positive, and summing to one along `axis`.

        y_i = exp(x_i) / Σ_j exp(x_j)

    dy_i/dx_j = y_i (δ_ij - y_j), so a step back keeps what rose above the weighted mean:

        dx = y ∘ (dy - Σ_j dy_j y_j)

    Keeps y.

    Stable  subtracting the maximum changes no weight and keeps exp in range; a row of -inf has no weights, all zero
    Source  Bridle 1990; derived in docs/derivations/softmax.md

    >>> y = softmax.vjp(np.array([[1.0, 2.0], [1001.0, 1002.0]]))[0]
    >>> y.sum(-1).round(9).tolist(), np.allclose(y[0], y[1])
    ([1.0, 1.0], True)
    """
    y = below_peak(x.swapaxes(axis, -1))
    xp = array_module(x)
    xp.exp(y, out=y)
    y /= xp.maximum(row_sum(y), 1)                               # the largest summand is exp(0), or all are exp(-inf)

    def backward(dy):
        dy = dy.swapaxes(axis, -1)
        return (y * (dy - narrow(row_dot(dy, y), y))).swapaxes(axis, -1)

    return y.swapaxes(axis, -1), backward


@op("x (...) -> y (...)")
def log_softmax(x, *, axis=-1):
    """The logarithm of the softmax, without the detour through numbers too small to write down.

        y_i = x_i - log Σ_j exp(x_j)
        dx  = dy - exp(y) Σ_j dy_j

    Keeps y.

    Stable  the largest summand is exp(0) = 1, so the logarithm never sees 0; a row of -inf stays -inf, its gradient is zero
    Source  docs/derivations/softmax.md

    >>> log_softmax.vjp(np.array([-1000.0, 0.0]))[0].tolist()
    [-1000.0, 0.0]
    """
    xp = array_module(x)
    y = below_peak(x.swapaxes(axis, -1))
    denominator = row_sum(xp.exp(y))
    empty = denominator == 0
    y -= xp.log(denominator + empty)

    def backward(dy):
        dy = dy.swapaxes(axis, -1)
        return xp.where(empty, 0, dy - xp.exp(y) * narrow(row_sum(dy), y)).swapaxes(axis, -1)

    return y.swapaxes(axis, -1), backward


def below_peak(rows):
    """x - max x for every row. Where all scores are -inf the shift is 0, and exp gives zeros."""
    return rows - peak(rows, -1)


def peak(x, axis):
    """The largest number along `axis`, to be taken out before exp; 0 where it is infinite or there is none."""
    if x.size == 0:
        return 0
    xp, top = array_module(x), row_max(x) if axis == -1 else x.max(axis, keepdims=True)
    return xp.where(xp.isfinite(top), top, 0)


@op("logits (..., V), targets:int (...) -> loss")
def cross_entropy(logits, targets, *, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """How surprised the scores are by the truth: -log of the weight that softmax gives to the target. In nats.

        shifted = logits - max(logits),   e = exp(shifted)           (1)
        denominator = Σ e                                            (2)
        loss = log(denominator) - shifted[target]                    (3) for every row

    Together the three are kind to whoever goes back:  dlogits = softmax(logits) - onehot(target),  times the row's gradient.

    Rows whose target is `ignore_index` count for nothing. `reduction` is "mean" over the rows that count (0 when none does,
    so that a batch of padding does not end a training), "sum", or "none". With `label_smoothing` s the truth is 1 - s on the
    target plus s/V on every class.

    Keeps softmax's numerators (..., V) and their sums, the targets and the weight of each in the loss.

    Stable  softmax and logarithm are taken together: log of a weight that underflows is never formed
    Source  label smoothing: Szegedy et al. 2016, arXiv 1512.00567; derived in docs/derivations/cross_entropy.md

    >>> loss, backward = cross_entropy.vjp(np.zeros((1, 4)), np.array([2]))
    >>> np.allclose(loss, np.log(4)), backward(np.ones(()))[0].tolist()
    (True, [[0.25, 0.25, -0.75, 0.25]])
    """
    xp, V, shape, dtype = array_module(logits), logits.shape[-1], logits.shape, logits.dtype
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an integer, got {ignore_index!r}; it is the target of rows that do not count")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    n = math.prod(shape[:-1])
    targets = targets.reshape(n)                                                             # (n)
    counts = targets != ignore_index
    truth = targets * counts                                                                 # 0 where it does not count
    check_ids(truth, V, "targets", f"; padding must be ignore_index = {ignore_index}")

    shifted = below_peak(logits.reshape(n, V).astype(wide(logits), copy=False))              # 1  (n, V)
    clear_rows(shifted, ~counts)                                 # whatever stands there
    at_truth, s = shifted[xp.arange(n), truth], label_smoothing                              # (n)
    if s:
        at_truth = (1 - s) * at_truth + s * shifted.mean(-1)
    e = xp.exp(shifted, out=shifted)                             # in its place: nothing else here is as large
    denominator = xp.maximum(row_sum(e)[:, 0], 1)                # 2  (n)  below 1 only in a row of -inf, whose loss is inf
    weights = counts.astype(e.dtype)                                                         # (n)
    if reduction == "mean":
        weights /= xp.maximum(weights.sum(), 1)
    losses = weights * (xp.log(denominator) - at_truth)                                      # 3  (n)
    loss = losses.reshape(shape[:-1]) if reduction == "none" else losses.sum()

    def backward(dloss):
        share = dloss.reshape(-1) * weights                                                  # (n)
        drows = e * (share / denominator)[:, None]                                           # 3, 2, 1  (n, V)
        if s:
            drows -= (share * (s / V))[:, None]
        drows[xp.arange(n), truth] -= (1 - s) * share
        return drows.reshape(shape).astype(dtype, copy=False), None

    return loss.astype(dtype, copy=False), backward


def check_ids(ids, size, name, remedy=""):
    """Ids must be in [0, size). NumPy would count negative ones from the end, CuPy wrap those that are too large."""
    if not within(ids, 0, size - 1):
        low, high = int(ids.min()), int(ids.max())
        raise IndexError(f"{name} must be from 0 to {size - 1}, got {low if low < 0 else high}{remedy}")
