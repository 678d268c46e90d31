"""The profile: it counts every call, its FLOPs are those that were done, and it changes nothing."""

from itertools import pairwise

import numpy as np
import pytest

import minitx as mx
from minitx import graph
from minitx.models import EncoderDecoder, MaskedLM, RecurrentLM, TransformerLM
from minitx.profiling import by_module, flops

from . import strict
from .common import leaf

IDS = np.random.default_rng(0).integers(0, 11, (3, 8))
MODELS = {
    "rnn": lambda: RecurrentLM(11, 4, 5, 2, cell="rnn"),
    "lstm": lambda: RecurrentLM(11, 4, 5, 2),
    "transformer": lambda: TransformerLM(11, 8, 2, 2, 8),
}
every_model = pytest.mark.parametrize("kind", MODELS)


def gradients_of(model, ids):
    model.zero_grad()
    loss = model.loss(ids, ids)
    loss.backward()
    return [loss.array, *(p.grad for p in model.parameters())]


@every_model
def test_a_profile_changes_no_value_and_no_gradient(kind):
    model = MODELS[kind]()
    plain = gradients_of(model, IDS)
    with mx.profile():
        profiled = gradients_of(model, IDS)
    assert all(np.array_equal(a, b) for a, b in zip(plain, profiled, strict=True))


@every_model
def test_the_flops_are_those_of_the_products_that_were_done(kind, monkeypatch):
    done = []

    def counted(product):
        def count(a, b, out=None):
            out = product(a, b, out=out)
            if a.ndim > 1 and b.ndim > 1:               # a product with a vector of ones is a sum
                done.append(2 * out.size * a.shape[-1])
            return out
        return count

    monkeypatch.setattr(strict.xp, "matmul", counted(strict.xp.matmul))                  # operators end there, too
    model, ids = MODELS[kind]().to("strict"), strict.asarray(IDS)
    with mx.profile() as p:
        gradients_of(model, ids)
    assert sum(row.flops for row in p.rows.values()) == sum(done) > 0


@pytest.mark.parametrize("x, y", [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((3,), (3, 4)), ((2, 3), (3,)),
                                  ((3,), (3,)), ((5, 1, 2, 3), (7, 3, 4))])
def test_the_flops_of_matmul_with_vectors_and_broadcast_axes(x, y):
    a, b = np.ones(x), np.ones(y)
    assert flops("matmul", {"x": a, "y": b}) == 2 * np.matmul(a, b).size * x[-1]


@pytest.mark.parametrize("Tq, Tk", [(5, 5), (3, 6), (6, 3)])
def test_flash_attention_counts_the_pairs_that_may_be_seen_and_their_scores_twice(Tq, Tk):
    B, N, K, Kv = 2, 3, 4, 5
    q, k, v = (leaf(np.ones((B, N, T, width))) for T, width in ((Tq, K), (Tk, K), (Tk, Kv)))
    for causal, pairs in (False, Tq * Tk), (True, np.tri(Tq, Tk, Tk - Tq).sum()):
        with mx.profile() as p:
            mx.ops.flash_attention(q, k, v, causal=causal, tile=2).sum().backward()
        assert p.rows["flash_attention"].flops == 2 * B * N * pairs * (3 * (K + Kv) + K)
    forward, backward = graph.cost(mx.ops.flash_attention, *(t.array for t in (q, k, v)), tile=2)
    assert forward[0] + backward[0] == p.rows["flash_attention"].flops * Tq * Tk // pairs, "whole, it is what was multiplied"


def test_calls_times_and_memory_add_up():
    W, x = mx.tensor(np.ones((4, 5)), requires_grad=True), mx.tensor(np.ones((3, 4)), requires_grad=True)
    with mx.profile() as p:
        for _ in range(2):
            mx.ops.tanh(mx.ops.linear(x, W)).sum().backward()
    linear, tanh = p.rows["linear"], p.rows["tanh"]
    assert linear.calls == tanh.calls == p.rows["sum"].calls == 2
    assert linear.flops == 2 * 3 * (2 * 3 * 4 * 5)
    assert linear.saved == 2 * (x.array.nbytes + W.array.nbytes) and tanh.saved == 2 * 8 * 15
    assert min(linear.forward, linear.backward, tanh.backward) > 0


def test_the_table_has_a_line_for_every_op_and_their_sum():
    model = MODELS["transformer"]()
    with mx.profile() as p:
        gradients_of(model, IDS)
    header, *lines = p.table().split("\n")
    assert header.split()[:2] == ["op", "calls"]
    assert {line.split()[0] for line in lines} == {*p.rows, "all"} and lines[-1].startswith("all")
    seconds = [float(line.split()[2]) + float(line.split()[3]) for line in lines[:-1]]
    assert all(after <= before + 0.015 for before, after in pairwise(seconds)), "most first, but for the rounding of both"


