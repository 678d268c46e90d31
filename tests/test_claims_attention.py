"""The claims about attention itself: each script says what came out when run, and its rule answers yes, no, and nothing without
its controls."""

import copy
import math

import numpy as np
import pytest

from .test_claims import elsewhere, run, script  # noqa: F401  (elsewhere: in an empty folder)

SCRIPTS = ("no_order", "sinusoid_shift", "softmax_scale", "stochastic_matrix", "three_steps")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_tells_its_claim_statistic_rule_and_control(name):
    doc = script(name).__doc__
    assert f"python examples/claims/{name}.py" in doc
    assert all(f"\n{word}" in doc for word in ("Claim ", "Statistic ", "Rule ", "Control "))


SMALLER = {"no_order": {"ORDERS": 3, "TEXTS": 60, "T": 8}, "sinusoid_shift": {"P": 400, "SHIFTS": (1, 7, 50)},
           "softmax_scale": {"ROWS": 300}, "stochastic_matrix": {"CALLS": 30, "STEPS": 3}, "three_steps": {}}
WORDS = {"no_order": "holds in part"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_came_out(name, monkeypatch, capsys):
    for size, value in SMALLER[name].items():
        monkeypatch.setattr(script(name), size, value)
    found = run(name, monkeypatch)
    assert found["verdict"] == WORDS.get(name, "holds") and all(found["controls"].values())
    out = capsys.readouterr().out
    assert f"verdict: {found['verdict'].upper()}" in out and f"{name}.png" in out


# The rules


def order(without=(1e-15, 1e-15, 1e-15), with_them=(1.0, 1.0, 1.0, 1.0)):
    claim = script("no_order")
    return {"moved": dict(zip([*claim.WITHOUT, *claim.WITH], [*without, *with_them], strict=True))}


@pytest.mark.parametrize("without, with_them, word", [
    ((1e-15, 1e-15, 1e-15), (1.0,) * 4, "holds"),
    ((1e-15, 1e-15, 1e-9), (1.0,) * 4, "holds in part"),
    ((1e-9, 0.1, 0.2), (0.02,) * 4, "does not hold here"),
    ((1e-15, 1e-15, 1e-15), (1.0, 1.0, 0.009, 1.0), "undecided"),
])
def test_the_rule_about_order(without, with_them, word):
    assert script("no_order").verdict(order(without, with_them)).word == word


@pytest.mark.parametrize("closed, sinusoid, learned, word", [
    (1e-13, 1e-14, 1.0, "holds"), (1e-8, 1e-14, 1.0, "holds in part"), (1e-13, 1e-5, 1.0, "holds in part"),
    (0.1, 0.1, 1.0, "does not hold here"), (1e-13, 1e-14, 0.4, "undecided"),
])
def test_the_rule_about_shifts(closed, sinusoid, learned, word):
    numbers = {"closed": [1e-14, closed], "fitted": {"sinusoid": [1e-15, sinusoid], "learned": [1.0, learned]}}
    assert script("sinusoid_shift").verdict(numbers).word == word


def test_the_best_map_is_found_where_there_is_one():
    claim, rng = script("sinusoid_shift"), np.random.default_rng(0)
    rows, M = rng.standard_normal((200, 8)), rng.standard_normal((8, 8))
    assert claim.best_map_misses(rows, rows @ M) < 1e-13
    assert 0.9 < claim.best_map_misses(rows, rng.standard_normal((200, 8))) < 1.3
    np.testing.assert_allclose(claim.turn(3) @ claim.turn(4), claim.turn(7), atol=1e-13)


def scale(entropy=0.01, jacobian=1e-4, steady=1.1, start=0.9, op=0.5):
    """Numbers as `softmax_scale.measure` gives them; pairs are of two seeds."""
    with_it, without = script("softmax_scale").WAYS

    def seeds(x):
        return list(x) if isinstance(x, tuple) else [x, x]

    flat = [[0.9, 0.9], [0.9, 0.9], [0.9 / x for x in seeds(steady)]]
    return {"widths": [1, 16, 1024], "by_formula": 0.5, "by_the_op": op,
            "entropy": {with_it: flat, without: [[start] * 2, [0.5] * 2, seeds(entropy)]},
            "jacobian": {with_it: flat, without: [[0.9] * 2, [0.5] * 2, seeds(jacobian)]}}


@pytest.mark.parametrize("numbers, word", [
    ({}, "holds"), ({"entropy": 0.2}, "holds in part"), ({"jacobian": 0.02}, "holds in part"),
    ({"steady": 1.3}, "holds in part"),
    ({"entropy": (0.05, 0.2)}, "holds in part"), ({"entropy": 0.2, "jacobian": 0.5, "steady": 2.0}, "does not hold here"),
    ({"entropy": (0.05, 0.2), "jacobian": (1e-4, 0.5), "steady": (1.0, 2.0)}, "undecided"),
    ({"start": 0.89}, "undecided"), ({"op": 0.5001}, "undecided"),
])
def test_the_rule_about_scales(numbers, word):
    assert script("softmax_scale").verdict(scale(**numbers)).word == word


def test_what_a_row_of_weights_is_measured_by():
    claim = script("softmax_scale")
    p = np.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]])
    np.testing.assert_allclose(claim.entropy(p), [1, 0, 0.5], atol=1e-12)
    norms = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in p]
    np.testing.assert_allclose(claim.jacobian_norm(p), norms, atol=1e-12)
    assert claim.by_the_op(p[0]) == pytest.approx(norms[0])


