"""The checker, checked: every fault that is planted here must be reported.

A checker that nobody tests finds nothing any more one day, and nobody notices.
"""

import operator
import re

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.gradcheck import DIRECTIONS

from .harness import DEVICES, LAYOUTS, planted

rng = np.random.default_rng(0)
x, y, row = rng.standard_normal((2, 3)), rng.standard_normal((2, 3)), rng.standard_normal(3)
cell = [rng.standard_normal(shape) for shape in [(2, 3), (2, 2), (2, 2), (3, 8), (2, 8), 8]]             # x, h, c, W, U, b


def changed(op, change):
    """`op`, its gradients put through `change`: a list in, a list out."""
    def vjp(*args):
        out, backward = op.vjp(*args)
        return out, lambda *dys: change(list(backward(*dys)))
    return mx.op()(vjp)


def fails(fn, *inputs, match=None, error=mx.GradcheckError, **static):
    with pytest.raises(error, match=match) as raised:
        mx.gradcheck(fn, *inputs, **static)
    return str(raised.value)


# Planted faults


def test_zero_backward_of_softmax_is_found_and_a_gradient_of_ones_would_not_find_it():
    zero = planted(ops.softmax, 0, lambda dx: 0 * dx)
    fails(zero, x, match="no influence")
    mx.gradcheck(lambda x: ops.sum(zero(x)), x)                              # rows sum to one, and the sum has no slope


@pytest.mark.parametrize("fault", [
    lambda dx: 2 * dx,
    lambda dx: dx / 2,
    lambda dx: -dx,
    lambda dx: 1.001 * dx,
    lambda dx: dx + 1e-6,
    lambda dx: dx[::-1],
    lambda dx: np.where(np.arange(3) == 1, 1.001, 1) * dx,
    lambda dx: dx * np.nan,
], ids=["factor 2", "half", "sign", "factor 1.001", "offset", "rows swapped", "one column", "nan"])
@pytest.mark.parametrize("op", [ops.tanh, ops.softmax, ops.log_softmax, ops.exp], ids=lambda op: op.name)
def test_wrong_numbers_are_found(op, fault):
    mx.gradcheck(op, x)
    fails(planted(op, 0, fault), x, match=rf"gradcheck {op.name}: the gradient of x\[")


def test_one_wrong_element_is_found_and_named():
    def fault(dx):
        dx = dx.copy()
        dx[1, 2] *= 1.001
        return dx

    fails(planted(ops.mul, 1, fault), x, y, match=r"mul: the gradient of y\[1, 2\] ")


def test_swapped_gradients_are_found():
    fails(changed(ops.mul, lambda dxs: dxs[::-1]), x, y)
    fails(changed(ops.lstm_cell, lambda dxs: [dxs[0], dxs[2], dxs[1], *dxs[3:]]), *cell, match="gradient of")


@pytest.mark.parametrize("fault, says", [(lambda dy: None, "None"), (lambda dy: np.ones((2, 3)), r"shape \(2, 3\)")])
def test_a_missing_or_unsummed_gradient_of_a_broadcast_input_is_found(fault, says):
    message = rf"add: the gradient of y must have its shape \(3,\).* returned {says}"
    fails(planted(ops.add, 1, fault), x, row, error=RuntimeError, match=message)


def test_one_row_in_place_of_the_sum_of_all_is_found():
    fails(mx.op()(lambda x, y: (x + y, lambda dz: (dz, dz[0]))), x, row, match=r"the gradient of y\[")


def test_an_ignored_output_is_found():
    def vjp(x, h, c, W, U, b):
        out, backward = ops.lstm_cell.vjp(x, h, c, W, U, b)
        return out, lambda dh, dc: backward(dh, 0 * dc)

    fails(mx.op()(vjp), *cell)
    mx.gradcheck(lambda *args: mx.op()(vjp)(*args)[0], *cell)                # the other output hides it


@pytest.mark.parametrize("argument", [3, 4, 5])
def test_swapped_gates_are_found(argument):
    i, f, g, o = np.arange(8).reshape(4, 2)
    fails(planted(ops.lstm_cell, argument, lambda dx: dx[..., [*i, *g, *f, *o]]), *cell)


def test_recurrent_weights_times_the_new_state_are_found():
    def vjp(x, h, W, U, b):
        h_next, backward = ops.rnn_cell.vjp(x, h, W, U, b)

        def faulty(dh_next):
            dx, dh, dW, _, db = backward(dh_next)
            return dx, dh, dW, h_next.T @ (dh_next * (1 - h_next**2)), db

        return h_next, faulty

    x, h, _, W, U, b = cell
    fails(mx.op()(vjp), x, h, W[:, :2], U[:, :2], b[:2], match=r"the gradient of U\[")