# By module


def shares(model, *inputs):
    found = by_module(model, *inputs)
    assert set(found) == {path for path, _ in model.named_modules()}
    for path, share in found.items():                                        # a module does at least what its parts do
        parts = [path_ for path_ in found if path_.startswith(f"{path}." if path else "") and path_ != path]
        own = [p for p in parts if not any(p.startswith(f"{q}.") for q in parts if q != p)]
        assert share.flops >= sum(found[p].flops for p in own)
    return found


B, T = IDS.shape


@pytest.mark.parametrize("M, feed, use_bias", [(4, "gelu", True), (2, "swiglu", False), (1, "relu", True)])
def test_a_decoder_costs_what_the_formula_says(M, feed, use_bias):
    D, N, F, L, V = 8, 4, 12, 2, 11
    model, K = TransformerLM(V, D, N, L, T, F=F, M=M, feed=feed, use_bias=use_bias), D // N
    found, matrices = shares(model, IDS), 3 if feed == "swiglu" else 2
    heads = D * (N + 2 * M) * K + D * D
    biases = use_bias * ((N + 2 * M) * K + D + (matrices - 1) * F + D)
    attention, block = 2 * B * T * heads + 4 * B * N * T * T * K, heads + matrices * D * F + biases + 4 * D
    assert found["blocks.1.attention"].flops == attention
    assert found["blocks.1.feed"].flops == 2 * B * T * matrices * D * F
    assert found["blocks.1"] == ("TransformerBlock", block, attention + 2 * B * T * matrices * D * F)
    assert found["head"] == ("Linear", D * V + use_bias * V, 2 * B * T * D * V)
    assert found["embedded"] == ("Embedded", V * D + T * D, 0)
    assert found[""].flops == L * found["blocks.1"].flops + found["head"].flops
    assert found[""].parameters == V * D + T * D + L * block + 2 * D + D * V + use_bias * V


@pytest.mark.parametrize("kind, gates", [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_a_recurrence_costs_what_the_formula_says(kind, gates):
    V, D, H = 11, 4, 5
    found = shares(RecurrentLM(V, D, H, 2, cell=kind), IDS)
    biases = 2 * gates * H if kind == "gru" else gates * H
    for layer, wide in enumerate((D, H)):
        share = found[f"recurrence.layers.{layer}"]
        assert share[1:] == (gates * (wide * H + H * H) + biases, 2 * B * T * gates * (wide * H + H * H))
    assert found["recurrence"].flops == sum(found[f"recurrence.layers.{i}"].flops for i in (0, 1))
    assert found[""].flops == found["recurrence"].flops + 2 * B * T * H * V


def test_a_masked_model_and_a_translator_cost_what_the_formula_says():
    D, N, F, L, V, S = 8, 2, 12, 2, 11, 6

    def attend(Tq, Tk):
        return 4 * B * Tq * Tk * D

    bert = shares(MaskedLM(V, D, N, L, T, F=F), IDS, np.full(B, T))
    assert bert[""].flops == L * (B * T * (8 * D * D + 4 * D * F) + attend(T, T)) + 2 * B * T * D * V
    assert bert["head"].parameters == V * D and bert[""].parameters == bert["encoder"].parameters, "the table counts once"
    model = EncoderDecoder(V, D, N, L, F=F)
    found = shares(model, IDS[:, :S], np.full(B, S), IDS)
    reads = B * S * (8 * D * D + 4 * D * F) + attend(S, S)
    writes = B * T * (12 * D * D + 4 * D * F) + B * S * 4 * D * D + attend(T, T) + attend(T, S)
    assert [found[f"encoder.{i}"].flops for i in range(L)] == [reads] * L
    assert [found[f"decoder.{i}"].flops for i in range(L)] == [writes] * L
    assert found[""].flops == L * (reads + writes) + 2 * B * T * D * V
    own = 4 * D * D + 4 * D + 2 * D * F + F + D
    assert found["encoder.0"].parameters == own + 4 * D and found["decoder.0"].parameters == own + 4 * D * D + 4 * D + 6 * D
    assert found[""].parameters == V * D + L * (2 * own + 4 * D * D + 4 * D + 10 * D) + 4 * D


@every_model
def test_the_flops_of_a_model_are_those_that_the_tracer_counts_and_nothing_is_changed(kind):
    model = MODELS[kind]()
    found = by_module(model, IDS)
    assert found[""].flops == graph.cost(model, IDS).forward.work and found[""].parameters == model.count_parameters()
    assert model.training and all(p.grad is None for p in model.parameters())
    lines = str(found).split("\n")
    assert len(lines) == 1 + len(found) and lines[0].split() == ["module", "parameters", "forward", "FLOP"]
    assert lines[1].split() == [type(model).__name__, f"{model.count_parameters():,}", f"{found[''].flops:,}"]
