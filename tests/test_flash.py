"""Attention in tiles: its memory grows with the length alone, and a module takes it by a rule of lengths, unnoticed."""

import tracemalloc

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.nn import transformer
from minitx.saved import saved

from .common import leaf, refused, same

rng = np.random.default_rng(0)


# Memory


def measured(op, T, **options):
    """Bytes kept from forward to backward, and the most that was in use on the way there and back, beside the inputs."""
    q, k, v, dy = rng.standard_normal((4, 1, 2, T, 4), "float32")
    tracemalloc.start()
    _, backward = op.vjp(q, k, v, causal=True, **options)
    kept = sum(each.bytes for each in saved(backward))
    backward(dy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return np.array([kept, peak])


def test_twice_the_length_takes_twice_the_memory():
    short, double = (measured(ops.flash_attention, T, tile=16) for T in (512, 1024))
    assert (double < 2.1 * short).all()
    assert (measured(ops.attention, 1024) > 3.5 * measured(ops.attention, 512)).all(), "and there four times"


def test_one_number_is_kept_for_each_query_beside_inputs_and_output():
    q, k, v = np.zeros((1, 4, 50, 3)), np.zeros((1, 2, 60, 3)), np.zeros((1, 2, 60, 5))
    kept = saved(ops.flash_attention.vjp(q, k, v, tile=7)[1])
    assert sum(each.bytes for each in kept) == 8 * (q.size + k.size + v.size + 4 * 50 * 5 + 4 * 50)


# The rule of the module


class Calls(mx.Observer):
    """Which attention was called."""

    def __init__(self):
        self.names = []

    def output(self, op, arrays, outputs):
        self.names += [op.name] * op.name.endswith("attention")


def outcome(attention, x, **options):
    """Values and gradients, and the op that made them."""
    with mx.observe(Calls()) as seen:
        y = attention(x, **options)
    found = {str(i): g for i, g in enumerate(mx.gradients((y * y).sum()).values())}
    return {"y": y.array, **found}, seen.names


@pytest.mark.parametrize("options", [{}, {"M": 2}, {"rotary": {}}], ids=str)
@pytest.mark.parametrize("given", [{}, {"mask": rng.random((2, 1, 1, 9)) < 0.8}, {"bias": rng.standard_normal((4, 9, 9))}],
                         ids=lambda given: " ".join(given) or "plain")
def test_both_sides_of_the_rule_agree(options, given, monkeypatch):
    attention, x = nn.MultiHeadAttention(8, 4, causal=True, dtype="float64", **options), leaf(rng.standard_normal((2, 9, 8)))
    sides = []
    for least, name in (82, "attention"), (81, "flash_attention"):
        monkeypatch.setattr(transformer, "FLASH", least)
        found, names = outcome(attention, x, **given)
        assert names == [name]
        sides.append(found)
    for name, value in sides[0].items():
        np.testing.assert_allclose(sides[1][name], value, rtol=1e-12, atol=1e-12)


def test_dropout_and_a_view_of_all_keys_take_the_square(monkeypatch):
    monkeypatch.setattr(transformer, "FLASH", 1)
    x = leaf(rng.standard_normal((1, 5, 4)))
    dropping = nn.MultiHeadAttention(4, 2, causal=True, dropout=0.5, dtype="float64")
    assert outcome(dropping, x)[1] == ["attention"] and outcome(dropping.eval(), x)[1] == ["flash_attention"]
    assert outcome(nn.MultiHeadAttention(4, 2, dtype="float64"), x)[1] == ["attention"]


def test_a_recorder_sees_the_same_weights_and_changes_no_bit(monkeypatch):
    attention, x = nn.MultiHeadAttention(8, 2, causal=True, dtype="float64"), leaf(rng.standard_normal((2, 6, 8)))
    with mx.record(attention) as log:
        square, _ = outcome(attention, x)
    probs = log[""]["probs"]
    monkeypatch.setattr(transformer, "FLASH", 36)
    alone, _ = outcome(attention, x)
    with mx.record(attention) as log:
        recorded, names = outcome(attention, x)
    assert names == ["flash_attention"] and same(alone, recorded) and not same(alone, square)
    np.testing.assert_allclose(log[""]["probs"], probs, atol=1e-15)


@pytest.mark.parametrize("tile", [0, -1, 1.5, True, None])
def test_a_tile_is_a_whole_number(tile):
    q = leaf(np.ones((1, 1, 2, 2)))
    refused(ValueError, lambda: ops.flash_attention(q, q, q, tile=tile), "flash_attention: tile is", "at least 1")
