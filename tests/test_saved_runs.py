"""Saved runs: all that a run needs comes back, what does not fit is named, and then nothing changes.

Read next: `test_resume.py`, runs that go on.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitx as mx
from minitx import checkpoint, randomness
from minitx.checkpoint import load_arrays, load_run, save_arrays, save_run
from minitx.models import RecurrentLM
from minitx.optim import SGD, Adam, AdamW
from minitx.training import History

from .common import every_device, leaf, refused, same


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def a_run(optimizer=Adam, model=RecurrentLM, steps=3, device="cpu", **options):
    """A small model and its optimiser, some steps trained."""
    model = model(5, 4, 3, **options).to(device)
    optimizer = optimizer(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(mx.tensor([[1, 2]], device=device), mx.tensor([[2, 3]], device=device)).backward()
        optimizer.step()
    return model, optimizer


HISTORY = History([2.0, np.nan], [1.0, np.inf], [0.1, 0.05], [8, 16], [0.5, 1.5], [(1, "the loss is nan")])
CONFIG = {"lr": 0.1, "sizes": (1, 2)}


def state(model, optimizer):
    return {**model.state_dict(), **{f"optimizer {n}": a for n, a in optimizer.state_dict().items()}}


@every_device
@pytest.mark.parametrize("optimizer", [lambda p, lr: SGD(p, lr), lambda p, lr: SGD(p, lr, momentum=0.9), Adam, AdamW],
                         ids=["SGD", "momentum", "Adam", "AdamW"])
@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"dtype": "float64"}, {"dropout": 0.5, "rng": "own"}],
                         ids=["float16", "float64", "dropout"])
def test_a_run_comes_back_whole(optimizer, options, device, folder):
    def fresh(seed, steps):
        mx.seed(seed)
        own = {"rng": np.random.Generator(np.random.MT19937(seed))} if "rng" in options else {}
        return a_run(optimizer, steps=steps, device=device, **{**options, **own})

    model, opt = fresh(0, 3)
    randomness.stream().random(3, dtype="float32")                             # the second half of a draw is kept for later
    extra, history = {"h": np.ones((2, 3))}, HISTORY
    opt.lr = 0.07
    save_run(folder / "run", model, opt, history, config=CONFIG, extra=extra)
    draws = [g.random(5, dtype="float32").tolist() for g in checkpoint.generators(model).values()]

    other, another = fresh(1, 1)
    resumed = load_run(folder / "run", other, another, config=CONFIG)
    assert same(state(model, opt), state(other, another)) and another.lr == 0.07
    assert repr(resumed.history) == repr(history), "NaN too"
    assert same(resumed.extra, extra) and resumed.extra["h"].flags.writeable and resumed.remarks == []
    assert [g.random(5, dtype="float32").tolist() for g in checkpoint.generators(other).values()] == draws
    assert all(p.device == device for p in other.parameters())


def test_random_numbers_that_a_device_draws_are_refused_when_saving(folder):
    class OnDevice:
        bit_generator = None

    model, optimizer = a_run()
    model.dropout.rng = OnDevice()
    refused(ValueError, lambda: save_run(folder / "run", model, optimizer, HISTORY, config={}),
            "dropout.rng come from a device", "build the module with a NumPy generator")


def test_a_state_in_other_circumstances_is_taken_with_a_remark(folder, monkeypatch):
    model, optimizer = a_run()
    monkeypatch.setattr(checkpoint, "environment", lambda model: {"BLAS threads": 8, "device": "cpu"})
    save_run(folder / "run", model, optimizer, HISTORY, config={})
    monkeypatch.setattr(checkpoint, "environment", lambda model: {"BLAS threads": 1, "device": "cpu"})
    [remark] = load_run(folder / "run", *a_run(), config={}).remarks
    assert remark.startswith("BLAS threads was 8 and is 1 now, so the rest may agree only nearly")


# What does not fit


def damaged(folder, change):
    """The path of a checkpoint of a_run(), whose digest is right, after `change(arrays, about)`."""
    mx.seed(0)
    save_run(folder / "good", *a_run(), HISTORY, config=CONFIG)
    arrays, about = load_arrays(folder / "good")
    change(arrays, about)
    save_arrays(folder / "damaged", arrays, about)
    return folder / "damaged"


def nothing_changes(path, *says, config=CONFIG, **options):
    """load_run refuses, says so, and leaves everything as it was."""
    model, optimizer = a_run(**options)
    before, numbers = state(model, optimizer), randomness.stream().bit_generator.state
    refused(ValueError, lambda: load_run(path, model, optimizer, config=config), f"checkpoint: {str(path)!r} ", *says)
    assert same(state(model, optimizer), before) and optimizer.lr == 0.01 and randomness.stream().bit_generator.state == numbers


PARTS = ["config", "environment", "lr", "optimizer", "random"]


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(part, folder):
    nothing_changes(damaged(folder, lambda arrays, about: about.pop(part)), f"lacks its part {part};")
    nothing_changes(damaged(folder, lambda arrays, about: about.update({part: None})), f"lacks its part {part};")


@pytest.mark.parametrize("name, says", [
    ("model.head.W", "missing: head.W; unknown: none"), ("optimizer.counts", "lacks the counts of 6 parameters"),
    ("optimizer.v.2", "Adam: the saved state has other names; missing: v.2; unknown: none"),
    ("history.lr", "lacks its history of lr"), ("history.events", "lacks its history of events"),
])
def test_a_missing_array_is_named(name, says, folder):
    nothing_changes(damaged(folder, lambda arrays, about: arrays.pop(name)), says)


def put(name, array):
    return lambda arrays, about: arrays.update({name: np.array(array)})


@pytest.mark.parametrize("change, says", [
    (put("model.more", [1.0]), "missing: none; unknown: more"),
    (put("model.head.b", np.zeros(4, "f4")), "head.b has shape (5,) here and (4,)"),
    (put("model.head.b", np.zeros(5)), "has head.b in float64, and the model in float32"),
    (put("optimizer.m.5", np.zeros(4, "f4")), "saved m.5 is float32 of shape (4,), and the parameter is float32 of shape (5,)"),
    (put("optimizer.m.5", np.zeros(5, "i4")), "the saved m.5 is int32"), (put("optimizer.m.7", [0]), "unknown: m.7"),
    (put("optimizer.q.0", [0]), "unknown: q.0"), (put("optimizer.m.-1", [0]), "unknown: m.-1"),
    (put("optimizer.counts", 3), "lacks the counts"), (put("optimizer.counts", [1, 2]), "lacks the counts"),
    (put("optimizer.counts", np.full(6, -1)), "lacks the counts"), (put("optimizer.counts", np.ones(6)), "lacks the counts"),
    (put("history.loss", [1.0]), "a history whose parts do not fit"), (put("history.lr", [[1.0, 2.0]]), "history of lr"),
    (put("history.symbols_at", [1.0, np.nan]), "history of symbols_at"),
    (put("history.events", np.frombuffer(b"[[1, 2, 3]]", "u1")), "a history whose parts do not fit"),
    (put("history.events", np.frombuffer(b"[" * 99999, "u1")), "a history whose parts do not fit"),
    (lambda arrays, about: about["random"].clear(), "do not have the same random generators: shared stream"),
    (lambda arrays, about: about["random"].update({"x.rng": 1}), "do not have the same random generators: x.rng"),
    (lambda arrays, about: about["random"].update({"shared stream": {"bit_generator": "MT19937"}}), "which is a PCG64"),
    (lambda arrays, about: about.update(optimizer="SGD"), "was written with 'SGD', and this run uses Adam"),
])
def test_what_does_not_fit_is_named_and_nothing_changes(change, says, folder):
    nothing_changes(damaged(folder, change), says)


def test_about_that_is_no_dictionary_is_refused(folder):
    save_arrays(folder / "damaged", {}, [1])
    nothing_changes(folder / "damaged", "lacks its part config, environment, lr, optimizer, random")


def test_other_options_are_named(folder):
    path = damaged(folder, lambda arrays, about: None)
    nothing_changes(path, "of a run with lr = 0.1, and this one has lr = 0.2;", config={**CONFIG, "lr": 0.2})
    nothing_changes(path, "run with sizes = [1, 2], B = None, and this one has sizes = None, B = 3;", config={"lr": .1, "B": 3})
    nothing_changes(path, "was written with 'Adam', and this run uses AdamW", optimizer=AdamW)
    nothing_changes(path, "missing: recurrence.layers.1.U", model=lambda V, D, H: RecurrentLM(V, D, H, L=2))


WORDS = st.text("abc \"'{ü", max_size=9)
JUNK = st.recursive(st.none() | st.booleans() | st.integers(-2**200, 2**200) | st.floats() | WORDS,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(part=st.sampled_from([*PARTS, "generator", "state", "inc", "has_uint32"]), junk=JUNK)
def test_junk_in_any_part_is_refused_or_harmless(folder, part, junk):
    def change(arrays, about):
        random_state = about["random"]["shared stream"]
        place = {"generator": about["random"], "state": random_state["state"], "inc": random_state["state"],
                 "has_uint32": random_state}.get(part, about)
        place["shared stream" if part == "generator" else part] = junk

    path, (model, optimizer) = damaged(folder, change), a_run()
    before = state(model, optimizer)
    try:
        load_run(path, model, optimizer, config=CONFIG)
    except ValueError as error:
        assert "\n" not in str(error) and same(state(model, optimizer), before)


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1), lambda p: SGD(p, 0.1, momentum=0.9), lambda p: Adam(p)])
def test_an_optimizer_whose_parameters_were_not_all_moved_comes_back(make):
    moved, still = leaf([1, 2]), leaf([3])
    moved.grad = np.array([1.0, 1.0])
    optimizer, other = make([moved, still]), make([leaf([1, 2]), leaf([3])])
    optimizer.step()
    other.load_state_dict(optimizer.state_dict())
    assert same(other.state_dict(), optimizer.state_dict()) and other.counts.tolist() == [1, 0]
