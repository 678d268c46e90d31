"""Pictures and texts show what was recorded: the right numbers, scales and labels, in letters that are there.

Warnings are errors, so a picture that was `drawn` has no empty boxes. Drawing takes a while, and labels are there before.
"""

import io
import math
import sys
from itertools import pairwise

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, pyplot
from matplotlib.colors import LogNorm

import minitx as mx
from minitx import fonts, ops, plots
from minitx.backend import expecting_overflow
from minitx.models import RecurrentLM, TransformerLM

from .common import leaf, refused
from .test_recording import IDS, MODELS, B, T, recorded

TOKENS = "ab c\n$d"
PRIVATE = "\ue000\ue001\ue002"      # characters that no font has: in Unicode they are for private use


def drawn(picture):
    """All texts of a picture, after it was drawn to the end."""
    picture.savefig(io.BytesIO(), format="png", dpi=40)
    return texts_of(picture)


def texts_of(picture):
    return [text.get_text() for axes in picture.axes for text in
            (*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label,
             *(axes.get_legend().get_texts() if axes.get_legend() else ()))]


# Gradients


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_a_heat_map_on_a_logarithmic_scale_and_curves(kind):
    log, others = recorded(kind), pyplot.get_fignums()
    picture = log.plot.gradients()
    texts, rows = drawn(picture), log.gradients()
    heat, _, curves, _ = picture.axes
    assert [mesh.get_array().shape for mesh in heat.collections] == [(1, T)] * len(rows)
    assert all(type(mesh.norm) is LogNorm for mesh in heat.collections) and curves.get_yscale() == "log"
    every = np.concatenate([*rows.values()])
    assert (heat.collections[0].norm.vmin, heat.collections[0].norm.vmax) == (every[every > 0].min(), every.max())
    for mesh, line, (name, sizes) in zip(heat.collections, curves.get_lines(), rows.items(), strict=True):
        shown = np.where(sizes > 0, sizes, np.nan)
        np.testing.assert_array_equal(line.get_ydata(), shown)
        np.testing.assert_array_equal(np.where(sizes > 0, mesh.get_array()[0], np.nan), shown)
        assert line.get_label() == name and texts.count(name) == 2, "on the heat-map, and in the legend"
    assert any("mean over the batch" in text for text in texts) and "time step" in texts
    assert pyplot.get_fignums() == others, "apart from pyplot"


def test_what_a_logarithmic_scale_cannot_show_is_marked():
    class Odd(mx.Recorder):
        def gradients(self):
            return {"a": np.array([0.0, 1e-320, 1e-3, 1.0, 1e300, math.inf, math.nan]), "b": np.array([2.0, 0.0])}

    log = Odd(MODELS["rnn"]())
    picture = log.plot.gradients(tokens=TOKENS)
    texts = drawn(picture)
    assert {"zero", "infinite", "padding or NaN"} < set(texts)
    first, second = picture.axes[0].collections
    colours = list(map(tuple, first.to_rgba(first.get_array())[0]))
    marks = [tuple(int(plots.SPECIAL[kind][i:i + 2], 16) / 255 for i in (1, 3, 5)) + (1,)
             for kind in ("zero", "infinite", "padding or NaN")]
    np.testing.assert_allclose([colours[0], colours[5], colours[6]], marks)
    assert len(set(colours)) == 7 and second.get_array().shape == (1, 2)
    name, bars, first_size, last_size = log.text.gradients().splitlines()[1].split()
    assert (name, bars, first_size, last_size) == ("a", "·▁▄▅█∞–", "0", "nan")
    assert "· zero, ∞ infinite, – padding or NaN" in log.text.gradients()
    for odd in ([0.0, 0.0], [math.nan] * 2, [math.inf] * 2, [3.0, 3.0]):
        log.gradients = lambda odd=odd: {"a": np.array(odd)}
        assert log.text.gradients() and log.plot.gradients().axes[0].collections[0].norm.vmin > 0
    assert log.plot.gradients()._repr_png_()[:4] == b"\x89PNG"


def test_an_exploding_net_is_drawn():
    model = mx.nn.RNN(1, 2, activation="linear", gain=1e40, dtype="float64")
    x = mx.tensor(np.ones((2, 20, 1)))
    with mx.record(model) as log, expecting_overflow():
        model(x)[0][:, -1].sum().backward()
    log.plot.gradients()
    assert "∞" in log.text.gradients() or "–" in log.text.gradients()


