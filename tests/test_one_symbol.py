"""One symbol more for one text: the few calls on plain vectors say what the model itself says, and stand aside for the rest."""

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.generation import generate
from minitx.models import TransformerLM, one_symbol
from minitx.sampling import draw

from .common import every_device
from .harness import assert_close

V, T = 7, 9
TEXT = np.array([[3, 1, 4, 1, 5, 2, 6, 5, 3]])


def gpt(seed=0, **options):
    """A model in which every parameter has a value of its own, also those that start at 0 or 1."""
    model = TransformerLM(V, 8, 4, 2, T, **{"rng": np.random.default_rng(seed), "dtype": "float64", **options})
    rng = np.random.default_rng(seed + 1)
    for p in model.parameters():
        p.assign_(p.data + 0.3 * rng.standard_normal(p.shape).astype(p.dtype))
    return model


def reading(model, n, **options):
    """A cache in which the first n symbols stand."""
    cache = nn.Cache(T, **options)
    with mx.no_grad():
        model.step(TEXT[:, :n], cache)
    return cache


def fits(model, ids=TEXT[:, :1], n=3, **options):
    cache = reading(model, n, **options) if n else nn.Cache(T)
    with mx.no_grad():
        return one_symbol.fits(model, ids, cache)


@pytest.mark.parametrize("options", [
    {}, {"M": 2}, {"M": 1}, {"use_bias": False}, {"F": 5}, {"eps": 0.1}, {"dtype": "float32"},
], ids=str)
def test_every_symbol_gets_the_scores_and_leaves_the_keys_that_the_model_itself_gives(options):
    model = gpt(**options)
    cache = reading(model, 2)
    with mx.no_grad():
        for n in range(2, T):
            assert fits(model, n=n)
            scores = one_symbol.logits(model, int(TEXT[0, n]), cache)
            plain, whole = model.step(TEXT[:, :n + 1], nn.Cache(T))
            assert scores.dtype == plain.dtype and scores.shape == (V,) and cache.length == n + 1
            ours, theirs = ([x[:, :, :n + 1] for pair in c.buffers.values() for x in pair] for c in (cache, whole))
            assert_close([scores, *ours], [plain.data[0, -1], *theirs], 1e-5 if scores.dtype == "float32" else 1e-13)


def test_the_step_takes_it_wherever_it_fits(monkeypatch):
    model, read = gpt(), []
    cache = reading(model, 3)
    logits = one_symbol.logits
    monkeypatch.setattr(one_symbol, "logits", lambda *args: read.append(args[1]) or logits(*args))
    with mx.no_grad():
        scores, same = model.step(TEXT[:, 3:4], cache)
    assert read == [1] and same is cache and cache.length == 4 and scores.shape == (1, 1, V) and not scores.requires_grad
    assert len(list(generate(model, [1, 2, 3], 4, temperature=0))) == 4 and len(read) == 5


def test_a_text_that_the_window_must_move_for_goes_on_as_before():
    model = gpt()
    text = [1, 2, 3]
    for symbol in generate(model, text, 12, temperature=0):
        with mx.no_grad():
            expected = draw(model(np.array([text[-T:]])).data[0, -1], None, temperature=0)
        assert symbol == expected
        text = [*text, symbol]


@pytest.mark.parametrize("why, options", [
    ("positions", {"positions": "sinusoid"}), ("positions", {"positions": "rotary"}), ("positions", {"positions": "alibi"}),
    ("positions", {"positions": "none", "dtype": "float32"}), ("a norm behind each step", {"norm": "post"}),
    ("another norm", {"normaliser": "rms"}), ("another feed", {"feed": "gelu_exact"}), ("another feed", {"feed": "relu"}),
    ("another feed", {"feed": "swiglu"}), ("a tied head", {"tied": True}), ("sums that must be wide", {"dtype": "float16"}),
], ids=str)
def test_models_of_other_forms_are_left_to_themselves(why, options):
    assert fits(gpt()) and not fits(gpt(**options))


