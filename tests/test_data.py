"""Corpora, characters as ids, and what a model must beat: what goes in comes out, or a clear sentence.

Read next: `test_batching.py`, ids as batches.
"""

import time
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from math import log2

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minitx.data import Corpus, Vocabulary, bigram_bits, load_corpus, read_text

from .common import refused


@pytest.fixture(scope="module")
def english() -> Corpus:
    return load_corpus()


@pytest.fixture(scope="module")
def chinese() -> Corpus:
    return load_corpus("zh")


# Corpora and files


def test_english_holds_out_the_other_novel(english):
    assert english.train.startswith("PRIDE AND PREJUDICE\n\nBy Jane Austen\n")
    assert english.heldout.startswith("NORTHANGER ABBEY\n")
    assert (len(english.train), len(english.heldout)) == (684_768, 433_411)
    assert set(english.heldout) - set(english.train) == {"&", "X"}


def test_chinese_holds_out_whole_texts_that_training_has_not(chinese):
    train, heldout = chinese.train.split("\n\n"), chinese.heldout.split("\n\n")
    whole = (files("minitx.data") / "corpora" / "classics_zh.txt").read_text(encoding="utf-8").split("\n\n")
    assert whole[0].startswith("子曰：“学而时习之，不亦说乎？")
    assert train == whole[: len(train)]
    assert heldout == [text for text in whole[len(train) :] if text not in train]
    assert len(whole) - len(train) - len(heldout) == 6
    assert (len(chinese.train), len(chinese.heldout)) == (320_655, 35_060)
    known = set(chinese.train)
    new = [c for c in chinese.heldout if c not in known]
    assert (len(new), len(set(new))) == (159, 126)


def test_a_corpus_shows_its_name_and_not_its_text(english):
    assert repr(english) == "Corpus(name='Pride and Prejudice')"


def test_licences_come_with_the_corpora():
    licences = (files("minitx.data") / "corpora" / "LICENCES.md").read_text(encoding="utf-8")
    texts = [f.name for f in (files("minitx.data") / "corpora").iterdir() if f.name.endswith(".txt")]
    assert len(texts) == 3
    for name in texts:
        assert name in licences
    assert "public domain" in licences and "Julia Silge" in licences and "JackeyGao" in licences


def test_unknown_language_lists_those_there_are():
    refused(ValueError, lambda: load_corpus("de"), "load_corpus", "'de'", '"en"', '"zh"', "read_text")


def test_read_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffä\r\n子曰\n".encode())
    assert read_text(tmp_path / "a.txt") == read_text(str(tmp_path / "a.txt")) == "ä\n子曰\n"


