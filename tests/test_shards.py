"""The step on threads: the numbers of the step in one piece, and the same ones every time.

Read next: `test_shard_threads.py`, how many threads there are, and what they leave behind.
"""

import threading
from itertools import islice

import numpy as np
import pytest

import minitx as mx
from minitx.backend import to_device
from minitx.checkpoint import load_arrays, load_run, save_arrays, save_run
from minitx.data import windows
from minitx.data.padding import PADDING
from minitx.models import Model
from minitx.optim import SGD, Adam
from minitx.runs import Keeper
from minitx.shards import Shards
from minitx.training import History, train

from .common import every_device, leaf, refused, same
from .sharding import MODELS, PADDED, T, Told, V, agree, back, batch_for, in_one_piece, made, rows

# The same numbers as in one piece


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kind", MODELS)
def test_shards_find_the_loss_and_the_gradients_of_the_whole_batch(kind, threads):
    model = made(kind)
    agree(back(model, [batch_for(kind)], threads), in_one_piece(model, batch_for(kind)))


@pytest.mark.parametrize("padded", PADDED.values(), ids=PADDED)
@pytest.mark.parametrize("kind", ["lstm", "transformer", "masked"])
def test_every_symbol_counts_the_same_wherever_the_padding_is(kind, padded):
    model, batch = made(kind), batch_for(kind, padded)
    found = back(model, [batch], 3)
    agree(found, in_one_piece(model, batch))
    assert (found[0] == 0) == (found[1].keys() == {n for n, g in found[1].items() if not g.any()}) == (padded == [6] * 5)


@every_device
@pytest.mark.parametrize("kind", ["gru", "transformer", "masked", "multiplicative"])
def test_a_group_of_batches_is_one_batch_on_every_device(kind, device):
    model, group = made(kind, device=device), [batch_for(kind, seed=1), batch_for(kind, [6, 6, 2, 6, 6], seed=2)]
    expected = back(model, group, 1)
    agree(back(model, group, 2), expected)
    agree(back(model, [tuple(to_device(part, device) for part in batch) for batch in group], 3), expected)
    counts = [int((batch[-1] != PADDING).sum()) for batch in group]
    pieces = [in_one_piece(model, batch) for batch in group]
    mean = {n: sum(c * p[1][n] for c, p in zip(counts, pieces)) / sum(counts) for n in expected[1]}
    agree(expected, (sum(c * p[0] for c, p in zip(counts, pieces)) / sum(counts), mean))


def test_rows_go_in_order_to_one_thread_each_the_larger_parts_first():
    model = Told()
    back(model, [rows(1, 2, 3, 4, 5)], 3)
    assert model.rows() == [[[1], [2]], [[3], [4]], [[5]]] and model.w.grad == [3]
    assert {rows[0][0]: thread == threading.get_ident() for thread, rows, _ in model.seen} == {1: True, 3: False, 5: False}
    for threads, parts in (1, 1), (2, 2), (4, 4), (5, 5), (9, 5):
        model.seen.clear()
        back(model, [rows(1, 2, 3, 4, 5)], threads)
        assert len(model.seen) == parts


def test_a_shard_of_padding_alone_is_not_computed():
    model, (x, targets) = Told(), rows(1, 2, 3, 4)
    targets[:2] = PADDING
    back(model, [(x, targets)], 2)
    assert model.rows() == [[[3], [4]]] and model.w.grad == [3.5]


@pytest.mark.parametrize("first", [np.array(2.0), np.ones(3), np.ones((0, 2))], ids=["a number", "other rows", "no rows"])
def test_a_batch_whose_arrays_have_no_rows_in_common_goes_in_one_piece(first):
    model, (x, targets) = Told(), rows(1, 2, 3, 4)
    back(model, [(first, x, targets)], 2)
    back(model, [(first, x[:0], targets[:0])], 2)
    assert [len(rows) for _, rows, _ in model.seen] == [4, 0]


@pytest.mark.parametrize("threads", [1, 3])
def test_it_tells_how_many_symbols_the_group_had(threads):
    with Shards(made("masked"), threads) as sharded:
        sharded.backward([batch_for("masked", padded) for padded in ([0, 5, 1, 3, 4], [6, 6, 2, 6, 6])])
        assert sharded.symbols == 17 + 4
        sharded.backward([batch_for("masked", [6] * 5)])
        assert sharded.symbols == 0


