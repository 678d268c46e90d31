"""What the ops of `samples_numpy.py` refuse, each time in one sentence that says what to do. `test_op.py` has the others."""

import numpy as np
import pytest

import minitx as mx
from minitx import ops

from .common import every_device, leaf, refused

REFUSALS = {
    "power: shapes": (lambda x, i: ops.power(x, x[:, :2]), ValueError, "power: these shapes do not broadcast: axis -1"),
    "clip: no bound": (lambda x, i: x.clip(), ValueError, "clip: give low, high or both"),
    "clip: bounds": (lambda x, i: x.clip(2, 1), ValueError, "clip: low must not be above high, got low = 2, high = 1"),
    "where: a float": (lambda x, i: ops.where(x, x, 0), TypeError, "where: condition must be an array of booleans, got float64",
                       "as in x > 0"),
    "where: a bool": (lambda x, i: ops.where(True, x, 0), TypeError, "where: condition", "got bool"),
    "var: too few": (lambda x, i: x.var(0, ddof=2), ValueError, "var: along axis 0 an array of shape (2, 3) has 2 numbers",
                     "more than ddof = 2 are needed"),
    "var: of nothing": (lambda x, i: x[:0].var(), ValueError, "var: along axis None", "has 0 numbers"),
    "mean: of nothing": (lambda x, i: x[:, :0].mean(1), ValueError, "mean: the mean along axis 1", "nothing to average"),
    "pad: negative": (lambda x, i: ops.pad(x, widths=-1), ValueError, "pad: widths must be a pair (before, after) of lengths"),
    "pad: too many": (lambda x, i: ops.pad(x, widths=((1, 1),) * 3), ValueError, "for each of 2 axes, got ((1, 1), (1,"),
    "pad: no pair": (lambda x, i: ops.pad(x, widths=(1, 2, 3)), ValueError, "pad: widths must be a pair"),
    "take: an id": (lambda x, i: ops.take(x, i + 2), IndexError, "take: ids must be from 0 to 1, got 3"),
    "take: a negative id": (lambda x, i: ops.take(x, i - 1), IndexError, "take: ids must be from 0 to 1, got -1"),
    "take: floats": (lambda x, i: ops.take(x, x), TypeError, "take: ids must be an array of integers, got float64"),
    "take: a number": (lambda x, i: ops.take(x, 1), TypeError, "take: ids must be an array, got a int", "tensor(...)"),
    "gather: an id": (lambda x, i: ops.gather(x, i * 0 + 3), IndexError, "gather: ids must be from 0 to 2, got 3"),
    "gather: booleans": (lambda x, i: ops.gather(x, i > 0), TypeError, "gather: ids must be an array of integers, got bool"),
    "gather: lengths": (lambda x, i: ops.gather(x, i[:1]), ValueError, "gather: ids must have the lengths (2, 3) of x",
                        "all axes but 1, got (1, 1); take picks whole slices"),
    "gather: axes": (lambda x, i: ops.gather(x, i[0]), ValueError, "gather: ids must have the lengths", "got (1,)"),
    "transpose: an axis": (lambda x, i: x.transpose(0, 3), IndexError, "transpose: ", "axes = (0, 3)"),
    "mse: shapes": (lambda x, i: ops.mse(x, x[:, :1]), ValueError, "mse: target must be (...), but has shape (2, 1)"),
    "mse: integers": (lambda x, i: ops.mse(x, i), TypeError, "mse: target must be floating point numbers", "int64"),
    "mse: reduction": (lambda x, i: ops.mse(x, x, reduction="batch"), ValueError, "mse: reduction must be 'mean', 'sum' or"),
    "bce: too large": (lambda x, i: ops.binary_cross_entropy(x, x * 0 + 2), ValueError, "target must be between 0 and 1"),
    "bce: NaN": (lambda x, i: ops.binary_cross_entropy(x, x * float("nan")), ValueError, "target must be between 0 and 1"),
    "kl: negative": (lambda x, i: ops.kl_divergence(x, x * 0 - 1), ValueError, "kl_divergence: p must not be negative"),
    "kl: reduction": (lambda x, i: ops.kl_divergence(x, x * 0, reduction=None), ValueError, "reduction must be", "got None"),
    "rms_norm: gamma": (lambda x, i: ops.rms_norm(x, x[0, :2]), ValueError, "rms_norm: gamma must be (D)", "(D = 3 by x)"),
}


@every_device
@pytest.mark.parametrize("call, kind, parts", [(call, kind, parts) for call, kind, *parts in REFUSALS.values()], ids=REFUSALS)
def test_a_mistake_is_one_sentence(call, kind, parts, device):
    x, i = leaf(np.ones((2, 3)), device=device), mx.tensor([[0], [1]], device=device)
    refused(kind, lambda: call(x, i), *parts)
