"""What layers, cells and the ops that move numbers refuse: every guard that stands in an op, and its remedy.

`test_refusals.py` has the ops that NumPy has too, `test_op.py` what all ops refuse alike.
"""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.backend import to_device, to_host
from minitx.ops.indexing import check_places

from .common import every_device, leaf, refused

GUARDS = {
    "gelu: form": (lambda x, i: ops.gelu(x, approximate="erf"),
                   ValueError, "gelu: approximate must be 'tanh' or 'none', got 'erf'"),
    "dropout: above": (lambda x, i: ops.dropout(x, x > 0, p=1.5), ValueError, "dropout: p must be a probability", "got 1.5"),
    "dropout: below": (lambda x, i: ops.dropout(x, x > 0, p=-0.1), ValueError, "dropout: p must be a probability", "got -0.1"),
    "embedding: an id": (lambda x, i: ops.embedding(i + 1, x), IndexError, "embedding: ids must be from 0 to 1, got 2"),
    "embedding: negative": (lambda x, i: ops.embedding(i - 1, x), IndexError, "embedding: ids must be from 0 to 1, got -1"),
    "layer_norm: eps": (lambda x, i: ops.layer_norm(x, x[0], x[0], eps=-1),
                        ValueError, "layer_norm: eps must be a number of at "),
    "rms_norm: eps": (lambda x, i: ops.rms_norm(x, x[0], eps=math.nan),
                      ValueError, "rms_norm: eps must be a number of at least 0"),
    "cross_entropy: reduction": (lambda x, i: ops.cross_entropy(x, i[:, 0], reduction="batch"), ValueError,
                                 "cross_entropy: reduction must be 'mean', 'sum' or 'none', got 'batch'"),
    "cross_entropy: ignored": (lambda x, i: ops.cross_entropy(x, i[:, 0], ignore_index=1.5), TypeError,
                               "cross_entropy: ignore_index must be an integer, got 1.5"),
    "cross_entropy: smooth": (lambda x, i: ops.cross_entropy(x, i[:, 0], label_smoothing=1.5), ValueError,
                              "cross_entropy: label_smoothing must be between 0 and 1, got 1.5"),
    "cross_entropy: rough": (lambda x, i: ops.cross_entropy(x, i[:, 0], label_smoothing=-0.1), ValueError, "got -0.1"),
    "bce: below 0": (lambda x, i: ops.binary_cross_entropy(x, x * 0 - 1), ValueError, "target must be between 0 and 1"),
    "rnn_cell: activation": (lambda x, i: ops.rnn_cell(x, x, *square(x), activation="gelu"), ValueError,
                             "rnn_cell: activation must be one of tanh, relu, linear, got 'gelu'"),
    "unroll: no b": (lambda x, i: ops.unroll(ops.rnn_cell)(x[:, :0].reshape((2, 0, 3)), x, *square(x)[:2]), TypeError,
                     "unroll(rnn_cell): missing a required argument: 'b'"),
    "unroll: an option": (lambda x, i: ops.unroll(ops.rnn_cell)(x[:, :0].reshape((2, 0, 3)), x, *square(x), speed=2), TypeError,
                          "unroll(rnn_cell): got an unexpected keyword argument 'speed'"),
    "unroll: one too many": (lambda x, i: ops.unroll(ops.rnn_cell)(steps(x), x, *square(x), None, x), TypeError,
                             "unroll(rnn_cell): too many positional arguments", "extra[0] (2, 3) float64"),
    "gather: fewer axes": (lambda x, i: ops.gather(x, i[:, 0]), ValueError, "gather: ids must have the lengths", "got (2,)"),
    "concatenate: nothing": (lambda x, i: ops.concatenate(), ValueError, "concatenate: needs at least one array"),
    "stack: nothing": (lambda x, i: ops.stack(), ValueError, "stack: needs at least one array"),
    "concatenate: dtypes": (lambda x, i: ops.concatenate(x, x > 0, i), TypeError,
                            "concatenate: the arrays must have one dtype, got bool and float64 and int64; convert them with"),
    "stack: dtypes": (lambda x, i: ops.stack(x, x > 0),
                      TypeError, "stack: the arrays must have one dtype, got bool and float64"),
    "unstack: nothing": (lambda x, i: ops.unstack(x[:0]),
                         ValueError, "unstack: axis 0 of an array of shape (0, 3) has nothing"),
    "split: unequal": (lambda x, i: ops.split(x, sections=2),
                       ValueError, "split: axis -1 has length 3, which sections=2 does not"),
    "split: lengths": (lambda x, i: ops.split(x, sections=(1, 1)), ValueError, "split: axis -1", "the parts must add up to 3"),
    "split: below 0": (lambda x, i: ops.split(x, sections=(4, -1)), ValueError, "split: axis -1", "none of them below 0"),
    "split: no part": (lambda x, i: ops.split(x, sections=0), ValueError, "split: axis -1 has length 3, which sections=0"),
    "split: of nothing": (lambda x, i: ops.split(x[:, :0], sections=()), ValueError, "split: axis -1 has length 0"),
    "split_heads: unequal": (lambda x, i: ops.split_heads(x[None], heads=(1, 1)), ValueError,
                             "split_heads: heads must be numbers of heads that share a width of 3 equally, got (1, 1)"),
    "split_heads: no head": (lambda x, i: ops.split_heads(x[None], heads=(1, 0)), ValueError, "split_heads: heads must be"),
    "split_heads: nothing": (lambda x, i: ops.split_heads(x[None], heads=()), ValueError, "split_heads: heads must", "got ()"),
    "attention: scale": (lambda x, i: ops.attention(*heads(x), scale="1"),
                         ValueError, "attention: scale must be a finite number", "got '1'"),
    "flash_attention: tile": (lambda x, i: ops.flash_attention(*heads(x), tile=0),
                              ValueError, "flash_attention: tile is 0", "whole number of at least 1"),
    "attention: no number": (lambda x, i: ops.attention(*heads(x), scale=math.nan),
                             ValueError, "attention: scale must be a finite", "got nan"),
    "attention: too large": (lambda x, i: ops.attention(*heads(x), scale=math.inf),
                             ValueError, "attention: scale must be a finite", "got inf"),
    "attention: 3 on 2": (lambda x, i: ops.attention(*(mx.tensor(np.ones((1, n, 2, 2)), device=x.device) for n in (3, 2, 2))),
                          ValueError, "attention: the 3 heads of queries must be a multiple of the 2 heads of keys"),
    "attention: no keys": (lambda x, i: ops.attention(*(mx.tensor(np.ones((1, n, 2, 2)), device=x.device) for n in (3, 0, 0))),
                           ValueError, "attention: the 3 heads of queries must be a multiple of the 0 heads of keys"),
    "rotary: pairing": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], pairing="odd"),
                        ValueError, "rotary: pairing must be one of halves, neighbours, got 'odd'"),
    "rotary: too many": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=4),
                         ValueError, "rotary: rotated must be an even number of at most K = 3 channels, got 4"),
    "rotary: odd": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=1), ValueError, "rotated must be an even", "got 1"),
    "rotary: all of 3": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1]), ValueError, "rotated must be an even", "got 3"),
    "rotary: fewer": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=-2), ValueError, "an even number", "got -2"),
    "rotary: a float": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=2.0), ValueError, "an even number", "got 2.0"),
    "rotary: base": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=2, base=0),
                     ValueError, "rotary: base must be a positive number, got 0"),
    "rotary: stretch": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=2, stretch=math.inf),
                        ValueError, "rotary: stretch must be a positive number, got inf"),
    "rotary: a text": (lambda x, i: ops.rotary(heads(x)[0], i[0, :1], rotated=2, stretch="2"),
                       ValueError, "rotary: stretch must be a positive number, got '2'"),
    "pad: a text": (lambda x, i: ops.pad(x, widths=1, value="0"), TypeError, "pad: value must be a number", "got '0'"),
    "pad: a fraction": (lambda x, i: ops.pad(i, widths=1, value=0.5),
                        TypeError, "pad: value must be a number", "int64, got 0.5"),
}


