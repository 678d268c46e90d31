"""Recurrent ops: sequences of any length in one batch, and three roads to one gradient.

Nearly everything here follows from one rule: *a batch gives what its sequences give one by one*, without padding.

Read next: `test_recurrent_modules.py`.
"""

import math
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.op import Op

from .common import leaf, refused
from .harness import assert_close, call, values_and_gradients

B, T, D, H = 6, 5, 3, 4
LENGTHS = np.array([2, 5, 0, 1, 5, 3])


class Family(NamedTuple):
    """A recurrence: its op, its cell, how many states, gates and biases they have, and their options."""

    op: Op
    cell: Op
    states: int = 1
    gates: int = 1
    biases: int = 1
    options: dict[str, Any] = MappingProxyType({})

    def arrays(self, B=B, T=T):
        """x, the first states, W, U and the biases."""
        rng, G = np.random.default_rng(0), self.gates * H
        shapes = [(B, T, D), *[(B, H)] * self.states, (D, G), (H, G), *[(G,)] * self.biases]
        return [rng.standard_normal(shape) / (1 + (len(shape) == 2)) for shape in shapes]

    def dys(self, B=B, T=T):
        """A gradient for hs and for each of the last states."""
        rng = np.random.default_rng(1)
        return rng.standard_normal((B, T, H)), *rng.standard_normal((self.states, B, H))


@mx.op("x (B, D), h (B, H), v (B, H), W (D, H), U (H, H) -> h_next (B, H), v_next (B, H)")
def heavy_cell(x, h, v, W, U, *, keep=0.5):
    """A cell as a user may write one: the state has a speed, which lasts."""
    push = np.tanh(x @ W + h @ U)
    v_next = keep * v + push

    def backward(dh_next, dv_next):
        dv = dv_next + dh_next
        da = dv * (1 - push * push)
        return da @ W.T, dh_next + da @ U.T, keep * dv, x.T @ da, h.T @ da
    return (h + v_next, v_next), backward


FAMILIES = {
    "rnn": Family(ops.rnn, ops.rnn_cell),
    "relu rnn": Family(ops.rnn, ops.rnn_cell, options={"activation": "relu"}),
    "gru": Family(ops.gru, ops.gru_cell, gates=3, biases=2),
    "lstm": Family(ops.lstm, ops.lstm_cell, states=2, gates=4),
}
SEQUENCES = FAMILIES | {f"unroll({name})": family._replace(op=ops.unroll(family.cell)) for name, family in FAMILIES.items()}
SEQUENCES["a cell of the user"] = Family(ops.unroll(heavy_cell), heavy_cell, states=2, biases=0, options={"keep": 0.9})
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
every_sequence = pytest.mark.parametrize("family", SEQUENCES.values(), ids=SEQUENCES)


# Lengths, in the ops


@every_sequence
def test_a_batch_with_lengths_gives_what_its_sequences_give_one_by_one(family):
    """All outputs and all gradients: padding is zero, the weights have the sum of what each sequence wants of them."""
    (x, *others), dys = family.arrays(), family.dys()
    states, weights = others[:family.states], others[family.states:]
    together = values_and_gradients(family.op, call(x, *others, LENGTHS, **family.options), dys)

    runs = []
    for b, n in enumerate(LENGTHS):
        own = slice(b, b + 1)
        sample = call(x[own, :n], *(s[own] for s in states), *weights, **family.options)
        run = values_and_gradients(family.op, sample, (dys[0][own, :n], *(d[own] for d in dys[1:])))
        runs.append([np.pad(a, ((0, 0), (0, T - n), (0, 0))) if a is not None and a.ndim == 3 else a for a in run])
    rows = 2 * (1 + family.states)                                           # hs, the last states, dx, the gradients of states
    expected = [np.concatenate(a) if k < rows else None if a[0] is None else sum(a)
                for k, a in enumerate(zip(*runs, strict=True))]
    assert_close(together, expected, 1e-12)


