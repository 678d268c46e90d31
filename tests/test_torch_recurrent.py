"""Recurrent modules against live PyTorch, in float64: every combination of layers, directions, lengths and first states.

PyTorch packs sequences of unequal length, and refuses one without a step; `test_recurrent.py` holds those to the rule that
unpadded runs give the same.
"""

import itertools

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops

from .common import leaf, refused

torch = pytest.importorskip("torch")
packing = torch.nn.utils.rnn
pytestmark = pytest.mark.torch

B, T, D, H = 4, 7, 3, 5
LENGTHS = [3, 7, 1, 5]
KINDS = {"RNN tanh": (nn.RNN, torch.nn.RNN, {}), "RNN relu": (nn.RNN, torch.nn.RNN, {"relu": True}),
         "GRU": (nn.GRU, torch.nn.GRU, {}), "LSTM": (nn.LSTM, torch.nn.LSTM, {})}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_shape = pytest.mark.parametrize("L, directions", list(itertools.product([1, 2, 3], [1, 2])))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads have nothing to share in arrays as small as these, and wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(kind, L, directions):
    """A fresh module of PyTorch, with its random biases, and ours with its weights."""
    ours, theirs, options = KINDS[kind]
    torch.manual_seed(0)
    theirs = theirs(D, H, L, batch_first=True, bidirectional=directions == 2, dtype=torch.float64,
                    **({"nonlinearity": "relu"} if options else {}))
    ours = ours(D, H, L, bidirectional=directions == 2, dtype="float64", **({"activation": "relu"} if options else {}))
    ours.load_torch(theirs.state_dict())
    return ours, theirs


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


def ours_run(module, x, state, lengths, weights):
    """Outputs and last states; the gradients of x and the first states; those of the parameters, by PyTorch's names."""
    x, state = leaf(x), [leaf(s) for s in state]
    hs, last = module(x, state or None, lengths)
    outputs = [hs, *parts(last)]
    sum((y * leaf(w)).sum() for y, w in zip(outputs, weights, strict=True)).backward()
    grads = {}
    for s, layer in enumerate(module.layers):
        second = layer.bU.grad if hasattr(layer, "bU") else layer.b.grad     # of a sum, both get the same
        grads |= zip(module.torch_names(s), (layer.W.grad.T, layer.U.grad.T, layer.b.grad, second), strict=True)
    return [y.array for y in outputs], [t.grad for t in (x, *state)], grads


def their_run(module, x, state, lengths, weights):
    x, state = (torch.tensor(x, requires_grad=True), [torch.tensor(s, requires_grad=True) for s in state])
    given = [tuple(state) if len(state) > 1 else state[0]] if state else []
    packed = x if lengths is None else packing.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    hs, last = module(packed, *given)
    if lengths is not None:
        hs, _ = packing.pad_packed_sequence(hs, batch_first=True, total_length=T)
    outputs = [hs, *parts(last)]
    sum((y * torch.tensor(w)).sum() for y, w in zip(outputs, weights, strict=True)).backward()
    grads = {name: p.grad.numpy() for name, p in module.named_parameters()}
    return [y.detach().numpy() for y in outputs], [t.grad.numpy() for t in (x, *state)], grads


@every_kind
@every_shape
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
def test_outputs_last_states_and_all_gradients(kind, L, directions, lengths, given, record_property):
    ours, theirs = pair(kind, L, directions)
    rng, S = np.random.default_rng(0), L * directions
    x, states = rng.standard_normal((B, T, D)), list(rng.standard_normal((2 if kind == "LSTM" else 1, S, B, H)))
    weights = [rng.standard_normal((B, T, directions * H)), *(rng.standard_normal(s.shape) for s in states)]
    args = x, states if given else [], lengths, weights
    (values, dinputs, grads), (their_values, their_dinputs, their_grads) = ours_run(ours, *args), their_run(theirs, *args)
    assert grads.keys() == their_grads.keys()
    pairs = [*zip(values + dinputs, their_values + their_dinputs, strict=True), *((grads[n], their_grads[n]) for n in grads)]
    worst = max(abs(a - b).max() / abs(b).max() for a, b in pairs)
    record_property("largest relative difference", float(worst))
    assert all(a.shape == b.shape for a, b in pairs) and worst < 1e-12


@every_kind
@every_shape
def test_weights_come_from_pytorch_and_go_back(kind, L, directions):
    ours, theirs = pair(kind, L, directions)
    _, fresh = pair(kind, L, directions)
    for p in fresh.parameters():
        torch.nn.init.zeros_(p)
    fresh.load_state_dict({name: torch.tensor(a) for name, a in ours.to_torch().items()}, strict=True)
    x = np.random.default_rng(0).standard_normal((B, T, D))
    expected, found = (module(torch.tensor(x))[0].detach().numpy() for module in (theirs, fresh))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(ours(mx.tensor(x))[0].array, expected, rtol=1e-12)
    before, after = theirs.state_dict(), fresh.state_dict()
    for name in before:
        if kind == "GRU" or name.startswith("weight"):
            assert torch.equal(after[name], before[name]), "to the last bit"
        elif name.startswith("bias_ih"):                                     # of two biases only the sum counts
            twin = name.replace("_ih", "_hh")
            assert torch.equal(after[name], before[name] + before[twin]) and not after[twin].any()


def test_a_module_of_pytorch_without_biases_is_refused_by_name():
    theirs = torch.nn.GRU(D, H, bias=False)
    refused(ValueError, lambda: nn.GRU(D, H).load_torch(theirs.state_dict()),
            "GRU: the names differ; missing: bias_hh_l0, bias_ih_l0; unknown: none", "zeros, if it had none")


def test_a_gru_whose_reset_gate_stands_elsewhere_is_another_function():
    """What PyTorch says in its manual: r stands behind the product. A GRU with r before it would not load these weights."""
    ours, theirs = pair("GRU", 1, 1)
    x, h = np.random.default_rng(0).standard_normal((2, B, H))
    x = x[:, :D]
    layer = ours.layers[0]
    W, U, b, bU = (p.array for p in (layer.W, layer.U, layer.b, layer.bU))
    a = x @ W + b
    r, z = (1 / (1 + np.exp(-(a + h @ U + bU)[:, k * H:(k + 1) * H])) for k in (0, 1))
    n = slice(2 * H, None)
    behind = (1 - z) * np.tanh(a[:, n] + r * (h @ U[:, n] + bU[n])) + z * h
    before = (1 - z) * np.tanh(a[:, n] + (r * h) @ U[:, n] + bU[n]) + z * h
    expected = theirs(torch.tensor(x)[:, None], torch.tensor(h)[None])[1][0].detach().numpy()
    np.testing.assert_allclose(behind, expected, rtol=1e-12)
    np.testing.assert_allclose(ops.gru_cell.vjp(x, h, W, U, b, bU)[0], expected, rtol=1e-12)
    assert abs(before - expected).max() > 1e-3
