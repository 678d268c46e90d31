"""What a Tensor can do like an array of NumPy: operators, methods, comparisons, and Python's own questions to it."""

import inspect
import operator
import re

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.ops.methods import OPERATORS

from .common import every_device, leaf, refused
from .harness import on_host

X = np.array([[0.5, 2.0, -1.5], [3.0, 0.25, 1.0]])
Y = np.array([2.0, -1.0, 0.5])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


# Every operator and method of a Tensor x, and the same for an array. Most are spelled alike: one function for both.
METHODS = {
    "__add__": lambda x: x + Y, "__radd__": lambda x: 2 + x, "__sub__": lambda x: x - Y, "__rsub__": lambda x: 2 - x,
    "__mul__": lambda x: x * Y, "__rmul__": lambda x: 2 * x, "__truediv__": lambda x: x / Y, "__rtruediv__": lambda x: 2 / x,
    "__matmul__": lambda x: x @ Y, "__rmatmul__": lambda x: Y[:2] @ x, "__pow__": lambda x: x**2, "__rpow__": lambda x: 2**x,
    "__neg__": lambda x: -x, "__abs__": lambda x: abs(x), "__getitem__": lambda x: x[1, ::2], "__iter__": lambda x: [*x][1],
    "__lt__": lambda x: x < Y, "__le__": lambda x: x <= 2, "__gt__": lambda x: x > Y, "__ge__": lambda x: x >= 2,
    "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(0, keepdims=True), "max": lambda x: x.max((0, 1)),
    "min": lambda x: x.min(-1), "prod": lambda x: x.prod(), "var": lambda x: x.var(1, ddof=1), "cumsum": lambda x: x.cumsum(),
    "clip": lambda x: x.clip(-1, 1), "reshape": lambda x: x.reshape(3, -1), "transpose": lambda x: x.transpose(1, 0),
    "T": lambda x: x.T,
}
SPELLED_OTHERWISE = {
    "exp": (lambda x: x.exp(), np.exp), "log": (lambda x: (x * x).log(), lambda x: np.log(x * x)),
    "sqrt": (lambda x: (x * x).sqrt(), np.abs), "abs": (lambda x: x.abs(), np.abs), "tanh": (lambda x: x.tanh(), np.tanh),
    "sigmoid": (lambda x: x.sigmoid(), sigmoid), "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    "softmax": (lambda x: x.softmax(), softmax), "log_softmax": (lambda x: x.log_softmax(0), lambda x: np.log(softmax(x, 0))),
    "norm": (lambda x: x.norm(1), lambda x: np.linalg.norm(x, axis=1)),
    "logsumexp": (lambda x: x.logsumexp(1, True), lambda x: np.log(np.exp(x).sum(1, keepdims=True))),
}
BOTH = {name: (f, f) for name, f in METHODS.items()} | SPELLED_OTHERWISE


@pytest.mark.parametrize("name", BOTH)
def test_operators_and_methods_give_what_numpy_gives(name):
    ours, theirs = BOTH[name]
    y = ours(leaf(X))
    assert type(y) is mx.Tensor and y.requires_grad == (y.dtype != "bool")
    np.testing.assert_allclose(y.numpy(), theirs(X), rtol=1e-12)
    assert y.dtype == theirs(X).dtype


def test_all_of_them_are_tested_and_declared_for_type_checkers():
    declared = inspect.getsource(mx.Tensor).partition("if TYPE_CHECKING:")[2].partition("shape = property")[0]
    assert set(OPERATORS) == set(BOTH) <= set(re.findall(r"\w+", declared))


@pytest.mark.parametrize("symbol", ["add", "sub", "mul", "truediv", "pow", "matmul", "lt", "le", "gt", "ge"])
@every_device
def test_an_array_on_either_side_gives_way_to_the_tensor(symbol, device):
    f, a = getattr(operator, symbol), np.array([[1.0, 2], [3, 4]])
    x, b = leaf(a + 1, device=device), leaf(a, device=device).array
    for ours, theirs in ((f(x, b), f(a + 1, a)), (f(b, x), f(a, a + 1))):
        assert type(ours) is mx.Tensor and ours.device == device
        np.testing.assert_allclose(ours.numpy(), theirs)


# Comparisons


@every_device
def test_comparisons_are_booleans_and_never_tracked(device):
    x = leaf([1, 2, 3], device=device)
    for mask in (x > 2, 2 < x, x >= leaf([9, 9, 3], device=device), leaf(5, device=device)[None] > x[:0]):
        assert mask.dtype == "bool" and not mask.requires_grad and mask.made_by is None
    assert (x > 2).numpy().tolist() == (x * 1 >= 3).numpy().tolist() == [False, False, True]
    assert x[x > 1].numpy().tolist() == [2, 3] and (leaf(1, device=device) < 2).shape == ()


def test_equality_is_identity_so_that_tensors_can_be_keys():
    x, same = leaf([1, 2]), leaf([1, 2])
    assert x == x and x != same and {x: "x"}.get(same) is None and x in [same, x]
    refused(TypeError, lambda: 1 in x, "in: Tensors are compared as objects", "(t.data == value).any()")


# Python's own questions


