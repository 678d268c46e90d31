"""One symbol more for one text: the straight step says what a recurrent model itself says, and stands aside for the rest."""

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.generation import generate
from minitx.models import RecurrentLM, one_step

from .common import every_device
from .harness import assert_close

V, D, H, L = 7, 3, 4, 2
TEXT = np.array([[3, 1, 4, 1, 5, 2, 6, 5, 3]])
ONE = TEXT[:, :1]
CELLS = ["rnn", "gru", "lstm"]
every_cell = pytest.mark.parametrize("cell", CELLS)


def model_of(cell="lstm", **options):
    """A model in which every parameter has a value of its own, also those that start at 0 or 1."""
    model = RecurrentLM(V, D, H, L, cell=cell, **{"rng": np.random.default_rng(0), "dtype": "float64", **options})
    rng = np.random.default_rng(1)
    for p in model.parameters():
        p.assign_(p.data + 0.5 * rng.standard_normal(p.shape).astype(p.dtype))
    return model


def behind(model, texts=TEXT[:, :3]):
    with mx.no_grad():
        return model.step(texts)[1]


def fits(model, ids=ONE, state=None):
    state = behind(model) if state is None else state
    with mx.no_grad():
        return one_step.fits(model, ids, state)


def arrays(state):
    return [s.data for s in one_step.as_tuple(state)]


@pytest.mark.parametrize("cell, options", [
    *((cell, options) for cell in CELLS for options in ({}, {"dtype": "float32"}, {"learned_state": True})),
    ("rnn", {"activation": "relu"}), ("rnn", {"activation": "linear"}),
], ids=str)
def test_every_symbol_gets_the_scores_and_the_state_that_the_model_itself_gives(cell, options):
    model = model_of(cell, **options)
    with mx.no_grad():
        state = behind(model, TEXT[:, :2])
        for n in range(2, TEXT.shape[1]):
            assert fits(model, state=state)
            before = [a.copy() for a in arrays(state)]
            scores, new = one_step.logits(model, int(TEXT[0, n]), state)
            plain, whole = model.step(TEXT[:, :n + 1])
            assert type(new) is type(whole) and scores.shape == (V,)
            assert [a.shape for a in arrays(new)] == [(L, 1, H)] * len(before)
            assert {scores.dtype, *(a.dtype for a in arrays(new))} == {plain.dtype}
            theirs, tolerance = [plain.data[0, -1], *arrays(whole)], 1e-5 if plain.dtype == "float32" else 1e-13
            assert_close([scores, *arrays(new)], theirs, tolerance)
            np.testing.assert_equal(arrays(state), before)                                  # one can go on from a state twice
            state = new


@every_cell
def test_gates_that_are_wide_open_or_shut_overflow_nowhere(cell):
    model = model_of(cell)
    for layer in model.recurrence.layers:
        layer.b.assign_(1e4 * np.sign(layer.b.data))
    state = behind(model)
    with mx.no_grad(), np.errstate(all="raise"):
        scores, new = one_step.logits(model, 1, state)
        plain, whole = RecurrentLM.forward(model, np.array([[3, 1, 4, 1]])), behind(model, np.array([[3, 1, 4, 1]]))
    assert_close([scores, *arrays(new)], [plain.data[0, -1], *arrays(whole)], 1e-13)


@every_cell
def test_the_step_takes_it_wherever_it_fits(cell, monkeypatch):
    model, read = model_of(cell), []
    logits = one_step.logits
    monkeypatch.setattr(one_step, "logits", lambda *args: read.append(args[1]) or logits(*args))
    with mx.no_grad():
        scores, state = model.step(TEXT[:, 3:4], behind(model))
        assert read == [1] and scores.shape == (1, 1, V) and not scores.requires_grad
        model.step(TEXT[:, 4:5], state)
        assert read == [1, 5]
    written = list(generate(model, [1, 2, 3], 4, temperature=0))
    assert read[2:] == [3, *written[:-1]], "and every symbol is read once"


@every_cell
def test_a_text_is_written_as_it_is_without(cell, monkeypatch):
    model = model_of(cell)
    written = list(generate(model, [1, 2, 3], 20, rng=np.random.default_rng(0)))
    monkeypatch.setattr(one_step, "fits", lambda model, ids, state: False)
    assert list(generate(model, [1, 2, 3], 20, rng=np.random.default_rng(0))) == written and len(set(written)) > 3


