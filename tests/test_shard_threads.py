"""The threads of a step: how many, who sees a batch whole, what is set in them, and that all is left as it was found.

Read next: `test_parallel.py`, jobs side by side.
"""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx import shards
from minitx.carried import Carried
from minitx.models import MaskedLM
from minitx.observer import Observer
from minitx.shards import Shards
from minitx.tensor import tracking
from minitx.training import History

from .common import blas_threads, refused, same
from .sharding import T, Told, V, batch_for, learn, made, rows

# How many


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(shards, "cores", lambda: 4)
    monkeypatch.setattr(shards, "SMALL", 100)


def test_as_many_threads_as_cores_up_to_eight_where_it_pays(many_cores, monkeypatch):
    model = made("transformer")
    assert Shards(model).threads == Shards(MaskedLM(V, 8, 2, 1, T)).threads == 4 and Shards(model, 2).threads == 2
    monkeypatch.setattr(shards, "cores", lambda: 64)
    assert Shards(model).threads == 8 and Shards(model, 9).threads == 9
    assert learn(model, [batch_for("transformer")]).threads == 8
    monkeypatch.setattr(shards, "SMALL", model.count_parameters())
    assert Shards(model).threads == 8
    monkeypatch.setattr(shards, "SMALL", model.count_parameters() + 1)
    assert Shards(model).threads == learn(model, [batch_for("transformer")]).threads == 1
    assert learn(model, [batch_for("transformer")], history=History(threads=3)).threads == 3


def test_one_thread_where_threads_do_not_help_or_would_change_the_numbers(many_cores):
    own = np.random.Generator(np.random.SFC64(0))
    jumping = made("lstm", dropout=0.1, rng=np.random.default_rng(0))
    assert Shards(jumping).threads == 4
    assert Shards(made("lstm", dropout=0.1, rng=own)).threads == 1
    assert Shards(Carried(jumping)).threads == 1
    assert Shards(made("lstm").to("strict")).threads == 1


def test_numbers_that_a_device_draws_are_no_hindrance_to_one_thread():
    class OnDevice:
        bit_generator = None

    model = made("lstm").to("strict")
    model.dropout.rng = OnDevice()
    assert Shards(model).threads == Shards(model, 1).threads == 1
    refused(ValueError, lambda: Shards(model, 2), "dropout.rng come from a device", "with a NumPy generator")


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_no_number_of_threads(threads):
    model = made("rnn")
    refused(ValueError, lambda: learn(model, [], threads=threads), f"train: threads is {threads!r}; expected a whole number of")
    refused(ValueError, lambda: Shards(model, threads), f"Shards: threads is {threads!r}; expected a whole number")


def test_what_cannot_be_shared_out_is_refused_in_a_sentence():
    model, sfc = made("rnn"), np.random.Generator(np.random.SFC64(0))
    refused(ValueError, lambda: learn(Carried(model), [], threads=2), "Shards: a Carried reads a batch as a whole",
            "its rows cannot go to 2 threads; give threads=1, or None")
    assert Shards(Carried(model), 1).threads == 1
    refused(ValueError, lambda: Shards(made("rnn", dropout=0.1, rng=sfc), 2), "Shards: the model draws from a SFC64",
            "on 2 threads; build it with np.random.default_rng(seed), or give threads=1")


# Observers


class Shapes(Observer):
    def __init__(self):
        self.shapes = []

    def output(self, op, arrays, outputs):
        self.shapes += [arrays[0].shape] if op.name == "cross_entropy" else []


def test_observers_see_whole_batches():
    model, batches = made("transformer"), [batch_for("transformer")] * 3
    with mx.profile() as p, mx.observe(Shapes()) as seen:
        learn(model, batches, 3, threads=2)
    assert p.rows["cross_entropy"].calls == 3 and seen.shapes == [(5, T, V)] * 3


def test_recorded_steps_are_computed_in_one_piece_and_the_run_is_the_same_up_to_rounding():
    def run(threads, every=None):
        model = made("gru")
        record = mx.record(model, norms=True, every=every) if every else None
        history = learn(model, [batch_for("gru", seed=n) for n in range(5)], 5, threads=threads, record=record)
        return model.state_dict(), history
    state, expected = run(1)
    recorded, history = run(2, every=2)
    assert history.loss == pytest.approx(expected.loss, rel=1e-12) and list(history.recorded) == [0, 2, 4]
    for name, weight in state.items():
        np.testing.assert_allclose(recorded[name], weight, rtol=0, atol=1e-12)
    assert history.recorded[0] == run(1, every=2)[1].recorded[0]

    model = Told()
    learn(model, [rows(1, 2)] * 3, 3, threads=2, record=mx.record(model, norms=True, every=2))
    assert [len(rows) for _, rows, _ in model.seen] == [2, 1, 1, 2], "the others are shared out as ever"


