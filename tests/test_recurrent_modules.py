"""Recurrent modules: layers on layers, two directions, any first state, lengths, reading on, and the weights of PyTorch.

Read next: `test_torch_recurrent.py`.
"""

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.models import RecurrentLM

from .common import every_device, leaf, refused
from .harness import assert_close, on_host

B, T, D, H = 6, 5, 3, 4
LENGTHS = np.array([2, 5, 0, 1, 5, 3])
KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
X = np.random.default_rng(5).standard_normal((B, T, D))


def tuned(kind, *sizes, **options):
    """A module in float64, none of whose parameters is where it starts."""
    rng = np.random.default_rng(4)
    module = kind(*sizes, rng=rng, dtype="float64", **options)
    for p in module.parameters():
        p.assign_(p.array + 0.3 * rng.standard_normal(p.shape))
    return module


def states(module):
    """Something to start from: h, or h and c."""
    return list(np.random.default_rng(2).standard_normal((len(module.layer.states), len(module.layers), B, H)))


def parts(state):
    """h, or h and c, as a list."""
    return list(state) if isinstance(state, tuple) else [state]


def finish(outputs, leaves):
    """The outputs, and the gradients of the leaves by a loss to which every number of the outputs matters differently."""
    rng = np.random.default_rng(3)
    grads = mx.gradients(sum((y * leaf(rng.standard_normal(y.shape), device=y.device)).sum() for y in outputs))
    return on_host([*(y.array for y in outputs), *(grads.get(t) for t in leaves)])


def run(module, x, state=None, lengths=None):
    """Outputs and last states of a module, and the gradients of x, first states and parameters, learned states first."""
    device = module.parameters()[0].device
    x, given = leaf(x, device=device), [leaf(s, device=device) for s in state or ()]
    hs, last = module(x, given or None, lengths)
    return finish([hs, *parts(last)], [x, *given, *module.parameters()])


@every_kind
@every_device
@pytest.mark.parametrize("given", [False, True], ids=["from its own state", "from a given state"])
def test_a_deep_stack_in_two_directions_keeps_the_rule(kind, given, device):
    """The padding holds NaN, and the lengths come in all the forms in which one may have them."""
    module = tuned(kind, D, H, 2, bidirectional=True, learned_state=True).to(device)
    state = states(module) if given else None
    dirty = np.where((np.arange(T) >= LENGTHS[:, None])[:, :, None], np.nan, X)
    together = run(module, dirty, state, LENGTHS.tolist())
    for lengths in (LENGTHS.astype("int32"), mx.tensor(LENGTHS), mx.tensor(LENGTHS, device=device).array):
        assert_close(run(module, dirty, state, lengths), together, 0)

    x, own = leaf(X, device=device), [leaf(s, device=device) for s in state or ()]
    hs, ends = [], []
    for b, n in enumerate(LENGTHS.tolist()):
        y, end = module(x[b:b + 1, :n], [s[:, b:b + 1] for s in own] or None)
        hs.append(ops.pad(y, widths=((0, 0), (0, T - n), (0, 0))))
        ends.append(parts(end))
    outputs = [ops.concatenate(*hs, axis=0), *(ops.concatenate(*end, axis=1) for end in zip(*ends, strict=True))]
    assert_close(together, finish(outputs, [x, *own, *module.parameters()]), 1e-12)


def test_c35_the_last_state_of_a_direction_is_where_it_stopped_reading():
    """h_t = h_{t-1} / 2 + x_t + 1: forwards the last is behind the last symbol, backwards behind the first."""
    module = nn.RNN(1, 1, bidirectional=True, activation="linear", dtype="float64")
    module.load_state_dict({f"layers.{s}.{name}": np.array(value) for s in (0, 1)
                            for name, value in (("W", [[1]]), ("U", [[0.5]]), ("b", [1]))})
    padded = leaf([[[1], [2], [4], [0], [0]]])
    hs, h = module(padded, lengths=[3])
    assert hs.array[0].T.tolist() == [[2, 4, 7, 0, 0], [4.75, 5.5, 5, 0, 0]]
    assert h.array[:, 0, 0].tolist() == [7, 4.75]
    alone, same = module(padded[:, :3])
    assert np.array_equal(alone.array, hs.array[:, :3]) and np.array_equal(same.array, h.array)


