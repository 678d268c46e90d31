"""Corpora, characters as ids, and batches: what goes in comes out, in order, once, or with a clear sentence."""

import time
from collections import Counter
from importlib.resources import files
from itertools import islice, pairwise
from math import log2

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minitx.data import Corpus, Vocabulary, bigram_bits, load_corpus, read_text, sequential, windows


@pytest.fixture(scope="module")
def english() -> Corpus:
    return load_corpus()


@pytest.fixture(scope="module")
def chinese() -> Corpus:
    return load_corpus("zh")


def error(kind, call, *parts):
    """The message of the one-sentence error that `call` raises; it has all `parts`."""
    with pytest.raises(kind) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


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
    error(ValueError, lambda: load_corpus("de"), "load_corpus", "'de'", '"en"', '"zh"', "read_text")


def test_read_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffä\r\n子曰\n".encode())
    assert read_text(tmp_path / "a.txt") == read_text(str(tmp_path / "a.txt")) == "ä\n子曰\n"


def test_read_text_says_what_is_wrong(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 au lait")
    error(FileNotFoundError, lambda: read_text(tmp_path / "no.txt"), "read_text", "no.txt", "check the path")
    error(FileNotFoundError, lambda: read_text(tmp_path), "read_text", tmp_path.name)
    error(ValueError, lambda: read_text(tmp_path / "empty.txt"), "read_text", "empty.txt", "is empty")
    error(ValueError, lambda: read_text(tmp_path / "latin1.txt"), "latin1.txt", "not UTF-8", "byte 3", "save it as")


# Vocabulary


@settings(deadline=None)
@given(st.text(min_size=1), st.integers(1, 3))
@example("a\ud800\U0010ffff\ufffd\0", 1)
def test_round_trip(text, min_count):
    """Every character that occurs often enough comes back, surrogates and all; each other one as "\\ufffd"."""
    count = Counter(text)
    if max(count.values()) < min_count:
        error(ValueError, lambda: Vocabulary.of(text, min_count), "Vocabulary.of", f"min_count={min_count}")
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
    error(ValueError, lambda: vocabulary.encode("ab"), "'b' at position 1")


def test_unknown_character_is_named_with_its_place_and_a_remedy(english):
    vocabulary = Vocabulary.of(english.train)
    error(ValueError, lambda: vocabulary.encode(english.heldout), "encode", "'&' at position 340852", "min_count=2")
    error(ValueError, lambda: vocabulary.encode("so\U0001f600"), "'\U0001f600' at position 2", "75 characters")
    error(ValueError, lambda: vocabulary.encode("so", unknown="replace"), "75 ids", "min_count=2")
    error(ValueError, lambda: vocabulary.encode("so", unknown="ignore"), "'ignore'", '"raise" or "replace"')


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
    error(ValueError, lambda: Vocabulary("abc").decode(ids), "Vocabulary.decode: ids", part)


@pytest.mark.parametrize("characters", ["", "aba"])
def test_vocabulary_refuses_doubles_and_nothing(characters):
    error(ValueError, lambda: Vocabulary(characters), "Vocabulary: characters", "Vocabulary.of")


def test_vocabulary_of_nothing():
    error(ValueError, lambda: Vocabulary.of(""), "Vocabulary.of", "0 characters")
    error(ValueError, lambda: Vocabulary.of("abc", min_count=2), "Vocabulary.of", "min_count=2", "smaller min_count")


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
    error(ValueError, lambda: bigram_bits([0, 5], 5), "bigram_bits", "0 to 5", "0 to 4")
    error(ValueError, lambda: bigram_bits([0], 5), "bigram_bits", "1 characters")
    error(ValueError, lambda: bigram_bits([0.0, 1.0], 5), "bigram_bits", "float64")


# Training windows: ids that are their own places show where each window lies


def epochs_of(N, B, T, epochs=1, seed=0):
    """Lists of the batches of each epoch; an epoch's length follows from where its cut begins."""
    batches = windows(np.arange(N), B, T, np.random.default_rng(seed))
    for _ in range(epochs):
        x, y = next(batches)
        count = (N - 1 - x.min() % T) // T // B
        yield [(x, y), *islice(batches, count - 1)]


@settings(deadline=None)
@given(B=st.integers(1, 5), T=st.integers(1, 7), more=st.integers(1, 60), seed=st.integers(0, 99))
def test_windows_lie_inside_the_text_and_y_is_x_one_later(B, T, more, seed):
    N = B * T + more
    for x, y in windows(np.arange(N), B, T, np.random.default_rng(seed), steps=20):
        assert x.shape == y.shape == (B, T) and x.dtype == y.dtype == np.int64
        assert np.array_equal(y, x + 1) and np.array_equal(x, x[:, :1] + np.arange(T))
        assert x.min() >= 0 and y.max() <= N - 1


def test_an_epoch_predicts_no_character_twice_and_nearly_all():
    N, B, T = 1000, 4, 7
    firsts = set()
    for epoch in epochs_of(N, B, T, epochs=40):
        targets = np.concatenate([y.ravel() for _, y in epoch])
        assert len(set(targets)) == targets.size > N - T - B * T
        starts = np.concatenate([x[:, 0] for x, _ in epoch])
        assert len(set(starts % T)) == 1 and not np.array_equal(starts, np.sort(starts))
        firsts.add(starts[0] % T)
    assert firsts == set(range(T)), "the cut begins at every place"


def test_an_epoch_of_single_windows_leaves_out_less_than_one_at_either_end():
    N, T = 100, 7
    for epoch in epochs_of(N, 1, T, epochs=40):
        targets = sorted(int(c) for _, y in epoch for c in y.ravel())
        assert targets == list(range(targets[0], targets[-1] + 1))
        assert targets[0] <= T and targets[-1] > N - 1 - T


@pytest.mark.parametrize("N", [4 * 7 + 1, 4 * 7 + 3, 100])
def test_every_character_is_predicted_sooner_or_later(N):
    batches = windows(np.arange(N), 4, 7, np.random.default_rng(0), steps=300)
    assert {int(c) for _, y in batches for c in y.ravel()} == set(range(1, N))


def test_the_seed_decides_and_steps_count():
    def starts(seed, steps):
        return [x[:, 0].tolist() for x, _ in windows(np.arange(500), 3, 8, np.random.default_rng(seed), steps=steps)]

    assert starts(0, 50) == starts(0, 50) != starts(1, 50)
    assert starts(0, 50)[20:] == starts(0, 70)[20:50], "skipping 20 batches goes on where 20 steps ended"
    assert len(starts(0, 50)) == 50 and starts(0, 0) == []


def test_batches_are_the_users_own():
    ids = np.arange(100)
    for batches in (windows(ids, 1, 9, np.random.default_rng(0), steps=3), sequential(ids, 2, 8)):
        for x, y in batches:
            kept = y.copy()
            x[:] = -1
            assert np.array_equal(y, kept) and x.flags.c_contiguous and y.flags.c_contiguous
    assert np.array_equal(ids, np.arange(100))


def test_windows_say_at_once_what_is_wrong():
    def make(ids=range(100), B=2, T=8, rng=None, **more):
        return windows(ids, B, T, np.random.default_rng(0) if rng is None else rng, **more)

    error(ValueError, lambda: make(range(16)), "windows", "16 characters", "B=2", "T=8", "= 17", "longer text")
    assert len(list(make(range(17), steps=5))) == 5
    error(ValueError, lambda: make(B=0), "windows: B is 0", "at least 1")
    error(ValueError, lambda: make(T=2.0), "windows: T is 2.0")
    error(ValueError, lambda: make(steps=-1), "windows: steps is -1", "at least 0")
    error(ValueError, lambda: make(np.zeros((9, 9), int)), "windows", "(9, 9)", "one row of integers")
    error(ValueError, lambda: make("text"), "windows", "dtype <U4", "Vocabulary.encode")
    error(TypeError, lambda: make(rng=7), "windows: rng is a int", "give np.random.default_rng(seed)")


# Evaluation in order


@settings(deadline=None)
@given(N=st.integers(2, 80), B=st.integers(1, 5), T=st.integers(1, 9))
def test_sequential_predicts_each_character_once_in_order(N, B, T):
    batches = list(sequential(np.arange(N), B, T))
    assert np.concatenate([y.ravel() for _, y in batches]).tolist() == list(range(1, N))
    for x, y in batches:
        assert np.array_equal(y, x + 1) and x.dtype == y.dtype == np.int64
        assert 0 < x.shape[0] <= B and 0 < x.shape[1] <= T
    assert all(x.shape == (B, T) for x, _ in batches[:-2]), "only the last two may be smaller"


def test_sequential_gives_the_rest_as_a_shorter_row():
    assert [x.shape for x, _ in sequential(range(30), 2, 5)] == [(2, 5), (2, 5), (1, 5), (1, 4)]
    assert [x.shape for x, _ in sequential(range(21), 2, 5)] == [(2, 5), (2, 5)]
    assert [x.shape for x, _ in sequential(range(4), 2, 5)] == [(1, 3)]


def test_sequential_says_at_once_what_is_wrong():
    error(ValueError, lambda: sequential([0], 2, 8), "sequential", "1 characters", "longer text")
    error(ValueError, lambda: sequential(range(9), 2, 0), "sequential: T is 0")
    error(ValueError, lambda: sequential([0.5, 1.5], 2, 8), "sequential", "float64")
