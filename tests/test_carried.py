"""Truncated backprop through time: the state goes on from batch to batch, the gradient does not."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

import minitx as mx
from minitx.carried import Carried
from minitx.data import streams
from minitx.models import RecurrentLM, TransformerLM
from minitx.optim import SGD
from minitx.runs import Keeper
from minitx.training import evaluate, train

from .common import every_device, refused, same

V, T = 7, 12
IDS = np.random.default_rng(0).integers(0, V, 200)
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def model_of(cell, **options):
    return RecurrentLM(V, 3, 4, L=2, cell=cell, dtype="float64", rng=np.random.default_rng(1), **options)


def pieces(x, y, window):
    return [(x[:, t:t + window], y[:, t:t + window]) for t in range(0, x.shape[1], window)]


def gradients(model, batches):
    """Of the sum of the losses at all symbols."""
    model.zero_grad()
    for x, y in batches:
        model.loss(x, y).backward(float(y.size))
    return {name.removeprefix("model."): p.grad for name, p in model.named_parameters()}


@every_cell
@every_device
def test_a_text_read_in_pieces_costs_what_it_costs_in_one(cell, device):
    model = model_of(cell).to(device)
    x, y = (mx.tensor(a, device=device).array for a in next(streams(IDS, 3, T)))
    whole, carried = model.loss(x, y).item(), Carried(model)
    losses = [carried.loss(*piece).item() for piece in pieces(x, y, 5)]
    assert np.dot(losses, [5, 5, 2]) / T == pytest.approx(whole, rel=1e-13)
    carried.forget()
    assert carried.loss(*pieces(x, y, 5)[0]).item() == losses[0]


@every_cell
def test_a_window_as_long_as_the_text_gives_the_full_gradient(cell):
    model, batch = model_of(cell), next(streams(IDS, 3, T))
    for window in (T, 2 * T):
        full, carried = gradients(model, [batch]), gradients(Carried(model), pieces(*batch, window))
        for name in full:
            np.testing.assert_allclose(carried[name], full[name], rtol=1e-12, atol=1e-14)


@every_cell
def test_a_shorter_window_cuts_the_gradient_at_its_border_and_only_there(cell):
    """By hand: each piece starts from the state, as plain numbers, in which the one before ended."""
    model, batch = model_of(cell), next(streams(IDS, 3, T))
    model.zero_grad()
    state = None
    for x, y in pieces(*batch, 4):
        logits, state = model.step(x, state)
        mx.ops.cross_entropy(logits, y, reduction="sum").backward()
        state = state.detach() if cell != "lstm" else tuple(s.detach() for s in state)
    by_hand = {name: p.grad for name, p in model.named_parameters()}
    carried, full = gradients(Carried(model), pieces(*batch, 4)), gradients(model, [batch])
    for name in by_hand:
        np.testing.assert_allclose(carried[name], by_hand[name], rtol=1e-12, atol=1e-14)
    assert abs(carried["recurrence.layers.0.U"] - full["recurrence.layers.0.U"]).max() > 1e-3


def test_memory_does_not_grow_with_the_number_of_windows():
    carried = Carried(model_of("lstm"))
    optimizer, batches = SGD(carried.parameters(), 0.01), streams(IDS, 3, 60)

    def peak(windows):
        tracemalloc.start()
        for _ in range(windows):
            carried.zero_grad()
            carried.loss(*next(batches)).backward()
            optimizer.step()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(5)
    assert peak(40) < 1.5 * peak(4), "one window at a time"


def test_streams_read_on_and_everything_comes_once():
    batches = list(streams(np.arange(24), 3, 4, steps=4))
    for (x, y), (following, _) in pairwise(batches):
        assert (y == (x + 1) % 24).all() and (following[:, 0] == y[:, -1]).all()
    assert sorted(np.concatenate([x for x, _ in batches[:2]]).ravel()) == list(range(24))
    assert batches[0][0][:, 0].tolist() == [0, 8, 16] and batches[2][0][2].tolist() == [0, 1, 2, 3]
    refused(ValueError, lambda: streams(np.arange(12), 3, 4), "streams:", "13", "longer text")


def test_training_and_evaluation_have_places_of_their_own():
    model = model_of("gru")
    carried = Carried(model)
    train(carried, streams(IDS, 3, T), SGD(carried.parameters(), 0.1), steps=2)
    before = carried.state[0].copy()
    evaluate(Carried(model), streams(IDS, 2, T, steps=3))
    assert (carried.state[0] == before).all() and before.any()


@pytest.mark.parametrize("wrapped", [False, True])
def test_evaluation_leaves_every_module_in_its_mode(wrapped):
    model = model_of("gru", dropout=0.5)
    model.eval()
    model.recurrence.train()
    outer = Carried(model) if wrapped else model
    before = {path: module.training for path, module in outer.named_modules()}
    assert len(set(before.values())) == 2
    seen = [evaluate(Carried(model) if wrapped else model, streams(IDS, 2, T, steps=3)) for _ in range(2)]
    assert seen[0] == seen[1], "no dropout meanwhile"
    assert {path: module.training for path, module in outer.named_modules()} == before
    refused(IndexError, lambda: evaluate(outer, [(IDS[None], IDS[None] + V)]), "cross_entropy: targets must be")
    assert {path: module.training for path, module in outer.named_modules()} == before


def test_a_run_that_carries_goes_on_bit_for_bit(tmp_path):
    def run(place, steps, resume=False):
        carried = Carried(model_of("lstm"))
        optimizer = SGD(carried.parameters(), 0.1)
        keeper = Keeper(tmp_path / place, carried, optimizer, config={})
        history = keeper.start(resume)
        batches = streams(IDS, 3, T)
        for _ in history.loss:
            next(batches)
        with keeper:
            return train(carried, batches, optimizer, steps=steps, history=history, after_step=keeper).loss

    whole = run("whole", 6)
    run("broken", 3)
    assert run("broken", 6, resume=True) == whole


def test_a_state_that_is_not_finite_is_not_carried_on():
    model = model_of("rnn", activation="relu")
    carried, (x, y) = Carried(model), next(streams(IDS, 3, T))
    first = carried.loss(x, y).item()
    assert all(s.any() for s in carried.state)
    U = model.recurrence.layers[0].U
    before = U.array.copy()
    U.assign_(np.full_like(U.array, 1e200))
    with mx.backend.expecting_overflow():
        carried.loss(x, y)
    assert not any(s.any() for s in carried.state), "the first state, which is zero"
    U.assign_(before)
    assert carried.loss(x, y).item() == first


def test_what_cannot_be_carried_is_refused():
    refused(TypeError, lambda: Carried(TransformerLM(V, 4, 2, 1, T)), "Carried:", "RecurrentLM")
    carried = Carried(model_of("lstm"))
    carried.loss(*next(streams(IDS, 3, T)))
    refused(ValueError, lambda: carried.loss(*next(streams(IDS, 2, T))), "Carried: ids has 2 rows", "carried has 3", "forget()")
    carried.forget()
    carried.loss(*next(streams(IDS, 2, T)))
    refused(ValueError, lambda: carried(IDS), "Carried: ids came as an array of shape (200,)", "(B, T)")


@every_device
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_state_follows_the_model_to_another_device_and_dtype(device, dtype):
    carried, stays = (Carried(model_of("gru")) for _ in range(2))
    pieces = [x for x, _ in streams(IDS, 3, T, steps=2)]
    for model in (carried, stays):
        model(pieces[0])
    carried.to(device, dtype=dtype)
    logits = carried(mx.tensor(pieces[1], device=device))
    assert (logits.device, logits.dtype) == (device, dtype)
    np.testing.assert_allclose(logits.numpy(), stays(pieces[1]).numpy(), rtol=1e-5 if dtype == "float32" else 1e-14, atol=1e-6)


@every_cell
def test_a_state_is_restored_whole_or_refused(cell):
    carried, (x, _) = Carried(model_of(cell)), next(streams(IDS, 3, T))
    carried(x)
    before, state = carried.extra(), carried.state
    for wrong in ({"foo": np.zeros(3)}, before | {"state.2": np.zeros((2, 3, 4))}, {n: a[:1] for n, a in before.items()},
                  {n: a[0] for n, a in before.items()}, {n: a[..., :2] for n, a in before.items()}):
        refused(ValueError, lambda wrong=wrong: carried.restore(wrong), "Carried: the checkpoint has", "expected state.0",
                "of shape (2, B, 4)")
    assert carried.state is state
    carried.restore({})
    assert carried.state is None and carried.extra() == {}
    carried.restore(before)
    assert same(carried.extra(), before)