def single(module, s):
    """Recurrence s of a module, as a module of its own."""
    layer = module.layers[s]
    alone = type(module)(layer.W.shape[0], H, dtype="float64")
    alone.load_state_dict({f"layers.0.{name}": p.numpy() for name, p in layer.named_parameters()})
    return alone


@every_kind
def test_a_stack_is_its_layers_one_above_the_other(kind):
    module = tuned(kind, D, H, 3)
    state = states(module)
    whole, x, own = run(module, X, state), leaf(X), [leaf(s) for s in state]
    singles, hs, ends = [single(module, s) for s in range(3)], x, []
    for s, layer in enumerate(singles):
        hs, end = layer(hs, [h[s:s + 1] for h in own])
        ends.append(parts(end))
    outputs = [hs, *(ops.concatenate(*end, axis=0) for end in zip(*ends, strict=True))]
    assert_close(whole, finish(outputs, [x, *own, *(p for layer in singles for p in layer.parameters())]), 0)


@every_kind
def test_two_directions_are_two_recurrences_of_which_one_reads_backwards(kind):
    module = tuned(kind, D, H, bidirectional=True)
    (forwards, backwards), x = (single(module, s) for s in (0, 1)), leaf(X)
    (there, end), (back, begin) = forwards(x), backwards(x[:, ::-1])
    outputs = [ops.concatenate(there, back[:, ::-1]),
               *(ops.concatenate(*pair, axis=0) for pair in zip(parts(end), parts(begin), strict=True))]
    assert_close(run(module, X), finish(outputs, [x, *forwards.parameters(), *backwards.parameters()]), 0)


def test_the_second_layer_reads_both_directions_of_the_first():
    module = tuned(nn.GRU, D, H, 2, bidirectional=True)
    assert [layer.W.shape for layer in module.layers] == [(D, 3 * H)] * 2 + [(2 * H, 3 * H)] * 2
    lower = tuned(nn.GRU, D, H, bidirectional=True)
    lower.load_state_dict({path: a for path, a in module.state_dict().items() if path[:9] in ("layers.0.", "layers.1.")})
    upper = tuned(nn.GRU, 2 * H, H, bidirectional=True)
    upper.load_state_dict({f"layers.{int(path[7]) - 2}{path[8:]}": a for path, a in module.state_dict().items()
                           if path[:9] in ("layers.2.", "layers.3.")})
    assert np.array_equal(upper(lower(leaf(X))[0])[0].array, module(leaf(X))[0].array)


@every_kind
@pytest.mark.parametrize("directions", [1, 2])
def test_dropout_stands_between_layers_and_only_in_training(kind, directions):
    module, plain = (tuned(kind, D, H, 2, bidirectional=directions == 2, dropout=p) for p in (1.0, 0.0))
    (hs, state), (plain_hs, plain_state) = (m(leaf(X)) for m in (module, plain))
    assert all(np.array_equal(a.array[:directions], b.array[:directions]) for a, b in zip(parts(state), parts(plain_state)))
    upper = [single(module, s) for s in range(directions, 2 * directions)]
    nothing = leaf(np.zeros((B, T, directions * H)))
    outputs = [upper[0](nothing)[0].array, *(layer(nothing)[0].array[:, ::-1] for layer in upper[1:])]
    assert np.array_equal(hs.array, np.concatenate(outputs, -1)), "the upper layer reads zeros, and none of its own is dropped"
    module.eval()
    assert np.array_equal(module(leaf(X))[0].array, plain_hs.array)
    alone = tuned(kind, D, H, bidirectional=directions == 2, dropout=1.0)
    assert np.array_equal(alone(leaf(X))[0].array, alone.eval()(leaf(X))[0].array), "one layer has nothing between"


