"""Jobs side by side: as many threads as BLAS has, which see what the caller set, and leave nothing behind."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx.parallel import in_parallel, one_blas_thread
from minitx.tensor import tracking

from .common import blas_threads, refused


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


def test_after_an_error_no_job_is_begun():
    begun, stop = [], threading.Event()

    def job(i):
        begun.append(i)
        if i == 1:
            raise ValueError("parallel: this job fails")
        stop.wait(0.05)

    refused(ValueError, lambda: in_parallel([lambda i=i: job(i) for i in range(40)]), "this job fails")
    assert len(begun) < 10, "but for those that were begun before it was known"


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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the first leaves first", "the first leaves last"])
def test_blas_has_one_thread_until_the_last_has_left_whichever_thread_of_python_that_is(order):
    with one_blas_thread() as given_up:                 # and from here on, another thread may change the number
        assert blas_threads() == 1 and given_up == 2
    inside, leave, given_up = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()], []

    def stay(i):
        with one_blas_thread() as threads:
            given_up.append(threads)
            inside[i].set()
            leave[i].wait(5)

    stays = [threading.Thread(target=stay, args=(i,)) for i in range(2)]
    for thread, event in zip(stays, inside):
        thread.start()
        event.wait(5)
    assert blas_threads() == 1 and given_up == [2, 1], "and the second has none to give up"
    for i, left in zip(order, (1, 2)):
        leave[i].set()
        stays[i].join()
        assert blas_threads() == left


def test_an_error_inside_leaves_blas_as_it_was():
    def fails():
        with one_blas_thread():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert blas_threads() == 2 and len(set(in_parallel(meeting(2)))) == 2


def test_what_an_interrupt_tore_apart_is_put_back_by_the_next(monkeypatch):
    """It may come at any moment, also just before a block puts back what it changed."""
    def interrupted(_):
        raise KeyboardInterrupt

    block = one_blas_thread()
    assert block.__enter__() == 2
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("minitx.parallel._blocks.discard", interrupted)
        block.__exit__(None, None, None)
    del block
    assert blas_threads() == 1
    with one_blas_thread():
        assert blas_threads() == 1
    assert blas_threads() == 2
