"""Models that read in both directions: the encoder, what it learns by guessing, and the model of 2017 that translates."""

import math

import numpy as np
import pytest

import minitx as mx
from minitx import nn, ops
from minitx.data import mask_of, masked, pad, pair_batch
from minitx.models import Encoder, EncoderDecoder, MaskedLM
from minitx.optim import Adam
from minitx.training import train

from .common import leaf, refused
from .harness import on_host

V, D, T = 11, 6, 5
rng = np.random.default_rng(0)
LENGTHS = np.array([5, 2, 4])
IDS = rng.integers(0, V, (3, T))
TARGETS = np.where(mask_of(LENGTHS, T) & (rng.random((3, T)) < 0.5), IDS, -100)
PAIRS = pair_batch([[3, 4, 5, 6], [7], [8, 9]], [[3, 4], [5, 6, 7], [8]], start=1, stop=2)
MODELS = {
    "masked, pre": (lambda **o: MaskedLM(V, 4, 2, 2, T, F=5, **o), (IDS, LENGTHS, TARGETS)),
    "BERT": (lambda **o: MaskedLM(V, D, 3, 1, T, norm="post", feed="gelu_exact", embedding_norm=True, types=2, **o),
             (IDS, LENGTHS, TARGETS)),
    "masked, rotary": (lambda **o: MaskedLM(V, 4, 2, 1, None, positions="rotary", normaliser="rms", feed="swiglu", **o),
                       (IDS, LENGTHS, TARGETS)),
    "2017": (lambda **o: EncoderDecoder(10, 4, 2, 1, F=5, norm="post", **{"dropout": 0.0, **o}), PAIRS),
    "2017, pre": (lambda **o: EncoderDecoder(10, 4, 1, 1, F=3, **{"dropout": 0.0, **o}), PAIRS),
}
every_model = pytest.mark.parametrize("make, batch", MODELS.values(), ids=MODELS)


def on(device, *arrays):
    return [mx.tensor(a, device=device).array for a in arrays]


@every_model
def test_gradients_agree_with_nudges(make, batch):
    mx.seed(0)
    model = make(dtype="float64")
    names = {i.name for i in mx.gradcheck(model, *batch[:-1]).inputs}
    assert names == set(dict(model.named_parameters()))


@every_model
def test_a_seed_gives_the_same_loss_and_gradients_on_every_device(make, batch):
    def run(device):
        mx.seed(4)
        model = make(dropout=0.2).to(device)
        loss = model.loss(*on(device, *batch))
        loss.backward()
        return [loss.numpy(), *on_host([p.grad for p in model.parameters()])]

    for a, b in zip(run("cpu"), run("strict"), strict=True):                 # another library adds up in another order
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(a).max())


@every_model
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_c58_a_model_keeps_its_dtype(make, batch, dtype):
    model = make(dropout=0.1, dtype=dtype)
    loss = model.loss(*batch)
    loss.backward()
    assert {loss.dtype, *(p.grad.dtype for p in model.parameters())} == {np.dtype(dtype)}


