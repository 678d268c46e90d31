"""Transformers that others have trained and published, through minitx: MiniLM and SmolLM2 give the numbers of their originals.

The numbers written down here were made once with plain NumPy, and agree with the original runtimes to 3e-6 and 1e-4. Without
the packages, which are installed for these tests only, a test is skipped and says what to install.
"""

import re
import sys

import numpy as np
import pytest

import minitx as mx
from minitx import pretrained
from minitx.data import pad
from minitx.generation import generate

from .common import refused
from .test_published import load, or_skip, run

published = pytest.mark.published
example = load("run_pretrained")
SENTENCES = ["The cat sits outside", "A man is playing guitar", "Two kittens are sitting in the garden, and it rains."]
CAPITAL = "The capital of France is"


@pytest.fixture(scope="module")
def minilm():
    return or_skip(pretrained.minilm)


@pytest.fixture(scope="module")
def smollm2():
    return or_skip(pretrained.smollm2)


# MiniLM: BERT's form


@published
@pytest.mark.parametrize("sentence, ids, hidden", [
    (SENTENCES[0], [101, 1996, 4937, 7719, 2648, 102], [0.506911, 0.119231, 0.333344, 0.294982]),
    (SENTENCES[1], [101, 1037, 2158, 2003, 2652, 2858, 102], [0.083824, 0.068052, -0.100014, -0.500535]),
])
def test_minilm_has_the_numbers_of_the_original(minilm, sentence, ids, hidden):
    encoder, tokenizer = minilm
    assert tokenizer.encode(sentence).ids == ids
    with mx.no_grad():
        assert encoder(np.array([ids])).numpy()[0, 0, :4] == pytest.approx(hidden, abs=3e-6)


@published
def test_sentences_become_vectors_of_length_one_whose_products_are_cosines(minilm):
    with mx.no_grad():
        vectors = pretrained.sentence_vectors(*minilm, SENTENCES).numpy()
        alone = [pretrained.sentence_vectors(*minilm, [sentence]).numpy()[0] for sentence in SENTENCES]
    assert vectors[0, :6] == pytest.approx([0.139191, 0.003029, 0.047015, 0.039574, -0.047999, -0.006812], abs=1e-6)
    cosines = vectors @ vectors.T
    assert np.diag(cosines) == pytest.approx([1, 1, 1], abs=1e-6) and cosines[0, 1] == pytest.approx(0.036330, abs=1e-6)
    assert cosines[0, 2] > 0.4, "cats"
    np.testing.assert_allclose(vectors, alone, rtol=0, atol=1e-6)          # whatever is padded changes nothing


@published
def test_minilm_goes_back_to_its_file(minilm):
    original = pretrained.interchange.read(pretrained.packaged_file(pretrained.MINILM, "model.safetensors"))
    tensors = pretrained.interchange.tensors_of(minilm[0], "bert")
    assert original.keys() - tensors.keys() == {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
    assert all(np.array_equal(tensor, original[name]) for name, tensor in tensors.items())


@published
def test_run_pretrained_py_compares_sentences_and_draws_where_heads_look(minilm, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(pretrained, "minilm", lambda: minilm)
    run(monkeypatch, "run_pretrained", "minilm", "--heads", "--layer", "5", "--out", str(tmp_path), SENTENCES[0])
    out = capsys.readouterr().out
    assert re.search(r"^ 1  The cat sits outside +1\.00$", out, re.M) and "minilm_heads_1.png" in out
    assert (tmp_path / "minilm_heads_1.png").read_bytes()[:4] == b"\x89PNG"


# SmolLM2: Llama's form, from a GGUF file


@published
def test_texts_come_back_from_their_ids(smollm2):
    tokenizer = smollm2[1]
    chat = "<|im_start|>user\nHi<|im_end|>"
    for text in "It was 1984.", " two  spaces\n\tand tabs ", "naïve 银行 🎉", chat:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("It was 1984.").tokens == ["It", "Ġwas", "Ġ", "1", "9", "8", "4", "."]
    assert tokenizer.encode(chat).tokens == ["<|im_start|>", "user", "Ċ", "Hi", "<|im_end|>"]


@published
def test_smollm2_has_the_numbers_of_the_original_and_goes_on_like_it(smollm2):
    model, tokenizer = smollm2
    ids = tokenizer.encode(CAPITAL).ids
    assert ids == [504, 3575, 282, 4649, 314]
    with mx.no_grad():
        logits = model(np.array([ids])).numpy()[0, -1]
    assert logits[:5] == pytest.approx([1.6136, -11.8719, -7.9445, -9.3469, -10.0852], abs=1e-4)
    best = {tokenizer.decode([i]): float(logits[i]) for i in logits.argsort()[:-6:-1]}
    expected = {" Paris": 17.3713, " the": 14.8886, " London": 13.2450, " Le": 13.0095, " New": 12.9515}
    assert list(best) == list(expected) and best == pytest.approx(expected, abs=1e-4)
    assert "".join(example.written(generate(model, ids, 12, temperature=0), tokenizer)) == " Paris.\n\nThe answer is: 201"


# The script, without the packages


class Bytes:
    """A tokenizer whose symbols are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


def test_what_is_written_comes_as_soon_as_a_sign_is_whole():
    assert list(example.written(iter("aé银!".encode()), Bytes())) == ["a", "", "é", "", "", "银", "!"]


@pytest.mark.parametrize("args, package", [(("minilm", "a"), "MINILM"), (("smollm2", "a"), "SMOLLM2")])
def test_a_package_that_is_not_there_is_named_with_the_line_that_installs_it(args, package, monkeypatch):
    monkeypatch.setattr(pretrained, package, f"{getattr(pretrained, package).split('==')[0]}==0.0")
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "run_pretrained", *args)
    assert f"pip install --no-deps {getattr(pretrained, package)}" in str(end.value.code)


@pytest.mark.parametrize("option, value, part", [
    ("--count", "-1", "count is -1"), ("--temperature", "-1", "temperature is -1.0"), ("--seed", "-1", "seed is -1")])
def test_options_that_make_no_sense_are_refused_before_anything_is_loaded(option, value, part, monkeypatch):
    monkeypatch.setattr(pretrained, "smollm2", lambda: sys.exit("it was loaded"))
    with pytest.raises(SystemExit, match=f"run_pretrained: {part}"):
        run(monkeypatch, "run_pretrained", "smollm2", "a", option, value)


def test_padding_has_no_part_in_the_vector_of_a_sentence():
    encoder = pretrained.Encoder(9, 8, 2, 1, 6, rng=np.random.default_rng(0)).eval()

    class Digits:
        def encode(self, text):
            return type("Encoding", (), {"ids": [int(digit) for digit in text]})

    refused(TypeError, lambda: pretrained.sentence_vectors(encoder, Digits(), "123"), "sentence_vectors", "several sentences")
    texts = ["123", "45", "678123"]
    ids, lengths = pad([Digits().encode(text).ids for text in texts])
    hidden = encoder(ids, lengths).numpy()
    for vector, row, length in zip(pretrained.sentence_vectors(encoder, Digits(), texts).numpy(), hidden, lengths):
        mean = row[:length].mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-6)
