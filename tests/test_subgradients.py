"""Where there is no slope, or several: what the gradient is by convention. A small specification, the same on every device.

No nudge can tell at a kink, so the contract stays away from these points. Read next: `test_cases_ops.py`.
"""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import backend

from .common import every_device
from .harness import as_tuple, call, on_host, run

inf, nan = math.inf, math.nan
arr = np.array


def gradients(name, sample, device):
    """Of all inputs, for an output gradient of ones."""
    forward = run(mx.OPS[name], sample.on(device))
    return on_host(forward.gradients(tuple(backend.array_module(y).ones_like(y) for y in forward.outputs)))


SPECIFICATION = {
    # flat at the corner
    "relu at 0": ("relu", call(arr([-1.0, 0.0, -0.0, 1.0])), [0, 0, 0, 1]),
    "abs at 0": ("abs", call(arr([-2.0, 0.0, -0.0, 3.0])), [-1, 0, 0, 1]),
    "norm at 0": ("norm", call(np.zeros((2, 3)), axis=1), np.zeros((2, 3))),
    "norm of all at 0": ("norm", call(np.zeros(2)), [0, 0]),
    "norm of a zero row beside another": ("norm", call(arr([[0.0, 0.0], [3, -4]]), axis=1), [[0, 0], [0.6, -0.8]]),
    # the ends of an interval belong to it
    "clip": ("clip", call(arr([-1.5, -1, 0, 2, 2.5]), low=-1, high=2), [0, 1, 1, 1, 0]),
    "clip from below": ("clip", call(arr([0.0, 1, 2]), low=1), [0, 1, 1]),
    "clip to one number": ("clip", call(arr([0.0, 1, 2]), low=1, high=1), [0, 1, 0]),
    # ties share evenly
    "max": ("max", call(arr([1.0, 3, 3])), [0, 1 / 2, 1 / 2]),
    "max along an axis": ("max", call(arr([[1.0, 2], [1, 0], [0, 2]]), axis=0), [[1 / 2, 1 / 2], [1 / 2, 0], [0, 1 / 2]]),
    "max over two axes": ("max", call(arr([[[5.0, 1], [5, 5]]]), axis=(1, 2)), [[[1 / 3, 0], [1 / 3, 1 / 3]]]),
    "max of 0 and -0": ("max", call(arr([-0.0, 0.0])), [1 / 2, 1 / 2]),
    "max of -inf": ("max", call(arr([[-inf, -inf], [-inf, 1]]), axis=1), [[1 / 2, 1 / 2], [0, 1]]),
    "min": ("min", call(arr([2.0, 1, 1, 1]), keepdims=True), [0, 1 / 3, 1 / 3, 1 / 3]),
    "maximum": ("maximum", call(arr([1.0, 2, 3]), arr([2.0, 2, 2])), [0, 1 / 2, 1], [1, 1 / 2, 0]),
    "minimum": ("minimum", call(arr([1.0, 2, 3]), arr([2.0, 2, 2])), [1, 1 / 2, 0], [0, 1 / 2, 1]),
    "maximum that broadcasts": ("maximum", call(arr([0.0]), arr([0.0, 1, 0, -1])), [2], [1 / 2, 1, 1 / 2, 0]),
    "maximum of infinities": ("maximum", call(arr([-inf, inf]), arr([-inf, inf])), [1 / 2, 1 / 2], [1 / 2, 1 / 2]),
    "maximum and a number": ("maximum", call(arr([-1.0, 0, 1]), 0), [0, 1 / 2, 1], None),
    # powers: x^0 is 1 everywhere, 0^y is 0 for every y > 0
    "x^0": ("power", call(arr([0.0, 2, inf, -1]), 0), [0, 0, 0, 0], None),
    "x^1 at 0": ("power", call(arr([0.0, -2]), 1), [1, 1], None),
    "x² at 0": ("power", call(arr([0.0, -0.0]), 2), [0, 0], None),
    "0^y": ("power", call(0, arr([0.0, 0.5, 1, 2])), None, [0, 0, 0, 0]),
    "x^y at 0": ("power", call(arr([0.0, 0, 0]), arr([0.0, 1, 3])), [0, 1, 0], [0, 0, 0]),
    "x^y of negative numbers": ("power", call(arr([-2.0, -3]), arr([2.0, -1])), [-4, -1 / 9], [nan, nan]),
    # a product knows no quotient
    "prod": ("prod", call(arr([[2.0, 3, 4], [2, 0, 4], [0, 3, 0], [0, 0, 0]]), axis=1),
             [[12, 8, 6], [0, 8, 0], [0, 0, 0], [0, 0, 0]]),
    # nothing is lost where the truth has probability 0
    "kl_divergence at p = 0": ("kl_divergence", call(arr([[-1.0, -inf, -2]]), arr([[1.0, 0, 0]])), [[-1, 0, 0]], [[2, 0, 0]]),
    # no gradient reaches what was masked
    "logsumexp of -inf": ("logsumexp", call(arr([[-inf, -inf], [0, -inf]]), axis=1), [[0, 0], [1, 0]]),
    "where": ("where", call(arr([True, False]), arr([1.0, inf]), arr([nan, 2.0])), None, [1, 0], [0, 1]),
}


