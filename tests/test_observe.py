"""Looking on: an observer sees modules, outputs and gradients and changes nothing; `saved` lists what is kept."""

import contextlib
import functools
import math
import threading

import numpy as np
import pytest

import minitx as mx
from minitx import ops, randomness
from minitx.models import RecurrentLM, TransformerLM
from minitx.observer import observer
from minitx.saved import keeps

from .common import every_device, leaf, refused
from .harness import assert_close, on_host

rng = np.random.default_rng(0)


class Recorder(mx.Observer):
    """An observer that writes down all calls, with the arrays themselves and copies of them."""

    def __init__(self):
        self.calls, self.arrays, self.copies = [], [], []

    def note(self, *call, arrays=()):
        self.calls.append(call)
        self.arrays.append(list(arrays))
        self.copies.append([x.copy() for x in arrays])

    def module(self, module, forward):
        def seen(*args, **options):
            self.note("enter", type(module).__name__)
            result = forward(*args, **options)
            self.note("leave", type(module).__name__)
            return result
        return seen

    def watch(self, op, arrays):
        return lambda name, array, step: self.note("watch", op.name, name, step, arrays=[array])

    def output(self, op, arrays, outputs):
        self.note("output", op.name, arrays=outputs)
        return lambda dys: self.note("report", op.name, arrays=dys)

    def leaves(self, found):
        self.note("leaves", arrays=found.values())

    def of(self, *call):
        """Of all calls that begin like this: how each goes on, and its arrays."""
        return [(c[len(call):], arrays) for c, arrays in zip(self.calls, self.arrays) if c[:len(call)] == call]


class Net(mx.nn.Module):
    def __init__(self):
        self.inner = mx.nn.Linear(2, 2, dtype="float64")

    def forward(self, x):
        return ops.relu(self.inner(x))


# The observer


@every_device
def test_an_observer_sees_everything_in_order_with_the_right_arrays(device):
    net = Net().to(device)
    net.inner.W.assign_([[1, 2], [3, -4]])
    x = leaf([[1, 1]], device=device)
    with mx.observe(Recorder()) as seen:
        loss = net(x).sum()
        loss.backward(10)
    assert seen.calls == [
        ("enter", "Net"), ("enter", "Linear"), ("output", "linear"), ("leave", "Linear"), ("output", "relu"),
        ("leave", "Net"), ("output", "sum"), ("report", "sum"), ("report", "relu"), ("report", "linear"),
        ("leaves",),
    ]
    values = [[a.tolist() for a in arrays] for arrays in seen.arrays if arrays]
    assert values == [[[[4, -2]]], [[[4, 0]]], [4], [10], [[[10, 10]]], [[[10, 0]]], [[[10, 30]], [[10, 0], [10, 0]], [10, 0]]]
    assert x.grad.tolist() == [[10, 30]]


@pytest.mark.parametrize("make", [
    lambda: RecurrentLM(9, 4, 5, cell="rnn"),
    lambda: RecurrentLM(9, 4, 5, L=2, cell="gru", dropout=0.3, learned_state=True),
    lambda: RecurrentLM(9, 4, 5, L=2, cell="lstm", dropout=0.3),
    lambda: TransformerLM(9, D=4, N=2, L=2, T=6, dropout=0.3),
], ids=["rnn", "gru", "lstm", "transformer"])
@every_device
def test_looking_on_changes_no_bit_and_what_was_seen_never_changes(make, device):
    ids = mx.tensor(rng.integers(0, 9, (2, 2, 6)), device=device).array

    def run(*looking):
        mx.seed(0)
        model = make().to(device)
        with contextlib.ExitStack() as stack:
            for who in looking:
                stack.enter_context(mx.observe(who))
            loss = model.loss(*ids)
            loss.backward()
        return [loss.numpy(), *on_host([p.grad for p in model.parameters()])], randomness.stream().random()

    seen = Recorder()
    (alone, draw), (watched, same_draw) = run(), run(seen)
    assert draw == same_draw
    for a, b in zip(alone, watched, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4 if device == "cuda" else 0)      # a GPU sums rows in any order
    assert len(seen.of("report")) > 3 and len(seen.of("watch")) >= 2
    for arrays, copies in zip(seen.arrays, seen.copies):
        assert all(np.array_equal(*on_host(pair)) for pair in zip(arrays, copies))


