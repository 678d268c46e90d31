"""The command that waits for a GPU: here, all of it up to the launch, on the stand-in and with a CUDA that only writes down."""

import importlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minitx import backend

from . import strict
from .strict import xp

FOLDER = Path(__file__).parent.parent / "examples" / "benchmarks"
SIZES = {"lstm": {"D": 4, "H": 5, "L": 1, "B": 2, "T": 6}, "gpt": {"D": 8, "N": 2, "L": 1, "B": 2, "T": 6}}


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("gpu_check")
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def devices(monkeypatch):
    """What is registered meanwhile is forgotten."""
    for table in (backend._BY_NAME, backend._BY_TYPE):
        for key, device in list(table.items()):
            monkeypatch.setitem(table, key, device)


def test_without_a_gpu_it_says_so_in_one_line(check, monkeypatch, capsys):
    def none(name):
        raise RuntimeError("device 'cuda': CuPy finds no usable GPU")

    monkeypatch.setattr(check.backend, "device", none)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert check.main() == 2
    assert capsys.readouterr().out == "gpu_check: nothing was checked; device 'cuda': CuPy finds no usable GPU\n"


@pytest.mark.parametrize("what", SIZES)
def test_steps_are_the_same_fused_and_unfused_and_wait_once(check, devices, what):
    work = check.Work(what, "training", what, SIZES[what])
    found = check.compared(work, "strict", lambda *args: check.steps(*args, count=5))
    assert found["losses_differ_by"] < 1e-5 and found["waits"] == ["get"] and found["holds"]
    assert backend.device("strict").fuse is None, "the second run was unfused"


def test_a_loss_that_differs_and_a_second_wait_do_not_hold(check):
    def run(losses, waits):
        return lambda work, device, fuse: {"losses": losses[device], "ms": 1.0, "waits": waits}

    for losses, waits, holds in (([1.0, 2.0], ["get"], True), ([1.0, 2.001], ["get"], False), ([1.0, np.nan], ["get"], False),
                                 ([1.0, 2.0], ["get", "item"], False)):
        both = {"cuda": losses, "cpu": [1.0, 2.0]}
        assert check.compared(None, "cuda", run(both, waits))["holds"] is holds


def test_waits_are_counted_at_the_doors_once_each_and_the_doors_are_as_before(check):
    x, before = xp.asarray(np.array(1.5)), dict(vars(xp.ndarray))
    with strict.syncs() as expected, check.waits(xp.ndarray) as found:
        float(x), bool(x), int(x), x.item(), x.get(), f"{x:.1f}", repr(x), x.tolist(), backend.to_host(x), x + x
    assert [name.strip("_") for name in found] == expected and len(found) == 9
    assert dict(vars(xp.ndarray)) == before


# Graphs


class Cuda:
    """Of cupy.cuda what a capture takes. Between begin and end a launch is written down; `launch` does it all again.

    The stand-in computes at once, so the writing is that of the loop as a whole.
    """

    def __init__(self, refuses=()):
        self.said, cuda = [], self

        class Stream:
            def __init__(self, non_blocking):
                assert non_blocking, "CuPy captures on such a stream only"

            def __enter__(self): cuda.said.append("enter")
            def __exit__(self, *_): cuda.said.append("exit")
            def synchronize(self): cuda.said.append("wait")
            def begin_capture(self): cuda.said.append("begin")

            def end_capture(self):
                cuda.said.append("end")
                return SimpleNamespace(launch=lambda stream: cuda.said.append("launch"))

        self.Stream, self.Device = Stream, lambda: SimpleNamespace(synchronize=lambda: None)


def test_a_capture_is_begun_after_a_run_and_ended_whatever_happens(check):
    cuda = Cuda()
    replay = check.captured(cuda, lambda: cuda.said.append("work"))
    replay()
    assert cuda.said == ["enter", "work", "wait", "begin", "work", "end", "exit", "launch"]

    def refuses():
        if "begin" in cuda.said:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")

    cuda = Cuda()
    with pytest.raises(NotImplementedError):
        check.captured(cuda, refuses)
    assert cuda.said == ["enter", "wait", "begin", "end", "exit"]