# What is set reaches every thread, and everything is left as it was


def test_what_is_set_outside_is_set_in_every_thread():
    model = Told(lambda model, x: (np.geterr()["divide"], tracking.get()))
    with Shards(model, 3) as sharded:
        with np.errstate(divide="print"):
            sharded.backward([rows(1, 2, 3)])
        assert [seen for _, _, seen in model.seen] == [("print", True)] * 3
        model.seen.clear()
        with mx.no_grad():
            refused(RuntimeError, lambda: sharded.backward([rows(1, 2, 3)]), "backward: nothing here requires a gradient")
        assert [seen[1] for _, _, seen in model.seen] == [False] * 3


def test_each_thread_has_one_blas_thread_and_the_process_has_its_own_again_afterwards():
    model = Told(lambda model, x: blas_threads())
    with threadpool_limits(2, "blas"), Shards(model, 2) as sharded:
        sharded.backward([rows(1, 2)])
        assert [seen for _, _, seen in model.seen] == [1, 1] and blas_threads() == 2
        model.seen.clear()
        sharded.backward([rows(1)])
        assert model.seen[0][2] == 2, "alone, a thread has all of BLAS"


def test_of_two_steps_at_the_same_time_the_last_puts_the_blas_threads_back():
    inside, leave = ([threading.Barrier(3, timeout=5) for _ in range(2)] for _ in range(2))

    def step(i):
        with Shards(Told(lambda model, x: (inside[i].wait(), leave[i].wait())), 2) as sharded:
            sharded.backward([rows(1, 2)])

    with threadpool_limits(2, "blas"):
        steps = [threading.Thread(target=step, args=(i,)) for i in range(2)]
        for i, thread in enumerate(steps):
            thread.start()
            inside[i].wait()
        for i, thread in enumerate(steps):                                  # the first to come is the first to leave
            leave[i].wait()
            thread.join()
        assert blas_threads() == 2


class Failing(Told):
    """Fails at a negative number, with this error, after all shards have begun."""

    def __init__(self, error, threads):
        super().__init__()
        self.error, self.begun, self.done = error, threading.Barrier(threads), []

    def loss(self, x, targets):
        self.begun.wait(10)
        if x.min() < 0:
            raise self.error
        threading.Event().wait(0.02)                    # the others are slower than the one that fails
        self.done.append(x.tolist())
        return super().loss(x, targets)


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), KeyboardInterrupt(), SystemExit(3)],
                         ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("losses", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_an_error_in_one_thread_comes_out_when_all_have_ended(losses, error):
    model, running, before = Failing(error, 3), threading.active_count(), blas_threads()
    with Shards(model, 3) as sharded:
        with pytest.raises(type(error)) as raised:
            sharded.backward([rows(*losses)])
        assert raised.value is error and len(model.done) == 2 and blas_threads() == before and model.w.grad is None
    assert threading.active_count() == running
    with pytest.raises(type(error)):
        learn(model, [rows(*losses)], threads=3)
    assert model.w.item() == 1 and threading.active_count() == running


@pytest.mark.parametrize("kind, part", [("lstm", 0), ("transformer", 0), ("transformer", 1), ("multiplicative", 2)])
def test_a_bad_id_in_the_last_row_is_told_as_ever_and_nothing_moves(kind, part):
    batch = batch_for(kind, [0] * 5)
    batch[part][-1, 0] = 99

    def told(threads):
        model = made(kind)
        before, running = {n: a.copy() for n, a in model.state_dict().items()}, threading.active_count()
        with pytest.raises(IndexError) as raised:
            learn(model, [batch], threads=threads)
        assert same(model.state_dict(), before) and threading.active_count() == running
        return str(raised.value)
    sentence, [what, called] = told(1), told(2).split("; called with ")
    assert sentence.startswith(what) and "99" in what and "\n" not in called


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_in_one_shard_is_told_as_ever(value, place):
    losses = [1.0] * 4
    losses[place] = value

    def told(threads):
        model = Told()
        with pytest.raises(FloatingPointError) as raised:
            learn(model, [rows(*losses)], threads=threads)
        assert model.w.item() == 1
        return str(raised.value)
    assert told(2) == told(1) and f"the loss is {value}" in told(2)
    model = Told()
    history = learn(model, [rows(*losses), rows(1, 2)], 2, threads=2, on_nonfinite="record")
    assert [step for step, _ in history.events] == [0] and model.w.item() == 1 - 1.5
