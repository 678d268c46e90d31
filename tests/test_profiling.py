"""The profile: it counts every call, its FLOPs are those that were done, and it changes nothing."""

import numpy as np
import pytest

import minitx as mx
from minitx.models import RecurrentLM, TransformerLM
from minitx.profiling import flops

from . import strict

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
        def count(a, b):
            out = product(a, b)
            done.append(2 * out.size * (a.shape[-1]))
            return out
        return count

    monkeypatch.setattr(strict.ndarray, "__matmul__", counted(strict.ndarray.__matmul__))
    model, ids = MODELS[kind]().to("strict"), strict.asarray(IDS)
    with mx.profile() as p:
        gradients_of(model, ids)
    assert sum(row.flops for row in p.rows.values()) == sum(done) > 0


@pytest.mark.parametrize("x, y", [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((3,), (3, 4)), ((2, 3), (3,)),
                                  ((3,), (3,)), ((5, 1, 2, 3), (7, 3, 4))])
def test_the_flops_of_matmul_with_vectors_and_broadcast_axes(x, y):
    a, b = np.ones(x), np.ones(y)
    assert flops("matmul", {"x": a, "y": b}) == 2 * np.matmul(a, b).size * x[-1]


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
    assert seconds == sorted(seconds, reverse=True)