def averages(**changed):
    fine = {"sum": 1e-16, "least": 0.0, "outside": 0.0, "nothing": 0, "calls": 1}
    found = {width: {"calls": fine | changed.pop(width, {})} for width in ("float64", "float32")}
    return {"found": found, "controls": {"dropout": 0.5, "no division": 9.0} | changed}


@pytest.mark.parametrize("numbers, word", [
    ({}, "holds"), ({"float32": {"sum": 5e-6, "outside": 5e-6}}, "holds"), ({"float64": {"sum": 5e-6}}, "holds in part"),
    ({"float64": {"outside": 1e-11}}, "holds in part"), ({"float32": {"least": -1e-9}}, "holds in part"),
    ({"float32": {"sum": 1.0, "least": -1.0, "outside": 1.0}}, "does not hold here"), ({"dropout": 0.05}, "undecided"),
    ({"no division": 0.5}, "undecided"),
])
def test_the_rule_about_averages(numbers, word):
    assert script("stochastic_matrix").verdict(averages(**copy.deepcopy(numbers))).word == word


def test_what_leaves_the_range_of_its_values_is_seen():
    judged = script("stochastic_matrix").judged
    probs, v = np.array([[[[0.5, 0.5, 0.0], [0, 0, 0]]]]), np.array([[[[1.0], [3], [100]]]])
    some = np.array([[[True, False]]])
    fine = judged(probs, probs @ v, v, some)
    assert (fine["sum"], fine["least"], fine["outside"], fine["nothing"]) == (0, 0, 0, 1)
    assert judged(probs, np.array([[[[4.0], [0]]]]), v, some)["outside"] == 0.01, "3 is the largest that it takes from"
    assert judged(probs * 0.9, probs @ v, v, some)["sum"] == pytest.approx(0.1)
    assert judged(probs - 0.1, probs @ v, v, some)["least"] == pytest.approx(-0.1)


def test_a_row_that_is_empty_or_nan_is_excused_only_where_the_mask_leaves_it_no_key():
    judged, v = script("stochastic_matrix").judged, np.ones((1, 1, 2, 1))
    empty, y = np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1, 1))
    no_key = np.array([[[False]]])
    assert judged(empty, y, v, no_key) == {"sum": 0, "least": 0, "outside": 0, "nothing": 1}
    assert judged(empty, y + 1e-15, v, no_key)["outside"] == np.inf, "its output is 0 exactly"
    assert judged(empty + 0.5, y, v, no_key)["sum"] == 1, "it takes nothing"
    assert judged(empty, y, v)["sum"] == 1
    for some in True, no_key:
        assert np.isnan(judged(empty * np.nan, y, v, some)["sum"])
        assert not judged(empty, y * np.nan, v, some)["outside"] < 1


def test_which_rows_have_a_key():
    with_a_key, mask = script("stochastic_matrix").with_a_key, np.array([[True, False], [False, False], [True, True]])
    assert with_a_key((1, 1, 3, 2), causal=False).tolist() == [[[True, True, True]]]
    assert with_a_key((1, 1, 3, 2), mask, causal=False).tolist() == [[[True, False, True]]]
    assert with_a_key((1, 1, 3, 2), causal=True).tolist() == [[[False, True, True]]], "the last query sees all"


# Not a number


NAN = math.nan


