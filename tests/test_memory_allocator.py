"""Freed memory is kept: a second round of the same large arrays asks the kernel for nothing. Where the allocator can."""

import subprocess
import sys

import pytest

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
