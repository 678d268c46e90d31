"""Training and evaluation: the loss falls, a seed decides everything, trouble is told with its step and a remedy."""

import io
import math
import re
import sys

import numpy as np
import pytest

import minitx as mx
from minitx import ops
from minitx.clipping import clip_grad_norm
from minitx.data import Vocabulary, sequential, windows
from minitx.history import History
from minitx.models import RecurrentLM, TransformerLM
from minitx.optim import SGD, Adam
from minitx.schedules import warmup_cosine
from minitx.training import evaluate, train

from .common import every_device, leaf, refused

TEXT = "the cat sat on the mat, and the rat sat on the cat. " * 20
VOCABULARY = Vocabulary.of(TEXT)
IDS, V, T = VOCABULARY.encode(TEXT), len(VOCABULARY), 12
MODELS = {
    "rnn": lambda: RecurrentLM(V, 8, 24, cell="rnn"),
    "lstm": lambda: RecurrentLM(V, 8, 16, dropout=0.1),
    "transformer": lambda: TransformerLM(V, D=16, N=2, L=1, T=T, dropout=0.1),
}
every_model = pytest.mark.parametrize("kind", MODELS)


def trained(kind, steps, device="cpu", **options):
    mx.seed(0)
    model = MODELS[kind]().to(device)
    batches = windows(IDS, 4, T, np.random.default_rng(0))
    return model, train(model, batches, Adam(model.parameters(), 1e-2), steps=steps, **options)


# Training


@every_model
def test_training_lowers_the_loss_and_the_history_tells_it(kind):
    schedule = warmup_cosine(1e-2, total=120, warmup=10)
    model, history = trained(kind, 120, schedule=schedule, clip=0.1)
    assert history.loss[0] == pytest.approx(math.log(V), rel=0.05)
    assert max(history.smooth_bits(), evaluate(model, sequential(IDS, 8, T))) < 0.6 * history.bits[0]
    assert history.lr == [schedule(step) for step in range(120)]
    assert len(history.loss) == len(history.grad_norm) == 120 and history.symbols == 120 * 4 * T and history.seconds > 0
    assert min(history.grad_norm) > 0.1, "the norm before clipping"
    np.testing.assert_allclose(history.bits, np.array(history.loss) / np.log(2))


@every_model
def test_a_seed_gives_the_same_history_bit_for_bit_again_and_but_for_rounding_on_another_device(kind):
    (model, first), (again, history), (_, elsewhere) = (trained(kind, 8, device) for device in ("cpu", "cpu", "strict"))
    assert (history.loss, history.grad_norm) == (first.loss, first.grad_norm)
    for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert np.array_equal(a, b)
    np.testing.assert_allclose(elsewhere.loss, first.loss, rtol=1e-5)        # another library adds up in another order
    np.testing.assert_allclose(elsewhere.grad_norm, first.grad_norm, rtol=1e-5)


@pytest.mark.parametrize("clip", [0.1, None])
def test_training_is_no_more_than_this_loop(clip):
    def fresh():
        mx.seed(0)
        model = MODELS["lstm"]().eval()
        return model, SGD(model.parameters(), 0.5), windows(IDS, 4, T, np.random.default_rng(0), steps=3)

    model, optimizer, batches = fresh()
    history = train(model, batches, optimizer, steps=3, clip=clip)
    assert model.training, "with dropout"
    by_hand, optimizer, batches = fresh()
    by_hand.train()
    for (x, y), loss_was, norm_was in zip(batches, history.loss, history.grad_norm, strict=True):
        by_hand.zero_grad()
        loss = by_hand.loss(x, y)
        loss.backward()
        norm = clip_grad_norm(by_hand.parameters(), clip or math.inf)
        optimizer.step()
        assert (loss.item(), norm) == (loss_was, norm_was) and norm > 0.1
    assert all(np.array_equal(p.array, q.array) for p, q in zip(model.parameters(), by_hand.parameters(), strict=True))


def test_training_takes_just_as_many_batches_as_it_has_steps():
    batches = windows(IDS, 2, T, np.random.default_rng(0), steps=5)
    model = MODELS["rnn"]()
    train(model, batches, SGD(model.parameters(), 0.1), steps=3)
    assert len(list(batches)) == 2
    refused(ValueError, lambda: train(model, windows(IDS, 2, T, np.random.default_rng(0), steps=2),
                                      SGD(model.parameters(), 0.1), steps=3), "the batches ended after 2 of 3 steps")


