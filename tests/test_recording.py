"""The recorder tells the truth and changes nothing: values and gradients by module, time step and parameter.

Read next: `test_plots.py`, what is drawn of it.
"""

import contextlib
import gc
import json
import math
import threading
import weakref

import numpy as np
import pytest

import minitx as mx
from minitx import ops, randomness
from minitx.backend import to_device, to_host
from minitx.checkpoint import load_arrays
from minitx.clipping import clip_grad_norm
from minitx.data import pair_batch, windows
from minitx.models import RecurrentLM, TransformerLM
from minitx.observer import observer
from minitx.optim import SGD, Adam
from minitx.recorded import length
from minitx.runs import Keeper
from minitx.seq2seq import Seq2Seq
from minitx.training import train

from .common import every_device, leaf, refused, same
from .harness import on_host

V, B, T = 11, 3, 7
IDS = np.random.default_rng(0).integers(0, V, (2, B, T))
MODELS = {
    "rnn": lambda **o: RecurrentLM(V, 4, 5, cell="rnn", **o),
    "gru": lambda **o: RecurrentLM(V, 4, 5, L=2, cell="gru", **o),
    "lstm": lambda **o: RecurrentLM(V, 4, 5, L=2, **o),
    "transformer": lambda **o: TransformerLM(V, D=8, N=2, L=3, T=T, **o),
}
every_model = pytest.mark.parametrize("kind", MODELS)


def made(kind, device="cpu", **options):
    mx.seed(0)
    model = MODELS[kind](**options).to(device)
    return model, Adam(model.parameters(), 0.01)


def step(model, optimizer=None, ids=IDS):
    """One step of training, and the loss."""
    device = model.parameters()[0].device
    model.zero_grad()
    loss = model.loss(to_device(ids[0], device), to_device(ids[1], device))
    loss.backward()
    if optimizer:
        optimizer.step()
    return loss


def recorded(kind="lstm", device="cpu", norms=False, **options):
    model, optimizer = made(kind, device, **options)
    with mx.record(model, norms=norms) as log:
        step(model, optimizer)
    return log


def shown(log):
    """Copies of all arrays of a log."""
    return {f"{path} {n} {name}": np.array(array) for path in log.paths for n, call in enumerate(log.calls(path))
            for name, array in call.items()}


# It changes nothing


@every_model
@every_device
@pytest.mark.parametrize("norms", [False, True])
def test_recording_changes_no_bit_and_draws_no_number(kind, device, norms):
    def run(recording):
        model, optimizer = made(kind, device, dropout=0.3)
        log, losses, grads = mx.record(model, norms=norms), [], []
        for _ in range(3):
            with log if recording else contextlib.nullcontext():
                losses.append(step(model, optimizer).item())
                grads += on_host([p.grad.copy() for p in model.parameters()])
        arrays = {**model.state_dict(), **{f"adam {n}": a for n, a in optimizer.state_dict().items()}, **dict(enumerate(grads))}
        return losses, randomness.stream().random(), arrays

    (losses, draw, arrays), (same_losses, same_draw, same_arrays) = run(False), run(True)
    assert losses == same_losses and draw == same_draw and same(arrays, same_arrays)


def test_without_a_block_nothing_is_seen_and_the_slot_is_empty(monkeypatch):
    model, optimizer = made("lstm")
    log = mx.record(model)
    for name in ("module", "watch", "output", "leaves", "around"):
        monkeypatch.setattr(type(log), name, lambda *_: pytest.fail("nobody is looking"))
    assert observer.get() is None
    step(model, optimizer)
    assert log.paths == [] and log.steps == 0 and "nothing was recorded yet" in str(log)
    refused(KeyError, lambda: log["head"], "'head' was not called", "run a step inside `with log:`")


@every_device
def test_what_was_recorded_never_changes(device):
    model, optimizer = made("lstm", device)
    log = mx.record(model)
    with log:
        step(model, optimizer)
    first, copies, numbers = log["head"], shown(log), json.dumps(log.summary())
    call = np.array(first["output"])
    for _ in range(2):
        step(model, optimizer)
    for p in model.parameters():
        p.assign_(p.array * 0)
        p.grad[...] = 9
    assert same(shown(log), copies) and json.dumps(log.summary()) == numbers
    with pytest.raises(ValueError, match="read-only"):
        first["output"][...] = 0
    with log:
        step(model, optimizer)
    assert np.array_equal(first["output"], call), "also after the log went on to another step"
    assert not np.array_equal(log["head"]["output"], call) and log.steps == 2


def test_only_its_own_copies_stay_in_memory():
    model, _ = made("transformer")
    log = mx.record(model)
    gc.collect()
    gc.disable()
    try:
        with log:
            loss = step(model)
            tensors = [weakref.ref(loss), weakref.ref(model(IDS[0]))]
        del loss
        assert [t() for t in tensors] == [None, None], "freed by reference count alone"
        before = {id(p.array) for p in model.parameters()}
        runs = [run for calls in log._calls.values() for call in calls for run in call._runs]
        kept = [a for run in runs for parts in run.shown.values() for a in parts.values()]
        assert len(kept) > 9 and all(a.base is None and id(a) not in before for a in kept)
        assert not any(run.lasting for run in runs), "by which steps were told apart"
    finally:
        gc.enable()


def test_what_happens_after_the_block_is_not_recorded():
    model, _ = made("lstm")
    with mx.record(model) as log:
        loss = model.loss(*IDS)
    before = set(shown(log))
    loss.backward()
    assert set(shown(log)) == before and not any("dh" in name for name in before)
    assert {numbers["gradient"] for numbers in log.parameters.values()} == {None}


