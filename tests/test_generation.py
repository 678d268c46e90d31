"""Writing: symbols drawn as the model believes, the same ones from the same seed, never beyond what it can read."""

from collections import deque

import numpy as np
import pytest

import minitx as mx
from minitx.carried import Carried
from minitx.data import Vocabulary, windows
from minitx.decoding import Hypothesis
from minitx.generation import generate, generate_batch, generate_best
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.nn import Cache
from minitx.optim import Adam
from minitx.training import train

from .common import every_device, refused

TEXT = "the cat sat on the mat, and the rat sat on the cat. " * 20
VOCABULARY = Vocabulary.of(TEXT)
IDS, V = VOCABULARY.encode(TEXT), len(VOCABULARY)


class Parrot(LanguageModel):
    """Gives the same logits whatever it reads, and notes how much it was given to read, in what mode."""

    def __init__(self, logits, context=None):                               # a deque, since a list is searched for parts
        self.logits, self.context, self.seen = mx.tensor(logits, dtype="float32"), context, deque()

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
    drawn = list(generate(Parrot(logits, 1), [0], 4000, temperature=temperature, rng=np.random.default_rng(0)))
    np.testing.assert_allclose(np.bincount(drawn) / 4000, expected, atol=0.03)


def test_a_model_with_a_limited_context_sees_the_last_symbols_that_fit():
    for context, lengths in ((None, [2, 3, 4, 5]), (3, [2, 3, 3, 3])):
        parrot = Parrot([0, 1], context)
        list(generate(parrot, [0, 1], 4))
        assert [*parrot.seen] == [((1, n), False) for n in lengths]
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
    refused(ValueError, lambda: generate(parrot, [], 5), "generate: the prompt is empty", "at least one id")
    refused(ValueError, lambda: generate(parrot, [0], 5, temperature=-1), "temperature is -1; expected", "at least 0")
    refused(TypeError, lambda: generate(parrot, [0], 5, rng=3), "generate: rng is a int; expected a Generator")
    assert next(generate(parrot, [0], 5)) in (0, 1) and len(parrot.seen) == 1, "and nothing is read before it is asked for"
    assert list(generate(parrot, [0], 0)) == []


