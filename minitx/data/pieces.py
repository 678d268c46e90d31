"""A vocabulary of pieces of words: common words are one piece, rare ones several, and nothing is unknown.

Words are too many to give each an id, and characters make long sequences. Byte-pair encoding stands between: it starts from the
256 bytes, and again and again makes a new piece of the two neighbours that stand together most often in a text.

    Deletes the selected hyperlink.     ->      De|le|tes| the| selected| hyper|link|.

Since all begins with bytes, any text in any language can be written, Chinese as well as code. One vocabulary for two languages
lets names and numbers, which are equal in both, keep their ids. The learning is done by the package `tokenizers`.

Source  Sennrich, Haddow & Birch 2015, arXiv 1508.07909; with bytes: Radford et al. 2019
Read next: `minitx/translation.py`.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..options import kind, whole
from .text import as_ids

SPECIAL = ("<start>", "<stop>")  # ids 0 and 1: what a decoder reads first, and what it writes last


def library() -> Any:
    """The package `tokenizers`, only when it is needed, or how to install it."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise ModuleNotFoundError('Pieces: needs the package tokenizers: pip install "minitx[text]"') from None
    return tokenizers


class Pieces:
    """Pieces and their ids. `Pieces.learn(texts, V)` finds them, `save` and `Pieces.load` keep them in a file.

        pieces = Pieces.learn(["low lower lowest"], V=264)
        pieces.labels(pieces.encode("lowest slow"))             # ["low", "est", " ", "s", "low"]
    """

    start, stop = range(len(SPECIAL))

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True      # "<stop>" in a text is six letters like any other

    @classmethod
    def learn(cls, texts: Iterable[str], V: int = 4000) -> Pieces:
        """The pieces of these texts: 2 ids for start and stop, 256 for the bytes, the rest for what stands together most often.

        The same texts give the same pieces.
        """
        whole("Pieces.learn", len(SPECIAL) + 256, V=V)
        if isinstance(texts, str):
            raise TypeError("Pieces.learn: texts is a str; expected several, such as the lines of a text")
        tokenizers = library()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)   # no piece spans two words
        tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
            vocab_size=V, special_tokens=list(SPECIAL), initial_alphabet=sorted(BYTES), show_progress=False))
        return cls(tokenizer)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the pieces as JSON, in the format of `tokenizers`."""
        Path(path).write_text(self.tokenizer.to_str(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Pieces:
        """Read what `save` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"Pieces.load: there is no file {str(path)!r}; learn them from texts, and save them there")
        tokenizers, data = library(), Path(path).read_bytes()
        try:
            tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:                  # of no narrower class
            raise ValueError(f"Pieces.load: {str(path)!r} cannot be read ({' '.join(str(error).split())}); give a file that "
                             f"Pieces.save wrote") from None
        if not fits(tokenizer, tokenizers):
            raise ValueError(f"Pieces.load: {str(path)!r} has a tokenizer of another kind; expected pairs of bytes, with ids 0 "
                             f"and 1 for {' and '.join(SPECIAL)}; give a file that Pieces.save wrote")
        return cls(tokenizer)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of a text, int64 (N)."""
        kind("Pieces.encode", str, "give one text at a time", text=text)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"Pieces.encode: {text[error.start]!r} at position {error.start} is half of a character, a lone "
                             f"surrogate, and has no bytes; text.encode('utf-8', 'replace').decode() replaces it") from None
        return np.array(self.tokenizer.encode(text).ids, np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """The text of `ids` (N). Bytes that make no character become "\\ufffd"; start and stop make nothing."""
        row = as_ids("Pieces.decode", ids, len(self))
        return b"".join(map(self._bytes, row[row >= len(SPECIAL)].tolist())).decode(errors="replace")

    def labels(self, ids: ArrayLike) -> list[str]:
        """What each of `ids` (N) stands for. A character of several pieces stands at the last of them, the others are "·"."""
        decoder = getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(self._bytes(i)) or "·" for i in as_ids("Pieces.labels", ids, len(self)).tolist()]

    def _bytes(self, i: int) -> bytes:
        return bytes(BYTES[letter] for letter in self.tokenizer.id_to_token(i))


def fits(tokenizer: Any, tokenizers: Any) -> bool:
    """Whether a tokenizer is of the kind that `Pieces.learn` makes, so that any text comes back from its ids."""
    pieces, split = tokenizer.get_vocab(), tokenizer.pre_tokenizer
    return (isinstance(tokenizer.model, tokenizers.models.BPE)
            and isinstance(split, tokenizers.pre_tokenizers.ByteLevel) and not split.add_prefix_space
            and tokenizer.normalizer is None and tokenizer.post_processor is None
            and tuple(map(tokenizer.id_to_token, range(len(SPECIAL)))) == SPECIAL
            and pieces.keys() >= BYTES.keys() >= set("".join(pieces)))


def byte_letters() -> dict[str, int]:
    """How `tokenizers`, as GPT-2 did, writes each byte: as the letter of Latin-1, or where that leaves no ink, as another."""
    ink = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = sorted(set(range(256)) - set(ink))
    return {chr(byte): byte for byte in ink} | {chr(256 + n): byte for n, byte in enumerate(rest)}


BYTES = byte_letters()