def test_an_error_ends_the_step_and_the_log_says_so():
    model, _ = made("lstm")
    log = mx.record(model)
    with mx.observe(mx.Observer()) as outer:
        with pytest.raises(RuntimeError, match="stop"), log:
            model.loss(*IDS)
            raise RuntimeError("stop\nhere")
        assert observer.get().links == (outer,), "the slot has what it had"
    assert "incomplete, it ended with RuntimeError: stop here" in str(log) and log["head"]["output"].shape == (B, T, V)
    with pytest.raises(IndexError), log:
        model(IDS[0] + V)
    assert dict(log["tokens"]) == dict(log[""]) == {}, "they were called, and showed nothing"
    with log:
        step(model)
        with contextlib.suppress(IndexError):
            model.tokens(IDS[0] + V)
        ops.attention(*[leaf(np.zeros((1, 1, 2, 2)))] * 3)
    assert log.trouble == "" and "incomplete" not in str(log)
    assert "probs" in log[""] and "probs" not in log["tokens"], "a call that failed is over"


def test_each_thread_has_its_own_recorder():
    model, _ = made("lstm")
    logs = [mx.record(model) for _ in range(2)]
    inside = threading.Barrier(2)

    def look(log, ids):
        with log:
            inside.wait()
            mx.gradients(model.loss(*ids))
            inside.wait()

    threads = [threading.Thread(target=look, args=(log, ids)) for log, ids in zip(logs, (IDS, IDS[::-1]))]
    with mx.record(model) as idle:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused(RuntimeError, idle.__enter__, "record: this recorder is recording already", "make one for each thread")
    assert idle.paths == []
    for log, ids in zip(logs, (IDS, IDS[::-1])):
        with mx.record(model) as alone:
            mx.gradients(model.loss(*ids))
        assert same(shown(log), shown(alone))


@pytest.mark.parametrize("call, parts", [
    (lambda: mx.record(mx.Tensor(np.ones(1))), "record: model is a Tensor; expected a Module"),
    (lambda: mx.record(MODELS["rnn"](), every=0), "record: every is 0; expected a whole number of at least 1"),
])
def test_bad_options_are_refused(call, parts):
    refused((TypeError, ValueError), call, parts)


# Through time


@pytest.mark.parametrize("s, first", [(1.1, 13780.61234), (1.0, 1.0), (0.9, 2.6561398888e-5)])
@every_device
def test_c39_the_gradient_of_every_state_of_a_rotation(s, first, device):
    """h_t = s R h_{t-1} turns and scales, so the gradient by the state t steps before the end is s^t long, in every sample."""
    steps, turn = 101, np.array([[math.cos(0.7), math.sin(0.7)], [-math.sin(0.7), math.cos(0.7)]])
    model = mx.nn.RNN(1, 2, activation="linear", dtype="float64").to(device)
    for path, p in model.named_parameters():
        p.assign_(to_device(s * turn if path.endswith("U") else np.zeros(p.shape), device))
    x, u = mx.tensor(np.zeros((5, steps, 1)), device=device), leaf([0.8, -0.6], device=device)
    with mx.record(model) as log:
        (model(x)[0][:, -1] * u).sum().backward()
    [path] = log.showing("dh")
    np.testing.assert_allclose(log[path].lengths("dh"), [s ** np.arange(steps)[::-1]] * 5, rtol=1e-10)
    [mean] = log.gradients().values()
    np.testing.assert_allclose(mean[0], first, rtol=1e-9, err_msg="the mean of samples, not the length of their sum")
    assert log.summary()["modules"][path]["dh_first"] == mean[0] and abs(mean[-1] - 1) < 1e-12


def a_sequence(cell, device="cpu"):
    """x, the first states and the weights of a cell, float64."""
    rng = np.random.default_rng(1)
    states, gates = {"rnn": (1, 1), "gru": (1, 3), "lstm": (2, 4)}[cell]
    shapes = [(B, T, 2), *[(B, 5)] * states, (2, 5 * gates), (5, 5 * gates), (5 * gates,), *[(5 * gates,)] * (cell == "gru")]
    arrays = [leaf(rng.standard_normal(shape), device=device) for shape in shapes]
    return arrays[0], arrays[1:1 + states], arrays[1 + states:]


class Sequence(mx.nn.Module):
    """One recurrent sequence in one of three ways: the fast op, the loop, and cells on the tape."""

    def __init__(self, cell, way):
        self.cell, self.way = cell, way

    def forward(self, x, states, weights):
        step_of = getattr(ops, f"{self.cell}_cell")
        if self.way != "tape":
            op = getattr(ops, self.cell) if self.way == "fast" else ops.unroll(step_of)
            return op(x, *states, *weights)[0]
        hs = []
        for x_t in ops.unstack(x, axis=1):
            states = step_of(x_t, *states, *weights)
            states = states if isinstance(states, tuple) else (states,)
            hs.append(states[0])
        return ops.stack(*hs, axis=1)


@pytest.mark.parametrize("cell, gates", [("rnn", ""), ("gru", "rzn"), ("lstm", "ifgo")])
@every_device
def test_the_fast_way_the_loop_and_the_tape_show_the_same_gates_and_gradients(cell, gates, device):
    seen = {}
    for way in ("fast", "unroll", "tape"):
        x, states, weights = a_sequence(cell, device)
        with mx.record(Sequence(cell, way)) as log:
            (log.model(x, states, weights) ** 2).sum().backward()
        seen[way] = dict(log[""])
    names = [*gates, "dh", *["dc"] * (cell == "lstm")]
    for name in names:
        assert seen["fast"][name].shape == (B, T, 5)
        for way in ("unroll", "tape"):
            np.testing.assert_allclose(seen[way][name], seen["fast"][name], rtol=1e-9, atol=1e-12, err_msg=f"{way} {name}")
    assert set(seen["fast"]) == {*names, "input", "output", "dinput", "doutput", *["c"] * (cell == "lstm")}
    np.testing.assert_allclose(seen["fast"]["doutput"], 2 * seen["fast"]["output"], err_msg="from outside, not through time")
    np.testing.assert_allclose(seen["fast"]["dh"][:, -1], seen["fast"]["doutput"][:, -1])


