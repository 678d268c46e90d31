"""Choosing a symbol: the temperature, the k likeliest, the nucleus; by hand, at the edges, and by counting."""

import math

import numpy as np
import pytest

from minitx.sampling import draw, probabilities

from .common import refused

SORTED, MIXED = [0.45, 0.3, 0.15, 0.1], [0.15, 0.1, 0.45, 0.3]


def chosen(p, **options):
    return probabilities(np.log(p), **options)


@pytest.mark.parametrize("p", [SORTED, MIXED], ids=["sorted", "mixed"])
@pytest.mark.parametrize("top_p, expected", [(0.8, [1 / 2, 1 / 3, 1 / 6]), (0.4, [1]), (0, [1]), (1, SORTED), (0.44, [1]),
                                             (0.46, [0.6, 0.4]), (0.95, SORTED)])
def test_c61_the_symbol_that_reaches_the_sum_stays(p, top_p, expected):
    found = chosen(p, top_p=top_p)
    np.testing.assert_allclose(np.sort(found)[::-1], [*expected, *[0] * (4 - len(expected))], atol=1e-12)
    assert (np.argsort(-found, kind="stable")[:len(expected)] == np.argsort(-np.array(p))[:len(expected)]).all()


@pytest.mark.parametrize("top_k, expected", [(1, [0, 0, 1, 0]), (2, [0, 0, 0.6, 0.4]), (3, [1 / 6, 0, 1 / 2, 1 / 3]),
                                             (4, MIXED), (99, MIXED), (None, MIXED)])
def test_the_k_likeliest_stay(top_k, expected):
    np.testing.assert_allclose(chosen(MIXED, top_k=top_k), expected, atol=1e-12)


def test_the_nucleus_is_of_what_top_k_has_left():
    np.testing.assert_allclose(chosen(SORTED, top_k=2, top_p=0.6), [1, 0, 0, 0], atol=1e-12)     # 0.6 of 0.75
    np.testing.assert_allclose(chosen(SORTED, top_p=0.6), [0.6, 0.4, 0, 0], atol=1e-12)


def test_the_temperature_comes_first():
    flat = np.sqrt(SORTED) / np.sqrt(SORTED).sum()                           # temperature 2
    np.testing.assert_allclose(chosen(SORTED, temperature=2), flat, atol=1e-12)
    assert (chosen(SORTED, temperature=2, top_p=0.4) > 0).sum() == 2 and flat[0] < 0.4
    sharp = np.square(SORTED) / np.square(SORTED).sum()
    np.testing.assert_allclose(chosen(SORTED, temperature=0.5), sharp, atol=1e-12)
    assert chosen(MIXED, temperature=0).tolist() == chosen(MIXED, temperature=1e-300).tolist() == [0, 0, 1, 0]


def test_of_equals_the_lower_ids_stay():
    assert chosen([0.25] * 4, top_k=3).tolist() == [1 / 3, 1 / 3, 1 / 3, 0]
    assert chosen([0.25] * 4, top_p=0.5).tolist() == [0.5, 0.5, 0, 0]
    assert chosen([0.25] * 4, temperature=0).tolist() == chosen([0.25] * 4, top_k=1).tolist() == [1, 0, 0, 0]
    assert chosen([0.2, 0.3, 0.3, 0.2], top_k=1).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("options", [{"top_p": 1}, {"top_p": 1.0}, {"top_k": 200}, {"top_k": 200, "top_p": 1}, {}], ids=str)
