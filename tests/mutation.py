"""The mutation run: does a test notice every small mistake in the forward or the backward of any op?

    python -m tests.mutation                        every mutant of every op and of what the ops call
    python -m tests.mutation --sample 60 --seed 0   so many of them, drawn at random
    python -m tests.mutation --op lstm_cell         those of one function

Each mutant stands in for its function while the tests of that op run (of all ops that call it, where it is not an op), the
cheap ones first, until one fails: it is killed. Those that no test can kill, because they compute the same, stand in
`equivalent_mutants.txt`, with the reason. Any other survivor fails the run; so does a line of a mutant that is killed, or gone.
"""

import argparse
import itertools
import os
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
        killed, survivors = sum(map(bool, self.fate.values())), len(self.survivors())
        return f"{len(self.fate)} mutants, {killed} killed, {len(self.fate) - killed - survivors} listed, {survivors} surviving"


def mutate(units: list[Unit], checks: Callable[[set[str]], list[Check]], listed: dict[str, str],
           wanted: set[str] | None = None) -> Result:
    """Make every mutant (of those wanted), one at a time, and run the checks of its function.

    Without a mutant they must all pass, or every mutant would count as killed.
    """
    fate: dict[str, str | None] = {}
    sound: set[int] = set()
    before = signal.signal(signal.SIGALRM, too_long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for unit in units:
            own = checks(unit.ops | {unit.name})
            for change in mutants(unit.tree):
                name = f"{unit.name}: {change}"
                if wanted is None or name in wanted:
                    if failed := killed_by(check for check in own if id(check) not in sound):
                        raise RuntimeError(f"{failed.name} fails for {unit.name} without any mutant; mend that first")
                    sound |= set(map(id, own))
                    with unit.swapped():
                        killer = killed_by(own)
                    fate[name] = killer and killer.name
    signal.signal(signal.SIGALRM, before)
    return Result(fate, listed, {unit.name for unit in units} if wanted is None else set())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, help="how many mutants to draw (all of them, unless given)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--op", help="only the mutants of this function")
    parser.add_argument("--tests", action="store_true", help="also count which test killed how many")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":         # so that every run sees sets in the same order
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    start, listed, checks = time.perf_counter(), listed_in(LIST.read_text()), checks_of()
    everything = units_of(mx.OPS)
    units = [unit for unit in everything if args.op in (None, unit.name)]
    if not units:
        sys.exit(f"mutation: no op calls a function named {args.op!r}")
    wanted = None
    if args.sample is not None:
        names = [f"{unit.name}: {change}" for unit in units for change in mutants(unit.tree)]
        wanted = set(random.Random(args.seed).sample(names, min(args.sample, len(names))))

    whole = Result({}, listed, set())
    for file, here in itertools.groupby(units, key=lambda unit: unit.file):
        since, result = time.perf_counter(), mutate(list(here), checks, listed, wanted)
        whole.fate.update(result.fate)
        whole.complete.update(result.complete)
        if result.fate:
            print(f"{Path(file).stem}: {result}, {time.perf_counter() - since:.0f} s", flush=True)
    if whole.complete >= {unit.name for unit in everything}:
        whole.complete.update(mutant.split(":")[0] for mutant in listed)
    for line in whole.survivors():
        print(f"survives: {line}")
    for line in whole.stale():
        print(f"wrong in {LIST.name}: {line}")
    if args.tests:
        for test, count in Counter(filter(None, whole.fate.values())).most_common():
            print(f"{count:6} {test}")
    print(f"mutation run: {whole}, {time.perf_counter() - start:.0f} s")
    sys.exit(bool(whole.survivors() or whole.stale()))


if __name__ == "__main__":
    main()