@pytest.mark.parametrize("logits", [[0, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_model_that_has_blown_up_writes_nothing(logits, temperature):
    refused(FloatingPointError, lambda: list(generate(Parrot(logits), [0], 3, temperature=temperature)),
            "generate: the largest score of the model is", "blown up")


# One interface: what a model keeps of a text, and several texts at once


SCHEMES = {
    "rnn": lambda: RecurrentLM(V, 5, 6, 2, cell="rnn", **FIRM), "gru": lambda: RecurrentLM(V, 5, 6, cell="gru", **FIRM),
    "lstm": lambda: RecurrentLM(V, 5, 6, 2, cell="lstm", **FIRM),
    "learned first state": lambda: RecurrentLM(V, 5, 6, cell="lstm", learned_state=True, **FIRM),
    **{scheme: lambda scheme=scheme: TransformerLM(V, 8, 4, 2, 32, positions=scheme, M=2, **FIRM)
       for scheme in ("learned", "sinusoid", "rotary", "alibi", "none")},
}
FIRM = {"dtype": "float64"}
PROMPTS = [IDS[:2].tolist(), IDS[5:10].tolist(), IDS[7:8].tolist(), IDS[20:37].tolist()]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def firm(scheme, device="cpu"):
    """A model that is sure of itself, and says something else after every text."""
    mx.seed(1)
    model = SCHEMES[scheme]()
    for p in model.parameters():
        p.assign_(3 * p.array + 0.1 * np.random.default_rng(0).standard_normal(p.shape))
    return model.to(device).eval()


def scored(model, ids):
    """The log-probabilities of the symbol after these ids, which are read all at once."""
    logits = model(mx.tensor(np.array([ids]), device=model.device)).numpy()[0, -1]
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def likeliest(model, prompt, count):
    written = list(prompt)
    for _ in range(count):
        written.append(int(scored(model, written).argmax()))
    return written[len(prompt):]


@every_scheme
def test_c60_text_that_is_written_from_memory_is_that_of_a_model_that_reads_all_again(scheme):
    model = firm(scheme)
    for prompt in PROMPTS:
        expected = likeliest(model, prompt, 12)
        assert list(generate(model, prompt, 12, temperature=0)) == expected
        assert list(generate(model, prompt, 12, temperature=0)) == expected, "nothing is left from the first text"
    assert len({tuple(likeliest(model, prompt, 12)) for prompt in PROMPTS}) > 1 < len(set(expected))


@every_device
@every_scheme
def test_c60_prompts_of_unequal_lengths_are_continued_as_one_by_one(scheme, device):
    model = firm(scheme, device)
    assert generate_batch(model, PROMPTS, 12, temperature=0) == [likeliest(model, prompt, 12) for prompt in PROMPTS]
    options = {"temperature": 1.3, "top_k": 9, "top_p": 0.9}
    together = generate_batch(model, PROMPTS, 9, **options, rng=np.random.default_rng(5))
    seeds = np.random.default_rng(5).integers(2**63, size=4)
    assert together == [list(generate(model, prompt, 9, **options, rng=np.random.default_rng(seed)))
                        for prompt, seed in zip(PROMPTS, seeds)]
    assert together == generate_batch(model, PROMPTS, 9, **options, rng=np.random.default_rng(5))


@every_scheme
def test_c60_what_is_read_in_a_batch_is_the_state_of_each_text_alone(scheme):
    model, new = firm(scheme), np.array([[3], [1], [4], [1]])
    texts = [np.array(prompt[:-1], int) for prompt in PROMPTS]              # one of them is empty
    with mx.no_grad():
        logits, state = model.step(new, model.read(texts, 30))
        again, _ = model.step(new, state)
    for text, symbol, one, two in zip(texts, new, logits.array[:, 0], again.array[:, 0]):
        np.testing.assert_allclose(one, model(np.array([[*text, *symbol]])).array[0, -1], atol=1e-10)
        np.testing.assert_allclose(two, model(np.array([[*text, *symbol, *symbol]])).array[0, -1], atol=1e-10)


@pytest.mark.parametrize("scheme", ["learned", "rotary", "alibi"])
def test_when_the_context_is_full_every_row_reads_its_own_last_symbols(scheme):
    mx.seed(1)
    model = TransformerLM(V, 8, 4, 2, 7, positions=scheme, **FIRM)
    for p in model.parameters():
        p.assign_(3 * p.array)
    written = generate_batch(model, PROMPTS, 20, temperature=0)             # one prompt is longer than the context
    for prompt, row in zip(PROMPTS, written):
        text = [*prompt, *row]
        assert len(row) == 20
        for t in range(len(prompt), len(text)):
            assert text[t] == model(np.array([text[max(0, t - 7):t]])).array[0, -1].argmax()
    assert list(generate(TransformerLM(V, 8, 4, 1, 1), IDS[:3], 5, temperature=0)), "a context of one symbol"


def test_until_the_context_is_full_each_symbol_is_read_once_into_the_same_buffers(monkeypatch):
    model, read, buffers = firm("rotary"), [], set()
    extend = Cache.extend

    def noted(cache, attention, k, v):
        found = extend(cache, attention, k, v)
        read.append(k.shape[2])
        buffers.update(id(buffer) for pair in cache.buffers.values() for buffer in pair)
        assert cache.T == 4 + 20, "as large as it will have to be, and no larger"
        return found

    monkeypatch.setattr(Cache, "extend", noted)
    list(generate(model, IDS[:4], 20))
    assert read == [3, 3, *[1, 1] * 20] and len(buffers) == 2 * 2           # of two blocks: the prompt, then one at a time
    read.clear()
    monkeypatch.setattr(Cache, "extend", lambda cache, *kv: read.append(kv[1].shape[2]) or extend(cache, *kv))
    list(generate(model, IDS[:30], 4))
    assert read[::2] == [29, 1, 1, 1, 31, 1], "a context of 32 is full after 2 symbols more, then the window moves"


# Where a text ends


def test_a_stop_symbol_ends_a_text_and_is_not_in_it():
    parrot = Parrot(np.log([0.2, 0.5, 0.3]))
    free = list(generate(parrot, [0], 40, rng=np.random.default_rng(0)))
    for stop, ends in ((2, {2}), ([2, 0], {2, 0}), ((), set()), (None, set()), (np.int64(2), {2})):
        first = next((i for i, symbol in enumerate(free) if symbol in ends), 40)
        assert list(generate(parrot, [2], 40, stop=stop, rng=np.random.default_rng(0))) == free[:first]
    assert list(generate(parrot, [0], 40, stop=1, temperature=0)) == []


def test_a_function_may_end_a_text_behind_any_symbol():
    parrot, seen = Parrot(np.log([0.2, 0.5, 0.3])), []
    free = list(generate(parrot, [0], 40, rng=np.random.default_rng(0)))
    found = list(generate(parrot, [1, 1], 40, stop=lambda ids: seen.append(ids) or ids[-2:] == [1, 1],
                          rng=np.random.default_rng(0)))
    assert found == free[:len(found)] and found[-2:] == [1, 1] and "11" not in "".join(map(str, found[:-1]))
    assert seen == [found[:n + 1] for n in range(len(found))], "it sees what was written, and no prompt"


@every_scheme
def test_rows_of_a_batch_end_each_at_its_own_time(scheme):
    model = firm(scheme)
    free = [likeliest(model, prompt, 12) for prompt in PROMPTS]
    stop = free[3][4]
    cut = [row[:row.index(stop)] if stop in row else row for row in free]
    assert generate_batch(model, PROMPTS, 12, temperature=0, stop=stop) == cut and len(set(map(len, cut))) > 1
    assert generate_batch(model, PROMPTS, 12, temperature=0, stop=lambda ids: len(ids) == 2) == [row[:2] for row in free]


def test_when_all_have_ended_nobody_is_asked_any_more():
    parrot = Parrot([0.0, 9.0])
    assert generate_batch(parrot, [[0], [0]], 50, temperature=0, stop=lambda ids: len(ids) == 3) == [[1] * 3] * 2
    assert len(parrot.seen) == 3
    assert generate_batch(parrot, [], 5) == [] and generate_batch(parrot, [[0]], 0) == [[]]


# The beam


def ranked(model, prompt, count, stop, alpha):
    """All that can follow in `count` symbols, the stop symbol included, the best first."""
    found = []

    def follow(ids, log_p):
        if len(ids) == count:
            found.append(Hypothesis(tuple(ids), log_p, False))
            return
        for symbol, more in enumerate(scored(model, [*prompt, *ids])):
            if symbol == stop:
                found.append(Hypothesis(tuple(ids), log_p + more, True))
            else:
                follow([*ids, symbol], log_p + more)

    follow([], 0.0)
    return sorted(found, key=lambda h: (not h.finished, -h.score(alpha)))


@pytest.mark.parametrize("make", [lambda: RecurrentLM(4, 5, 6, 2, cell="gru", **FIRM), lambda: RecurrentLM(4, 5, 6, **FIRM),
                                  lambda: TransformerLM(4, 8, 4, 2, 9, M=2, **FIRM),
                                  lambda: TransformerLM(4, 8, 2, 1, None, positions="rotary", **FIRM)],
                         ids=["gru", "lstm", "learned", "rotary"])
def test_c60_a_beam_finds_the_best_of_all_continuations_of_each_prompt(make):
    mx.seed(2)
    model, prompts = make(), [[1], [2, 0, 1, 3, 1], [0, 2]]
    for p in model.parameters():
        p.assign_(3 * p.array)
    for prompt, found in zip(prompts, generate_best(model, prompts, 4, stop=3, width=81, alpha=1.0)):
        best = ranked(model, prompt, 4, 3, 1.0)[0]
        assert found[0][::2] == best[::2] and found[0].log_p == pytest.approx(best.log_p, rel=1e-10)
        [alone] = generate_best(model, [prompt], 4, stop=3, width=81, alpha=1.0)
        assert [h.ids for h in found] == [h.ids for h in alone]
        for h in found:
            if h.finished:
                text = [*prompt, *h.ids, 3]
                alone = sum(scored(model, text[:t])[text[t]] for t in range(len(prompt), len(text)))
                assert h.log_p == pytest.approx(alone, rel=1e-10)


@every_device
@every_scheme
def test_c60_rows_of_a_narrow_beam_keep_what_they_have_read(scheme, device):
    model = firm(scheme, device)
    for prompt, found in zip(PROMPTS, generate_best(model, PROMPTS, 6, stop=0, width=3)):
        assert 1 <= len(found) <= 3
        for h in found:
            text = [*prompt, *h.ids, *[0] * h.finished]
            alone = sum(scored(model, text[:t])[text[t]] for t in range(len(prompt), len(text)))
            assert h.log_p == pytest.approx(alone, rel=1e-9)


def test_a_model_that_keeps_nothing_writes_one_text_and_searches_too():
    parrot = Parrot(np.log([0.2, 0.5, 0.3]))
    [[best, *_]] = generate_best(parrot, [[0, 0]], 3, stop=2, alpha=0.0)
    assert best.ids == () and best.finished and best.log_p == pytest.approx(np.log(0.3), rel=1e-6)
    refused(ValueError, lambda: generate_batch(parrot, [[0], [0, 1]], 3), "Parrot: the texts have from 0 to 1 symbols",
            "one text at a time")


def test_what_makes_no_sense_to_write_is_refused():
    parrot = Parrot([0, 1], context=8)
    for options, part in (({"top_k": 0}, "generate: top_k is 0"), ({"top_p": 2}, "generate: top_p is 2"),
                          ({"stop": -1}, "generate: stop is -1"), ({"stop": [1, "a"]}, "generate: stop is 'a'")):
        refused(ValueError, lambda options=options: next(generate(parrot, [0], 5, **options)), part)
    refused(ValueError, lambda: generate_batch(parrot, [[0], []], 5), "generate_batch: the prompt is empty")
    refused(TypeError, lambda: generate_batch(parrot, [[0]], 5, rng=3), "generate_batch: rng is a int")
    refused(TypeError, lambda: generate_batch(parrot, 3, 5), "generate_batch: got a int; expected several rows of ids")
    refused(ValueError, lambda: generate_best(parrot, [[0] * 5], 5, stop=1), "generate_best: the longest prompt and 5 symbols",
            "a context of 9, and this model has 8")
    assert generate_best(parrot, [[0] * 5], 4, stop=1)[0][0].finished
    carried = Carried(RecurrentLM(V, 5, 6))
    refused(TypeError, lambda: generate_best(carried, [[0]], 5, stop=1), "generate_best: model is a Carried")
    blown = Parrot([0, np.nan])
    refused(FloatingPointError, lambda: generate_batch(blown, [[0]], 3), "generate_batch: the largest score", "blown up")
    refused(FloatingPointError, lambda: generate_best(blown, [[0]], 3, stop=1), "beam_search: the largest log", "blown up")