def test_gradients_in_letters():
    log = recorded("lstm")
    head, *lines, legend = log.text.gradients().splitlines()
    assert head.split() == ["gradient", "time", "→", "first", "last"]
    assert "on a logarithmic scale" in legend and "mean over the batch" in legend
    for line, (name, sizes) in zip(lines, log.gradients().items(), strict=True):
        bars = line.split()[2]
        assert line.startswith(name) and len(bars) == T and line.split()[3:] == [f"{sizes[0]:.3g}", f"{sizes[-1]:.3g}"]
        heights = ["·▁▂▃▄▅▆▇█".index(bar) for bar in bars]
        assert all(a <= b for a, b in pairwise(np.array(heights)[sizes.argsort()]))
    assert "█" in "".join(lines) and "▁" in "".join(lines)
    assert [len(line.split()[2]) for line in log.text.gradients(width=3).splitlines()[1:-1]] == [3] * 4


def test_without_a_way_back_there_is_nothing_to_draw():
    model = MODELS["lstm"]()
    with mx.record(model) as log:
        model.loss(*IDS)
    refused(ValueError, lambda: log.plot.gradients(), "gradients: no gradient over time was recorded", "loss.backward()")


# Gates


@pytest.mark.parametrize("kind, names", [("lstm", ["i", "f", "o", "g", "c"]), ("gru", ["r", "z", "n"])])
def test_gates_are_maps_of_units_over_time_and_their_mean(kind, names):
    log = recorded(kind)
    picture = log.plot.gates(1, sample=2, tokens=TOKENS)
    texts = drawn(picture)
    heats, curves = picture.axes[:2 * len(names):2], picture.axes[2 * len(names)]
    for name, heat in zip(names, heats):
        np.testing.assert_array_equal(heat.images[0].get_array(), log["recurrence.layers.1"][name][2].T)
        assert heat.get_ylabel().startswith(name)
    opening = [name for name in names if name in "iforz"]
    assert [heat.images[0].get_clim() for heat in heats[:len(opening)]] == [(0, 1)] * len(opening)
    for name, line in zip(opening, curves.get_lines(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), log["recurrence.layers.1"][name][2].mean(-1), rtol=1e-6)
    assert any("recurrence.layers.1" in text and "sequence 2" in text for text in texts)
    assert [text.get_text() for text in curves.get_xticklabels()] == ["a", "b", "␣", "c", "↵", "$", "d"]
    assert "Gates of recurrence.layers.0 by unit, sequence 0 of the batch" in texts_of(log.plot.gates("recurrence.layers.0"))
    *lines, legend = log.text.gates(1, sample=2).splitlines()[2:]
    for name, line in zip(opening, lines, strict=True):
        mean = log["recurrence.layers.1"][name][2].mean(-1)
        assert line.split() == [name, "".join("▁▂▃▄▅▆▇█"[round(7 * float(m))] for m in mean), f"{mean.mean():.3g}"]
    assert legend == "▁ closed … █ open"


def test_padding_is_marked():
    model = mx.nn.GRU(3, 4)
    with mx.record(model) as log:
        model(mx.tensor(np.ones((2, 5, 3), "float32")), None, [4, 2])[0].sum().backward()
    *lines, legend = log.text.gates(sample=1).splitlines()[2:]
    for line, name in zip(lines, "rz", strict=True):
        assert line.split()[1][2:] == "–––" and "–" not in line.split()[1][:2]
        assert float(line.split()[2]) == pytest.approx(log["layers.0"][name][1, :2].mean(), rel=1e-2)
    assert legend == "▁ closed … █ open, – padding or NaN"
    assert log.text.gates(width=2).splitlines()[2].split()[1][1] == "–", "among the steps that a letter stands for, too"
    gradients = log.text.gradients().splitlines()
    assert gradients[1].split()[2].index("–") == 4 and "– padding or NaN" in gradients[2]
    picture = log.plot.gates(sample=1)
    shown = picture.axes[0].images[0].get_array()
    assert shown.mask[:, 2:].all() and not shown.mask[:, :2].any()
    assert "padding or NaN" in [text.get_text() for axes in picture.axes if axes.get_legend()
                                for text in axes.get_legend().get_texts()]
    assert "padding or NaN" in texts_of(log.plot.gradients())


@pytest.mark.parametrize("call, parts", [
    (lambda log, tokens: log.plot.gradients(tokens=tokens), (f"gradients: there are 2 tokens for {T} time steps", "give one")),
    (lambda log, tokens: log.plot.gates(tokens=tokens), (f"gates: there are 2 tokens for {T} time steps",)),
    (lambda log, tokens: log.plot.attention(tokens=tokens), (f"attention: there are 2 tokens for {T} queries",)),
    (lambda log, tokens: log.plot.attention(tokens="abcdefg", keys=tokens), (f"attention: there are 2 tokens for {T} keys",)),
    (lambda log, tokens: log.text.attention(tokens=tokens), (f"attention: there are 2 tokens for {T} queries",)),
], ids=["gradients", "gates", "attention", "keys", "in letters"])
def test_there_is_a_token_for_each_step_or_none(call, parts):
    log = recorded("transformer" if "attention" in parts[0] else "lstm")
    for tokens in ("ab", [1, 2]):
        refused(ValueError, lambda tokens=tokens: call(log, tokens), *parts)


