"""Layers: gradients, what depends on what, initial values, dropout.

Read next: `test_models.py`.
"""

import numpy as np
import pytest

import minitx as mx
from minitx import init, nn, randomness

from .common import every_device, leaf, refused

rng = np.random.default_rng(0)
F64 = {"dtype": "float64"}
LAYERS = {
    "Linear": lambda: nn.Linear(3, 2, **F64),
    "Linear without bias": lambda: nn.Linear(3, 2, bias=False, **F64),
    "LayerNorm": lambda: nn.LayerNorm(3, **F64),
    "RMSNorm": lambda: nn.RMSNorm(3, **F64),
    "RNN": lambda: nn.RNN(3, 2, **F64),
    "linear RNN": lambda: nn.RNN(3, 2, activation="linear", gain=1.3, **F64),
    "GRU": lambda: nn.GRU(3, 2, **F64),
    "LSTM": lambda: nn.LSTM(3, 2, **F64),
    "stacked LSTM": lambda: nn.LSTM(3, 2, 2, learned_state=True, **F64),
    "bidirectional GRU": lambda: nn.GRU(3, 2, 2, bidirectional=True, learned_state=True, **F64),
    "attention": lambda: nn.MultiHeadAttention(3, 3, **F64),
    "causal attention": lambda: nn.MultiHeadAttention(3, 1, causal=True, **F64),
    "pre-norm block": lambda: nn.TransformerBlock(3, 3, causal=True, **F64),
    "post-norm block": lambda: nn.TransformerBlock(3, 1, 4, norm="post", **F64),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@every_layer
def test_the_gradients_of_a_layer_agree_with_nudges(make):
    mx.seed(1)
    layer = make()
    for p in layer.parameters():                                             # biases and scales that are not all equal
        p.assign_(p.array + 0.1 * rng.standard_normal(p.shape))
    report = mx.gradcheck(layer, rng.standard_normal((2, 4, 3)))
    assert {i.name for i in report.inputs} == {"x", *dict(layer.named_parameters())}


def test_the_gradient_of_an_embedding_sums_over_the_places_of_an_id():
    layer = nn.Embedding(4, 2, **F64)
    mx.gradcheck(layer, np.array([[1, 1, 3], [0, 1, 3]]))
    layer(np.array([[1, 1, 3], [0, 1, 3]])).backward(np.arange(1.0, 13).reshape(2, 3, 2))
    assert layer.table.grad.tolist() == [[7, 8], [13, 16], [0, 0], [16, 18]]                 # C17


@pytest.mark.parametrize("layer", ["attention", "pre-norm block", "post-norm block"])
def test_a_masked_key_has_no_influence(layer):
    layer, x, mask = LAYERS[layer](), leaf(rng.standard_normal((1, 4, 3))), np.ones((1, 1, 4, 4), bool)
    mask[..., :2, 3] = False                                                 # two queries do not see the last key
    mx.gradcheck(layer, x, mask)
    layer(x, mask)[:, :2].sum().backward()
    assert (x.grad[:, 3] == 0).all()


CAUSAL = ["RNN", "linear RNN", "GRU", "LSTM", "stacked LSTM", "causal attention", "pre-norm block"]


@every_layer
def test_which_layers_are_causal(make, request):
    """A causal layer's outputs never depend on a later input; the others mix positions freely, or not at all."""
    layer, x = make(), leaf(rng.standard_normal((1, 5, 3)))
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    (y[:, 2] * rng.standard_normal(y.shape[-1])).sum().backward()
    reach = [bool(part) for part in abs(x.grad).sum((0, 2)) > 1e-12]
    name = request.node.callspec.id
    everywhere = any(word in name for word in ("attention", "block", "bidirectional"))
    assert reach == [name in CAUSAL or everywhere] * 2 + [True] + [everywhere and name not in CAUSAL] * 2


def test_a_state_carries_a_recurrence_on():
    x = mx.tensor(rng.standard_normal((2, 6, 3)))
    for layer in (nn.RNN(3, 2, **F64), nn.GRU(3, 2, **F64), nn.LSTM(3, 2, **F64), nn.LSTM(3, 2, 3, **F64)):
        hs, last = layer(x)
        first, state = layer(x[:, :4])
        second, end = layer(x[:, 4:], state)
        np.testing.assert_allclose(np.concatenate([first.array, second.array], 1), hs.array, rtol=1e-12)
        for a, b in zip(*([s] if isinstance(s, mx.Tensor) else s for s in (last, end)), strict=True):
            np.testing.assert_allclose(a.array, b.array, rtol=1e-12)


def test_c31_c32_an_lstm_of_one_unit_by_hand():
    lstm = nn.LSTM(1, 1, **F64)
    W, U, b = lstm.parameters()
    for p, values in ((W, [[.1, .4, .7, 1.0]]), (U, [[.2, .5, .8, 1.1]]), (b, [.3, .6, .9, 1.2])):
        p.assign_(values)                                                    # the gates i, f, g, o
    x, h, c = leaf([[[.5]]]), leaf([[[-.25]]]), leaf([[[.75]]])
    _, (h_next, c_next) = lstm(x, (h, c))
    h_next.backward([[[1]]])
    da = [0.07015485265, 0.06154569604, 0.08197905046, 0.1153416786]
    for ours, theirs in ((c_next.item(), 0.9460691896), (h_next.item(), 0.5949159815), (x.grad.item(), 0.2043607776),
                         (h.grad.item(), 0.2372629054), (c.grad.item(), 0.2432312968), (b.grad, da),
                         (U.grad[0], np.array(da) * -.25)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)


# Initial values


def test_initial_values():
    mx.seed(0)
    linear, table = nn.Linear(400, 300, gain=2.0), nn.Embedding(300, 200, std=0.3)
    assert linear.W.array.std() == pytest.approx(2 / 400**0.5, rel=0.01) and abs(linear.W.array.mean()) < 1e-3
    assert table.table.array.std() == pytest.approx(0.3, rel=0.01)
    norm, recurrences = nn.LayerNorm(3), (nn.RNN(5, 40, gain=1.8, **F64), nn.GRU(5, 40, learned_state=True, **F64),
                                          nn.LSTM(5, 40, forget_bias=2.0, **F64))
    rnn, gru, lstm = (recurrence.layers[0] for recurrence in recurrences)
    assert norm.gamma.array.tolist() == [1, 1, 1]
    for zero in (linear.b, norm.beta, rnn.b, gru.b, gru.bU, *recurrences[1].start):
        assert not zero.array.any()
    assert lstm.b.array.reshape(4, 40).tolist() == [[0] * 40, [2] * 40, [0] * 40, [0] * 40]
    blocks = [rnn.U.array / 1.8, *np.split(gru.U.array, 3, axis=1), *np.split(lstm.U.array, 4, axis=1)]
    for block in blocks:
        np.testing.assert_allclose(block @ block.T, np.eye(40), atol=1e-12)
    assert len({block.tobytes() for block in blocks}) == 8, "each block is a rotation of its own"
    signs = init.orthogonal(1, 400).array                                    # in one dimension: 1 and -1, equally often
    assert set(signs[0]) == {1, -1} and abs(signs.mean()) < 0.15


@every_layer
def test_the_seed_decides_and_nothing_else(make):
    def values(seed):
        mx.seed(seed)
        return make().state_dict()
    assert all(np.array_equal(a, b) for a, b in zip(values(3).values(), values(3).values(), strict=True))
    one, same, other = (nn.Linear(3, 2, rng=np.random.default_rng(seed)).W.array for seed in (5, 5, 6))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


# Dropout


@every_device
def test_c47_dropout_scales_what_it_keeps(device):
    mx.seed(0)
    drop, x = nn.Dropout(0.3), leaf(np.ones(200_000), device=device)
    y = drop(x)
    y.sum().backward()
    values, (zeros, kept) = np.unique(y.numpy(), return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / 0.7])
    assert abs(y.numpy().mean() - 1) < 0.01 and abs(zeros / (zeros + kept) - 0.3) < 0.01
    assert (x.grad == y.array).all(), "backward has the mask of forward"
    assert not (drop(x).array == y.array).all(), "the next call has another"
    assert not (nn.Dropout(0.3)(x).array == y.array).all(), "and so has another layer"
    mx.seed(0)
    assert (drop(x).array == y.array).all()