def test_dropout_draws_anew_at_every_call_and_all_steps_differ():
    module = tuned(nn.GRU, D, H, 3, dropout=0.5)
    seen, drop = [], module.dropout.forward
    module.dropout.forward = lambda x: seen.append(drop(x).array) or drop(x)
    module(leaf(X))
    assert len(seen) == 2
    for dropped in seen:
        masks = (dropped == 0).transpose(1, 0, 2).reshape(T, -1)
        assert 0.3 < masks.mean() < 0.7 and len({mask.tobytes() for mask in masks}) == T


# The first state


@every_kind
@pytest.mark.parametrize("directions", [1, 2])
def test_without_a_state_it_starts_from_zero_and_learned_states_start_there_too(kind, directions):
    plain, learned = (tuned(kind, D, H, 2, bidirectional=directions == 2, learned_state=flag) for flag in (False, True))
    assert {p.shape for p in learned.start} == {(2 * directions, 1, H)} and len(learned.start) == len(kind.layer.states)
    learned.load_state_dict(learned.state_dict() | plain.state_dict() | {
        path: 0 * p.numpy() for path, p in learned.named_parameters() if path.startswith("start.")})
    zeros = [0 * s for s in states(plain)]
    count = 1 + len(zeros)
    for module, state in ((plain, zeros), (learned, None), (learned, zeros)):
        assert_close(run(module, X, state)[:count], run(plain, X)[:count], 0)


@every_kind
def test_a_learned_state_is_a_given_one_that_all_sequences_share(kind):
    """So its gradient is the sum of theirs. It gets no gradient when another state is given."""
    module = tuned(kind, D, H, 2, bidirectional=True, learned_state=True)
    names = [f"start.{k}" for k in range(len(kind.layer.states))]
    assert [path for path, _ in module.named_parameters() if "start" in path] == names
    own = run(module, X, None, LENGTHS)
    given = run(module, X, [np.repeat(start.numpy(), B, axis=1) for start in module.start], LENGTHS)
    n = len(names)
    values, dx, dstates, dstarts, dweights = np.split(np.array(given, object), [1 + n, 2 + n, 2 + 2 * n, 2 + 3 * n])
    assert dstarts.tolist() == [None] * n
    assert_close(own, [*values, *dx, *(ds.sum(1, keepdims=True) for ds in dstates), *dweights], 1e-12)


@every_kind
def test_gradients_agree_with_nudges_learned_and_given_states_among_them(kind):
    module = tuned(kind, 2, 2, 2, bidirectional=True, learned_state=True)
    lengths, x = np.array([2, 3, 0]), X[:3, :3, :2]
    assert {i.name for i in mx.gradcheck(lambda x: module(x, None, lengths), x).inputs} == {"x"}
    class Learned(nn.Module):
        def __init__(self):
            self.inner = module

        def forward(self, x):
            hs, state = self.inner(x, None, lengths)
            return hs, *parts(state)

    report = mx.gradcheck(Learned(), x)
    assert {i.name for i in report.inputs} == {"x", *(f"inner.{path}" for path, _ in module.named_parameters())}


# What makes no sense


@every_kind
def test_options_are_checked_when_the_module_is_made_in_the_name_of_its_class(kind):
    name = kind.__name__
    known = {"RNN": "activation, gain, ", "GRU": "", "LSTM": "forget_bias, "}[name]
    refused(TypeError, lambda: kind(D, H, speed=1, colour=2), f"{name}: it has no option colour, speed; its options are {known}"
            "bidirectional, dropout, learned_state, rng, dtype")
    for option in ("bidirectional", "learned_state"):
        for value in ("no", None, 1, 0.0):
            refused(TypeError, lambda option=option, value=value: kind(D, H, **{option: value}),
                    f"{name}: {option} is a {type(value).__name__}; expected a bool; give True or False")
    for rng in (3, "x", np.random.RandomState(0)):
        refused(TypeError, lambda rng=rng: kind(D, H, rng=rng), f"init: rng is a {type(rng).__name__}; expected a Generator")


