"""The claim scripts measure, judge and keep what they say: each rule answers yes and no, and nothing without its controls."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "claims"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder, with the scripts beside one another on the path, as Python has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in {path.stem for path in FOLDER.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


def script(name):
    return importlib.import_module(name)


def run(name, monkeypatch, *args):
    """Run a script with the sizes that are set by now; its results."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *args])
    script(name).main()
    return json.loads((Path("out") / "claims" / f"{name}.json").read_text())


# common


@pytest.mark.parametrize("parts, passed, word", [
    ([True, True], True, "holds"),
    ([True, False], True, "holds in part"),
    ([True, None], True, "holds in part"),
    ([False, False], True, "does not hold here"),
    ([False, None], True, "does not hold here"),
    ([None, None], True, "undecided"),
    ([True, True], False, "undecided"),
    ([False, False], False, "undecided"),
])
def test_the_word_of_a_verdict(parts, passed, word):
    common = script("common")
    verdict = common.Verdict({f"part {i}": answer for i, answer in enumerate(parts)}, {"a": True, "b": passed})
    assert verdict.word == word
    said = str(verdict).split("\n")
    assert said[0] == f"verdict: {word.upper()}" and len(said) == 1 + len(parts) + 2
    assert said[-1].split() == ["passed" if passed else "FAILED", "control:", "b"]


@pytest.mark.parametrize("answer, passed, word", [(True, True, "illustrates"), (False, True, "undecided"),
                                                  (True, False, "undecided")])
def test_one_short_training_may_only_illustrate(answer, passed, word):
    assert script("common").Verdict({"part": answer}, {"control": passed}, decisive=False).word == word


def test_seeds_agree_or_say_nothing():
    agreed = script("common").agreed
    assert (agreed([True, True]), agreed([False]), agreed([True, False])) == (True, False, None)
    assert agreed(np.array([0.1, 0.2]) < 0.3) is True


def test_a_table_is_aligned():
    assert script("common").table(["", "a", "long"], ["name", 10, 1.5]) == "        a   long\nname   10    1.5"


def test_steps_are_timed_in_turns():
    calls = []
    found = script("common").medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, "cpu", rounds=3)
    assert set(found) == {"a", "b"} and "".join(calls) == "ab" * 4 and min(found.values()) >= 0


def test_without_matplotlib_the_numbers_are_kept(monkeypatch, capsys):
    common = script("common")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    args, verdict = argparse.Namespace(out="here"), common.Verdict({"p": True}, {"c": True})
    common.report("x_y", args, {"n": [1]}, verdict, "text", None)
    assert "no picture: matplotlib is not installed" in capsys.readouterr().out
    found = json.loads(Path("here/claims/x_y.json").read_text())
    assert found == {"claim": "x_y", "options": {"out": "here"}, "verdict": "holds", "parts": {"p": True},
                     "controls": {"c": True}, "numbers": {"n": [1]}}


# The scripts, from end to end


def test_serial_chain(monkeypatch, capsys):
    monkeypatch.setattr(script("serial_chain"), "LENGTHS", (2, 4, 8))
    found = run("serial_chain", monkeypatch)
    assert found["verdict"] == "holds" and len(found["parts"]) == 4 and all(found["controls"].values())
    assert found["numbers"]["models"]["LSTM"]["forward"]["span"] == [2, 4, 8]
    out = capsys.readouterr().out
    assert "verdict: HOLDS" in out and "slope 1.000" in out and "wrote" in out
    assert Path("out/claims/serial_chain.png").read_bytes()[:4] == b"\x89PNG"


def test_backward_chain(monkeypatch, capsys):
    serial_chain, backward_chain = script("serial_chain"), script("backward_chain")
    monkeypatch.setattr(serial_chain, "LENGTHS", (2, 4, 8))
    monkeypatch.setattr(backward_chain, "TOKENS", 16)
    found = run("backward_chain", monkeypatch)
    assert found["verdict"] == "holds" and found["numbers"]["models"]["GRU"]["backward"]["span"] == [2, 4, 8]
    assert all(len(ms) == 3 and min(ms) > 0 for ms in found["numbers"]["ms"].values())
    assert "ms per training step of 16 tokens" in capsys.readouterr().out


def test_lstm_gates(monkeypatch, capsys):
    lstm_gates = script("lstm_gates")
    for name, value in {"SIZES": (2, 4), "B": 2, "T": 3}.items():
        monkeypatch.setattr(lstm_gates, name, value)
    found = run("lstm_gates", monkeypatch)
    assert found["verdict"] == "holds"
    assert found["numbers"]["flop"]["RNN"] == [3 * 2 * 2 * 3 * 2 * H * H for H in (2, 4)]
    assert "products alone" in capsys.readouterr().out