@every_sequence
@pytest.mark.parametrize("garbage", [7.0, math.nan, math.inf, -1e300])
def test_what_stands_in_the_padding_changes_no_bit(family, garbage):
    (x, *others), (dhs, *dlast) = family.arrays(), family.dys()
    padding = np.arange(T) >= LENGTHS[:, None]
    clean, dirty = ([np.where(padding[:, :, None], value, a) for a in (x, dhs)] for value in (0, garbage))
    expected, found = (values_and_gradients(family.op, call(x, *others, LENGTHS, **family.options), (dhs, *dlast))
                       for x, dhs in (clean, dirty))
    assert_close(found, expected, 0)
    for in_time in (found[0], found[1 + family.states]):
        assert not in_time[padding].any(), "hs and dx are zero there"


@every_sequence
@pytest.mark.parametrize("end", [math.inf, -math.inf, math.nan])
def test_a_state_that_is_not_finite_where_a_sequence_ended_spoils_nothing(family, end):
    """That of sequence 2, which has no step. Nothing is computed with it, and nothing warns."""
    clean, spoilt = family.arrays(), family.arrays()
    for state in spoilt[1:1 + family.states]:
        state[2] = end
    with np.errstate(all="raise"):
        expected, found = (values_and_gradients(family.op, call(*arrays, LENGTHS, **family.options), family.dys())
                           for arrays in (clean, spoilt))
    for k, state in enumerate(spoilt[1:1 + family.states], 1):
        np.testing.assert_array_equal(found[k][2], state[2])
        expected[k][2] = found[k][2]
    assert_close(found, expected, 0)


@pytest.mark.parametrize("op", [ops.rnn, ops.unroll(ops.rnn_cell)], ids=lambda op: op.name)
def test_a_sequence_that_blows_up_in_its_last_step_has_the_gradients_it_has_alone(op):
    """Its loss looks at the first state, 300; the second is more than float16 can hold."""
    def dU(*padding):
        one = np.ones((1, 1), "float16")
        x = np.array([[[1], [1], *padding]], "float16")
        lengths = [np.array([2])] if padding else []
        (hs, h), backward = op.vjp(x, one, one, 300 * one, 0 * one[0], *lengths, activation="relu")
        assert h == math.inf
        first = np.zeros_like(hs)
        first[:, 0] = 1
        return backward(first, 0 * one)[3].item()

    with mx.backend.expecting_overflow():
        assert dU() == dU([7], [7]) == 1


@every_sequence
def test_sequences_that_are_all_whole_need_no_lengths(family):
    with_lengths, without = (values_and_gradients(family.op, call(*family.arrays(), *more, **family.options), family.dys())
                             for more in ([np.full(B, T)], []))
    assert_close(with_lengths, without, 1e-14)


@every_sequence
def test_a_sequence_without_a_step_ends_in_the_state_it_started_from(family):
    x, *others = family.arrays()
    hs, *rest = values_and_gradients(family.op, call(x, *others, np.zeros(B, int), **family.options), family.dys())
    last, dx, dstates = rest[:family.states], rest[family.states], rest[family.states + 1:]
    assert not hs.any() and not dx.any()
    for found, expected in zip([*last, *dstates], [*others[:family.states], *family.dys()[1:]]):
        assert np.array_equal(found, expected)
    assert not any(dw.any() for dw in dstates[family.states:] if dw is not None)


@every_sequence
@pytest.mark.parametrize("sizes", [(B, 0), (0, T), (0, 0)], ids=["T = 0", "B = 0", "B = T = 0"])
def test_nothing_to_read_is_no_special_case(family, sizes):
    x, *others = family.arrays(*sizes)
    for more in ([], [np.zeros(sizes[0], int)]):
        hs, *rest = values_and_gradients(family.op, call(x, *others, *more, **family.options), family.dys(*sizes))
        assert hs.shape == (*sizes, H)
        for state, start in zip(rest[:family.states], others):
            assert np.array_equal(state, start)
        for dstate, dlast in zip(rest[family.states + 1:], family.dys(*sizes)[1:]):
            assert np.array_equal(dstate, dlast)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_lengths_are_integers_of_any_width(dtype):
    x = np.random.default_rng(0).standard_normal((B, T, D))
    for op, more in ((ops.reverse, []), (ops.rnn, FAMILIES["rnn"].arrays()[1:])):
        assert_close(values_and_gradients(op, call(x, *more, LENGTHS.astype(dtype))),
                     values_and_gradients(op, call(x, *more, LENGTHS)), 0)