@mx.op("x -> y")
def ill(x, *, value, slope):
    """A loss times `value`, whose gradient is `slope`."""
    return x * value, lambda dy: dy * slope


class Ill(RecurrentLM):
    """Falls ill at its third loss."""

    value, slope, losses = 1.0, 1.0, 0

    def loss(self, ids, targets):
        self.losses += 1
        loss = super().loss(ids, targets)
        return ill(loss, value=self.value, slope=self.slope) if self.losses == 3 else loss


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("value, slope, says", [
    (math.nan, 1.0, "train: step 2: the loss is nan"),
    (math.inf, 1.0, "train: step 2: the loss is inf"),
    (1.0, math.nan, "train: step 2: clip_grad_norm: the gradient of tokens.table is not finite"),
])
def test_numbers_that_are_not_finite_stop_training_with_step_and_remedy_and_change_nothing(value, slope, says, clip):
    def run(steps, **sick):
        mx.seed(0)
        model = Ill(V, 4, 5)
        vars(model).update(sick)
        batches = windows(IDS, 2, T, np.random.default_rng(0))
        return model, lambda: train(model, batches, SGD(model.parameters(), 0.1), steps=steps, clip=clip)

    healthy, go = run(2)
    go()
    model, go = run(9, value=value, slope=slope)
    refused(FloatingPointError, go, says, "nothing was changed", "lower the learning rate")
    for path, p in healthy.named_parameters():
        assert np.array_equal(p.array, model.state_dict()[path])


class Penalised(RecurrentLM):
    """Its loss knows a parameter that is none of its own."""

    def __init__(self, penalty):
        super().__init__(V, 4, 5)
        self.penalty = penalty

    def loss(self, *batch):
        return super().loss(*batch) + self.penalty()


@pytest.mark.parametrize("limit", [math.inf, 0.1])
def test_a_step_measures_and_clips_what_the_optimizer_moves_and_nothing_else(limit):
    batch, outside = next(windows(IDS, 4, T, np.random.default_rng(0))), leaf([1.0, 1.0], "float32")
    model = Penalised(outside.sum)
    model.loss(*batch).backward()
    moved, still = [model.head.W, outside], model.head.b.grad
    norm, before = clip_grad_norm(moved, math.inf), [p.numpy() for p in moved]
    history = train(model, [batch] * 4, SGD(moved, 1e-3), steps=4, clip=limit)
    np.testing.assert_allclose(history.grad_norm, [norm] * 4, rtol=1e-3)
    np.testing.assert_allclose(model.head.b.grad, still, atol=1e-3, err_msg="nothing is added up from step to step")
    way = math.sqrt(sum(((p.numpy() - was) ** 2).sum() for p, was in zip(moved, before)))
    assert way == pytest.approx(4e-3 * min(limit, norm), rel=1e-2)


def test_a_gradient_that_is_not_finite_stops_the_optimizer_that_moves_its_parameter_and_no_other():
    batch, outside = next(windows(IDS, 4, T, np.random.default_rng(0))), leaf([1.0, 1.0], "float32")
    model = Penalised(lambda: ill(outside.sum(), value=1.0, slope=math.nan))
    assert train(model, [batch], SGD(model.parameters(), 0.1), steps=1).trouble() == {}
    refused(FloatingPointError, lambda: train(model, [batch], SGD([model.head.W, outside], 0.1), steps=1),
            "train: step 0: clip_grad_norm: the gradient of parameter 1 is not finite, and nothing was changed")


def test_an_optimizer_that_moves_nothing_of_the_model_is_refused():
    model = Penalised(lambda: 0.0)
    refused(ValueError, lambda: train(model, [], SGD([leaf([1.0])], 0.1), steps=1), "train: the SGD moves no parameter of this "
            "Penalised", "model.parameters()")


# Trouble


