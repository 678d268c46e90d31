"""Jobs side by side, on as many threads of Python as BLAS has threads, each then with one.

Two threads *within* every product have to meet for each of them, which takes longer than a small product, and what lies between
products is done by one of them alone. Two jobs need not meet. They run at the same time, since NumPy lets go of Python's lock
inside its loops.

Read next: `ops/flash.py`, where the jobs are heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from threading import Lock
from typing import Any

_lock = Lock()                  # the number of BLAS threads belongs to the process: one at a time may change it


def in_parallel(jobs: Sequence[Callable[[], Any]], *, independent: bool = True) -> list[Any]:
    """What the jobs return, in their order. They must not write to the same array, or say that they are not independent; then
    one is done after the other.

    There is nothing to be set. Who tells BLAS to take one thread, as `Shards` does for each of its own, gets one here, and so
    does a job that has jobs. All see what is set where they come from: `no_grad`, NumPy's errstate. If one fails, those that
    run are waited for, no other is begun, and its error is raised.
    """
    if not independent or len(jobs) < 2 or not _lock.acquire(blocking=False):
        return [job() for job in jobs]
    try:
        threads = min(len(jobs), min((library.num_threads for library in _blas().lib_controllers), default=1))
        if threads == 1:
            return [job() for job in jobs]
        from concurrent.futures import ThreadPoolExecutor

        with _blas().limit(limits=1), ThreadPoolExecutor(threads) as pool:
            return list(pool.map(Context.run, [copy_context() for _ in jobs], jobs))
    finally:
        _lock.release()


@functools.cache
def _blas() -> Any:
    """The BLAS libraries of this process; to look for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
