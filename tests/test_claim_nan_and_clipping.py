"""The claim about NaN and clipping: rules answer yes and no, runs break as told and are made once, the picture shows them."""

import importlib
import json
import math
import sys
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from .test_claims import FOLDER, elsewhere, run  # noqa: F401  (elsewhere: in an empty folder)

CLIP, SEEDS = 1.0, 3


@pytest.fixture
def claim():
    return importlib.import_module("nan_and_clipping")


def told(claim, *breaks, seeds=SEEDS):
    """Runs as if made: each takes the events of the last of `breaks` that speaks of it, (events, what its fields must be)."""
    def fits(values, wanted):
        return all(values[key].startswith(value) if key == "model" else values[key] == value for key, value in wanted.items())

    found = []
    for run_ in claim.grid(seeds, "cpu"):
        values = asdict(run_)
        events = [events for events, wanted in breaks if fits(values, wanted)]
        trouble = dict.fromkeys(events[-1], 1) if events else {}
        found.append({**values, "trouble": trouble, "parameters": 9, "still": 0, "longest": 1.0, "end": 1.0, "guess": 4.0})
    return found


def answers(verdict):
    """{rule: the answers for tanh and relu}"""
    found = {}
    for part, answer in verdict.parts.items():
        found.setdefault(part.split(",")[0], []).append(answer)
    return found


BOTH = [(["loss"], {"model": name, "clip": None}) for name in ("tanh", "relu")]     # as the claim has it: all free RNNs break


# The rules


@pytest.mark.parametrize("breaks, word, nan, need, cure", [
    (BOTH, "holds", [True, True], [True, True], [True, True]),
    ([(["gradient"], which) for _, which in BOTH], "holds", [True, True], [True, True], [True, True]),
    ([(["diverged"], which) for _, which in BOTH], "holds in part", [False, False], [True, True], [True, True]),
    # tanh: half of what breaks is finite
    ([*BOTH, (["diverged"], {"model": "tanh", "clip": None, "T": 64})], "holds in part", [False, True], [True] * 2, [True] * 2),
    ([*BOTH, (["loss"], {"model": "Transformer", "clip": None})], "holds in part", [True, True], [False, False], [True, True]),
    ([*BOTH, (["diverged"], {"model": "Transformer", "clip": None, "optimizer": "Adam"})],      # 2 of 5 are more than a third
     "holds in part", [True, True], [False, False], [True, True]),
    ([*BOTH, (["diverged"], {"model": "Transformer", "clip": None, "rate": 0.1})], "holds", [True] * 2, [True] * 2, [True] * 2),
    # what breaks with clipping too: one of ten tanh runs, one of five relu runs at each gain and length, then one more
    ([*BOTH, (["loss"], {"model": "tanh RNN, gain 1", "rate": 0.1})], "holds", [True] * 2, [True] * 2, [True] * 2),
    ([*BOTH, (["loss"], {"model": "relu", "rate": 10.0})], "holds", [True] * 2, [True] * 2, [True] * 2),
    ([*BOTH, (["loss"], {"model": "relu", "rate": 10.0}), (["loss"], {"model": "relu RNN, gain 1.4", "rate": 1.0, "T": 64})],
     "holds in part", [True] * 2, [True] * 2, [True, False]),
    # nothing but the control breaks
    ([(["diverged"], {"model": "relu RNN, gain 2"})], "does not hold here", [False] * 2, [False, True], [False] * 2),
])
def test_the_rules_have_teeth(claim, breaks, word, nan, need, cure):
    verdict = claim.verdict(told(claim, *breaks))
    assert all(verdict.controls.values())
    if word != "does not hold here":
        assert verdict.word == word
    assert answers(verdict) == {"NaN": nan, "need": need, "cure": cure}


def test_settings_too_hot_for_one_of_the_three_say_nothing_about_need(claim):
    """The Transformer breaks free at two settings of ten: at one it does so clipped as well."""
    hot = (["loss"], {"model": "Transformer", "T": 64, "rate": 10.0})
    few = [(["loss"], {"model": "relu RNN, gain 2", "clip": None}), (["loss"], {"model": "tanh", "clip": None, "T": 256}), hot]
    runs = told(claim, *few)
    where = claim.informative(runs)
    assert where["NaN"] - where["need"] == {(64, "SGD", 10.0)} and where["cure"] == where["NaN"]
    assert claim.compared(runs, "tanh RNN", where)["need"] == (Fraction(5, 9), 0)
    assert claim.compared(runs, "tanh RNN", where)["NaN"] == (Fraction(1, 2), Fraction(1, 2))


