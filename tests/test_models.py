"""Language models of one interface: what they compute, from where they start, on what a prediction may depend."""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.models import RecurrentLM, TransformerLM

from .common import every_device, refused
from .harness import on_host

V, B, T = 11, 2, 6
rng = np.random.default_rng(0)
IDS, TARGETS = rng.integers(0, V, (2, B, T))
MODELS = {
    "rnn": lambda **options: RecurrentLM(V, 4, 5, cell="rnn", **options),
    "gru": lambda **options: RecurrentLM(V, 4, 5, cell="gru", **options),
    "lstm of two layers": lambda **options: RecurrentLM(V, 4, 5, L=2, **options),
    "pre-norm transformer": lambda **options: TransformerLM(V, D=4, N=2, L=2, T=T, **options),
    "post-norm transformer": lambda **options: TransformerLM(V, D=4, N=1, L=1, T=T, norm="post", **options),
    "Llama": lambda **options: TransformerLM(V, 8, 4, 1, T, positions="rotary", rotary={"pairing": "neighbours"}, M=2,
                                             normaliser="rms", feed="swiglu", use_bias=False, **options),
    "tied, with sinusoids": lambda **options: TransformerLM(V, 5, 1, 1, T, positions="sinusoid", feed="relu", tied=True,
                                                            **options),
    "ALiBi": lambda **options: TransformerLM(V, 6, 3, 1, T, positions="alibi", feed="gelu_exact", tied=True, **options),
    "no positions": lambda **options: TransformerLM(V, 4, 2, 1, None, F=3, positions="none", norm="post", **options),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def on(device, *arrays):
    return [mx.tensor(a, device=device).array for a in arrays]


@every_model
@every_device
def test_one_interface(make, device):
    model, (ids, targets) = make().to(device), on(device, IDS, TARGETS)
    logits = model(ids)
    assert logits.shape == (B, T, V) and logits.device == device
    assert (logits.array == model.head(model.body(model.embed(ids))).array).all()
    assert model.loss(ids, targets).item() == ops.cross_entropy(logits, targets).item()
    assert model(ids[:1, :1]).shape == (1, 1, V)


@every_model
def test_gradients_agree_with_nudges(make):
    mx.seed(0)
    model = make(dtype="float64")
    names = {i.name for i in mx.gradcheck(model, IDS).inputs}
    assert names == set(dict(model.named_parameters())) and len(names) >= 6


@every_model
def test_a_prediction_depends_on_all_symbols_up_to_there_and_on_no_later_one(make):
    mx.seed(0)
    model, t = make(dtype="float64"), 3
    x = mx.tensor(model.embed(IDS), requires_grad=True)
    (model.head(model.body(x))[:, t] * rng.standard_normal((B, V))).sum().backward()
    assert (abs(x.grad).sum((0, 2)) > 0).tolist() == [k <= t for k in range(T)]
    later = np.where(np.arange(T) > t, (IDS + 1) % V, IDS)
    np.testing.assert_allclose(model(later).array[:, :t + 1], model(IDS).array[:, :t + 1], rtol=1e-12)


@every_model
def test_sequences_of_a_batch_do_not_meet(make):
    mx.seed(0)
    model = make(dtype="float64")
    np.testing.assert_allclose(model(IDS).array[1:], model(IDS[1:]).array, rtol=1e-12)


@pytest.mark.parametrize("make", [
    lambda: RecurrentLM(80, 64, 128, cell="rnn"),
    lambda: RecurrentLM(80, 64, 64, cell="rnn", activation="relu"),
    lambda: RecurrentLM(80, 64, 64, cell="gru"),
    lambda: RecurrentLM(80, 64, 64, L=2),
    lambda: TransformerLM(80, 64, 4, 2, 32),
    lambda: TransformerLM(80, 64, 4, 2, 32, norm="post"),
], ids=range(6))
def test_the_first_guess_is_nearly_uniform(make):
    mx.seed(0)
    loss = make().loss(*rng.integers(0, 80, (2, 8, 32))).item()
    assert loss == pytest.approx(math.log(80), rel=0.01)


@pytest.mark.parametrize("positions", ["learned", "sinusoid", "rotary", "alibi", "none"])
def test_a_tied_head_starts_with_scores_of_about_one(positions):
    mx.seed(0)
    for D in (16, 64, 256):
        logits = TransformerLM(80, D, 4, 1, 32, positions=positions, tied=True)(rng.integers(0, 80, (8, 32))).array
        assert 0.2 < logits.std() < 2


@every_model
def test_a_seed_gives_the_same_weights_and_gradients_on_every_device(make):
    def run(device, **options):
        model = make(dropout=0.2, **options).to(device)
        model.loss(*on(device, IDS, TARGETS)).backward()
        return [*model.state_dict().values()], on_host([p.grad for p in model.parameters()])

    mx.seed(4)
    weights, gradients = run("cpu")
    for device, tolerance in (("cpu", 0), ("strict", 1e-5)):                 # another library adds up in another order
        mx.seed(4)
        for same_weights, same_gradients in (run(device), run(device, rng=np.random.default_rng(4))):   # its own draws the same
            assert all(map(np.array_equal, weights, same_weights))
            for a, b in zip(gradients, same_gradients, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * abs(a).max())


@every_model
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_c58_a_model_keeps_its_dtype(make, dtype):
    model = make(dropout=0.1, dtype=dtype)
    loss = model.loss(IDS, TARGETS.astype("int32"))
    loss.backward()
    assert {loss.dtype, *(p.dtype for p in model.parameters()), *(p.grad.dtype for p in model.parameters())} == {
        np.dtype(dtype)}


@every_model
def test_dropout_acts_after_every_layer_and_only_in_training(make):
    model, seen = make(dropout=0.5), []
    if isinstance(model, TransformerLM):
        layers, inside = 1 + 2 * len(model.blocks), model.blocks
    else:
        layers, inside = len(model.recurrence.layers), [model.recurrence]
    for part in (model, *inside):
        part.dropout.forward = lambda x: seen.append(x) or x                 # in place of the module's own
    model(IDS)
    assert len(seen) == layers
    model = make(dropout=0.5)
    assert not np.array_equal(model(IDS).array, model(IDS).array)
    assert np.array_equal(model.eval()(IDS).array, model(IDS).array)


def test_options_reach_the_layers():
    gain = RecurrentLM(V, 4, 5, cell="rnn", gain=1.8, activation="linear", dtype="float64").recurrence.layers[0]
    np.testing.assert_allclose(gain.U.array @ gain.U.array.T, 1.8**2 * np.eye(5), atol=1e-12)
    assert gain.activation == "linear"
    assert RecurrentLM(V, 4, 5, forget_bias=2.0).recurrence.layers[0].b.array[5:10].tolist() == [2] * 5
    assert [block.norm for block in TransformerLM(V, 4, 2, 2, T, norm="post").blocks] == ["post", "post"]


def test_a_recurrence_reads_any_length_and_a_transformer_says_its_limit():
    assert RecurrentLM(V, 4, 5).context is None and TransformerLM(V, 4, 2, 1, T).context == T
    assert MODELS["rnn"]()(np.zeros((1, 50), int)).shape == (1, 50, V)
    refused(ValueError, lambda: MODELS["pre-norm transformer"]()(np.zeros((1, 7), int)),
            "TransformerLM: got 7 symbols, but it has positions for 6", "T = 7")
    refused(ValueError, lambda: RecurrentLM(V, 4, 5, cell="elman"), "RecurrentLM: cell must be one of rnn, gru, lstm, got")
    refused(ValueError, lambda: RecurrentLM(V, 4, 5, bidirectional=True), "RecurrentLM: bidirectional=True would read")
    refused(IndexError, lambda: MODELS["rnn"]()(IDS + V), "embedding: ids must be from 0 to 10")


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_few_symbols_are_multiplied_before_they_are_looked_up(cell):
    model = RecurrentLM(3, 4, 5, L=2, cell=cell, rng=np.random.default_rng(0), dtype="float64")
    ids, targets = np.random.default_rng(1).integers(0, 3, (2, 6, 8))
    with mx.profile() as p:
        fast = model.loss(ids, targets)
    assert {row.calls for name, row in p.rows.items() if name in (f"{cell}_steps", cell)} == {1}, "one layer each"
    slow = ops.cross_entropy(model.head(model.body(model.embed(ids))), targets)
    np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=1e-13)
    fast, slow = (mx.gradients(loss) for loss in (fast, slow))
    for name, w in model.named_parameters():
        np.testing.assert_allclose(fast[w], slow[w], atol=1e-14, err_msg=name)