def test_an_output_that_nobody_used_is_reported_as_zeros_and_nothing_under_no_grad():
    with mx.observe(Recorder()) as seen:
        (ops.unstack(leaf([1, 2, 3]))[1] * 5).backward()
        with mx.no_grad():
            ops.exp(leaf([1]))
    [(_, dys)] = seen.of("report", "unstack")
    assert [dy.tolist() for dy in dys] == [0, 5, 0]
    assert seen.of("output", "exp") and not seen.of("report", "exp")


def test_observers_are_nested_and_per_thread():
    """Those inside look on beside those outside."""
    def compute():
        ops.exp(leaf([1]))

    outer, inner = Recorder(), Recorder()
    with mx.observe(outer):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        assert outer.calls == []
        with contextlib.suppress(KeyError), mx.observe(inner):
            compute()
            raise KeyError
        compute()
    compute()
    assert outer.calls == 2 * inner.calls == 2 * [("output", "exp")]


def test_each_of_several_observers_sees_everything_and_they_may_leave_in_any_order():
    class Silent(mx.Observer):
        """It stands in between and wishes to see nothing."""

    net, x = Net(), leaf([[1, 1]])
    with mx.observe(Recorder()) as alone:
        net(x).sum().backward()
    with mx.observe(Silent()):
        assert observer.get().watch(ops.rnn, []) is None, "nobody asked, so the op has nobody to show it to"
    ones = Recorder(), Silent(), Recorder(), Recorder()
    blocks = [mx.observe(who) for who in ones]
    for block in blocks:
        block.__enter__()
    net(x).sum().backward()
    blocks[0].__exit__(None, None, None)
    net(x).sum().backward()
    for block in blocks[:0:-1]:
        block.__exit__(None, None, None)
    net(x).sum().backward()
    first, _, *others = ones
    assert first.calls == alone.calls and [who.calls for who in others] == [2 * alone.calls] * 2
    with mx.observe(first), mx.profile() as inside:
        net(x).sum().backward()
        refused(RuntimeError, mx.observe(first).__enter__, "observe: this Recorder looks on already", "make one for each block")
    with mx.profile() as outside, mx.observe(Recorder()):
        net(x).sum().backward()
    assert {p.rows["linear"].calls for p in (inside, outside)} == {1} and inside.rows["linear"].backward > 0


def test_what_several_put_around_an_op_or_a_module_is_nested():
    class Twice(mx.Observer):
        def around(self, op, vjp):
            return (lambda x: (2 * vjp(x)[0], vjp(x)[1])) if op.name == "exp" else vjp

        def module(self, module, forward):
            return lambda x: forward(x) * 3.0

    class Exp(mx.nn.Module):
        def forward(self, x):
            return ops.exp(x)

    with mx.observe(Twice()), mx.observe(Twice()):
        assert ops.exp(leaf([0])).array == 4
    with mx.observe(Twice()), mx.profile():
        assert ops.exp(leaf([0])).array == 2
    with mx.observe(Twice()):
        assert Exp()(leaf([0])).array == 6


# watch


@pytest.mark.parametrize("op", [ops.attention, ops.textbook_attention, ops.flash_attention], ids=lambda op: op.name)
def test_attention_shows_its_weights(op):
    q, k, v = (leaf(rng.standard_normal((1, 2, 3, 4))) for _ in range(3))
    with mx.observe(Recorder()) as seen:
        y = op(q, k, v, causal=True)
    [(_, [probs])] = seen.of("watch", op.name, "probs", None)
    np.testing.assert_allclose(probs.sum(-1), 1)
    np.testing.assert_allclose(probs @ v.array, y.array)
    own = []
    with mx.observe(Recorder()) as seen:
        op(q, k, v, watch=lambda *call: own.append(call))
    assert own and not seen.of("watch"), "the watch of the caller comes first"


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_flash_attention_shows_the_weights_of_all_its_tiles(dtype):
    q, k, v = (rng.standard_normal((2, *shape, 4)).astype(dtype) for shape in ((6, 5), (3, 7), (3, 7)))
    mask = rng.random((2, 1, 5, 7)) < 0.7
    shown = []
    for op, options in (ops.attention, {}), (ops.flash_attention, {"tile": 2}):
        op.vjp(q, k, v, mask, causal=True, watch=lambda *seen: shown.append(seen), **options)
    [(*_, theirs, _), (name, ours, step)] = shown
    assert (name, step, ours.dtype) == ("probs", None, dtype)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12 if dtype == "float64" else 1e-2)