def test_gates_are_those_of_the_cell():
    model, _ = made("lstm")
    with mx.record(model) as log:
        step(model)
    call, h, c = log["recurrence.layers.0"], np.zeros((B, 5), "float32"), np.zeros((B, 5), "float32")
    W, U, b = (model.state_dict()[f"recurrence.layers.0.{name}"] for name in "WUb")
    for t in range(T):
        a = call["input"][:, t] @ W + h @ U + b
        i, f, g, o = (np.tanh(x) if n == 2 else 1 / (1 + np.exp(-x)) for n, x in enumerate(np.split(a, 4, -1)))
        c = f * c + i * g
        h = o * np.tanh(c)
        for name, value in zip("ifgoc", (i, f, g, o, c)):
            np.testing.assert_allclose(call[name][:, t], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(call["output"][:, -1], h, rtol=1e-4, atol=1e-6)


def test_a_way_back_that_was_broken_off_leaves_the_first_steps_open():
    x, states, weights = a_sequence("rnn")

    class Broken(mx.Recorder):
        def watch(self, op, arrays):
            see = super().watch(op, arrays)

            def until(name, array, step):
                if step == 2:
                    raise KeyboardInterrupt
                see(name, array, step)
            return until

    log = Broken(Sequence("rnn", "fast"))
    with pytest.raises(KeyboardInterrupt), log:
        log.model(x, states, weights).sum().backward()
    dh = log[""]["dh"]
    assert dh.shape == (B, T, 5) and np.isnan(dh[:, :3]).all() and np.isfinite(dh[:, 3:]).all()


def test_a_layer_that_reads_backwards_counts_its_own_steps():
    model = mx.nn.LSTM(2, 3, bidirectional=True)
    x = mx.tensor(np.random.default_rng(0).standard_normal((1, 4, 2)), dtype="float32")
    with mx.record(model) as log:
        (model(x)[0][:, 0]).sum().backward()        # the position that it reads last, and the other layer first
    there, back = (log[path]["dh"] for path in log.showing("dh"))
    assert not there[:, 1:].any() and there[:, 0].any() and back.all()
    np.testing.assert_array_equal(back[:, -1], 1)


# By module


@every_model
def test_outputs_and_their_gradients_by_path(kind):
    log = recorded(kind)
    assert log.paths == [path for path, _ in log.model.named_modules() if path in log.paths]
    [tokens] = [path for path in log.paths if path.split(".")[-1] == "tokens"]
    logits = log["head"]["output"]
    assert log["head"]["output"].shape == (B, T, V) and np.array_equal(log[""]["output"], logits)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(log["head"]["doutput"], (p - np.eye(V)[IDS[1]]) / (B * T), atol=1e-7)
    W = made(kind)[0].head.W.array                      # as it was before the step
    np.testing.assert_allclose(log["head"]["dinput"], log["head"]["doutput"] @ W.T, atol=1e-7)
    assert "input" not in log[tokens], "ids are not recorded"
    with pytest.raises(KeyError, match=r"did not show 'input', only output, doutput"):
        log[tokens]["input"]


def test_attention_and_the_stream_of_a_transformer():
    log = recorded("transformer")
    assert log.showing("probs") == [f"blocks.{n}.attention" for n in range(3)]
    probs = log["blocks.1.attention"]["probs"]
    assert probs.shape == (B, 2, T, T) and not np.triu(probs, 1).any()
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
    stream, dstream = log.stream(), log.dstream()
    assert stream.shape == dstream.shape == (4, B, T, 8)
    assert np.array_equal(stream[0], log["blocks.0"]["input"]) and np.array_equal(stream[1], log["blocks.1"]["input"])
    assert np.array_equal(stream[3], log["final_norm"]["input"]) and np.array_equal(dstream[3], log["final_norm"]["dinput"])
    added = [log[path]["output"] for path in log.paths if path.startswith("blocks.0.") and path.endswith((".out", ".down"))]
    assert len(added) == 2
    np.testing.assert_allclose(stream[1] - stream[0], sum(added), atol=1e-6)
    assert list(log.gradients()) == ["blocks.0 dinput", "blocks.0 doutput", "blocks.1 doutput", "blocks.2 doutput"]
    np.testing.assert_allclose(list(log.gradients().values()), np.sqrt((dstream ** 2).sum(-1)).mean(1), rtol=1e-5)
    refused(ValueError, lambda: log.stream("block"), "stream: blocks is 'block'", "one of: blocks")


def test_blocks_are_the_outermost_list_and_two_lists_are_told_apart():
    class Wide(mx.nn.Module):
        def __init__(self):
            self.halves = [mx.nn.Linear(4, 4), mx.nn.Linear(4, 4)]

        def forward(self, x):
            return self.halves[0](x) + self.halves[1](x)

    class Net(mx.nn.Module):
        def __init__(self, *widths):
            self.up, self.down = [Wide(), Wide()], [mx.nn.Linear(4, D) for D in widths]

        def forward(self, x):
            for block in (*self.up, *self.down):
                x = block(x)
            return x

    with mx.record(Net(4)) as log:
        log.model(mx.tensor(np.ones((1, 2, 4)), dtype="float32")).sum().backward()
    assert log.chains() == {"up": ["up.0", "up.1"], "down": ["down.0"]}
    assert log.stream("up").shape == (3, 1, 2, 4) and np.array_equal(log.stream("up")[2], log.stream("down")[0])
    refused(ValueError, log.stream, "stream: blocks is None", "one of: up, down")
    with mx.record(Net(7)) as log:
        log.model(mx.tensor(np.ones((1, 2, 4)), dtype="float32"))
    refused(ValueError, lambda: log.stream("down"), "stream: down makes (1, 2, 7) of (1, 2, 4)")


def test_a_module_that_is_called_twice_shows_both_calls_and_one_from_outside_none():
    class Twice(mx.nn.Module):
        def __init__(self):
            self.inner = mx.nn.Linear(2, 2)
            self.alias = self.inner

        def forward(self, x):
            return stranger(self.alias(self.inner(x)))

    model, stranger = Twice(), mx.nn.Linear(2, 2)
    x = leaf(np.ones((1, 2)), "float32")
    with mx.record(model) as log:
        model(x).sum().backward()
    one, two = log.calls("inner")
    assert log.paths == ["", "inner"] and len(log.calls("")) == 1 and np.array_equal(one["output"], two["input"])
    np.testing.assert_array_equal(log["inner"]["doutput"], two["doutput"])
    np.testing.assert_allclose(one["doutput"], two["doutput"] @ model.inner.W.array.T, rtol=1e-6)
    total = sum(call["doutput"].T @ np.ones((1, 1)) for call in (one, two))
    assert log.parameters["inner.b"]["gradient"] == pytest.approx(float(np.linalg.norm(total)), rel=1e-6)
    assert list(log.parameters) == ["inner.W", "inner.b"]


def test_ops_outside_of_all_modules_belong_to_the_model_and_several_have_names_of_their_own():
    class Plain(mx.nn.Module):
        def look(self, q):
            return ops.attention(q, q, q) + ops.attention(q, q, q, causal=True)

    q = leaf(np.random.default_rng(0).standard_normal((1, 1, 3, 2)))
    with mx.record(Plain()) as log:
        log.model.look(q)
    assert log.paths == [""] and set(log[""]) == {"probs", "probs.1"}
    assert log[""]["probs"].all() and not np.triu(log[""]["probs.1"][0, 0], 1).any()


@pytest.mark.parametrize("H", [5, 6], ids=["of one width", "of two widths"])
@every_device
def test_stacked_cells_in_one_module_are_told_apart_by_their_weights(H, device):
    """Two layers step by step show what two sequences show one above the other; the weights of the second are views."""
    rng, D = np.random.default_rng(2), 5
    x = leaf(rng.standard_normal((B, T, D)), device=device)
    layers = [[leaf(rng.standard_normal(shape), device=device) for shape in ((width, 4 * n), (n, 4 * n), 4 * n)]
              for width, n in ((D, 5), (5, H))]
    start = [[leaf(np.zeros((B, n)), device=device)] * 2 for n in (5, H)]

    class Stack(mx.nn.Module):
        def forward(self, x):
            states, hs = list(start), []
            for x_t in ops.unstack(x, axis=1):
                for n, weights in enumerate(layers):
                    weights = [w[:] for w in weights] if n else weights
                    states[n] = ops.lstm_cell(states[0][0] if n else x_t, *states[n], *weights)
                hs.append(states[1][0])
            return ops.stack(*hs, axis=1)

    class Two(mx.nn.Module):
        def forward(self, x):
            for state, weights in zip(start, layers):
                x = ops.lstm(x, *state, *weights)[0]
            return x

    cells, sequences = mx.record(Stack()), mx.record(Two())
    for log in (cells, sequences):
        with log:
            (log.model(x) ** 2).sum().backward()
    for name in ("i", "f", "g", "o", "dh", "dc"):
        for suffix, width in ("", 5), (".1", H):
            assert cells[""][name + suffix].shape == cells[""].shape(name + suffix) == (B, T, width)
            np.testing.assert_allclose(cells[""][name + suffix], sequences[""][name + suffix], rtol=1e-9, atol=1e-12)
    assert not np.array_equal(cells[""]["dc"], cells[""].get("dc.1")) and "dh.2" not in cells[""]
    assert list(cells.gradients()) == [f"Stack {name}" for name in ("dh", "dc", "dh.1", "dc.1")]
    label, gates = cells.gates(1)
    assert label == "i.1" and np.array_equal(gates["f"], cells[""]["f.1"][0]) and cells.gates("i.1")[0] == label
    assert "c" not in gates, "the cells did not show it"


def test_ops_that_show_the_same_name_do_not_write_over_each_other():
    class Both(mx.nn.Module):
        def __init__(self):
            self.a, self.b = mx.nn.GRU(3, 4).layers[0], mx.nn.RNN(3, 4).layers[0]

        def forward(self, x, h, back=True):
            one = ops.gru(x, h, self.a.W, self.a.U, self.a.b, self.a.bU)[0]
            return ops.rnn(x, h, self.b.W, self.b.U, self.b.b)[0] + (one if back else one.detach())

    x, h = (leaf(np.random.default_rng(0).standard_normal(shape), "float32") for shape in ((2, 5, 3), (2, 4)))
    logs = []
    for back in (True, False):
        logs.append(mx.record(Both()))
        with logs[-1] as log:
            log.model(x, h, back).sum().backward()
    gru, rnn = (logs[0][""][name] for name in ("dh", "dh.1"))
    assert np.array_equal(gru[:, -1], np.ones((2, 4))) and not np.allclose(gru, rnn)
    assert "dh" not in logs[1][""] and "dh.1" in logs[1][""], "the second keeps its number when the first shows none"

    class Attentions(mx.nn.Module):
        def forward(self, x):
            q = x[:, None]
            return ops.additive_attention(x, x, x, leaf(np.ones(3), "float32")).sum() + ops.attention(q, q, q).sum()

    with mx.record(Attentions()) as log:
        log.model(x)
    assert log[""]["probs"].shape == (2, 5, 5) and log[""]["probs.1"].shape == (2, 1, 5, 5)
    assert {label: [p.shape for p in heads.values()] for label, heads in log.attention().items()} == {
        "": [(5, 5)], "probs.1": [(5, 5)]}
    assert np.array_equal(log.attention("probs.1", 0, 1)["probs.1"][0], log[""]["probs.1"][1, 0])


class Looks(mx.nn.Module):
    """A decoder that asks for one query after the other."""

    def __init__(self, op):
        self.op = op

    def forward(self, q, k, other=None):
        for t in range(q.shape[-2]):
            for keys in (k, k if other is None else other):
                self.look(q[..., t:t + 1, :], keys)
                if other is None:
                    break

    def look(self, q_t, k):
        return self.op(q_t, k, k, *[W_LOOK] * (self.op is ops.additive_attention))


W_LOOK = leaf(np.ones(2))


@pytest.mark.parametrize("op, N", [(ops.additive_attention, ()), (ops.attention, (2,))], ids=["additive", "multiplicative"])
def test_attention_that_is_asked_step_by_step_in_one_call_is_put_together(op, N):
    rng = np.random.default_rng(0)
    q, k, other = (leaf(rng.standard_normal((B, *N, length, 2))) for length in (4, 5, 5))
    with mx.record(Looks(op)) as log:
        log.model(q, k)
    with mx.record(Looks(op)) as whole:
        whole.model.look(q, k)
    assert set(log[""]) == {"input", "probs"} and log[""].shape("probs") == (B, *N, 4, 5)
    np.testing.assert_allclose(log[""]["probs"], whole[""]["probs"], rtol=1e-12)
    np.testing.assert_allclose(log[""].lengths("probs"), whole[""].lengths("probs"), rtol=1e-12)
    [heads] = log.attention(sample=1).values()
    assert [p.shape for p in heads.values()] == [(4, 5)] * (N or (1,))[0]
    with mx.record(Looks(op)) as both:
        both.model(q, k, other)
    assert np.array_equal(both[""]["probs"], log[""]["probs"]) and both[""]["probs.1"].shape == (B, *N, 4, 5)
    assert not np.allclose(both[""]["probs"], both[""]["probs.1"]), "two sources are two attentions"
    with mx.record(Looks(op), norms=True) as lengths:
        lengths.model(q, k)
    assert set(lengths[""]) == {"input"}


def test_bahdanaus_attention_can_be_looked_at():
    model = Seq2Seq(6, 6, 4, 4, attention="additive")
    source, lengths, inputs, targets = pair_batch([[1, 2, 3], [3]], [[1, 4, 5], [2, 3]], start=1, stop=2)
    with mx.record(model) as log:
        model.loss(source, lengths, inputs, targets).backward()
    [heads] = log.attention(sample=1).values()
    assert heads[0].shape == (4, 3) and np.allclose(heads[0], [[1, 0, 0]] * 4), "one symbol long"
    assert log.attention()["decoder"][0].shape == (4, 3) and len(log.text.attention("decoder").splitlines()) == 6
    assert log["decoder"]["probs"].shape == log.over_time("decoder", "probs").shape == (2, 4, 3)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 1)])
