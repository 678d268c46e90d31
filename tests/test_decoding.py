"""Decoding: the greedy path, and a beam that finds the best sequence, by its stated rule, among all sequences there are."""

import itertools
import math

import numpy as np
import pytest

import minitx as mx
from minitx.decoding import Hypothesis, beam_search, greedy, largest, length_penalty, select

from .common import every_device, refused

V, STEPS, STOP, START = 3, 4, 2, 0
ALPHAS = [0.0, 0.6, 1.0, 3.0]
ALL = V**STEPS


class Toy:
    """A model that is a table: for every beginning, scores for the next symbol. Its rows are models of their own."""

    def __init__(self, seed, rows=1, spread=2.0):
        self.tables = spread * np.random.default_rng(seed).standard_normal((rows, (V + 1)**STEPS, V))
        self.rows_asked = []

    def state(self, rows=slice(None)):
        """Which table, and which place in it: all that was read, as one number. In a nest, as a state may be."""
        row = np.arange(len(self.tables))[rows]
        return {"row": row, "more": (np.zeros_like(row), None)}

    def step(self, ids, state):
        self.rows_asked.append(len(ids))
        row, (place, nothing) = state["row"], state["more"]
        place = place * (V + 1) + ids + 1
        return self.tables[row, place], {"row": row, "more": (place, nothing)}

    def log_p(self, ids, row=0):
        total, place = 0.0, 0
        for read, symbol in zip((START, *ids), ids):
            place = place * (V + 1) + read + 1
            scores = self.tables[row, place]
            total += scores[symbol] - math.log(sum(map(math.exp, scores)))
        return total

    def sequences(self, row=0):
        """All that can be written: with a stop symbol at the end, or STEPS symbols without."""
        for length in range(1, STEPS + 1):
            for ids in itertools.product(range(V), repeat=length):
                finished = ids[-1] == STOP
                if STOP not in ids[:-1] and (finished or length == STEPS):
                    yield Hypothesis(ids[:length - finished], self.log_p(ids, row), finished)

    def ranking(self, alpha, row=0):
        """All of them, the best first: the finished before those that were cut, then by score."""
        return sorted(self.sequences(row), key=lambda h: (not h.finished, -h.score(alpha)))


def search(toy, width, rows=slice(None), **options):
    state = toy.state(rows)
    return beam_search(toy.step, state, [START] * len(state["row"]), **{"stop": STOP, "steps": STEPS, "width": width} | options)


def same(ours, theirs):
    assert [h[::2] for h in ours] == [h[::2] for h in theirs]
    np.testing.assert_allclose([h.log_p for h in ours], [h.log_p for h in theirs], rtol=1e-12)


# The rule


def test_the_length_is_what_was_predicted_and_the_score_is_as_stated():
    finished, cut = Hypothesis((0, 1), -3.0, True), Hypothesis((0, 1), -3.0, False)
    assert (finished.length, cut.length) == (3, 2)
    assert finished.score(0.0) == -3 and finished.score(1.0) == -3 * 6 / 8 and cut.score(2.0) == -3 * 36 / 49
    assert length_penalty(1, 9.0) == 1 and length_penalty(7, 1.0) == 2


# Greedy


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_likeliest_symbol_at_every_step(seed):
    toy = Toy(seed, rows=6)
    for row, h in enumerate(greedy(toy.step, toy.state(), [START] * 6, stop=STOP, steps=STEPS)):
        ids = (*h.ids, STOP) if h.finished else h.ids
        assert len(ids) == STEPS if not h.finished else len(ids) <= STEPS
        place = 0
        for read, symbol in zip((START, *ids), ids):
            place = place * (V + 1) + read + 1
            assert symbol == toy.tables[row, place].argmax()
        assert h.log_p == pytest.approx(toy.log_p(ids, row), rel=1e-12)


