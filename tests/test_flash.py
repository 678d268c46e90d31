"""Attention in tiles: its memory grows with the length alone, and a module takes it by a rule of lengths, unnoticed."""

import math
import tracemalloc

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx import backend, nn, ops
from minitx.nn import transformer
from minitx.ops import flash
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


# Heads side by side


def results(*arrays, **options):
    """y and all gradients, by name."""
    y, backward = ops.flash_attention.vjp(*arrays, causal=True, tile=16, **options)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(str(y.dtype))
    gradients = backward(backend.to_device(dy, backend.device_of(y).name))
    found = dict(zip(("y", "dq", "dk", "dv", "dmask", "dbias"), (y, *gradients)))
    return {name: x for name, x in found.items() if x is not None}


@pytest.mark.parametrize("N, M", [(6, 6), (6, 2), (1, 1)])
@pytest.mark.parametrize("given", ["plain", "bias"])
def test_the_number_of_threads_changes_no_bit(N, M, given):
    q, k, v = (rng.standard_normal((5, heads, 50, 8), "float32") for heads in (N, M, M))
    bias = [None, rng.standard_normal((N, 50, 50), "float32")] if given == "bias" else []
    found = []
    for threads in 1, 2, 3:
        with threadpool_limits(threads, "blas"):
            found.append(results(q, k, v, *bias))
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_a_head_does_not_know_who_is_computed_beside_it(monkeypatch):
    arrays = [rng.standard_normal((3, heads, 50, 8), "float32") for heads in (6, 2, 2)]
    together = results(*arrays)
    for heads in 1, 3, 12, 100:
        monkeypatch.setattr(flash, "HEADS", heads)
        assert same(results(*arrays), together)


def test_arrays_of_another_device_stay_together_and_on_the_thread_of_the_caller(monkeypatch):
    seen = []
    monkeypatch.setattr(flash, "in_parallel", lambda jobs, **options: [seen.append(len(jobs)), *(job() for job in jobs)][1:])
    for name in "cpu", "strict":
        results(*(backend.to_device(rng.standard_normal((3, 8, 20, 2)), name) for _ in range(3)))
    assert seen == [6, 6, 1, 1]


# Scores that need no maximum


@pytest.mark.parametrize("size", [1.0, 20.0])
def test_without_maxima_the_numbers_are_the_same_and_large_scores_have_them(size, monkeypatch):
    q, k, v = rng.standard_normal((3, 1, 2, 40, 16), "float32")
    q *= size
    bounded = flash.longest(q) * flash.longest(k) / 4 < flash.BOUND
    assert bounded == (size == 1.0)
    fast = results(q, k, v)
    monkeypatch.setattr(flash, "BOUND", 0)
    for name, x in results(q, k, v).items():
        np.testing.assert_allclose(fast[name], x, rtol=1e-4, atol=1e-5 * abs(x).max())


@pytest.mark.parametrize("sign", [1, -1])
def test_at_the_bound_float32_neither_overflows_nor_vanishes(sign):
    T, length = 3000, math.sqrt(0.999 * flash.BOUND)
    q, k = (np.full((1, 1, n, 1), x, "float32") for n, x in ((1, length), (T, sign * length)))
    y, backward = ops.flash_attention.vjp(q, k, k, scale=1.0)
    np.testing.assert_allclose(y, sign * length, rtol=1e-5)
    assert np.isfinite(backward(1e5 * np.ones_like(y))[1]).all()


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


@pytest.mark.parametrize("op", [ops.textbook_attention, ops.attention, ops.flash_attention], ids=lambda op: op.name)
def test_what_stands_later_reaches_no_earlier_query_even_if_it_is_no_number(op):
    q, k, v = rng.standard_normal((3, 1, 1, 5, 2))
    bias, clean = np.zeros((5, 5)), op.vjp(q, k, v, causal=True)[0][0, 0, :4]
    k[0, 0, 4], bias[0, 1] = np.nan, np.nan
    np.testing.assert_allclose(op.vjp(q, k, v, None, bias, causal=True)[0][0, 0, :4], clean)
