"""Jobs side by side, on as many threads of Python as BLAS has threads, each then with one.

Two threads *within* every product have to meet for each of them, which takes longer than a small product, and what lies between
products is done by one of them alone. Two jobs need not meet. They run at the same time, since NumPy lets go of Python's lock
inside its loops.

Read next: `ops/flash.py`, where the jobs are heads, and `shards.py`, where they are parts of a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock
from typing import Any
from weakref import WeakSet

_lock = Lock()                  # of the two below
_before: list[int] = []         # how many threads each library had before the first of all blocks that there are


class Block:
    """One block of `one_blas_thread`; one that an interrupt tore apart is gone with its frame."""


_blocks: WeakSet[Block] = WeakSet()


def in_parallel(jobs: Sequence[Callable[[], Any]], *, independent: bool = True) -> list[Any]:
    """What the jobs return, in their order. They must not write to the same array, or say that they are not independent; then
    one is done after the other.

    There is nothing to be set. Where BLAS has been told to take one thread, as `Shards` does for its own, jobs get one, and so
    do those of a job. All see what is set where they come from: `no_grad`, NumPy's errstate. If one fails, those that have not
    begun are dropped, those that run are waited for, and its error is raised.
    """
    if independent and len(jobs) > 1:
        with one_blas_thread() as given_up:
            if given_up > 1:
                return _on_threads(given_up, jobs)
    return [job() for job in jobs]


def _on_threads(threads: int, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(threads)                  # starts no more than there are jobs
    try:
        results = [pool.submit(copy_context().run, job) for job in jobs]
        wait(results, return_when=FIRST_EXCEPTION)
    finally:
        pool.shutdown(cancel_futures=True)              # waits for those that run
    return [result.result() for result in results]      # they begin in order, so an error comes before what was dropped


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """A block in which BLAS takes one thread for a product; gives how many it took before, and 1 to all but the first of those
    who are inside at the same time.

    The number belongs to the process. So the first who comes lowers it, and the last who leaves, on whichever thread, puts it
    back; if an interrupt kept one from it, the next who leaves does. threadpoolctl lets no other thread change it until the one
    that did says that it is done.
    """
    libraries, block = _blas(), Block()
    try:
        with _lock:
            first = not _blocks
            _blocks.add(block)
            if first:
                _before[:] = _before or [library.num_threads for library in libraries]
                for library in libraries:
                    library.set_num_threads(1)
        yield min(_before, default=1) if first else 1
    finally:
        with _lock:
            _blocks.discard(block)
            for library, threads in zip(libraries, _before, strict=False):
                if not _blocks:
                    library.set_num_threads(threads)
                if hasattr(library, "clear_controlling_thread"):
                    library.clear_controlling_thread()
            if not _blocks:
                _before.clear()


@functools.cache
def _blas() -> list[Any]:
    """The BLAS libraries of this process; to look for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
