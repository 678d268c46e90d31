"""Jobs side by side: as many threads as BLAS has, which see what the caller set, and leave nothing behind."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import minitx as mx
from minitx.parallel import in_parallel
from minitx.tensor import tracking

from .common import refused


def blas_threads():
    [count] = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return count


def meeting(count):
    """So many jobs that wait for each other, which fails if they are not side by side, and tell the name of their thread."""
    barrier = threading.Barrier(count, timeout=5)
    return [lambda: (barrier.wait(), threading.current_thread().name)[1]] * count


@pytest.fixture(autouse=True)
def two_blas_threads():
    """And as many of Python and of BLAS afterwards as before."""
    before = threading.active_count()
    with threadpool_limits(2, "blas"):
        yield
        assert blas_threads() == 2
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [2, 3])
def test_there_are_as_many_threads_as_blas_has_and_no_more_than_jobs(threads):
    with threadpool_limits(threads, "blas"):
        assert len(set(in_parallel(meeting(threads) * 3))) == threads
        assert len(set(in_parallel(meeting(2)))) == 2


def test_each_has_one_blas_thread_and_so_starts_no_threads_itself():
    def job():
        return blas_threads(), in_parallel([threading.get_ident] * 2) == [threading.get_ident()] * 2

    assert in_parallel([job, job]) == [(1, True)] * 2


@pytest.mark.parametrize("alone", ["one BLAS thread", "one job", "not independent"])
def test_without_need_no_thread_is_started(alone):
    with threadpool_limits(1 if alone == "one BLAS thread" else 2, "blas"):
        jobs = [threading.get_ident] * (1 if alone == "one job" else 3)
        assert set(in_parallel(jobs, independent=alone != "not independent")) == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 2])
def test_results_come_in_the_order_of_the_jobs(threads):
    with threadpool_limits(threads, "blas"):
        assert in_parallel([lambda i=i: i for i in range(9)]) == list(range(9)) and in_parallel([]) == []


def test_what_is_set_by_the_caller_is_set_in_every_job():
    with np.errstate(divide="print"), mx.no_grad():
        assert in_parallel([lambda: (np.geterr()["divide"], tracking.get())] * 3) == [("print", False)] * 3
    assert in_parallel([tracking.get] * 3) == [True] * 3


def test_the_error_of_a_job_is_raised_when_the_others_are_done():
    begun, done = threading.Barrier(2, timeout=5), []

    def failing():
        begun.wait()
        raise ValueError("parallel: this job fails")

    def slow():
        begun.wait()
        threading.Event().wait(0.02)
        done.append("slow")

    refused(ValueError, lambda: in_parallel([failing, slow]), "this job fails")
    assert done == ["slow"]
    assert len(set(in_parallel(meeting(2)))) == 2, "and the next are side by side again"


def test_a_second_caller_at_the_same_time_works_alone():
    inside, other = threading.Barrier(3, timeout=5), threading.Event()

    def held():
        inside.wait()
        other.wait(5)

    caller = threading.Thread(target=in_parallel, args=([held, held],))
    caller.start()
    inside.wait()
    assert in_parallel([threading.get_ident] * 2) == [threading.get_ident()] * 2
    other.set()
    caller.join()
