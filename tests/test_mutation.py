"""The mutation run itself: with toy ops that it must see through, it kills what it should and reports what it should."""

import ast
import importlib.util
import sys

import numpy as np
import pytest

from minitx.op import Op

from .concerns import checks_of
from .mutants import mutants
from .mutation import listed_in, mutate
from .units import units_of

OPS = """
from minitx.op import op


def twice(x):
    return x * 2.0


@op("x (...) -> y (...)")
def strong(x):
    y = twice(x) - 1

    def backward(dy):
        return twice(dy)

    return y, backward


@op("x (...) -> y (...)")
def weak(x):
    y = x * x + 0

    def backward(dy):
        return dy * x - 0

    return y, backward
"""
CHECKS = """
import numpy as np
import pytest

import toy_ops

x, dy = np.array([1.5, -2.5]), np.array([2.0, 3.0])


@pytest.mark.parametrize("op", [toy_ops.strong])
def test_numbers(op):
    y, backward = op.vjp(x)
    assert y.tolist() == [2, -6] and backward(dy).tolist() == [4, 6]


def test_the_forward_of_weak_only():
    y, backward = toy_ops.weak.vjp(x)
    assert y.tolist() == [2.25, 6.25] and backward(dy).shape == dy.shape
"""


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """(units, checks) of two modules that are written for one test."""
    made = []
    for name, source in ("toy_ops", OPS), ("toy_checks", CHECKS):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        made.append(module)
    ops, checks = made
    return units_of({op.name: op for op in vars(ops).values() if isinstance(op, Op)}, ("toy_ops.",)), checks_of((checks,))


def test_what_a_check_sees_is_killed_and_the_rest_survives(toys):
    units, checks = toys
    result = mutate(units, checks, {})
    assert [(unit.name, unit.ops) for unit in units] == [("twice", {"strong"}), ("strong", {"strong"}), ("weak", {"weak"})]
    assert result.fate["twice: x * 2.0 -> x / 2.0"] == result.fate["strong: twice(x) - 1 -> twice(x) + 1"] == "test_numbers"
    assert result.fate["strong: twice(dy) -> dy"] == "test_numbers"
    assert result.fate["weak: x * x -> x / x"] == "test_the_forward_of_weak_only"
    assert {mutant.split(":")[0] for mutant in result.survivors()} == {"weak"}
    assert {"weak: x * x + 0 -> x * x", "weak: dy * x -> dy", "weak: dy * x -> x"} <= set(result.survivors())


def test_everything_is_as_before_afterwards(toys):
    units, checks = toys
    before = [ast.unparse(unit.tree) for unit in units]
    mutate(units, checks, {})
    assert [ast.unparse(unit.tree) for unit in units] == before
    for check in checks({"strong", "weak"}):
        check()


def test_a_listed_survivor_is_fine_and_a_wrong_line_is_reported(toys):
    units, checks = toys
    listed = listed_in("# a remark\n\nweak: x * x + 0 -> x * x  # x + 0 is x\ntwice: x * 2.0 -> x / 2.0  # so it is said\n"
                       "weak: dy * x -> dy ** x  # gone\n")
    assert listed["weak: x * x + 0 -> x * x"] == "x + 0 is x"
    result = mutate(units, checks, listed)
    assert "weak: x * x + 0 -> x * x" not in result.survivors() and "weak: dy * x -> dy" in result.survivors()
    assert result.stale() == ["twice: x * 2.0 -> x / 2.0: killed by test_numbers",
                              "weak: dy * x -> dy ** x: there is no such mutant"]


def test_of_a_sample_only_what_was_drawn_is_judged(toys):
    units, checks = toys
    listed = {"twice: x * 2.0 -> x / 2.0": "so it is said", "weak: dy * x -> dy ** x": "gone"}
    result = mutate(units, checks, listed, wanted={"twice: x * 2.0 -> 2.0", "twice: x * 2.0 -> x"})
    assert list(result.fate) == ["twice: x * 2.0 -> x", "twice: x * 2.0 -> 2.0"] and result.stale() == result.survivors() == []


def test_tests_that_fail_without_a_mutant_kill_nothing(toys, monkeypatch):
    units, checks = toys
    monkeypatch.setattr(sys.modules["toy_checks"], "x", np.zeros(2))
    with pytest.raises(RuntimeError, match="test_numbers fails for twice without any mutant"):
        mutate(units, checks, {})


def test_a_mutant_that_does_not_end_is_killed(toys, monkeypatch):
    unit, code = toys[0][0], toys[0][0].functions[0].__code__
    monkeypatch.setattr("tests.mutation.SECONDS", 0.05)

    def hang():
        while unit.functions[0].__code__ is not code:
            pass

    hang.name = "hang"
    assert set(mutate([unit], lambda names: [hang], {}).fate.values()) == {"hang"}


@pytest.mark.parametrize("source, mistakes", [
    ("y = a - b * c", ["a - b * c -> a + b * c", "a - b * c -> b * c - a", "a - b * c -> a", "a - b * c -> b * c",
                       "b * c -> b / c", "b * c -> b", "b * c -> c"]),
    ("y = a @ b", ["a @ b -> b @ a", "a @ b -> a", "a @ b -> b", "a @ b -> a.T @ b", "a @ b -> a @ b.T"]),
    ("y = a.T", ["a.T -> a"]),
    ("y = x.sum(-1, keepdims=True)", ["x.sum(-1, keepdims=True) -> x", "x.sum(-1, keepdims=True) -> x.sum(-1)",
                                      "x.sum(-1, keepdims=True) -> x.sum(1, keepdims=True)",
                                      "x.sum(-1, keepdims=True) -> x.sum(-2, keepdims=True)",
                                      "x.sum(-1, keepdims=True) -> x.sum(-0, keepdims=True)",
                                      "x.sum(-1, keepdims=True) -> x.sum(-1, keepdims=False)"]),
    ("y = x * 0.5", ["x * 0.5 -> x / 0.5", "x * 0.5 -> x", "x * 0.5 -> 0.5", "x * 0.5 -> x * 1.0"]),
    ("y = x >= 0", ["x >= 0 -> x > 0", "x >= 0 -> x < 0", "x >= 0 -> x >= 1"]),
    ("dx += dy", ["dx += dy -> dx -= dy", "dx += dy -> pass"]),
    ("def f():\n    return da, db", ["(da, db) -> (db, da)"]),
    ("def f(a, b):\n    return g(a)", ["g(a) -> a", "g(a) -> g(b)"]),
    ("x.astype(t, copy=False)", ["x.astype(t, copy=False) -> pass", "x.astype(t, copy=False) -> x"]),
    ("def f():\n    'what it is'\n    raise TypeError(f'{a + b}')", []),
], ids=lambda part: part if isinstance(part, str) else "")
def test_the_mistakes(source, mistakes):
    tree = ast.parse(source)
    assert list(mutants(tree)) == mistakes and ast.unparse(tree) == ast.unparse(ast.parse(source))
