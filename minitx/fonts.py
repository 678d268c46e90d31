"""Letters in pictures: a font that has them, or a clear word where none does.

matplotlib draws an empty box for a character that its font lacks, and its own font has no Chinese. So before anything is
drawn, `lettering` looks into the installed fonts for every character that will be written.

Read next: `plots.py`, which writes with it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator

from matplotlib import font_manager, ft2font, rc_context, rcParams

told: set[str] = set()          # characters of which a warning has told already


class MissingFont(UserWarning):
    """No installed font has a character that a picture should show."""


@functools.cache
def characters(path: str) -> frozenset[str]:
    """All that a font file can draw."""
    try:
        return frozenset(map(chr, ft2font.FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):         # a damaged file
        return frozenset()


def plainness(font: font_manager.FontEntry) -> tuple:
    """Fonts in the order in which we would take them: upright, regular, sans serif; of the Chinese ones, the simplified."""
    return (font.style != "normal", abs(int(font.weight) - 400) if str(font.weight).isdigit() else 0, "Sans" not in font.name,
            "Mono" in font.name or "Condensed" in font.name, "SC" not in font.name.split(), font.name)


def font_for(text: str) -> str | None:
    """The family of an installed font that has every character of the text; None if there is none.

    Fonts that were installed after matplotlib made its list are found, too.
    """
    wanted = set(text)
    listed = {font.fname for font in font_manager.fontManager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - listed):
        if characters(path):
            font_manager.fontManager.addfont(path)
    fonts = [font for font in font_manager.fontManager.ttflist if "Last Resort" not in font.name]   # that one has only boxes
    return next((font.name for font in sorted(fonts, key=plainness) if wanted <= characters(font.fname)), None)


@contextlib.contextmanager
def lettering(texts: Iterable[str]) -> Iterator[Callable[[str], str]]:
    """While this is open, matplotlib writes in fonts that have all of these texts.

    Yields what makes a label of a text: a character that no font has, or that leaves no ink, is spelled as its code point.
    """
    family = rcParams["font.family"]
    usual = characters(font_manager.findfont(font_manager.FontProperties(family=family)))
    wanted = {c for text in texts for c in text if c.isprintable()} - usual
    whole = font_for("".join(wanted)) if wanted else None
    fonts = {c: whole or font_for(c) for c in sorted(wanted)}
    lacking = {c for c, font in fonts.items() if font is None}
    if new := sorted(lacking - told):
        told.update(new)
        some = " ".join(new[:20]) + " …" * (len(new) > 20)
        warnings.warn(MissingFont(f"plots: no installed font has {some}; a picture spells them as code points, such as "
                                  f"{code(new[0])}. Install a font that has them, for Chinese Noto Sans CJK say (Debian and "
                                  f"Ubuntu: apt-get install fonts-noto-cjk), and draw again"), stacklevel=4)
    found = sorted({font for font in fonts.values() if font})

    def label(text: str) -> str:
        return "".join(code(c) if c in lacking or not c.isprintable() else c for c in text)
    with rc_context({"font.family": [*family, *found]}):
        yield label


def code(character: str) -> str:
    """How Unicode calls a character, such as U+4E2D."""
    return f"U+{ord(character):04X}"
