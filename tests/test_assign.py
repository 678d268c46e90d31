"""Writing into Tensors, and what shares memory with what: assign_ and versions, .data, detach, no_grad."""

import threading

import numpy as np
import pytest

import minitx as mx
from minitx import ops

from .common import every_device, leaf, refused

CHANGED = "which was changed by assign_ since the forward pass; go back before changing it"


# assign_ and the backward passes that still need the old numbers


@mx.op()
def same(x):
    """An op whose output is its input."""
    return x, lambda dy: dy


@every_device
def test_assign_overwrites_in_place_and_backward_works_on(device):
    x = leaf([1, 2], device=device)
    memory = x.array
    assert x.assign_([3, 4]) is x and x.array is memory and x.requires_grad
    (x * x).sum().backward()
    assert x.grad.tolist() == [6, 8]
    assert x.assign_(x * 2).array.tolist() == x.assign_(x.array).array.tolist() == [6, 8]


@pytest.mark.parametrize("f, argument", [
    (lambda x, w: x * w, "mul kept its argument y"),
    (lambda x, w: w * x, "mul kept its argument x"),
    (lambda x, w: x / w, "div kept its argument y"),
    (lambda x, w: x.reshape(1, 2) @ w, "matmul kept its argument y"),
    (lambda x, w: ops.linear(x, w.reshape(2, 1), w[:1]), "linear kept its argument W"),
    (lambda x, w: x * w[::-1].reshape(1, 2).T[0], "mul kept its argument y"),
    (lambda x, w: x * w.detach(), "mul kept its argument y"),
    (lambda x, w: x * same(w), "mul kept its argument y"),
], ids=range(8))
@pytest.mark.parametrize("tracked", [True, False])
def test_a_backward_that_kept_what_was_changed_says_so(f, argument, tracked):
    """Also when it was given a view of it, or a Tensor that shares its memory."""
    x, w = leaf([1, 2]), mx.tensor(np.array([3.0, 4.0]), requires_grad=tracked)
    for write in (w, w.detach()):
        loss = f(x, w).sum()
        write.assign_([5, 6])
        refused(RuntimeError, loss.backward, f"backward: {argument}, {CHANGED}")
        assert x.grad is None and w.grad is None
        f(x, w).sum().backward()                                             # a new forward pass is fine
        x.grad = w.grad = None


@pytest.mark.parametrize("f", [
    lambda x, w: x + w, lambda x, w: x - w, lambda x, w: ops.exp(w) * x, lambda x, w: ops.stack(w, x).sum(),
    lambda x, w: x * w.reshape(1, 2).sum(), lambda x, w: w[:1] + x, lambda x, w: ops.softmax(w) * x,
    lambda x, w: ops.embedding(mx.tensor([0]), w.reshape(2, 1)) + x,
], ids=range(8))
def test_a_backward_that_kept_nothing_of_it_does_not_mind(f):
    x, w = leaf([1, 2]), leaf([3, 4])
    loss, same = f(x, w).sum(), mx.gradients(f(x, w).sum())
    w.assign_([5, 6])
    loss.backward()
    assert np.array_equal(x.grad, same[x]) and np.array_equal(w.grad, same[w])


def test_a_write_before_the_forward_pass_or_to_a_copy_does_not_matter():
    x, w = leaf([1, 2]), leaf([3, 4])
    w.assign_([5, 6])
    loss = (x * w).sum()
    mx.tensor(w).assign_([0, 0])
    mx.tensor(w.data).assign_([0, 0])
    loss.backward()
    assert x.grad.tolist() == [5, 6]


def test_the_output_of_an_op_cannot_be_assigned_to():
    x = leaf([[1, 2]])
    for y in (x * 2, x[:1], x.T, (x * 2).detach(), x.detach() * 2, x.detach()[:1]):
        refused(RuntimeError, lambda y=y: y.assign_(y.numpy()), f"an output of {y.made_by}", "assign to a leaf")


@every_device
def test_assign_refuses_what_does_not_look_like_the_tensor_and_writes_nothing(device):
    x = leaf([1, 2], "float32", device)
    other = "strict" if device == "cpu" else "cpu"
    for value, got in ((np.zeros(3, "float32"), "(3,)"), (np.zeros((1, 2), "float32"), "(1, 2)"), ([1], "(1,)"),
                       (1, "()"), (np.zeros(2), "float64"), (np.zeros(2, int), "int64"),
                       (leaf([0, 0], "float32", other), f"on {other}")):
        if isinstance(value, np.ndarray):
            value = mx.tensor(value, device=device)
        refused(ValueError, lambda value=value: x.assign_(value), f"expected shape (2,), float32 on {device}", got)
    assert x.array.tolist() == [1, 2]
    loss = (x * x).sum()
    loss.backward()                                                          # and no refused write counts as a write
    assert x.grad.tolist() == [2, 4]


# .data, .numpy(), detach


@every_device
def test_data_is_a_view_that_refuses_writes_and_numpy_a_copy(device):
    x = leaf([1, 2], device=device)
    data, copied = x.data, x.numpy()
    copied[0] = 9
    if device == "cpu":
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 9
        assert x.array.flags.writeable
    x.assign_([3, 4])
    assert data.tolist() == [3, 4] and copied.tolist() == [9, 2] and type(copied) is np.ndarray


def test_detach_shares_memory_and_stops_gradients():
    x = leaf([1, 2])
    cut = x.detach()
    assert cut.array is x.array and not cut.requires_grad and cut.node is None
    (x * cut).sum().backward()
    assert x.grad.tolist() == [1, 2]
    cut.assign_([5, 6])
    assert x.array.tolist() == [5, 6]


# no_grad


def tracked():
    return (leaf([1]) * 2).requires_grad


def test_no_grad_as_context_and_decorator_nested_and_after_errors():
    @mx.no_grad()
    def inside(depth=0):
        return [tracked(), *(inside(depth - 1) if depth else [])]

    with mx.no_grad():
        assert not tracked()
        with mx.no_grad():
            assert not tracked()
        assert inside(2) == [False] * 3 and not tracked()
    assert inside(2) == [False] * 3 and tracked()
    with pytest.raises(KeyError), mx.no_grad():
        raise KeyError
    assert tracked()
    y = leaf([1])
    with mx.no_grad():
        z = y * 2
    assert z.node is None and z.made_by == "mul" and (y * z).requires_grad


def test_no_grad_is_per_thread():
    """Two threads in the same decorated function at once, each leaving it while the other is still there or gone."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    seen = []

    @mx.no_grad()
    def overlapping(enter, wait):
        enter.set()
        assert wait.wait(10)
        seen.append(tracked())

    def first():
        seen.append(tracked())
        overlapping(first_in, second_in)
        seen.append(tracked())
        first_out.set()

    def second():
        assert first_in.wait(10)
        overlapping(second_in, first_out)
        seen.append(tracked())

    threads = [threading.Thread(target=f) for f in (first, second)]
    with mx.no_grad():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not tracked()
    assert seen == [True, False, True, False, True]
