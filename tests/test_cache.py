"""C60: what a model reads with a cache, in pieces of any size and beside rows of other lengths, it reads without one."""

import numpy as np
import pytest

import minitx as mx
from minitx import models, nn
from minitx.decoding import beam_search, greedy
from minitx.nn import Cache

from .common import every_device, refused

V, D, N, L, T = 11, 8, 4, 2, 20
rng = np.random.default_rng(0)
SCHEMES = {
    "learned": {}, "sinusoid": {"positions": "sinusoid"}, "alibi": {"positions": "alibi"}, "none": {"positions": "none"},
    "rotary": {"positions": "rotary"},
    "Llama": {"positions": "rotary", "rotary": {"pairing": "neighbours", "stretch": 2.0}, "M": 2, "normaliser": "rms",
              "feed": "swiglu", "use_bias": False},
    "post, tied": {"norm": "post", "tied": True, "M": 1},
}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def model_of(scheme, **options):
    return models.TransformerLM(V, D, N, L, T, rng=np.random.default_rng(0), dtype="float64", **SCHEMES[scheme], **options)


def read(model, ids, pieces, cache):
    """The logits of ids, read in pieces of these sizes, the last as often as there is something left."""
    found, start = [], 0
    with mx.no_grad():
        while start < ids.shape[1]:
            size = pieces[0] if len(pieces) == 1 else pieces.pop(0)
            logits, cache = model.step(ids[:, start:start + size], cache)
            found.append(logits.array)
            start += size
    return np.concatenate(found, 1), cache


@every_scheme
@pytest.mark.parametrize("pieces", [[1], [3], [4], [20], [5, 1], [17, 1], [1, 9]], ids=str)
def test_c60_a_text_in_pieces_has_the_logits_of_the_whole(scheme, pieces):
    model, ids = model_of(scheme), rng.integers(0, V, (2, T))
    for cache in (None, Cache(T), Cache(3 * T)):                             # and nothing is left from the run before
        logits, cache = read(model, ids, [*pieces], cache)
        np.testing.assert_allclose(logits, model(ids).array, atol=1e-10)
        assert cache.length == T


@every_device
@every_scheme
def test_c60_rows_of_unequal_length_have_their_padding_in_front(scheme, device):
    model, lengths, new = model_of(scheme).to(device), (2, 5, 1), 4
    rows = [rng.integers(0, V, n + new) for n in lengths]
    padded = np.stack([np.concatenate([np.full(5 - n, 9), row]) for n, row in zip(lengths, rows)])
    for sizes in ([1] * 9, [5, 1, 1, 1, 1], [9]):
        blank = mx.tensor([5 - n for n in lengths], device=device).array
        found, cache = [], Cache(T, blank)
        with mx.no_grad():
            for piece in np.split(padded, np.cumsum(sizes)[:-1], axis=1):
                logits, cache = model.step(mx.tensor(piece, device=device), cache)
                found.append(logits.numpy())
        logits = np.concatenate(found, 1)
        for b, row in enumerate(rows):
            alone = model(mx.tensor(row[None], device=device)).numpy()[0]
            np.testing.assert_allclose(logits[b, -len(row):], alone, atol=1e-10)


@every_scheme
def test_c60_beams_may_be_put_in_another_order(scheme):
    model, ids = model_of(scheme), rng.integers(0, V, (3, 7))
    _, cache = read(model, ids[:, :4], [4], Cache(T, np.array([1, 0, 2])))
    rows = np.array([2, 0, 2, 1])
    _, straight = read(model, ids[rows, :4], [4], Cache(T, np.array([1, 0, 2])[rows]))
    chosen = cache.select(rows)
    a, b = (read(model, ids[rows, 4:], [1], c)[0] for c in (chosen, straight))
    np.testing.assert_allclose(a, b, atol=1e-12)
    assert (cache.length, chosen.length, chosen.T) == (4, 7, T), "what was chosen from is as it was"