def test_path_length(monkeypatch, capsys):
    monkeypatch.setattr(script("path_length"), "T", 6)
    found = run("path_length", monkeypatch)
    assert found["verdict"] == "holds in part" and list(found["parts"].values()) == [True, False, False, True]
    assert found["numbers"]["products"]["RNN"][2] == [3, 2, 1, None, None, None]
    assert [row[0] for row in found["numbers"]["products"]["LSTM"]] == [1] * 6
    assert np.diff([row[0] for row in found["numbers"]["operations"]["LSTM"]][1:]).min() > 0
    assert "LSTM, operations" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["serial_chain", "backward_chain", "lstm_gates", "path_length"])
def test_a_script_tells_its_claim_statistic_rule_and_control(name):
    doc = script(name).__doc__
    assert f"python examples/claims/{name}.py" in doc
    assert all(f"\n{word}" in doc for word in ("Claim ", "Statistic ", "Rule ", "Control "))


# The rules


def chains(spans, flat=(6, 6, 6), times=1):
    """Numbers as `serial_chain.measure` gives them, with these spans of the recurrences and of the Transformer."""
    work = [10, 20, 40]
    of = {name: {way: {"work": [w * factor for w in work], "span": list(spans if name != "Transformer" else flat)}
                 for way, factor in {"forward": 1, "backward": 2 * times}.items()} | {"formula": work}
          for name in ("RNN", "GRU", "LSTM", "Transformer")}
    return {"lengths": [1, 2, 4], "models": of}


@pytest.mark.parametrize("numbers, word", [
    (chains([1, 2, 4]), "holds"),
    (chains([1, 2, 4], flat=[6, 7, 9]), "holds in part"),                    # the Transformer waits too
    (chains([5, 5, 5]), "holds in part"),                                    # the recurrences do not
    (chains([5, 5, 5], flat=[6, 7, 9]), "does not hold here"),
    (chains([1, 1.8, 3.4]), "holds in part"),                                # a slope of 0.8
])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_rule_about_chains(way, numbers, word):
    assert script("serial_chain").verdict(numbers, way).word == word


def test_without_the_right_work_nothing_is_said_about_chains():
    verdict, wrong = script("serial_chain").verdict, chains([1, 2, 4])
    wrong["models"]["GRU"]["forward"]["work"][1] += 1
    assert verdict(wrong).word == "undecided" and verdict(wrong, "backward").word == "holds"
    assert verdict(chains([1, 2, 4], times=1.5), "backward").word == "undecided"


@pytest.mark.parametrize("gru, lstm, word", [(3, 4, "holds"), (3.05, 3.95, "holds"), (3, 4.2, "does not hold here"),
                                             (3, 3.8, "does not hold here"), (3.2, 4, "undecided"), (2, 8, "undecided")])
def test_the_rule_about_gates(gru, lstm, word):
    rnn = [10.0, 1000.0]
    flop = {"RNN": rnn, "GRU": [3 * rnn[0], gru * rnn[1]], "LSTM": [4 * rnn[0], lstm * rnn[1]]}
    assert script("lstm_gates").verdict({"flop": flop}).word == word


def ways(T=5, *, rnn=None, gated=None, attention=None):
    """Paths by functions of (t, s), as `path_length.measure` gives them."""
    def by_step(t, s):
        return t - s + 1 if s <= t else None

    def direct(t, s):
        return 3 if s <= t else None

    made = {"RNN": rnn or by_step, "GRU": gated or by_step, "LSTM": gated or by_step, "Transformer": attention or direct}
    return {"products": {name: [[way(t, s) for s in range(T)] for t in range(T)] for name, way in made.items()}}


@pytest.mark.parametrize("numbers, word", [
    (ways(), "holds"),
    (ways(gated=lambda t, s: 1 if s <= t else None), "holds in part"),
    (ways(attention=lambda t, s: 3 + t - s if s <= t else None), "holds in part"),
    (ways(rnn=lambda t, s: t - s + 2 if s <= t else None), "undecided"),     # the control: not the known form
    (ways(rnn=lambda t, s: 1 if s <= t else None), "undecided"),
    (ways(attention=lambda t, s: 3), "undecided"),                           # it sees the future
    (ways(attention=lambda t, s: 3 if 0 <= t - s <= 2 else None), "undecided"),      # it does not see all of the past
])
def test_the_rule_about_paths(numbers, word):
    assert script("path_length").verdict(numbers).word == word