def square(x):
    """W, U, b of a cell with three units for three inputs."""
    return ops.matmul(x.T, x), ops.matmul(x.T, x), x[0]


def steps(x):
    """Three steps of three inputs, in two sequences."""
    return ops.stack(x, x, x, axis=1)


def heads(x):
    """q, k and v of one head."""
    return [x.reshape((1, 1, 2, 3))] * 3


@every_device
@pytest.mark.parametrize("call, kind, parts", [(call, kind, parts) for call, kind, *parts in GUARDS.values()], ids=GUARDS)
def test_a_guard_speaks(call, kind, parts, device):
    x, i = leaf(np.ones((2, 3)), device=device), mx.tensor([[0], [1]], device=device)
    refused(kind, lambda: call(x, i), *parts)


@every_device
@pytest.mark.parametrize("op, states, gates, biases", [
    (ops.rnn, 1, 1, 1), (ops.gru, 1, 3, 2), (ops.lstm, 2, 4, 1), (ops.unroll(ops.gru_cell), 1, 3, 2), (ops.reverse, 0, 0, 0),
], ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("lengths, kind, says", [
    ([0, 4], ValueError, "must be from 0 to T = 3, got 4; count the steps of each sequence"),
    ([-2, 2], ValueError, "must be from 0 to T = 3, got -2; count the steps of each sequence"),
    ([-1, 9], ValueError, "must be from 0 to T = 3, got -1"),
    ([1.0, 2.0], TypeError, "must be integers, but has dtype float64"),
    ([True, False], TypeError, "must be integers, but has dtype bool"),
    ([1], ValueError, "must be (B), but has shape (1,): axis 0 is 1 instead of 2 (B = 2 by x)"),
    ([[1, 2]], ValueError, "must be (B), but has 2 axes, shape (1, 2)"),
], ids=str)
def test_wrong_lengths_are_refused(op, states, gates, biases, lengths, kind, says, device):
    x = leaf(np.ones((2, 3)), device=device)
    weights = [ops.concatenate(*[part] * gates) for part in square(x)] if gates else []
    lengths = mx.tensor(np.array(lengths), device=device)
    arrays = [steps(x), *[x] * states, *weights, *weights[2:] * (biases - 1)]
    refused(kind, lambda: op(*arrays, lengths), f"{op.name}: lengths {says}")


@every_device
@pytest.mark.parametrize("value", [2, 3.0, -1, True])
def test_around_integers_pad_puts_whole_numbers(value, device):
    y = ops.pad(mx.tensor([5], device=device), widths=1, value=value)
    assert y.numpy().tolist() == [value, 5, value] and y.dtype == "int64"


@every_device
@pytest.mark.parametrize("value", [0.1, -math.inf, math.nan])
def test_around_floats_pad_puts_every_number(value, device):
    y = ops.pad(mx.tensor([5.0], dtype="float32", device=device), widths=1, value=value).numpy()
    np.testing.assert_array_equal(y, np.array([value, 5, value], "float32"))


@pytest.mark.parametrize("index, axis, ids, wrong", [
    ((np.array([3]),), 0, (-3, 2), 3),
    ((np.array([-4, 0]),), 0, (-3, 2), -4),
    ((None, np.array([3])), 0, (-3, 2), 3),
    ((slice(None), np.array([0, 4])), 1, (-4, 3), 4),
    ((..., np.array([[5]])), 2, (-5, 4), 5),
    ((None, ..., np.array([5]), slice(1)), 1, (-4, 3), 5),
    ((np.ones((3, 4), bool), np.array([-6])), 2, (-5, 4), -6),
], ids=str)
def test_getitem_counts_the_axes_up_to_an_id_that_is_out_of_range(index, axis, ids, wrong):
    """NumPy refuses such an id itself, CuPy wraps it."""
    said = f"ids along axis {axis} must be from {ids[0]} to {ids[1]}, got {wrong}"
    refused(IndexError, lambda: check_places(index, (3, 4, 5)), said)


@pytest.mark.parametrize("index", [(np.array([-1, 0]),), (..., np.array([4, -5])), (np.array([True]),), (np.zeros(0, int),)],
                         ids=str)
def test_getitem_lets_through_what_is_in_range(index):
    check_places(index, (1, 4, 5))


@every_device
def test_an_index_that_changes_after_the_forward_pass_does_not_lead_the_gradient_of_getitem_astray(device):
    numbers = np.arange(6.0).reshape(3, 2), np.array([0, 1]), np.array([True, False, True])
    x, ids, mask = (to_device(a.copy(), device) for a in numbers)
    backwards = [ops.getitem.vjp(x, index=index)[1] for index in (ids, mask)]
    ids[...], mask[...] = 2, True
    assert [to_host(b(to_device(np.ones((2, 2)), device))).tolist() for b in backwards] == [
        [[1, 1], [1, 1], [0, 0]], [[1, 1], [0, 0], [1, 1]]]


@pytest.mark.parametrize("op, gates, states, biases", [
    (form, *sizes) for op, *sizes in ((ops.rnn, 1, 1, 1), (ops.gru, 3, 1, 2), (ops.lstm, 4, 2, 1))
    for form in (op, op.reference)
], ids=lambda value: getattr(value, "name", None))
def test_what_is_not_finite_in_the_padding_stays_out_of_the_weights(op, gates, states, biases):
    """0 · ∞ is NaN, so behind its end a sequence reads inputs and a state of zero: in the fast op and in the readable one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 2))
    x[1] = np.nan
    starts = [rng.standard_normal((2, 3)) for _ in range(states)]
    for start in starts:
        start[1] = np.inf                                                    # of a sequence without a step
    weights = [rng.standard_normal(shape) for shape in ((2, 3 * gates), (3, 3 * gates), *[(3 * gates,)] * biases)]
    out, backward = op.vjp(x, *starts, *weights, np.array([4, 0]))
    _, *grads = backward(*(np.ones_like(y) for y in out))
    assert all(np.isfinite(d).all() for d in grads if d is not None)


@mx.op("x (B, D), h (B, H), W (D, H), b? (H) -> h_next (B, H)")
def summing_cell(x, h, W, b=None):
    def backward(dh_next):
        return dh_next @ W.T, dh_next, x.T @ dh_next, None if b is None else dh_next.sum(0)

    return x @ W + h + (0 if b is None else b), backward


@pytest.mark.parametrize("lengths", [None, np.array([3, 1])], ids=["whole", "with lengths"])
def test_unroll_leaves_out_the_weight_that_its_cell_leaves_out(lengths):
    x, h, W = (np.random.default_rng(0).standard_normal(shape) for shape in ((2, 3, 2), (2, 4), (2, 4)))
    runs = [ops.unroll(summing_cell).vjp(x.astype("float32"), h.astype("float32"), W.astype("float32"), b, lengths)
            for b in (None, np.zeros(4, "float32"))]
    (*without, no_db, _), (*given, db, _) = (backward(np.ones_like(hs), np.ones_like(end)) for (hs, end), backward in runs)
    assert no_db is None and db.shape == (4,) and all(np.array_equal(a, b) for a, b in zip(without, given, strict=True))