def test_read_text_says_what_is_wrong(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 au lait")
    refused(FileNotFoundError, lambda: read_text(tmp_path / "no.txt"), "read_text", "no.txt", "check the path")
    refused(FileNotFoundError, lambda: read_text(tmp_path), "read_text", tmp_path.name)
    refused(ValueError, lambda: read_text(tmp_path / "empty.txt"), "read_text", "empty.txt", "is empty")
    refused(ValueError, lambda: read_text(tmp_path / "latin1.txt"), "latin1.txt", "not UTF-8", "byte 3", "save it as")


# Vocabulary


@settings(deadline=None)
@given(st.text(min_size=1), st.integers(1, 3))
@example("a\ud800\U0010ffff\ufffd\0", 1)
def test_round_trip(text, min_count):
    """Every character that occurs often enough comes back, surrogates and all; each other one as "\\ufffd"."""
    count = Counter(text)
    if max(count.values()) < min_count:
        refused(ValueError, lambda: Vocabulary.of(text, min_count), "Vocabulary.of", f"min_count={min_count}")
        return
    vocabulary = Vocabulary.of(text, min_count)
    ids = vocabulary.encode(text, unknown="raise" if min_count == 1 else "replace")
    assert ids.dtype == np.int64 and ids.shape == (len(text),)
    assert vocabulary.decode(ids) == "".join(c if count[c] >= min_count else "\ufffd" for c in text)
    assert list(vocabulary.characters) == sorted(vocabulary.characters)
    assert set(ids) <= set(range(len(vocabulary))) and len(vocabulary) == len(set(vocabulary.characters))


def test_ids_are_places_in_characters():
    vocabulary = Vocabulary("子b a")
    assert vocabulary.encode("a子 b").tolist() == [3, 0, 2, 1]
    assert vocabulary.decode([1, 1, 0]) == "bb子"
    assert vocabulary.encode("").shape == (0,) and vocabulary.decode([]) == ""
    assert Vocabulary.of("banana") == Vocabulary("abn") != Vocabulary("ban")


def test_rare_and_new_characters_share_one_id():
    vocabulary = Vocabulary.of("aab", min_count=2)
    assert vocabulary.characters == "a\ufffd"
    assert vocabulary.encode("abz子\U0001f600", unknown="replace").tolist() == [0, 1, 1, 1, 1]
    refused(ValueError, lambda: vocabulary.encode("ab"), "'b' at position 1")


def test_unknown_character_is_named_with_its_place_and_a_remedy(english):
    vocabulary = Vocabulary.of(english.train)
    refused(ValueError, lambda: vocabulary.encode(english.heldout), "encode", "'&' at position 340852", "min_count=2")
    refused(ValueError, lambda: vocabulary.encode("so\U0001f600"), "'\U0001f600' at position 2", "75 characters")
    refused(ValueError, lambda: vocabulary.encode("so", unknown="replace"), "75 ids", "min_count=2")
    refused(ValueError, lambda: vocabulary.encode("so", unknown="ignore"), "'ignore'", '"raise" or "replace"')


def test_heldout_text_as_the_docstring_says(english, chinese):
    for corpus, size, train, heldout in ((english, 76, 0, 3), (chinese, 4402, 1188, 298)):
        vocabulary = Vocabulary.of(corpus.train, min_count=2)
        assert len(vocabulary) == size
        for text, lost in ((corpus.train, train), (corpus.heldout, heldout)):
            back = vocabulary.decode(vocabulary.encode(text, unknown="replace"))
            assert len(back) == len(text) and back.count("\ufffd") == lost
            assert all(b == c or b == "\ufffd" for b, c in zip(back, text, strict=True))


def test_whole_corpora_come_back(english, chinese):
    for corpus in (english, chinese):
        vocabulary = Vocabulary.of(corpus.train)
        assert vocabulary.decode(vocabulary.encode(corpus.train)) == corpus.train


def test_encode_is_much_faster_than_a_python_loop(english):
    vocabulary = Vocabulary.of(english.train)
    places = {character: i for i, character in enumerate(vocabulary.characters)}

    def seconds(encode):
        start = time.perf_counter()
        encode(english.train)
        return time.perf_counter() - start

    loop = min(seconds(lambda text: np.array([places[character] for character in text])) for _ in range(3))
    assert min(seconds(vocabulary.encode) for _ in range(5)) < loop / 3


@pytest.mark.parametrize(
    ("ids", "part"),
    [
        ([3], "3 to 3"),
        ([1, -1], "-1 to 1"),
        ([0.0], "float64"),
        ([True], "bool"),
        ([[0, 1]], "(1, 2)"),
        (1, "()"),
    ],
)
def test_decode_refuses_what_are_no_ids(ids, part):
    refused(ValueError, lambda: Vocabulary("abc").decode(ids), "Vocabulary.decode: ids", part)


@pytest.mark.parametrize("characters", ["", "aba"])
def test_vocabulary_refuses_doubles_and_nothing(characters):
    refused(ValueError, lambda: Vocabulary(characters), "Vocabulary: characters", "Vocabulary.of")


def test_vocabulary_of_nothing():
    refused(ValueError, lambda: Vocabulary.of(""), "Vocabulary.of", "0 characters")
    refused(ValueError, lambda: Vocabulary.of("abc", min_count=2), "Vocabulary.of", "min_count=2", "smaller min_count")


# Floors


def test_bits_of_the_english_training_text(english):
    vocabulary = Vocabulary.of(english.train)
    unigram, bigram = bigram_bits(vocabulary.encode(english.train), len(vocabulary))
    assert unigram == pytest.approx(4.4614, abs=1e-4) and bigram == pytest.approx(3.4946, abs=1e-4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2))
def test_bits_equal_counting_by_hand(ids):
    pairs, before, after = Counter(pairwise(ids)), Counter(ids[:-1]), Counter(ids[1:])
    n = len(ids) - 1
    unigram, bigram = bigram_bits(ids, 4)
    assert unigram == pytest.approx(-sum(k / n * log2(k / n) for k in after.values()), abs=1e-12)
    assert bigram == pytest.approx(-sum(k / n * log2(k / before[a]) for (a, _), k in pairs.items()), abs=1e-12)
    assert bigram <= unigram + 1e-12


def test_bits_refuse_bad_ids():
    refused(ValueError, lambda: bigram_bits([0, 5], 5), "bigram_bits", "0 to 5", "0 to 4")
    refused(ValueError, lambda: bigram_bits([0], 5), "bigram_bits", "1 characters")
    refused(ValueError, lambda: bigram_bits([0.0, 1.0], 5), "bigram_bits", "float64")
