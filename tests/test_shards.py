"""The step on threads: the numbers of the step in one piece, the same ones every time, and everything is left as it was found.

Read next: `test_resume.py`, runs that go on.
"""

import threading
from itertools import islice

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import minitx as mx
from minitx import nn, shards
from minitx.backend import to_device, to_host
from minitx.carried import Carried
from minitx.checkpoint import load_arrays, load_run, save_arrays, save_run
from minitx.data import pair_batch, windows
from minitx.data.padding import PADDING
from minitx.models import EncoderDecoder, MaskedLM, Model, RecurrentLM, TransformerLM
from minitx.observer import Observer
from minitx.optim import SGD, Adam
from minitx.runs import Keeper
from minitx.seq2seq import Seq2Seq
from minitx.shards import Shards
from minitx.tensor import tracking
from minitx.training import History, train

from .common import every_device, leaf, refused, same

V, T = 7, 6
LANGUAGE = {
    "rnn": lambda **o: RecurrentLM(V, 4, 5, 2, cell="rnn", **o), "gru": lambda **o: RecurrentLM(V, 4, 5, cell="gru", **o),
    "lstm": lambda **o: RecurrentLM(V, 4, 5, 2, **o), "transformer": lambda **o: TransformerLM(V, 8, 2, 1, T, **o),
    "tied": lambda **o: TransformerLM(V, 8, 2, 1, T, tied=True, positions="rotary", **o),
}
PAIRS = {
    "encoder-decoder": lambda dropout=0.0, **o: EncoderDecoder(V, 8, 2, 1, T, dropout=dropout, **o),
    "additive": lambda **o: Seq2Seq(V, V, 4, 6, attention="additive", **o),
    "multiplicative": lambda **o: Seq2Seq(V, V, 4, 6, 2, attention="multiplicative", cell="lstm", tied=True, **o),
    "no attention": lambda **o: Seq2Seq(V, V, 4, 6, attention="none", cell="rnn", smoothing=0.1, **o),
}
MODELS = {**LANGUAGE, "masked": lambda **o: MaskedLM(V, 8, 2, 1, T, **o), **PAIRS}
PADDED = {"evenly": [0] * 5, "unevenly": [0, 5, 1, 3, 4], "a shard of padding": [0, 2, 6, 6, 6], "nothing else": [6] * 5}


def made(kind, seed=0, device="cpu", **options):
    mx.seed(seed)
    return MODELS[kind](**{"dtype": "float64", **options}).to(device)


def batch_for(kind, padded=(0, 5, 1, 3, 4), seed=0):
    """5 rows for this kind of model, of which so many targets each are padding."""
    rng = np.random.default_rng(seed)
    if kind in PAIRS:
        *parts, targets = pair_batch(*[[rng.integers(3, V, n) for n in rng.permutation(T - 1) + 1] for _ in range(2)], start=1,
                                     stop=2)
    else:
        ids, targets = rng.integers(0, V, (2, 5, T))
        parts = [ids, np.array([6, 3, 1, 5, 2])] if kind == "masked" else [ids]
    targets[np.arange(targets.shape[1]) >= targets.shape[1] - np.array(padded)[:, None]] = PADDING
    return *parts, targets


def back(model, group, threads):
    """The loss, and the gradients by name."""
    for p in model.parameters():
        p.grad = None
    with Shards(model, threads) as sharded:
        return float(sharded.backward(group)), grads(model)


def grads(model):
    return {name: to_host(p.grad).copy() for name, p in model.named_parameters() if p.grad is not None}


def in_one_piece(model, batch):
    for p in model.parameters():
        p.grad = None
    loss = model.loss(*[to_device(part, model.parameters()[0].device) for part in batch])
    loss.backward()
    return loss.item(), grads(model)


def agree(found, expected, tolerance=1e-12):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=tolerance) and gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=0, atol=tolerance, err_msg=name)


class Told(Model):
    """A model of one weight, whose losses are the numbers of the batch; it notes what it is asked, and on which thread."""

    divisible = True

    def __init__(self, see=lambda model, x: None, rng=None):
        self.w, self.dropout, self.see, self.seen = leaf([1.0]), nn.Dropout(0.5, rng=rng), see, []

    def loss(self, *batch):
        x, targets = batch[-2:]
        self.seen.append((threading.get_ident(), x.tolist(), self.see(self, x)))
        counts = targets != PADDING
        return (self.w * np.where(counts, x, 0.0)).sum() * (1 / max(counts.sum(), 1))

    def rows(self):
        """What was asked, row by row, in whatever order the threads came."""
        return sorted(rows for _, rows, _ in self.seen)


