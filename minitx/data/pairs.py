"""Sentences in two languages, side by side: what a translator learns from.

Read next: `pieces.py`, which cuts them into pieces of words.
"""

from dataclasses import dataclass, field

Pair = tuple[str, str]  # a sentence, and the same in the other language


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs to learn from, and pairs from pages that training never sees."""

    name: str
    train: list[Pair] = field(repr=False)
    test: list[Pair] = field(repr=False)


def load_pairs(pair: str = "en-de") -> Pairs:
    """Read sentence pairs that come with minitx: the manual of LibreOffice 7.4, English sentences of 3 to 15 words.

    "en-de"  English and German: 25,850 pairs to learn from and 1,439 to test on.
    "en-zh"  English and Chinese (simplified): 17,217 and 750.

    Both parts stand in the order of the manual. They are from different pages, and no English sentence is in both; 25 German
    and 10 Chinese sentences of the test are. Licence: MPL-2.0, see `corpora/LICENCES.md`.
    """
    if pair not in ("en-de", "en-zh"):
        raise ValueError(f'load_pairs: pair is {pair!r}, but minitx has only "en-de" (English and German) and "en-zh" (English '
                         f"and Chinese); choose one")
    import gzip  # these two take as long to load as all ops together
    from importlib.resources import files

    folder, name = files("minitx.data") / "corpora", f"help_{pair.replace('-', '_')}"
    train = gzip.decompress((folder / f"{name}.train.tsv.gz").read_bytes()).decode()
    return Pairs(f"manual {pair}", _rows(train), _rows((folder / f"{name}.test.tsv").read_bytes().decode()))


def _rows(text: str) -> list[Pair]:
    """A pair in each line, with a tab between the two."""
    cells = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    return [(source, target) for source, target in cells]
