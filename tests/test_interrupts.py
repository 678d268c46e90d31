"""Ctrl-C ends a run well, and the script that trains language models says how to go on, or why not.

Read `test_resume.py` first.
"""

import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest

from minitx.runs import resume_command

from .kill_runs import ROOT, interrupted, keeper_of, left_by, lines_in, run

SCRIPT = ROOT / "examples" / "train_language_model.py"
ENV = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}


def test_the_first_ctrl_c_ends_the_step_and_the_second_ends_at_once(tmp_path, capfd):
    before, steps, theirs = signal.getsignal(signal.SIGINT), [], lambda *_: None

    def press(times):
        def after_step(history):
            for _ in range(times if len(history.loss) == 3 else 0):
                signal.raise_signal(signal.SIGINT)
            steps.append(len(history.loss))
            return keeper(history)

        return after_step

    try:
        signal.signal(signal.SIGINT, theirs)
        keeper = keeper_of("rnn", tmp_path / "one", every=100)
        assert len(run(keeper, keeper.start(), after_step=press(1)).loss) == 3 and keeper.stopped
        assert steps == [1, 2, 3] and len(keeper_of("rnn", tmp_path / "one").start(resume=True).loss) == 3
        assert "Ctrl-C again stops at once" in capfd.readouterr().err
        keeper = keeper_of("rnn", tmp_path / "two", every=2)
        with pytest.raises(KeyboardInterrupt):
            run(keeper, keeper.start(), after_step=press(2))
        assert steps == [1, 2, 3, 1, 2] and signal.getsignal(signal.SIGINT) is theirs, "as it was"
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


def test_the_script_that_records_goes_on_to_its_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (tmp_path / "book.txt").write_text(BOOK)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *ARGS, "--steps", "5", "--lr", "1e38", "--clip", "0",
                                      "--on-nonfinite", "record"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "held-out text  nan bits" in (out := capsys.readouterr().out) and "no symbol can be drawn; its parameters" in out
    results = json.loads((tmp_path / "out" / f"{PLACE}.json").read_text(), parse_constant=pytest.fail)
    assert results["train_bits"][1:] == [None] * 4 and [step for step, _ in results["events"]] == [1, 2, 3, 4]


def test_the_command_that_goes_on_is_the_one_that_started(monkeypatch):
    for args in (["--text", "my book"], ["--text", "my book", "--resume"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *args])
        monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *args])
        assert resume_command() == "python train.py --text 'my book' --resume"