def test_lengths_may_change_once_the_forward_pass_is_done():
    """The way back goes where the way there went."""
    for op, more in ((ops.reverse, []), *((family.op, family.arrays()[1:]) for family in SEQUENCES.values())):
        lengths, x = LENGTHS.copy(), np.random.default_rng(0).standard_normal((B, T, D))
        out, backward = op.vjp(x, *more, lengths)
        dys = [np.ones_like(y) for y in (out if isinstance(out, tuple) else (out,))]
        before = backward(*dys)
        lengths[:] = T
        assert_close(list(backward(*dys)), list(before), 0)


def test_reverse_turns_each_sequence_around_within_its_length():
    x = np.arange(1.0, 9).reshape(2, 4, 1)
    assert ops.reverse.vjp(x, np.array([3, 4]))[0][:, :, 0].tolist() == [[3, 2, 1, 0], [8, 7, 6, 5]]
    twice = ops.reverse.vjp(ops.reverse.vjp(x, np.array([3, 1]))[0], np.array([3, 1]))[0]
    assert twice[:, :, 0].tolist() == [[1, 2, 3, 0], [5, 0, 0, 0]]
    assert ops.reverse.vjp(x)[0][:, :, 0].tolist() == [[4, 3, 2, 1], [8, 7, 6, 5]]


# One step


def test_c34_a_gru_resets_behind_the_product():
    """The published numbers are of products U·h, one row of U per unit; ours are h U, so each block is transposed."""
    x, h = np.array([[.8]]), np.array([[.5, -.4]])
    W = np.array([[.1, .2, .3, -.1, .5, .4]])
    blocks = [[.2, -.3], [.1, .4]], [[-.2, .3], [.5, .1]], [[.6, -.5], [.3, .7]]
    U = np.concatenate([np.array(block).T for block in blocks], axis=1)
    b, bU = np.array([.1, -.1, .2, 0, .05, -.05]), np.array([0, 0, 0, 0, .3, -.2])
    expected = [[0.6024470949, -0.1621627592]]
    np.testing.assert_allclose(ops.gru_cell.vjp(x, h, W, U, b, bU)[0], expected, atol=1e-10)
    np.testing.assert_allclose(ops.gru.vjp(x[:, None], h, W, U, b, bU)[0][1], expected, atol=1e-10)


# Three roads to one gradient


def by_tape(family, arrays, dys):
    """The cell, step by step on the tape: outputs, then the gradients of all arrays."""
    x, *others = leaves = [leaf(a) for a in arrays]
    state, weights, hs = others[:family.states], others[family.states:], []
    for x_t in ops.unstack(x, axis=1):
        state = family.cell(x_t, *state, *weights, **family.options)
        state = state if isinstance(state, tuple) else (state,)
        hs.append(state[0])
    outputs = [ops.stack(*hs, axis=1), *state]
    grads = mx.gradients(sum((y * dy).sum() for y, dy in zip(outputs, dys, strict=True)))
    return [*(y.array for y in outputs), *(grads[t] for t in leaves)]


@every_family
def test_fast_op_unrolled_cell_and_cells_on_the_tape_agree(family):
    arrays, dys = family.arrays(), family.dys()
    *fast, no_gradient = values_and_gradients(family.op, call(*arrays, **family.options), dys)
    *readable, nor_here = values_and_gradients(ops.unroll(family.cell), call(*arrays, **family.options), dys)
    assert no_gradient is nor_here is None
    assert_close(fast, readable, 1e-12)
    assert_close(fast, by_tape(family, arrays, dys), 1e-12)


