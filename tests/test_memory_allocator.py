"""Freed memory is kept: a second round of the same large arrays asks the kernel for nothing. Where the allocator can."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from minitx.memory import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, keep_freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from minitx.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**18) for _ in range(40)]        # 2 MiB each
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    print(keep_freed_memory())
else:
    print(True)
faults()
print(faults())
"""


def second_round(how):
    run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    able, faults = run.stdout.split()
    return able == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
def test_a_second_round_takes_no_page_faults():
    able, kept = second_round("keep")
    _, given_back = second_round("leave")
    if not able:
        pytest.skip("this C library has no mallopt")
    assert kept < given_back / 4


@pytest.mark.parametrize("most, asked", [(1 << 40, [1 << 30]), (32 << 20, [1 << 30, 32 << 20])], ids=["new", "old"])
def test_an_older_glibc_that_takes_less_gets_less(most, asked, monkeypatch):
    calls = []

    def mallopt(parameter, value):
        calls.append((parameter, value))
        return int(parameter != M_MMAP_THRESHOLD or value <= most)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory()
    assert [value for parameter, value in calls if parameter == M_MMAP_THRESHOLD] == asked
    assert [parameter for parameter, _ in calls[len(asked):]] == [M_TRIM_THRESHOLD, M_TOP_PAD]


@pytest.mark.parametrize("missing", [AttributeError, OSError, TypeError])
def test_another_allocator_is_left_as_it_is(missing, monkeypatch):
    def none(name):
        raise missing

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert keep_freed_memory() is False
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda parameter, value: 0))
    assert keep_freed_memory() is False
