"""The mutation run: does a test notice every small mistake in the forward or the backward of any op?

    python -m tests.mutation                        every mutant of every op and of what the ops call
    python -m tests.mutation --sample 60 --seed 0   so many of them, drawn at random
    python -m tests.mutation --op lstm_cell         those of one function

Each mutant stands in for its function while the tests of that op run (of all ops that call it, where it is not an op), the
cheap ones first, until one fails: it is killed. Those that no test can kill, because they compute the same, stand in
`equivalent_mutants.txt`, with the reason. Any other survivor fails the run; so does a line of a mutant that is killed, or gone.
"""

import argparse
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import minitx as mx

from .concerns import Check, checks_of
from .mutants import mutants
from .units import Unit, units_of

LIST = Path(__file__).with_name("equivalent_mutants.txt")
SECONDS = 20                                        # for one check: a mutant may never end


def listed_in(text: str) -> dict[str, str]:
    """{mutant: why it is equivalent}, from lines `mutant  # reason`."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {mutant.strip(): reason for mutant, _, reason in (line.partition("  # ") for line in lines)}


def killed_by(checks: Iterable[Check]) -> Check | None:
    """The first check that fails, raises, warns or does not end."""
    for check in checks:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            check()
        except (Exception, pytest.fail.Exception):
            return check
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def too_long(*_):
    raise TimeoutError


class Result(NamedTuple):
    """What became of every mutant that was made: {its name: the name of the test that killed it, or None}."""

    fate: dict[str, str | None]
    listed: dict[str, str]
    complete: set[str]              # the functions of which every mutant was made

    def survivors(self) -> list[str]:
        return [mutant for mutant, killer in self.fate.items() if not killer and mutant not in self.listed]

    def stale(self) -> list[str]:
        """Lines of the list that are wrong."""
        return ([f"{mutant}: killed by {self.fate[mutant]}" for mutant in self.listed if self.fate.get(mutant)]
                + [f"{mutant}: there is no such mutant" for mutant in self.listed
                   if mutant not in self.fate and mutant.split(":")[0] in self.complete])

    def __str__(self) -> str:
        killed = sum(map(bool, self.fate.values()))
        survivors = len(self.survivors())
        return (f"{len(self.fate)} mutants, {killed} killed, {len(self.fate) - killed - survivors} listed, "
                f"{survivors} surviving")


def mutate(units: list[Unit], checks: Callable[[Unit], list[Check]], listed: dict[str, str],
           wanted: set[str] | None = None, progress: Callable[[str], object] = print) -> Result:
    """Make every mutant (of those wanted), one at a time, and run the checks of its function."""
    fate: dict[str, str | None] = {}
    before = signal.signal(signal.SIGALRM, too_long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for unit in units:
            own = checks(unit)
            for change in mutants(unit.tree):
                name = f"{unit.name}: {change}"
                if wanted is None or name in wanted:
                    with unit.swapped():
                        killer = killed_by(own)
                    fate[name] = killer and killer.name
                    if not killer and name not in listed:
                        progress(f"survives: {name}")
    signal.signal(signal.SIGALRM, before)
    return Result(fate, listed, {unit.name for unit in units} if wanted is None else set())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, help="how many mutants to draw (all of them, unless given)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--op", help="only the mutants of this function")
    parser.add_argument("--tests", action="store_true", help="also count which test killed how many")
    args = parser.parse_args()
    start, listed = time.perf_counter(), listed_in(LIST.read_text())
    units = [unit for unit in units_of(mx.OPS) if args.op in (None, unit.name)]
    if not units:
        sys.exit(f"mutation: no op calls a function named {args.op!r}")
    wanted = None
    if args.sample is not None:
        everything = [f"{unit.name}: {change}" for unit in units for change in mutants(unit.tree)]
        wanted = set(random.Random(args.seed).sample(everything, min(args.sample, len(everything))))
    checks = checks_of(mx.OPS)
    results = []
    for file in dict.fromkeys(unit.file for unit in units):
        since = time.perf_counter()
        results.append(mutate([unit for unit in units if unit.file == file], lambda unit: checks(unit.ops), listed, wanted))
        print(f"{Path(file).name}: {results[-1]}, {time.perf_counter() - since:.1f} s", flush=True)
    result = Result({k: v for r in results for k, v in r.fate.items()}, listed, set().union(*(r.complete for r in results)))
    stale = result.stale()
    if args.op is None and wanted is None:
        known = {unit.name for unit in units}
        stale += [f"{mutant}: there is no such function" for mutant in listed if mutant.split(":")[0] not in known]
    for line in stale:
        print(f"wrong in {LIST.name}: {line}")
    if args.tests:
        for test, count in Counter(filter(None, result.fate.values())).most_common():
            print(f"{count:6} {test}")
    print(f"mutation run: {result}, {time.perf_counter() - start:.0f} s")
    if stale or result.survivors():
        sys.exit(1)


if __name__ == "__main__":
    main()
