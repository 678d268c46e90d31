"""Translation: batches have every pair once, a sentence is translated alike in any company, and where a model looked is known.

A vocabulary of letters stands in for pieces, so all but the scores is tested without further packages.
Read next: `test_train_translation.py`, the whole of it.
"""

import math
import sys
from itertools import islice

import numpy as np
import pytest

import minitx as mx
from minitx import nn
from minitx.alignments import Alignment, alignments, attended, picture
from minitx.data import Vocabulary
from minitx.models import EncoderDecoder
from minitx.seq2seq import Seq2Seq
from minitx.translation import Sides, scores, translate

from .common import every_device, refused

PAIRS = [("abc", "ABC"), ("b", "B"), ("ca", "CA"), ("abcabca", "ABCABCA"), ("cc", "CC")]


class Letters:
    """Pieces of one letter each; ids 0 and 1 start and stop."""

    start, stop, letters = 0, 1, Vocabulary("<>abcABC")

    def encode(self, text):
        return self.letters.encode(text)

    def decode(self, ids):
        return self.letters.decode(np.array([i for i in ids if i > 1], int))

    def labels(self, ids):
        return list(self.letters.decode(ids))


class Copier(nn.Module):
    """A translator whose every answer is known: it writes the source in capitals, then stops, unless it is told never to."""

    def __init__(self, stops=True):
        self.weight, self.stops, self.rows = mx.tensor(np.zeros(1), requires_grad=True), stops, []

    def encode(self, source, lengths):
        self.rows.append(len(source))
        return (source, lengths), np.zeros(len(source), int)

    def step(self, ids, memory, state):
        (source, lengths), t = memory, state[0]
        each = len(ids) // len(source)                                              # rows of a beam, those of a source together
        logits = np.full((len(ids), 8), -9.0)
        for row in range(len(ids)):
            b = row // each
            more = t < lengths[b] or not self.stops
            logits[row, source[b, t % lengths[b]] + 3 if more else Letters.stop] = 9.0
        return logits, state + 1


def model_of(kind, **options):
    options = {"rng": np.random.default_rng(0), "dtype": "float64"} | options
    if kind == "transformer":
        return EncoderDecoder(8, 8, 2, 2, **options)
    return Seq2Seq(8, 8, 4, 6, attention=kind, cell="lstm", tied=True, **options)


every_model = pytest.mark.parametrize("kind", ["multiplicative", "additive", "transformer"])


# Sides


def test_sides_leave_out_what_is_too_long_on_either_side():
    sides = Sides.of([*PAIRS, ("a", "ABCA")], Letters(), longest=3)
    assert [Letters().decode(row) for row in sides.sources] == ["abc", "b", "ca", "cc"]
    assert sides.lengths.tolist() == [[3, 3], [1, 1], [2, 2], [2, 2]]
    assert len(Sides.of(PAIRS, Letters()).sources) == len(PAIRS)


def test_an_epoch_has_every_pair_once_and_another_begins():
    sides = Sides.of(PAIRS, Letters())
    batches = list(islice(sides.epochs(2, np.random.default_rng(0)), 6))            # three batches each
    for epoch in batches[:3], batches[3:], sides.once(2):
        read = sorted(Letters().decode(row) for source, *_ in epoch for row in source)
        assert [text.rstrip("<") for text in read] == sorted(source for source, _ in PAIRS)
    source, lengths, inputs, targets = batches[0]
    for row, n, known, wanted in zip(source, lengths, inputs, targets):
        written = Letters().decode(row[:n]).upper()
        assert Letters.letters.decode(known)[:n + 1] == "<" + written
        assert wanted[:n + 1].tolist() == [*Letters().encode(written), Letters.stop] and (wanted[n + 1:] == -100).all()


def test_without_pairs_there_is_no_epoch():
    refused(ValueError, lambda: next(Sides.of([], Letters()).epochs(2, np.random.default_rng(0))), "Sides.epochs", "no pairs")


# Translate


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("B", [1, 2, 64])
def test_translations_stand_in_the_order_of_the_sentences(B, width):
    model = Copier()
    assert translate(model, Letters(), [s for s, _ in PAIRS], width=width, B=B) == [t for _, t in PAIRS]
    assert max(model.rows) <= B and sum(model.rows) == len(PAIRS) and model.training


