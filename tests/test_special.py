"""erfc: Python's, number by number, is what every number is held to, from where it is 2 to where it runs out of numbers."""

import math

import numpy as np
import pytest

from minitx import backend, special

from .common import every_device

rng = np.random.default_rng(0)
EVERYWHERE = np.concatenate([np.linspace(-7, 28, 35001), rng.uniform(-1, 1, 2000), 10.0 ** np.arange(-300, 3), [0.0, -0.0]])


def pythons(x):
    return np.array([math.erfc(value) for value in x.tolist()])


def worst(x):
    """The largest relative error, of values that are normal numbers of the dtype, in units of its last digit."""
    expected, limits = pythons(x), np.finfo(x.dtype)
    off = abs(special.erfc(x).astype("float64") - expected) / expected.clip(limits.tiny) / limits.eps
    return float(off[expected > limits.tiny].max())


def test_float64_is_right_but_for_its_last_digits_as_far_as_there_are_numbers():
    assert pythons(EVERYWHERE).min() == 0
    assert 1 < worst(EVERYWHERE) < 5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrower_floats_are_the_nearest_to_the_true_value(dtype):
    x = EVERYWHERE.astype(dtype)
    assert worst(x) < 0.55
    assert (special.erfc(x) == pythons(x).astype(dtype)).mean() > 0.99


def test_numbers_that_are_nearly_too_small_are_right_to_the_smallest_step_there_is():
    x = np.linspace(26.55, 28, 3001)
    np.testing.assert_allclose(special.erfc(x), pythons(x), rtol=0, atol=2 * np.finfo("float64").smallest_subnormal)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_ends_and_what_is_no_number(dtype):
    x = np.array([np.inf, -np.inf, np.nan, 0], dtype)
    with np.errstate(all="raise"):
        y = special.erfc(x)
    np.testing.assert_allclose(y, np.array([0, 2, np.nan, 1], dtype), rtol=1e-15, strict=True)


def test_both_sides_add_up_to_two():
    x = rng.standard_normal(1000)
    np.testing.assert_allclose(special.erfc(x) + special.erfc(-x), 2, rtol=4e-16)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (special._BLOCK,), (2, special._BLOCK // 2 + 1)])
def test_every_shape_comes_back_with_its_numbers_in_place(shape):
    x = rng.standard_normal(shape)
    y = special.erfc(x)
    assert type(y) is np.ndarray and y.shape == shape
    np.testing.assert_allclose(y.ravel(), pythons(x.ravel()), rtol=1e-14)


def test_views_are_read_in_their_order_and_nothing_is_written_into():
    x = rng.standard_normal((4, 6))
    x.flags.writeable = False
    np.testing.assert_array_equal(special.erfc(x.T[::2]), special.erfc(np.ascontiguousarray(x.T[::2])))


@every_device
def test_every_device_gives_the_same_in_its_own_arrays(device):
    x = backend.to_device(rng.standard_normal((3, 5)).astype("float32"), device)
    y = backend.erfc(x)
    assert type(y) is type(x) and y.dtype == "float32"
    np.testing.assert_allclose(backend.to_host(y), pythons(backend.to_host(x).ravel()).reshape(3, 5), rtol=3e-7)