def test_batches_that_are_accumulated_are_no_steps_of_one_decoder(sizes):
    """A decoder that goes step by step in one call: each batch is a walk of its own, also where they have one step each."""
    def pairs(n, symbols):
        return pair_batch([[1, 2, 3][:n + 1]] * n, [[4] * symbols] * n, start=1, stop=2)

    for symbols in (0, 3):
        model = Seq2Seq(6, 6, 4, 4)
        batches = [pairs(n, symbols) for n in sizes]
        log = mx.record(model)
        history = train(model, batches, SGD(model.parameters(), 0.0), steps=1, accumulate=2, record=log, title=None)
        path, steps = "decoder.recurrence.layers.0", symbols + 1
        with mx.record(model) as last:
            model.loss(*batches[1]).backward(float((batches[1][-1] >= 0).sum() / sum((b[-1] >= 0).sum() for b in batches)))
        assert len(log.calls(path)) == 2 * steps and log.over_time(path, "dh").shape == (sizes[1], steps, 4)
        assert np.array_equal(log.over_time(path, "dh"), last.over_time(path, "dh"))
        assert {name: size.tolist() for name, size in log.gradients().items()} == {
            name: size.tolist() for name, size in last.gradients().items()}
        assert log.over_time("decoder", "probs").shape[:2] == (sizes[1], steps)
        assert str(log) and math.isfinite(history.recorded[0]["modules"][path]["dh_first"])


