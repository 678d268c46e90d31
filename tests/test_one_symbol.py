"""One symbol more for one text: the few calls on plain vectors say what the model itself says, and stand aside for the rest."""

import tracemalloc

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.generation import generate, generate_batch, generate_best
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
    if n:
        with mx.no_grad():
            model.step(TEXT[:, :n], cache)
    return cache


def written(monkeypatch):
    """A list into which every symbol is put that a `writer` reads."""
    read, writer = [], one_symbol.writer

    def listed(model):
        write = writer(model)
        return lambda symbol, state: read.append(symbol) or write(symbol, state)

    monkeypatch.setattr(one_symbol, "writer", listed)
    return read


@pytest.mark.parametrize("options", [
    {}, {"M": 2}, {"M": 1}, {"use_bias": False}, {"F": 5}, {"eps": 0.1}, {"dtype": "float32"}, {"dropout": 0.5},
], ids=str)
@pytest.mark.parametrize("begun", [0, 2])
def test_every_symbol_gets_the_scores_and_leaves_the_keys_that_the_model_itself_gives(options, begun):
    model = gpt(**options)
    model.eval()
    cache, write = reading(model, begun), model.writer()
    with mx.no_grad():
        for n in range(begun, T):
            scores, same = write(int(TEXT[0, n]), cache)
            plain, whole = model.step(TEXT[:, :n + 1], nn.Cache(T))
            assert scores.dtype == plain.dtype and scores.shape == (V,) and same is cache and cache.length == n + 1
            ours, theirs = ([x[:, :, :n + 1] for pair in c.buffers.values() for x in pair] for c in (cache, whole))
            assert_close([scores, *ours], [plain.data[0, -1], *theirs], 1e-5 if scores.dtype == "float32" else 1e-13)


def test_every_norm_has_an_eps_of_its_own():
    model = gpt()
    norms = [model.final_norm, *(norm for block in model.blocks for norm in (block.attention_norm, block.feed_norm))]
    for k, norm in enumerate(norms):
        norm.eps = 0.1 * (k + 1)
    scores, _ = model.writer()(1, nn.Cache(T))
    assert_close([scores], [model(np.array([[1]])).data[0, 0]], 1e-13)


def test_a_stream_far_from_zero_costs_no_accuracy():
    model = gpt(dtype="float32")
    model.embedded.positions.assign_(model.embedded.positions.data + np.float32(1000))
    exact = gpt()
    for p, q in zip(exact.parameters(), model.parameters(), strict=True):
        p.assign_(q.data.astype("float64"))
    scores, _ = model.writer()(1, nn.Cache(T))
    assert_close([scores], [exact(np.array([[1]])).data[0, 0].astype("float32")], 1e-3)     # 1000 has 4 digits behind the point


def test_scores_that_no_exp_could_take_are_taken():
    model = gpt()
    model.blocks[1].attention.qkv.W.assign_(100 * model.blocks[1].attention.qkv.W.data)
    cache = reading(model, 8)
    scores, _ = model.writer()(int(TEXT[0, 8]), cache)
    with mx.no_grad():
        assert_close([scores], [model(TEXT).data[0, -1]], 1e-12)
    keys = cache.buffers[id(model.blocks[1].attention)][0]
    assert np.ptp(keys) > 100


def test_the_weights_stay_as_they_are():
    model = gpt()
    before = model.state_dict()
    model.writer()(1, nn.Cache(T))
    np.testing.assert_equal(model.state_dict(), before)


def test_no_weights_are_copied():
    model = TransformerLM(50, 64, 4, 2, 16)
    tracemalloc.start()
    write = model.writer()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert write and peak < model.count_parameters()                                        # a quarter of the bytes of all


def test_one_text_is_written_with_it(monkeypatch):
    model, read = gpt(), written(monkeypatch)
    text = list(generate(model, [1, 2, 3], 4, temperature=0))
    assert len(text) == 4 and read == [3, *text[:-1]], "every symbol is read once"
    assert generate_batch(model, [[1, 2, 3]], 4, temperature=0) == [text] and len(read) == 8
    generate_batch(model, [[1, 2, 3], [4]], 4)
    generate_best(model, [[1, 2, 3]], 4, stop=0)
    assert len(read) == 8, "several texts, or several beginnings of one, are read by the model itself"


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.8, "stop": 2}], ids=str)
def test_a_text_is_written_as_it_is_without(options, monkeypatch):
    model = gpt()
    text = list(generate(model, [1, 2, 3], 12, **options, rng=np.random.default_rng(0)))    # and beyond the window
    monkeypatch.setattr(one_symbol, "fits", lambda model: False)
    assert list(generate(model, [1, 2, 3], 12, **options, rng=np.random.default_rng(0))) == text


def test_a_text_that_the_window_must_move_for_goes_on_as_before():
    model = gpt()
    text = [1, 2, 3]
    for symbol in generate(model, text, 12, temperature=0):
        with mx.no_grad():
            expected = draw(model(np.array([text[-T:]])).data[0, -1], None, temperature=0)
        assert symbol == expected
        text = [*text, symbol]


