"""Graphs of any length, and memory that goes by itself: by reference count alone, without the garbage collector."""

import copy
import gc
import pickle
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import minitx as mx
from minitx import backend, ops
from minitx.models import RecurrentLM, TransformerLM
from minitx.optim import Adam

from .common import leaf

rng = np.random.default_rng(0)


# Long graphs


def test_c50_a_chain_of_50_000_ops():
    limit = sys.getrecursionlimit()
    x = y = leaf(1)
    for _ in range(50_000):
        y = y + 1
    y.backward()
    assert (y.item(), x.grad, sys.getrecursionlimit()) == (50_001, 1, limit)


@pytest.mark.parametrize("op, states, gates", [(ops.rnn, 1, 1), (ops.gru, 1, 3), (ops.lstm, 2, 4),
                                               (ops.unroll(ops.rnn_cell), 1, 1)],
                         ids=lambda value: getattr(value, "name", None))
def test_c50_a_sequence_of_20_000_steps(op, states, gates):
    x = leaf(rng.standard_normal((1, 20_000, 1)))
    weights = [leaf(np.ones((1, gates)) / 2), leaf(np.ones((1, gates)) / 2), *[leaf(np.zeros(gates))] * (1 + (gates == 3))]
    op(x, *[mx.tensor(np.zeros((1, 1)))] * states, *weights)[0].sum().backward()
    assert np.isfinite(x.grad).all() and (x.grad != 0).all()


def test_20_000_cells_on_the_tape_equal_the_sequence_op():
    x, h, U = leaf(rng.standard_normal((1, 20_000, 1))), mx.tensor(np.zeros((1, 1))), leaf([[0.9]])
    W, b = mx.tensor(np.ones((1, 1))), mx.tensor(np.zeros(1))
    whole = mx.gradients(ops.rnn(x, h, W, U, b)[1])
    for x_t in ops.unstack(x, axis=1):
        h = ops.rnn_cell(x_t, h, W, U, b)
    step_by_step = mx.gradients(h)
    for t in (x, U):
        np.testing.assert_allclose(step_by_step[t], whole[t], rtol=1e-10)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_c50_a_graph_of_200_000_nodes_is_freed_on_a_small_stack(no_collector):
    def build_and_drop():
        y = ops.tanh(leaf([1]))
        oldest.append(weakref.ref(y.array))                                  # its backward keeps it
        for _ in range(200_000):
            y = -y

    oldest = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=build_and_drop)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert oldest[0]() is None


# Memory


def language_model(kind):
    mx.seed(0)
    return RecurrentLM(7, 4, 5, cell=kind, L=2) if kind != "transformer" else TransformerLM(7, D=4, N=2, L=2, T=8)


IDS = rng.integers(0, 7, (2, 2, 8))
every_model = pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "transformer"])


class Outputs(mx.Observer):
    """An observer that keeps weak references to the memory of all that ops make of the parameters."""

    def __init__(self, parameters):
        self.arrays, self.given = [], {id(p.array) for p in parameters}

    def output(self, op, arrays, outputs):
        self.arrays += [weakref.ref(owner) for owner in map(backend.owner, outputs) if id(owner) not in self.given]

    def alive(self):
        return sum(array() is not None for array in self.arrays)


@every_model
def test_a_graph_dies_when_it_is_dropped_or_used_up(kind, no_collector):
    model = language_model(kind)
    with mx.observe(Outputs(model.parameters())) as seen:
        loss = model.loss(*IDS)
        assert seen.alive() >= 5
        del loss
        assert seen.alive() == 0
        loss = model.loss(*IDS)
        loss.backward()
        assert seen.alive() == 1, "the loss alone"


def test_two_directions_with_lengths_die_when_they_are_dropped(no_collector):
    module = mx.nn.LSTM(3, 4, 2, bidirectional=True, dropout=0.1, learned_state=True)
    with mx.observe(Outputs(module.parameters())) as seen:
        hs, state = module(mx.tensor(rng.standard_normal((2, 5, 3)), dtype="float32"), lengths=[2, 5])
        loss = hs.sum() + state[0].sum()
        assert seen.alive() >= 10
        del hs, state, loss
        assert seen.alive() == 0


def live():
    """How many objects the collector would look at, and the bytes of all arrays."""
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    snapshot = tracemalloc.take_snapshot().filter_traces([arrays])
    return len(gc.get_objects()), sum(trace.size for trace in snapshot.traces)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_200_training_steps_keep_memory_flat(kind, no_collector):
    model = language_model(kind)
    optimizer = Adam(model.parameters())

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model.loss(*IDS).backward()
            optimizer.step()
        return live()

    tracemalloc.start()
    try:
        objects, arrays = train(5)
        more_objects, more_arrays = train(195)
    finally:
        tracemalloc.stop()
    assert more_arrays == arrays and more_objects < objects + 100, "not one more for every step"


@every_model
def test_c50_a_module_just_used_can_be_copied_and_pickled(kind):
    model = language_model(kind)
    loss = model.loss(*IDS)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    loss.backward()
    for other in copies:
        assert other.loss(*IDS).item() == loss.item()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            b.assign_(b.array + 1)
            assert a.grad is not None and b.grad is None and not np.shares_memory(a.array, b.array)
