"""Batches of windows: every character in its turn, once, inside the text, or a clear sentence."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data import sequential, windows

from .common import refused

# Training windows: ids that are their own places show where each window lies


def epochs_of(N, B, T, epochs=1, seed=0):
    """Lists of the batches of each epoch; an epoch's length follows from where its cut begins."""
    batches = windows(np.arange(N), B, T, np.random.default_rng(seed))
    for _ in range(epochs):
        x, y = next(batches)
        count = (N - 1 - x.min() % T) // T // B
        yield [(x, y), *islice(batches, count - 1)]


@settings(deadline=None)
@given(B=st.integers(1, 5), T=st.integers(1, 7), more=st.integers(1, 60), seed=st.integers(0, 99))
def test_windows_lie_inside_the_text_and_y_is_x_one_later(B, T, more, seed):
    N = B * T + more
    for x, y in windows(np.arange(N), B, T, np.random.default_rng(seed), steps=20):
        assert x.shape == y.shape == (B, T) and x.dtype == y.dtype == np.int64
        assert np.array_equal(y, x + 1) and np.array_equal(x, x[:, :1] + np.arange(T))
        assert x.min() >= 0 and y.max() <= N - 1


def test_an_epoch_predicts_no_character_twice_and_nearly_all():
    N, B, T = 1000, 4, 7
    firsts = set()
    for epoch in epochs_of(N, B, T, epochs=40):
        targets = np.concatenate([y.ravel() for _, y in epoch])
        assert len(set(targets)) == targets.size > N - T - B * T
        starts = np.concatenate([x[:, 0] for x, _ in epoch])
        assert len(set(starts % T)) == 1 and not np.array_equal(starts, np.sort(starts))
        firsts.add(starts[0] % T)
    assert firsts == set(range(T)), "the cut begins at every place"


def test_an_epoch_of_single_windows_leaves_out_less_than_one_at_either_end():
    N, T = 100, 7
    for epoch in epochs_of(N, 1, T, epochs=40):
        targets = sorted(int(c) for _, y in epoch for c in y.ravel())
        assert targets == list(range(targets[0], targets[-1] + 1))
        assert targets[0] <= T and targets[-1] > N - 1 - T


@pytest.mark.parametrize("N", [4 * 7 + 1, 4 * 7 + 3, 100])
def test_every_character_is_predicted_sooner_or_later(N):
    batches = windows(np.arange(N), 4, 7, np.random.default_rng(0), steps=300)
    assert {int(c) for _, y in batches for c in y.ravel()} == set(range(1, N))


def test_the_seed_decides_and_steps_count():
    def starts(seed, steps):
        return [x[:, 0].tolist() for x, _ in windows(np.arange(500), 3, 8, np.random.default_rng(seed), steps=steps)]

    assert starts(0, 50) == starts(0, 50) != starts(1, 50)
    assert starts(0, 50)[20:] == starts(0, 70)[20:50], "skipping 20 batches goes on where 20 steps ended"
    assert len(starts(0, 50)) == 50 and starts(0, 0) == []


def test_batches_are_the_users_own():
    ids = np.arange(100)
    for batches in (windows(ids, 1, 9, np.random.default_rng(0), steps=3), sequential(ids, 2, 8)):
        for x, y in batches:
            kept = y.copy()
            x[:] = -1
            assert np.array_equal(y, kept) and x.flags.c_contiguous and y.flags.c_contiguous
    assert np.array_equal(ids, np.arange(100))


def test_windows_say_at_once_what_is_wrong():
    def make(ids=range(100), B=2, T=8, rng=None, **more):
        return windows(ids, B, T, np.random.default_rng(0) if rng is None else rng, **more)

    refused(ValueError, lambda: make(range(16)), "windows", "16 characters", "B=2", "T=8", "= 17", "longer text")
    assert len(list(make(range(17), steps=5))) == 5
    refused(ValueError, lambda: make(B=0), "windows: B is 0", "at least 1")
    refused(ValueError, lambda: make(T=2.0), "windows: T is 2.0")
    refused(ValueError, lambda: make(steps=-1), "windows: steps is -1", "at least 0")
    refused(ValueError, lambda: make(np.zeros((9, 9), int)), "windows", "(9, 9)", "one row of integers")
    refused(ValueError, lambda: make("text"), "windows", "dtype <U4", "Vocabulary.encode")
    refused(TypeError, lambda: make(rng=7), "windows: rng is a int", "give np.random.default_rng(seed)")


# Evaluation in order


@settings(deadline=None)
@given(N=st.integers(2, 80), B=st.integers(1, 5), T=st.integers(1, 9))
def test_sequential_predicts_each_character_once_in_order(N, B, T):
    batches = list(sequential(np.arange(N), B, T))
    assert np.concatenate([y.ravel() for _, y in batches]).tolist() == list(range(1, N))
    for x, y in batches:
        assert np.array_equal(y, x + 1) and x.dtype == y.dtype == np.int64
        assert 0 < x.shape[0] <= B and 0 < x.shape[1] <= T
    assert all(x.shape == (B, T) for x, _ in batches[:-2]), "only the last two may be smaller"


def test_sequential_gives_the_rest_as_a_shorter_row():
    assert [x.shape for x, _ in sequential(range(30), 2, 5)] == [(2, 5), (2, 5), (1, 5), (1, 4)]
    assert [x.shape for x, _ in sequential(range(21), 2, 5)] == [(2, 5), (2, 5)]
    assert [x.shape for x, _ in sequential(range(4), 2, 5)] == [(1, 3)]


def test_sequential_says_at_once_what_is_wrong():
    refused(ValueError, lambda: sequential([0], 2, 8), "sequential", "1 characters", "longer text")
    refused(ValueError, lambda: sequential(range(9), 2, 0), "sequential: T is 0")
    refused(ValueError, lambda: sequential([0.5, 1.5], 2, 8), "sequential", "float64")
