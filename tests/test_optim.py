"""Optimisers against plain Python loops, clipping that keeps the direction or refuses, the schedule step by step."""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import backend
from minitx.clipping import clip_grad_norm, grad_norm
from minitx.optim import SGD, Adam, AdamW
from minitx.schedules import inverse_sqrt, warmup_cosine

from .common import every_device, leaf, refused

rng = np.random.default_rng(0)
OPTIMIZERS = {
    "SGD": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.05, momentum=0.9),
    "Adam": lambda p: Adam(p, 0.1, weight_decay=0.01),
    "AdamW": lambda p: AdamW(p, 0.1),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def with_grad(data, grad, dtype="float64", device="cpu"):
    p = leaf(data, dtype, device)
    p.grad = mx.tensor(grad, dtype=dtype, device=device).array
    return p


def path_of(optimizer, p, grads):
    """The values of a parameter of one number after each of these gradients."""
    values = []
    for g in grads:
        p.grad = np.array([g], p.dtype)
        optimizer.step()
        values.append(p.item())
    return values


# Steps


def test_c42_adam_has_eps_after_the_root_and_after_the_correction():
    p = leaf([1])
    values = path_of(Adam([p], 0.1, betas=(0.9, 0.999), eps=1e-3), p, [1e-3, -2e-3])
    np.testing.assert_allclose(values, [0.95, 0.972427858073], rtol=1e-10)


