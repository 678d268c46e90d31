"""Runs survive: what was interrupted goes on, bit for bit, as if nothing had happened (C64).

`python -m tests.kill_runs --kills 50` kills many more runs than this does.
"""

import json
import math
import os
import random
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx.checkpoint import load_run, save_run
from minitx.data import windows
from minitx.models import RecurrentLM
from minitx.optim import SGD
from minitx.runs import Keeper, resume_command
from minitx.training import History, train

from .common import refused
from .kill_runs import BATCHES, IDS, KINDS, STEPS, B, T, V, keeper_of, kill_and_resume, left_by, lines_in, run

ROOT = Path(__file__).parent.parent
SCRIPT, ENV = ROOT / "examples" / "train_language_model.py", {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def interrupted(kind, place, at, every=1):
    """A run that ended after `at` steps."""
    keeper = keeper_of(kind, place, every)
    return run(keeper, keeper.start(), after_step=lambda history: keeper(history) or len(history.loss) == at)


# Bit for bit


@every_kind
def test_a_run_that_is_killed_goes_on_bit_for_bit(kind, tmp_path):
    kill_and_resume(kind, tmp_path, 1, 2, random.Random())


@every_kind
@pytest.mark.parametrize("at, every", [(1, 1), (6, 2), (7, 7), (14, 100), (STEPS - 1, 3), (STEPS, 7)])
def test_a_run_that_ends_early_goes_on_bit_for_bit(kind, at, every, tmp_path):
    assert [(step * 2) % BATCHES == 0 for step in (6, 7)] == [True, False], "at an epoch's end, and within one"
    keeper = keeper_of(kind, tmp_path / "whole", every=1000)
    run(keeper, keeper.start())
    assert len(interrupted(kind, tmp_path / "broken", at, every).loss) == at
    keeper = keeper_of(kind, tmp_path / "broken", every, seed=99)            # other weights, other random numbers
    history = keeper.start(resume=True)
    assert len(history.loss) == at and lines_in(keeper.metrics) == at, "a checkpoint at the end, whatever `every` is"
    run(keeper, history)
    assert left_by(tmp_path / "broken") == left_by(tmp_path / "whole"), "and saving disturbs nothing"


def test_a_state_that_is_carried_from_batch_to_batch_goes_on_bit_for_bit(tmp_path):
    def fresh(seed):
        mx.seed(seed)
        model = RecurrentLM(V, 4, 6, dropout=0.1)
        return model, SGD(model.parameters(), 0.1, momentum=0.9)

    def go_on(model, optimizer, state, start, stop):
        for ids, targets in islice(windows(IDS, B, T, np.random.default_rng(0)), start, stop):
            hs, state = model.layers[0](model.tokens(ids), state)
            state = [s.detach() for s in state]
            loss = mx.ops.cross_entropy(model.head(model.dropout(hs)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return state

    whole, optimizer = fresh(0)
    expected = go_on(whole, optimizer, None, 0, 20)
    model, optimizer = fresh(0)
    h, c = go_on(model, optimizer, None, 0, 7)
    save_run(tmp_path / "run", model, optimizer, History(), config={}, extra={"h": h.numpy(), "c": c.numpy()})
    model, optimizer = fresh(1)
    extra = load_run(tmp_path / "run", model, optimizer, config={}).extra
    state = go_on(model, optimizer, [mx.tensor(extra[n]) for n in "hc"], 7, 20)
    for a, b in zip([*expected, *whole.parameters()], [*state, *model.parameters()], strict=True):
        assert np.array_equal(a.array, b.array)


# What is in the folder


def test_metrics_are_lines_of_strict_json(tmp_path):
    history = interrupted("rnn", tmp_path / "run", 3)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and [line["symbols"] for line in lines] == [64, 128, 192]
    for name, values in (("loss", history.loss), ("bits", history.bits), ("grad_norm", history.grad_norm),
                         ("lr", history.lr), ("seconds", history.seconds_at)):
        assert [line[name] for line in lines] == values
    assert history.symbols == 192 and 0 < history.seconds == history.seconds_at[-1]


def test_numbers_that_are_not_finite_are_recorded_and_come_back(tmp_path):
    class Ill(RecurrentLM):
        def loss(self, ids, targets):
            return super().loss(ids, targets) * (math.nan if ids[0, 0] == ids[1, 0] else 1.0)

    def keeper(seed):
        mx.seed(seed)
        model = Ill(V, 4, 5)
        return Keeper(tmp_path / "run", model, SGD(model.parameters(), 0.1), config={}, every=1)

    def go_on(keeper, history, steps):
        batches = islice(windows(IDS, B, T, np.random.default_rng(0)), len(history.loss), None)
        with keeper:
            return train(keeper.model, batches, keeper.optimizer, steps=steps, on_nonfinite="record", history=history,
                         after_step=keeper)

    first = keeper(0)
    history = go_on(first, first.start(), 20)
    steps = [step for step, _ in history.events]
    assert 0 < len(steps) < 15 and all(math.isnan(history.loss[step]) for step in steps)
    assert set(first.optimizer.counts) == {20 - len(steps)}, "such a step moves nothing"
    lines = [json.loads(line, parse_constant=pytest.fail) for line in first.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line["loss"] is None and line["grad_norm"] is None] == steps
    second = keeper(1)
    resumed = second.start(resume=True)
    assert repr(resumed) == repr(history) and go_on(second, resumed, 25).events[:len(steps)] == history.events
    assert lines_in(second.metrics) == 25


def test_an_earlier_run_in_the_same_place_is_put_aside(tmp_path, capsys):
    for at in (2, 3, 4):
        interrupted("rnn", tmp_path / "run", at)
    assert capsys.readouterr().err.count("an earlier run was there; moved to ") == 4
    kept = {path.name: lines_in(path) for path in tmp_path.glob("*.jsonl")}
    assert kept == {"run.1.jsonl": 2, "run.2.jsonl": 3, "run.jsonl": 4}
    for name, at in (("run.1", 2), ("run.2", 3), ("run", 4)):
        assert len(keeper_of("rnn", tmp_path / name).start(resume=True).loss) == at


def test_half_written_files_are_never_taken_for_checkpoints_and_go_away(tmp_path):
    half, other = tmp_path / "run.checkpoint.7.part", tmp_path / "run.1.checkpoint.7.part"
    half.write_bytes(b"half")
    refused(FileNotFoundError, lambda: keeper_of("rnn", tmp_path / "run").start(resume=True), "run.checkpoint'", "--resume")
    interrupted("rnn", tmp_path / "run", 3)
    for path in (half, tmp_path / "run.jsonl.7.part", other):
        path.write_bytes(b"half")
    assert len(keeper_of("rnn", tmp_path / "run").start(resume=True).loss) == 3
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [other.name, "run.checkpoint", "run.jsonl"], "and those of other runs stay"


def test_what_cannot_be_written_is_known_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        keeper_of("rnn", tmp_path / "file" / "run").start()
    refused(ValueError, lambda: keeper_of("rnn", tmp_path / "run", every=0), "Keeper: every must be 1 step or more, got 0")


def test_a_run_that_stops_at_a_number_that_is_not_finite_keeps_its_checkpoint_and_its_lines(tmp_path):
    keeper = keeper_of("rnn", tmp_path / "run", every=2)

    def poison(history):
        keeper(history)
        if len(history.loss) == 5:
            keeper.model.head.b.assign_(np.full(V, np.nan, "float32"))

    history = keeper.start()
    refused(FloatingPointError, lambda: run(keeper, history, after_step=poison),
            "train: step 5: the loss is nan (the largest parameter is head.b, up to nan), and nothing was changed", "lower")
    assert lines_in(keeper.metrics) == len(history.loss) == 5
    assert len(keeper_of("rnn", tmp_path / "run").start(resume=True).loss) == 4


# Ctrl-C


def test_the_first_ctrl_c_ends_the_step_and_the_second_ends_at_once(tmp_path, capfd):
    before, steps = signal.getsignal(signal.SIGINT), []

    def press(times):
        def after_step(history):
            for _ in range(times if len(history.loss) == 3 else 0):
                signal.raise_signal(signal.SIGINT)
            steps.append(len(history.loss))
            return keeper(history)

        return after_step

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        keeper = keeper_of("rnn", tmp_path / "one", every=100)
        assert len(run(keeper, keeper.start(), after_step=press(1)).loss) == 3 and keeper.stopped
        assert steps == [1, 2, 3] and len(keeper_of("rnn", tmp_path / "one").start(resume=True).loss) == 3
        assert "Ctrl-C again stops at once" in capfd.readouterr().err
        keeper = keeper_of("rnn", tmp_path / "two", every=2)
        with pytest.raises(KeyboardInterrupt):
            run(keeper, keeper.start(), after_step=press(2))
        assert steps == [1, 2, 3, 1, 2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler, "as it was"
        assert len(keeper_of("rnn", tmp_path / "two").start(resume=True).loss) == 2, "the last good one"
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_ctrl_c_is_not_ours_training_goes_on_without(tmp_path):
    thread = threading.Thread(target=interrupted, args=("rnn", tmp_path / "thread", 2))     # only the main one may listen
    thread.start()
    thread.join()
    assert len(keeper_of("rnn", tmp_path / "thread").start(resume=True).loss) == 2
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)                    # a program in the background ignores it
    try:
        keeper = keeper_of("rnn", tmp_path / "ignored")
        with keeper.start() and keeper:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# The script


BOOK = "the cat sat on the mat, and the rat sat on the cat. " * 20
ARGS = ["--model", "rnn", "--text", "book.txt", "--batch", "1", "--accumulate", "2", "--characters", "10"]
PLACE = "language_model_rnn_own"


def test_ctrl_c_ends_the_script_with_the_command_that_goes_on(tmp_path):
    def start(command):
        return subprocess.Popen(command, cwd=tmp_path, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    (tmp_path / "book.txt").write_text(BOOK)
    command = [sys.executable, str(SCRIPT), *ARGS, "--steps", "50", "--out"]
    process, whole = start([*command, "out", "--checkpoint-every", "1000"]), start([*command, "whole"])
    while process.poll() is None and lines_in(tmp_path / "out" / f"{PLACE}.jsonl") < 5:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    *_, told, last = out.splitlines()
    done = lines_in(tmp_path / "out" / f"{PLACE}.jsonl")
    assert 5 <= done < 50 and told == f"{done} of 50 steps are in out/{PLACE}.checkpoint; to go on:"
    assert last == shlex.join([*command, "out", "--checkpoint-every", "1000", "--resume"])
    assert "Ctrl-C again stops at once" in err and not (tmp_path / "out" / f"{PLACE}.json").exists()

    ends = [[line for line in process.communicate()[0].splitlines() if not line.startswith(("speed", "wrote"))]
            for process in (start(shlex.split(last)), whole)]
    assert ends[0] == ends[1] and any(line.startswith("held-out text") for line in ends[0])
    assert left_by(tmp_path / "out" / PLACE) == left_by(tmp_path / "whole" / PLACE)
    results = json.loads((tmp_path / "out" / f"{PLACE}.json").read_text())
    assert len(results["train_bits"]) == 50 and results["events"] == []


def test_the_script_refuses_to_go_on_with_other_options(tmp_path, monkeypatch, capsys):
    def script(*args):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *ARGS, *args])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    def exits(*args):
        with pytest.raises(SystemExit) as end:
            script(*args, "--resume")
        return end.value.code

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (tmp_path / "book.txt").write_text(BOOK)
    script("--steps", "2")
    saved = left_by(tmp_path / "out" / PLACE)
    assert "of a run with steps = 2, and this one has steps = 2400;" in exits()
    assert "clip = 1.0, seed = 0, and this one has clip = 2.0, seed = 3;" in exits("--steps", "2", "--clip", "2", "--seed", "3")
    assert f"there is no file 'elsewhere/{PLACE}.checkpoint'" in exits("--out", "elsewhere")
    (tmp_path / "book.txt").write_text(BOOK.replace("rat", "dog"))
    assert "of a run with text = " in exits("--steps", "2")
    (tmp_path / "book.txt").write_text(BOOK)
    capsys.readouterr()
    script("--steps", "2", "--resume", "--characters", "3", "--checkpoint-every", "9", "--on-nonfinite", "record")
    assert "held-out text" in capsys.readouterr().out and left_by(tmp_path / "out" / PLACE) == saved, "these may differ"


def test_the_script_tells_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *ARGS, "--steps", "50", "--lr", "1e38", "--clip", "0"])
    with pytest.raises(SystemExit, match=r"train: step 1: the loss is nan \(the largest parameter is .* up to .*e\+37\), and"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_command_that_goes_on_is_the_one_that_started(monkeypatch):
    for args in (["--text", "my book"], ["--text", "my book", "--resume"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *args])
        monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *args])
        assert resume_command() == "python train.py --text 'my book' --resume"
