"""What minitx costs before it computes anything, kept without a clock: how much Python runs for one op call, there and back.

The other cost, the import, is kept by `test_imports.py`: the modules that `import minitx` brings are listed there. Times of
both stand on `docs/speed.md`, measured by `examples/benchmarks/costs.py`.
"""

import json
import sys

import numpy as np
import pytest

import minitx as mx
from minitx import ops

from .test_benchmarks import script, tiny  # noqa: F401  the scripts are on the path

BOUNDS = {                      # for each op call: functions of Python that are entered, and lines that run
    "one argument": (7, 88),    # the tape alone: these two ops compute nothing
    "three arguments": (9, 140),
    "add": (13, 130),
    "linear": (14, 160),
}


def ones(*shape):
    return mx.tensor(np.ones(shape, "float32"), requires_grad=True)


def counted(op, shapes, nodes):
    """Functions entered and lines run, forward and backward, by a chain of op calls that have been made before."""
    x, parameters = ones(2, 4), [[ones(*shape) for shape in shapes] for _ in range(nodes)]

    def chain():
        y = x
        for own in parameters:
            y = op(y, *own)
        mx.gradients(y, np.ones((2, 4), "float32"))

    counts = {"call": 0, "line": 0}

    def look(frame, event, _):
        counts[event] = counts.get(event, 0) + 1
        return look

    chain()
    before = sys.gettrace()
    sys.settrace(look)
    try:
        chain()
    finally:
        sys.settrace(before)
    return np.array([counts["call"], counts["line"]])


def of_a_node(op, shapes):
    """What one node more adds to a chain."""
    return counted(op, shapes, 3) - counted(op, shapes, 2)


def op_of(name):
    costs = script("costs")
    return {"one argument": (costs.alone, []), "three arguments": (costs.layer, [(4, 4), (4,)]),
            "add": (ops.add, [(2, 4)]), "linear": (ops.linear, [(4, 4), (4,)])}[name]


@pytest.mark.parametrize("name", BOUNDS)
def test_no_more_python_runs_for_an_op_call_than_is_known(name):
    calls, lines = of_a_node(*op_of(name))
    assert calls <= BOUNDS[name][0], f"{calls} functions are entered for an op call that took {BOUNDS[name][0]}"
    assert lines <= BOUNDS[name][1], f"{lines} lines run for an op call that took {BOUNDS[name][1]}"


def test_one_function_more_would_be_noticed(monkeypatch):
    before, vjp = of_a_node(*op_of("add")), ops.add.vjp
    monkeypatch.setattr(ops.add, "vjp", lambda x, y: vjp(x, y))
    assert (of_a_node(*op_of("add")) - before).tolist() == [1, 1]


# the program


def test_the_program_times_nodes_and_imports_and_judges_both(monkeypatch, tmp_path, capsys):
    costs = script("costs")
    times = iter([90.0, 190.0, 10.0, 11.0, 10.0, 14.0, 20.0, 24.0])        # ms, numpy and minitx in turn
    monkeypatch.setattr(costs, "imported", lambda name, environment: next(times))
    monkeypatch.setattr(costs, "tape", lambda rounds: {"one argument": {"forward": 2.0, "backward": 1.0},
                                                       "three arguments": {"forward": 3.0, "backward": 2.0}})
    monkeypatch.setattr(sys, "argv", ["costs.py", "--rounds", "3", "--out", "costs.json"])
    costs.main()
    found = json.loads((tmp_path / "costs.json").read_text())
    assert found["import"] == {"ms": {"numpy": 10.0, "minitx": 14.0}, "ratio": {"median": 1.2, "low": 1.1, "high": 1.4}}
    assert {g["goal"]: (g["measured"], g["reached"]) for g in found["goals"]} == {
        "import ÷ import numpy": (1.2, "must"), "tape, µs per node": (3.0, "no")}
    assert "import minitx 14 ms, import numpy 10 ms" in capsys.readouterr().out


def test_a_node_has_a_time_and_an_import_is_one_of_a_new_process():
    costs = script("costs")
    assert all(µs["forward"] > 0 for µs in costs.tape(2).values())
    found = costs.imports(1)
    assert found["ms"]["numpy"] > 0 and found["ratio"]["low"] == found["ratio"]["high"]
