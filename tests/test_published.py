"""Weights that others have trained and published, through minitx: the numbers of the original, and of PyTorch.

They come with packages that are installed for these tests only; without them a test is skipped, and says what to install.
The numbers written down here were made once with plain NumPy from the same files, the pronunciations by the package itself.
"""

import ast
import importlib.util
import re
import runpy
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.data import Vocabulary, pad
from minitx.data.published import packaged_file

from .common import every_device, refused

EXAMPLES = Path(__file__).parent.parent / "examples"
PRONOUNCED = {"transformer": "T R AE0 N S F AO1 R M ER0", "backpropagation": "B AE2 K P R AH0 G P EY1 SH AH0 N",
              "minitx": "M IH1 N IH0 K T S"}
PROMPT = "my dog is"
WORDS = [*PRONOUNCED, "a", "recurrence"]
published = pytest.mark.published


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(monkeypatch, name, *args):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def or_skip(make):
    try:
        return make()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))


g2p, writer = load("pronounce"), load("write_headlines")


@pytest.fixture(scope="module")
def speaker():
    return or_skip(g2p.published)


@pytest.fixture(scope="module")
def headlines():
    return or_skip(writer.published)


def off(ours, theirs):
    """The largest difference between arrays of one shape."""
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs).max()


# Pronunciation: a GRU reads, a GRU speaks


@published
@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")     # in the source of the package
def test_letters_and_phonemes_are_those_of_the_package(speaker):
    source = packaged_file(g2p.PACKAGE, "g2p_en/g2p.py").read_text("utf-8")         # read, never run: it wants NLTK
    said = {ast.unparse(node.targets[0]): node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)}
    for name, ours in ("self.graphemes", g2p.LETTERS), ("self.phonemes", g2p.PHONEMES):
        assert eval(compile(ast.Expression(said[name]), name, "eval"), {"__builtins__": {"list": list}}) == ours


@published
def test_the_first_step_has_the_logits_of_the_original(speaker):
    state = speaker.read(mx.tensor([g2p.letters_of("transformer")]))
    logits = speaker.speak(mx.tensor([[g2p.START]]), state)[0].numpy()[0, 0]
    assert logits[:6] == pytest.approx([-0.23122, -1.0812, -1.80176, -5.70253, 2.03479, 1.37658], abs=6e-6)
    assert g2p.PHONEMES[logits.argmax()] == "T"


@published
@pytest.mark.parametrize("word", PRONOUNCED)
@every_device
def test_words_are_pronounced_as_by_the_package(speaker, word, device):
    speaker.to(device)
    try:
        [found] = g2p.pronounce(speaker, [word])
    finally:
        speaker.to("cpu")
    assert (g2p.spelled(found), found.finished) == (PRONOUNCED[word], True)


@published
def test_words_of_unequal_length_in_one_batch_are_pronounced_as_alone(speaker):
    letters, lengths = pad(map(g2p.letters_of, WORDS))
    assert len(set(lengths.tolist())) == len(WORDS)
    together = speaker.read(mx.tensor(letters), lengths).numpy()
    alone = [speaker.read(mx.tensor([g2p.letters_of(word)])).numpy() for word in WORDS]
    assert off(together, np.concatenate(alone, 1)) < 3e-5            # 3e-6 was measured: other shapes, other order of sums
    for ours, word in zip(g2p.pronounce(speaker, WORDS), WORDS):
        [expected] = g2p.pronounce(speaker, [word])
        assert ours.ids == expected.ids and ours.log_p == pytest.approx(expected.log_p, abs=1e-5)
    assert g2p.spelled(g2p.pronounce(speaker, WORDS)[2]) == PRONOUNCED["minitx"]


@published
def test_probabilities_of_the_phonemes_multiply_to_that_of_the_word(speaker):
    [found] = g2p.pronounce(speaker, ["minitx"])
    p = g2p.probabilities(speaker, "minitx", found.ids)
    assert p.shape == (found.length, len(g2p.PHONEMES)) and (p.argmax(-1) == [*found.ids, g2p.STOP]).all()
    assert np.log(p.max(-1)).sum() == pytest.approx(found.log_p, abs=1e-5)


@published
def test_pronounce_py_prints_words_phonemes_and_doubts(speaker, monkeypatch, capsys):
    run(monkeypatch, "pronounce", "Transformer", "minitx", "--show")
    out = capsys.readouterr().out
    assert re.search(rf"^transformer   {PRONOUNCED['transformer']}   +\d+%$", out, re.M)
    assert re.search(rf"^minitx        {PRONOUNCED['minitx']}   +\d+%$", out, re.M)
    assert re.search(r"^    IH1   70%  █{14} +or AY1 29%$", out, re.M) and out.count("    end ") == 2


