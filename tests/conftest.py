"""One BLAS thread for each process, since there is one process for each core. At the end of a run, a line each: how much the
gradient-check contract has checked, how many bad calls were tried, and why tests were skipped.

The numbers come with the reports of the tests (`record_property`), so they also arrive from the workers of pytest-xdist.
"""

import importlib
import os
from collections import Counter

import pytest

os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")       # before NumPy is loaded


def pytest_collection_modifyitems(items):
    """Tests that are marked gpu wait for one, also where CuPy is installed."""
    waiting = [item for item in items if item.get_closest_marker("gpu")]
    if waiting and not importlib.import_module("cupy").is_available():
        for item in waiting:
            item.add_marker(pytest.mark.skip(reason="Tests need a GPU, and CuPy finds none"))


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    reports = [r for r in stats.get("passed", []) + stats.get("failed", []) if r.when == "call"]

    def recorded(key):
        return [numbers for report in reports for name, numbers in report.user_properties if name == key]

    def total(rows, key):
        return sum(row.get(key, 0) for row in rows)

    if rows := recorded("contract"):
        count = {key: len({row[key] for row in rows if "compared" in row}) for key in ("op", "sample", "device")}
        terminalreporter.write_line(
            f"contract: {count['op']} ops, {count['sample']} samples, {count['device']} devices: "
            f"{total(rows, 'compared'):,} gradients compared, "
            f"largest relative error {max(row.get('relative', 0) for row in rows):.1e}; "
            f"{total(rows, 'caught'):,} of {total(rows, 'planted'):,} planted errors caught")
    if rows := recorded("bad calls"):
        tried, refused, right = (total(rows, key) for key in ("tried", "refused", "right"))
        terminalreporter.write_line(
            f"bad calls: {tried:,} tried, {refused:,} refused in one sentence, {right:,} answered rightly, "
            f"{tried - refused - right:,} answered as NumPy does, beyond the oracles")
    for reason, count in Counter(r.longrepr[2] for r in stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{count} {reason[0].lower()}{reason[1:]}")
