"""A step on a device that works on its own: the host waits for it once, and an element-wise function is one kernel there.

The stand-in counts the waits, and refuses in a fused function what `cupy.fuse` cannot follow, or follows wrongly.
"""

import dataclasses
import threading
from contextvars import copy_context

import numpy as np
import pytest

import minitx as mx
from minitx import backend, models, ops
from minitx.backend import fused
from minitx.carried import Carried
from minitx.clipping import clip_grad_norm, grad_norm
from minitx.optim import AdamW
from minitx.seq2seq import Seq2Seq
from minitx.training import evaluate, train
from minitx.waits import holds, in_one_wait, within

from . import strict
from .common import every_device, leaf, refused
from .strict import xp

B, T, V = 3, 6, 9
RNG = np.random.default_rng(0)
IDS, LENGTHS = RNG.integers(0, V, (B, T + 1)), np.array([T, 2, 4])
TEXT, PAIRS, HIDDEN = (IDS[:, :-1], IDS[:, 1:]), (IDS, LENGTHS, IDS[:, :-1], IDS[:, 1:]), (IDS, LENGTHS, IDS)

MODELS = {
    "rnn": (lambda: models.RecurrentLM(V, 4, 5, L=2, cell="rnn"), TEXT),
    "gru": (lambda: models.RecurrentLM(V, 4, 5, cell="gru", dropout=0.3), TEXT),
    "lstm": (lambda: models.RecurrentLM(V, 4, 5, L=2), TEXT),
    "carried": (lambda: Carried(models.RecurrentLM(V, 4, 5)), TEXT),
    "transformer": (lambda: models.TransformerLM(V, 8, 2, 2, T), TEXT),
    "rotary": (lambda: models.TransformerLM(V, 8, 2, 1, T, positions="rotary"), TEXT),
    "masked": (lambda: models.MaskedLM(V, 8, 2, 1, T + 1), HIDDEN),
    "translation": (lambda: models.EncoderDecoder(V, 8, 2, 1, T + 1), PAIRS),
    "seq2seq": (lambda: Seq2Seq(V, V, 4, 6), PAIRS),
}


def trained(make, batches, device="strict", **options):
    """The history, and what made the host wait in each step."""
    model = make().to(device)
    waits = []
    with strict.syncs() as record:
        def after(history):
            waits.append(list(record))
            record.clear()
        history = train(model, batches, AdamW(model.parameters(), 1e-3), after_step=after, title=None, **options)
    return history, waits


# One wait


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training_waits_once(name):
    make, batch = MODELS[name]
    _, waits = trained(make, [batch] * 3, steps=3)
    assert waits == [["get"]] * 3


def test_a_step_of_several_batches_or_without_clipping_waits_once_too():
    make, batch = MODELS["lstm"]
    assert trained(make, [batch] * 4, steps=2, accumulate=2)[1] == [["get"]] * 2
    assert trained(make, [batch], steps=1, clip=None)[1] == [["get"]]


def test_to_clip_a_gradient_costs_no_wait():
    make, batch = MODELS["lstm"]
    history, waits = trained(make, [batch] * 2, steps=2, clip=1e-3)
    assert min(history.grad_norm) > 1e-3 and waits == [["get"]] * 2


def test_to_evaluate_waits_once_per_batch():
    make, batch = MODELS["transformer"]
    model = make().to("strict")
    with strict.syncs() as waits:
        evaluate(model, [batch] * 3)
    assert waits == ["get"] * 3


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_that_is_on_the_device_costs_one_wait_more_to_count_its_symbols(name):
    make, batch = MODELS[name]
    there = tuple(backend.to_device(part, "strict") for part in batch)
    mx.seed(0)
    expected, _ = trained(make, [batch] * 4, steps=2, accumulate=2)
    mx.seed(0)
    history, waits = trained(make, [there] * 4, steps=2, accumulate=2)
    assert waits == [["int", "int", "get"]] * 2
    assert (history.loss, history.grad_norm, history.symbols_at) == (expected.loss, expected.grad_norm, expected.symbols_at)
    model = make().to("strict")
    with strict.syncs() as waits:
        evaluate(model, [there] * 2)
    assert waits == ["int", "get"] * 2


@every_device
@pytest.mark.parametrize("place, wrong, told", [
    (0, V, "embedding: ids must be from 0 to 8, got 9; called with ids"),
    (-1, -1, "cross_entropy: targets must be from 0 to 8, got -1; padding must be ignore_index = -100")])
