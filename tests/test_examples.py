"""The example scripts run from end to end, and the one that states a verdict measures, fits and judges as it says."""

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.models import RecurrentLM, TransformerLM

from .common import every_device

EXAMPLES = Path(__file__).parent.parent / "examples"
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder, without a display."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture
def through_time():
    spec = importlib.util.spec_from_file_location("gradients_through_time", EXAMPLES / "gradients_through_time.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(monkeypatch, name, *args):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("model", ["rnn", "lstm", "transformer"])
def test_train_language_model(model, tmp_path, monkeypatch, capsys):
    (tmp_path / "book.txt").write_text("the cat sat on the mat, and the rat sat on the cat. " * 20)
    run(monkeypatch, "train_language_model.py", "--model", model, "--text", "book.txt", "--steps", "3", "--batch", "2",
        "--characters", "10")
    out = capsys.readouterr().out
    assert re.search(r"^held-out text  \d\.\d{3} bits per character", out, re.M)
    assert re.search(r"^--- .*\|.{10} ---$", out, re.M), "what it writes"
    results = json.loads((tmp_path / "out" / f"language_model_{model}_own.json").read_text())
    assert len(results["train_bits"]) == 3 and results["heldout_bits"] < 8


def test_a_short_text_is_read_on_by_fewer_readers_and_one_too_short_is_told_before_training(tmp_path, monkeypatch, capsys):
    def train(text, steps="2"):
        (tmp_path / "book.txt").write_text(text)
        run(monkeypatch, "train_language_model.py", "--model", "rnn", "--carry", "--text", "book.txt", "--steps", steps,
            "--batch", "2", "--characters", "1")

    for characters in (1300, 4000):                                          # held out: as few as one reader needs, and three
        train(("the cat sat on the mat. " * 200)[:characters])
        assert re.search(r"^held-out text  \d\.\d{3} bits per character", capsys.readouterr().out, re.M)
    for characters, says in ((1280, "streams: ids has 128 characters"), (200, "streams: ids has 180 characters")):
        with pytest.raises(SystemExit, match=f"the text is too short: {says}"):
            train(("the cat sat on the mat. " * 200)[:characters])
        assert "step" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train("the cat", "0")
    assert "--steps: 0; expected at least 1" in capsys.readouterr().err


def test_gradients_through_time(through_time, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(through_time, "LENGTHS", (8, 12, 16))
    monkeypatch.setattr(through_time, "B", 3)
    monkeypatch.setattr(sys, "argv", ["gradients_through_time.py", "--steps", "1", "--seeds", "1"])
    through_time.main()
    out = capsys.readouterr().out
    assert "verdict at initialisation, over 1 seed: " in out and all(name in out for name in through_time.MODELS)
    results = json.loads((tmp_path / "out" / "gradients_through_time.json").read_text())
    assert results["control_error"] < 1e-9 and set(results["rates"]) == set(through_time.MODELS)
    sizes = results["parameters"].values()
    assert max(sizes) < 1.01 * min(sizes), "models of equal size"


# gradients_through_time: measuring


T = 6
IDS, TARGETS = rng.integers(0, 9, (2, 3, T))
OPTIONS = {"dtype": "float64", "rng": np.random.default_rng(0)}


def loss_of(model, last, **options):
    return ops.cross_entropy(model.head(last), TARGETS[:, -1], **options)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_gradients_by_distance_equal_those_by_a_state_that_is_handed_over(through_time, cell):
    model = RecurrentLM(9, 4, 5, cell=cell, **OPTIONS)
    layer, x = model.recurrence, model.embed(IDS).detach()
    measured = through_time.gradients_by_distance(model, IDS, TARGETS)
    assert measured.shape == (3, T - 1)
    for d in range(1, T):
        _, state = layer(x[:, :T - d])
        state = [mx.tensor(s, requires_grad=True) for s in (state if cell == "lstm" else [state])]
        hs, _ = layer(x[:, T - d:], state if cell == "lstm" else state[0])
        grads = mx.gradients(loss_of(model, hs[:, -1], reduction="sum"))
        length = np.sqrt(sum((grads[s][0] ** 2).sum(-1) for s in state))
        np.testing.assert_allclose(measured[:, d - 1], length, rtol=1e-10)


def test_gradients_by_distance_of_a_transformer_equal_nudges_of_the_stream(through_time):
    model, step = TransformerLM(9, 4, 2, 2, T, **OPTIONS), 1e-5
    x, measured = model.embed(IDS).numpy(), through_time.gradients_by_distance(model, IDS, TARGETS)
    slopes = np.zeros((3, T, 4))
    for t, k in np.ndindex(T, 4):
        nudge = np.zeros((1, T, 4))
        nudge[0, t, k] = step
        up, down = (loss_of(model, model.body(mx.tensor(x + by))[:, -1], reduction="none") for by in (nudge, -nudge))
        slopes[:, t, k] = (up.array - down.array) / (2 * step)
    np.testing.assert_allclose(measured, np.linalg.norm(slopes, axis=-1)[:, -2::-1], rtol=1e-6)


@every_device
def test_the_control_equals_its_closed_form(through_time, device):
    assert through_time.control(device) < 1e-9


# gradients_through_time: fitting and judging


def test_a_fit_tells_an_exponential_from_a_power_law(through_time):
    d = np.arange(1, 64)
    exponential = through_time.fit(np.tile(3 * np.exp(-0.2 * d), (4, 1)))
    power = through_time.fit(np.tile(3 * d**-1.5, (4, 1)))
    assert exponential["rate"] == pytest.approx(-0.2) and exponential["rate_r2"] > 1 - 1e-9 > exponential["power_r2"]
    assert power["power"] == pytest.approx(-1.5) and power["power_r2"] > 1 - 1e-9 > power["rate_r2"]
    mixed = through_time.fit(np.exp(-d * rng.uniform(0.1, 0.3, (4, 1))))
    assert exponential["rate_error"] < 1e-12 < mixed["rate_error"]
    gone = np.where(d < 30, np.exp(-0.2 * d), 0)                             # what has vanished has no logarithm
    assert through_time.fit(np.tile(gone, (4, 1)))["rate"] == pytest.approx(-0.2)


def rates(through_time, away=(-0.5, -0.5), lstm=(-0.1, -0.1), path=(0.001, 0.001)):
    """Rates at initialisation for two seeds: of recurrences, of the LSTM with forget bias 1, of the Transformers."""
    every = {name: path if kind == "transformer" else away for name, (kind, _) in through_time.MODELS.items()}
    every["LSTM, forget bias 1"] = lstm
    return {name: np.tile(np.array(seeds)[:, None], 3) for name, seeds in every.items()}


@pytest.mark.parametrize("changes, overall, away, softer, path", [
    ({}, "HOLDS", "holds", "holds", "holds"),
    ({"away": (0.5, 0.4), "lstm": (-0.1, 0.1)}, "HOLDS", "holds", "holds", "holds"),
    ({"path": (0.1, 0.1)}, "HOLDS IN PART", "holds", "holds", "does not hold here"),
    ({"path": (0.1, 0.001)}, "HOLDS IN PART", "holds", "holds", "undecided"),
    ({"lstm": (-0.6, -0.6)}, "HOLDS IN PART", "holds", "does not hold here", "holds"),
    ({"lstm": (-0.1, -0.6)}, "HOLDS IN PART", "holds", "undecided", "holds"),
    ({"away": (0.03, 0.03), "lstm": (0.01, 0.01)}, "HOLDS IN PART", "does not hold here", "holds", "holds"),
    ({"away": (.01, .01), "lstm": (.02, .02), "path": (.1, .1)}, "DOES NOT HOLD HERE", *["does not hold here"] * 3),
    ({"away": (.5, .01), "lstm": (.01, .5), "path": (.1, .001)}, "UNDECIDED", *["undecided"] * 3),
])
def test_the_verdict_follows_its_rules(through_time, changes, overall, away, softer, path):
    first, *lines = through_time.verdict(rates(through_time, **changes), 1e-12)
    assert first == f"verdict at initialisation, over 2 seeds: {overall}"
    says = {line.split(" (")[0].strip(): line.rpartition(": ")[2] for line in lines if " (" in line}
    assert says == {"recurrences explode or vanish": away, "gates soften it": softer,
                    "the path of the pre-norm Transformer is direct": path}


def test_a_rate_that_depends_on_the_length_is_not_exponential(through_time):
    measured = rates(through_time)
    measured["RNN, gain 1"] = np.array([[-0.5, -0.4, -0.3]] * 2)
    lines = through_time.verdict(measured, 0.0)
    assert lines[0].endswith("HOLDS IN PART") and any(re.fullmatch(r" *no: +RNN, gain 1", line) for line in lines)


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_without_a_control_that_passes_there_is_no_verdict(through_time, error):
    [line] = through_time.verdict(rates(through_time), error)
    assert line.startswith("UNDECIDED: the control failed")
