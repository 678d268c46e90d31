"""From texts to batches of ids. Read `text.py` (corpora, characters as ids), then `batching.py` (ids as batches of windows) and
`padding.py` (sequences of unequal length as batches)."""

from .batching import sequential, streams, windows
from .padding import length_batches, mask_of, pad, padding_share, pair_batch
from .text import Corpus, Vocabulary, bigram_bits, load_corpus, read_text

__all__ = ["Corpus", "Vocabulary", "bigram_bits", "length_batches", "load_corpus", "mask_of", "pad", "padding_share",
           "pair_batch", "read_text", "sequential", "streams", "windows"]
