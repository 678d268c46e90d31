"""What the tests of the step on threads have in common: models of every kind, one that tells what it is asked, and the step."""

import threading

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.backend import to_device, to_host
from minitx.data import pair_batch
from minitx.data.padding import PADDING
from minitx.models import EncoderDecoder, MaskedLM, Model, RecurrentLM, TransformerLM
from minitx.optim import SGD
from minitx.seq2seq import Seq2Seq
from minitx.shards import Shards
from minitx.training import train

from .common import leaf

V, T = 7, 6
LANGUAGE = {
    "rnn": lambda **o: RecurrentLM(V, 4, 5, 2, cell="rnn", **o), "gru": lambda **o: RecurrentLM(V, 4, 5, cell="gru", **o),
    "lstm": lambda **o: RecurrentLM(V, 4, 5, 2, **o), "transformer": lambda **o: TransformerLM(V, 8, 2, 1, T, **o),
    "tied": lambda **o: TransformerLM(V, 8, 2, 1, T, tied=True, positions="rotary", **o),
}
PAIRS = {
    "encoder-decoder": lambda dropout=0.0, **o: EncoderDecoder(V, 8, 2, 1, T, dropout=dropout, **o),
    "additive": lambda **o: Seq2Seq(V, V, 4, 6, attention="additive", **o),
    "multiplicative": lambda **o: Seq2Seq(V, V, 4, 6, 2, attention="multiplicative", cell="lstm", tied=True, **o),
    "no attention": lambda **o: Seq2Seq(V, V, 4, 6, attention="none", cell="rnn", smoothing=0.1, **o),
}
MODELS = {**LANGUAGE, "masked": lambda **o: MaskedLM(V, 8, 2, 1, T, **o), **PAIRS}
PADDED = {"evenly": [0] * 5, "unevenly": [0, 5, 1, 3, 4], "a shard of padding": [0, 2, 6, 6, 6], "nothing else": [6] * 5}


def made(kind, seed=0, device="cpu", **options):
    mx.seed(seed)
    return MODELS[kind](**{"dtype": "float64", **options}).to(device)


def batch_for(kind, padded=(0, 5, 1, 3, 4), seed=0):
    """5 rows for this kind of model, of which so many targets each are padding."""
    rng = np.random.default_rng(seed)
    if kind in PAIRS:
        *parts, targets = pair_batch(*[[rng.integers(3, V, n) for n in rng.permutation(T - 1) + 1] for _ in range(2)], start=1,
                                     stop=2)
    else:
        ids, targets = rng.integers(0, V, (2, 5, T))
        parts = [ids, np.array([6, 3, 1, 5, 2])] if kind == "masked" else [ids]
    targets[np.arange(targets.shape[1]) >= targets.shape[1] - np.array(padded)[:, None]] = PADDING
    return *parts, targets


def back(model, group, threads):
    """The loss, and the gradients by name."""
    for p in model.parameters():
        p.grad = None
    with Shards(model, threads) as sharded:
        return float(sharded.backward(group)), grads(model)


def grads(model):
    return {name: to_host(p.grad).copy() for name, p in model.named_parameters() if p.grad is not None}


def in_one_piece(model, batch):
    for p in model.parameters():
        p.grad = None
    loss = model.loss(*[to_device(part, model.parameters()[0].device) for part in batch])
    loss.backward()
    return loss.item(), grads(model)


def agree(found, expected, tolerance=1e-12):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=tolerance) and gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=0, atol=tolerance, err_msg=name)


class Told(Model):
    """A model of one weight, whose losses are the numbers of the batch; it notes what it is asked, and on which thread."""

    divisible = True

    def __init__(self, see=lambda model, x: None, rng=None):
        self.w, self.dropout, self.see, self.seen = leaf([1.0]), nn.Dropout(0.5, rng=rng), see, []

    def loss(self, *batch):
        x, targets = batch[-2:]
        self.seen.append((threading.get_ident(), x.tolist(), self.see(self, x)))
        counts = targets != PADDING
        return (self.w * np.where(counts, x, 0.0)).sum() * (1 / max(counts.sum(), 1))

    def rows(self):
        """What was asked, row by row, in whatever order the threads came."""
        return sorted(rows for _, rows, _ in self.seen)


def rows(*losses):
    return np.array(losses, float)[:, None], np.ones((len(losses), 1), int)


def learn(model, batches, steps=1, **options):
    return train(model, batches, SGD(model.parameters(), 1.0), steps=steps, clip=None, title=None, **options)
