"""Softmax and cross-entropy where plausible code goes wrong: rows of -inf, ignored targets, labels out of range."""

import math

import numpy as np
import pytest

from minitx import ops

from .common import every_device, leaf, refused
from .harness import call, on_host


@every_device
def test_c01_a_row_with_nothing_to_choose_from_has_no_weights_and_no_gradient(device):
    x = leaf([[0, math.log(3)], [-math.inf, -math.inf]], device=device)
    for dy, dx in (([[1, 1], [1, 1]], [[0, 0], [0, 0]]), ([[1, 0], [1, 0]], [[0.1875, -0.1875], [0, 0]])):
        x.grad = None
        y = ops.softmax(x)
        y.backward(dy)
        np.testing.assert_allclose(y.numpy(), [[0.25, 0.75], [0, 0]], rtol=1e-12)
        np.testing.assert_allclose(*on_host([x.grad]), dx, atol=1e-12)
    q = leaf(np.ones((1, 1, 2, 4)), device=device)
    mask = leaf([[1, 1], [0, 0]], device=device).array > 0
    y = ops.attention(q, q, q, mask)
    y.sum().backward()
    assert not y.numpy()[0, 0, 1].any() and np.isfinite(on_host([q.grad])[0]).all()


@every_device
def test_c01_the_truth_of_a_row_with_nothing_to_choose_from_is_an_infinite_surprise(device):
    logits = leaf([[-math.inf] * 3, [0, 0, 0]], device=device)
    loss = ops.cross_entropy(logits, leaf([1, 1], device=device).array.astype(int), reduction="none")
    np.testing.assert_allclose(loss.numpy(), [math.inf, math.log(3)], rtol=1e-12)
    loss.backward([1, 3])
    np.testing.assert_allclose(*on_host([logits.grad]), [[0, -1, 0], [1, -2, 1]], rtol=1e-12)


@every_device
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_c05_when_every_target_is_ignored_loss_and_gradient_are_zero(reduction, device):
    logits = leaf(np.random.default_rng(0).standard_normal((3, 5)), device=device)
    ignored = leaf([-100] * 3, device=device).array.astype(int)
    loss = ops.cross_entropy(logits, ignored, reduction=reduction)
    loss.sum().backward()
    assert not loss.numpy().any() and not on_host([logits.grad])[0].any()


@every_device
@pytest.mark.parametrize("ignore", [-100, 255])
def test_c06_ignored_rows_count_for_nothing(ignore, device):
    logits = leaf([[2, 1, 0], [0, 1, 3], [1, 1, 1], [5, -5, 0]], device=device)
    targets = leaf([0, 2, ignore, 1], device=device).array.astype(int)
    rows = [0.407605964444, 0.169846019556, 0, 10.0067604435]
    for reduction, expected in (("none", rows), ("sum", sum(rows)), ("mean", 3.5280708091826)):
        logits.grad = None
        loss = ops.cross_entropy(logits, targets, ignore_index=ignore, reduction=reduction)
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-10)
        loss.sum().backward()
        assert not on_host([logits.grad])[0][2].any() and on_host([logits.grad])[0][[0, 1, 3]].all()


@every_device
def test_c06_what_stands_in_an_ignored_row_does_not_matter(device):
    logits, targets = np.array([[0.5, 1, 2], [math.nan, 0, 1]]), np.array([1, -100])
    loss, backward = ops.cross_entropy.vjp(*call(logits, targets).on(device).args)
    alone, backward_alone = ops.cross_entropy.vjp(*call(logits[:1], targets[:1]).on(device).args)
    assert loss.item() == alone.item()
    (ours, _), (expected, _) = on_host(backward(loss)), on_host(backward_alone(loss))
    assert ours.tolist() == [*expected.tolist(), [0, 0, 0]]


@every_device
@pytest.mark.parametrize("bad", [3, -4])
def test_c06_a_label_that_does_not_exist_is_named(bad, device):
    logits, targets = leaf(np.zeros((2, 3)), device=device), leaf([0, bad], device=device).array.astype(int)
    refused(IndexError, lambda: ops.cross_entropy(logits, targets), "cross_entropy: targets", "0 to 2", f"got {bad}")