def test_a_translation_without_end_is_cut():
    assert translate(Copier(stops=False), Letters(), ["abc"]) == ["ABCABCABCABCABCA"]               # 2 · 3 + 10
    assert translate(Copier(), Letters(), []) == []


@every_device
@every_model
@pytest.mark.parametrize("width", [1, 2])
def test_models_translate_as_they_score_whole_targets(kind, width, device):
    """Greedily each piece is the likeliest one behind those before, which are read at once here."""
    model, sentences = model_of(kind).to(device), ["abc", "ca"]
    assert model.training
    written = translate(model, Letters(), sentences, width=width)
    assert model.training and all(set(text) <= set("abcABC") for text in written)
    batch = Sides.of(list(zip(sentences, written)), Letters()).batch([0, 1])
    with mx.no_grad(), model.evaluating():
        logits = model(*[mx.tensor(part, device=device).array for part in batch[:3]]).numpy()
    if width == 1:
        for row, text in zip(logits, written):
            assert row[:len(text)].argmax(-1).tolist() == Letters().encode(text).tolist()


def test_options_without_sense_are_refused():
    refused(ValueError, lambda: translate(Copier(), Letters(), ["a"], width=0), "translate", "width is 0")
    refused(ValueError, lambda: translate(Copier(), Letters(), ["a"], B=0), "translate", "B is 0")


def test_a_single_text_is_not_several_sentences():
    refused(TypeError, lambda: translate(Copier(), Letters(), "abc"), "translate", "got a str", "several sentences")
    assert translate(Copier(), Letters(), iter(["abc", "b"])) == ["ABC", "B"]


# A translator with one table


@every_model
def test_one_table_serves_source_target_and_head_and_its_gradient_is_right(kind):
    model, batch = model_of(kind, dropout=0.0, smoothing=0.1), Sides.of(PAIRS[:2], Letters()).batch([0, 1])
    [name] = [name for name, p in model.named_parameters() if p.shape[0] == 8 and p.size in (8 * 8, 8 * 4) and "table" in name]
    table = dict(model.named_parameters())[name]
    way, step = np.random.default_rng(1).standard_normal(table.shape), 1e-6
    slope = (mx.gradients(model.loss(*batch))[table] * way).sum()
    at = table.numpy().copy()
    ends = []
    for sign in (1, -1):
        table.assign_(at + sign * step * way)
        ends.append(float(model.loss(*batch)))
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_what_is_read_has_size_one_and_the_first_guess_is_nearly_uniform():
    model = Seq2Seq(500, 500, 64, 32, attention="multiplicative", tied=True, rng=np.random.default_rng(0))
    ids = np.arange(500)[None]
    assert model.encoder.tokens is model.decoder.tokens is model.decoder.head.tokens
    assert float(model.decoder.embed(ids).data.std()) == pytest.approx(1, rel=0.02)
    assert float(model.loss(ids, None, ids, ids)) == pytest.approx(math.log(500), rel=0.02)


def test_the_labels_are_smoothed_while_training_only():
    smooth, plain = (model_of("multiplicative", smoothing=smoothing) for smoothing in (0.2, 0.0))
    batch = Sides.of(PAIRS, Letters()).batch([0, 1, 2])
    with mx.no_grad():
        logits, targets = plain(*batch[:3]).numpy(), batch[3]
        log_p = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[targets >= 0]
        right = log_p[np.arange(len(log_p)), targets[targets >= 0]]
        assert float(smooth.loss(*batch)) == pytest.approx(-(0.8 * right + 0.2 * log_p.mean(-1)).mean(), rel=1e-12)
        smooth.eval()
        assert float(smooth.loss(*batch)) == float(plain.loss(*batch)) == pytest.approx(-right.mean(), rel=1e-12)


def test_two_vocabularies_cannot_share_a_table():
    refused(ValueError, lambda: Seq2Seq(8, 9, 4, 6, tied=True), "Seq2Seq: tied", "V_source is 8", "V is 9")
    refused(ValueError, lambda: Seq2Seq(8, 8, 4, 6, smoothing=2.0), "Seq2Seq: smoothing is 2.0")


# Scores