def test_random_numbers_drawn_inside_are_refused():
    fails(lambda x: ops.dropout(x, rng.random(x.shape) < 0.5, p=0.5), x, match="two calls gave different values.*outside")
    mx.gradcheck(ops.dropout, x, rng.random(x.shape) < 0.5, p=0.5)


def test_a_mask_drawn_anew_by_backward_is_found():
    def vjp(x):
        return x * (np.arange(3) < 2), lambda dy: dy * (np.arange(3) > 0)
    fails(mx.op()(vjp), x)


def test_writing_into_an_input_or_a_gradient_is_found():
    def forward(x):
        return np.exp(x, out=x), lambda dy: dy * x

    def backward(x):
        return x * x, lambda dy: np.multiply(2 * dy, x, out=x)

    def gradient(x):
        return x * x, lambda dy: np.multiply(dy, 2 * x, out=dy)

    fails(mx.op()(forward), x, match="gradcheck forward: its forward pass wrote into the input x")
    fails(mx.op()(backward), x, match="gradcheck backward: its backward pass wrote into the input x")
    fails(mx.op()(gradient), x, error=ValueError, match="read-only")


def test_a_gradient_cut_off_on_the_way_is_found():
    fails(lambda x: ops.exp(x.detach()) + x, x, match="the gradient of x")
    fails(lambda x: ops.exp(x.detach()), x, match="no influence: is its gradient returned at all")


# What the report says


def test_the_message_names_function_input_index_and_both_numbers():
    message = fails(planted(ops.mul, 0, lambda dx: 2 * dx), np.array([[1.0, 5.0]]), np.array([[0.0, 3.0]]))
    numbers = re.search(r"gradcheck mul: the gradient of x\[0, 1\] is (\S+) by backward, (\S+) by nudging", message)
    ours, nudged = map(float, numbers.groups())
    assert ours == pytest.approx(2 * nudged, rel=1e-6)


@pytest.mark.parametrize("factor, says", [(-1, "a sign is flipped"), (0.5, "a factor 2 is missing"),
                                          (2, "a factor 2 too much"), (0, "no influence")])
def test_the_message_guesses_the_cause(factor, says):
    fails(planted(ops.exp, 0, lambda dx: factor * dx), x, match=says)


def test_c56_a_kink_is_called_a_kink():
    near = np.array([1.0, 1e-7, -2.0])
    fails(ops.relu, near, match=r"x\[1\].*kink within step = 1e-05.*slopes on the two sides differ by \d")
    fails(ops.relu, np.zeros(1), match="kink")
    mx.gradcheck(ops.relu, near, step=1e-8, rtol=1e-4)


@pytest.mark.parametrize("op, at", [(ops.relu, x), (ops.relu, np.array([1e-7])), (ops.exp, x),
                                    (ops.gelu, np.array([-0.7518, -0.752]))], ids=["smooth", "kink", "steep", "flat"])
@pytest.mark.parametrize("fault", [lambda dx: 1.01 * dx + 1e-3, lambda dx: -5 * dx - 1], ids=["a little", "much"])
def test_a_wrong_backward_is_not_called_a_kink(op, at, fault):
    assert "kink" not in fails(planted(op, 0, fault), at)


def test_the_report_is_true_and_a_table():
    report = mx.gradcheck(ops.mul, x, row)
    assert report
    assert [(i.name, i.shape, i.compared) for i in report.inputs] == [("x", (2, 3), 6), ("y", (3,), 3)]
    assert all(0 < i.relative < 1e-8 and 0 < i.worst < 1 for i in report.inputs)
    first, *rows = str(report).splitlines()
    assert first == "gradcheck mul: ok"
    assert re.fullmatch(r"  x +\(2, 3\) +6 compared +largest \|gradient\| \S+ +worst error \S+ at x\[\d, \d\]", rows[0])
    assert re.fullmatch(r"  y +\(3,\) +3 compared +largest \|gradient\| \S+ +worst error \S+ at y\[\d\]", rows[1])


# What can be checked


@pytest.mark.parametrize("device", DEVICES)
def test_functions_of_tensors(device):
    a, b = mx.tensor(x, device=device), mx.tensor(row, device=device)

    def plain(x, y):
        z = ops.tanh(x * y + 1)
        return z @ z.T, z, x                                                 # several outputs, an input among them

    report = mx.gradcheck(plain, a, b)
    assert [i.name for i in report.inputs] == ["x", "y"]
    mx.gradcheck(lambda *xs: ops.concatenate(*xs, axis=0), a, a)


def test_an_op_of_the_user():
    @mx.op("x (..., D), w? (D) -> y (..., D)")
    def cube(x, w=None):
        w_ = 1 if w is None else w

        def backward(dy):
            return 3 * dy * w_ * x**2, None if w is None else (dy * x**3).sum(0)

        return w_ * x**3, backward

    assert [i.name for i in mx.gradcheck(cube, x, row).inputs] == ["x", "w"]
    assert [i.name for i in mx.gradcheck(cube, x).inputs] == ["x"]
    fails(planted(cube, 1, lambda dx: dx + 1e-3), x, row, match=r"cube: the gradient of w\[")