@every_device
def test_length_and_iteration_go_along_the_first_axis(device):
    x = leaf([[1, 2], [3, 4], [5, 6]], device=device)
    a, b, c = x
    assert len(x) == 3 and a.node is c.node and c.node.name == "unstack", "one node for all"
    (a * b * c).sum().backward()
    assert on_host([x.grad])[0].tolist() == [[15, 24], [5, 12], [3, 8]]
    assert list(leaf(np.zeros((0, 2)), device=device)) == [] and len(leaf(np.zeros((0, 2)))) == 0
    assert [t.item() for t in mx.tensor([1, 2], device=device)] == [1, 2]
    for ask in (len, iter, list):
        refused(TypeError, lambda ask=ask: ask(leaf(1, device=device)), "shape () is a single number", "item()")


@every_device
def test_a_single_number_can_be_asked_for_and_nothing_else(device):
    for shape in ((), (1,), (1, 1)):
        x = leaf(np.full(shape, 2.5), device=device)
        assert (float(x), int(x), x.item(), bool(x), bool(x * 0)) == (2.5, 2, 2.5, True, False)
    assert bool(x > 2) and not (x > 3)
    for shape in ((2,), (0,), (2, 1)):
        x = leaf(np.ones(shape), device=device)
        for ask, name in ((float, "float"), (int, "int"), (bool, "bool"), (mx.Tensor.item, "item")):
            refused(ValueError, lambda ask=ask, x=x: ask(x), f"{name}: a Tensor of shape {shape} is not a single number",
                    "reduce it")


def test_numpy_may_look_at_an_untracked_tensor_but_not_write():
    x = mx.tensor([[1.0, 2.0]])
    view = np.asarray(x)
    assert np.shares_memory(view, x.array) and not view.flags.writeable and view.dtype == "float32"
    assert np.array(x).flags.writeable and not np.shares_memory(np.array(x), x.array)
    assert np.asarray(x, "float64").dtype == "float64" and np.concatenate([x, x]).shape == (2, 2)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, "float64", copy=False)
    assert np.asarray(leaf([1, 2]) > 1).tolist() == [False, True]


def test_numpy_does_not_get_hold_of_what_it_would_break():
    for tracked in (leaf([1]), leaf([1]) * 2):
        refused(TypeError, lambda tracked=tracked: np.asarray(tracked), "is tracked, and NumPy would forget", "t.numpy()")
    refused(TypeError, lambda: np.asarray(mx.tensor([1.0], device="strict")), "this Tensor lives on strict", "t.numpy()")
    assert np.asarray(leaf([1]).detach()).tolist() == leaf([1]).numpy().tolist() == [1]


def test_reductions_take_negative_axes_and_tuples_of_them():
    x = leaf(np.arange(24.0).reshape(2, 3, 4) / 9)
    for method, theirs in (("sum", np.sum), ("max", np.max), ("prod", np.prod), ("var", np.var), ("norm", np.linalg.norm)):
        for axis in (0, -1, (0, -1), None):
            expected = np.sqrt((x.array ** 2).sum(axis)) if method == "norm" else theirs(x.array, axis=axis)
            np.testing.assert_allclose(getattr(x, method)(axis).numpy(), expected)
    for name in ("sum", "max", "prod", "var", "norm", "logsumexp", "cumsum", "mean"):
        refused((ValueError, IndexError), lambda name=name: getattr(x, name)(3), f"{name}: ", "axis = 3", "x (2, 3, 4)")


def test_numbers_that_would_overflow_on_the_way_do_not():
    big = mx.tensor(np.array([3e30, 4e30, 0], "float32"), requires_grad=True)
    assert big.norm().item() == pytest.approx(5e30)
    assert mx.gradients(big.norm())[big].tolist() == pytest.approx([0.6, 0.8, 0])
    assert mx.tensor([3e-30, 4e-30]).norm().item() == pytest.approx(5e-30, rel=1e-6, abs=0)
    x = mx.tensor([1000.0, 1000.0], requires_grad=True)
    assert x.logsumexp().item() == pytest.approx(1000 + np.log(2)) and mx.gradients(x.logsumexp())[x].tolist() == [0.5, 0.5]
    assert ops.softplus(x).numpy().tolist() == [1000, 1000] and ops.softplus(-x).numpy().tolist() == [0, 0]
    assert ops.silu(-x).numpy().tolist() == [0, 0]


def test_slopes_in_the_tails_keep_their_digits():
    x, s = leaf([-40, -5, 5]), sigmoid(np.array([-40.0, -5, 5]))
    for op, slope in ((ops.softplus, s), (ops.sigmoid, s * (1 - s)), (ops.exp, np.exp(x.array))):
        assert mx.gradients(op(x).sum())[x] == pytest.approx(slope, rel=1e-12, abs=0)
    y = ops.binary_cross_entropy(leaf([40, -40]), mx.tensor([1, 0]), reduction="none")
    assert y.numpy() == pytest.approx(np.exp([-40, -40]), rel=1e-12, abs=0)


@every_device
def test_a_leaf_moves_to_a_device_and_an_output_does_not(device):
    x = leaf([1, 2], device=device)
    assert x.to(device) is x
    there = x.to({"cpu": "strict"}.get(device, "cpu"))
    assert there.device != device and there.requires_grad and there.numpy().tolist() == [1, 2]
    refused(RuntimeError, lambda: (x * 2).to(there.device), "to: the tracked output of mul cannot change device", "detach()")
    assert (x * 2).detach().to(there.device).numpy().tolist() == [2, 4]
