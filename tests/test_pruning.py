"""Heads: their importance is the slope of the loss when one is turned down, and pruning takes out what is as good as silent."""

import copy

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.models import Encoder, EncoderDecoder, TransformerLM
from minitx.pruning import head_importance, least_important, prune

from .common import every_device, refused, same

rng = np.random.default_rng(0)
IDS, TARGETS = rng.integers(0, 11, (2, 3, 6))


def language_model(seed=0, dropout=0.0, **options):
    return TransformerLM(11, 16, 4, 2, 6, rng=np.random.default_rng(seed), dtype="float64", dropout=dropout, **options)


def turned(attention, head, factor):
    """The rows of the last matrix through which a head speaks, times a factor; the old matrix."""
    W = attention.out.W
    before, louder = W.numpy(), W.numpy()
    louder[head * attention.K:(head + 1) * attention.K] *= factor
    W.assign_(louder)
    return before


# Importance


def slope(model, path, head, loss, h=1e-5):
    """dL/dξ for a head that speaks ξ times as loud, at ξ = 1, by central differences."""
    attention, found = dict(model.named_modules())[path], []
    for xi in (1 + h, 1 - h):
        before = turned(attention, head, xi)
        found.append(loss())
        attention.out.W.assign_(before)
    return (found[0] - found[1]) / (2 * h)


def test_importance_is_the_slope_of_the_loss_sequence_by_sequence():
    model = language_model()
    scores = head_importance(model, [(IDS, TARGETS)], normalised=False)
    assert list(scores) == ["blocks.0.attention", "blocks.1.attention"]
    signs = set()
    for path, row in scores.items():
        for head, score in enumerate(row):
            slopes = [slope(model, path, head, lambda b=b: model.loss(IDS[b:b + 1], TARGETS[b:b + 1]).item()) / 3
                      for b in range(3)]                                 # the mean over three sequences, of each its own third
            assert score == pytest.approx(np.abs(slopes).mean(), rel=1e-5)
            signs.add(len(set(np.sign(slopes))))
    assert 2 in signs, "in some head the slopes have both signs, or signs are not tested"


def test_scores_of_a_layer_have_length_one_unless_asked_otherwise():
    model, data = language_model(), [(IDS, TARGETS)]
    plain, scores = head_importance(model, data, normalised=False), head_importance(model, data)
    for path, score in scores.items():
        assert np.linalg.norm(score) == pytest.approx(1)
        np.testing.assert_allclose(score * np.linalg.norm(plain[path]), plain[path])


def test_batches_count_by_their_sequences():
    model = language_model()

    def total(ids, targets):                                             # a sum: the slope of a sequence is its own
        return ops.cross_entropy(model(ids), targets, reduction="sum")

    whole = head_importance(model, [(IDS, TARGETS)], loss=total, normalised=False)
    parts = head_importance(model, [(IDS[:1], TARGETS[:1]), (IDS[1:], TARGETS[1:])], loss=total, normalised=False)
    for path in whole:
        np.testing.assert_allclose(parts[path], whole[path], rtol=1e-12)


def test_a_silent_head_has_no_importance_and_dead_layers_no_nan():
    model = language_model()
    turned(model.blocks[0].attention, 2, 0)
    model.blocks[1].attention.out.W.assign_(np.zeros((16, 16)))
    scores = head_importance(model, [(IDS, TARGETS)])
    assert scores["blocks.0.attention"][2] == 0 and (scores["blocks.0.attention"][[0, 1, 3]] > 0).all()
    assert scores["blocks.1.attention"].tolist() == [0, 0, 0, 0]


def test_looking_changes_nothing_and_dropout_is_off():
    model = language_model(dropout=0.5)
    before, state = model.state_dict(), copy.deepcopy(model.dropout.rng.bit_generator.state)
    first, second = (head_importance(model, [(IDS, TARGETS)])["blocks.0.attention"] for _ in range(2))
    assert first.tolist() == second.tolist() and model.training and model.dropout.rng.bit_generator.state == state
    assert all(p.grad is None for p in model.parameters())
    assert all(np.array_equal(p.array, before[path]) for path, p in model.named_parameters())


@every_device
def test_every_attention_of_a_translator_has_scores(device):
    model = EncoderDecoder(11, 12, 4, 1, dropout=0.0, dtype="float64", rng=np.random.default_rng(0)).to(device)
    ids, targets, lengths = (mx.tensor(a, device=device) for a in (IDS, TARGETS, np.array([6, 4, 5])))
    scores = head_importance(model, [(ids.array, lengths.array, ids.array, targets.array)])
    assert list(scores) == ["encoder.0.attention", "decoder.0.attention", "decoder.0.cross"]
    assert all(isinstance(row, np.ndarray) and row.shape == (4,) and (row > 0).all() for row in scores.values())


def test_importance_without_anything_to_see_is_refused():
    model = language_model()
    refused(ValueError, lambda: head_importance(model, []), "no gradient came by blocks.0.attention, blocks.1.attention")
    refused(TypeError, lambda: head_importance(nn.TransformerBlock(4, 2), []), "a TransformerBlock has no loss of its own")
    refused(TypeError, lambda: head_importance("model", []), "head_importance: model is a str")
    with mx.no_grad():
        refused(RuntimeError, lambda: head_importance(model, [(IDS, TARGETS)]),
                "head_importance: no gradient will come by blocks.0.attention", "outside of no_grad()")