def test_the_state_of_an_lstm_may_come_as_a_list_and_that_of_others_in_a_tuple():
    lstm, gru = model_of(), model_of("gru")
    assert fits(lstm, state=list(behind(lstm))) and fits(gru, state=(behind(gru),))


@every_cell
def test_other_inputs_are_left_to_the_model_itself(cell):
    model = model_of(cell)
    assert fits(model)
    for ids in (TEXT[:, :2], TEXT[:, :0], np.array([[1], [2]]), np.array([1]), np.array([[1.0]]), np.array([[True]]),
                np.array([[V]]), np.array([[-1]]), mx.tensor([[1]]), [[1]]):
        assert not fits(model, ids)


@every_cell
def test_so_is_a_state_that_is_missing_or_of_several_texts_or_of_another_model(cell):
    model = model_of(cell)
    with mx.no_grad():
        assert not one_step.fits(model, ONE, None)
    for other in (behind(model, np.array([[1], [2]])),                                      # two texts
                  behind(model_of(cell, dtype="float32")),
                  behind(RecurrentLM(V, D, H, 3, cell=cell, dtype="float64")),
                  behind(RecurrentLM(V, D, 5, L, cell=cell, dtype="float64")),
                  behind(model_of("gru" if cell == "lstm" else "lstm")),
                  (), arrays(behind(model)), one_step.as_tuple(behind(model))[0].data):
        assert not fits(model, state=other)


@every_cell
@every_device
def test_so_are_other_devices_and_sums_that_must_be_wide(cell, device):
    assert fits(model_of(cell)) and not fits(model_of(cell, dtype="float16"))
    model = model_of(cell).to(device)
    state = behind(model, mx.tensor(TEXT, device=device).array)
    assert fits(model, mx.tensor(ONE, device=device).array, state) == (device == "cpu")
    assert fits(model, ONE, state) == (device == "cpu")
    assert fits(model_of(cell), ONE, state) == fits(model, ONE, behind(model_of(cell))) == (device == "cpu")


def test_so_are_gradients_observers_and_dropout():
    model = model_of(dropout=0.5)
    model.eval()
    state = behind(model)
    assert not one_step.fits(model, ONE, state)                                             # outside no_grad
    with mx.no_grad():
        assert one_step.fits(model, ONE, state)
        with mx.profile():
            assert not one_step.fits(model, ONE, state)
        for dropout in (model.dropout, model.recurrence.dropout):
            dropout.training = True
            assert not one_step.fits(model, ONE, state)
            dropout.training = False


def test_gradients_go_back_through_the_state_as_ever():
    model = model_of()
    _, state = model.step(TEXT[:, :3])
    logits, _ = model.step(ONE, state)
    logits.sum().backward()
    assert np.any(model.tokens.table.grad[4]) and 4 in TEXT[:, :3] and 4 not in ONE


def test_so_are_modules_of_your_own():
    class Mine(RecurrentLM):
        def embed(self, ids):
            raise KeyError("mine")

    state = behind(model_of())
    with mx.no_grad(), pytest.raises(KeyError, match="mine"):
        Mine(V, D, H, L, dtype="float64").step(ONE, state)

    for name in ("embed", "body"):
        model = model_of()
        assert fits(model)
        setattr(model, name, getattr(model, name))
        assert not fits(model), "nor a method that this one model has of its own"

    for path in ("tokens", "recurrence", "recurrence.layers.0", "recurrence.layers.1", "head"):
        model = model_of()
        part = dict(model.named_modules())[path]
        part.__class__ = type("Other", (type(part),), {})
        assert not fits(model, state=state), path

    model = model_of()
    model.recurrence = nn.LSTM(D, 2, 1, bidirectional=True, dtype="float64")                # H = 4 in all
    assert not fits(model)


@pytest.mark.parametrize("ids, error", [(np.array([[V]]), IndexError), (np.array([1]), ValueError)], ids=str)
def test_ids_that_are_wrong_are_refused_by_name_as_ever(ids, error):
    model = model_of()
    with mx.no_grad(), pytest.raises(error, match="ids"):
        model.step(ids, behind(model))


def test_so_are_floats_of_another_width():
    model = model_of()
    state = behind(model)
    model.head = nn.Linear(H, V, dtype="float32")
    with mx.no_grad(), pytest.raises(TypeError, match="linear: arguments of different float widths"):
        model.step(ONE, state)