def test_a_module_that_decodes_twice_in_one_call_shows_the_last_walk():
    class Decoder(mx.nn.Module):
        def __init__(self):
            self.cell = Step()

        def forward(self, x):
            for t in range(x.shape[1]):
                y = self.cell(x[:, t:t + 1])
            return y

    class Step(mx.nn.Module):
        def __init__(self):
            self.inner = mx.nn.RNN(3, 4)

        def forward(self, x_t):
            return self.inner(x_t)[0]

    class Net(mx.nn.Module):
        def __init__(self):
            self.decoder = Decoder()

        def forward(self, *sources):
            return sum(self.decoder(x).sum() for x in sources)

    x, y = (leaf(np.random.default_rng(0).standard_normal((2, n, 3)), "float32") for n in (4, 5))
    with mx.record(Net()) as log:
        (log.model(y, x) + log.model(y, x)).backward()
        assert log.over_time("decoder.cell.inner.layers.0", "dh").shape == (2, 4, 4), "steps of one call of the decoder"
    dh = log.over_time("decoder.cell.inner.layers.0", "dh")
    assert np.isnan(dh[:, :3]).all() and np.isfinite(dh[:, 3]).all(), "this decoder forgets: only the last step has one"
    assert np.isnan(log.gradients()["decoder.cell.inner.layers.0 dh"]).tolist() == [True] * 3 + [False]
    with mx.record(Net()) as log:
        (log.model(x) + log.model(x)).backward()
    path = "decoder.cell.inner.layers.0"
    assert len(log.calls(path)) == 8 and log.over_time(path, "dh").shape == (2, 4, 4)


