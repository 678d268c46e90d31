"""The tape: gradients of graphs of any form, and what is refused.

Read next: `test_memory.py`, graphs of any length; `test_assign.py`, writing into Tensors; `test_op.py`, `@op` itself.
"""

import threading

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.models import RecurrentLM, TransformerLM

from .common import every_device, leaf, refused
from .harness import on_host

rng = np.random.default_rng(0)


# Values used more than once


@every_device
def test_c48_a_value_used_twice_gets_the_sum_of_both_gradients(device):
    a, b = leaf(2, device=device), leaf(3, device=device)
    c = a * b
    d = c + c * c
    e = d * c
    grads = mx.gradients(e)
    assert (e.item(), grads[a].item(), grads[b].item()) == (252, 360, 240)
    c = leaf(6, device=device)
    assert mx.gradients((c + c * c) * c)[c] == 120
    x = leaf([2, 5], device=device)
    for y, slope in ((x * x, [4, 10]), (x + x, [2, 2]), (x - x, [0, 0]), (ops.stack(x, x, x), [3, 3])):
        assert mx.gradients(y.sum())[x].tolist() == slope
    number = leaf(2, device=device)
    slope = mx.gradients(number + number + number)[number]
    assert type(slope) is type(number.array) and slope == 3


def test_c48_a_diamond_50_deep_is_walked_once_and_not_2_to_the_50_times():
    x = y = leaf(1)
    for _ in range(50):
        y = y + y
    y.backward()
    assert x.grad == 2.0**50


def test_outputs_that_nobody_used_have_zero_gradients():
    x = leaf(np.ones((3, 2)))
    (ops.unstack(x)[1] * 5).sum().backward()
    assert x.grad.tolist() == [[0, 0], [5, 5], [0, 0]]


# Un-broadcasting: a gradient has exactly the shape and dtype of its operand


@every_device
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("a, b", [
    ((1,), (2, 3)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((4,), (2, 3, 4)), ((1, 1), (1,)),
    ((0, 3), (1, 3)), ((2, 0), (1,)), ((1, 3), (1, 3)),
])
def test_the_gradient_of_a_repeated_number_is_the_sum_over_its_places(a, b, dtype, device):
    x, y = leaf(rng.integers(1, 5, a), dtype, device), leaf(rng.integers(1, 5, b), dtype, device)
    z = x * y
    grads = mx.gradients(z.sum())
    for t, other in ((x, y), (y, x)):
        places = np.broadcast_to(np.arange(t.size).reshape(t.shape), z.shape)               # who stands where
        sums = np.bincount(places.ravel(), np.broadcast_to(other.numpy(), z.shape).ravel(), t.size)
        assert (grads[t].shape, grads[t].dtype) == (t.shape, dtype)
        assert np.array_equal(on_host([grads[t]])[0], sums.reshape(t.shape))


def test_c53_numbers_and_batched_products():
    a = leaf([3])
    (a * mx.tensor([[1.0, 2, 3], [4, 5, 6]], dtype="float64")).sum().backward()
    assert a.grad.tolist() == [21]
    x, y = leaf(rng.standard_normal((1, 2, 3))), leaf(rng.standard_normal((5, 3, 4)))
    dz = rng.standard_normal((5, 2, 4))
    grads = mx.gradients(x @ y, dz)
    np.testing.assert_allclose(grads[x], np.einsum("bmn,bkn->mk", dz, y.array)[None], rtol=1e-13)
    np.testing.assert_allclose(grads[y], np.einsum("bmn,mk->bkn", dz, x.array[0]), rtol=1e-13)


# What is refused


def test_the_tape_is_used_up_by_one_backward_pass():
    x = leaf([1, 2])
    shared = x * x
    first, second, third = shared.sum(), (shared * 3).sum(), shared * 2
    first.backward()
    for loss in (first, second, third.sum()):
        refused(RuntimeError, loss.backward, "used up by an earlier backward pass", "add the losses and go back once")
    assert x.grad.tolist() == [2, 4], "and nothing was added"


def test_double_backward_is_out_of_scope_and_says_so():
    x = leaf(2)
    refused(NotImplementedError, lambda: (x * x).backward(create_graph=True), "double backward", "create_graph")
    refused(NotImplementedError, lambda: (x * x).backward(x * 1), "double backward", "pass seed.detach()")
    (x * x).backward((x * 1).detach())
    assert x.grad == 8


def test_backward_needs_a_tracked_number_or_a_seed_that_looks_like_the_tensor():
    x = leaf([1, 2])
    refused(RuntimeError, x.detach().sum().backward, "nothing here requires a gradient", "requires_grad=True")
    refused(RuntimeError, (x * 2).backward, "shape (2,)", "sum() or mean()")
    for seed in (np.ones(3), np.ones(2, "float32"), mx.tensor(np.ones(2), device="strict")):
        refused(ValueError, lambda seed=seed: (x * 2).backward(seed), "shape (2,), float64 on cpu", str(seed.dtype))
    (x * 2).backward([1, 10])
    assert x.grad.tolist() == [2, 20]
    refused(TypeError, lambda: mx.tensor([1, 2], requires_grad=True), "int64", "float32")


# gradients() is a pure function


def test_gradients_touch_no_leaf_and_a_leaf_is_its_own_gradient():
    x, constant = leaf([1, 2]), mx.tensor([3.0, 4.0], dtype="float64")
    assert [(t is x, dx.tolist()) for t, dx in mx.gradients((x * constant).sum()).items()] == [(True, [3, 4])]
    assert x.grad is None and constant.grad is None
    assert mx.gradients(x, [5, 6])[x].tolist() == [5, 6]


def test_two_tapes_on_two_threads_give_the_same_as_one_after_the_other():
    models, ids = [RecurrentLM(7, 4, 5), TransformerLM(7, D=4, N=2, L=1, T=8)], rng.integers(0, 7, (30, 2, 2, 8))

    def walk(model, found):
        for x, y in ids:
            grads = mx.gradients(model.loss(x, y))
            found.append([grads[p] for p in model.parameters()])

    apart, together = [[], []], [[], []]
    for model, found in zip(models, apart):
        walk(model, found)
    threads = [threading.Thread(target=walk, args=work) for work in zip(models, together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(apart, together):
        assert len(one) == len(other) == 30
        assert all(np.array_equal(a, b) for x, y in zip(one, other) for a, b in zip(x, y))
    assert all(p.grad is None for model in models for p in model.parameters())


# .grad


def test_the_gradient_of_a_leaf_owns_its_memory():
    for f in (lambda x, y: x + y, lambda x, y: x.T + y.reshape(2, 2).T, lambda x, y: ops.concatenate(x, y, axis=0),
              lambda x, y: ops.stack(x, y)[0] * 1, lambda x, y: ops.unstack(x)[0] + y):
        x, y = leaf(np.ones((2, 2))), leaf(np.ones((2, 2)))
        f(x, y).sum().backward()
        for t in (x, y):
            assert t.grad.base is None and t.grad.flags.writeable
        before = y.grad.copy()
        x.grad += 7
        assert np.array_equal(y.grad, before)


@every_device
def test_backward_accumulates_and_never_changes_an_array_that_was_handed_out(device):
    for x in (leaf([1, 2], device=device), leaf(3, device=device)):
        (x * 2).sum().backward()
        first = x.grad
        (x * 3).sum().backward()
        assert type(x.grad) is type(x.array)
        assert (first == 2).all() and (x.grad == 5).all()
        seed = x.array + 0
        x.backward(seed)
        assert (x.grad == 5 + x.array).all() and x.grad is not seed