def test_the_worst_of_numbers_is_nan_wherever_one_is():
    worst = script("common").worst
    assert worst([1e-3, 2.0, 0.5]) == worst(x for x in (2.0, 1.0)) == 2 and worst([]) == 0
    assert all(math.isnan(worst(numbers)) for numbers in ([NAN, 1.0], [1.0, NAN], [0.0, NAN, 2.0]))


@pytest.mark.parametrize("name, numbers", [
    ("no_order", lambda: order(without=(1e-15, NAN, 1e-15))),
    ("sinusoid_shift", lambda: {"closed": [1e-14, NAN], "fitted": {"sinusoid": [1e-15], "learned": [1.0]}}),
    ("sinusoid_shift", lambda: {"closed": [1e-14], "fitted": {"sinusoid": [1e-15, NAN], "learned": [1.0]}}),
    ("softmax_scale", lambda: scale(entropy=(0.01, NAN))),
    ("softmax_scale", lambda: scale(steady=(1.1, NAN))),
    ("stochastic_matrix", lambda: averages(float32={"sum": NAN})),
    ("stochastic_matrix", lambda: averages(float32={"outside": NAN})),
    ("stochastic_matrix", lambda: averages(float32={"least": NAN})),
    ("three_steps", lambda: {"differences": {"a": 1e-15, "b": NAN}, "wrong": {"no scale": 0.1}}),
])
def test_no_claim_holds_on_a_number_that_is_none(name, numbers):
    verdict = script(name).verdict(numbers())
    assert verdict.word != "holds" and not all([*verdict.parts.values(), *verdict.controls.values()])


def test_what_is_measured_keeps_a_nan(monkeypatch):
    steps, order_ = script("three_steps"), script("no_order")
    one, bad = np.ones(2), np.array([1.0, NAN])
    assert math.isnan(steps.furthest([one, bad], [one, one])) and math.isnan(steps.furthest([bad, one], [one, one]))
    answers = iter([np.ones((1, order_.T, 2)), np.full((1, order_.T, 2), NAN), np.ones((1, order_.T, 2))])
    monkeypatch.setattr(order_, "vectors", lambda model, ids: next(answers))
    assert math.isnan(order_.moved(None, np.random.default_rng(0), 2))
    seen = [{"sum": 0.0, "least": 0.0, "outside": 0.0, "nothing": 0}, {"sum": NAN, "least": NAN, "outside": NAN, "nothing": 1}]
    for found in seen, seen[::-1]:
        together = script("stochastic_matrix").together(found)
        assert all(math.isnan(together[name]) for name in ("sum", "least", "outside")) and together["nothing"] == 1


@pytest.mark.parametrize("differences, wrong, word", [
    ({"a": 1e-15, "b": 1e-12}, 0.1, "holds"), ({"a": 1e-15, "b": 1e-10}, 0.1, "holds in part"),
    ({"a": 1.0, "b": 1.0}, 0.1, "does not hold here"), ({"a": 1e-15}, 0.005, "undecided"),
])
def test_the_rule_about_three_steps(differences, wrong, word):
    assert script("three_steps").verdict({"differences": differences, "wrong": {"no scale": wrong}}).word == word


def test_the_lesson_can_be_read(monkeypatch):
    claim = script("three_steps")
    lesson = claim.lesson()
    assert "the cat sleeps, it purrs" in lesson and "'it' takes 98% from 'cat'" in lesson
    assert "'cat' takes 50% from 'sleeps,' and 50% from 'purrs'" in lesson
    monkeypatch.setattr(claim, "torch", None)
    assert "PyTorch" not in claim.measure(claim.SHAPES[:1])["differences"], "where it is not installed, it is not asked"


def test_the_way_back_of_three_lines_agrees_with_nudges():
    claim, rng = script("three_steps"), np.random.default_rng(0)
    q, k, v, dy = (rng.standard_normal((3, 2)) for _ in range(4))
    _, backward = claim.three_lines(q, k, v)
    for i, gradient in enumerate(backward(dy)):
        for place in np.ndindex(3, 2):
            values = []
            for nudge in (1e-6, -1e-6):
                arrays = [a.copy() for a in (q, k, v)]
                arrays[i][place] += nudge
                values.append((claim.three_lines(*arrays)[0] * dy).sum())
            assert math.isclose((values[0] - values[1]) / 2e-6, gradient[place], rel_tol=1e-6, abs_tol=1e-8)