@every_device
@pytest.mark.parametrize("name, sample, expected", [(*case[:2], case[2:]) for case in SPECIFICATION.values()],
                         ids=SPECIFICATION)
def test_the_gradient_by_convention(name, sample, expected, device):
    for ours, right in zip(gradients(name, sample, device), expected, strict=True):
        if right is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, right, rtol=1e-15)


@every_device
@pytest.mark.parametrize("case, slope", [
    (("sqrt", call(arr([0.0]))), inf),
    (("log", call(arr([0.0]))), inf),
    (("power", call(arr([0.0]), 0.5)), inf),
    (("power", call(arr([0.0]), -1)), -inf),
    (("power", call(0, arr([-1.0]))), -inf),
    (("div", call(1.0, arr([0.0]))), -inf),
], ids=["sqrt", "log", "x^0.5", "1/x by power", "0^y", "1/x"])
def test_where_a_slope_is_infinite_so_is_the_gradient_and_numpy_says_so(case, slope, device):
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        *_, dx = [dx for dx in gradients(*case, device) if dx is not None]
    assert dx.tolist() == [slope]


@every_device
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype, rounding", [("float16", 2**-11), ("float32", 2**-24), ("float64", 2**-53)])
def test_the_shares_of_a_tie_add_up_to_one(name, dtype, rounding, device):
    for ties in (1, 2, 3, 4, 7, 8):
        dx, = gradients(name, call(np.ones(ties, dtype)), device)
        assert dx.dtype == dtype and math.fsum(dx) == pytest.approx(1, abs=2 * rounding)
        assert ties not in (1, 2, 3, 4, 8) or dx.sum() == 1


@every_device
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_both_sides_of_a_choice_get_exactly_what_came(name, device):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (2, 50)).astype(float)
    forward = run(mx.OPS[name], call(x, y).on(device))
    dz, = forward.random_dys()
    dx, dy = forward.gradients((dz,))
    assert ((dx + dy) == dz).all()


@every_device
def test_an_infinite_gradient_does_not_reach_the_branch_that_was_not_taken(device):
    x = mx.tensor([0.0, 4.0], device=device, requires_grad=True)
    with np.errstate(divide="ignore"):
        dx = mx.gradients(mx.ops.where(x > 0, x, 0).sqrt().sum())[x]
    assert dx.tolist() == [0, 0.25]


@every_device
@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_of_nothing_is_refused(name, device):
    x = mx.tensor(np.zeros((2, 0, 3)), device=device)
    for axis in (None, 1, (0, 1), -2):
        with pytest.raises(ValueError, match=rf"^{name}: along axis .* an array of shape \(2, 0, 3\) has no numbers"):
            mx.OPS[name](x, axis=axis)
    assert mx.OPS[name](x, axis=2).shape == (2, 0)


@every_device
def test_a_nan_stays_visible(device):
    x, one = mx.tensor([1.0, nan, 3.0], device=device), mx.tensor([2.0, 2.0, nan], device=device)
    for y in (x.max(), x.min(), x.prod(), x.norm(), x.logsumexp(), x.var(), x.cumsum()[2]):
        assert math.isnan(y)
    for y in (mx.ops.maximum(x, one), mx.ops.minimum(x, one)):
        assert np.isnan(y.numpy()).tolist() == [False, True, True]
    assert np.isnan(x.clip(0, 2).numpy()).tolist() == [False, True, False]


def test_the_specification_covers_every_op_with_a_kink():
    with_kinks = {"relu", "abs", "norm", "clip", "max", "min", "maximum", "minimum", "power", "prod", "where"}
    assert with_kinks <= {name for name, *_ in SPECIFICATION.values()}
    assert all(len(expected) == len(as_tuple(sample.args)) for _, sample, *expected in SPECIFICATION.values())