# Pruning


CASES = {
    "plain": ({}, [0, 2]), "one head left": ({}, [0, 1, 2]), "causal, no biases": ({"causal": True, "use_bias": False}, [3]),
    "rotary": ({"rotary": {"base": 100.0}, "K": 4}, [1, 2]), "cross": ({"cross": True}, [0, 3]),
    "grouped": ({"M": 2}, [2, 3]), "one key for all but one": ({"M": 4, "K": 5}, [1]), "nothing": ({}, []),
}


@pytest.mark.parametrize("case", CASES)
@every_device
def test_a_pruned_attention_is_the_whole_one_with_silent_heads(case, device):
    options, heads = CASES[case]
    attention = nn.MultiHeadAttention(12, 4, dtype="float64", rng=np.random.default_rng(0), **options)
    for p in attention.parameters():
        p.assign_(0.3 * rng.standard_normal(p.shape))
    pruned = copy.deepcopy(attention).to(device)
    for head in heads:
        turned(attention, head, 0)
    prune(pruned, heads)
    x, memory = (rng.standard_normal((2, 5, 12)) for _ in range(2))

    def run(module, device):
        inputs = [mx.tensor(a, device=device, requires_grad=True) for a in (x, memory)]
        y = module(inputs[0], **({"memory": inputs[1]} if "cross" in options else {}))
        return y.numpy(), mx.gradients((y * y).sum())[inputs[0]]

    for ours, expected in zip(run(pruned, device), run(attention, "cpu")):
        np.testing.assert_allclose(mx.backend.to_host(ours), expected, rtol=0, atol=1e-12)
    each = attention.N // attention.M
    K, N, M = pruned.K, 4 - len(heads), attention.M - len(heads) // each
    assert (pruned.N, pruned.M, pruned.out.W.shape) == (N, M, (N * K, 12))
    widths = [pruned.q.W.shape, pruned.kv.W.shape] if "cross" in options else [pruned.qkv.W.shape]
    assert widths == ([(12, N * K), (12, 2 * M * K)] if "cross" in options else [(12, (N + 2 * M) * K)])


def test_a_pruned_model_learns_and_writes_with_its_cache():
    model = language_model(positions="rotary")
    before = model.count_parameters()
    prune(model.blocks[0].attention, [1, 3])
    assert before - model.count_parameters() == 2 * 4 * (4 * 16 + 3)     # of two heads: q, k, v with biases, and out
    mx.gradients(model.loss(IDS, TARGETS))
    with mx.no_grad():
        first, cache = model.step(IDS[:, :4])
        second, _ = model.step(IDS[:, 4:], cache)
    np.testing.assert_allclose(np.concatenate([first.numpy(), second.numpy()], 1), model(IDS).numpy(), atol=1e-12)


def test_pruning_what_matters_least_costs_less_than_what_matters_most():
    model, losses = Encoder(11, 16, 4, 2, 6, rng=np.random.default_rng(1), dtype="float64"), {}
    with mx.no_grad():
        original = model(IDS).numpy()

    def loss(ids):
        return ((model(ids) - 0.9 * original) ** 2.0).mean()

    scores = head_importance(model, [(IDS,)], loss=loss)
    for name, order in ("least", scores), ("most", {path: -row for path, row in scores.items()}):
        smaller = copy.deepcopy(model)
        for path, heads in least_important(order, 3).items():
            prune(dict(smaller.named_modules())[path], heads)
        losses[name] = ((smaller(IDS) - original) ** 2.0).mean().item()
    assert losses["least"] < losses["most"]


def test_of_every_layer_the_best_head_stays():
    scores = {"a": np.array([0.1, 0.2, 0.05]), "b": np.array([0.9, 0.8, 0.7])}
    assert least_important(scores, 0) == {}
    assert least_important(scores, 3) == {"a": [0, 2], "b": [2]}
    assert least_important(scores, 4) == {"a": [0, 2], "b": [1, 2]}
    refused(ValueError, lambda: least_important(scores, 5), "count is 5", "only 4 can go")


@pytest.mark.parametrize("options, heads, parts", [
    ({}, [4], ["heads are [4]", "0 to 3"]), ({}, [-1], ["heads are [-1]"]), ({}, [0.5], ["heads are [0.5]"]),
    ({}, [True], ["heads are [True]"]),
    ({}, [3, 1, 0, 2], ["all 4 heads", "keep one"]), ({"M": 2}, [1, 2], ["every 2 heads share", "0 to 1 are the first"]),
    ({"M": 1}, [0], ["every 4 heads share"]),
])
def test_what_cannot_be_pruned_is_refused_and_changes_nothing(options, heads, parts):
    attention = nn.MultiHeadAttention(12, 4, **options)
    before = attention.state_dict()
    refused(ValueError, lambda: prune(attention, heads), "prune: ", *parts)
    assert same(attention.state_dict(), before) and attention.N == 4
    refused(TypeError, lambda: prune(language_model(), heads), "attention is a TransformerLM")
    refused(TypeError, lambda: prune(attention, 1), "prune: heads is a int; expected several")
