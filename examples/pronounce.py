"""Say how an English word is spoken, with published weights.

    pip install --no-deps g2p-en==2.1.0
    python examples/pronounce.py transformer backpropagation minitx
    python examples/pronounce.py --show minitx

One GRU reads the letters. The state in which it ends is all that a second one gets to know of the word, and from there that
one speaks, phoneme by phoneme: an encoder and a decoder, as in Cho et al. 2014 (arXiv 1406.1078). Others trained it: Kyubyong
Park and Jongseok Kim, g2p-en, Apache 2.0, on the CMU Pronouncing Dictionary. The package also looks words up; here the model
guesses all of them.

The phonemes are ARPAbet, that dictionary's alphabet. A digit behind a vowel is its stress: 0 none, 1 main, 2 secondary.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

import minitx as mx
from minitx import nn, ops
from minitx.data import pad
from minitx.data.published import packaged_file
from minitx.decoding import Hypothesis, greedy

PACKAGE = "g2p-en==2.1.0"
LETTERS = ["<pad>", "<unk>", "</s>", *ascii_lowercase]
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
SOUNDS = [vowel + stress for vowel in VOWELS.split() for stress in "012"] + CONSONANTS.split()
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted([*SOUNDS, "UW"])]     # their list has one UW without stress, too
END_OF_WORD = LETTERS.index("</s>")
START, STOP = PHONEMES.index("<s>"), PHONEMES.index("</s>")
STEPS = 20                                      # where the original stops, too


class Pronouncer(nn.Module):
    """Letters in, phonemes out: the encoder reads a word into a state, the decoder speaks from it."""

    def __init__(self, D: int = 256, H: int = 256) -> None:
        self.letters, self.encoder = nn.Embedding(len(LETTERS), D), nn.GRU(D, H)
        self.phonemes, self.decoder = nn.Embedding(len(PHONEMES), D), nn.GRU(D, H)
        self.head = nn.Linear(H, len(PHONEMES))

    def read(self, letters: Any, lengths: Any = None) -> mx.Tensor:
        """What is left of the words, letters (B, T): the states (1, B, H) in which the encoder ends."""
        return self.encoder(self.letters(letters), lengths=lengths)[1]

    def speak(self, phonemes: Any, state: mx.Tensor) -> tuple[mx.Tensor, mx.Tensor]:
        """For phonemes (B, T) that are spoken from a state: logits (B, T, V) of what follows each, and the new state."""
        hs, state = self.decoder(self.phonemes(phonemes), state)
        return self.head(hs), state

    def load(self, weights: Mapping[str, np.ndarray]) -> Pronouncer:
        """Take the weights of the package, which are in PyTorch's layout."""
        self.letters.load_state_dict({"table": weights["enc_emb"]})
        self.phonemes.load_state_dict({"table": weights["dec_emb"]})
        self.head.load_state_dict({"W": weights["fc_w"].T, "b": weights["fc_b"]})
        for gru, prefix in (self.encoder, "enc"), (self.decoder, "dec"):
            gru.load_torch({"weight_ih_l0": weights[f"{prefix}_w_ih"], "weight_hh_l0": weights[f"{prefix}_w_hh"],
                            "bias_ih_l0": weights[f"{prefix}_b_ih"], "bias_hh_l0": weights[f"{prefix}_b_hh"]})
        return self


def published() -> Pronouncer:
    """The model with its published weights; ModuleNotFoundError says what to install."""
    with np.load(packaged_file(PACKAGE, "checkpoint20.npz")) as weights:
        return Pronouncer().load(weights)


def letters_of(word: str) -> list[int]:
    """The ids of a word, ended; capitals are read as small letters."""
    word = word.lower()
    if strange := [sign for sign in word if sign not in ascii_lowercase]:
        raise ValueError(f"pronounce: {word!r} has {strange[0]!r}, and the model knows the letters a to z only; "
                         f"spell the word with them")
    if not word:
        raise ValueError("pronounce: got an empty word; give at least one letter")
    return [*map(LETTERS.index, word), END_OF_WORD]


def pronounce(model: Pronouncer, words: Sequence[str]) -> list[Hypothesis]:
    """What the model finds likeliest, phoneme by phoneme, for all words at once; that some are padded changes nothing."""
    device = model.head.W.device
    letters, lengths = pad(map(letters_of, words))

    def step(last: np.ndarray, state: mx.Tensor) -> tuple[mx.Tensor, mx.Tensor]:
        logits, state = model.speak(mx.tensor(last[:, None], device=device), state)
        return logits[:, 0], state

    with mx.no_grad():
        state = model.read(mx.tensor(letters, device=device), lengths)
        return greedy(step, state, [START] * len(words), stop=STOP, steps=STEPS)


@mx.no_grad()
def probabilities(model: Pronouncer, word: str, phonemes: Sequence[int]) -> np.ndarray:
    """What the model expected at each step while it said this: (T + 1, V) for T phonemes, the last row at the end."""
    logits, _ = model.speak(mx.tensor([[START, *phonemes]]), model.read(mx.tensor([letters_of(word)])))
    return ops.softmax(logits)[0].numpy()


def spelled(found: Hypothesis) -> str:
    """Phonemes as text; … where the model had to be stopped."""
    return " ".join([*(PHONEMES[i] for i in found.ids), *([] if found.finished else ["…"])])


def show(model: Pronouncer, word: str, found: Hypothesis) -> None:
    """A line for each phoneme: how sure the model was of it, and of what else it thought."""
    said = [*found.ids, STOP][:found.length]
    for p, symbol in zip(probabilities(model, word, found.ids), said):
        second = int(np.argsort(p)[-2])
        doubt = f"or {label(second)} {percent(p[second]).strip()}" if p[second] >= 0.01 else ""
        print(f"    {label(symbol):4} {percent(p[symbol])}  {'█' * round(20 * p[symbol]):20}  {doubt}".rstrip())
    print()


def label(symbol: int) -> str:
    return "end" if symbol == STOP else PHONEMES[symbol]


def percent(p: float) -> str:
    return f"{p:4.0%}" if p >= 0.01 else " <1%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="+", metavar="WORD", help="letters a to z")
    parser.add_argument("--show", action="store_true", help="how sure it was of each phoneme, and what else it thought of")
    args = parser.parse_args()
    try:
        model = published()
        found = pronounce(model, args.words)
    except (ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))
    said = [spelled(one) for one in found]
    width, longest = max(map(len, args.words)), max(map(len, said))
    for word, one, phonemes in zip(args.words, found, said):
        print(f"{word.lower():{width}}   {phonemes:{longest}}   {percent(math.exp(one.log_p))}")
        if args.show:
            show(model, word, one)


if __name__ == "__main__":
    main()