class Affine:
    """A stand-in for a module: all that gradcheck knows of one is `named_parameters`."""

    def __init__(self, dtype="float64"):
        self.W = mx.tensor(rng.standard_normal((3, 2)), dtype=dtype, requires_grad=True)
        self.b = mx.tensor(np.zeros(2), dtype=dtype, requires_grad=True)

    def named_parameters(self):
        yield "W", self.W
        yield "x", self.b                                                    # called like the input of forward

    def forward(self, x):
        return x @ self.W + self.b

    __call__ = forward


def test_a_module_with_its_parameters():
    module = Affine()
    before = [p.numpy() for _, p in module.named_parameters()]
    assert [(i.name, i.shape) for i in mx.gradcheck(module, x).inputs] == [("x", (2, 3)), ("W", (3, 2)), ("x", (2,))]
    assert [i.name for i in mx.gradcheck(module, x, parameters=False).inputs] == ["x"]
    for (_, p), was in zip(module.named_parameters(), before):
        assert p.grad is None and np.array_equal(p.numpy(), was)


def test_what_cannot_be_checked_is_refused():
    fails(Affine("float32"), x, error=ValueError, match="parameter W is float32, too coarse for nudges")
    fails(ops.sum, np.arange(3), error=ValueError, match="none of the 1 inputs has floating point numbers")
    fails(lambda x: mx.tensor([1, 2]), x, error=ValueError, match="expected outputs in float64.*got integers")
    fails(lambda x: mx.tensor([1.0]), x, error=ValueError, match=r"expected outputs in float64.*got \['float32'\]")


def test_what_is_no_function_of_tensors_is_told():
    fails(lambda x: x.array, x, error=TypeError, match=r"the function must return Tensors, got \['ndarray'\]")
    with np.errstate(invalid="ignore"):
        fails(ops.log, np.array([1e-6]), match="leaves the function's domain; check elsewhere, or with a smaller step")
    assert [i.name for i in mx.gradcheck(operator.neg, x).inputs] == ["a"]


def test_integers_numbers_and_masks_pass_through():
    ids = np.array([[0, 2, 2]])
    assert [i.name for i in mx.gradcheck(ops.embedding, ids, rng.standard_normal((3, 2))).inputs] == ["table"]
    assert [i.name for i in mx.gradcheck(ops.mul, x, 2.5).inputs] == ["x"]


def test_large_inputs_are_checked_along_random_directions():
    large = rng.standard_normal((300, 40))
    assert [i.compared for i in mx.gradcheck(ops.softmax, large).inputs] == [DIRECTIONS]
    fails(planted(ops.softmax, 0, lambda dx: 1.001 * dx), large, match="x, along a random direction")

    def one_row(dx):
        dx = dx.copy()
        dx[7] = 0
        return dx

    fails(planted(ops.softmax, 0, one_row), large)


# Layouts


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (1, 4), (2, 3, 2), (2, 0)])
def test_c55_any_layout_is_checked_and_left_bit_for_bit(layout, shape):
    given = layout(np.asarray(rng.standard_normal(shape)))
    strides, before = given.strides, given.tobytes()
    report = mx.gradcheck(ops.sigmoid, given)
    assert report.inputs[0].compared == given.size
    if given.size:
        fails(planted(ops.sigmoid, 0, lambda dx: 1.001 * dx), given)
    assert (given.strides, given.tobytes()) == (strides, before)


# Precision


def test_c56_steps_between_1e_4_and_1e_6_are_right_and_others_are_not():
    def fn(x):
        t = ops.tanh(x)
        return t * t * t

    def error(step):
        worst = mx.gradcheck(fn, np.array([0.7]), step=step, rtol=1, atol=1).inputs[0]
        return abs(worst.ours - worst.nudged)

    assert all(error(step) < 1e-8 for step in (1e-4, 1e-5, 1e-6))
    assert error(1e-2) > 1e-6 and error(1e-12) > 1e-6


def test_c56_float32_is_promoted_and_stays_float32_outside():
    narrow = mx.tensor(x, dtype="float32")
    assert mx.gradcheck(ops.tanh, narrow).inputs[0].relative < 1e-8
    assert narrow.dtype == "float32" and np.array_equal(narrow.numpy(), x.astype("float32"))


def test_c56_tiny_gradients_are_judged_by_their_absolute_error():
    layers = [0.05 * rng.standard_normal((4, 4)) for _ in range(8)]

    def net(x, *layers):
        for W in layers:
            x = ops.tanh(x @ W)
        return x

    first, *_ = mx.gradcheck(net, rng.standard_normal((2, 4)), *layers).inputs
    assert 0 < first.scale < 1e-6 and first.worst < 1e-3
    assert re.fullmatch(r"x\[\d, \d\]", first.where)