def rows(*losses):
    return np.array(losses, float)[:, None], np.ones((len(losses), 1), int)


def learn(model, batches, steps=1, **options):
    return train(model, batches, SGD(model.parameters(), 1.0), steps=steps, clip=None, title=None, **options)


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


# How many


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(shards, "cores", lambda: 4)
    monkeypatch.setattr(shards, "SMALL", 100)


def test_as_many_threads_as_cores_up_to_eight_where_it_pays(many_cores, monkeypatch):
    model = made("transformer")
    assert Shards(model).threads == Shards(MaskedLM(V, 8, 2, 1, T)).threads == 4 and Shards(model, 2).threads == 2
    monkeypatch.setattr(shards, "cores", lambda: 64)
    assert Shards(model).threads == 8 and Shards(model, 9).threads == 9
    assert learn(model, [batch_for("transformer")]).threads == 8
    monkeypatch.setattr(shards, "SMALL", model.count_parameters())
    assert Shards(model).threads == 8
    monkeypatch.setattr(shards, "SMALL", model.count_parameters() + 1)
    assert Shards(model).threads == learn(model, [batch_for("transformer")]).threads == 1
    assert learn(model, [batch_for("transformer")], history=History(threads=3)).threads == 3


def test_one_thread_where_threads_do_not_help_or_would_change_the_numbers(many_cores):
    own = np.random.Generator(np.random.SFC64(0))
    jumping = made("lstm", dropout=0.1, rng=np.random.default_rng(0))
    assert Shards(jumping).threads == 4
    assert Shards(made("lstm", dropout=0.1, rng=own)).threads == 1
    assert Shards(Carried(jumping)).threads == 1
    assert Shards(made("lstm").to("strict")).threads == 1


def test_numbers_that_a_device_draws_are_no_hindrance_to_one_thread():
    class OnDevice:
        bit_generator = None

    model = made("lstm").to("strict")
    model.dropout.rng = OnDevice()
    assert Shards(model).threads == Shards(model, 1).threads == 1
    refused(ValueError, lambda: Shards(model, 2), "dropout.rng come from a device", "with a NumPy generator")


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_no_number_of_threads(threads):
    model = made("rnn")
    refused(ValueError, lambda: learn(model, [], threads=threads), f"train: threads is {threads!r}; expected a whole number of")
    refused(ValueError, lambda: Shards(model, threads), f"Shards: threads is {threads!r}; expected a whole number")


def test_what_cannot_be_shared_out_is_refused_in_a_sentence():
    model, sfc = made("rnn"), np.random.Generator(np.random.SFC64(0))
    refused(ValueError, lambda: learn(Carried(model), [], threads=2), "Shards: a Carried reads a batch as a whole",
            "its rows cannot go to 2 threads; give threads=1, or None")
    assert Shards(Carried(model), 1).threads == 1
    refused(ValueError, lambda: Shards(made("rnn", dropout=0.1, rng=sfc), 2), "Shards: the model draws from a SFC64",
            "on 2 threads; build it with np.random.default_rng(seed), or give threads=1")


# Who looks on


class Shapes(Observer):
    def __init__(self):
        self.shapes = []

    def output(self, op, arrays, outputs):
        self.shapes += [arrays[0].shape] if op.name == "cross_entropy" else []


def test_onlookers_see_whole_batches():
    model, batches = made("transformer"), [batch_for("transformer")] * 3
    with mx.profile() as p, mx.observe(Shapes()) as seen:
        learn(model, batches, 3, threads=2)
    assert p.rows["cross_entropy"].calls == 3 and seen.shapes == [(5, T, V)] * 3