def test_tokens_may_be_numbers_and_so_may_numbers_of_numpy():
    log = recorded("lstm")
    labels = log.plot.gradients(tokens=np.arange(T)).axes[2].get_xticklabels()
    assert [text.get_text() for text in labels] == [*map(str, range(T))]
    one = np.int64(1)
    assert log.text.gates(one, sample=one) == log.text.gates(1, sample=1)
    attention = recorded("transformer")
    assert attention.text.attention(one, one, sample=one, tokens=range(T)) == attention.text.attention(1, 1, sample=1)
    for width in (0, -1, 2.5):
        refused(ValueError, lambda width=width: log.text.gradients(width=width), f"gradients: width is {width}", "at least 1")
        refused(ValueError, lambda width=width: log.text.gates(width=width), f"gates: width is {width}", "at least 1")
    refused(ValueError, lambda: log.text.gates(True), "gates: layer is True")
    refused(ValueError, lambda: log.text.gates(sample=True), "gates: sample is True")


def test_all_layers_and_heads_in_letters_stand_one_below_the_other():
    text = recorded("transformer").text
    every = text.attention(None, None)
    assert every == "\n\n".join(text.attention(layer, head) for layer in range(3) for head in range(2))
    assert text.attention(None) == "\n\n".join(text.attention(layer) for layer in range(3))


@pytest.mark.parametrize("call, parts", [
    (lambda log: log.plot.gates(2), ("gates: layer is 2", "'recurrence.layers.0', 'recurrence.layers.1'")),
    (lambda log: log.plot.gates("head"), ("gates: layer is 'head'",)),
    (lambda log: log.text.gates(sample=B), (f"gates: sample is {B}", f"from 0 to {B - 1}")),
    (lambda log: log.plot.attention(), ("attention: layer is None; recorded were none",)),
])
def test_a_layer_or_sample_that_is_not_there_is_refused(call, parts):
    refused(ValueError, lambda: call(recorded("lstm")), *parts)


# Attention