def test_scores_are_those_of_sacrebleu():
    pytest.importorskip("sacrebleu", reason='scores need sacrebleu: pip install "minitx[text]"')
    german = ["Die Katze sitzt auf der Matte.", "Der Hund schläft heute sehr lange."]
    assert scores(german, german, "de") == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    other = scores(["Die Katze sitzt auf der Decke.", german[1]], german, "de")
    precisions = 13 / 14, 10 / 12, 8 / 10, 6 / 8                                    # of 7 + 7 words, in ones to fours
    assert other["bleu"] == pytest.approx(100 * math.exp(np.mean(np.log(precisions)))) and 50 < other["chrf"] < 100
    chinese = ["返回大于 0 且小于 1 的随机数。"]
    assert scores(["返回大于 1 且小于 2 的随机数。"], chinese, "zh")["bleu"] > scores(
        ["返回大于 1 且小于 2 的随机数。"], chinese, "de")["bleu"], "characters, not what stands between blanks"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    refused(ModuleNotFoundError, lambda: scores(["a"], ["a"], "de"), "sacrebleu", 'pip install "minitx[text]"')


def test_scores_of_other_languages_or_of_unequally_many_are_refused():
    refused(ValueError, lambda: scores(["a"], ["a"], "fr"), "scores: language", "de, zh", "'fr'")
    refused(ValueError, lambda: scores(["a", "b"], ["a"], "de"), "scores", "2 translations and 1 references")
    refused(TypeError, lambda: scores("a", ["a"], "de"), "scores", "got a str", "several translations")


# Alignments


def test_alignments_are_of_as_many_translations_as_sentences():
    model = model_of("multiplicative")
    refused(ValueError, lambda: alignments(model, Letters(), ["abc", "b"], ["AB"]), "alignments",
            "2 sentences and 1 translations")
    refused(TypeError, lambda: alignments(model, Letters(), "abc", "ABC"), "alignments", "several sentences")


@every_device
@every_model
def test_a_model_looks_at_its_source_and_never_at_padding(kind, device):
    model, batch = model_of(kind).to(device), Sides.of(PAIRS, Letters()).batch([0, 1, 2])
    weights = attended(model, batch)
    assert isinstance(weights, np.ndarray) and weights.shape == (3, batch[2].shape[1], batch[0].shape[1])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    for row, n in zip(weights, batch[1]):
        assert (row[:, :n] > 0).all() and not row[:, n:].any()


def test_of_a_transformer_it_is_the_last_attention_to_the_source_and_the_mean_of_its_heads():
    model, batch = model_of("transformer"), Sides.of(PAIRS, Letters()).batch([0, 3])
    with mx.record(model) as log, mx.no_grad(), model.evaluating():
        model(*batch[:3])
    last, first = (log[f"decoder.{i}.cross"]["probs"] for i in (1, 0))
    np.testing.assert_allclose(attended(model, batch), last.mean(1), rtol=1e-12)
    assert np.abs(attended(model, batch) - first.mean(1)).max() > 1e-3


@every_model
def test_alignments_have_the_pieces_of_both_sides(kind):
    model = model_of(kind)
    found = alignments(model, Letters(), ["abc", "b"], ["AB", "CCC"])
    assert [(a.source, a.target, a.weights.shape) for a in found] == [
        (["a", "b", "c"], ["A", "B"], (2, 3)), (["b"], ["C", "C", "C"], (3, 1))]
    [alone] = alignments(model, Letters(), ["b"], ["CCC"])
    np.testing.assert_allclose(found[1].weights, alone.weights, rtol=1e-12)


def test_a_picture_has_a_row_for_each_model_and_names_the_pieces(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    one = Alignment(["a", " ", "$x"], ["A", "B"], np.array([[0.5, 0.5, 0], [0, 0.2, 0.8]]))
    figure = picture({"LSTM": [one, one], "Transformer": [one]})
    figure.savefig(tmp_path / "heat.png")
    panels = [axes for axes in figure.axes if axes.get_images() and axes.get_visible()]
    assert len(panels) == 3
    for axes in panels:
        assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "␣", "$x"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), one.weights)
        assert axes.get_images()[0].get_clim() == (0, 0.8)


def test_chinese_pieces_are_drawn_in_a_font_that_has_them(tmp_path):
    fonts = pytest.importorskip("minitx.fonts", reason="pictures need matplotlib")
    if fonts.font_for("行") is None:
        pytest.skip("no installed font has Chinese; install fonts-noto-cjk")
    figure = picture({"LSTM": [Alignment(["line"], ["行"], np.ones((1, 1)))]})
    figure.savefig(tmp_path / "heat.png")                                           # an empty box would warn, which is an error
    assert fonts.font_for("行") in figure.axes[0].get_yticklabels()[0].get_fontfamily()
