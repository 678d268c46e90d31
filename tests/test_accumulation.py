"""Several batches in one step are one large batch, however the symbols are spread over them (C44)."""

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.data.padding import PADDING
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import SGD, Adam
from minitx.training import train

from .common import every_device, refused

V, T = 7, 8
MODELS = {
    "rnn": lambda **o: RecurrentLM(V, 4, 5, cell="rnn", **o), "lstm": lambda **o: RecurrentLM(V, 4, 5, **o),
    "transformer": lambda **o: TransformerLM(V, D=8, N=2, L=1, T=T, **o),
}


class Told(LanguageModel):
    """Its losses are the ids, times one weight."""

    def __init__(self):
        self.w = mx.tensor([1.0], dtype="float64", requires_grad=True)

    def loss(self, ids, targets):
        counts = targets != PADDING
        return (self.w * np.where(counts, ids, 0.0)).sum() * (1 / max(counts.sum(), 1))


def told(*rows):
    """Batches (ids, targets) of these losses; None is padding."""
    return [(np.array([[loss or 0.0 for loss in row]]), np.array([[PADDING if loss is None else 1 for loss in row]]))
            for row in rows]


def one_step(batches, accumulate, steps=1, **options):
    model = Told()
    return model, train(model, batches, SGD(model.parameters(), 1.0), steps=steps, accumulate=accumulate, clip=None, **options)


@pytest.mark.parametrize("rows, accumulate", [
    ([[4, None, None], [1, 1, 1]], 2), ([[1, 1, 1], [4]], 2), ([[4, 1, 1, 1]], 1), ([[4], [1, 1], [None], [1, None]], 4),
])
def test_c44_each_symbol_counts_the_same(rows, accumulate):
    model, history = one_step(told(*rows), accumulate)
    assert history.loss == pytest.approx([1.75]) and history.grad_norm == pytest.approx([1.75]) and history.symbols == 4
    assert model.w.item() == pytest.approx(1 - 1.75)


def test_a_step_of_padding_alone_moves_nothing():
    model, history = one_step(told([None, None], [None]), 2)
    assert (history.loss, history.grad_norm, history.symbols, model.w.item()) == ([0.0], [0.0], 0, 1.0)


def test_batches_that_are_left_at_the_end_make_a_step_of_their_own():
    model, history = one_step(told([1], [2], [4], [3, 3, 6]), 3, steps=2)
    assert history.loss[0] == pytest.approx(7 / 3) and history.grad_norm == pytest.approx([7 / 3, 4])
    assert history.symbols_at == [3, 6] and model.w.item() == pytest.approx(1 - 7 / 3 - 4)
    refused(ValueError, lambda: one_step(told([1], [2], [4]), 2, steps=3), "batches ended after 2 of 3 steps; give 2 for every")
    refused(ValueError, lambda: one_step(told([1]), 0), "train: accumulate is 0; expected a whole number of at least 1")


@every_device
@pytest.mark.parametrize("kind", MODELS)
def test_sequences_of_unequal_lengths_split_in_any_way_give_the_same_step(kind, device):
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(0, V, (2, 8, T))
    lengths = np.arange(1, 9)
    targets[np.arange(T) >= lengths[:, None]] = PADDING

    def after_a_step(size):
        """One Adam step on the 8 sequences in batches of `size`, each no longer than it must be."""
        cuts = [slice(i, i + size) for i in range(0, 8, size)]
        batches = [(ids[cut, :lengths[cut].max()], targets[cut, :lengths[cut].max()]) for cut in cuts]
        mx.seed(0)
        model = MODELS[kind](dtype="float64").to(device)
        history = train(model, batches, Adam(model.parameters(), 0.1), steps=1, accumulate=len(batches))
        return history, model.state_dict(), [mx.backend.to_host(p.grad) for p in model.parameters()]

    history, weights, grads = after_a_step(8)
    assert history.symbols == 36
    for size in (4, 2, 1):
        other, theirs, gradients = after_a_step(size)
        assert other.loss == pytest.approx(history.loss, rel=1e-12) and other.symbols == 36
        for a, b in zip(grads, gradients, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        for name, weight in weights.items():
            np.testing.assert_allclose(theirs[name], weight, rtol=0, atol=1e-10)


def test_padding_after_a_sequence_changes_nothing():
    mx.seed(0)
    model = MODELS["lstm"](dtype="float64")
    ids, targets = np.array([[1, 2, 3]]), np.array([[2, 3, 4]])
    padded = np.pad(ids, ((0, 0), (0, 4))), np.pad(targets, ((0, 0), (0, 4)), constant_values=PADDING)
    assert model.loss(*padded).item() == pytest.approx(model.loss(ids, targets).item(), rel=1e-14)
    assert ops.cross_entropy(model(ids), np.full((1, 3), PADDING)).item() == 0
