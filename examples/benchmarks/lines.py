"""Where the time goes, by source line of minitx: a profile of what enters no tape, such as an op alone or a text being written.

A Python that is watched takes some tenths of a microsecond more for each line, so the shares of lines that do next to nothing
are too large.
"""

from __future__ import annotations

import linecache
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import minitx

PACKAGE = Path(minitx.__file__).parent


def by_line(step: Callable[[], Any], steps: int = 5) -> list[dict[str, Any]]:
    """The shares of all lines of at least 1 %, most first. What a line calls counts as its own, unless that is minitx again."""
    spent: Counter[tuple[str, int]] = Counter()
    running = [("", 0)]                         # the line of each function that was entered, the innermost last
    since = 0.0

    def look(frame: FrameType, event: str, _: Any) -> Callable:
        nonlocal since
        spent[running[-1]] += time.perf_counter() - since
        if event == "call":
            running.append(("", 0))
        elif event == "line":
            running[-1] = frame.f_code.co_filename, frame.f_lineno
        elif event == "return":
            running.pop()
        since = time.perf_counter()
        return look

    def enter(frame: FrameType, event: str, argument: Any) -> Callable | None:
        return look(frame, event, argument) if frame.f_code.co_filename.startswith(str(PACKAGE)) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for _ in range(steps):
            step()
    finally:
        sys.settrace(before)
    del spent["", 0]
    seconds = sum(spent.values())
    return [{"file": str(Path(file).relative_to(PACKAGE.parent)), "line": source(file, number), "share": time / seconds}
            for (file, number), time in spent.most_common() if time >= 0.01 * seconds]


def source(file: str, number: int) -> str:
    """A line without its comment."""
    return linecache.getline(file, number).partition("  #")[0].strip()
