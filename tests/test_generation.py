"""Writing: symbols drawn as the model believes, the same ones from the same seed, never beyond what it can read."""

import numpy as np
import pytest

import minitx as mx
from minitx.carried import Carried
from minitx.data import Vocabulary, windows
from minitx.generation import generate
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import Adam
from minitx.training import train

from .common import refused

TEXT = "the cat sat on the mat, and the rat sat on the cat. " * 20
VOCABULARY = Vocabulary.of(TEXT)
IDS, V = VOCABULARY.encode(TEXT), len(VOCABULARY)


class Parrot(LanguageModel):
    """Gives the same logits whatever it reads, and notes how much it was given to read, in what mode."""

    def __init__(self, logits, context=None):
        self.logits, self.context, self.seen = mx.tensor(logits, dtype="float32"), context, []

    def forward(self, ids):
        self.seen.append((ids.shape, self.training))
        return self.logits.reshape(1, 1, -1) + mx.tensor(np.zeros((*ids.shape, 1), "float32"))


def test_a_model_writes_what_it_has_learned_and_the_seed_decides():
    mx.seed(0)
    model = RecurrentLM(V, 8, 16)
    train(model, windows(IDS, 4, 12, np.random.default_rng(0)), Adam(model.parameters(), 2e-2), steps=100)
    for device in ("cpu", "strict"):
        model.to(device)

        def write(seed, temperature=1.0):
            rng = np.random.default_rng(seed)
            prompt = VOCABULARY.encode("the cat")
            return VOCABULARY.decode(list(generate(model, prompt, 40, temperature=temperature, rng=rng)))

        assert write(0) == write(0) != write(1)
        assert write(0, temperature=0) == write(1, temperature=0)
        assert write(0, temperature=0).startswith(" sat on the ")
    mx.seed(3)
    first = list(generate(model, [0], 9))
    mx.seed(3)
    assert list(generate(model, [0], 9)) == first, "without an rng, the shared stream"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_symbols_are_drawn_from_the_softmax_of_logits_by_temperature(temperature):
    logits = np.log([0.5, 0.3, 0.2])
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    drawn = list(generate(Parrot(logits), [0], 4000, temperature=temperature, rng=np.random.default_rng(0)))
    np.testing.assert_allclose(np.bincount(drawn) / 4000, expected, atol=0.03)


def test_a_model_with_a_limited_context_sees_the_last_symbols_that_fit():
    for context, lengths in ((None, [2, 3, 4, 5]), (3, [2, 3, 3, 3])):
        parrot = Parrot([0, 1], context)
        list(generate(parrot, [0, 1], 4))
        assert parrot.seen == [((1, n), False) for n in lengths]
    transformer, T = TransformerLM(V, D=16, N=2, L=1, T=12), 12
    written = [*IDS[:9], *generate(transformer, IDS[:9], 30, temperature=0)]
    for t in range(9, 39):
        assert written[t] == transformer(np.array([written[max(0, t - T):t]])).array[0, -1].argmax()


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrent_model_reads_every_symbol_once_and_writes_what_it_would_if_it_read_all_again(cell, monkeypatch):
    model = RecurrentLM(V, 5, 6, 2, cell=cell, rng=np.random.default_rng(0), dtype="float64")
    for p in model.parameters():
        p.assign_(3 * p.array)                          # sure of itself, and different after every text
    model.eval()
    written = IDS[:4].tolist()
    for _ in range(30):
        written.append(int(model(np.array([written])).array[0, -1].argmax()))
    read, embed = [], model.embed
    monkeypatch.setattr(model, "embed", lambda ids: read.extend(ids.ravel().tolist()) or embed(ids))
    assert list(generate(model, IDS[:4], 30, temperature=0)) == written[4:] and len(set(written[4:])) > 1
    assert read == written[:-1]


def test_what_is_carried_is_no_place_to_write_from():
    carried = Carried(RecurrentLM(V, 5, 6))
    refused(TypeError, lambda: next(generate(carried, [0], 5)), "generate: model is a Carried", "give carried.model")
    assert carried.state is None and len(list(generate(carried.model, [0], 5))) == 5


def test_writing_puts_the_mode_back_also_when_nobody_reads_to_the_end():
    for mode in (True, False):
        parrot = Parrot([0, 1]).train(mode)
        list(generate(parrot, [0], 2))
        assert parrot.training is mode
        half_read = generate(parrot, [0], 5)
        next(half_read)
        half_read.close()
        assert parrot.training is mode
    model = RecurrentLM(V, 3, 4, dropout=0.5)
    model.dropout.eval()
    before = [module.training for _, module in model.named_modules()]
    assert list(generate(model, [0], 5, temperature=0)) == list(generate(model, [0], 5, temperature=0)), "without dropout"
    assert [module.training for _, module in model.named_modules()] == before and len(set(before)) == 2


def test_writing_refuses_an_empty_prompt_and_a_negative_temperature():
    parrot = Parrot([0, 1])
    refused(ValueError, lambda: next(generate(parrot, [], 5)), "generate: the prompt is empty", "at least one id")
    refused(ValueError, lambda: next(generate(parrot, [0], 5, temperature=-1)), "temperature is -1; expected", "at least 0")
    refused(TypeError, lambda: next(generate(parrot, [0], 5, rng=3)), "generate: rng is a int; expected a Generator")
    assert list(generate(parrot, [0], 0)) == []


@pytest.mark.parametrize("logits", [[0, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_model_that_has_blown_up_writes_nothing(logits, temperature):
    refused(FloatingPointError, lambda: list(generate(Parrot(logits), [0], 3, temperature=temperature)),
            "generate: the largest score of the model is", "blown up")