def test_a_setting_counts_for_an_rnn_when_it_trains_at_any_gain_but_in_every_seed(claim):
    hot = (["loss"], {"model": "relu RNN, gain 1.4", "clip": CLIP, "rate": 1.0})
    assert len(claim.informative(told(claim, hot))["need"]) == 10
    every_gain = (["loss"], {"model": "relu", "clip": CLIP, "rate": 1.0, "seed": 2})
    where = claim.informative(told(claim, every_gain))
    assert len(where["need"]) == 8 and len(where["cure"]) == 10


def test_settings_at_which_all_models_break_say_nothing_about_the_cure(claim):
    runs = told(claim, *BOTH, (["diverged"], {"rate": 10.0}))
    where = claim.informative(runs)
    assert len(where["cure"]) == 8 and where["need"] == where["cure"]
    assert claim.compared(runs, "relu RNN", where)["cure"] == (0, 1)
    assert "settings that 'cure' leaves out: T 64 SGD 10, T 256 SGD 10\n" in claim.text(runs)


def test_seeds_that_disagree_leave_a_part_undecided(claim):
    verdict = claim.verdict(told(claim, *BOTH, (["loss"], {"model": "tanh RNN, gain 1", "seed": 2})))
    assert answers(verdict) == {"NaN": [True, True], "need": [True, True], "cure": [None, True]}


def test_with_nothing_to_compare_a_part_is_undecided(claim):
    verdict = claim.verdict(told(claim, *BOTH, (["loss"], {"model": "tanh"})))
    assert answers(verdict) == {"NaN": [True, True], "need": [None, None], "cure": [False, True]}


@pytest.mark.parametrize("breaks", [
    BOTH[:1],                                                                       # the relu RNN does not break
    [*BOTH, ([], {"model": "relu RNN, gain 2", "clip": None, "T": 64, "seed": 1})],     # half of its runs, in one seed
    [*BOTH, (["diverged"], {"model": "LSTM", "clip": CLIP, "rate": 0.1, "T": 64, "seed": 1})],
    [*BOTH, (["loss"], {})],                                                        # everything breaks
])
def test_without_its_controls_there_is_no_verdict(claim, breaks):
    assert claim.verdict(told(claim, *breaks)).word == "undecided"


def test_one_seed_illustrates(claim):
    assert claim.verdict(told(claim, *BOTH, seeds=1)).word == "illustrates"
    assert claim.verdict(told(claim, seeds=1)).word == "undecided"


# Measuring


def small(claim, monkeypatch):
    """Two settings of two steps each, of models of three kinds."""
    monkeypatch.setattr(claim, "LENGTHS", {4: (2, 2), 6: (2, 2)})
    monkeypatch.setattr(claim, "RATES", (("SGD", 0.1), ("Adam", 0.003)))
    kept = ("tanh RNN, gain 1", "relu RNN, gain 2", "LSTM", "Transformer")
    monkeypatch.setattr(claim, "MODELS", {name: claim.MODELS[name] for name in kept})
    monkeypatch.setattr(claim, "D", 8)


def test_models_have_equal_parameters_and_normal_recurrent_weights(claim):
    models = {name: claim.build(name, 75, 0) for name in claim.MODELS}
    sizes = [model.count_parameters() for model in models.values()]
    assert max(sizes) < 1.05 * min(sizes)
    for name, gain in {"tanh RNN, gain 2": 2.0, "relu RNN, gain 1.4": 1.4}.items():
        layer = models[name].recurrence.layers[0]
        U = layer.U.numpy()
        assert layer.activation == name[:4] and U.std() * math.sqrt(len(U)) == pytest.approx(gain, rel=0.02)
        assert np.ptp(np.linalg.svd(U, compute_uv=False)) > gain, "no rotation"


def test_a_run_ends_at_its_first_number_that_is_not_finite(claim):
    run_ = claim.Run("relu RNN, gain 2", 64, "SGD", 1.0, None, 0, "cpu")
    found = claim.trained(run_)
    step = found["trouble"]["loss"]
    assert len(found["loss"]) == step + 1 < 50 and found["loss"][-1] is None and found["loss"][0] > 100 * found["guess"]
    assert found["longest"] == max(found["grad_norm"][:-1]) and claim.outcome(found) == "loss"
    assert claim.Run(**{key: found[key] for key in asdict(run_)}) == run_