def test_single_numbers_go_in_one_piece():
    model = Told()
    assert back(model, [(np.array(3.0), np.array(1))], 2)[0] == 3 and len(model.seen) == 1


def test_gradients_are_added_to_those_that_are_there_and_belong_to_nobody_else():
    model = Told()
    model.w.grad = given = np.array([10.0])
    with Shards(model, 2) as sharded:
        sharded.backward([rows(1, 3)])
        assert model.w.grad == [12] and given == [10]
        sharded.backward([rows(1, 3), rows(5, 5)])
    assert model.w.grad == [15.5]


class Sum(Model):
    divisible = True

    def __init__(self):
        self.a, self.b = leaf([1.0]), leaf([1.0])

    def loss(self, x, targets):
        return (self.a + self.b).sum()


@pytest.mark.parametrize("threads", [1, 2])
def test_two_parameters_with_equal_gradients_have_one_array_each(threads):
    model = Sum()
    back(model, [rows(1, 2)], threads)
    assert model.a.grad == model.b.grad == [1] and not np.shares_memory(model.a.grad, model.b.grad)


def test_a_batch_of_padding_alone_has_no_share_whatever_its_loss():
    model, padding = Sum(), rows(1, 2)[1] * 0 + PADDING
    assert back(model, [rows(1, 2), (rows(1, 2)[0], padding)], 2)[0] == 2 and model.a.grad == 1
    assert back(model, [(rows(1, 2)[0], padding)], 2)[0] == 0 == model.a.grad


class Branches(Model):
    """One parameter for positive rows and one for others; one is frozen, one unused, and one made at every call."""

    divisible = True

    def __init__(self):
        self.plus, self.minus, self.unused = leaf([1.0]), leaf([1.0]), leaf([1.0])
        self.frozen, self.made = mx.tensor([2.0], dtype="float64"), []

    def loss(self, x, targets):
        self.made.append(made := leaf([1.0]))
        w = self.plus if x[0, 0] > 0 else self.minus
        return (w * self.frozen * made * x).sum() * (1 / x.size)


def test_a_parameter_that_one_shard_uses_has_the_gradient_of_that_one():
    model = Branches()
    assert back(model, [rows(3, 5, -1, -2)], 2)[0] == pytest.approx(2.5)
    assert (model.plus.grad, model.minus.grad, model.unused.grad, model.frozen.grad) == ([4], [-1.5], None, None)
    assert sorted(made.grad.item() for made in model.made) == [-1.5, 4], "each leaf has its own"


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_frozen_parameters_stay_without_gradient(kind):
    model = made(kind)
    for p in model.parameters()[::2]:
        p.requires_grad = False
    found = back(model, [batch_for(kind)], 2)
    assert len(found[1]) == len(model.parameters()) // 2
    agree(found, in_one_piece(model, batch_for(kind)))


@pytest.mark.parametrize("dtype, tolerance", [("float16", 4e-3), ("float32", 1e-6)])
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_gradients_keep_the_width_of_their_parameters(kind, dtype, tolerance):
    model = made(kind, dtype=dtype)
    found = back(model, [batch_for(kind)], 2)
    agree(found, in_one_piece(model, batch_for(kind)), tolerance)
    assert {str(gradient.dtype) for gradient in found[1].values()} == {dtype}


# The same numbers every time


def after(kind, threads, steps=5, own=False, **options):
    """The state after some steps with dropout, the losses, and the next number of each stream."""
    rng = np.random.default_rng(5) if own else None
    model = made(kind, dropout=0.3, dtype="float32", rng=rng)
    batches = [batch_for(kind, seed=n) for n in range(2 * steps)]
    history = train(model, batches, Adam(model.parameters(), 0.05), steps=steps, threads=threads, title=None, **options)
    streams = [rng] if own else list(mx.randomness.generators(model).values())
    return model.state_dict(), history.loss, [stream.random() for stream in streams]