def test_c47_dropout_is_the_identity_in_evaluation_and_at_0_and_draws_nothing():
    mx.seed(0)
    x = leaf([1, 2])
    assert nn.Dropout(0.3).eval()(x) is x and nn.Dropout(0)(x) is x
    drawn = randomness.stream().random()
    mx.seed(0)
    assert randomness.stream().random() == drawn


def test_c47_dropout_at_1_gives_zeros_and_beyond_is_refused():
    x = leaf([1, 2])
    y = nn.Dropout(1)(x)
    y.sum().backward()
    assert y.array.tolist() == x.grad.tolist() == [0, 0]
    for p in (-0.1, 1.1, float("nan")):
        refused(ValueError, lambda p=p: nn.Dropout(p), "Dropout: p must be a probability between 0 and 1", str(p))


def test_mistakes_are_named():
    refused(ValueError, lambda: nn.MultiHeadAttention(6, 4), "MultiHeadAttention", "D = 6", "N = 4")
    refused(ValueError, lambda: nn.TransformerBlock(4, 2, norm="none"), "TransformerBlock", "'pre' or 'post'", "'none'")
    refused(ValueError, lambda: nn.RNN(2, 2, activation="sin")(leaf(np.ones((1, 1, 2)), "float32")), "RNN: ", "'sin'")
    refused(ValueError, lambda: nn.LSTM(2, 3)(leaf(np.ones((1, 1, 4)), "float32")), "lstm: W must be (D, 4H)", "4 by x")
