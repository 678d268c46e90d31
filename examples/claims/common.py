"""What the scripts of this folder share. Each puts one claim to the test: it measures, states a verdict, and keeps the numbers.

    args = options(__doc__).parse_args()
    numbers = measure(args)
    report("serial_chain", args, numbers, verdict(numbers), table(*rows), draw)

A rule is a function from numbers to a `Verdict`, fixed before the run. It answers each part of the claim with yes or no (or
None, where seeds disagree), and says whether the controls came out as known. The word follows from that:

    holds                 every part did
    holds in part         some did
    does not hold here    none did
    undecided             a control failed, or the seeds agree on nothing
    illustrates           it would hold, but by one short training, which settles nothing
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from minitx import backend
from minitx.memory import keep_freed_memory

HOLDS, IN_PART, FAILS, UNDECIDED = "holds", "holds in part", "does not hold here", "undecided"
ILLUSTRATES = "illustrates"
COLOURS = {"RNN": "#D55E00", "GRU": "#E69F00", "LSTM": "#0072B2", "Transformer": "#000000"}     # Okabe & Ito 2008

# Products of this size gain little from a second thread, and on a busy machine they wait for it
one_thread = threadpool_limits.wrap(limits=1)


@dataclass(frozen=True)
class Verdict:
    """What came out of a claim. `parts` and `controls` are sentences, each with its answer."""

    parts: dict[str, bool | None]
    controls: dict[str, bool]
    decisive: bool = True               # False for one seed of a training, which may only illustrate

    @property
    def word(self) -> str:
        answers = set(self.parts.values())
        if not all(self.controls.values()) or answers == {None}:
            return UNDECIDED
        word = HOLDS if answers == {True} else IN_PART if True in answers else FAILS
        if self.decisive:
            return word
        return ILLUSTRATES if word == HOLDS else UNDECIDED

    def __str__(self) -> str:
        says = {True: "yes", False: "no", None: "undecided"}
        lines = [f"  {says[answer]:<10} {part}" for part, answer in self.parts.items()]
        checks = [f"  {'passed' if passed else 'FAILED':<10} control: {control}" for control, passed in self.controls.items()]
        return "\n".join([f"verdict: {self.word.upper()}", *lines, *checks])


def agreed(seeds: Iterable[bool]) -> bool | None:
    """What all seeds say; None where they disagree."""
    found = set(map(bool, seeds))
    return found.pop() if len(found) == 1 else None


def worst(values: Iterable[float]) -> float:
    """The largest of numbers that should be small; NaN if one is, which Python's `max` may hide. Of none it is 0."""
    found = list(values)
    return float(np.max(found)) if found else 0.0


def options(doc: str) -> argparse.ArgumentParser:
    """The options that every script has; add your own to the parser."""
    parser = argparse.ArgumentParser(description=doc.strip().split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for what is timed or trained (default: cpu)")
    parser.add_argument("--out", default="out", help="folder; results go to its folder claims (default: out)")
    parser.add_argument("--full", action="store_true", help="the larger run, which takes its time")
    return parser


def slope(x: Any, y: Any) -> float:
    """Of the straight line through the points, without the rounding of the fit."""
    return round(float(np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)[0]), 9) + 0.0


def medians(steps: dict[str, Callable[[], Any]], device: str, rounds: int = 11) -> dict[str, float]:
    """The median milliseconds of each step. They take turns, so that a busy moment of the machine hits them alike."""
    def once(step: Callable[[], Any]) -> float:
        start = time.perf_counter()
        step()
        backend.device(device).synchronize()
        return 1e3 * (time.perf_counter() - start)

    keep_freed_memory()                                                      # as training does
    for step in steps.values():                                              # to warm up
        once(step)
    times = [[once(step) for step in steps.values()] for _ in range(rounds)]
    return dict(zip(steps, np.median(times, axis=0).tolist(), strict=True))


def table(*rows: Iterable[Any]) -> str:
    """Rows of cells as lines: the first column to the left, all others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("   ".join(f"{cell:{'>' if i else '<'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
                     for row in cells)


def report(claim: str, args: argparse.Namespace, numbers: dict[str, Any], verdict: Verdict, text: str,
           draw: Callable[[Any, dict[str, Any]], None], size: tuple[float, float] = (13, 5.5)) -> None:
    """Print the text and the verdict; save numbers and verdict as JSON, and the picture, `draw(figure, numbers)`."""
    print(f"\n{text}\n\n{verdict}\n")
    folder = Path(args.out) / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{claim}.json"
    found = {"claim": claim, "options": vars(args), "verdict": verdict.word, "parts": verdict.parts,
             "controls": verdict.controls, "numbers": numbers}
    path.write_text(json.dumps(found, indent=1))
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        print(f"wrote {path}; no picture: matplotlib is not installed; pip install minitx[plots]")
        return
    with matplotlib.rc_context({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(h_pad=0.12)
        draw(figure, numbers)
        figure.supxlabel(f"{claim.replace('_', '-')}: {verdict.word}", fontsize=11, color="0.4")
        figure.savefig(path.with_suffix(".png"), dpi=120)
    print(f"wrote {path} and {path.with_suffix('.png').name}")


def lines(panel: Any, x: Any, curves: dict[str, Any]) -> None:
    """One line per model on doubly logarithmic axes; models whose numbers are all equal share one."""
    groups: dict[tuple, list[str]] = {}
    for name, y in curves.items():
        groups.setdefault(tuple(y), []).append(name)
    for y, names in groups.items():
        panel.plot(x, y, "o-", color=COLOURS[names[-1]], linewidth=2.5, label=", ".join(names))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(x, [str(n) for n in x])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.legend(frameon=False)