def test_greedy_ends_when_all_rows_have_ended():
    toy = Toy(0, rows=2)
    toy.tables[0, :, STOP] += 9
    toy.tables[1, :, 1] += 9                                                 # 1 at once, then stop
    toy.tables[1, 1 * (V + 1) + 2, STOP] += 99
    found = greedy(toy.step, toy.state(), [START] * 2, stop=STOP, steps=STEPS)
    assert [h[::2] for h in found] == [((), True), ((1,), True)] and toy.rows_asked == [2, 2]
    toy.tables[..., STOP] -= 999
    assert [(h.length, h.finished) for h in greedy(toy.step, toy.state(), [START] * 2, stop=STOP, steps=3)] == [(3, False)] * 2


@pytest.mark.parametrize("decode", [greedy, lambda *args, **options: beam_search(*args, **options)[0]], ids=["greedy", "beam"])
def test_hypotheses_are_plain_numbers_for_json_too(decode):
    toy = Toy(1)
    found = decode(toy.step, toy.state(), [START], stop=STOP, steps=STEPS)
    assert {type(x) for h in found for x in (*h.ids, h.log_p, h.finished)} == {int, float, bool}


# The beam


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", range(10))
def test_a_beam_of_one_is_greedy(seed, alpha):
    toy = Toy(seed, rows=5)
    expected = greedy(toy.step, toy.state(), [START] * 5, stop=STOP, steps=STEPS)
    for [best], h in zip(search(toy, 1, alpha=alpha), expected):
        same([best], [h])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", range(10))
def test_an_exhaustive_beam_finds_the_best_of_all_sequences(seed, alpha):
    toy = Toy(seed)
    [found] = search(toy, ALL, alpha=alpha)
    same(found[:1], toy.ranking(alpha)[:1])
    same(found, sorted(found, key=lambda h: (not h.finished, -h.score(alpha))))
    assert len(set(found)) == len(found) and set(h[::2] for h in found) <= {h[::2] for h in toy.sequences()}


def test_without_a_word_alpha_is_0_6_and_the_width_is_4():
    differ = {"width": 0, "alpha": 0}
    for toy in map(Toy, range(20)):
        [found] = beam_search(toy.step, toy.state(), [START], stop=STOP, steps=STEPS)
        assert found == search(toy, 4, alpha=0.6)[0]
        differ["width"] += found != search(toy, 5, alpha=0.6)[0]
        differ["alpha"] += found != search(toy, 4, alpha=0.7)[0]
    assert min(differ.values()) > 0


def test_when_nothing_ends_the_search_early_all_sequences_are_ranked():
    toy = Toy(1, spread=0.01)                                                # all symbols nearly as likely
    [found] = search(toy, ALL, alpha=9.0)
    same(found, toy.ranking(9.0))


def test_a_narrow_beam_lies_between_greedy_and_the_best():
    better = 0
    for seed in range(30):
        toy = Toy(seed)
        scores = [search(toy, width, alpha=0.0)[0][0].score(0.0) for width in (1, 3, ALL)]
        assert scores[1] <= scores[2] + 1e-12
        better += scores[0] < scores[1] - 1e-12
    assert better > 5, "a beam finds what greedy misses"


def test_a_larger_alpha_never_prefers_a_shorter_sequence():
    lengths = np.array([[search(Toy(seed), ALL, alpha=alpha)[0][0].length for alpha in ALPHAS] for seed in range(20)])
    assert (np.diff(lengths) >= 0).all() and (lengths[:, -1] > lengths[:, 0]).any()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_several_rows_at_once_equal_one_by_one(width):
    toy = Toy(3, rows=7)
    for row, together in enumerate(search(toy, width)):
        same(together, search(toy, width, slice(row, row + 1))[0])
    assert set(toy.rows_asked) == {7 * width, width}, "row r is a beginning of row r // width"
    assert search(toy, 2, slice(0, 0)) == []


def test_ties_go_to_the_earlier_beginning_and_the_lower_id():
    toy = Toy(0, spread=0.0)
    [found] = search(toy, 2, alpha=0.0)
    assert [h.ids for h in found] == [(0, 0, 0, 0), (0, 0, 0, 1)] and not any(h.finished for h in found)
    assert [h.ids for h in greedy(toy.step, toy.state(), [START], stop=STOP, steps=3)] == [(0, 0, 0)]
    assert [h.ids for h in search(toy, 3, alpha=0.0)[0]] == [()], "p = 1/3 at once; no longer sequence can have more"