def test_options_of_one_kind():
    for activation in ("sig", None, ["tanh"]):
        refused(ValueError, lambda activation=activation: nn.RNN(D, H, activation=activation), "RNN: activation must be one of")
    refused(ValueError, lambda: nn.RNN(D, H, gain="x"), "RNN: gain is 'x'")
    refused(TypeError, lambda: RecurrentLM(5, D, H, cell="gru", forget_bias=2.0), "GRU: it has no option forget_bias")
    refused(TypeError, lambda: nn.Dropout(0.5, rng=3), "Dropout: rng is a int; expected a generator")


@every_kind
def test_state_and_lengths_are_refused_by_their_names(kind):
    module, x, name = tuned(kind, D, H), leaf(X), kind.__name__
    for empty in ([], ()):
        refused(ValueError, lambda empty=empty: module(x, empty), f"{name}: state is an empty {type(empty).__name__}; expected")
    for lengths, kinds in (([1.0] * B, "float64"), ([True] * B, "bool"), ([[1]] * B, "int64"), ({}, "object")):
        refused(ValueError, lambda lengths=lengths: module(x, lengths=lengths), f"{name}: lengths has shape", f"dtype {kinds}",
                "whole numbers (B)")
    refused(ValueError, lambda: module(x, lengths=[1, [2, 3]]), f"{name}: lengths: cannot make an array")
    refused(ValueError, lambda: module(x, lengths=[]), f"{name.lower()}: lengths must be (B)")
    assert module(x[:0], lengths=[])[0].shape == (0, T, H), "of no sequence"


# Reading on


@pytest.mark.parametrize("cell", KINDS)
def test_a_text_read_in_pieces_is_the_text(cell):
    """The logits of `RecurrentLM.step`, and the gradients, which go back from piece to piece as far as the tape does."""
    model = RecurrentLM(7, D, H, 2, cell=cell, learned_state=True, rng=np.random.default_rng(0), dtype="float64")
    ids, logits, state = np.random.default_rng(0).integers(0, 7, (B, 9)), [], None
    for piece in np.split(ids, [1, 5, 5], axis=1):                           # one of them empty
        found, state = model.step(piece, state)
        logits.append(found)
    pieces, (whole, end) = ops.concatenate(*logits, axis=1), model.step(ids)
    assert_close(finish([pieces, *parts(state)], model.parameters()), finish([whole, *parts(end)], model.parameters()), 1e-12)
    assert np.array_equal(whole.array, model(ids).array)


@every_kind
def test_a_detached_state_cuts_the_gradient_there_and_only_there(kind):
    module, cut, joined = tuned(kind, D, H, 2), leaf(X), leaf(X)
    for x, handed_on in ((cut, lambda s: s.detach()), (joined, lambda s: s)):
        _, state = module(x[:, :3])
        module(x[:, 3:], [handed_on(s) for s in parts(state)])[0].sum().backward()
    assert_close([cut.grad[:, 3:]], [joined.grad[:, 3:]], 0)
    assert not cut.grad[:, :3].any() and (abs(joined.grad[:, :3]).sum((0, 2)) > 0).all()


# Nothing, and narrow numbers