def test_c60_at_its_limit_a_cache_says_so_and_is_as_it_was():
    model, ids = model_of("rotary"), rng.integers(0, V, (1, 6))
    with mx.no_grad():
        _, cache = model.step(ids[:, :4], Cache(5))
        refused(ValueError, lambda: model.step(ids[:, 4:], cache), "Cache: it has room for 5 positions", "would be 6",
                "make a larger one")
        logits, cache = model.step(ids[:, 4:5], cache)
    np.testing.assert_allclose(logits.array[:, 0], model(ids[:, :5]).array[:, -1], atol=1e-10)
    refused(RuntimeError, lambda: model.step(ids), "Cache: no gradient goes through", "no_grad()")


@pytest.mark.parametrize("M", [4, 2, 1])
def test_buffers_are_made_once_and_grow_with_what_is_promised_not_with_what_is_read(M):
    model, cache = models.TransformerLM(V, D, N, L, T, M=M), Cache(T)
    assert cache.nbytes == 0
    seen = []
    with mx.no_grad():
        for _ in range(3):
            model.step(np.zeros((2, 2), int), cache)
            seen.append((cache.nbytes, [id(b) for pair in cache.buffers.values() for b in pair]))
    assert seen[0][0] == 2 * L * 2 * M * T * (D // N) * 4                    # keys and values, of L blocks, for 2 rows, float32
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_c60_a_decoder_writes_with_a_cache_as_it_was_trained_without(norm):
    model = models.EncoderDecoder(V, D, N, L, norm=norm, rng=np.random.default_rng(0), dtype="float64").eval()
    source, lengths, inputs = rng.integers(0, V, (3, 6)), np.array([6, 2, 4]), rng.integers(0, V, (3, 7))
    whole, found, cache = model(source, lengths, inputs).array, [], Cache(7)
    with mx.no_grad():
        memory, _ = model.encode(source, lengths)
        for t in range(7):
            found.append(model.decode(inputs[:, t:t + 1], memory, cache)[0].array)
    np.testing.assert_allclose(np.concatenate(found, 1), whole, atol=1e-10)


def test_attention_without_a_model_can_use_one_too():
    mx.seed(0)
    attention, x = nn.MultiHeadAttention(D, N, causal=True, dtype="float64"), mx.tensor(rng.standard_normal((2, 5, D)))
    cache, found = Cache(5), []
    with mx.no_grad():
        for t in range(5):
            found.append(attention(x[:, t:t + 1], cache=cache).array)
            cache.advance(1)
    np.testing.assert_allclose(np.concatenate(found, 1), attention(x).array, atol=1e-12)


# What a decoder looks at in a source


def decoder(norm="pre"):
    """A model, and what it looks at: three sources of unequal length."""
    model = models.EncoderDecoder(V, D, N, L, T, norm=norm, rng=np.random.default_rng(0), dtype="float64").eval()
    source, lengths = rng.integers(0, V, (3, 6)), np.array([6, 2, 4])
    return model, source, lengths


@pytest.mark.parametrize("rows", [1, 3])
def test_keys_and_values_of_a_memory_are_made_once_for_all_steps_and_rows(rows, monkeypatch):
    model, source, lengths = decoder()
    ids, made = rng.integers(0, V, (3 * rows, 5)), []
    for block in model.decoder:
        monkeypatch.setattr(block.cross.kv, "forward",
                            lambda x, forward=block.cross.kv.forward: made.append(x.shape) or forward(x))
    with mx.no_grad():
        memory, state = model.encode(source, lengths)
        found = []
        for t in range(5):
            logits, state = model.step(ids[:, t], memory, state)
            found.append(logits.array)
        assert made == [(3, 6, D)] * L
        other, _ = model.encode(source[::-1].copy(), lengths[::-1].copy())
        model.step(ids[:, 0], other, state)
        assert made == [(3, 6, D)] * 2 * L, "another memory is looked at anew"
        made.clear()
        beam_search(lambda ids, state: model.step(ids, memory, state), None, [1] * 3, stop=2, steps=4, width=rows)
        assert made == [(3, 6, D)] * L, "a beam makes them once, too"
    for r in range(3 * rows):
        b = slice(r // rows, r // rows + 1)
        alone = model(source[b, :lengths[b][0]], lengths[b], ids[r:r + 1]).array[0]
        np.testing.assert_allclose(np.stack(found, 1)[r], alone, atol=1e-10)


@every_device
def test_c60_a_beam_of_a_decoder_scores_as_the_loss_does(device):
    model, source, lengths = decoder()
    model.to(device)
    sources, places = mx.tensor(source, device=device), mx.tensor(lengths, device=device)
    with mx.no_grad():
        memory, state = model.encode(sources.array, places.array)

    def step(ids, state):
        return model.step(ids, memory, state)

    options = {"start": [1, 1, 1], "stop": 2, "steps": 6}
    first, best = greedy(step, state, **options), beam_search(step, state, **options, width=3, alpha=0.0)
    assert greedy(step, state, **options) == first, "nothing is left from the first search"
    assert [h.ids for h in first] == [found[0].ids for found in beam_search(step, state, **options, width=1)]
    for b, found in enumerate([*map(lambda h: [h], first), *best]):
        b = slice(b % 3, b % 3 + 1)
        for h in found:
            inputs = np.array([[1, *h.ids, 2]])
            logits = model(sources.array[b], places.array[b], mx.tensor(inputs[:, :-1], device=device).array).numpy()[0]
            log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            ids = inputs[0, 1:1 + h.length]
            assert h.log_p == pytest.approx(log_p[np.arange(len(ids)), ids].sum(), rel=1e-9)


def test_what_is_kept_of_a_memory_counts_as_memory_and_has_no_gradient():
    model, source, lengths = decoder()
    with mx.no_grad():
        memory, state = model.encode(source, lengths)
        _, state = model.step(np.ones(3, int), memory, state)
    assert state.nbytes == L * 2 * 3 * D * 8 * (T + 6) and state.select(np.array([1, 0])).length == 1
    refused(RuntimeError, lambda: model.step(np.ones(3, int), model.encode(source, lengths)[0], None), "Cache: no gradient")
    model(source, lengths, rng.integers(0, V, (3, 4))).sum().backward()
    assert all(p.grad is not None for _, p in model.named_parameters()), "and training goes through all"


def test_rows_that_are_chosen_have_buffers_of_their_own():
    model, ids = model_of("rotary"), rng.integers(0, V, (2, 4))
    with mx.no_grad():
        _, cache = model.step(ids, Cache(T))
        before = {id(b) for pair in cache.buffers.values() for b in pair}
        chosen = cache.select(np.array([0, 1]))
        assert before.isdisjoint(id(b) for pair in chosen.buffers.values() for b in pair)
        a, _ = model.step(ids[:, :1], chosen)
        b, _ = model.step(ids[:, 1:2], cache)
        _, fresh = model.step(ids, Cache(T))
        np.testing.assert_array_equal(model.step(ids[:, :1], fresh)[0].array, a.array)
    assert not np.array_equal(a.array, b.array)


@pytest.mark.parametrize("blank", [None, [2]])
def test_a_block_knows_from_its_cache_where_it_is_and_what_is_padding(blank):
    """Without being told positions or a mask."""
    block = nn.TransformerBlock(8, 2, causal=True, rotary={}, dtype="float64", rng=np.random.default_rng(0))
    x, gap = np.random.default_rng(1).standard_normal((1, 5, 8)), 0 if blank is None else 2
    cache, seen = nn.Cache(5, None if blank is None else np.array(blank)), []
    with mx.no_grad():
        for t in range(5):
            seen.append(block(mx.tensor(x[:, t:t + 1]), cache=cache).array)
            cache.advance(1)
        alone = block(mx.tensor(x[:, gap:])).array
    np.testing.assert_allclose(np.concatenate(seen, 1)[:, gap:], alone, atol=1e-14)


def test_greedy_decoding_leaves_the_cache_of_its_caller_as_it_was():
    model = models.TransformerLM(11, 16, 4, 2, 20)

    def step(ids, state):
        logits, state = model.step(ids[:, None], state)
        return logits[:, -1], state

    with mx.no_grad():
        _, cache = model.step(np.array([[1, 2]]))
    first, second = (greedy(step, cache, [3], stop=0, steps=4)[0] for _ in range(2))
    assert first == second and cache.length == 2


def test_queries_and_keys_of_two_sequences_have_no_common_places():
    for options in ({"causal": True}, {"rotary": {}}):
        refused(ValueError, lambda options=options: nn.MultiHeadAttention(8, 2, cross=True, **options),
                "MultiHeadAttention: with cross=True", "leave out causal and rotary")