def test_attention_has_a_panel_for_each_layer_and_head():
    log = recorded("transformer")
    picture = log.plot.attention(tokens=TOKENS, sample=1)
    drawn(picture)
    panels = picture.axes[:6]
    for n, axes in enumerate(panels):
        layer, head = divmod(n, 2)
        np.testing.assert_array_equal(axes.images[0].get_array(), log[f"blocks.{layer}.attention"]["probs"][1, head])
        assert axes.get_title() == f"head {head}"
    assert [axes.get_ylabel() for axes in panels[::2]] == [f"blocks.{n}.attention" for n in range(3)]
    names = ["a", "b", "␣", "c", "↵", "$", "d"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == names
    assert [text.get_text() for text in panels[4].get_xticklabels()] == names
    one = log.plot.attention(1, 1, tokens=["the"] * T, keys=["cat"] * T)
    assert {"the", "cat", "head 1"} < set(texts_of(one)) and len(one.axes) == 2
    refused(ValueError, lambda: log.plot.attention(head=2), "attention: head is 2; expected a number from 0 to 1")


def test_attention_in_letters():
    q = leaf(np.zeros((1, 1, 3, 2)))
    with mx.record(mx.nn.Module()) as log:
        ops.attention(q, q, q, causal=True)
    lines = log.text.attention(tokens="a中 ").splitlines()
    assert lines[0] == "Module, head 0, sequence 0 of the batch; keys →"
    assert lines[1:4] == [" a ██", "中 ▓▓▓▓", " ␣ ▒▒▒▒▒▒"], "a Chinese character is as wide as two letters"
    assert lines[4] == "· 0.04, ░ 0.16, ▒ 0.36, ▓ 0.64, █ 1"
    refused(ValueError, lambda: log.text.attention(tokens="ab"), "attention: there are 2 tokens for 3 queries")


def test_attention_of_a_decoder_that_goes_step_by_step_and_has_no_heads():
    class Look(mx.nn.Module):
        def forward(self, q, k):
            return ops.additive_attention(q, k, k, leaf(np.ones(2)))

    model, rng = Look(), np.random.default_rng(0)
    k = leaf(rng.standard_normal((2, 5, 2)))
    with mx.record(model) as log:
        for _ in range(3):
            model(leaf(rng.standard_normal((2, 1, 2))), k)
    assert log.over_time("", "probs").shape == (2, 3, 5)
    picture = log.plot.attention(sample=1, tokens="ab…", keys="vwxyz")
    assert {*"ab…vwxyz"} < set(texts_of(picture)) and picture.axes[0].images[0].get_array().shape == (3, 5)


def test_a_long_sequence_is_labelled_as_far_as_there_is_room():
    model = TransformerLM(5, D=4, N=4, L=1, T=200)
    with mx.record(model) as log:
        model.loss(np.zeros((1, 200), int), np.zeros((1, 200), int)).backward()
    picture = log.plot.attention(tokens="x" * 200)
    assert 5 < len(picture.axes[0].get_yticks()) < 40
    assert 20 < texts_of(log.plot.gradients(tokens=["word"] * 200)).count("word") < 90
    assert len(log.text.gradients().splitlines()[1].split()[2]) == 64


# Letters


@pytest.fixture
def no_chinese(monkeypatch):
    """A machine whose only fonts are those of matplotlib."""
    own = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    monkeypatch.setattr(fonts, "told", set())


def a_font(path, family, characters):
    """A font file in which every one of these characters is a square."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0)), pen.lineTo((0, 500)), pen.lineTo((500, 500)), pen.lineTo((500, 0)), pen.closePath()
    square, names = pen.glyph(), [".notdef", *(f"u{ord(c):X}" for c in characters)]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): name for c, name in zip(characters, names[1:])})
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(), builder.setupPost()
    builder.save(path)
    return str(path)


def test_where_a_font_has_them_chinese_characters_are_drawn(no_chinese, monkeypatch, tmp_path):
    files = [a_font(tmp_path / "one.ttf", "Only One", "中"), a_font(tmp_path / "two.ttf", "Two Signs", "中文"),
             str(tmp_path / "bad.ttf")]
    (tmp_path / "bad.ttf").write_bytes(b"no font")
    assert plots.font_for("abc") == "DejaVu Sans" and plots.font_for("中文") is None
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: files)      # installed since matplotlib made its list
    assert plots.font_for("中文") == "Two Signs" and plots.font_for("中文a") is None
    assert {"中", "文", "a"} < set(drawn(recorded("transformer").plot.attention(1, 0, tokens="中文中文abc")))


def test_where_no_font_has_them_a_picture_spells_them_and_says_what_to_install(no_chinese):
    log = recorded("transformer")
    with pytest.warns(plots.MissingFont) as hints:
        picture = log.plot.attention(0, 0, tokens="中文中文abc")
    [hint] = hints
    assert "no installed font has 中 文" in str(hint.message) and "apt-get install fonts-noto-cjk" in str(hint.message)
    assert hint.filename == __file__, "it points to the line that asked for the picture"
    assert {"U+4E2D", "U+6587", "a"} < set(drawn(picture))
    assert "U+4E2D" in texts_of(log.plot.gradients(tokens="中文中文abc")), "and the hint comes once"
    with pytest.warns(plots.MissingFont, match="has 字;"):
        log.plot.gradients(tokens="中文中文字bc")


def test_every_text_of_a_picture_may_need_letters(no_chinese, monkeypatch, tmp_path):
    model = RecurrentLM(5, 3, 4)
    model.层 = model.__dict__.pop("recurrence")
    model.body = lambda x: model.层(x)[0]
    with mx.record(model) as log:
        model.loss(IDS[0] % 5, IDS[1] % 5).backward()
    with pytest.warns(plots.MissingFont, match="has 层"):
        assert "U+5C42.layers.0 dh" in texts_of(log.plot.gradients())
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [a_font(tmp_path / "new.ttf", "New", "层")])
    assert "层.layers.0 dh" in drawn(log.plot.gradients())
    assert any("层" in text for text in texts_of(log.plot.gates()))


@pytest.mark.parametrize("token, label", [("", "∅"), (" the", "␣the"), ("\x07", "U+0007"), ("$x_1$", "$x_1$"),
                                          (PRIVATE, "U+E000U+E001U+E002")])
def test_odd_tokens_are_written_as_they_are(no_chinese, token, label):
    fonts.told.update(PRIVATE)
    picture = recorded("rnn").plot.gradients(tokens=[token] * T)
    assert label in drawn(picture)
    assert not any(text.get_parse_math() for text in picture.axes[2].get_xticklabels()), "$ is a letter here"


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "matplotlib" or name in ("minitx.plots", "minitx.fonts"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = recorded("rnn")
    refused(ImportError, lambda: log.plot, "plot: needs matplotlib, which is not installed", 'pip install "minitx[plots]"')
    assert log.text.gradients()