@pytest.mark.parametrize("own", [False, True], ids=["shared stream", "own generator"])
@pytest.mark.parametrize("kind", ["lstm", "transformer", "masked", "encoder-decoder", "multiplicative"])
def test_the_same_number_of_threads_gives_the_same_bits(kind, own):
    state, losses, draws = after(kind, 2, own=own, accumulate=2, clip=0.5)
    again, same_losses, same_draws = after(kind, 2, own=own, accumulate=2, clip=0.5)
    assert same(state, again) and losses == same_losses and draws == same_draws
    assert after(kind, 1, own=own, accumulate=2, clip=0.5)[1] != losses, "with one thread, dropout draws other numbers"


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.MT19937])
def test_each_shard_drops_with_numbers_of_its_own_so_many_jumps_ahead(bits):
    own = np.random.Generator(bits(3))
    model = Told(lambda model, x: model.dropout.mask((2, 50), "cpu"), own)
    for _ in range(2):                                                      # the second from where the first stream is then
        masks = [np.random.Generator(own.bit_generator.jumped(k)).random((2, 50), "float32") >= 0.5 for k in (1, 2)]
        follows = np.random.Generator(type(own.bit_generator)())
        follows.bit_generator.state = own.bit_generator.state
        masks.insert(0, follows.random((2, 50), "float32") >= 0.5)
        model.seen.clear()
        back(model, [rows(1, 2, 3, 4, 5, 6)], 3)
        for _, [[first], _], mask in model.seen:
            np.testing.assert_array_equal(mask, masks[int(first) // 2])
        assert len({mask.tobytes() for mask in masks}) == 3
        assert own.random() == follows.random(), "what the shards drew from is the stream of the first, and no other"


def test_a_seed_that_is_set_anew_in_the_middle_of_a_run_holds_for_all_shards():
    model = Told(lambda model, x: (model.dropout.mask((1, 50), "cpu"), mx.randomness.stream().random()))
    with Shards(model, 2) as sharded:
        mx.seed(1)
        expected = [np.random.Generator(np.random.PCG64(1)), np.random.Generator(np.random.PCG64(1).jumped(1))]
        sharded.backward([rows(1, 2)])
    for _, [[row]], (mask, drawn) in model.seen:
        rng = expected[int(row) - 1]
        np.testing.assert_array_equal(mask, rng.random((1, 50), "float32") >= 0.5)
        assert drawn == rng.random(), "and so it does for those who draw from the shared stream themselves"


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_run_on_threads_goes_on_bit_for_bit_with_as_many(kind, at, tmp_path):
    ids = np.random.default_rng(0).integers(0, V, 200)

    def run(place, until, resume=False, seed=0, threads=2):
        model = made(kind, seed, dropout=0.3, rng=np.random.default_rng(seed) if kind == "lstm" else None)
        keeper = Keeper(tmp_path / place, model, Adam(model.parameters(), 0.05), config={}, every=100)
        history = keeper.start(resume)
        with keeper:
            train(model, islice(windows(ids, 5, T, np.random.default_rng(0)), 2 * len(history.loss), None), keeper.optimizer,
                  steps=until, accumulate=2, clip=0.5, history=history, after_step=keeper, threads=threads, title=None)
        return model.state_dict(), history

    whole, expected = run("whole", 6)
    run("broken", at)
    state, history = run("broken", 6, resume=True, seed=9, threads=None)     # so small a model would get one
    assert same(state, whole) and history.loss == expected.loss and history.grad_norm == expected.grad_norm
    assert history.threads == expected.threads == 2
    run("broken", at)
    assert run("broken", 6, resume=True, threads=1)[1].threads == 1, "what is asked for goes first"


def test_a_checkpoint_knows_the_number_of_threads_and_one_of_old_does_not(tmp_path):
    model, place = made("rnn"), tmp_path / "run"
    optimizer = SGD(model.parameters(), 0.1)
    for threads in (3, None):
        save_run(place, model, optimizer, History(threads=threads), config={})
        assert load_run(place, model, optimizer, config={}).history.threads == threads
    arrays, about = load_arrays(place)
    del about["threads"]
    save_arrays(place, arrays, about)
    assert load_run(place, model, optimizer, config={}).history.threads is None
    for wrong in (0, "2", 2.0, True):
        save_arrays(place, arrays, {**about, "threads": wrong})
        refused(ValueError, lambda: load_run(place, model, optimizer, config={}), f"tells of {wrong!r} threads", "another")