def test_recorded_steps_are_computed_in_one_piece_and_the_run_is_the_same_up_to_rounding():
    def run(threads, every=None):
        model = made("gru")
        record = mx.record(model, norms=True, every=every) if every else None
        history = learn(model, [batch_for("gru", seed=n) for n in range(5)], 5, threads=threads, record=record)
        return model.state_dict(), history
    state, expected = run(1)
    recorded, history = run(2, every=2)
    assert history.loss == pytest.approx(expected.loss, rel=1e-12) and list(history.recorded) == [0, 2, 4]
    for name, weight in state.items():
        np.testing.assert_allclose(recorded[name], weight, rtol=0, atol=1e-12)
    assert history.recorded[0] == run(1, every=2)[1].recorded[0]

    model = Told()
    learn(model, [rows(1, 2)] * 3, 3, threads=2, record=mx.record(model, norms=True, every=2))
    assert [len(rows) for _, rows, _ in model.seen] == [2, 1, 1, 2], "the others are shared out as ever"


# What is set reaches every thread, and everything is left as it was


def blas_threads():
    [count] = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return count


def test_what_is_set_outside_is_set_in_every_thread():
    model = Told(lambda model, x: (np.geterr()["divide"], tracking.get()))
    with Shards(model, 3) as sharded:
        with np.errstate(divide="print"):
            sharded.backward([rows(1, 2, 3)])
        assert [seen for _, _, seen in model.seen] == [("print", True)] * 3
        model.seen.clear()
        with mx.no_grad():
            refused(RuntimeError, lambda: sharded.backward([rows(1, 2, 3)]), "backward: nothing here requires a gradient")
        assert [seen[1] for _, _, seen in model.seen] == [False] * 3


def test_each_thread_has_one_blas_thread_and_the_process_has_its_own_again_afterwards():
    model = Told(lambda model, x: blas_threads())
    with threadpool_limits(2, "blas"), Shards(model, 2) as sharded:
        sharded.backward([rows(1, 2)])
        assert [seen for _, _, seen in model.seen] == [1, 1] and blas_threads() == 2
        model.seen.clear()
        sharded.backward([rows(1)])
        assert model.seen[0][2] == 2, "alone, a thread has all of BLAS"


class Failing(Told):
    """Fails at a negative number, with this error, after all shards have begun."""

    def __init__(self, error, threads):
        super().__init__()
        self.error, self.begun, self.done = error, threading.Barrier(threads), []

    def loss(self, x, targets):
        self.begun.wait(10)
        if x.min() < 0:
            raise self.error
        threading.Event().wait(0.02)                    # the others are slower than the one that fails
        self.done.append(x.tolist())
        return super().loss(x, targets)


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), KeyboardInterrupt(), SystemExit(3)],
                         ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("losses", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_an_error_in_one_thread_comes_out_when_all_have_ended(losses, error):
    model, running, before = Failing(error, 3), threading.active_count(), blas_threads()
    with Shards(model, 3) as sharded:
        with pytest.raises(type(error)) as raised:
            sharded.backward([rows(*losses)])
        assert raised.value is error and len(model.done) == 2 and blas_threads() == before and model.w.grad is None
    assert threading.active_count() == running
    with pytest.raises(type(error)):
        learn(model, [rows(*losses)], threads=3)
    assert model.w.item() == 1 and threading.active_count() == running


@pytest.mark.parametrize("kind, part", [("lstm", 0), ("transformer", 0), ("transformer", 1), ("multiplicative", 2)])
def test_a_bad_id_in_the_last_row_is_told_as_ever_and_nothing_moves(kind, part):
    batch = batch_for(kind, [0] * 5)
    batch[part][-1, 0] = 99

    def told(threads):
        model = made(kind)
        before, running = {n: a.copy() for n, a in model.state_dict().items()}, threading.active_count()
        with pytest.raises(IndexError) as raised:
            learn(model, [batch], threads=threads)
        assert same(model.state_dict(), before) and threading.active_count() == running
        return str(raised.value)
    sentence, [what, called] = told(1), told(2).split("; called with ")
    assert sentence.startswith(what) and "99" in what and "\n" not in called


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_in_one_shard_is_told_as_ever(value, place):
    losses = [1.0] * 4
    losses[place] = value

    def told(threads):
        model = Told()
        with pytest.raises(FloatingPointError) as raised:
            learn(model, [rows(*losses)], threads=threads)
        assert model.w.item() == 1
        return str(raised.value)
    assert told(2) == told(1) and f"the loss is {value}" in told(2)
    model = Told()
    history = learn(model, [rows(*losses), rows(1, 2)], 2, threads=2, on_nonfinite="record")
    assert [step for step, _ in history.events] == [0] and model.w.item() == 1 - 1.5
