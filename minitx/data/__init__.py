"""From texts to batches of ids. Read `text.py` (corpora, characters as ids), then `batching.py` (ids as batches)."""

from .batching import sequential, windows
from .text import Corpus, Vocabulary, bigram_bits, load_corpus, read_text

__all__ = ["Corpus", "Vocabulary", "bigram_bits", "load_corpus", "read_text", "sequential", "windows"]