@pytest.mark.parametrize("lr, mu, decay", [(0.1, 0, 0), (0.1, 0, 0.02), (0.1, 0.9, 0), (0.03, 0.5, 0.1)])
def test_sgd_equals_a_plain_loop(lr, mu, decay):
    p, grads = leaf([2]), rng.standard_normal(20)
    w, m, expected = 2.0, 0.0, []
    for g in grads:
        m = mu * m + (g + decay * w)
        w -= lr * m
        expected.append(w)
    np.testing.assert_allclose(path_of(SGD([p], lr, momentum=mu, weight_decay=decay), p, grads), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("decay", [0, 0.1])
def test_adam_equals_a_plain_loop(kind, decay):
    p, grads, lr, (b1, b2), eps = leaf([2]), rng.standard_normal(20), 0.03, (0.8, 0.95), 1e-6
    w, m, v, expected = 2.0, 0.0, 0.0, []
    for t, g in enumerate(grads, 1):
        if kind is AdamW:
            w -= lr * decay * w
        else:
            g += decay * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w -= lr * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
        expected.append(w)
    optimizer = kind([p], lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    np.testing.assert_allclose(path_of(optimizer, p, grads), expected, rtol=1e-12)


@every_optimizer
@every_device
def test_every_optimizer_reaches_the_minimum_of_a_quadratic(make, device):
    w, curvature = leaf([3, -2], device=device), mx.tensor(np.array([1.0, 5.0]), device=device)
    optimizer = make([w])
    for step in range(400):
        optimizer.zero_grad()
        (w * w * curvature).sum().backward()
        optimizer.lr = 0.1 * 0.99**step
        optimizer.step()
    assert abs(w.array).max() < 0.01 and optimizer.counts.tolist() == [400]


def test_adam_crosses_a_plain_so_flat_that_gradient_descent_stands_still():
    slow, fast = leaf([3]), leaf([3])
    optimizers = SGD([slow], 0.1), Adam([fast], 0.1)
    for step in range(400):
        for w, optimizer in zip((slow, fast), optimizers):
            w.grad = 2e-5 * w.array                                          # of 1e-5 w²
            optimizer.lr = 0.1 * 0.99**step
            optimizer.step()
    assert slow.item() > 2.999 and abs(fast.item()) < 0.01


@every_optimizer
@every_device
def test_parameters_move_to_the_bit_as_each_would_alone_also_when_gradients_come_late(make, device):
    looks = [((2, 3), "float32"), ((), "float32"), ((4,), "float16"), ((1,), "float64"), ((0,), "float32"), ((3, 2), "float32")]
    together, alone = ([leaf(np.arange(math.prod(shape)).reshape(shape), dtype, device) for shape, dtype in looks]
                       for _ in range(2))
    one, many = make(together), [make([p]) for p in alone]
    for step in range(8):
        for i, (p, q) in enumerate(zip(together, alone)):
            late = (i == 1 and step < 2) or (i == 5 and step in (3, 4))      # has no gradient yet, or not this time
            p.grad = q.grad = None if late else mx.tensor(rng.standard_normal(p.shape), dtype=p.dtype, device=device).array
        if step == 6:                                                        # goes on from a saved state
            state, one = one.state_dict(), make(together)
            one.load_state_dict(state)
        for optimizer in one, *many:
            optimizer.step()
        assert [p.numpy().tolist() for p in together] == [p.numpy().tolist() for p in alone]
    assert one.counts.tolist() == [8, 6, 8, 8, 8, 6]
    for name in one.moments:
        for i, p in enumerate(together):
            assert getattr(one, name)[i].shape == p.shape
            assert np.array_equal(backend.to_host(getattr(one, name)[i]), backend.to_host(getattr(many[i], name)[0]))


@every_optimizer
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@every_device
def test_c58_the_dtype_of_a_parameter_stays_and_moments_are_never_float16(make, dtype, device):
    p = with_grad([[1, 2]], [[0.5, -1]], dtype, device)
    optimizer, memory = make([p]), p.array
    for _ in range(3):
        optimizer.step()
    assert p.array is memory and p.dtype == p.grad.dtype == dtype, "in place"
    if isinstance(optimizer, Adam):
        assert optimizer.m[0].dtype == optimizer.v[0].dtype == ("float64" if dtype == "float64" else "float32")


def test_float16_gradients_that_underflow_on_the_way_still_count():
    p = with_grad([1], [1e-4], "float16")                                    # squared: 1e-8, which float16 has not
    Adam([p], 0.25).step()
    assert p.item() == 0.75
    p = with_grad([1], [0], "float16")
    Adam([p], 0.25, weight_decay=1e-8).step()                                # a gradient of 1e-8, and eps as large
    assert p.item() == 0.875


@every_optimizer
def test_a_parameter_without_a_gradient_stays_and_gradients_are_not_touched(make):
    p, still, constant = with_grad([1, 2], [3, 4]), leaf([5]), mx.tensor([6.0])
    optimizer = make([p, still, constant])
    optimizer.step()
    assert still.array.tolist() == [5] and constant.array.tolist() == [6]
    assert p.grad.tolist() == [3, 4] and not np.array_equal(p.array, [1, 2])
    optimizer.zero_grad()
    assert p.grad is None


@every_optimizer
def test_no_moment_lives_in_the_gradient_of_the_user(make):
    ends = []
    for forget in (lambda p: p.grad.fill(0), lambda p: setattr(p, "grad", np.zeros(2))):
        p = with_grad([1, 2], [3, 4])
        optimizer = make([p])
        optimizer.step()
        forget(p)
        optimizer.step()
        ends.append(p.numpy())
    assert np.array_equal(*ends)


MISFITS = {
    "another shape": (lambda: np.ones(2), "the gradient of parameter 1 is float64 of shape (2,) on cpu"),
    "as many numbers": (lambda: np.ones((3, 1)), "float64 of shape (3, 1) on cpu"),
    "one number": (lambda: np.float64(1), "float64 of shape () on cpu"),
    "another dtype": (lambda: np.ones(3, "float32"), "float32 of shape (3,) on cpu"),
    "another device": (lambda: backend.to_device(np.ones(3), "strict"), "float64 of shape (3,) on strict"),
    "a list": (lambda: [1.0, 1.0, 1.0], "the gradient of parameter 1 is a list"),
    "a Tensor": (lambda: mx.tensor(np.ones(3)), "the gradient of parameter 1 is a Tensor"),
}


@every_optimizer
@pytest.mark.parametrize("grad, told", MISFITS.values(), ids=MISFITS)
def test_a_gradient_that_does_not_look_like_its_parameter_is_refused_before_anything_moves(make, grad, told):
    a, b = with_grad([1, 2], [3, 4]), leaf([1, 2, 3])
    optimizer = make([a, b])
    b.grad = grad()
    message = refused(ValueError, optimizer.step, told, "and the parameter is float64 of shape (3,) on cpu; set .grad")
    assert message.startswith(type(optimizer).__name__ + ": ")
    assert a.array.tolist() == [1, 2] and optimizer.counts.tolist() == [0, 0] and optimizer.state_dict().keys() == {"counts"}


@every_optimizer
def test_the_gradient_of_a_single_number_may_be_a_numpy_scalar(make):
    ends = []
    for grad in np.array(0.5), np.float64(0.5):
        p = leaf(2.0)
        p.grad = grad
        clip_grad_norm([p], 0.25)
        make([p]).step()
        ends.append(p.item())
    assert ends[0] == ends[1] != 2


def test_a_step_between_forward_and_backward_is_noticed():
    p = with_grad([1, 2], [3, 4])
    loss = (p * p).sum()
    SGD([p], 0.1).step()
    refused(RuntimeError, loss.backward, "mul kept its argument x", "changed by assign_")


def test_optimizers_refuse_what_makes_no_sense():
    refused(ValueError, lambda: Adam([]), "Adam: no parameters that require a gradient")
    refused(ValueError, lambda: SGD([mx.tensor([1.0])], 0.1), "SGD: no parameters", "model.parameters()")
    refused(ValueError, lambda: AdamW([leaf([1])], -1), "AdamW: lr is -1; expected a finite number of at least 0")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_of_numpy_are_numbers_and_are_held_to_the_same_limits(kind):
    optimizer = Adam([leaf([1])], kind(0.25), betas=(kind(0.5), kind(0.75)), eps=kind(0.125), weight_decay=kind(0))
    assert type(optimizer.lr) is float and optimizer.lr == 0.25
    refused(ValueError, lambda: Adam([leaf([1])], betas=(0.9, kind(1.0))), "Adam: beta2 is", "a finite number from 0 to")
    refused(ValueError, lambda: SGD([leaf([1])], kind(math.inf)), "SGD: lr is", "expected a finite number of at least 0")
    refused(ValueError, lambda: SGD([leaf([1])], 10 ** 400), "SGD: lr is 1000")


# Clipping


@every_device
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_c40_clipping_keeps_the_direction_and_returns_the_norm_before(dtype, device):
    a, b = (with_grad([0, 0], grad, dtype, device) for grad in ([3, 0], [0, 4]))
    c, given = leaf([1], dtype, device), a.grad
    assert clip_grad_norm([a, b, c], 1) == 5
    tolerance = 1e-3 if dtype == "float16" else 1e-7
    np.testing.assert_allclose(a.grad.tolist() + b.grad.tolist(), [0.6, 0, 0, 0.8], rtol=tolerance)
    assert a.grad.dtype == dtype and c.grad is None
    assert given.tolist() == [3, 0], "the array that was there is not written to"


@pytest.mark.parametrize("limit", [5, 5.1, math.inf])
def test_c40_short_gradients_stay_bit_for_bit(limit):
    a, b = with_grad([0, 0], [3, 0]), with_grad([0, 0], [0, 4])
    grads = a.grad, b.grad
    assert clip_grad_norm([a, b], limit) == 5
    assert a.grad is grads[0] and b.grad is grads[1]


@pytest.mark.parametrize("limit", [0, -1, math.nan])
def test_c40_a_limit_that_is_none_is_refused(limit):
    refused(ValueError, lambda: clip_grad_norm([leaf([1])], limit), "max_norm must be above 0", f"got {limit}")


@every_device
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("limit", [1, math.inf])
def test_c40_a_gradient_that_is_not_finite_is_refused_and_named_and_nothing_changes(bad, limit, device):
    good, ill = with_grad([1, 2], [3, 4], device=device), with_grad([1, 2], [bad, 0], device=device)
    named = {"head.W": good, "body.U": ill}
    refused(FloatingPointError, lambda: clip_grad_norm(named, limit),
            "clip_grad_norm: the gradient of body.U is not finite, and nothing was changed", "lower the learning rate")
    refused(FloatingPointError, lambda: clip_grad_norm(named.values(), limit), "the gradient of parameter 1 is")
    assert good.array.tolist() == [1, 2] and good.grad.tolist() == [3, 4] and ill.grad[1] == 0


@pytest.mark.parametrize("dtype, huge", [("float32", 1e30), ("float32", 3e38), ("float16", 6e4)])
def test_a_norm_whose_square_overflows_is_clipped_all_the_same(dtype, huge):
    p = with_grad(np.zeros(1000), np.full(1000, huge), dtype)
    exact = float(p.grad[0]) * math.sqrt(1000)
    assert grad_norm([p]) == pytest.approx(exact, rel=1e-12)
    assert clip_grad_norm([p], 1.0) == pytest.approx(exact, rel=1e-12)
    assert grad_norm([p]) == pytest.approx(1, rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_a_gradient_whose_square_is_too_large_for_float64_is_refused_but_not_called_infinite():
    a, b = with_grad([0], [1]), with_grad([0, 0], [1e200, 1])
    assert grad_norm([a, b]) == math.inf
    refused(FloatingPointError, lambda: clip_grad_norm([a, b], 1),
            "clip_grad_norm: the squared length of the gradient is not finite, and nothing was changed")
    assert b.grad.tolist() == [1e200, 1]


def test_a_gradient_of_one_number_stays_an_array():
    p = with_grad(1.0, 8.0, "float32")
    assert clip_grad_norm([p], 2.0) == 8 and type(p.grad) is np.ndarray and p.grad == 2 and p.grad.dtype == "float32"


# Schedule


def test_c46_warm_up_and_cosine_step_by_step():
    rate = warmup_cosine(1, total=10, warmup=4, floor=0.1)
    expected = [.25, .5, .75, 1, 1, 0.9397114317, 0.775, 0.55, 0.325, 0.1602885683, .1, .1, .1]
    np.testing.assert_allclose([rate(step) for step in range(13)], expected, rtol=1e-9)
    assert [rate(step) for step in (7, 3, 12)] == [rate(7), rate(3), 0.1], "it remembers nothing: resume where you like"


@pytest.mark.parametrize("warmup", [0, 1, 7, 20])
def test_c46_a_schedule_learns_from_the_first_step_and_never_passes_its_peak_or_comes_back_up(warmup):
    rates = [warmup_cosine(0.3, total=20, warmup=warmup, floor=0.01)(step) for step in range(60)]
    assert rates[0] > 0 and max(rates) == 0.3 and rates[20:] == [0.01] * 40
    assert np.all(np.diff(rates[:warmup]) > 0) and np.all(np.diff(rates[max(warmup, 1) - 1:]) <= 0)


@pytest.mark.parametrize("warmup", [-1, 11])
def test_a_warm_up_longer_than_all_is_refused(warmup):
    refused(ValueError, lambda: warmup_cosine(1, total=10, warmup=warmup), "from 0 to total = 10", f"got {warmup}")


def test_the_schedule_of_2017_is_that_of_its_paper():
    D, warmup = 512, 4000
    rate = inverse_sqrt((D * warmup) ** -0.5, warmup=warmup)
    for step in (1, 7, 3999, 4000, 4001, 100_000):                                  # the paper counts from 1
        assert rate(step - 1) == pytest.approx(D ** -0.5 * min(step ** -0.5, step * warmup ** -1.5), rel=1e-12)
    assert max(map(rate, range(9000))) == rate(warmup - 1) == (D * warmup) ** -0.5


@pytest.mark.parametrize("peak, warmup, complaint", [(-1.0, 2, "peak is -1.0"), (1.0, 0, "warmup is 0")])
def test_a_schedule_without_sense_is_refused(peak, warmup, complaint):
    refused(ValueError, lambda: inverse_sqrt(peak, warmup=warmup), "inverse_sqrt", complaint)