def test_the_search_ends_when_nothing_alive_can_win():
    """After one step `stop` has p = 0.6. What lives has 0.3, and keeps it at best to step 4; after two steps it has 0.09."""
    toy = Toy(0)
    toy.tables[0] = np.log([0.3, 0.1, 0.6])
    [[best, *_]] = search(toy, 2, alpha=0.0)
    assert best.ids == () and len(toy.rows_asked) == 1
    even = math.log(math.log(0.3) / math.log(0.6)) / math.log(9 / 6)       # log 0.3 / penalty(4) = log 0.6 / penalty(1)
    for alpha, asked in ((0.99 * even, 1), (1.01 * even, 2)):
        toy.rows_asked.clear()
        search(toy, 2, alpha=alpha)
        assert len(toy.rows_asked) == asked


def test_what_is_cut_stands_behind_what_is_finished():
    toy = Toy(0)
    toy.tables[0] = np.log([0.9, 0.09, 0.01])
    [found] = search(toy, ALL, alpha=0.0)
    assert found[0].finished and not found[-1].finished and found[-1].log_p < found[0].log_p
    same(found[:1], toy.ranking(0.0)[:1])
    [[only]] = search(toy, 1, alpha=0.0)
    assert not only.finished and only.ids == (0,) * STEPS and only.log_p == pytest.approx(STEPS * math.log(0.9))


def test_symbols_that_are_ruled_out_are_in_no_sequence():
    toy = Toy(0)
    toy.tables[..., 1] = -np.inf
    [found] = search(toy, ALL, alpha=9.0)
    assert found and all(1 not in h.ids for h in found)


@pytest.mark.parametrize("n, k", [(1, 1), (1, 3), (3, 3), (4, 3), (50, 1), (500, 7), (500, 499)])
def test_the_largest_come_first_and_of_equals_the_first(n, k):
    x = np.random.default_rng(n * k).integers(0, 9, n) / 2
    x[::3] = -np.inf
    expected = sorted(range(n), key=lambda i: (-x[i], i))[:k]
    assert largest(x, k).tolist() == [i for i in expected if x[i] > -np.inf]


# States and scores of every kind


@every_device
def test_tensors_on_every_device_serve_as_state_and_scores(device):
    toy = Toy(5, rows=4)

    def step(ids, state):
        row, place = (part.numpy().ravel().astype(int) for part in state)
        scores, after = toy.step(ids, {"row": row, "more": (place, None)})
        return tensor(scores), [state[0], tensor(after["more"][0][:, None])]

    def tensor(x):
        return mx.tensor(x.astype("float64"), device=device)

    state = [tensor(np.arange(4)), tensor(np.zeros((4, 1)))]
    for ours, theirs in zip(beam_search(step, state, [START] * 4, stop=STOP, steps=STEPS, width=3), search(toy, 3)):
        same(ours, theirs)


@every_device
def test_select_picks_rows_wherever_they_are(device):
    x = mx.tensor([[1, 2], [3, 4], [5, 6]], device=device)
    picked = select({"a": x, "b": [x.array, (None, x)]}, np.array([2, 2, 0, 1]))
    for part in (picked["a"], mx.Tensor(picked["b"][0]), picked["b"][1][1]):
        assert part.numpy().tolist() == [[5, 6], [5, 6], [1, 2], [3, 4]] and part.device == device
    assert picked["b"][1][0] is None and type(picked["b"][1]) is tuple
    refused(TypeError, lambda: select([x, 3], np.array([0])), "select: a state holds a int", "rows as first axis")


def test_sums_over_float32_scores_are_kept_in_float64():
    scores = np.array([[0.0, 0.1]], "float32")
    each = -math.log1p(math.exp(-float(scores[0, 1])))
    options = {"stop": 0, "steps": 300}
    [[beam]] = beam_search(lambda ids, state: (scores, state), None, [1], **options, width=1)
    [path] = greedy(lambda ids, state: (scores, state), None, [1], **options)
    assert beam == path and path.log_p == pytest.approx(300 * each, rel=1e-12)


