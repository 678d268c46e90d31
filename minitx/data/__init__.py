"""From texts to batches of ids. Read `text.py` (corpora, characters as ids), then `batching.py` (ids as batches of windows) and
`padding.py` (sequences of unequal length as batches); `masking.py` for encoders; for translation `pairs.py` and `pieces.py`."""

from .batching import sequential, streams, windows
from .masking import masked
from .padding import length_batches, mask_of, pad, padding_share, pair_batch
from .pairs import Pairs, load_pairs
from .pieces import Pieces
from .text import Corpus, Vocabulary, bigram_bits, load_corpus, read_text

__all__ = ["Corpus", "Pairs", "Pieces", "Vocabulary", "bigram_bits", "length_batches", "load_corpus", "load_pairs", "mask_of",
           "masked", "pad", "padding_share", "pair_batch", "read_text", "sequential", "streams", "windows"]