def test_additive_attention_shows_its_weights():
    q, k, v, w = (leaf(rng.standard_normal(shape)) for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 2), (4,)))
    with mx.observe(Recorder()) as seen:
        y = ops.additive_attention(q, k, v, w)
    [(_, [probs])] = seen.of("watch", "additive_attention", "probs", None)
    np.testing.assert_allclose(probs.sum(-1), 1)
    np.testing.assert_allclose(probs @ v.array, y.array)


@pytest.mark.parametrize("s, first", [(1.1, 13780.61234), (1.0, 1.0), (0.9, 2.6561398888e-5)])
@pytest.mark.parametrize("op", [ops.rnn, ops.unroll(ops.rnn_cell)], ids=lambda op: op.name)
def test_c39_the_gradient_of_every_state_of_a_rotation(op, s, first):
    """h_t = s R h_{t-1} turns and scales, so the gradient of h_t has the length s^(T-t)."""
    T, turn = 100, np.array([[math.cos(0.7), math.sin(0.7)], [-math.sin(0.7), math.cos(0.7)]])
    x, h0, u = np.zeros((1, T, 1)), leaf([[0.6, 0.8]]), np.array([0.8, -0.6])
    with mx.observe(Recorder()) as seen:
        last = op(x, h0, np.zeros((1, 2)), s * turn, np.zeros(2), activation="linear")[1]
        (last * u).sum().backward()
    steps, dhs = zip(*seen.of("watch", op.name, "dh"))
    assert steps == tuple((t,) for t in reversed(range(T)))                  # step t made h_{t+1}
    np.testing.assert_allclose([np.linalg.norm(dh) for dh in dhs], s ** np.arange(T), rtol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(h0.grad), first, rtol=1e-9)


@every_device
@pytest.mark.parametrize("lengths", [None, [3, 0, 4]], ids=["of one length", "of three lengths"])
@pytest.mark.parametrize("op, cell, gates, states", [
    (op, cell, gates, states)
    for fast, cell, gates, states in [(ops.rnn, ops.rnn_cell, "", "h"), (ops.gru, ops.gru_cell, "rzn", "h"),
                                      (ops.lstm, ops.lstm_cell, "ifgo", "hc")]
    for op in (fast, ops.unroll(cell))], ids=lambda value: getattr(value, "name", ""))
def test_a_recurrence_shows_what_its_cells_show_and_the_gradient_of_every_state(op, cell, gates, states, lengths, device):
    """Going forward its gates and the states besides h; going back what the tape finds when each sequence is walked alone."""
    (B, T, D, H), G, rng = (3, 4, 2, 5), max(len(gates), 1), np.random.default_rng(0)
    shapes = [(B, T, D), *[(B, H)] * len(states), (D, G * H), (H, G * H), *[(G * H,)] * (1 + (cell is ops.gru_cell))]
    x, *others = (leaf(rng.standard_normal(shape), device=device) for shape in shapes)
    dhs, *dlast = (leaf(rng.standard_normal(shape), device=device) for shape in [(B, T, H), *[(B, H)] * len(states)])
    with mx.observe(Recorder()) as seen:
        hs, *last = op(x, *others, *([mx.tensor(lengths, device=device)] if lengths else []))
        sum((s * ds).sum() for s, ds in zip([hs, *last], [dhs, *dlast], strict=True)).backward()
    shown = {call: array for call, [array] in seen.of("watch", op.name)}
    forwards, back = [*gates, *states[1:]], [f"d{s}" for s in states]
    assert list(shown) == ([(name, t) for t in range(T) for name in forwards]
                           + [(d, t) for t in reversed(range(T)) for d in back])

    start, weights = others[:len(states)], others[len(states):]
    for b in range(B):
        ends, expected, losses = lengths[b] if lengths else T, {}, []
        state = [s[b:b + 1] for s in start]
        for t in range(ends):
            with mx.observe(Recorder()) as seen:
                state = cell(x[b:b + 1, t], *state, *weights)
            state = state if isinstance(state, tuple) else (state,)
            expected |= {(name, t): array for (name,), [array] in ((call[:1], a) for call, a in seen.of("watch", cell.name))}
            expected |= {(name, t): s.array for name, s in zip(states[1:], state[1:], strict=True)}
            for name, s in zip(back, state, strict=True):
                mx.tape.on_gradient(s, functools.partial(expected.__setitem__, (name, t)))
            losses.append((state[0] * dhs[b:b + 1, t]).sum())
        if ends:
            sum([*losses, *((s * ds[b:b + 1]).sum() for s, ds in zip(state, dlast, strict=True))]).backward()
            assert set(expected) == {(name, t) for name, t in shown if t < ends}
            for call, array in expected.items():
                assert_close(on_host([shown[call][b]]), on_host([array[0]]), 1e-12, f"{call} of sequence {b}")
        for name, t in ((name, t) for name in (*forwards, *back) for t in range(ends, T)):
            [padding] = on_host([shown[name, t][b]])
            assert np.isnan(padding).all() and padding.dtype == "float64", "nothing happens in the padding"