@every_kind
@pytest.mark.parametrize("sizes", [(B, 0), (0, T), (0, 0)], ids=["T = 0", "B = 0", "B = T = 0"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_a_module_reads_nothing(kind, sizes, with_lengths):
    module = tuned(kind, D, H, 2, bidirectional=True, learned_state=True)
    hs, state = module(leaf(np.zeros((*sizes, D))), lengths=np.zeros(sizes[0], int) if with_lengths else None)
    assert hs.shape == (*sizes, 2 * H)
    for s, start in zip(parts(state), module.start, strict=True):
        assert np.array_equal(s.array, np.repeat(start.array, sizes[0], axis=1))
    sum(s.sum() for s in (hs, *parts(state))).backward()
    assert all((start.grad == sizes[0]).all() for start in module.start)


@every_kind
@every_device
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_dtype_goes_through(kind, dtype, device):
    module = kind(D, H, 2, bidirectional=True, dropout=0.1, learned_state=True, dtype=dtype).to(device)
    x = leaf(X, dtype, device)
    hs, state = module(x, lengths=LENGTHS)
    again, last = module(x, state, LENGTHS)
    sum(t.sum() for t in (hs, again, *parts(state), *parts(last))).backward()
    everything = [hs, again, *parts(state), *parts(last), x.grad, *(p.grad for p in module.parameters())]
    assert {t.dtype for t in everything} == {np.dtype(dtype)}


# The names and the layout of PyTorch's weights


@every_kind
@pytest.mark.parametrize("L, bidirectional", [(1, False), (2, True)])
def test_weights_go_to_the_names_of_pytorch_and_come_back(kind, L, bidirectional):
    module, other = (tuned(kind, D, H, L, bidirectional=bidirectional, learned_state=flag) for flag in (False, True))
    there = module.to_torch()
    ends = [f"_l{k}{back}" for k in range(L) for back in ["", "_reverse"][:1 + bidirectional]]
    assert list(there) == [f"{name}{end}" for end in ends for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    G = module.layers[0].W.shape[1]
    assert [there[f"{name}_l0"].shape for name in ("weight_ih", "weight_hh", "bias_ih")] == [(G, D), (G, H), (G,)]
    start = [s.numpy() for s in other.start]
    for p in other.parameters():
        p.assign_(0 * p.array + 5)
    other.load_torch(there)
    assert all(np.array_equal(a, other.state_dict()[path]) for path, a in module.state_dict().items())
    assert [s.array.tolist() for s in other.start] == [(0 * s + 5).tolist() for s in start], "a first state is not in there"
    assert all(np.array_equal(a, there[name]) and a.flags.c_contiguous for name, a in other.to_torch().items())
    other.load_torch(there | {"bias_hh_l0": there["bias_hh_l0"] + 1})        # of two biases the sum counts, but in a GRU
    where, gained = ("bU", there["bias_hh_l0"]) if kind is nn.GRU else ("b", there["bias_ih_l0"])
    assert np.array_equal(getattr(other.layers[0], where).array, gained + 1)


def test_weights_that_do_not_fit_are_refused_and_nothing_is_written():
    module = tuned(nn.LSTM, D, H, 2)
    before, good = module.state_dict(), {name: a + 1 for name, a in module.to_torch().items()}
    for wrong, *says in (
        ({name: a for name, a in good.items() if name != "bias_hh_l1"}, "missing: bias_hh_l1; unknown: none", "both biases"),
        (good | {"weight_ih_l0_reverse": good["weight_ih_l0"]}, "missing: none; unknown: weight_ih_l0_reverse", "directions"),
        (good | {"weight_hh_l1": good["weight_hh_l1"].T}, "weight_hh_l1 has shape (4, 16); expected (16, 4)"),
        (good | {"bias_hh_l0": np.ones(1)}, "bias_hh_l0 has shape (1,); expected (16,)"),
    ):
        refused(ValueError, lambda wrong=wrong: module.load_torch(wrong), "LSTM: ", *says)
    refused(TypeError, lambda: module.load_torch(None), "LSTM: state is a NoneType", "state_dict()")
    assert all(np.array_equal(a, before[path]) for path, a in module.state_dict().items())