def test_log_probabilities_and_logits_are_the_same_scores():
    toy = Toy(7)
    [before] = search(toy, 3)
    toy.tables += 500
    same(search(toy, 3)[0], before)


@pytest.mark.parametrize("width", [1, 3])
def test_a_step_may_keep_the_ids_that_it_was_given(width):
    """Its state is the symbol before the last, and a table says what comes after two symbols."""
    table = np.random.default_rng(0).standard_normal((V, V, V))

    def step(ids, before):
        return table[before, ids], ids

    def with_copies(ids, before):
        return table[before, ids], ids.copy()

    options = {"stop": STOP, "steps": 6, "width": width, "alpha": 2.0}
    start = np.array([0, 1, 0])
    assert beam_search(step, start, start, **options) == beam_search(with_copies, start, start, **options)


# Bad input


@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_what_makes_no_sense_is_refused(decode):
    toy, name = Toy(0), decode.__name__

    def call(step=toy.step, start=(START,), **options):
        return decode(step, toy.state(), start, **{"stop": STOP, "steps": STEPS} | options)

    def scoring(scores):
        return lambda ids, state: (scores, state)

    refused(TypeError, lambda: call(3), f"{name}: step is a int; expected a function (ids, state) -> (scores, state)")
    refused(TypeError, lambda: call(lambda ids, state: np.zeros((2, V))), "step: it returned a ndarray; expected a pair")
    refused(TypeError, lambda: call(lambda ids, state: (np.zeros((1, V)), 1, 2)), "step: it returned 3 values; expected a pair")
    refused(ValueError, lambda: call(stop=V), "step: its scores for", "of shape", "above the stop symbol 3")
    refused(ValueError, lambda: call(scoring(np.zeros((9, V)))), "step: its scores for", "of shape (9, 3)")
    refused(ValueError, lambda: call(scoring(np.zeros((1, 1, V)))), "step: its scores for", "of shape (1, 1, 3)")
    refused(ValueError, lambda: call(stop=-1), f"{name}: stop is -1")
    refused(ValueError, lambda: call(steps=0), f"{name}: steps is 0")
    refused(ValueError, lambda: call(start=0.5), f"{name}: ids has shape ()")
    for value in (np.nan, np.inf, -np.inf):
        blown = scoring(np.full((4 if decode is beam_search else 1, V), value))
        refused(FloatingPointError, lambda blown=blown: call(blown), f"{name}: the largest log-", "blown up")


def test_a_beam_has_a_width_and_an_alpha():
    refused(ValueError, lambda: search(Toy(0), 0), "beam_search: width is 0")
    refused(ValueError, lambda: search(Toy(0), 2, alpha=-0.1), "beam_search: alpha is -0.1", "from 0 to 10")
    refused(ValueError, lambda: search(Toy(0), 2, alpha=1e5), "beam_search: alpha is 100000.0", "from 0 to 10")


@every_device
def test_a_state_whose_rows_do_not_come_first_is_refused(device):
    """As that of a recurrence, (S, B, H): with as many layers as rows it is found at the second step."""
    for shape, says in (((5, 2), "(5, 2); expected 2 rows"), ((), "(); expected 2 rows"),
                        ((2, 2, 3), "(2, 8, 3); expected 8 rows")):
        def step(ids, state):
            return np.zeros((len(ids), V)), state if state.ndim < 3 else mx.tensor(np.zeros((2, len(ids), 3)), device=device)

        state = mx.tensor(np.zeros(shape), device=device)
        for given in (state, state.array, {"h": [state]}):
            refused(ValueError, lambda given=given, step=step: beam_search(
                lambda ids, s: step(ids, s["h"][0] if isinstance(s, dict) else s), given, [START] * 2,
                stop=STOP, steps=STEPS), f"select: a state has shape {says} as first axis", "state[r] is that of row r")