def test_adam_stands_still_after_a_square_that_float32_cannot_hold(claim, monkeypatch):
    monkeypatch.setattr(claim, "LENGTHS", {64: (8, 3)})
    free, clipped = (claim.trained(claim.Run("relu RNN, gain 2", 64, "Adam", 0.03, clip, 0, "cpu")) for clip in (None, CLIP))
    assert free["longest"] > claim.BEYOND and free["still"] > 0.1 and "loss" not in free["trouble"]
    assert clipped["still"] == 0


def test_finished_runs_are_not_run_again(claim, monkeypatch, tmp_path, capsys):
    small(claim, monkeypatch)
    path, runs = tmp_path / "there" / "runs.jsonl", claim.grid(1, "cpu")[:5]
    first = claim.measure(runs, path, 1)
    assert [found["model"] for found in first] == [run_.model for run_ in runs] and len(claim.kept(path)) == 5
    path.write_text(path.read_text()[:-20])                                         # stopped while it wrote the fifth
    made, train = [], claim.trained
    monkeypatch.setattr(claim, "trained", lambda run_: made.append(run_) or train(run_))
    assert claim.measure(runs, path, 1) == first and made == runs[4:]
    assert claim.measure(runs, path, 1) == first and made == runs[4:]
    assert "5 of 5 runs are kept in " in capsys.readouterr().out


def test_two_processes_give_what_one_gives(claim, tmp_path):
    runs = [claim.Run("relu RNN, gain 2", 64, "SGD", 10.0, None, seed, "cpu") for seed in (1, 0)]
    assert claim.measure(runs, tmp_path / "two.jsonl", 2) == claim.measure(runs, tmp_path / "one.jsonl", 1)


# Telling and drawing


def test_the_script_from_end_to_end(claim, monkeypatch, capsys):
    small(claim, monkeypatch)
    found = run("nan_and_clipping", monkeypatch, "--processes", "1")
    out = capsys.readouterr().out
    assert len(found["numbers"]["runs"]) == 4 * 2 * 2 * 2 and len(found["parts"]) == 6
    assert "settings that 'need' leaves out: none" in out and f"verdict: {found['verdict'].upper()}" in out
    assert Path("out/claims/nan_and_clipping.png").read_bytes()[:4] == b"\x89PNG"
    assert "NaN" not in json.dumps(found["numbers"]).replace("Infinity", "NaN")


def test_a_cell_tells_the_events_in_order_and_the_longest_gradient(claim):
    runs = [{"trouble": {"diverged": 1, "loss": 12}, "longest": 8.1e39}, {"trouble": {}, "longest": 2.0}]
    assert [claim.cell(of) for of in (runs[:1], runs, runs[1:] * 3)] == ["D1L12 8e39", "D1L12/- 8e39", "- 2e00"]


def test_what_clipping_saves_is_the_free_run_that_lasted_longest_and_its_twin(claim):
    runs = told(claim, *BOTH, (["loss"], {"model": "tanh RNN, gain 2", "rate": 1.0}))        # this one breaks clipped as well
    for run_ in runs:
        run_["loss"] = [1.0] * {1.0: 9, 0.1: 7}.get(run_["rate"], 5)
    pairs = claim.saved(runs)
    assert [(free["model"][:4], free["rate"], free["clip"], twin["clip"]) for free, twin in pairs] == [
        ("tanh", 1.0, None, CLIP), ("relu", 1.0, None, CLIP)]
    assert all(free["trouble"] and not twin["trouble"] and free["model"] == twin["model"] for free, twin in pairs)
    assert claim.saved(told(claim)) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_picture_shows_each_run_with_the_colour_of_its_outcome(claim, seeds):
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure
    runs = told(claim, *BOTH, (["diverged", "gradient"], {"model": "GRU", "clip": None, "seed": 0, "rate": 0.1}), seeds=seeds)
    for run_ in runs:
        run_["loss"] = run_["grad_norm"] = [1.0, None] if run_["trouble"] else [1.0, 1.0]
    figure = Figure()
    claim.draw(figure, {"runs": runs, "saved": claim.saved(runs)})
    free = figure.axes[0]
    shown = [to_hex(bar.get_facecolor()) for bar in free.patches]
    assert len(shown) == 8 * 5 * seeds and sys.modules["nan_and_clipping"] is claim
    counts = {event: shown.count(colour.lower()) for event, colour in claim.COLOURS.items()}
    assert counts == {"trains": 15 * seeds - 1, "diverged": 0, "gradient": 1, "loss": 25 * seeds}
    assert len(free.texts) == 25 * seeds + 1
    gru = next(bar for bar in free.patches if to_hex(bar.get_facecolor()) == claim.COLOURS["gradient"].lower())
    assert free.get_yticklabels()[int(gru.get_y())].get_text() == "GRU" and int(gru.get_x()) == 0