def test_steps_are_those_of_one_op_on_one_batch_and_a_search_may_lose_rows():
    @mx.op("x (B, D), h (B, H), W (D, H), U (H, H), b (H) -> h_next (B, H)")
    def other_cell(x, h, W, U, b):
        return ops.rnn_cell.vjp(x, h, W, U, b)

    class Several(mx.nn.Module):
        def forward(self, x, h, weights):
            for rows in (B, B, 2):
                h = ops.rnn_cell(x[:rows, 0], h[:rows], *weights)
            return other_cell(x[:2, 0], h, *weights)

    x, [h], weights = a_sequence("rnn")
    with mx.record(Several()) as log:
        log.model(x, h, weights).sum().backward()
    assert [log[""].shape(name) for name in ("dh", "dh.1", "dh.2")] == [(B, 2, 5), (2, 1, 5), (2, 1, 5)]
    module = mx.nn.RNN(2, 3, dtype="float64")
    with mx.record(module) as log:
        sum(module(x[:rows, :1])[0].sum() for rows in (B, 2)).backward()
    assert log.over_time("layers.0", "dh").shape == (2, 1, 3) and str(log)


def test_lengths_that_change_later_change_no_record():
    class Once(mx.nn.Module):
        def forward(self, x, h, weights, *lengths):
            return sum(ops.rnn(x, h, *weights, n)[0].sum() for n in lengths)

    (x, [h], weights), lengths = a_sequence("rnn"), [np.array([1, 0, 1]), np.array([1, 1, 0])]
    with mx.record(Once()) as log:
        log.model(x[:, :1], h, weights, *lengths).backward()
        for n in lengths:
            n[:] = 0
    for name, live in ("dh", [[1], [0], [1]]), ("dh.1", [[1], [1], [0]]):
        assert log[""].live(name).tolist() == live and np.array_equal(~np.isnan(log[""].lengths(name)), live)


def test_a_loop_outside_of_all_modules_ends_with_its_way_back():
    class Cell(mx.nn.Module):
        def step(self, x_t, h, weights):
            return ops.rnn_cell(x_t, h, *weights)

        def forward(self, x_t, h, weights):
            return self.step(x_t, h, weights)

    for how in (Cell.__call__, Cell.step):          # as a module, and in a method of the model
        (x, [h], weights), model = a_sequence("rnn"), Cell()
        with mx.record(model) as log:
            for rows in (B, B, 2):
                state = h[:rows]
                for x_t in ops.unstack(x[:rows], axis=1):
                    state = how(model, x_t, state, weights)
                state.sum().backward()
            assert log.over_time("", "dh").shape == (2, T, 5)
            for rows in (3, 2, 1):
                how(model, x[:rows, 0], h[:rows], weights)      # a batch that shrinks, as in a search
        assert len(log.calls("")) == (3 * T + 3 if how is Cell.__call__ else 4) and str(log)
        assert "input" not in log[""] or log.over_time("", "input").shape == (1, 2)


def test_padding_is_no_vanishing_gradient():
    """Means are over the sequences that have not ended; a number that blew up is no padding."""
    lengths, x = np.array([6, 2, 0]), np.random.default_rng(0).standard_normal((3, 7, 3)).astype("float32")
    for norms in (False, True):
        for module in (mx.nn.GRU(3, 8), mx.nn.LSTM(3, 8), mx.nn.RNN(3, 8)):
            with mx.record(module, norms=norms) as log:
                module(mx.tensor(x), None, lengths)[0].sum().backward()
            call = log["layers.0"]
            live = np.arange(7) < lengths[:, None]
            assert np.array_equal(call.live("dh"), live)
            for name in set(call) & set("ifogcrzn") | {"dh"} | {"dc"} & set(call):
                assert np.array_equal(np.isnan(call.lengths(name)), ~live), name
            size, mean = call.lengths("dh"), log.gradients()["layers.0 dh"]
            np.testing.assert_allclose(mean[:6], [*size[:2, :2].mean(0), *size[0, 2:6]], rtol=1e-12)
            numbers = log.summary()["modules"]["layers.0"]
            assert math.isnan(mean[6]) and numbers["dh_first"] == mean[0] and math.isnan(numbers["dh_last"])
            assert str(log) and log.text.gradients()
    module = mx.nn.RNN(3, 8)
    with mx.record(module) as log:
        hs = module(mx.tensor(x), None, lengths)[0]
        hs.backward(np.where(np.arange(3)[:, None, None] == 1, np.nan, np.ones(hs.shape)).astype("float32"))
    assert np.isnan(log.gradients()["layers.0 dh"][:2]).all() and np.isfinite(log.gradients()["layers.0 dh"][2:6]).all()


def test_an_empty_batch_and_an_empty_sequence_make_a_table():
    for shape in ((0, 3, 2), (2, 0, 2)):
        for kind in ("RNN", "GRU", "LSTM"):
            model = getattr(mx.nn, kind)(2, 3)
            with mx.record(model) as log:
                model(mx.tensor(np.zeros(shape, "float32")))[0].sum().backward()
            assert "layers.0" in str(log)


def test_an_input_that_is_a_leaf_has_a_gradient_too():
    class Net(mx.nn.Module):
        def __init__(self):
            self.one, self.same = mx.nn.Linear(2, 2), mx.nn.Dropout(0.5)

        def forward(self, x):
            return self.one(self.same(x))

    model, x = Net().eval(), leaf(np.ones((1, 2)), "float32")
    log = mx.record(model)
    with log:
        for n in range(1, 3):
            (n * model(x).sum()).backward()
        y = x * 9
        with mx.no_grad():
            model(x)
            model(y)
        y.sum().backward()
    slope = model.one.W.array.sum(1)
    for path in ("", "one", "same"):
        first, second, *untracked = log.calls(path)
        np.testing.assert_allclose([first["dinput"][0], second["dinput"][0]], [slope, 2 * slope], rtol=1e-6)
        assert [set(call) for call in untracked] == 2 * [{"input", "output"}]
    np.testing.assert_allclose(log.calls("same")[0]["doutput"][0], slope, rtol=1e-6, err_msg="it passed the leaf on")
    np.testing.assert_allclose(x.grad[0], 3 * slope + 9, rtol=1e-6)