def test_it_is_made_once_for_a_text_and_reads_on_where_the_window_moves(monkeypatch):
    model, read, writer, made = gpt(), written(monkeypatch), one_symbol.writer, []
    monkeypatch.setattr(one_symbol, "writer", lambda model: made.append(model) or writer(model))
    text = list(generate(model, [1, 2, 3], 3 * T))
    assert len(made) == 1 and read == [3, *text[:-1]]


def test_an_observer_sees_the_model_itself_from_there_on_and_the_text_does_not_change(monkeypatch):
    model, read = gpt(), written(monkeypatch)
    text = list(generate(model, [1, 2, 3], 6, temperature=0))
    read.clear()
    symbols = generate(model, [1, 2, 3], 6, temperature=0)
    found = [next(symbols), next(symbols)]
    with mx.profile() as p:
        found += [next(symbols), next(symbols)]
    assert p.rows["attention"].calls == 4 and len(read) == 2, "two blocks, two symbols"
    assert [*found, *symbols] == text and len(read) == 4


@pytest.mark.parametrize("why, options", [
    ("positions", {"positions": "sinusoid"}), ("positions", {"positions": "rotary"}), ("positions", {"positions": "alibi"}),
    ("positions", {"positions": "none", "dtype": "float32"}), ("a norm behind each step", {"norm": "post"}),
    ("another norm", {"normaliser": "rms"}), ("another feed", {"feed": "gelu_exact"}), ("another feed", {"feed": "relu"}),
    ("another feed", {"feed": "swiglu"}), ("a tied head", {"tied": True}), ("sums that must be wide", {"dtype": "float16"}),
], ids=str)
def test_models_of_other_forms_are_left_to_themselves(why, options):
    assert gpt().writer() is not None and gpt(**options).writer() is None


@every_device
def test_so_are_other_devices(device):
    assert (gpt().to(device).writer() is None) == (device != "cpu")


def test_so_are_modules_of_your_own():
    class Mine(TransformerLM):
        def extend(self, ids, cache):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        next(generate(Mine(V, 8, 4, 1, T, dtype="float64"), [1], 1))

    for path, _ in gpt().named_modules():
        model = gpt()
        part = dict(model.named_modules())[path]
        part.__class__ = type("Other", (type(part),), {})
        assert model.writer() is None, path


def test_so_is_a_part_with_a_method_of_its_own():
    for path, name in [*((path, "forward") for path, _ in gpt().named_modules()), ("", "embed"), ("", "body"), ("", "step"),
                       ("", "extend"), ("blocks.0", "add"), ("blocks.1.attention", "project")]:
        model = gpt()
        part = dict(model.named_modules())[path]
        setattr(part, name, getattr(part, name))
        assert model.writer() is None, f"{path} {name}"


def test_what_a_part_does_in_place_of_its_forward_is_what_is_written():
    model = gpt()
    attention = model.blocks[0].attention
    attention.out.W.assign_(0 * attention.out.W.data)
    attention.out.b.assign_(0 * attention.out.b.data)
    silent, other = list(generate(model, [1, 2], 6, temperature=0)), gpt()
    assert list(generate(other, [1, 2], 6, temperature=0)) != silent
    other.blocks[0].attention.forward = lambda x, *given, **options: 0 * x
    assert list(generate(other, [1, 2], 6, temperature=0)) == silent


def test_so_are_blocks_that_look_at_a_memory():
    model = gpt()
    model.blocks[1] = nn.TransformerBlock(8, 4, causal=True, cross=True, dtype="float64")
    assert model.writer() is None


def test_so_are_blocks_that_turn_beside_positions_that_are_learned():
    model = gpt()
    model.blocks[1] = nn.TransformerBlock(8, 4, causal=True, rotary={}, dtype="float64")
    assert model.writer() is None


def test_a_block_without_an_attention_of_its_own_writes_as_well():
    class Doubled(nn.Module):
        def forward(self, x, **given):
            return x + x

    model = gpt()
    model.blocks[1] = Doubled()
    assert len(list(generate(model, [1, 2, 3], 3))) == 3


def test_floats_of_another_width_are_refused_as_ever():
    model = gpt()
    model.head = nn.Linear(8, V, dtype="float32")
    with pytest.raises(TypeError, match="linear: arguments of different float widths"):
        next(generate(model, [1, 2], 1))


@pytest.mark.parametrize("symbol", [V, -1])
def test_a_symbol_that_is_none_is_refused_by_name_as_ever(symbol):
    for prompt in ([1, symbol], [symbol, 1], [symbol]):
        with pytest.raises(IndexError, match=f"embedding: ids must be from 0 to 6, got {symbol}"):
            next(generate(gpt(), prompt, 1))


def test_so_is_a_model_that_has_blown_up():
    model = gpt()
    model.head.W.assign_(np.full_like(model.head.W.data, np.nan))
    with pytest.raises(FloatingPointError, match="blown up"):
        next(generate(model, [1, 2], 1))


def test_what_overflows_on_the_way_to_finite_scores_raises_no_warning(monkeypatch):
    model = gpt()
    model.blocks[1].feed.up.W.assign_(1e200 * model.blocks[1].feed.up.W.data)
    with np.errstate(over="raise"):
        text = list(generate(model, [1, 2], 3, temperature=0))
        monkeypatch.setattr(one_symbol, "fits", lambda model: False)
        assert list(generate(model, [1, 2], 3, temperature=0)) == text
