"""Translate: pairs of sentences as batches, sentences through a model and a search, and how good that is.

The models are those that learn from `data.pair_batch`: `Seq2Seq` and `EncoderDecoder`.

Read next: `alignments.py`, where a model looked meanwhile; `examples/train_translation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .backend import to_device
from .data.padding import in_pairs, length_batches, listed, pad, pair_batch
from .data.pairs import Pair
from .data.pieces import Pieces
from .decoding import Hypothesis, beam_search, greedy
from .models import EncoderDecoder
from .options import whole
from .seq2seq import Seq2Seq
from .tensor import Tensor, no_grad

Ids = NDArray[np.int64]
Translator = Seq2Seq | EncoderDecoder
TOKENISERS = {"de": "13a", "zh": "zh"}         # of sacrebleu, by language
Batch = tuple[Any, ...]


class Sides(NamedTuple):
    """Sentence pairs as ids: a row of them for each sentence."""

    sources: list[Ids]
    targets: list[Ids]

    @classmethod
    def of(cls, pairs: Sequence[Pair], pieces: Pieces, longest: int | None = None) -> Sides:
        """The pairs in these pieces, without those of which a side has more than `longest`."""
        rows = [(pieces.encode(source), pieces.encode(target)) for source, target in pairs]
        kept = [row for row in rows if longest is None or max(map(len, row)) <= longest]
        return cls([source for source, _ in kept], [target for _, target in kept])

    @property
    def lengths(self) -> Ids:
        """How many ids the two sides of each pair have, (N, 2)."""
        return np.array([(len(source), len(target)) for source, target in zip(*self)], np.int64).reshape(-1, 2)

    def batch(self, rows: Sequence[int]) -> Batch:
        """These pairs as `training.train` wants them: (source, lengths, inputs, targets)."""
        return pair_batch([self.sources[i] for i in rows], [self.targets[i] for i in rows],
                          start=Pieces.start, stop=Pieces.stop)

    def epochs(self, B: int, rng: np.random.Generator, *, pool: int | None = 40) -> Iterator[Batch]:
        """Batches of pairs of like length, without end; every pair once in an epoch. See `data.length_batches`."""
        if not self.sources:
            raise ValueError("Sides.epochs: there are no pairs; give some, or keep longer ones")
        while True:
            for rows in length_batches(self.lengths, B, rng, pool=pool):
                yield self.batch(rows)

    def once(self, B: int) -> Iterator[Batch]:
        """All pairs, for evaluation."""
        return map(self.batch, length_batches(self.lengths, B, np.random.default_rng(0), pool=None))


def translate(model: Translator, pieces: Pieces, sentences: Sequence[str], *, width: int = 1, alpha: float = 0.6,
              B: int = 64) -> list[str]:
    """The sentences in the other language: the likeliest piece at every step, or with a `width` above 1 the best by a beam.

    A translation is cut when it has twice as many pieces as the longest source of its batch, and ten more.
    """
    whole("translate", width=width, B=B)
    sources = [pieces.encode(sentence) for sentence in listed("translate", sentences, "sentences")]
    found: dict[int, str] = {}
    with no_grad(), model.evaluating():
        for rows in length_batches([len(source) for source in sources], B, np.random.default_rng(0), pool=None):
            best = searched(model, [sources[i] for i in rows], width, alpha)
            found |= {i: pieces.decode(hypothesis.ids) for i, hypothesis in zip(rows, best)}
    return [found[i] for i in range(len(sources))]


def searched(model: Any, sources: Sequence[Ids], width: int, alpha: float) -> list[Hypothesis]:
    """The best translation that the search finds for each source, in ids."""
    source, lengths = pad(sources)
    steps, start = min(2 * source.shape[1] + 10, getattr(model, "T", math.inf)), [Pieces.start] * len(source)
    memory, state = model.encode(*on_device(model, source, lengths))

    def step(ids: np.ndarray, state: Any) -> tuple[Tensor, Any]:
        return model.step(ids, memory, state)

    if width == 1:
        return greedy(step, state, start, stop=Pieces.stop, steps=steps)
    return [best[0] for best in beam_search(step, state, start, stop=Pieces.stop, steps=steps, width=width, alpha=alpha)]


def scores(translations: Sequence[str], references: Sequence[str], language: str) -> dict[str, float]:
    """BLEU and chrF of translations into `language` ("de", "zh"), from 0 to 100, as `sacrebleu` computes them.

    BLEU is about words (in Chinese characters) in fours, chrF about characters in sixes, so it forgives wrong endings.
    Source  Papineni et al. 2002; Popović 2015; with fixed tokenisers: Post 2018, arXiv 1804.08771
    """
    if language not in TOKENISERS:
        raise ValueError(f"scores: language must be one of {', '.join(TOKENISERS)}, got {language!r:.60}")
    ours, theirs = in_pairs("scores", translations=translations, references=references)
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise ModuleNotFoundError('scores: needs the package sacrebleu: pip install "minitx[text]"') from None
    bleu = sacrebleu.corpus_bleu(ours, [theirs], tokenize=TOKENISERS[language], force=True)
    return {"bleu": bleu.score, "chrf": sacrebleu.corpus_chrf(ours, [theirs]).score}


def on_device(model: Translator, *arrays: np.ndarray) -> list[Any]:
    return [to_device(array, model.parameters()[0].device) for array in arrays]