def test_recorders_and_profiles_look_on_together_and_end_in_any_order():
    model, _ = made("lstm")
    with mx.record(model) as alone:
        step(model)
    a, b = mx.record(model), mx.record(model)
    with a, mx.profile() as profile, b:
        step(model)
    assert same(shown(a), shown(alone)) and same(shown(b), shown(alone)) and a.parameters == b.parameters == alone.parameters
    assert profile.rows["lstm"].calls == 2
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    step(model)
    b.__exit__(None, None, None)
    assert observer.get() is None and a.paths == [] and same(shown(b), shown(alone))


def test_a_decoder_that_goes_step_by_step_is_put_together():
    class Decoder(mx.nn.Module):
        def __init__(self):
            self.cell = Cell()

        def forward(self, x, h, weights):
            for x_t in ops.unstack(x, axis=1):
                h = self.cell(x_t, h, weights)
            return h

    class Cell(mx.nn.Module):
        def forward(self, x_t, h, weights):
            return ops.gru_cell(x_t, h, *weights)

    x, [h], weights = a_sequence("gru")
    with mx.record(Decoder()) as log:
        (log.model(x, h, weights) ** 2).sum().backward()
    with mx.record(Sequence("gru", "fast")) as fast:
        (fast.model(x, [h], weights)[:, -1] ** 2).sum().backward()
    assert len(log.calls("cell")) == T and log["cell"]["dh"].shape == (B, 1, 5)
    for name in ("r", "z", "n", "dh"):
        np.testing.assert_allclose(log.over_time("cell", name), fast[""][name], rtol=1e-9)
    np.testing.assert_allclose(log.gradients()["cell dh"], fast.gradients()["Sequence dh"], rtol=1e-9)


# In numbers


def test_three_numbers_for_every_parameter_are_those_computed_by_hand():
    model, _ = made("lstm")
    before, optimizer = model.state_dict(), SGD(model.parameters(), 0.5)
    with mx.record(model) as log:
        step(model)
        grads = {path: p.grad.copy() for path, p in model.named_parameters()}
        assert clip_grad_norm(model.parameters(), 1e-3) > 1e-2
        optimizer.step()
    assert list(log.parameters) == list(before)
    for path, after in model.state_dict().items():
        size, gradient, change = (np.linalg.norm(a) for a in (before[path], grads[path], after - before[path]))
        numbers = log.parameters[path]
        assert numbers["norm"] == pytest.approx(size, rel=1e-6)
        assert numbers["gradient"] == pytest.approx(gradient, rel=1e-6), "before clipping"
        assert numbers["update"] == pytest.approx(change / size if size else math.inf, rel=1e-4)


def test_gradients_that_are_written_over_within_the_step_were_recorded_as_they_came():
    model, _ = made("rnn")
    with mx.record(model) as log:
        grads = mx.gradients(model.loss(*IDS))
        expected = {path: float(np.linalg.norm(grads[p])) for path, p in model.named_parameters()}
        for p in model.parameters():
            if grads[p].flags.writeable:
                grads[p][...] = 0
    assert {path: numbers["gradient"] for path, numbers in log.parameters.items()} == pytest.approx(expected, rel=1e-6)


@every_device
def test_gradients_of_several_backward_passes_are_added_and_each_call_is_kept(device):
    model, _ = made("gru", device)
    parts = [to_device(IDS[:, n:n + 1], device) for n in range(2)]
    with mx.record(model) as log:
        for ids in parts:
            model.loss(*ids).backward()
    for path, p in model.named_parameters():
        assert log.parameters[path]["gradient"] == pytest.approx(float(np.linalg.norm(to_host(p.grad))), rel=1e-6)
        assert log.parameters[path]["update"] == 0
    calls = log.calls("recurrence.layers.1")
    assert len(calls) == 2 and all(call["dh"].shape == (1, T, 5) for call in calls)
    with mx.record(model) as first:
        model.loss(*parts[0]).backward()
    np.testing.assert_array_equal(first["recurrence.layers.1"]["dh"], calls[0]["dh"])
    assert np.array_equal(log.over_time("recurrence.layers.1", "dh"), calls[1]["dh"]), "batches do not follow each other"
    both = np.concatenate([call.lengths("doutput") for call in calls])
    assert log.summary()["modules"]["recurrence.layers.1"]["doutput"] == pytest.approx(both.mean())


@every_model
@every_device
def test_norms_are_those_of_what_would_have_been_kept(kind, device):
    full, norms = recorded(kind, device), recorded(kind, device, norms=True)
    for path in full.paths:
        assert set(norms[path]) == set(full[path]) - {"probs"}
        for name in norms[path]:
            assert norms[path][name].shape == full[path][name].shape[:-1]
            assert np.array_equal(norms[path][name], full[path].lengths(name)) and norms[path][name].dtype == "float64"
    assert norms.summary() == full.summary() and norms.gradients().keys() == full.gradients().keys()
    assert sum(a.nbytes for a in shown(norms).values()) < sum(a.nbytes for a in shown(full).values())
    if kind == "transformer":
        assert norms.stream().shape == norms.dstream().shape == (4, B, T)
        refused(ValueError, norms.attention, "attention: layer is None; recorded were none", "norms=True keeps no probs")
    if kind == "lstm":
        refused(ValueError, norms.gates, "gates: this recorder kept the lengths only")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@every_device