@pytest.mark.parametrize("loss, grad_norm, trouble", [
    ([], [], {}),
    ([4, 3, 2], [1, 1, 1], {}),
    ([4, 3, math.nan], [1, 1, math.nan], {"loss": 2}),
    ([math.inf, 3], [math.nan, 1], {"loss": 0}),
    ([math.nan, 9], [math.nan, 1], {"loss": 0}),                                    # no first loss to compare with
    ([4, 3, 3, 3], [1, math.inf, 1, math.nan], {"gradient": 1}),
    ([4, 9, 3, 3, 3, 3, 3], [1] * 7, {}),                                           # it came back
    ([4, 3, 3, 3, 3, 3, 8, 3, 3, 8, 3], [1] * 11, {"diverged": 6}),                 # the last five: 5 on average
    ([4, 4.4], [1, 1], {}),
    ([4, 4, 5, 4, 5, 4, 5, 5], [1] * 8, {"diverged": 2}),
    ([4, 9, 3, 9, 9, 9, 9, math.nan], [1] * 7 + [math.nan], {"diverged": 1, "loss": 7}),
    ([4, 9, 9, 9, math.nan], [math.nan, 1, 1, 1, math.nan], {"gradient": 0, "diverged": 1, "loss": 4}),
])
def test_a_history_tells_three_kinds_of_trouble_apart_and_which_came_first(loss, grad_norm, trouble):
    found = History(loss=loss, grad_norm=grad_norm).trouble()
    assert list(found.items()) == list(trouble.items())


@pytest.mark.parametrize("sick, event", [({"value": math.nan}, "loss"), ({"slope": math.nan}, "gradient")])
def test_recorded_trouble_has_its_step(sick, event):
    model = Ill(V, 4, 5)
    vars(model).update(sick)
    history = train(model, windows(IDS, 2, T, np.random.default_rng(0)), SGD(model.parameters(), 0.1), steps=5,
                    on_nonfinite="record")
    assert history.trouble() == {event: 2} and [step for step, _ in history.events] == [2] and len(history.loss) == 5


# Progress


@pytest.mark.parametrize("steps, lines", [(1, 1), (7, 7), (50, 20), (130, 20)])
def test_a_log_gets_about_twenty_readable_lines(steps, lines, capsys):
    trained("rnn", steps, title="my run")
    out, err = capsys.readouterr()
    assert out == "" and "\r" not in err and len(err.splitlines()) == lines
    line = rf"my run  step (\d+)/{steps}  loss \d\.\d\d\d  \d\.\d\d\d bits/symbol  \|grad\| \d+\.\d\d  [\d,]+ tokens/s"
    counts = [int(re.fullmatch(line, text)[1]) for text in err.splitlines()]
    assert counts == sorted(counts) and counts[-1] == steps


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stderr", [Terminal, io.StringIO])
def test_without_a_title_nothing_is_said(stderr, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr())
    trained("rnn", 3, title=None)
    assert sys.stderr.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    trained("rnn", 3, title="my run")
    last = sys.stderr.getvalue().split("\r")[-1]
    assert re.search(r"my run: 100%\|.*3/3 .*loss \d\.\d{3}  \d\.\d{3} bits/symbol", last) and last.endswith("\n")


# Evaluation


@every_device
def test_evaluation_counts_each_symbol_once(device):
    mx.seed(0)
    model, ids = MODELS["lstm"]().to(device), IDS[:200]
    batches = list(sequential(ids, 3, T))
    assert len({x.shape for x, _ in batches}) == 3, "the last batches are smaller"
    model.eval()
    nats = [ops.cross_entropy(model(mx.tensor(x, device=device)), mx.tensor(y, device=device), reduction="sum").item()
            for x, y in batches]
    model.train()
    bits = evaluate(model, batches)
    assert bits == pytest.approx(sum(nats) / 199 / math.log(2), rel=1e-6)
    assert bits == evaluate(model, batches), "dropout is off"


def test_evaluation_tracks_nothing():
    class Noting(RecurrentLM):
        def loss(self, ids, targets):
            loss = super().loss(ids, targets)
            noted.append((loss.requires_grad, self.training))
            return loss

    noted = []
    evaluate(Noting(V, 4, 5), sequential(IDS[:40], 3, T))
    assert set(noted) == {(False, False)}


def test_evaluation_puts_the_mode_back_also_after_an_error():
    model = MODELS["lstm"]()
    for mode in (True, False):
        model.train(mode)
        evaluate(model, sequential(IDS[:50], 3, T))
        for nothing in ([], [(IDS[None], 0 * IDS[None] - 100)] * 2):
            refused(ValueError, lambda batches=nothing: evaluate(model, batches), "evaluate: there was no batch with a symbol",
                    "not all padding")
        refused(IndexError, lambda: evaluate(model, [(IDS[None] + V, IDS[None])]), "embedding: ids must be")
        assert {module.training for _, module in model.named_modules()} == {mode}
