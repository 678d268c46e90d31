"""Let a small published model write headlines, character by character.

    pip install h5py && pip install --no-deps textgenrnn==2.0.0
    python examples/write_headlines.py
    python examples/write_headlines.py --prompt "why do cats" --temperature 0.8 --count 3

Two LSTMs, one above the other, read the last 40 characters. What they thought at each of them, and the characters themselves,
are averaged with weights that depend on them, a very simple attention; from that average comes the next character. Others
trained it: Max Woolf, textgenrnn, MIT, on titles of Reddit posts, after a model for emojis (Felbo et al. 2017, arXiv
1708.00524).

The temperature is its daring: 0 always writes what it finds likeliest, 1 draws as it believes, above that it makes up words.
It says what it has read, and Reddit is not always polite.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from minitx import Tensor, nn, ops
from minitx.data import Vocabulary
from minitx.data.published import packaged_file
from minitx.generation import generate
from minitx.models import LanguageModel
from minitx.options import number, whole

PACKAGE, READER = "textgenrnn==2.0.0", "h5py"
PADDING, END = "\0", "\n"                       # our signs for symbols that are no characters; a headline is a line
LONGEST = 300                                   # where the original stops, too


class HeadlineModel(LanguageModel):
    """Two LSTMs and an average over what they saw. Its logits are (B, 1, V), for what follows the last of ids (B, T).

    It was trained on windows of 40 symbols, with zeros in front of a shorter text, and it does read these zeros. Each symbol
    moves the window on by one, so the text behind its first symbol is met in another state, and all 40 are read anew, as the
    original does. (Equal numbers for less work are to be had over the leading zeros only.)
    """

    def __init__(self, V: int = 465, D: int = 100, H: int = 128, context: int = 40) -> None:
        self.tokens = nn.Embedding(V, D)
        self.lower, self.upper = nn.LSTM(D, H), nn.LSTM(H, H)
        self.attention = nn.Linear(D + 2 * H, 1, bias=False)
        self.head = nn.Linear(D + 2 * H, V)
        self.context: int = context

    def embed(self, ids: Any) -> Tensor:
        ids = ids[:, -self.context:]
        return self.tokens(ops.pad(ids, widths=((0, 0), (self.context - ids.shape[1], 0))))

    def body(self, x: Tensor) -> Tensor:
        lower, _ = self.lower(x)
        upper, _ = self.upper(lower)
        seen = ops.concatenate(x, lower, upper)                                              # (B, T, D + 2H)
        weights = ops.softmax(self.attention(seen), axis=1)                                  # (B, T, 1)
        return (weights * seen).sum(1, keepdims=True)                                        # (B, 1, D + 2H)


def published() -> tuple[HeadlineModel, Vocabulary]:
    """The model with its published weights, and its characters; ModuleNotFoundError says what to install."""
    path = packaged_file(PACKAGE, "textgenrnn_weights.hdf5", reader=READER)
    import h5py

    def weights(layer: str, name: str) -> np.ndarray:
        return file[layer][layer][f"{name}:0"][:]

    with h5py.File(path) as file:
        state = {"tokens.table": weights("embedding", "embeddings"), "attention.W": weights("attention", "attention_W"),
                 "head.W": weights("output", "kernel"), "head.b": weights("output", "bias")}
        for layer, lstm in ("rnn_1", "lower.layers.0"), ("rnn_2", "upper.layers.0"):
            state |= {f"{lstm}.W": from_cudnn(weights(layer, "kernel")),
                      f"{lstm}.U": from_cudnn(weights(layer, "recurrent_kernel")),
                      f"{lstm}.b": sum(np.split(weights(layer, "bias"), 2))}     # cuDNN has two, of which only the sum counts
    model = HeadlineModel()
    model.load_state_dict(state)
    ids = json.loads(packaged_file(PACKAGE, "textgenrnn_vocab.json").read_text("utf-8"))     # from 1; 0 is the padding
    symbols = [PADDING, *(END if symbol == "<s>" else symbol for symbol in sorted(ids, key=ids.get))]
    return model, Vocabulary("".join(symbols))


def from_cudnn(matrix: np.ndarray) -> np.ndarray:
    """The input or recurrent matrix (D, 4H) of an LSTM that was trained by cuDNN and saved as it lay in memory.

    cuDNN keeps the matrix of each gate (i, f, g, o, as here) the other way round, (H, D), and the file says (D, H) nonetheless.
    Read as it says, the numbers are all there, in the wrong places, and the model writes noise.
    """
    return np.hstack([gate.reshape(gate.shape[::-1]).T for gate in np.hsplit(matrix, 4)])


def beginning(vocabulary: Vocabulary, prompt: str) -> np.ndarray:
    """The ids with which a headline starts: the end of the last one, then the prompt."""
    known = set(vocabulary.characters) - {PADDING, END}
    if strange := [sign for sign in prompt if sign not in known]:
        raise ValueError(f"write_headlines: the prompt has {strange[0]!r}, which is not among the {len(known)} characters that "
                         f"the model knows; leave it out")
    return vocabulary.encode(END + prompt)


def headline(model: HeadlineModel, vocabulary: Vocabulary, start: np.ndarray, **options: Any) -> Iterator[str]:
    """The characters that follow, until the model ends the line."""
    for symbol in generate(model, start, max(0, LONGEST - len(start)), **options):
        character = vocabulary.decode([symbol])
        if character in (PADDING, END):                         # padding was never a target; it ends the line, too
            return
        yield character


def main() -> None:
    args = arguments()
    try:
        whole("write_headlines", count=args.count)
        whole("write_headlines", 0, seed=args.seed)
        number("write_headlines", 0, temperature=args.temperature)
        model, vocabulary = published()
        start, rng = beginning(vocabulary, args.prompt), np.random.default_rng(args.seed)
    except (ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))
    for _ in range(args.count):
        print(args.prompt, end="", flush=True)
        for character in headline(model, vocabulary, start, temperature=args.temperature, rng=rng):
            print(character, end="", flush=True)
        print()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompt", default="", help="how each headline begins (default: with nothing)")
    parser.add_argument("--temperature", type=float, default=0.5, help="0: no daring; 1: as it believes (default: 0.5)")
    parser.add_argument("--count", type=int, default=5, help="how many headlines (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
