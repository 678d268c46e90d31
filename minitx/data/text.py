"""Texts, and their characters as integer ids.

`load_corpus` reads a text that comes with minitx, `read_text` one of your own; a `Vocabulary` turns either into ids and
back; `bigram_bits` tells what a model of them must beat. Read `batching.py` next: it cuts the ids into batches.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..backend import numbers
from ..options import kind, whole

UNKNOWN = "\ufffd"  # Unicode's own sign for "some character"; it prints as �


@dataclass(frozen=True)
class Corpus:
    """A text to train on, and one that training never sees."""

    name: str
    train: str = field(repr=False)
    heldout: str = field(repr=False)


def load_corpus(language: str = "en") -> Corpus:
    """Read a corpus that comes with minitx; their licences stand in `corpora/LICENCES.md`.

    "en"  Train: Jane Austen's Pride and Prejudice (684,768 characters). Held out: Northanger Abbey (433,411), another
          novel by the same author; the training text lacks two of its characters, & and X (three places).
    "zh"  Classical Chinese prose and poetry. Train: the first nine tenths (320,655 characters). Held out: the last
          tenth, from the next blank line between texts on, without the six poems that training has too (35,060). It is
          all song lyrics, as are the last seven tenths of the training text; 126 characters in it are new (159 places).
    """
    if language == "en":
        return Corpus("Pride and Prejudice", _packaged("pride_and_prejudice.txt"), _packaged("northanger_abbey.txt"))
    if language == "zh":
        text = _packaged("classics_zh.txt")
        cut = text.index("\n\n", len(text) * 9 // 10)
        train, rest = text[:cut], text[cut + 2 :]
        seen = set(train.split("\n\n"))
        return Corpus("Chinese classics", train, "\n\n".join(t for t in rest.split("\n\n") if t not in seen))
    raise ValueError(
        f'load_corpus: language is {language!r}, but minitx has only "en" (English) and "zh" (Chinese); '
        "choose one, or read a file of your own with read_text"
    )


def _packaged(name: str) -> str:
    from importlib.resources import files  # it takes as long to load as all ops together

    return (files("minitx.data") / "corpora" / name).read_text(encoding="utf-8")


def read_text(path: str | PathLike[str]) -> str:
    """Read a UTF-8 text file of your own. Line ends become "\\n"; a byte order mark is dropped."""
    if not isinstance(path, str | PathLike):
        raise TypeError(f"read_text: path is a {type(path).__name__}; expected a str or a Path")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"read_text: there is no file {str(path)!r} (looked from {Path.cwd()}); check the path")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"read_text: {str(path)!r} is not UTF-8 text ({error.reason} near byte {error.start}); save it as UTF-8"
        ) from None
    if not text:
        raise ValueError(f"read_text: {str(path)!r} is empty; give a file with some text in it")
    return text


@dataclass(frozen=True)
class Vocabulary:
    """Characters and their ids: the id of a character is its place in `characters`.

    `Vocabulary.of(text)` makes one from a text; `Vocabulary(characters)` makes it again, from a checkpoint say.
    Where `characters` has "\\ufffd" (�), its id stands for every character that the vocabulary lacks.

    >>> vocabulary = Vocabulary.of("hello")
    >>> vocabulary.characters, vocabulary.encode("hello").tolist(), vocabulary.decode([1, 0])
    ('ehlo', [1, 0, 2, 2, 3], 'he')
    """

    characters: str

    def __post_init__(self) -> None:
        kind("Vocabulary", str, "Vocabulary.of(text) collects them from a text", characters=self.characters)
        if not self.characters or len(set(self.characters)) < len(self.characters):
            raise ValueError(
                f"Vocabulary: characters has {len(self.characters)} characters, {len(set(self.characters))} of them "
                "different, but each must stand there once; use Vocabulary.of(text) to collect them from a text"
            )

    @classmethod
    def of(cls, text: str, min_count: int = 1) -> "Vocabulary":
        """The characters that occur at least `min_count` times in `text`, sorted by code point.

        With `min_count` above 1, one more id, "\\ufffd", is for all rarer characters and for those of other texts only.
        That is how to read a held-out text: `of(train, min_count=2)`, then `encode(heldout, unknown="replace")`.
        In the training texts, 2 keeps all 75 English characters, and 4,401 of 5,589 Chinese ones (99.6 % of the text).
        """
        kind("Vocabulary.of", str, "read_text gives one", text=text)
        whole("Vocabulary.of", min_count=min_count)
        kept = {character for character, count in Counter(text).items() if count >= min_count}
        if not kept:
            raise ValueError(
                f"Vocabulary.of: text has {len(text)} characters and none occurs min_count={min_count} times; "
                "give a longer text or a smaller min_count"
            )
        return cls("".join(sorted(kept | {UNKNOWN} if min_count > 1 else kept)))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str, *, unknown: str = "raise") -> NDArray[np.int64]:
        """The ids of the N characters of `text`, int64 (N).

        A character that the vocabulary lacks raises, or with `unknown="replace"` gets the id of "\\ufffd".
        """
        kind("Vocabulary.encode", str, "read_text gives one", text=text)
        if unknown not in ("raise", "replace"):
            raise ValueError(f'Vocabulary.encode: unknown is {unknown!r}; expected "raise" or "replace"')
        if unknown == "replace" and UNKNOWN not in self.characters:
            raise ValueError(
                f'Vocabulary.encode: unknown is "replace", but none of the {len(self)} ids is for unknown characters; '
                "build the vocabulary with Vocabulary.of(text, min_count=2)"
            )
        codes = _codes(text)
        ids = self._ids[np.minimum(codes, self._ids.size - 1)]
        lacking = ids < 0
        if unknown == "replace":
            ids[lacking] = self.characters.index(UNKNOWN)
        elif lacking.any():
            at = int(lacking.argmax())
            raise ValueError(
                f"Vocabulary.encode: {text[at]!r} at position {at} is not among the {len(self)} characters of this "
                "vocabulary; build it from a text that has it, or with Vocabulary.of(text, min_count=2) and then "
                'encode with unknown="replace"'
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """The text that `ids` (N), integers in 0..len(self)-1, stand for; "\\ufffd" for unknown characters."""
        return _codes(self.characters)[as_ids("Vocabulary.decode", ids, len(self))].tobytes().decode(*_UTF32)

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """From code point to id; -1 for those the vocabulary lacks, and at the end for all greater ones."""
        codes = _codes(self.characters)
        table = np.full(int(codes.max()) + 2, -1)
        table[codes] = np.arange(len(self))
        return table


_UTF32 = "utf-32-le", "surrogatepass"  # four bytes for every character, so that a text is an array


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode(*_UTF32), dtype="<u4")


def as_ids(caller: str, ids: ArrayLike, V: int | None = None) -> NDArray[np.int64]:
    """`ids` as an int64 array (N), or an error in the name of `caller` if they are no ids, or not in 0..V-1."""
    array = numbers(caller, ids)
    if array.ndim != 1 or not (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
        raise ValueError(
            f"{caller}: ids has shape {array.shape} and dtype {array.dtype}, but one row of integers (N) is expected; "
            "give Vocabulary.encode(text), or one row at a time"
        )
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{caller}: ids has {array.max()}, which int64 cannot hold; ids are places in a vocabulary, from 0 on")
    if V is not None and array.size and not 0 <= array.min() <= array.max() < V:
        raise ValueError(
            f"{caller}: ids run from {array.min()} to {array.max()}, but a vocabulary of {V} has only 0 to {V - 1}; "
            "use the vocabulary that the ids were made with"
        )
    return array.astype(np.int64, copy=False)


def bigram_bits(ids: ArrayLike, V: int) -> tuple[float, float]:
    """Bits per character that tables of frequencies need for `ids` (N) in 0..V-1: what a model should beat.

        unigram = H(next)               from how frequent each character is
        bigram  = H(next | current)     from the character before as well

    In sample: plain counts from the very text that they predict, so no table of that kind can need fewer bits for it.
    Both average over the same N-1 predicted characters. English training text: 4.46 and 3.49. In Chinese (9.06, 5.66)
    most pairs are so rare that the second table knows the text half by heart; on other text it would need far more.
    """
    whole("bigram_bits", V=V)
    ids = as_ids("bigram_bits", ids, V)
    if ids.size < 2:
        raise ValueError(f"bigram_bits: ids has {ids.size} characters, but a pair needs 2; give a longer text")
    return _entropy(ids[1:]), _entropy(ids[:-1] * V + ids[1:]) - _entropy(ids[:-1])


def _entropy(symbols: NDArray[np.int64]) -> float:
    counts = np.unique(symbols, return_counts=True)[1]
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())
