"""The script that trains a translator, and two claims about translators: they run, go on where they stopped, and judge by rule.

Trainings are of a few steps, with pairs of a few words: what they write is nonsense, and what is told about it must be right.
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from minitx.data import Pairs
from minitx.translation import Sides

from .common import same
from .test_claims import elsewhere, run, script  # noqa: F401  (elsewhere: in an empty folder)

ENGLISH = ["the", "red", "cat", "sees", "a", "small", "dog"]
GERMAN = ["die", "rote", "Katze", "sieht", "ein", "kleiner", "Hund"]


def few_pairs(pair="en-de"):
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, 7, n) for n in rng.integers(2, 6, 60)]
    rows = [(" ".join(ENGLISH[i] for i in row) + ".", " ".join(GERMAN[i] for i in row) + ".") for row in drawn]
    return Pairs(f"few {pair}", rows[:48], rows[48:])


@pytest.fixture
def trainer(monkeypatch):
    """The script with small models and few pairs."""
    for package in ("tokenizers", "sacrebleu"):
        pytest.importorskip(package, reason=f'translation needs {package}: pip install "minitx[text]"')
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    module = importlib.import_module("train_translation")
    for name, value in {"V": 290, "D": 8, "N": 2, "L": 1, "H": 10, "BATCH": 8, "POOL": 2, "WIDTH": 2}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "load_pairs", few_pairs)
    yield module
    sys.modules.pop("train_translation", None)


@pytest.fixture
def undrawn(trainer, monkeypatch):
    """The same without pictures, which take their time."""
    monkeypatch.setattr(trainer, "draw", lambda *args: None)
    return trainer


def options(trainer, *args):
    return trainer.arguments(["--steps", "4", "--every", "2", "--probe", "4", *args])


@pytest.mark.parametrize("model, pair", [("lstm", "en-de"), ("transformer", "en-zh")])
def test_train_translation(trainer, model, pair, tmp_path, monkeypatch, capsys):
    if model == "transformer":
        monkeypatch.setattr(trainer, "draw", lambda *args: None)
    beam = 12 if model == "lstm" else 5
    results = trainer.limited(options(trainer, "--model", model, "--pair", pair, "--beam", str(beam)))
    out, stem = capsys.readouterr().out, f"translation_{model}_{pair}"
    assert "48 pairs to learn from" in out and re.search(r"padding .*: \d+% at random, \d+% sorted in pools of 2", out)
    assert out.count("unseen pages: BLEU") == 2 and out.count("   → ") == 6, "samples on the way"
    for how in "copied", "greedy", f"beam of 2, first {beam}":
        assert re.search(rf"^{how} +\d+\.\d +\d+\.\d$", out, re.M)
    assert ("greedy, first 5" in results["scores"]) == (model == "transformer"), "a beam is compared on the same sentences"
    assert json.loads((tmp_path / "out" / f"{stem}.json").read_text(encoding="utf-8")) == json.loads(json.dumps(results))
    assert [point["step"] for point in results["curve"]] == [2, 4] and len(results["train_bits"]) == 4
    assert results["curve"][1]["epochs"] == pytest.approx(4 * 8 / 48)
    assert [(row["source"], row["reference"]) for row in results["translations"]] == few_pairs().test
    assert (tmp_path / "out" / f"{stem}.png").exists() == (model == "lstm")


def test_a_beam_for_less_than_no_sentences_is_refused(trainer, capsys):
    with pytest.raises(SystemExit):
        options(trainer, "--beam", "-1")
    assert "--beam: -1; expected at least 0" in capsys.readouterr().err and options(trainer, "--beam", "0").beam == 0


def test_a_missing_package_is_told_before_anything_is_trained(trainer, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(SystemExit, match="sacrebleu"):
        trainer.limited(options(trainer))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_a_run_that_was_stopped_while_it_translated_goes_on_as_if_nothing_had_happened(undrawn, model, monkeypatch):
    whole = undrawn.learn(options(undrawn, "--model", model, "--out", "whole"))

    def broken(*args):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(undrawn, "look", broken)
        undrawn.learn(options(undrawn, "--model", model, "--out", "parts"))
    parts = undrawn.learn(options(undrawn, "--model", model, "--out", "parts", "--resume"))
    assert parts["train_bits"] == whole["train_bits"] and parts["translations"] == whole["translations"]
    measured = [[(p["step"], p["bleu"], p["bits"]) for p in results["curve"]] for results in (whole, parts)]
    assert measured[0] == measured[1]
    (a, pieces), (b, _) = (undrawn.restored(Path(out) / f"translation_{model}_en-de") for out in ("whole", "parts"))
    assert same(a.state_dict(), b.state_dict()) and len(pieces) == len(undrawn.vocabulary(few_pairs(), Path("new/x"), False))


def test_time_spent_on_translating_is_no_time_of_training(undrawn, monkeypatch):
    """A look that takes ten seconds by the clock adds none."""
    import minitx.training
    late, look = [0.0], undrawn.look
    real = minitx.training.time.perf_counter
    monkeypatch.setattr(minitx.training.time, "perf_counter", lambda: real() + late[0])

    def slow(*args):
        late[0] += 10.0
        return look(*args)
    monkeypatch.setattr(undrawn, "look", slow)
    assert undrawn.learn(options(undrawn, "--beam", "0"))["seconds"] < 10


def test_the_two_models_of_the_script_have_equal_parameters(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    module = importlib.import_module("train_translation")
    sizes = [module.build(kind, module.V).count_parameters() for kind in module.PRESETS]
    assert max(sizes) < 1.05 * min(sizes) and min(sizes) > 1_400_000


# The race


def raced(name, seed=0, bleu=20.0, to=100.0, seconds=200.0, **changes):
    """A run as if made: at 15 BLEU after so many seconds, and at `bleu` in the end."""
    curve = [{"seconds": to, "bleu": 15.0, "epochs": 1.0}, {"seconds": seconds, "bleu": bleu, "epochs": 2.0}]
    return {"model": name, "seed": seed, "bleu": bleu, "chrf": 40.0, "copied": 5.0, "seconds": seconds, "parameters": 100,
            "lr": 1e-3, "steps": 10, "epochs": 2.0, "pieces_per_second": 9.0, "curve": curve[bleu < 15:]} | changes


@pytest.mark.parametrize("lstm, other, word, sooner, better", [
    ({}, {"to": 50.0, "bleu": 21.0}, "holds", True, True),                                  # just so
    ({}, {"to": 51.0, "bleu": 21.0}, "holds in part", False, True),
    ({}, {"to": 50.0, "bleu": 20.9}, "holds in part", True, False),
    ({"to": 50.0}, {}, "does not hold here", False, False),
    ({"bleu": 10.0}, {}, "holds", True, True),                                              # the LSTM never gets there
    ({"bleu": 10.0}, {"bleu": 11.5}, "holds in part", None, True),                          # neither does
    ({"bleu": 10.0}, {"bleu": 10.0}, "does not hold here", None, False),
])
def test_the_rules_of_the_race(lstm, other, word, sooner, better):
    race = script("translation_race")
    runs = [raced(name, seed, **of) for seed in range(3) for name, of in (("LSTM", lstm), ("Transformer", other))]
    verdict = race.verdict(runs)
    assert list(verdict.parts.values()) == [sooner, better] and all(verdict.controls.values())
    assert verdict.word == word
    one = race.verdict(runs[:2])
    assert one.word == ("illustrates" if word == "holds" else "undecided"), "one seed settles nothing"
    assert "LSTM, seed 2" in race.text(runs, "cpu")


@pytest.mark.parametrize("changes", [
    {"copied": 20.0}, {"seconds": 241.0}, {"seconds": 160.0}, {"parameters": 106}, {"parameters": 95},
])
def test_a_race_without_its_controls_is_undecided(changes):
    race = script("translation_race")
    runs = [raced(name, seed, **({"to": 40.0, "bleu": 30.0} if name == "Transformer" else {})) for seed in range(3)
            for name in race.MODELS]
    assert race.verdict(runs).word == "holds"
    runs[3] |= changes                                                              # of one Transformer of three
    if "copied" in changes:
        runs[3]["bleu"] = 20.0
    assert race.verdict(runs).word == "undecided"


def test_seconds_to_a_score_are_read_off_the_line_between_two_looks():
    race = script("translation_race")
    run_ = {"curve": [{"seconds": 10.0, "bleu": 5.0}, {"seconds": 20.0, "bleu": 9.0}, {"seconds": 30.0, "bleu": 7.0}]}
    assert [race.seconds_to(run_, target) for target in (2.5, 5, 6, 9, 9.1)] == [5, 10, 12.5, 20, float("inf")]


def test_the_race_is_run_once_and_told(undrawn, monkeypatch, capsys):
    results = run("translation_race", monkeypatch, "--steps", "4", "3", "--probe", "4")
    first, second = results["numbers"]["runs"]
    assert (first["model"], first["steps"], second["model"], second["steps"]) == ("LSTM", 4, "Transformer", 3)
    assert results["verdict"] == "undecided" and "verdict: UNDECIDED" in capsys.readouterr().out
    assert Path("out/claims/translation_race.png").exists()
    monkeypatch.setattr(undrawn, "learn", None)                                     # the second time nothing is trained
    assert run("translation_race", monkeypatch, "--steps", "4", "3", "--probe", "4")["numbers"] == results["numbers"]
    for other in ("--probe", "5"), ("--probe", "4", "--device", "strict"):
        with pytest.raises(TypeError, match="not callable"):                        # but what was asked otherwise is
            run("translation_race", monkeypatch, "--steps", "4", "3", *other)


def test_the_full_race_takes_the_best_rate_of_short_trainings(monkeypatch):
    race, asked = script("translation_race"), []

    def trained(name, steps, seed, lr, args):
        asked.append((name, steps, seed, lr))
        return {"curve": [{"bits": abs(lr - {"LSTM": 3e-3, "Transformer": 1e-3}[name])}]}
    monkeypatch.setattr(race, "trained", trained)
    race.measure(argparse.Namespace(full=True, steps=None))
    (lstm, other), (short_lstm, short_other) = race.STEPS["full"], race.STEPS["rates"]
    assert asked == [*(("LSTM", short_lstm, 0, rate) for rate in race.RATES),
                     *(("LSTM", lstm, seed, 3e-3) for seed in range(3)),
                     *(("Transformer", short_other, 0, rate) for rate in race.RATES),
                     *(("Transformer", other, seed, 1e-3) for seed in range(3))]


# Alignment


def looked(name, task, seed=0, **changes):
    return {"model": name, "task": task, "seed": seed, "agreement": 0.95, "right": 0.99} | changes


@pytest.mark.parametrize("changed, changes, word", [
    ((), {}, "holds"),
    (("LSTM", "backwards"), {"agreement": 0.9}, "holds"),
    (("LSTM", "backwards"), {"agreement": 0.89}, "holds in part"),
    (("LSTM", "copy"), {"agreement": 0.89}, "undecided"),
    (("Transformer", "copy"), {"agreement": 0.89}, "undecided"),
    (("Transformer", "backwards"), {"right": 0.94}, "undecided"),
])
def test_the_rules_of_alignment(changed, changes, word):
    alignment = script("alignment")
    runs = [looked(name, task, seed, **(changes if (name, task) == changed else {}))
            for seed in range(3) for name in alignment.MODELS for task in alignment.TASKS]
    assert alignment.verdict({"runs": runs}).word == word
    assert alignment.verdict({"runs": runs[:4]}).word == ("illustrates" if word == "holds" else "undecided")
    if word == "holds in part":
        runs[1]["agreement"] = 0.95                                                 # seeds that disagree settle nothing
        assert list(alignment.verdict({"runs": runs}).parts.values()) == [None, True]


def test_the_oracle_says_where_each_symbol_is():
    alignment = script("alignment")
    row = np.array([4, 7, 5])
    _, _, inputs, targets = alignment.batch("backwards", [row])
    assert row[alignment.oracle("backwards", 3)].tolist() == targets[0, :3].tolist() == [5, 7, 4]
    assert alignment.oracle("copy", 3).tolist() == [0, 1, 2]
    assert targets[0, 3] == alignment.STOP and inputs[0, 0] == alignment.START


def test_twins_are_pieces_that_stand_once_on_both_sides():
    alignment = script("alignment")
    sides = Sides([np.array([5, 6, 7, 7])], [np.array([7, 6, 9, 5])])               # 6 and 5 stay; 7 stands twice
    weights = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]], float)
    found = alignment.twins(sides, [alignment.Alignment([], [], weights)])
    assert found == {"pieces": 2, "share": 0.5, "chance": 0.25}


def test_alignment_looks_at_synthetic_rows_and_at_the_translators_there_are(undrawn, monkeypatch, capsys):
    alignment = script("alignment")
    undrawn.learn(options(undrawn, "--steps", "2"))
    monkeypatch.setattr(alignment, "load_pairs", few_pairs)
    monkeypatch.setattr(alignment, "TESTED", 8)
    results = run("alignment", monkeypatch, "--steps", "2")
    assert len(results["numbers"]["runs"]) == 4 and results["verdict"] == "undecided"
    sizes = {r["parameters"] for r in results["numbers"]["runs"]}
    assert max(sizes) < 1.05 * min(sizes)
    assert list(results["numbers"]["translators"]) == ["lstm_en-de"]
    assert "lstm_en-de" in capsys.readouterr().out and Path("out/claims/alignment.png").exists()


def test_what_is_replaced_where_a_model_looks_changes_what_it_writes():
    """A model that copies what it looks at: replaced there, every symbol changes; elsewhere, none."""
    alignment = script("alignment")

    def copying(model, of):
        source, _, inputs, _ = of
        return source[:, :inputs.shape[1]]
    alignment.predicted = copying
    sources = alignment.rows(np.random.default_rng(0), 50)
    probs = np.tile(np.eye(12), (50, 1, 1))
    assert alignment.replaced(None, "copy", sources, probs, seed=0) == (1.0, 0.0)
    assert alignment.replaced(None, "copy", sources, probs[:, ::-1], seed=0)[0] < 0.5
