"""One symbol more for one text: the straight step says what a recurrent model itself says, and stands aside for the rest."""

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.generation import generate, generate_batch
from minitx.models import RecurrentLM, one_step

from .common import every_device
from .harness import assert_close

V, D, H, L = 7, 3, 4, 2
TEXT = np.array([[3, 1, 4, 1, 5, 2, 6, 5, 3]])
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


def arrays(state):
    return [s.data for s in one_step.as_tuple(state)]


@pytest.mark.parametrize("cell, options", [
    *((cell, options) for cell in CELLS for options in ({}, {"dtype": "float32"}, {"learned_state": True}, {"dropout": 0.5})),
    ("rnn", {"activation": "relu"}), ("rnn", {"activation": "linear"}),
], ids=str)
def test_every_symbol_gets_the_scores_and_the_state_that_the_model_itself_gives(cell, options):
    model = model_of(cell, **options)
    model.eval()
    state, write = behind(model, TEXT[:, :2]), model.writer()
    with mx.no_grad():
        for n in range(2, TEXT.shape[1]):
            before = [a.copy() for a in arrays(state)]
            scores, new = write(int(TEXT[0, n]), state)
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
        scores, new = model.writer()(1, state)
        plain, whole = RecurrentLM.forward(model, np.array([[3, 1, 4, 1]])), behind(model, np.array([[3, 1, 4, 1]]))
    assert_close([scores, *arrays(new)], [plain.data[0, -1], *arrays(whole)], 1e-13)


@every_cell
def test_the_weights_stay_as_they_are(cell):
    model = model_of(cell)
    before = model.state_dict()
    model.writer()(1, behind(model))
    np.testing.assert_equal(model.state_dict(), before)


@every_cell
def test_one_text_is_written_with_it(cell, monkeypatch):
    model, read, writer = model_of(cell), [], one_step.writer

    def listed(model):
        write = writer(model)
        return lambda symbol, state: read.append(symbol) or write(symbol, state)

    monkeypatch.setattr(one_step, "writer", listed)
    written = list(generate(model, [1, 2, 3], 4, temperature=0))
    assert len(written) == 4 and read == [3, *written[:-1]], "and every symbol is read once"
    generate_batch(model, [[1, 2, 3], [4]], 4)
    assert len(read) == 4, "several texts are read by the model itself"


@every_cell
def test_a_text_is_written_as_it_is_without(cell, monkeypatch):
    model = model_of(cell)
    for prompt in ([1], [1, 2, 3]):
        with monkeypatch.context() as patch:
            written = list(generate(model, prompt, 20, rng=np.random.default_rng(0)))
            patch.setattr(one_step, "fits", lambda model: False)
            assert list(generate(model, prompt, 20, rng=np.random.default_rng(0))) == written and len(set(written)) > 3


@every_cell
def test_an_observer_sees_the_model_itself_from_there_on_and_the_text_does_not_change(cell):
    model = model_of(cell)
    text = list(generate(model, [1, 2, 3], 6, rng=np.random.default_rng(0)))
    symbols = generate(model, [1, 2, 3], 6, rng=np.random.default_rng(0))
    found = [next(symbols), next(symbols)]
    with mx.profile() as p:
        found += [next(symbols), next(symbols)]
    assert p.rows[cell].calls == 2 * L and [*found, *symbols] == text


@every_cell
@every_device
def test_other_devices_and_sums_that_must_be_wide_are_left_to_the_model_itself(cell, device):
    assert model_of(cell).writer() is not None and model_of(cell, dtype="float16").writer() is None
    assert (model_of(cell).to(device).writer() is None) == (device != "cpu")


def test_so_are_modules_of_your_own():
    class Mine(RecurrentLM):
        def embed(self, ids):
            raise KeyError("mine")

    model = Mine(V, D, H, L, dtype="float64")
    assert model.writer() is None
    with pytest.raises(KeyError, match="mine"):
        next(generate(model, [1], 1))

    for path, name in [*((path, "forward") for path, _ in model_of().named_modules()), ("", "embed"), ("", "body"),
                       ("", "step")]:
        model = model_of()
        part = dict(model.named_modules())[path]
        setattr(part, name, getattr(part, name))
        assert model.writer() is None, f"nor {name} of {path or 'the model'} alone"

    for path, _ in model_of().named_modules():
        model = model_of()
        part = dict(model.named_modules())[path]
        part.__class__ = type("Other", (type(part),), {})
        assert model.writer() is None, path

    model = model_of()
    model.recurrence = nn.LSTM(D, 2, 1, bidirectional=True, dtype="float64")                # H = 4 in all
    assert model.writer() is None


def test_gradients_go_back_through_the_state_as_ever():
    model = model_of()
    _, state = model.step(TEXT[:, :3])
    logits, _ = model.step(TEXT[:, :1], state)
    logits.sum().backward()
    assert np.any(model.tokens.table.grad[4]) and 4 in TEXT[:, :3] and 4 not in TEXT[:, :1]


@pytest.mark.parametrize("symbol", [V, -1])
def test_a_symbol_that_is_none_is_refused_by_name_as_ever(symbol):
    for prompt in ([1, symbol], [symbol, 1], [symbol]):
        with pytest.raises(IndexError, match=f"embedding: ids must be from 0 to 6, got {symbol}"):
            next(generate(model_of(), prompt, 1))


def test_so_are_floats_of_another_width():
    model = model_of()
    model.head = nn.Linear(H, V, dtype="float32")
    with pytest.raises(TypeError, match="linear: arguments of different float widths"):
        next(generate(model, [1, 2], 1))