def test_neutral_options_change_nothing(options):
    logits = 30 * np.random.default_rng(0).standard_normal(200)              # many far below the rounding of a sum
    expected = [math.exp(x - logits.max()) for x in logits]
    np.testing.assert_allclose(probabilities(logits, **options), np.array(expected) / math.fsum(expected), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_what_stays_is_the_smallest_set_that_reaches_the_sum(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(30, 0.5))
    for top_p in rng.random(20):
        found = chosen(p, top_p=top_p)
        stay = found > 0
        assert p[stay].sum() >= top_p - 1e-12 > p[stay].sum() - p[stay].min() - 1e-9
        assert p[stay].min() >= p[~stay].max(initial=0)
        np.testing.assert_allclose(found[stay], p[stay] / p[stay].sum(), rtol=1e-9)


def test_what_is_impossible_never_comes():
    logits = np.array([0.0, -math.inf, 1.0, -math.inf])
    for options in ({}, {"top_k": 3}, {"top_p": 0.999}, {"temperature": 9}, {"temperature": 0}):
        assert probabilities(logits, **options)[[1, 3]].tolist() == [0, 0]
    assert probabilities(logits.astype("float16")).dtype == "float64"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"temperature": 1.5}, {"top_k": 4}, {"top_p": 0.75},
                                     {"temperature": 1.3, "top_k": 6, "top_p": 0.8}], ids=str)
def test_draws_come_as_often_as_they_should(options):
    """Pearson's chi² over 20,000 draws stays below the 99.9 % quantile, which it would leave for errors of 1 %."""
    logits, n, rng = np.linspace(0, 2, 9)[[3, 1, 4, 8, 5, 2, 6, 0, 7]], 20_000, np.random.default_rng(0)
    p = probabilities(logits, **options)
    counts = np.bincount([draw(logits, rng, **options) for _ in range(n)], minlength=9)
    stay, quantile = p > 0, {2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1}
    assert counts[~stay].sum() == 0
    assert (np.square(counts - n * p)[stay] / (n * p[stay])).sum() < quantile[stay.sum() - 1]


def test_a_draw_takes_one_number_whatever_is_left_and_the_likeliest_none():
    logits = np.log(SORTED)
    for options, numbers in (({}, 1), ({"top_k": 1}, 1), ({"top_p": 0.0}, 1), ({"temperature": 0}, 0)):
        rng, other = np.random.default_rng(1), np.random.default_rng(1)
        draw(logits, rng, **options)
        other.random(numbers)
        assert rng.random() == other.random()


@pytest.mark.parametrize("logits", [[math.nan, 1], [1, math.nan, 2], [math.inf, 0], [-math.inf] * 2], ids=str)
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"temperature": 0}], ids=str)
def test_scores_that_have_no_largest_are_refused(logits, options):
    refused(FloatingPointError, lambda: probabilities(np.array(logits), **options),
            "probabilities: the largest score of the model is", "blown up")


def test_scores_are_an_array_of_one_row():
    refused(TypeError, lambda: probabilities([0.5, 1.0]), "probabilities: logits is a list; expected a ndarray")
    for logits in (np.ones((2, 3)), np.ones(0), np.array(1.0), np.array([True]), np.array(["x"]), np.array([1j])):
        refused(ValueError, lambda logits=logits: probabilities(logits), f"probabilities: logits has shape {logits.shape}")


def test_what_makes_no_sense_is_refused():
    for options, parts in (({"top_k": 0}, "top_k is 0; expected a whole number of at least 1"),
                           ({"top_k": 1.5}, "top_k is 1.5"),
                           ({"top_p": 1.1}, "top_p is 1.1; expected a finite number from 0 to 1"), ({"top_p": -0.1}, "top_p"),
                           ({"temperature": -1}, "temperature is -1"), ({"top_p": math.nan}, "top_p is nan")):
        refused(ValueError, lambda options=options: chosen(SORTED, **options), f"probabilities: {parts.split(' ')[0]}", parts)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draw_refuses_the_same_whether_it_draws_or_not(temperature):
    for error, logits, options in ((FloatingPointError, np.array([math.nan, 1]), {}), (ValueError, np.ones((2, 3)), {}),
                                   (ValueError, np.log(SORTED), {"top_k": 0})):
        refused(error, lambda logits=logits, options=options: draw(logits, None, temperature=temperature, **options),
                "probabilities: ")