def test_so_are_other_inputs():
    model = gpt()
    assert fits(model)
    for ids in (TEXT[:, :2], TEXT[:, :0], np.array([[1], [2]]), np.array([1]), np.array([[1.0]]), np.array([[V]]),
                np.array([[-1]]), mx.tensor([[1]]), [[1]]):
        assert not fits(model, ids)


def test_so_is_a_cache_that_is_empty_full_or_padded_or_has_several_texts_or_those_of_another_model():
    model = gpt()
    assert fits(model, n=T - 1)
    assert not fits(model, n=0) and not fits(model, n=T) and not fits(model, blank=np.array([1]))
    with mx.no_grad():
        assert not one_symbol.fits(model, TEXT[:, :1], reading(model, 3).select(np.array([0, 0])))
        assert not one_symbol.fits(model, TEXT[:, :1], reading(gpt(1), 3))
        longer = nn.Cache(T + 5)                        # the model has no more than T positions
        model.step(TEXT, longer)
        assert not one_symbol.fits(model, TEXT[:, :1], longer)


@every_device
def test_so_are_other_devices(device):
    model = gpt()
    cache = reading(model, 3)
    model.to(device)                                    # and the cache stays on the host
    for ids in (TEXT[:, :1], mx.tensor(TEXT[:, :1], device=device).array):
        with mx.no_grad():
            assert one_symbol.fits(model, ids, cache) == (device == "cpu")


def test_so_are_gradients_observers_and_dropout():
    model = gpt(dropout=0.5)
    model.eval()
    cache = reading(model, 3)
    assert not one_symbol.fits(model, TEXT[:, :1], cache)                               # outside no_grad
    with mx.no_grad():
        assert one_symbol.fits(model, TEXT[:, :1], cache)
        with mx.profile():
            assert not one_symbol.fits(model, TEXT[:, :1], cache)
        for dropout in (model.dropout, model.blocks[1].dropout, model.blocks[0].attention.dropout):
            dropout.training = True
            assert not one_symbol.fits(model, TEXT[:, :1], cache)
            dropout.training = False


def test_so_are_modules_of_your_own():
    class Mine(TransformerLM):
        def extend(self, ids, cache):
            raise KeyError("mine")

    model = Mine(V, 8, 4, 1, T, dtype="float64")
    cache = nn.Cache(T)
    with mx.no_grad():
        TransformerLM.extend(model, TEXT[:, :3], cache)
        with pytest.raises(KeyError, match="mine"):
            model.step(TEXT[:, :1], cache)

    for path in ("blocks.1", "blocks.1.attention", "blocks.1.feed", "blocks.1.attention_norm", "blocks.0.feed_norm", "head",
                 "final_norm", "blocks.1.attention.qkv", "blocks.1.attention.out", "blocks.0.feed.up", "blocks.0.feed.down",
                 "embedded.tokens"):
        model = gpt()
        part = dict(model.named_modules())[path]
        part.__class__ = type("Other", (type(part),), {})
        assert not fits(model), path

    for name in ("embed", "body", "extend"):
        model = gpt()
        cache = reading(model, 3)
        setattr(model, name, getattr(model, name))
        with mx.no_grad():
            assert not one_symbol.fits(model, TEXT[:, :1], cache), "nor a method that this one model has of its own"


def test_a_block_without_an_attention_of_its_own_writes_as_well():
    class Doubled(nn.Module):
        def forward(self, x, **given):
            return x + x

    model = gpt()
    model.blocks[1] = Doubled()
    assert len(list(generate(model, [1, 2, 3], 3))) == 3


def test_floats_of_another_width_are_refused_as_ever():
    model = gpt()
    cache = reading(model, 3)
    model.head = nn.Linear(8, V, dtype="float32")
    with mx.no_grad(), pytest.raises(TypeError, match="linear: arguments of different float widths"):
        model.step(TEXT[:, :1], cache)


def test_a_symbol_that_is_none_is_refused_by_name_as_ever():
    model = gpt()
    with mx.no_grad(), pytest.raises(IndexError, match="ids must be from 0 to 6, got 7"):
        model.step(np.array([[V]]), reading(model, 3))