@every_device
@pytest.mark.parametrize("lengths", [None, [3, 0, 4]], ids=["of one length", "of three lengths"])
@pytest.mark.parametrize("steps, cell, gates, states", [
    (ops.rnn_steps, ops.rnn_cell, 1, 1), (ops.gru_steps, ops.gru_cell, 3, 1), (ops.lstm_steps, ops.lstm_cell, 4, 2),
], ids=lambda value: getattr(value, "name", ""))
def test_the_steps_alone_show_what_the_unrolled_cell_shows(steps, cell, gates, states, lengths, device):
    """With W = I and b = 0, so that x W + b is x."""
    (B, T, H), rng = (3, 4, 5), np.random.default_rng(0)
    shapes = [(B, T, gates * H), *[(B, H)] * states, (H, gates * H), *[(gates * H,)] * (cell is ops.gru_cell)]
    numbers = [rng.standard_normal(shape) for shape in shapes]
    ends = [mx.tensor(lengths, device=device)] if lengths else []

    def shown(op, *weights):
        a, *others = (leaf(x, device=device) for x in numbers)
        start, (U, *bU) = others[:states], others[states:]
        with mx.observe(Recorder()) as seen:
            outputs = op(a, *start, *weights[:1], U, *weights[1:], *bU, *ends)
            sum((y * y).sum() for y in outputs).backward()
        return {call: on_host(arrays)[0] for call, arrays in seen.of("watch", op.name)}

    W, b = (leaf(x, device=device) for x in (np.eye(gates * H), np.zeros(gates * H)))
    found, expected = shown(steps), shown(ops.unroll(cell), W, b)
    assert list(found) == list(expected)
    for call, array in expected.items():
        np.testing.assert_allclose(found[call], array, rtol=1e-12, err_msg=str(call))


# saved


@every_device
def test_saved_lists_name_shape_and_bytes(device):
    x, W = (mx.tensor(np.ones(shape), device=device).array for shape in ((2, 3), (3, 5)))
    assert mx.saved(ops.exp.vjp(x)[1]) == [("y", (2, 3), 48)]
    assert mx.saved(ops.add.vjp(x, x)[1]) == mx.saved(ops.sum.vjp(x)[1]) == []
    assert {(s.name, s.bytes) for s in mx.saved(ops.linear.vjp(x, W)[1])} == {("W", 120), ("rows", 48)}
    assert {(s.name, s.bytes) for s in mx.saved(ops.mul.vjp(x, x)[1])} == {("x", 48), ("y", 0)}, "counted once"


def test_saved_counts_what_a_view_keeps_alive_and_looks_into_lists_and_functions():
    big, ids = np.zeros((10, 10)), np.zeros(3, "int32")
    views, dropped = [big[0], big[:, :2].T], np.zeros(7)

    def inner():
        return ids

    def backward(dy):
        return views, inner, missing

    if dropped is None:
        missing = 0                                                          # a name that was never bound
    assert mx.saved(backward) == [("inner.ids", (3,), 12), ("views[0]", (10,), 800), ("views[1]", (2, 10), 0)]


def test_saved_looks_into_partials_and_knows_a_function_that_calls_itself():
    x = np.ones(2)

    def again(dy):
        return x, again

    assert mx.saved(functools.partial(again, x * 2)) == [("func.x", (2,), 16), ("args[0]", (2,), 16)]
    assert keeps(again, x) and not keeps(again, x * 2)
    assert keeps(functools.partial(again), x * 2), "it cannot be looked into here, so it may"


def test_unroll_keeps_every_step():
    x, h, W, U, b = (rng.standard_normal(shape) for shape in ((1, 3, 2), (1, 4), (2, 4), (4, 4), 4))
    names = {s.name for s in mx.saved(ops.unroll(ops.rnn_cell).vjp(x, h, W, U, b)[1])}
    assert {f"backwards[{t}].h_next" for t in range(3)} <= names
