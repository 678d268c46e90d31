"""Runs survive: what was interrupted goes on, bit for bit, as if nothing had happened (C64).

`python -m tests.kill_runs --kills 50` kills many more runs than this does.
Read next: `test_interrupts.py`, Ctrl-C and the script.
"""

import json
import math
import random
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import minitx as mx
from minitx.checkpoint import load_run, save_run
from minitx.data import windows
from minitx.models import RecurrentLM
from minitx.optim import SGD
from minitx.runs import Keeper
from minitx.training import History, train

from . import kill_runs as tiny
from .common import refused
from .kill_runs import interrupted, keeper_of, kill_and_resume, left_by, lines_in, run

every_kind = pytest.mark.parametrize("kind", tiny.KINDS)


# Bit for bit


@every_kind
def test_c64_a_run_that_is_killed_goes_on_bit_for_bit(kind, tmp_path):
    kill_and_resume(kind, tmp_path, 1, 2, random.Random())


@every_kind
@pytest.mark.parametrize("at, every", [(1, 1), (6, 2), (7, 7), (14, 100), (tiny.STEPS - 1, 3), (tiny.STEPS, 7)])
def test_c64_a_run_that_ends_early_goes_on_bit_for_bit(kind, at, every, tmp_path):
    assert [(step * 2) % tiny.BATCHES == 0 for step in (6, 7)] == [True, False], "at an epoch's end, and within one"
    keeper = keeper_of(kind, tmp_path / "whole", every=1000)
    run(keeper, keeper.start())
    assert len(interrupted(kind, tmp_path / "broken", at, every).loss) == at
    keeper = keeper_of(kind, tmp_path / "broken", every, seed=99)            # other weights, other random numbers
    history = keeper.start(resume=True)
    assert len(history.loss) == at and lines_in(keeper.metrics) == at, "a checkpoint at the end, whatever `every` is"
    run(keeper, history)
    assert left_by(tmp_path / "broken") == left_by(tmp_path / "whole"), "and saving disturbs nothing"
    assert history.seconds_at == sorted(history.seconds_at), "the clock goes on, too"


KILLED_AT_A_HALF = """
import os, signal, sys
from tests.kill_runs import keeper_of, run

def fsync(file, calls=[]):
    calls.append(file)
    if len(calls) == 6:                     # two files at the start, then one checkpoint after every step
        os.ftruncate(file, os.fstat(file).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync, keeper = fsync, keeper_of("lstm", sys.argv[1])
run(keeper, keeper.start())
"""


def test_a_kill_in_the_middle_of_a_checkpoint_leaves_the_one_before(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_A_HALF, tmp_path / "broken"], cwd=tiny.ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list(tmp_path.glob("broken.checkpoint.*.part"))) == 1 and lines_in(tmp_path / "broken.jsonl") == 4
    keeper = keeper_of("lstm", tmp_path / "broken", seed=99)
    history = keeper.start(resume=True)
    assert len(history.loss) == 3 and not list(tmp_path.glob("*.part"))
    run(keeper, history)
    interrupted("lstm", tmp_path / "whole", tiny.STEPS)
    assert left_by(tmp_path / "broken") == left_by(tmp_path / "whole")


def test_c64_a_state_that_is_carried_from_batch_to_batch_goes_on_bit_for_bit(tmp_path):
    def fresh(seed):
        mx.seed(seed)
        model = RecurrentLM(tiny.V, 4, 6, dropout=0.1)
        return model, SGD(model.parameters(), 0.1, momentum=0.9)

    def go_on(model, optimizer, state, start, stop):
        for ids, targets in islice(windows(tiny.IDS, tiny.B, tiny.T, np.random.default_rng(0)), start, stop):
            logits, state = model.step(ids, state)
            state = [s.detach() for s in state]
            loss = mx.ops.cross_entropy(logits, targets)
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
        model = Ill(tiny.V, 4, 5)
        return Keeper(tmp_path / "run", model, SGD(model.parameters(), 0.1), config={}, every=1)

    def go_on(keeper, history, steps):
        batches = islice(windows(tiny.IDS, tiny.B, tiny.T, np.random.default_rng(0)), len(history.loss), None)
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


def test_c64_half_written_files_are_never_taken_for_checkpoints_and_go_away(tmp_path):
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
            keeper.model.head.b.assign_(np.full(tiny.V, np.nan, "float32"))

    history = keeper.start()
    refused(FloatingPointError, lambda: run(keeper, history, after_step=poison),
            "train: step 5: the loss is nan (the largest parameter is head.b, up to nan), and nothing was changed", "lower")
    assert lines_in(keeper.metrics) == len(history.loss) == 5
    assert len(keeper_of("rnn", tmp_path / "run").start(resume=True).loss) == 4
