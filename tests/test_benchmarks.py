"""The benchmark programs, with tiny sizes: all libraries do the same work, another work is refused, and the results say all."""

import importlib
import json
import re
import sys
from argparse import Namespace
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx import backend

from . import strict  # noqa: F401  the device "strict"

FOLDER = Path(__file__).parent.parent / "examples" / "benchmarks"
SIZES = {"W1": {"D": 4, "H": 5, "L": 2, "B": 4, "T": 6}, "W1s": {"D": 3, "H": 4, "L": 1, "B": 2, "T": 5},
         "W2": {"D": 8, "N": 2, "L": 2, "B": 4, "T": 6}, "W2s": {"D": 4, "N": 1, "L": 1, "B": 2, "T": 5},
         "W5 gpt": {"D": 8, "N": 2, "L": 2, "T": 9, "prompt": 4, "count": 5},
         "W5 lstm": {"D": 4, "H": 5, "L": 2, "prompt": 4, "count": 5}}
EACH = ("W1", "W2", "W3 T=128", "W3 T=512", "W4 softmax", "W4 layer_norm", "W4 gelu", "W4 linear", "W4 cross_entropy",
        "W4 embedding", "W4 lstm_cell", "W5 gpt", "W5 lstm")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


class Here(Executor):
    """In place of a process for each contender: this one."""

    def submit(self, function, *args):
        future = Future()
        future.set_result(function(*args))
        return future


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """The scripts beside one another on the path, with small sizes, in this process, which keeps its cores and its devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("_BY_NAME", "_BY_TYPE"):
        monkeypatch.setattr(backend, name, dict(getattr(backend, name)))
    before = set(sys.modules)
    workloads = script("workloads")
    for works in workloads.GROUPS.values():
        works[:] = [small(work) for work in works]
    monkeypatch.setattr(script("worker"), "keep_to", lambda cores: None)
    monkeypatch.setattr(script("worker"), "PAUSE", 0)
    monkeypatch.setattr(script("speed"), "start", Here)
    yield
    for name in {path.stem for path in FOLDER.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


def small(work):
    if work.kind == "attention":
        T = 5 if work.name == "W3 T=128" else 7
        return work._replace(sizes=dict.fromkeys(work.sizes, (2, 2, T, 3)))
    return script("workloads").hollow(work) if work.kind == "op" else work._replace(sizes=SIZES[work.name])


def script(name):
    return importlib.import_module(name)


def work_of(name):
    return next(work for works in script("workloads").GROUPS.values() for work in works if work.name == name)


def run(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["speed.py", *args])
    script("speed").main()


def options(**changed):
    return Namespace(**{"device": "cpu", "threads": 1, "rounds": 2, "seconds": 0.0, "jax": False} | changed)


# the same work


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("name", EACH)
def test_minitx_and_torch_do_the_same_work(name):
    result = script("speed").compare(work_of(name), options())
    assert {"minitx", "torch"} <= result["ms"].keys() and all(ms > 0 for ms in result["ms"].values())
    r = result["ratios"]["minitx"]
    assert 0 < r["low"] <= r["median"] <= r["high"] and len(result["rounds_ms"]["torch"]) == 2


@pytest.mark.torch
@needs_torch
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize("name", ["W1", "W4 lstm_cell", "W5 gpt"])
def test_so_does_jax(name):
    assert "jax" in script("speed").compare(work_of(name), options(jax=True))["ratios"]


@pytest.mark.parametrize("name", EACH)
def test_minitx_computes_the_same_on_a_device(name):
    worker = script("worker")
    host, device = (worker.prepare("minitx", work_of(name), 1, where) for where in ("cpu", "strict"))
    for ours, theirs in zip(host, device, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def losses(*values):
    return [[np.array(value)] for value in values]


@pytest.mark.parametrize("wrong", [losses(4.0, 3.0, 2.01), losses(4.0, 3.0, np.nan), losses(4.0, 3.0, [2.0])])
def test_another_loss_is_refused_and_rounding_is_not(wrong):
    speed, right = script("speed"), losses(4.0, 3.0, 2.0)
    speed.agree(work_of("W1"), {"minitx": losses(4.0, 3.0001, 2.0), "torch": right})
    with pytest.raises(SystemExit, match="W1: result 0 of step 2 differs between minitx and torch, so the times cannot"):
        speed.agree(work_of("W1"), {"minitx": wrong, "torch": right})


def test_of_symbols_all_must_be_the_same():
    theirs, ours = np.arange(100_000), np.arange(100_000)
    ours[1] = 2
    with pytest.raises(SystemExit, match=r"W5 gpt: .* \[0, 2, 2\] and \(100000,\) \[0, 1, 2\]"):
        script("speed").agree(work_of("W5 gpt"), {"minitx": [[ours]], "torch": [[theirs]]})


# the program


@pytest.mark.torch
@needs_torch
def test_the_program_prints_rows_and_goals_and_keeps_all_numbers(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(script("worker"), "memory", lambda *_: 2.0)
    run(monkeypatch, "--work", "W1,W3,W5", "--threads", "1", "--rounds", "2", "--seconds", "0", "--no-jax",
        "--out", "speed.json")
    out, results = capsys.readouterr().out, json.loads((tmp_path / "speed.json").read_text())
    assert re.search(r"^W1 +[\d.]+ +[\d.]+ +[\d.]+ \([\d.]+ … [\d.]+\)(  unsteady)?$", out, re.M)
    assert re.search(r"^ +matrix products alone [\d.]+ ms \(\d+ GFLOP/s\); the step takes [\d.]+ of that", out, re.M)
    assert re.search(r"^ +peak memory above imports, MiB: minitx 2, torch 2; page faults of a step: minitx \d", out, re.M)
    assert re.search(r"^W1 time +≤ 0.85 +≤ 0.79 +[\d.]+   (moonshot|must|no|unsteady)$", out, re.M)
    assert "JAX" not in out or "not installed" in out
    assert results["threads"] == 1 and results["cores"] and results["cpu"] and results["versions"]["torch"]
    W1, gpt = results["workloads"]["W1"], results["workloads"]["W5 gpt"]
    assert W1["rounds_ms"].keys() == {"minitx", "torch", "products"} and all(len(ms) == 2 for ms in W1["rounds_ms"].values())
    assert W1["sizes"] == SIZES["W1"] and sum(row["share"] for row in W1["shares"]) == pytest.approx(1)
    assert W1["calls_ms"] > 0 and re.search(r"^ +its calls alone [\d.]+ ms, \d+% of it$", out, re.M)
    assert gpt["calls_ms"] > 0 and "lines" not in W1
    assert re.search(r"^ +\d+%  " + re.escape(gpt["lines"][0]["line"]), out, re.M)
    assert W1["ratios"]["minitx"]["median"] == pytest.approx(np.mean(np.divide(*map(W1["rounds_ms"].get, ("minitx", "torch")))))
    speeds = [theirs / ours for ours, theirs in zip(*map(gpt["rounds_ms"].get, ("minitx", "torch")))]
    assert gpt["ratios"]["minitx"]["median"] == pytest.approx(np.mean(speeds))
    assert results["workloads"]["W3 T=512"]["ratios"].keys() == {"minitx", "minitx flash"}
    assert [g["goal"] for g in results["goals"]] == ["W1 time", "W1 peak memory"], "the others are set for two threads"


@pytest.mark.parametrize("args, says", [
    (["--work", "W1,W9"], "no workload W9; there are W1, W1s, W2, W2s, W3, W4, W5"),
    (["--threads", "0"], "--threads: 0; expected at least 1"),
    (["--rounds", "0"], "--rounds: 0; expected at least 1"),
    (["--seconds", "nan"], "--seconds: nan; expected at least 0"),
    (["--device", "tpu"], "invalid choice: 'tpu'"),
    (["--device", "cuda"], "--device: device 'cuda': CuPy finds no usable GPU"),
    (["--out", "nowhere/speed.json"], "--out: nowhere/speed.json; there is no folder nowhere"),
])
def test_what_cannot_be_measured_or_written_is_refused_first(args, says, monkeypatch, capsys):
    def no_gpu():
        raise RuntimeError("device 'cuda': CuPy finds no usable GPU")

    monkeypatch.setattr(backend, "_load_cuda", no_gpu)
    with pytest.raises(SystemExit):
        run(monkeypatch, *args)
    assert says in capsys.readouterr().err.strip().split("\n")[-1]


def test_a_workload_that_is_named_twice_is_measured_once(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--work", "W2,W1,W2", "--no-jax"])
    assert script("speed").arguments().work == ["W2", "W1"]


def test_without_torch_there_is_nothing_to_compare_with(monkeypatch):
    speed = script("speed")
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="PyTorch, which is not installed: pip install torch"):
        run(monkeypatch)


def test_a_contender_has_a_process_of_its_own(monkeypatch):
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(FOLDER))
    worker, work = script("worker"), work_of("W1")._replace(sizes=SIZES["W1"])
    with script("speed").start() as process:
        found = process.submit(worker.prepare, "minitx", work, 1, "cpu").result()
        assert process.submit(worker.measure, "minitx", 0.0).result() > 0
    assert len(found) == 3 and "minitx" not in worker._steps


@pytest.mark.torch
@needs_torch
def test_on_a_gpu_the_launches_are_told_apart(monkeypatch):
    speed, work = script("speed"), work_of("W2")
    asked = []
    monkeypatch.setattr(speed, "compare", lambda work, args: asked.append(work) or {"ms": {"minitx": len(asked)}})
    assert speed.measured(work, options(device="cuda"))["launches_ms"] == {"minitx": 2}
    assert asked == [work, script("workloads").hollow(work)]
    assert "jax" not in speed.contenders(work, options(device="cuda", jax=True))


# its parts


@pytest.mark.parametrize("name", ["W1", "W2", "W5 gpt", "W5 lstm"])
def test_a_hollow_step_has_the_same_ops_in_the_same_order(name):
    def ops_of(work):
        step = script("peer_minitx").build(work, "", "strict")
        with mx.profile() as p:
            step()
        return [(row.op, row.calls) for row in p.rows.values()]

    work, hollow = work_of(name), script("workloads").hollow(work_of(name))
    assert ops_of(work) == ops_of(hollow) != []


def test_the_recorded_products_are_those_that_the_profile_counts():
    products, work = script("peer_products"), work_of("W2")
    model = script("peer_minitx").model_of(work, "cpu")
    with mx.profile() as p:
        model.loss(*script("workloads").batch(work)).backward()
    assert 1e9 * products.build(work)() == pytest.approx(sum(row.flops for row in p.rows.values()))


@pytest.mark.parametrize("name", ["W1", "W2"])
def test_recording_changes_no_gradient(name):
    products, work = script("peer_products"), work_of(name)
    model, twin = (script("peer_minitx").model_of(work, device) for device in ("cpu", "recorded"))
    for m in (model, twin):
        m.loss(*(backend.to_device(ids, m.device) for ids in script("workloads").batch(work))).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, products.plain(q.grad), rtol=1e-3, atol=1e-6)
    assert products.products(work)


def test_of_products_those_with_a_vector_do_not_count():
    products = script("peer_products")
    a, counted = products.recorded(np.ones((3, 4))), lambda: sum(map(len, products._seen.values()))
    products._seen.clear()
    for other in (np.ones(4), np.ones((4, 1))):
        a @ other
    np.ones((1, 3)) @ a
    assert counted() == 0
    a @ np.ones((4, 2)), np.ones((2, 3)) @ a, np.dot(a, a.T), np.matmul(np.ones((5, 2, 3)), a)
    assert counted() == 4


def test_memory_is_that_of_the_work():
    worker, work = script("worker"), work_of("W3 T=128")
    assert all(worker.memory("minitx", w, 1, "cpu") >= 0 for w in (work, work_of("W1")))
    before = worker.reset_peak()
    kept = np.ones(1 << 24, "uint8")
    assert 15 < worker.peak() - before < 32 and kept.all()


def test_a_line_has_the_time_of_what_it_calls_outside_the_package(monkeypatch, tmp_path):
    lines, seconds, before = script("lines"), [0.0], sys.gettrace()
    (tmp_path / "inside.py").write_text("def inner(wait):\n    wait(1)\n\ndef step(wait):\n    wait(2); wait(1)   # 3\n"
                                        "    inner(wait)\n    wait(0.01)\n")
    monkeypatch.setattr(lines, "PACKAGE", tmp_path)
    monkeypatch.setattr(lines, "time", Namespace(perf_counter=lambda: seconds[0]))
    monkeypatch.syspath_prepend(str(tmp_path))

    def wait(number):
        seconds[0] += number

    assert lines.by_line(lambda: script("inside").step(wait), 4) == [
        {"file": f"{tmp_path.name}/inside.py", "line": "wait(2); wait(1)", "share": pytest.approx(3 / 4.01)},
        {"file": f"{tmp_path.name}/inside.py", "line": "wait(1)", "share": pytest.approx(1 / 4.01)}]
    assert sys.gettrace() is before


@pytest.mark.parametrize("name", ["W4 layer_norm", "W5 gpt"])
def test_the_lines_of_a_profile_are_those_of_the_source(name):
    worker = script("worker")
    worker.prepare("minitx", work_of(name), 1, "cpu")
    found = worker.lines("minitx")
    assert found and all(row["line"] in (FOLDER.parent.parent / row["file"]).read_text("utf-8") for row in found)


def test_every_goal_has_a_source_and_is_judged():
    goals, workloads = script("goals"), script("workloads")
    ratio = {"median": 2.5, "low": 2.3, "high": 2.8}
    results = {work.name: {"kind": work.kind, "ratios": {who: ratio for who in ("minitx", "minitx flash")},
                           "memory_mib": {"minitx": 1.0, "minitx flash": 4.0, "torch": 2.0}}
               | ({"products": goals.once(1.3)} if work.kind == "training" else {})
               for works in workloads.GROUPS.values() for work in works}
    for threads, table in goals.GOALS.items():
        found = {g["goal"]: (g["measured"], g["reached"]) for g in goals.judged(results, threads)}
        assert found.keys() == table.keys()
        assert found["W1 time"] == (2.5, "no") and found["W1 peak memory"] == (0.5, "must")
    two = {g["goal"]: g["reached"] for g in goals.judged(results, 2)}
    assert (two["W5 gpt tokens/s"], two["W1 step ÷ products"], two["W2 step ÷ products"]) == ("must", "must", "moonshot")
    assert two["W3 T=4096 ÷ T=1024 memory"] == "must" and two["W4 embedding time"] == "moonshot"
    assert goals.judged(results, 3) == [] and goals.judged({}, 2) == []


@pytest.mark.parametrize("goal, low, median, high, says", [
    ("W1 time", 0.8, 0.9, 1.0, "must"), ("W1 time", 0.5, 0.6, 0.7, "moonshot"), ("W1 time", 0.5, 0.6, 0.9, "must"),
    ("W1 time", 0.5, 0.6, 0.91, "unsteady"), ("W1 time", 0.91, 1.0, 1.2, "no"), ("W1 time", 0.6, np.nan, np.nan, "unsteady"),
    ("W5 tokens/s", 1.9, 2.0, 2.1, "must"), ("W5 tokens/s", 2.0, 3.0, 4.0, "must"), ("W5 tokens/s", 1.9, 3.0, 4.0, "unsteady"),
    ("W5 tokens/s", 1.0, 1.5, 1.9, "no")])
def test_where_rounds_disagree_each_of_them_has_to_reach_the_goal(goal, low, median, high, says):
    bounds = (2.0, 3.5) if goal.endswith("tokens/s") else (0.9, 0.82)
    assert script("goals").verdict(goal, {"low": low, "median": median, "high": high}, *bounds) == says


@pytest.mark.parametrize("goal, value, says", [
    ("W1 time", 0.9, "must"), ("W1 time", 0.91, "no"), ("W1 time", 0.82, "moonshot"), ("W1 time", np.nan, "no"),
    ("W5 tokens/s", 1.9, "no"), ("W5 tokens/s", 3.0, "must"), ("W5 tokens/s", np.nan, "no")])
def test_how_far_a_goal_is_reached(goal, value, says):
    bounds = (2.0, 3.5) if goal.endswith("tokens/s") else (0.9, 0.82)
    assert script("goals").reached(goal, value, *bounds) == says
