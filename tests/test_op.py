"""What `@op` makes of a function: arguments in their places, shapes checked, every mistake one sentence.

Read next: `test_observe.py`, looking on.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.contract import ShapeLine

from .common import every_device, leaf, refused

rng = np.random.default_rng(0)


def arrays(*shapes):
    return [rng.standard_normal(shape) for shape in shapes]


# Arguments


@every_device
def test_arrays_may_be_passed_by_name(device):
    q, k, v = (leaf(a, device=device) for a in arrays(*[(1, 2, 3, 4)] * 3))
    mask = mx.tensor(rng.random((3, 3)) < 0.7, device=device)
    by_place = ops.attention(q, k, v, mask, scale=2.0)
    by_name = ops.attention(v=v, q=q, k=k, mask=mask, scale=2.0)
    assert (by_place.array == by_name.array).all()
    expected, grads = mx.gradients(by_place.sum()), mx.gradients(by_name.sum())
    assert set(grads) == {q, k, v} and all((grads[t] == expected[t]).all() for t in grads)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_python_numbers_and_integers_leave_the_dtype_alone(dtype):
    x = leaf([1, 2], dtype)
    for y in (2 * x, x - 0.5, 1 / x, x * True, x + np.int64(1), x * np.array([1, 2]), np.array([True, False]) * x):
        assert y.dtype == mx.gradients(y.sum())[x].dtype == dtype


X, NARROW, STRICT = leaf(np.ones((2, 3))), leaf(np.ones((2, 3)), "float32"), leaf(np.ones((2, 3)), device="strict")
MISTAKES = {
    "widths": (lambda: X + NARROW, TypeError, "add: arguments of different float widths: x is float64 and y is "),
    "a wide scalar": (lambda: NARROW * np.float64(2), TypeError, "mul: ", "different float widths", "tensor(x, dtype"),
    "widths of many": (lambda: ops.stack(X, X, NARROW), TypeError, "stack: ", "xs[0] is float64 and xs[2] is float32"),
    "devices": (lambda: ops.linear(X, STRICT), TypeError, "linear: ", "x is cpu and W is strict", ".to(device)"),
    "a list": (lambda: ops.tanh([1.0, 2.0]), TypeError, "tanh: x is a list; expected a Tensor", "minitx.tensor(...)"),
    "text": (lambda: X + "1", TypeError, "add: y is a str"),
    "complex numbers": (lambda: ops.exp(np.ones(2, complex)), TypeError, "exp: x has dtype complex128"),
    "unknown keyword": (lambda: ops.softmax(X, dim=0), TypeError, "softmax: ", "'dim'", "it takes (x, *, axis=-1)"),
    "given twice": (lambda: ops.softmax(X, x=X), TypeError, "softmax: multiple values for argument 'x'"),
    "too many": (lambda: ops.tanh(X, X), TypeError, "tanh: ", "1 positional argument but 2", "x (2, 3) float64"),
    "too many for a rule": (lambda: ops.matmul(X, X, X), TypeError, "matmul: ", "2 positional arguments but 3", "x ("),
    "too few": (lambda: ops.linear(X), TypeError, "linear: ", "missing 1 required positional argument: 'W'"),
    "too few for a rule": (lambda: ops.matmul(X), TypeError, "matmul: ", "missing 1 required positional argument: 'y'"),
    "no keyword": (lambda: ops.reshape(X), TypeError, "reshape: ", "'shape'"),
    "None": (lambda: ops.linear(X, None), ValueError, "linear: W must be (D, O), but is None, but it is not optional"),
    "a wrong option": (lambda: ops.gelu(X, approximate="erf"), ValueError, "gelu: ", "'erf'", "x (2, 3) float64"),
    "a wrong shape": (lambda: X.reshape(4), ValueError, "reshape: cannot reshape array of size 6", "x (2, 3)"),
    "no broadcast": (lambda: X + leaf([1, 2]), ValueError, "add: these shapes do not broadcast: axis -1", "[2, 3]"),
    "inner lengths": (lambda: X @ X, ValueError, "matmul: inner lengths differ: x has 3 columns, y has 2 rows"),
    "an axis": (lambda: ops.softmax(X, axis=2), IndexError, "softmax: ", "axis = 2", "x (2, 3) float64"),
    "a huge number": (lambda: mx.tensor([1], dtype="uint8") + 300, ValueError, "add: Python integer 300 out of bounds"),
    "an endless axis": (lambda: X.sum(2**99), ValueError, "sum: ", "too large"),
    "a bool as axis": (lambda: ops.split(X, sections=1, axis=True), TypeError, "split: axis is True; expected a whole number"),
    "an option that is a Tensor": (lambda: ops.layer_norm(X, X[0], X[0], eps=X.sum()), TypeError, "layer_norm: eps is a Tensor",
                                   "no gradient goes there", "eps=t.item()"),
    "numbers alone": (lambda: ops.maximum(1, 2.5), TypeError, "maximum: got x = 1, y = 2.5; expected at least one Tensor"),
    "None beside an array": (lambda: ops.where(X > 0, X, None), TypeError, "where: y is None", "minitx.tensor(...)"),
    "a number for an array": (lambda: ops.take(2.0, np.array([0])), TypeError, "take: x must be an array, got a float"),
    "an id": (lambda: ops.embedding(np.array([2]), X), IndexError, "embedding: ids must be from 0 to 1, got 2"),
    "numbers as a mask": (lambda: ops.dropout(X, X, p=0.5), TypeError, "dropout: keep must be booleans", "float64"),
    "numbers as ids": (lambda: ops.embedding(X, X), TypeError, "embedding: ids must be integers", "dtype float64"),
    "ids as numbers": (lambda: ops.tanh(np.array([1])), TypeError, "tanh: x must be floating point numbers", "int64"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_op_the_argument_and_the_remedy(mistake):
    call, kind, *parts = mistake
    for _ in range(2):                                                       # what was refused once is refused again
        assert len(refused(kind, call, *parts)) < 200


# Shape lines


def check(line, *shapes):
    line = ShapeLine(line)
    line.check("f", [*(s.name for s in line.inputs if not s.many), *(f"xs[{i}]" for i in range(len(shapes)))], shapes)


@pytest.mark.parametrize("line, fitting", [
    ("x (B, D), W (D, 4H), b? (4H) -> y (B, H)", [[(2, 3), (3, 8), (8,)], [(2, 3), (3, 8), None], [(0, 1), (1, 0)]]),
    ("x (...), y (...) -> z", [[(), ()], [(2, 3), (2, 3)]]),
    ("x (..., T, D), y (..., D) -> z", [[(3, 2), (2,)], [(5, 1, 3, 2), (5, 1, 2)]]),
    ("x (B), *xs (B, 2H) -> y", [[(3,)], [(3,), (3, 4), (3, 4)]]),
    ("keep ~(B, T), x (B, T) -> y", [[(), (2, 3)], [(3,), (2, 3)], [(2, 1), (2, 3)], [(2, 3), (2, 3)]]),
    ("x (..., D), keep? ~(...) -> y", [[(4, 5, 3), (4, 1)], [(4, 5, 3), (5,)], [(3,), ()], [(3,), None]]),
])
def test_what_a_shape_line_accepts(line, fitting):
    for shapes in fitting:
        check(line, *shapes)


@pytest.mark.parametrize("line, shapes, message", [
    ("x (B, D), W (D, H)", [(2, 3), (4, 5)],
     "f: W must be (D, H), but has shape (4, 5): axis 0 is 4 instead of 3 (D = 3 by x); make the two agree"),
    ("x (B, D), W (D, 4H)", [(2, 3), (3, 6)],
     "f: W must be (D, 4H), but has shape (3, 6): axis 1 is 6 (not a multiple of 4)"),
    ("h (B, H), U (H, 4H)", [(2, 3), (3, 8)], "(3, 8): axis 1 is 8 instead of 12 (H = 3 by h)"),
    ("x (B, T, D)", [(2, 3)], "f: x must be (B, T, D), but has 2 axes, shape (2, 3); reshape it"),
    ("x (..., D)", [()], "f: x must be (..., D), but has 0 axes"),
    ("x (..., D), y (..., D)", [(2, 3, 4), (3, 4)],
     "f: y must be (..., D), but has shape (3, 4): its leading axes are (3,), those of x are (2, 3); make them equal"),
    ("x (..., B, D), y (D)", [(7, 2, 3), (2,)], "axis 0 is 2 instead of 3 (D = 3 by x)"),
    ("x (B), b? (B)", [None], "f: x must be (B), but is None, but it is not optional"),
    ("x (B), b? (B)", [(2,), (3,)], "f: b must be (B)"),
    ("*xs (...)", [(2,), (2,), (3,)],
     "f: xs[2] must be (...), but has shape (3,): its leading axes are (3,), those of xs[0] are (2,)"),
    ("keep ~(B, T), x (B, T)", [(2,), (2, 3)],
     "f: keep must be ~(B, T), but has shape (2,), which does not broadcast to (2, 3)"),
    ("x (B, T), keep ~(B, T)", [(2, 3), (1, 2, 3)], "f: keep must be ~(B, T)"),
])
def test_what_a_shape_line_refuses(line, shapes, message):
    refused(ValueError, lambda: check(line, *shapes), message)


def test_a_shape_line_asks_for_floats_unless_it_says_otherwise():
    line = ShapeLine("x (B), ids:int (B), mask?:bool ~(B), *xs:any (B) -> y")
    names = ["x", "ids", "mask", "xs[0]", "xs[1]"]
    floats, ints, bools = (np.dtype(name) for name in ("float16", "uint8", "bool"))
    line.check("f", names, [(2,), (2,), (1,), (2,), (2,)])
    line.check_kinds("f", names, [floats, ints, bools, floats, bools])
    line.check_kinds("f", names, [None, None, None, None])                   # numbers, and arguments that were left out
    for wrong, says in (([ints], "f: x must be floating point numbers, but has dtype uint8"),
                        ([floats, bools], "f: ids must be integers"),
                        ([floats, ints, ints], "f: mask must be booleans")):
        refused(TypeError, lambda wrong=wrong: line.check_kinds("f", names, wrong), says, "convert it")


@pytest.mark.parametrize("line", [
    "x (B", "x:str (B)", "x [B]", "x (B; D)", "x (B, 3)", "x (B, ...)", "x (B, D-1)", "(B) -> y",
])
def test_a_line_that_is_no_shape_line_is_refused_when_the_op_is_made(line):
    refused(ValueError, lambda: mx.op(line)(lambda x: (x, lambda dy: dy)), "shape line: cannot read", "write")


# Ops of the user


def test_an_op_of_the_user_works_can_be_redefined_and_is_not_in_the_registry():
    before = dict(mx.OPS)
    for factor in (2, 3):
        @mx.op("x (...) -> y (...)")
        def times(x):
            return factor * x, lambda dy: factor * dy           # noqa: B023  (called in this round)

        x = leaf([1, 2])
        times(x).sum().backward()
        assert x.grad.tolist() == [factor, factor] and repr(times) == "<op times: x (...) -> y (...)>"
    assert mx.OPS == before

    def tanh(x):
        return x, lambda dy: dy
    tanh.__module__ = "minitx.elsewhere"
    refused(ValueError, lambda: mx.op()(tanh), "op tanh: minitx has an op of this name already")
    assert mx.OPS == before


def made(line, vjp, *arrays):
    return lambda: mx.op(line)(vjp)(*arrays)


NO_OPS = {
    "another argument": (made("y (...) -> z", lambda x: (x, None)), ValueError, "its shape line speaks of y, but it takes (x)"),
    "no backward": (made("x (...) -> y", lambda x: x, X), TypeError, "an op returns its value and its backward",
                    "it returned ndarray"),
    "no array": (made("x (...) -> y", lambda x: (1.0, id), X), TypeError, "its value is a float; return an array"),
    "a missing output": (made("x (...) -> y, z", lambda x: (x, id), X), ValueError, "it returned 1 arrays", "promises y, z"),
    "a wrong output": (made("x (B, D) -> y (B)", lambda x: (x, id), X), ValueError, "its output y must be (B), but has 2 axes"),
    "a mask of nothing": (made("m ~(B) -> y", lambda m: (m, id), X), ValueError, "m must be ~(B), but nothing says how long"),
    "an error of its own": (made("x (...) -> y", lambda x: {}["key"], X), LookupError, "'key'; called with x (2, 3) float64"),
    "no function": (lambda: mx.op()(3), TypeError, "op: write @op(...) with brackets above a function; got a int"),
    "no cell": (lambda: ops.unroll(mx.op()(lambda x, h: (h, id))), ValueError, "unroll: the cell <lambda> needs a shape line"),
}


@pytest.mark.parametrize("mistake", NO_OPS.values(), ids=NO_OPS)
def test_what_is_no_op_is_refused(mistake):
    call, kind, *parts = mistake
    refused(kind, call, *parts)


def test_unroll_of_a_cell_of_the_user():
    @mx.op("x (B, D), h (B, H), W (D, H) -> h_next (B, H)")
    def leaky(x, h, W, *, keep=0.5):
        def backward(dh_next):
            return dh_next @ W.T, keep * dh_next, x.T @ dh_next
        return keep * h + x @ W, backward

    sequence = ops.unroll(leaky)
    x, h, W = (leaf(a) for a in arrays((2, 5, 3), (2, 4), (3, 4)))
    assert sequence is ops.unroll(leaky) and sequence.name == "unroll(leaky)" and sequence.name not in mx.OPS
    mx.gradcheck(sequence, x, h, W, keep=0.9)
    hs, last = sequence(x, h, W, keep=0.9)
    for t in range(5):
        h = leaky(x[:, t], h, W, keep=0.9)
        assert np.array_equal(hs.array[:, t], h.array)
    assert np.array_equal(last.array, h.array)
    seen = []
    sequence(x, h, W, watch=lambda name, dh, t: seen.append((name, t)))[0].sum().backward()
    assert seen == [("dh", t) for t in (4, 3, 2, 1, 0)]


def test_integer_outputs_are_not_tracked_and_get_zeros():
    @mx.op("x (B, D) -> top (B), place (B)")
    def largest(x):
        place, rows = x.argmax(-1), np.arange(len(x))

        def backward(dtop, dplace):
            assert dplace.dtype == place.dtype and not dplace.any()
            dx = np.zeros_like(x)
            dx[rows, place] = dtop
            return dx
        return (x[rows, place], place), backward

    x, table = leaf([[1, 3, 2], [5, 4, 0]]), leaf([[1], [10], [100]])
    top, place = largest(x)
    assert top.requires_grad and not place.requires_grad and place.node is None
    (top.sum() + ops.embedding(place, table).sum()).backward()
    assert x.grad.tolist() == [[0, 1, 0], [1, 0, 0]] and table.grad.tolist() == [[1], [1], [0]]


WRONG = {
    "None": (lambda dy: (None, dy), "x must have its shape (2, 3) and float64, but the backward returned None"),
    "shape": (lambda dy: (dy, dy[0]), "y must have its shape (2, 3) and float64", "returned shape (3,), float64"),
    "dtype": (lambda dy: (dy, dy.astype("float32")), "y must have", "returned shape (2, 3), float32"),
    "device": (lambda dy: (dy, STRICT.array.copy()), "y must have", "returned shape (2, 3), float64 on strict"),
    "number": (lambda dy: (1.0, dy), "x must have", "returned a float"),
    "Tensor": (lambda dy: (dy, mx.tensor(dy)), "y must have", "returned a Tensor"),
    "one": (lambda dy: dy, "returned 1 gradients for 2 arguments; return one per positional argument"),
    "three": (lambda dy: (dy, dy, dy), "returned 3 gradients for 2 arguments"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_mistake_in_a_backward_names_op_and_argument(wrong):
    backward, *says = wrong

    @mx.op("x (...), y (...) -> z (...)")
    def mine(x, y):
        return x + y, backward

    refused(RuntimeError, (mine(leaf(np.ones((2, 3))), leaf(np.ones((2, 3)))) * 2).sum().backward, "mine: ", *says)


# Weight


def test_importing_minitx_loads_nothing_that_takes_long():
    code = "import sys, numpy; before = set(sys.modules); import minitx; print(*set(sys.modules) - before)"
    root = Path(__file__).parent.parent
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True).split()
    assert "minitx.tape" in loaded
    assert {"tqdm", "matplotlib", "cupy", "torch", "numpy.random"} & set(loaded) == set()


def test_an_op_that_returns_no_pair_is_found_at_any_call():
    """Two rows would pass for a value and a backward, where another call of this shape was right."""
    @mx.op("x (...) -> y (...)")
    def sometimes(x, *, right):
        return (x * 1, lambda dy: dy) if right else x * 1

    assert sometimes(X, right=True).shape == (2, 3)
    refused(TypeError, lambda: sometimes(X, right=False), "sometimes: an op returns its value and its backward")