def test_the_loop_is_the_recurrence_with_either_product_and_a_refusal_is_a_finding(check):
    cuda = Cuda()

    def summed(h, U, p):
        p[...] = (h[:, None, :] * U.T[None]).sum(-1)
        if cuda.said.count("begin") == 2 and cuda.said.count("end") == 1:
            raise NotImplementedError("no capture")

    found = check.graphs(xp, cuda, summed, T=4, B=2, H=3)
    assert found["summed as a graph"] == "NotImplementedError: no capture"
    assert not found["holds"], "the other graph replays nothing here, and that is noticed"
    assert {name for name, value in found.items() if isinstance(value, float)} == {"blas", "summed", "blas as a graph"}


def test_the_loop_by_hand(check):
    rng = np.random.default_rng(0)
    a, U, hs = rng.standard_normal((3, 2, 4)), rng.standard_normal((4, 4)), np.zeros((4, 2, 4))
    check.recurrence(lambda h, U, p: np.matmul(h, U, out=p), a, hs, U, np.empty((2, 4)))
    h = np.zeros((2, 4))
    for t in range(3):
        h = np.tanh(a[t] + h @ U)
        np.testing.assert_allclose(hs[t + 1], h, rtol=1e-14)


# The whole command


SOON = 60.0                                     # seconds; none of these programs takes as long


def test_programs_end_well_or_badly(check):
    end = time.perf_counter() + SOON
    assert check.program(end, "-c", "print('fine')") == {"holds": True, "last": "fine"}
    assert check.program(end, "-c", "print(1); raise SystemExit(3)") == {"holds": False, "last": "1"}


def test_a_program_that_takes_too_long_is_ended_with_what_it_has_started(check):
    sleeps = "import time; time.sleep(300)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeps!r}])"      # keeps our pipe open
    found = check.attempt(time.perf_counter() + 0.3, check.program, time.perf_counter() + 0.3, "-c", starts)
    assert found["holds"] is None and "timed out" in found["error"]


def test_an_error_fails_and_what_has_no_time_is_left_out(check):
    def raises(error):
        raise error

    soon, past = time.perf_counter() + SOON, time.perf_counter()
    assert check.attempt(soon, raises, ValueError("no")) == {"holds": False, "error": "ValueError: no"}
    assert check.attempt(soon, raises, check.multiprocessing.TimeoutError())["holds"] is False, "two minutes were not enough"
    assert check.attempt(past, raises, ValueError("no")) == {"holds": None, "error": "no time was left"}


def test_training_steps_have_until_the_end_and_two_minutes_at_most(check, monkeypatch):
    asked = []

    class Pool:
        def __init__(self, processes): pass
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def apply_async(self, function, args): return self

        def get(self, timeout):
            asked.append(timeout)

    monkeypatch.setattr(check.multiprocessing, "get_context", lambda kind: SimpleNamespace(Pool=Pool))
    for left in (500, 50, -1):
        check.alone(time.perf_counter() + left)
    assert asked == [120, pytest.approx(50, abs=5), 0]


@pytest.mark.parametrize("fails", [False, True])
def test_the_command_writes_down_all_parts_and_ends_with_what_they_say(check, monkeypatch, tmp_path, fails):
    asked = []

    def program(end, *command):
        asked.append(command)
        return {"holds": not fails, "last": ""}

    def compared(work, device, run):
        if fails:
            raise ValueError("no")
        return {"holds": True}

    monkeypatch.setattr(check.backend, "device", lambda name: None)
    monkeypatch.setattr(check, "compared", compared)
    monkeypatch.setattr(check, "graph_part", lambda: {"holds": True})
    monkeypatch.setattr(check, "program", program)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "x.json")])
    assert check.main() == int(fails)
    written = json.loads((tmp_path / "x.json").read_text())
    assert {"W1", "W1s", "W2", "W2s", "graph", "tests"} <= written.keys()
    assert asked[0][:4] == ("-m", "pytest", "-m", "gpu")
    assert written["W1"] == ({"holds": False, "error": "ValueError: no"} if fails else {"holds": True})


def test_once_the_time_is_up_nothing_more_is_begun_and_nothing_failed(check, monkeypatch, capsys):
    monkeypatch.setattr(check, "LIMIT", 0)
    monkeypatch.setattr(check.backend, "device", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert check.main() == 0
    assert all("left out" in line for line in capsys.readouterr().out.splitlines())