def test_a_cell_of_the_user_is_unrolled_with_its_states_and_options():
    family, seen = SEQUENCES["a cell of the user"], []
    mx.gradcheck(heavy_cell, family.arrays()[0][:, 0], *family.arrays()[1:], keep=0.3)
    mx.gradcheck(family.op, *family.arrays(), LENGTHS, keep=0.3)
    *found, _ = values_and_gradients(family.op, call(*family.arrays(), keep=0.9), family.dys())
    assert_close(found, by_tape(family, family.arrays(), family.dys()), 1e-12)
    tensors = [leaf(a) for a in family.arrays()]
    hs, h, v = family.op(*tensors, lengths=LENGTHS, keep=0.9, watch=lambda name, array, t: seen.append((name, t)))
    (hs.sum() + v.sum()).backward()
    assert seen == [("v", t) for t in range(T)] + [(d, t) for t in reversed(range(T)) for d in ("dh", "dv")]
    assert h.array.tolist() == [h_b[n - 1].tolist() if n else start.tolist()
                                for h_b, n, start in zip(hs.array, LENGTHS, tensors[1].array)]


@mx.op("word (B, D), h (B, H), W (D, H), b? (H) -> h_next (B, H)")
def plain_cell(word, h, W, b=None):
    """A sum, to which one may add."""
    def backward(dh_next):
        return dh_next @ W.T, dh_next, word.T @ dh_next, None if b is None else dh_next.sum(0)
    return word @ W + h + (0 if b is None else b), backward


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["of one length", "of six lengths"])
def test_a_cell_may_do_without_a_weight_and_call_its_input_as_it_likes(lengths):
    (x, h, W, _, b), sequence = FAMILIES["rnn"].arrays(), ops.unroll(plain_cell)
    zero = values_and_gradients(sequence, call(x, h, W, 0 * b, lengths), FAMILIES["rnn"].dys())
    without = values_and_gradients(sequence, call(x, h, W, None, lengths), FAMILIES["rnn"].dys())
    assert without.pop(5) is None and zero.pop(5).any()
    assert_close(without, zero, 0)
    tensors = [leaf(a) for a in (x, h, W)]
    hs, _ = sequence(*tensors, lengths=lengths)
    hs.sum().backward()
    assert np.array_equal(hs.array, zero[0]) and all(t.grad.any() for t in tensors)
    mx.gradcheck(sequence, x, h, W, b)
    refused(ValueError, lambda: sequence(x[0], h, W), "unroll(plain_cell): word must be (B, T, D)")


@pytest.mark.parametrize("line, cell", {
    "ids:int (B), h (B, H) -> h_next (B, H)": lambda ids, h: ...,
    "x (B, D), h (B, N, K) -> h_next (B, N, K)": lambda x, h: ...,
    "x (..., D), h (..., H) -> h_next (..., H)": lambda x, h: ...,
    "x (B, D), h (B, H) -> h_next": lambda x, h: ...,
    "x (B, D), h (B, H) -> h_next (B, H), y (B, D)": lambda x, h: ...,
    "x (B, D), W (D, H), h (B, H) -> h_next (B, H)": lambda x, W, h: ...,
    "x (B, D), h (B, H), *Ws (H, H) -> h_next (B, H)": lambda x, h, *Ws: ...,
    "x (B, D), h? (B, H) -> h_next (B, H)": lambda x, h=None: ...,
}.items())
def test_what_is_no_cell_is_refused_before_it_is_run(line, cell):
    refused(ValueError, lambda: ops.unroll(mx.op(line)(cell)), "unroll: the cell <lambda> needs a shape line that names",
            "rows of numbers", "write @op('x (B, D), h (B, H), … -> h_next (B, H)')")
    refused(TypeError, lambda: ops.unroll(cell), "unroll: the cell is a function; expected an op; write @op(")