@pytest.mark.parametrize("name", MODELS)
def test_a_bad_id_is_told_in_the_same_words_on_every_device_and_moves_nothing(name, place, wrong, told, device):
    make, batch = MODELS[name]
    batch = [part.copy() for part in batch]
    batch[place][0, 1] = wrong
    model = make().to(device)
    before = model.state_dict()
    message = refused(IndexError, lambda: train(model, [tuple(batch)], AdamW(model.parameters()), steps=1, title=None))
    assert message.startswith(told)
    assert all((array == before[path]).all() for path, array in model.state_dict().items())


@every_device
def test_a_bad_length_is_told_too(device):
    make, (source, _, *rest) = MODELS["seq2seq"]
    model = make().to(device)
    batch = (source, np.array([1, T + 2, 1]), *rest)
    refused(ValueError, lambda: train(model, [batch], AdamW(model.parameters()), steps=1, title=None),
            "lengths must be from 0 to T = 7, got 8")


class Steep(models.RecurrentLM):
    """Its loss is finite, the gradient by one parameter is not."""

    def loss(self, *batch):
        return super().loss(*batch) + ((self.head.b * 1e30) * 1e30).sum()


@every_device
def test_a_gradient_that_is_not_finite_is_named_and_moves_nothing(device):
    model = Steep(V, 4, 5).to(device)
    before = model.state_dict()
    history = train(model, [TEXT], AdamW(model.parameters()), steps=1, on_nonfinite="record", title=None)
    assert history.events == [(0, "clip_grad_norm: the gradient of head.b is not finite")]
    assert np.isfinite(history.loss).all() and history.grad_norm == [np.inf]
    assert all((array == before[path]).all() for path, array in model.state_dict().items())


# Checks, now or later


def device(*data, dtype=None):
    return xp.asarray(np.array(data, dtype))


def test_outside_of_in_one_wait_a_check_is_made_at_once():
    with strict.syncs() as waits:
        refused(IndexError, lambda: ops.embedding.vjp(device(1, 7), device([0.0], [1.0])), "ids must be from 0 to 1, got 7")
    assert waits == ["bool", "int", "int"]              # the check, and what it found


def test_inside_checks_come_home_with_the_numbers():
    with strict.syncs() as waits:
        found = in_one_wait(lambda: (holds(device(1.0) > 0), device(2.5, dtype="float32").sum(), device([7]).sum())[1:])
    assert found == [2.5, 7.0] and waits == ["get"]


def test_every_check_of_an_op_can_come_later():
    ids, p, table, lengths = device(1, 0), device(0.5, 1.0), device([0.5], [1.0]), device(2)
    calls = {"embedding": [ids, table], "take": [p, ids], "gather": [p, ids], "cross_entropy": [table, 0 * ids],
             "binary_cross_entropy": [p, p], "kl_divergence": [p, p], "reverse": [table[None], lengths], "getitem": [p]}
    for name, args in calls.items():
        static = {"index": ids} if name == "getitem" else {}
        with strict.syncs() as waits:
            in_one_wait(lambda: [mx.OPS[name].vjp(*args, **static)[0].sum()])       # noqa: B023
        assert waits == ["get"], name


def test_a_failed_check_is_made_again_where_it_belongs():
    asked = []

    def compute():
        asked.append(holds((device(1.0) < 0)[0]))
        if not asked[-1]:
            raise ValueError("below")
        return [device(1.0)]

    refused(ValueError, lambda: in_one_wait(compute), "below")
    assert asked == [True, False]


def test_a_check_that_fails_once_and_then_passes_is_no_success():
    answers = iter([-1.0, 1.0])
    refused(RuntimeError, lambda: in_one_wait(lambda: [device(1.0)] * holds((device(next(answers)) > 0)[0])), "a check failed")


def test_threads_collect_into_the_list_of_the_step():
    def compute():
        worker = threading.Thread(target=copy_context().run, args=(holds, (device(1.0) > 0)[0]))
        worker.start()
        worker.join()
        return [device(2.0)]

    with strict.syncs() as waits:
        assert in_one_wait(compute) == [2.0]
    assert waits == ["get"]


def test_after_it_checks_are_made_at_once_again():
    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        in_one_wait(fails)
    with strict.syncs() as waits:
        assert not holds((device(1.0) < 0)[0])
    assert waits == ["bool"]