@published
def test_a_word_that_never_ends_is_cut_where_the_original_cuts_it(speaker):
    [found] = g2p.pronounce(speaker, ["pneumonoultramicroscopicsilicovolcanoconiosis"])
    assert len(found.ids) == 20 and g2p.spelled(found).endswith(" OW0 …")


@pytest.mark.parametrize("word, sign", [("don't", '"\'"'), ("café", "'é'"), ("two words", "' '"), ("gpt2", "'2'")])
def test_a_word_with_other_signs_is_refused(word, sign):
    refused(ValueError, lambda: g2p.letters_of(word), f"pronounce: {word!r} has {sign}", "a to z")


def test_an_empty_word_is_refused():
    refused(ValueError, lambda: g2p.letters_of(""), "pronounce: got an empty word")


# Headlines: two LSTMs and an average


@published
def test_probabilities_after_why_do_cats(headlines):
    model, vocabulary = headlines
    p = ops.softmax(model(vocabulary.encode("why do cats")[None])).numpy()[0, 0]
    likeliest = {vocabulary.decode([i]): float(p[i]) for i in p.argsort()[:-6:-1]}
    expected = {" ": 0.8641, "?": 0.0421, writer.END: 0.0319, ".": 0.0242, ",": 0.0191}
    assert list(likeliest) == list(expected) and likeliest == pytest.approx(expected, abs=6e-5)


@published
def test_only_the_last_40_symbols_count_and_zeros_stand_before_a_shorter_text(headlines):
    model, vocabulary = headlines
    ids = vocabulary.encode("the quick brown fox jumps over the lazy dog again and again")[None]
    np.testing.assert_array_equal(model(ids).array, model(ids[:, -40:]).array)
    assert off(model(ids).numpy(), model(ids[:, -39:]).numpy()) > 1e-3
    padded = np.concatenate([np.zeros((1, 33), ids.dtype), ids[:, :7]], 1)
    np.testing.assert_array_equal(model(ids[:, :7]).array, model(padded).array)


@published
def test_the_symbols_are_those_of_the_package(headlines):
    _, vocabulary = headlines
    assert vocabulary.encode(writer.PADDING + "It" + writer.END).tolist() == [0, 1, 2, 464] and len(vocabulary) == 465


def test_a_headline_begins_where_the_last_one_ended():
    vocabulary = Vocabulary(writer.PADDING + "ab" + writer.END)
    assert writer.beginning(vocabulary, "ba").tolist() == [3, 2, 1]
    for sign in "c", writer.PADDING, writer.END:
        refused(ValueError, lambda s=sign: writer.beginning(vocabulary, "a" + s), f"has {sign!r}", "the 2 characters")


@published
def test_headlines_on_the_strict_device_are_those_on_the_cpu(headlines):
    model, vocabulary = headlines
    start = writer.beginning(vocabulary, PROMPT)

    def write():
        return "".join(writer.headline(model, vocabulary, start, temperature=0.5, rng=np.random.default_rng(0)))

    expected = write()
    model.to("strict")
    try:
        assert write() == expected != ""
    finally:
        model.to("cpu")


@published
def test_write_headlines_py_writes_a_line_for_each(headlines, monkeypatch, capsys):
    def written(*args):
        run(monkeypatch, "write_headlines", "--prompt", PROMPT, *args)
        return capsys.readouterr().out

    out = written("--count", "2")
    assert all(line.startswith(PROMPT) and len(line) > len(PROMPT) for line in out.splitlines()) and out.count("\n") == 2
    assert out.startswith(written("--count", "1", "--seed", "0")) and not out.startswith(written("--count", "1", "--seed", "1"))


