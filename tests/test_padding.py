"""Batches of sequences of unequal length: each in its turn, once; padding is told from symbols, counted, and kept small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitx as mx
from minitx.data import length_batches, mask_of, pad, padding_share, pair_batch

from .common import every_device, refused
from .harness import on_host

LENGTHS = np.random.default_rng(0).integers(1, 40, 1000)
unequal = st.lists(st.integers(0, 9), max_size=30)


def batches_of(lengths, B=8, seed=0, **options):
    return length_batches(lengths, B, np.random.default_rng(seed), **options)


# One rectangle


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=5), st.integers(-100, -1))
def test_what_is_padded_can_be_had_back(sequences, value):
    ids, lengths = pad(sequences, value)
    assert ids.dtype == lengths.dtype == np.int64 and ids.shape == (len(sequences), max(map(len, sequences), default=0))
    assert [row[:n].tolist() for row, n in zip(ids, lengths)] == sequences
    assert (ids[~mask_of(lengths, ids.shape[1])] == value).all()


@every_device
def test_a_mask_is_true_where_a_symbol_is(device):
    for lengths, T, right in (([2, 0, 3], 3, [[1, 1, 0], [0, 0, 0], [1, 1, 1]]), ([1], 2, [[1, 0]]), ([0, 0], 0, [[], []])):
        lengths = mx.tensor(lengths, device=device).array
        [mask] = on_host([mask_of(lengths, T)])
        assert mask.dtype == bool and mask.tolist() == right
    for wrong in (4, -1):
        refused(ValueError, lambda wrong=wrong: mask_of(lengths + wrong, 3), "mask_of: lengths must be from 0 to T = 3",
                str(wrong))
    refused(TypeError, lambda: mask_of(lengths * 1.0, 3), "mask_of: lengths is of shape (2,) and float64", "whole numbers (B)")
    refused(TypeError, lambda: mask_of(lengths[:, None], 3), "mask_of: lengths is of shape (2, 1)")
    refused(TypeError, lambda: mask_of([1, 2], 3), "mask_of: lengths is a list")


def test_the_decoder_reads_the_symbol_before_the_one_that_it_is_to_predict():
    source, lengths, inputs, targets = pair_batch([[7], [7, 8, 9]], [[4, 5], []], start=1, stop=2)
    assert source.tolist() == [[7, 0, 0], [7, 8, 9]] and lengths.tolist() == [1, 3]
    assert inputs.tolist() == [[1, 4, 5], [1, 0, 0]]
    assert targets.tolist() == [[4, 5, 2], [2, -100, -100]]


# One epoch


@settings(deadline=None)
@given(unequal, st.integers(1, 5), st.sampled_from([1, 2, 3, None]), st.sampled_from([None, 1, 7, 20]), st.integers(0, 99))
def test_every_example_is_in_one_batch(lengths, B, pool, budget, seed):
    batches = batches_of(lengths, B, seed, pool=pool, budget=budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(0 < len(batch) <= B for batch in batches)
    if budget:
        assert all(len(b) == 1 or len(b) * max(lengths[i] for i in b) <= budget for b in batches)
    else:
        assert sum(len(batch) < B for batch in batches) <= 1, "what is left over makes one batch"


def test_the_seed_decides():
    assert batches_of(LENGTHS) == batches_of(LENGTHS) != batches_of(LENGTHS, seed=1)
    rng = np.random.default_rng(0)
    first, second = ({frozenset(batch) for batch in length_batches(LENGTHS, 8, rng)} for _ in range(2))
    assert not first & second, "every epoch has its own batches"


def test_lengths_are_alike_within_a_batch_and_in_no_order_from_batch_to_batch():
    spread, order = {}, {}
    for pool in (1, 5, None):
        means, spreads = zip(*[(LENGTHS[b].mean(), np.ptp(LENGTHS[b])) for b in batches_of(LENGTHS, pool=pool)])
        spread[pool], order[pool] = np.mean(spreads), np.corrcoef(means[1:], means[:-1])[0, 1]
    assert spread[1] > 25 > 9 > spread[5] > 4 > 1 > spread[None]
    assert max(map(abs, order.values())) < 0.25, "the batches are shuffled"


def test_a_larger_pool_wastes_less_and_a_budget_evens_out_the_batches():
    shares = [padding_share(LENGTHS, batches_of(LENGTHS, pool=pool)) for pool in (1, 4, 25, None)]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.4 and shares[2] < 0.05 and shares[3] < 0.01
    batches = batches_of(LENGTHS, 1000, pool=None, budget=200)
    assert max(map(len, batches)) > 20 and min(len(b) for b in batches) < 7
    assert max(len(b) * LENGTHS[b].max() for b in batches) <= 200
    assert np.mean([len(b) * LENGTHS[b].max() for b in batches]) > 170, "and it is used up"


def test_pairs_are_sorted_by_the_source_and_then_by_the_target():
    pairs = np.array([[2, 9], [1, 5], [2, 1], [1, 7], [2, 8], [1, 1]])
    batches = sorted(batches_of(pairs, 2, pool=None), key=lambda b: pairs[b].tolist())
    assert [pairs[b].tolist() for b in batches] == [[[1, 1], [1, 5]], [[1, 7], [2, 1]], [[2, 8], [2, 9]]]
    assert padding_share(pairs, batches) == 1 - pairs.sum() / (2 * (1 + 5) + 2 * (2 + 7) + 2 * (2 + 9))
    assert {tuple(sorted(b)) for b in batches_of(pairs, 9, pool=None, budget=14)} == {(1, 5), (3,), (2,), (4,), (0,)}


def test_the_share_of_padding_is_counted_by_hand():
    assert padding_share([3, 1, 2], [[0, 1, 2]]) == 1 - 6 / 9
    assert padding_share([3, 1, 2], [[0], [1, 2]]) == 1 - 6 / 7
    assert padding_share([0, 0], [[0, 1]]) == padding_share([], []) == 0


def test_bad_lengths_are_refused():
    refused(ValueError, lambda: batches_of([1.5, 2]), "length_batches: lengths", "(2,)", "float64", "whole numbers")
    refused(ValueError, lambda: batches_of([1, -1]), "length_batches: lengths", "at least 0")
    refused(ValueError, lambda: pair_batch([[1], [2]], [[1]], start=1, stop=2), "pair_batch: there are 2 sources and 1 targets")
    refused(ValueError, lambda: padding_share([1, 2], [[2]]), "padding_share: a batch has places from 2 to 2", "0 to 1",
            "there are 2 lengths")
    for shape in ((), (2, 1), (2, 3), (2, 2, 1), (0, 3)):
        refused(ValueError, lambda shape=shape: batches_of(np.ones(shape, int)), "length_batches: lengths", str(shape),
                "(N, 2)")


def test_numbers_that_int64_cannot_hold_are_refused():
    """They would become others: 2⁶³ the smallest negative one."""
    for number in (2**63, 2**64 - 1, 2**70):
        refused(ValueError, lambda number=number: pad([[1], [0, number]]), "pad: ids has")
        refused(ValueError, lambda number=number: padding_share([number], [[0]]), "padding_share: lengths has")
        refused(TypeError, lambda number=number: pad([[1], [2, 3]], number), "pad: value is")
    assert pad([[2**63 - 1]])[0].item() == 2**63 - 1
    refused(TypeError, lambda: pad(np.array(3)), "pad: got a ndarray; expected several rows")


@pytest.mark.parametrize("B, count", [(64, 16), (1000, 1), (2000, 1)])
def test_a_batch_may_be_as_large_as_all(B, count):
    assert len(batches_of(LENGTHS, B)) == count