@every_device
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_within_compares_with_bounds_that_the_dtype_cannot_hold(dtype, device):
    ids = backend.to_device(np.array([0, 100], dtype), device)
    assert within(ids, 0, 100) and within(ids, -1000, 1000) and not within(ids, 0, 99) and not within(ids, 1, 100)
    assert within(ids[:0], 5, 4) and not within(ids, 0, -1)
    assert not within(backend.to_device(np.array([-1]), device), 0, 3)


@every_device
def test_the_length_of_a_gradient_that_is_known_is_not_measured_again(device):
    x = leaf([0.0, 0.0], device=device)
    x.grad = backend.to_device(np.array([3.0, 4.0]), device)
    with strict.syncs() as waits:
        assert clip_grad_norm([x], 1.0, norm=5.0) == 5.0
    assert not waits and grad_norm([x]) == pytest.approx(1.0)


# Fused functions


@fused
def follow(xp, w, m, g, beta, fresh, lr):
    """A step with momentum, in place: w and m change."""
    m *= beta
    m += fresh * g
    w -= lr * m


@fused
def squashed(xp, x, y):
    """Two new arrays."""
    e = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1, e) / (1 + e), xp.clip(x, -1, 1) * y


@fused
def into(xp, x, y, out):
    xp.multiply(x, y, out=out)
    out[...] = xp.maximum(out, 0) - 0.5


@every_device
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_fused_function_is_the_function(device, dtype):
    def arrays(*shapes):
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    for function, shapes, numbers in (follow, [(2, 3)] * 3, (0.5, 0.25, 0.1)), (squashed, [(2, 3), (3,)], ()), \
                                     (into, [(2, 3), (2, 1), (2, 3)], ()):
        ours, plain = [backend.to_device(a, device) for a in arrays(*shapes)], arrays(*shapes)
        results = function(*ours, *numbers), function.__wrapped__(np, *plain, *numbers)
        for one, other in zip(*([*(r or ()), *a] for r, a in zip(results, (ours, plain))), strict=True):
            assert one.dtype == other.dtype == dtype and one.shape == other.shape
            tolerance = np.finfo(dtype).eps * (4 if device == "cuda" else 0)
            np.testing.assert_allclose(backend.to_host(one), other, rtol=tolerance, atol=tolerance)


def test_it_keeps_its_name_and_its_words_and_its_kernel_is_made_once(monkeypatch):
    made = []

    def fuse(function):
        made.append(function.__name__)
        return strict.fuse(function)

    monkeypatch.setitem(backend._BY_TYPE, xp.ndarray, dataclasses.replace(strict.DEVICE, fuse=fuse))

    @fused
    def double(xp, x):
        """Twice x."""
        return 2 * x

    assert [double(device(value)).item() for value in (1.0, 2.0)] == [2, 4] and double(np.ones(2)).tolist() == [2, 2]
    assert made == [double.__name__] == ["double"] and double.__doc__ == "Twice x."


REFUSED = {
    "a sum": lambda xp, x, y: xp.sum(x),
    "a method that sums": lambda xp, x, y: x.sum(),
    "a product of matrices": lambda xp, x, y: x @ x,
    "an index": lambda xp, x, y: x[0],
    "a part": lambda xp, x, y: x.__setitem__(0, 1.0),
    "a shape": lambda xp, x, y: x * x.shape[0],
    "an if": lambda xp, x, y: x if x > 0 else -x,
    "abs()": lambda xp, x, y: abs(x),
    "a number with a number": lambda xp, x, y: (1 - y) * x,
    "a number with itself": lambda xp, x, y: (y * y) * x,
    "a root of a number": lambda xp, x, y: xp.sqrt(y) * x,
    "a number as the answer": lambda xp, x, y: y,
    "dtype=": lambda xp, x, y: xp.add(x, 1, dtype="float64"),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_cupy_cannot_fuse_is_refused(function):
    with pytest.raises((TypeError, AttributeError)):
        fused(function)(device([1.0, 2.0]), 0.5)


def test_an_array_smaller_than_the_others_can_be_read_but_neither_written_nor_returned():
    @fused
    def reads(xp, x, row):
        return x * row

    @fused
    def writes(xp, row, x):
        row *= 2

    @fused
    def returns(xp, row, x):
        return 2 * row

    x, row = device([1.0, 2.0], [3.0, 4.0]), device(1.0, 2.0)
    assert reads(x, row).tolist() == [[1, 4], [3, 8]]
    for function in writes, returns:
        refused(TypeError, lambda: function(row, x), "shape (2,) among arrays of (2, 2)")        # noqa: B023