@every_model
def test_what_stands_in_the_padding_changes_nothing(make, batch):
    mx.seed(0)
    model, found = make(dtype="float64"), []
    for fill in (0, 7):
        source = np.where(mask_of(batch[1], batch[0].shape[1]), batch[0], fill)
        wide = np.pad(source, ((0, 0), (0, 0 if model_limit(model) else 3)), constant_values=fill)
        if len(batch) == 3:
            rest = (np.pad(batch[2], ((0, 0), (0, wide.shape[1] - T)), constant_values=-100),)
        else:
            rest = (np.where(batch[3] == -100, fill, batch[2]), batch[3])
        loss = model.loss(wide, batch[1], *rest)
        model.zero_grad()
        loss.backward()
        found.append([loss.numpy(), *(p.grad for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def model_limit(model):
    return getattr(getattr(model, "encoder", None), "context", None)


@pytest.mark.parametrize("positions", ["learned", "sinusoid", "rotary", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padded_rows_are_what_they_are_alone(positions, norm):
    mx.seed(0)
    model = Encoder(V, 8, 2, 2, T, positions=positions, norm=norm, dtype="float64")
    y = model(IDS, LENGTHS).array
    for b, n in enumerate(LENGTHS):
        np.testing.assert_allclose(y[b, :n], model(IDS[b:b + 1, :n]).array[0], rtol=1e-9, atol=1e-12)


def test_sources_of_unequal_length_are_translated_as_each_alone():
    mx.seed(0)
    model = EncoderDecoder(V, D, 2, 2, dropout=0.0, dtype="float64")
    source, lengths, inputs, _ = PAIRS
    logits = model(source, lengths, inputs).array
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(logits[b], model(source[b:b + 1, :n], None, inputs[b:b + 1]).array[0], rtol=1e-9)


def test_an_encoder_sees_both_sides_and_a_decoder_the_past_and_the_source():
    mx.seed(0)
    encoder, x = Encoder(V, 8, 2, 1, T, dtype="float64").blocks[0], leaf(rng.standard_normal((1, T, 8)))
    (encoder(x)[:, 2] * rng.standard_normal(8)).sum().backward()
    assert (abs(x.grad).sum((0, 2)) > 0).all()
    model, (source, lengths, inputs, _) = EncoderDecoder(V, 8, 2, 1, dropout=0.0, dtype="float64"), PAIRS
    y, changed = model(source, lengths, inputs).array, inputs.copy()
    changed[:, 2:] = 9
    np.testing.assert_allclose(model(source, lengths, changed).array[:, :2], y[:, :2], rtol=1e-12)
    assert (abs(model((source + 1) % V, lengths, inputs).array - y).max((1, 2)) > 1e-6).all()


def test_label_smoothing_is_for_training_alone():
    mx.seed(0)
    model = EncoderDecoder(V, D, 2, 1, smoothing=0.3, dropout=0.0)
    logits, targets = model(*PAIRS[:3]), PAIRS[3]
    assert model.loss(*PAIRS).item() == ops.cross_entropy(logits, targets, label_smoothing=0.3).item()
    assert model.eval().loss(*PAIRS).item() == ops.cross_entropy(logits, targets).item()


def test_c47_dropout_of_weights_keeps_their_mean_and_is_off_in_evaluation():
    """With the same value at every key, an output is the sum of the weights that were kept, scaled up: 1 on the mean."""
    mx.seed(0)
    attention, x = nn.MultiHeadAttention(4, 1, dropout=0.3, dtype="float64"), mx.tensor(np.ones((400, 20, 4)))
    for p in attention.parameters():
        p.assign_(np.zeros(p.shape))
    attention.qkv.b.assign_([0.0] * 8 + [1.0] * 4)
    attention.out.W.assign_(np.eye(4))
    y = attention(x).array[..., 0]
    kept = np.rint(y * 20 * 0.7)
    np.testing.assert_allclose(y * 20 * 0.7, kept, atol=1e-9)                # whole weights of 1/20, kept or not
    assert abs(y.mean() - 1) < 0.01 and abs(kept.mean() / 20 - 0.7) < 0.01
    assert kept.std() == pytest.approx((20 * 0.7 * 0.3) ** 0.5, rel=0.05), "each weight by a draw of its own"
    np.testing.assert_allclose(attention.eval()(x).array, 1)


# What is hidden


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_of_the_chosen_symbols_80_10_10(share):
    ids, lengths = np.full((400, 60), 5), rng.integers(0, 61, 400)
    seen, same, targets = masked(ids, lengths, 50, np.random.default_rng(1), 1, share=share)
    real, chosen = mask_of(lengths, 60), targets != -100
    assert np.array_equal(same, lengths) and (targets[chosen] == 5).all() and not chosen[~real].any()
    assert (seen[~chosen] == 5).all(), "what was not chosen stays"
    assert chosen[real].mean() == pytest.approx(share, abs=0.01)
    hidden, stayed = seen[chosen] == 1, seen[chosen] == 5
    swapped = seen[chosen][~hidden & ~stayed]
    assert hidden.mean() == pytest.approx(0.8 + 0.1 / 50, abs=0.02)
    assert stayed.mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.015)
    assert swapped.size / chosen.sum() == pytest.approx(0.1 * 48 / 50, abs=0.015)
    if share == 1.0:
        assert set(swapped) == set(range(50)) - {1, 5}
        assert np.bincount(swapped, minlength=50).max() < 3 * swapped.size / 48, "any symbol, equally often"


def test_the_seed_decides_what_is_hidden():
    def hidden(seed):
        return masked(IDS, LENGTHS, V, np.random.default_rng(seed), 1)

    assert all(np.array_equal(a, b) for a, b in zip(hidden(3), hidden(3), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(hidden(3), hidden(4), strict=True))
    before = IDS.copy()
    assert np.array_equal(IDS, before) and hidden(0)[0].dtype == np.int64
    assert (masked(IDS, LENGTHS, V, np.random.default_rng(0), 1, share=0)[2] == -100).all()


def test_a_masked_model_learns_to_guess_from_both_sides():
    """Rows count up in steps of 1, 2 or 3, from anywhere, round a clock of 12: two neighbours tell what is hidden."""
    mx.seed(0)
    draw = np.random.default_rng(0)

    def batch(share=0.2):
        first, step, lengths = draw.integers(0, 12, 32), draw.integers(1, 4, 32), draw.integers(6, 13, 32)
        ids, lengths = pad([(f + s * np.arange(n)) % 12 for f, s, n in zip(first, step, lengths)])
        return masked(ids, lengths, 13, draw, 12, share=share)

    model = MaskedLM(13, 32, 4, 2, 12)
    first = model.loss(*batch()).item()
    assert math.log(13) - 0.3 < first < math.log(13) + 0.7
    train(model, (batch() for _ in range(250)), Adam(model.parameters(), 5e-3), steps=250, clip=1.0, title=None)
    model.eval()
    ids, lengths, targets = batch(0.1)
    hidden = (targets != -100) & (ids == 12)
    assert (model(ids, lengths).array.argmax(-1)[hidden] == targets[hidden]).mean() > 0.9
    assert hidden.sum() > 15


def test_mistakes_are_named():
    refused(ValueError, lambda: Encoder(V, D, 2, 1, T, positions="alibi"), "Encoder: ALiBi looks back only")
    refused(ValueError, lambda: Encoder(V, D, 2, 1, 3)(IDS), "Encoder: got 5 symbols, but it has positions for 3", "T = 5")
    refused(ValueError, lambda: masked(IDS, LENGTHS, V, rng, V), "masked: ", "a mask_id below V")
    refused(ValueError, lambda: masked(IDS, LENGTHS[:2], V, rng, 1), "masked: there are 3 rows and 2 lengths")
    refused(ValueError, lambda: masked(IDS, LENGTHS + 1, V, rng, 1), "mask_of: lengths must be from 0 to T = 5, got 6")


# A reviewer's findings


def test_targets_that_are_no_multiple_of_the_sources_are_refused():
    model = EncoderDecoder(12, 8, 2, 1, dropout=0.0)
    for rows in (3, 1):
        refused(ValueError, lambda n=rows: model(np.ones((2, 3), int), None, np.ones((n, 2), int)),
                f"TransformerBlock: x has {rows} rows and the memory 2")


def test_lengths_and_types_are_one_for_each_sequence_and_symbol():
    ids, plain, typed = np.array([[1, 2, 3], [4, 5, 6]]), Encoder(12, 8, 2, 1, 5), Encoder(12, 8, 2, 1, 5, types=2)
    refused(ValueError, lambda: plain(ids, np.array([1])), "Encoder: there are 1 lengths for 2 sequences")
    assert (plain(ids, [3, 1]).array == plain(ids, np.array([3, 1])).array).all(), "a list will do"
    refused(ValueError, lambda: plain(ids, None, ids * 0), "Encoder: types of shape (2, 3)", "types=2")
    refused(ValueError, lambda: typed(ids, None, ids[:1] * 0), "Encoder: types of shape (1, 3)", "ids (2, 3)")
    refused(ValueError, lambda: EncoderDecoder(12, 8, 2, 1)(ids, np.array([1]), ids), "EncoderDecoder: there are 1 lengths")