@published
@pytest.mark.parametrize("args, message", [
    (["--prompt", "猫"], "write_headlines: the prompt has '猫', which is not among the 463 characters"),
    (["--count", "0"], "write_headlines: count is 0; expected a whole number of at least 1"),
    (["--temperature", "-1"], "write_headlines: temperature is -1.0; expected a finite number of at least 0"),
    (["--temperature", "nan"], "write_headlines: temperature is nan"),
    (["--seed", "-1"], "write_headlines: seed is -1"),
])
def test_write_headlines_py_refuses_before_it_writes(headlines, monkeypatch, capsys, args, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        run(monkeypatch, "write_headlines", *args)
    assert capsys.readouterr().out == ""


def test_the_matrices_of_cudnn_are_turned_gate_by_gate():
    D, H, rng = 3, 2, np.random.default_rng(0)
    gates = [rng.standard_normal((D, H)) for _ in range(4)]
    as_saved = np.hstack([np.frombuffer(gate.T.tobytes()).reshape(D, H) for gate in gates])     # said to be (D, H), but is not
    np.testing.assert_array_equal(writer.from_cudnn(as_saved), np.hstack(gates))


# The same weights in PyTorch. A tolerance is ten times the largest difference that was measured.


def in_torch(torch, module, weights, x, state=None):
    """All states of a recurrence of PyTorch with these arrays as weights."""
    module = module(x.shape[2], weights["weight_hh_l0"].shape[1], batch_first=True, dtype=getattr(torch, str(x.dtype)))
    module.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    with torch.no_grad():
        return module(torch.tensor(x.numpy()), None if state is None else torch.tensor(state.numpy()))[0].numpy()


@published
@pytest.mark.torch
@pytest.mark.parametrize("dtype, tolerance", [("float32", 4e-5), ("float64", 6e-14)])
def test_grus_agree_with_pytorch(speaker, dtype, tolerance, record_property):
    torch = pytest.importorskip("torch")
    model, word = speaker.to(dtype=dtype), "backpropagation"
    letters, [said] = model.letters(mx.tensor([g2p.letters_of(word)])), g2p.pronounce(model, [word])
    read, state = model.encoder(letters)
    phonemes = model.phonemes(mx.tensor([[g2p.START, *said.ids]]))
    spoken, _ = model.decoder(phonemes, state)
    model.to(dtype="float32")
    names = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}
    with np.load(packaged_file(g2p.PACKAGE, "checkpoint20.npz")) as file:
        enc, dec = ({theirs: file[f"{part}_{name}"] for name, theirs in names.items()} for part in ("enc", "dec"))
    worst = max(off(read.numpy(), in_torch(torch, torch.nn.GRU, enc, letters)),
                off(spoken.numpy(), in_torch(torch, torch.nn.GRU, dec, phonemes, state)))
    record_property("largest difference", float(worst))
    assert worst < tolerance


@published
@pytest.mark.torch
@pytest.mark.parametrize("dtype, tolerance", [("float32", 9e-6), ("float64", 3e-14)])
def test_lstms_agree_with_pytorch(headlines, dtype, tolerance, record_property):
    torch = pytest.importorskip("torch")
    model, vocabulary = headlines
    x, worst = model.to(dtype=dtype).embed(vocabulary.encode("the quick brown fox jumps over")[None]), 0.0
    for lstm in model.lower, model.upper:
        hs, _ = lstm(x)
        worst = max(worst, off(hs.numpy(), in_torch(torch, torch.nn.LSTM, lstm.to_torch(), x)))
        x = hs
    model.to(dtype="float32")
    record_property("largest difference", float(worst))
    assert worst < tolerance


# Without the packages


def not_installed(name):
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("script, args, message", [
    ("pronounce", ["minitx"], "needs g2p-en==2.1.0: pip install --no-deps g2p-en==2.1.0"),
    ("write_headlines", [], "needs textgenrnn==2.0.0 and h5py: pip install h5py && pip install --no-deps textgenrnn==2.0.0"),
])
def test_a_script_without_its_package_says_what_to_install(monkeypatch, capsys, script, args, message):
    monkeypatch.setattr(metadata, "distribution", not_installed)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SystemExit) as exit:
        run(monkeypatch, script, *args)
    assert exit.value.code == message and capsys.readouterr().out == ""


def test_only_what_is_missing_is_to_be_installed(monkeypatch):
    installed = metadata.version("pytest")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert refused(ModuleNotFoundError, lambda: packaged_file(f"pytest=={installed}", "RECORD", reader="h5py")) == \
        f"needs pytest=={installed} and h5py: pip install h5py"
    assert refused(ModuleNotFoundError, lambda: packaged_file("pytest==0.1", "RECORD", reader="json")) == \
        "needs pytest==0.1 and json: pip install --no-deps pytest==0.1"


@pytest.mark.parametrize("requirement", ["pytest", "pytest==", "pytest>=1"])
def test_a_requirement_without_a_version_is_refused(requirement):
    refused(ValueError, lambda: packaged_file(requirement, "RECORD"), f"packaged_file: requirement is {requirement!r}",
            "version")


def test_a_packaged_file_is_found_and_a_missing_one_named():
    requirement = f"pytest=={metadata.version('pytest')}"
    assert packaged_file(requirement, "pytest/__init__.py").read_text("utf-8")
    refused(FileNotFoundError, lambda: packaged_file(requirement, ".hdf5"), requirement, "'.hdf5'")