def test_lengths_overflow_and_vanish_only_where_the_numbers_do(dtype, device):
    big, small = float(np.finfo(dtype).max) / 4, float(np.finfo(dtype).smallest_subnormal)
    rows = [[3, 4], [0, 0], [3 * small, 4 * small], [big, big], [math.inf, 1], [math.nan, 1], [math.inf, math.nan]]
    x = to_device(np.array(rows, dtype), device)
    expected = [5, 0, 5 * small, big * math.sqrt(2), math.inf, math.nan, math.nan]
    with mx.backend.expecting_overflow():
        np.testing.assert_allclose(to_host(length(x)), expected, rtol=1e-3 if dtype == "float16" else 1e-6)
        assert math.isnan(float(length(x, None))) and float(length(x[:1], None)) == pytest.approx(5)
    for shape in ((2, 0), (0, 2), ()):
        assert to_host(length(x.sum() * 0 if shape == () else x[:0].reshape(shape))).shape == shape[:-1]


def test_what_is_not_finite_is_recorded_as_it_is_without_a_warning():
    model, _ = made("lstm")
    model.head.W.assign_(np.full(model.head.W.shape, np.inf, "float32"))
    with mx.record(model) as log, np.errstate(all="ignore"):
        step(model)
    assert not np.isfinite(log["head"]["output"]).any() and math.isnan(log.summary()["modules"]["head"]["output"])
    assert log.parameters["head.W"]["norm"] == math.inf and "inf" in str(log) and "nan" in str(log)
    assert math.isnan(log.gradients()["recurrence.layers.0 dh"][0])


def test_the_table_has_a_line_for_each_module_and_parameter():
    table = str(recorded("lstm"))
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line}
    assert lines["module"] == ["class", "calls", "output", "doutput", "dh_first", "dh_last", "dc_first", "dc_last"]
    assert lines["head"][:2] == ["Linear", "1"] and lines["head"][-1] == "–" and lines["recurrence.layers.1"][-1] == "0"
    assert lines["parameter"] == ["norm", "gradient", "update"] and len(lines["head.W"]) == 3
    log = recorded("lstm")
    assert lines["head.W"] == [f"{number:.3g}" for number in log.parameters["head.W"].values()]
    assert lines["RecurrentLM"][0] == "RecurrentLM"


# In training


def trained(place=None, record=True, steps=6, resume=False, until=6, seed=0, **options):
    mx.seed(seed)
    model = MODELS["lstm"](dropout=0.1)
    optimizer = Adam(model.parameters(), 0.01)
    log = mx.record(model, norms=True, every=2) if record else None
    keeper = Keeper(place, model, optimizer, config={}, every=1) if place else None
    history = keeper.start(resume) if keeper else None
    done = len(history.loss) if keeper else 0
    batches = list(windows(np.arange(300) % V, B, T, np.random.default_rng(0), steps=2 * steps))[2 * done:]
    with keeper or contextlib.nullcontext():
        history = train(model, batches, optimizer, steps=until, history=history, after_step=keeper, record=log, accumulate=2,
                        clip=0.01, **options)
    return model, history, log


def test_training_records_every_so_many_steps_and_changes_nothing_by_it():
    (model, history, log), (plain, without, _) = trained(), trained(record=False)
    assert (history.loss, history.grad_norm) == (without.loss, without.grad_norm)
    assert same(model.state_dict(), plain.state_dict())
    assert list(history.recorded) == [0, 2, 4] and log.steps == 3 and without.recorded == {}
    assert history.recorded[4] == log.summary() and len(log.calls("head")) == 2
    for at, numbers in history.recorded.items():
        total = math.sqrt(sum(p["gradient"] ** 2 for p in numbers["parameters"].values()))
        assert total == pytest.approx(history.grad_norm[at], rel=1e-6) and total > 0.01, "before clipping"
        assert all(0 < p["update"] for p in numbers["parameters"].values())


def test_what_was_recorded_is_written_with_the_metrics_and_comes_back(tmp_path):
    _, whole, _ = trained(tmp_path / "whole")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert ["recorded" in line for line in lines] == [True, False] * 3
    assert lines[2]["recorded"]["modules"]["head"] == whole.recorded[2]["modules"]["head"]
    first, later = (lines[n]["recorded"]["parameters"]["head.b"] for n in (0, 2))
    assert later["update"] > 0 and first["norm"] == 0 and first["update"] is None, "infinite: it began at 0"
    trained(tmp_path / "broken", until=3)
    _, resumed, _ = trained(tmp_path / "broken", resume=True, seed=1)
    assert resumed.recorded == whole.recorded and resumed.loss == whole.loss
    (a, about), (b, same_about) = (load_arrays(tmp_path / f"{name}.checkpoint") for name in ("whole", "broken"))
    a.pop("history.seconds_at"), b.pop("history.seconds_at")
    assert same(a, b) and about == same_about
    assert (tmp_path / "broken.jsonl").read_text().count("recorded") == 3


def test_a_run_that_records_nothing_writes_what_it_always_wrote(tmp_path):
    trained(tmp_path / "plain", record=False)
    assert "history.recorded" not in load_arrays(tmp_path / "plain.checkpoint")[0]
    assert "recorded" not in (tmp_path / "plain.jsonl").read_text()


def test_an_exploding_step_is_recorded():
    mx.seed(0)
    model = MODELS["rnn"](activation="linear", gain=1e30)
    log = mx.record(model)
    batches = windows(np.arange(300) % V, B, T, np.random.default_rng(0))
    history = train(model, batches, SGD(model.parameters(), 1.0), steps=2, on_nonfinite="record", record=log)
    assert [step for step, _ in history.events] == list(history.recorded) == [0, 1]
    assert not math.isfinite(history.recorded[1]["modules"]["recurrence"]["output"])
    assert {numbers["update"] for numbers in log.parameters.values()} == {0.0}


def test_training_refuses_what_is_no_recorder_of_its_model():
    model, optimizer = made("lstm")
    other, _ = made("lstm")
    refused(TypeError, lambda: train(model, [], optimizer, steps=1, record=True), "train: record is a bool", "a recorder")
    refused(ValueError, lambda: train(model, [], optimizer, steps=1, record=mx.record(other)),
            "train: record belongs to another model", "minitx.record(model)")
