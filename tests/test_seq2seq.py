"""Sequence to sequence: reading at once equals reading step by step, padding changes nothing, and the gradients are right."""

import importlib.util
import json
import math
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import minitx as mx
from minitx.checkpoint import load_run, save_run
from minitx.data import pair_batch
from minitx.decoding import beam_search, greedy, select
from minitx.models import CELLS
from minitx.optim import SGD, Adam
from minitx.seq2seq import DECODERS, Seq2Seq
from minitx.training import evaluate, train

from .common import every_device, refused, same
from .harness import on_host

V_SOURCE, V, START, STOP = 6, 5, 1, 2
rng = np.random.default_rng(0)
SOURCES = [rng.integers(0, V_SOURCE, n) for n in (3, 1, 5, 4)]
TARGETS = [rng.integers(3, V, n) for n in (2, 4, 1, 0)]
B, COUNTED = len(SOURCES), 2 + 4 + 1 + 0 + 4

every_attention = pytest.mark.parametrize("attention", DECODERS)
every_cell = pytest.mark.parametrize("cell", CELLS)


def model_of(attention="additive", cell="gru", D=3, H=4, dtype="float64", **options):
    """A small model, none of whose parameters is as it starts, so that no zero hides a mistake."""
    options = {"rng": np.random.default_rng(0)} | options
    model = Seq2Seq(V_SOURCE, V, D, H, attention=attention, cell=cell, dtype=dtype, **options)
    noise = np.random.default_rng(1)
    for p in model.parameters():
        p.assign_((p.array + 0.3 * noise.standard_normal(p.shape)).astype(dtype))
    return model


def batch_of(rows=slice(None), device="cpu"):
    batch = pair_batch(SOURCES[rows], TARGETS[rows], start=START, stop=STOP)
    return [mx.tensor(part, device=device).array for part in batch]


def step_of(model, memory):
    return lambda ids, state: model.step(ids, memory, state)


def close(ours, theirs, tolerance=1e-12):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# Gradients


@pytest.mark.parametrize("attention, cell, L", [("additive", "gru", 1), ("additive", "lstm", 1), ("multiplicative", "gru", 2),
                                                ("multiplicative", "rnn", 1), ("none", "lstm", 1)])
def test_gradients_agree_with_nudges(attention, cell, L):
    model = model_of(attention, cell, D=2, L=L)
    checked = {i.name for i in mx.gradcheck(model, *batch_of(slice(2))[:3]).inputs}
    assert checked == set(dict(model.named_parameters()))


@pytest.mark.torch
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_the_loss_and_all_gradients_equal_those_of_pytorch(attention, record_property):
    torch = pytest.importorskip("torch")
    F, call = torch.nn.functional, torch.func.functional_call
    model, batch = model_of(attention, D=6, H=8, L=2), batch_of()
    p = {name: torch.tensor(array, requires_grad=True) for name, array in model.state_dict().items()}
    source, lengths, inputs, targets = map(torch.tensor, batch)
    assert ("decoder.keys.b" in p) == (attention == "additive"), "in a product it would add the same to all scores"

    def recurrence(name, x, h=None, suffixes=("_l0",)):
        layer = torch.nn.GRU(x.data.shape[-1], 8 if h is not None else 4, batch_first=True, num_layers=(len(suffixes) + 1) // 2,
                             bidirectional=h is None)
        weights = {}
        for s, suffix in enumerate(suffixes):
            own = {n: p[f"{name}.recurrence.layers.{s}.{n}"] for n in ("W", "U", "b", "bU")}
            weights |= {f"weight_ih{suffix}": own["W"].t(), f"weight_hh{suffix}": own["U"].t(),
                        f"bias_ih{suffix}": own["b"], f"bias_hh{suffix}": own["bU"]}
        return call(layer, weights, (x, h) if h is not None else (x,))

    def linear(name, x):
        return F.linear(x, p[f"decoder.{name}.W"].t(), p.get(f"decoder.{name}.b"))

    x = torch.nn.utils.rnn.pack_padded_sequence(F.embedding(source, p["encoder.tokens.table"]), lengths, batch_first=True,
                                                enforce_sorted=False)
    packed, ends = recurrence("encoder", x, suffixes=("_l0", "_l0_reverse", "_l1", "_l1_reverse"))
    memory, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    mask, h = torch.arange(source.shape[1]) < lengths[:, None], torch.cat([*ends[2:]], -1)[None]
    keys, x = linear("keys", memory), F.embedding(inputs, p["decoder.tokens.table"])
    if attention == "multiplicative":
        hs, _ = recurrence("decoder", x, h)
        known = [F.scaled_dot_product_attention(hs, keys, memory, mask[:, None], scale=1.0), hs]
    else:
        known = []
        for t in range(inputs.shape[1]):
            scores = torch.tanh(linear("queries", h[0])[:, None] + keys) @ p["decoder.w"]
            context = (scores.masked_fill(~mask, -math.inf).softmax(-1)[:, None] @ memory)[:, 0]
            _, h = recurrence("decoder", torch.cat([x[:, t], context], -1)[:, None], h)
            known.append(torch.cat([x[:, t], h[0], context], -1))
        known = [torch.stack(known, 1)]
    logits = linear("head", torch.tanh(linear("combine", torch.cat(known, -1))))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected.backward()

    loss = model.loss(*batch)
    loss.backward()
    differences = {name: np.abs(t.grad - p[name].grad.numpy()).max() for name, t in model.named_parameters()}
    differences["loss"] = abs(loss.item() - expected.item())
    record_property("largest difference", float(max(differences.values())))
    assert {name: d for name, d in differences.items() if not d < 1e-12} == {}


# One mathematics


@every_attention
@every_cell
def test_symbols_read_one_by_one_give_the_logits_of_all_at_once(attention, cell):
    model, (source, lengths, inputs, _) = model_of(attention, cell), batch_of()
    memory, state = model.encode(source, lengths)
    together, end = model.decode(inputs, memory, state)
    assert np.array_equal(together.array, model(source, lengths, inputs).array)
    for t in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, t], memory, state)
        close(logits.array, together.array[:, t])
    for one_by_one, at_once in zip(state, end):
        close(one_by_one.array, at_once.array)
        assert one_by_one.shape == (B, 4)


@every_attention
def test_several_rows_may_look_back_at_one_source(attention):
    """As a beam does: the memory is not repeated, the states are."""
    model, (source, lengths, _, _) = model_of(attention, "lstm"), batch_of()
    memory, state = model.encode(source, lengths)
    rows = np.repeat(np.arange(B), 3)
    other = np.random.default_rng(2).integers(0, V, (3 * B, 2))
    ours, _ = model.decode(other, memory, select(state, rows))
    for r, b in enumerate(rows):
        close(ours.array[r:r + 1], model(source[b:b + 1], lengths[b:b + 1], other[r:r + 1]).array)


def test_a_memory_can_be_part_of_the_state_too():
    model, (source, lengths, _, _) = model_of(), batch_of()
    memory, state = model.encode(source, lengths)
    options = {"start": [START] * B, "stop": STOP, "steps": 6, "width": 3}

    def step(ids, both):
        logits, state = model.step(ids, both[0], both[1])
        return logits, (both[0], state)

    for ours, theirs in zip(beam_search(step, (memory, state), **options),
                            beam_search(step_of(model, memory), state, **options), strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        close([h.log_p for h in ours], [h.log_p for h in theirs])


@every_attention
@every_cell
def test_the_loss_of_a_padded_batch_is_the_mean_over_the_symbols_of_its_pairs(attention, cell):
    model = model_of(attention, cell, L=2)
    loss = model.loss(*batch_of())
    loss.backward()
    together = [p.grad for p in model.parameters()]
    model.zero_grad()
    alone = 0.0
    for b in range(B):
        batch = batch_of(slice(b, b + 1))
        share = batch[-1].size / COUNTED
        loss_alone = model.loss(*batch)
        loss_alone.backward(share)
        alone += share * loss_alone.item()
    close(loss.item(), alone)
    for p, grad in zip(model.parameters(), together):
        close(p.grad, grad)


@every_attention
def test_what_stands_in_the_padding_changes_nothing(attention):
    model, (source, lengths, inputs, targets) = model_of(attention), batch_of()
    dirty, later = source.copy(), inputs.copy()
    dirty[np.arange(source.shape[1]) >= lengths[:, None]] = 5
    later[targets == -100] = 4
    assert model.loss(dirty, lengths, later, targets).item() == model.loss(source, lengths, inputs, targets).item()


@every_attention
def test_without_lengths_every_source_is_full(attention):
    model, source, inputs = model_of(attention), rng.integers(0, V_SOURCE, (2, 3)), rng.integers(0, V, (2, 4))
    close(model(source, None, inputs).array, model(source, np.array([3, 3]), inputs).array)


@pytest.mark.parametrize("attention, op", [("additive", "additive_attention"), ("multiplicative", "attention")])
def test_nobody_looks_at_padding(attention, op):
    seen = []

    class Weights(mx.Observer):
        def watch(self, of, arrays):
            return (lambda what, array, step: seen.append(array.reshape(B, -1, 5))) if of.name == op else None

    model, (source, lengths, inputs, _) = model_of(attention), batch_of()
    with mx.observe(Weights()):
        model(source, lengths, inputs)
    probs = np.concatenate(seen, 1)                                          # (B, T, S)
    assert probs.shape == (B, inputs.shape[1], 5)
    close(probs.sum(-1), 1)
    assert ((probs > 0) == (np.arange(5) < lengths[:, None])[:, None]).all()


def test_only_with_attention_a_decoder_reads_the_memory():
    (source, lengths, inputs, _), other = batch_of(), np.random.default_rng(3).standard_normal((B, 5, 4))
    for attention in DECODERS:
        model = model_of(attention)
        memory, state = model.encode(source, lengths)
        changed = model.decoder.memory(mx.tensor(other), memory.mask)
        same = np.array_equal(model.decode(inputs, memory, state)[0].array, model.decode(inputs, changed, state)[0].array)
        assert same == (attention == "none")


# Devices, dtypes, seeds


@every_device
@every_attention
def test_a_seed_gives_the_same_model_on_every_device(attention, device):
    def run(device):
        mx.seed(5)
        model = Seq2Seq(V_SOURCE, V, 3, 4, attention=attention, dropout=0.2).to(device)
        model.loss(*batch_of(device=device)).backward()
        memory, state = model.eval().encode(*batch_of(device=device)[:2])
        found = beam_search(step_of(model, memory), state, [START] * B, stop=STOP, steps=5, width=3)
        return on_host([p.grad for p in model.parameters()]), found

    (ours, found), (theirs, expected) = run(device), run("cpu")
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert [[h.ids for h in row] for row in found] == [[h.ids for h in row] for row in expected]


@every_attention
@every_cell
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_c58_a_model_keeps_its_dtype(attention, cell, dtype):
    model = Seq2Seq(V_SOURCE, V, 3, 4, attention=attention, cell=cell, dropout=0.1, dtype=dtype)
    loss = model.loss(*batch_of())
    loss.backward()
    assert {loss.dtype, *(p.dtype for p in model.parameters()), *(p.grad.dtype for p in model.parameters())} == {
        np.dtype(dtype)}


@every_attention
def test_the_first_guess_is_nearly_uniform_and_dropout_acts_in_training_only(attention):
    mx.seed(0)
    model = Seq2Seq(30, 30, 16, 16, attention=attention, dropout=0.3)
    batch = pair_batch(rng.integers(0, 30, (8, 6)), rng.integers(3, 30, (8, 6)), start=START, stop=STOP)
    assert model.loss(*batch).item() == pytest.approx(math.log(30), rel=0.02)
    assert model.loss(*batch).item() != model.loss(*batch).item()
    assert model.eval().loss(*batch).item() == model.loss(*batch).item()
    ps = {path: module.p for path, module in model.named_modules() if isinstance(module, mx.nn.Dropout)}
    assert ps.pop("decoder.recurrence.dropout") == 0, "it has one layer, and nothing between"
    assert ps == dict.fromkeys(["encoder.dropout", "encoder.recurrence.dropout", "decoder.dropout"], 0.3)
    own = [Seq2Seq(30, 30, 4, 4, attention=attention, dropout=0.3, rng=np.random.default_rng(7)) for _ in range(2)]
    assert own[0].loss(*batch).item() == own[1].loss(*batch).item(), "weights and masks from one stream of its own"


# Learning and writing


def echo(count, seed=0):
    """Batches of pairs whose target is the source backwards."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sources = [rng.integers(3, V_SOURCE, n) for n in rng.integers(1, 5, 16)]
        yield pair_batch(sources, [s[::-1] for s in sources], start=START, stop=STOP)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_a_model_learns_to_turn_sequences_round(attention):
    mx.seed(0)
    model = Seq2Seq(V_SOURCE, V_SOURCE, 8, 24, attention=attention)
    before = evaluate(model, echo(5, seed=1))
    history = train(model, echo(150), Adam(model.parameters(), 2e-2), steps=150)
    after = evaluate(model, echo(5, seed=1))
    assert history.symbols == sum(int((batch[-1] != -100).sum()) for batch in echo(150))
    assert before > 2 and after < 0.2
    source, lengths, _, targets = next(echo(1, seed=2))
    memory, state = model.encode(source, lengths)
    options = {"start": [START] * 16, "stop": STOP, "steps": 8}
    written = [h.ids for h in greedy(step_of(model, memory), state, **options)]
    right = [tuple(row[:n].tolist()) for row, n in zip(targets, lengths)]
    assert sum(a == b for a, b in zip(written, right)) >= 14
    beams = beam_search(step_of(model, memory), state, **options, width=4, alpha=0.0)
    for (best, *_), h in zip(beams, greedy(step_of(model, memory), state, **options)):
        assert best.log_p >= h.log_p - 1e-6


def test_c44_a_step_on_several_small_batches_is_that_on_one_large_batch():
    models = {}
    for size in (1, 2, 4):
        models[size] = model_of()
        batches = [batch_of(slice(i, i + size)) for i in range(0, B, size)]
        train(models[size], batches, SGD(models[size].parameters(), 0.5), steps=1, accumulate=B // size)
    for p, *others in zip(*(models[size].parameters() for size in (4, 1, 2))):
        for other in others:
            close(other.array, p.array, 1e-10)


def test_c64_a_run_that_was_interrupted_goes_on_bit_for_bit(tmp_path):
    def run(steps, resume=False):
        mx.seed(0)
        model = Seq2Seq(V_SOURCE, V_SOURCE, 3, 4, dropout=0.3)
        optimizer = Adam(model.parameters(), 1e-2)
        if resume:
            mx.seed(9)
        history = load_run(tmp_path / "run", model, optimizer, config={}).history if resume else None
        batches = islice(echo(6), len(history.loss) if history else 0, None)
        history = train(model, batches, optimizer, steps=steps, history=history)
        save_run(tmp_path / "run", model, optimizer, history, config={})
        return model.state_dict(), history.loss

    run(3)
    (resumed, losses), (whole, expected) = run(6, resume=True), run(6)
    assert losses == expected and len(losses) == 6 and same(resumed, whole)


@every_attention
def test_written_with_others_or_alone_a_target_is_the_same(attention):
    model, (source, lengths, _, _) = model_of(attention, "lstm"), batch_of()
    for decode, options in ((greedy, {}), (beam_search, {"width": 3})):
        def write(rows, decode=decode, options=options):
            memory, state = model.encode(source[rows], lengths[rows])
            return decode(step_of(model, memory), state, [START] * len(lengths[rows]), stop=STOP, steps=6, **options)

        for b, together in enumerate(write(slice(None))):
            [alone] = write(slice(b, b + 1))
            pairs = [(together, alone)] if decode is greedy else zip(together, alone, strict=True)
            for ours, theirs in pairs:
                assert ours.ids == theirs.ids
                close(ours.log_p, theirs.log_p)


def test_what_is_written_is_scored_as_the_loss_scores_it():
    model, (source, lengths, _, _) = model_of(), batch_of()
    memory, state = model.encode(source, lengths)
    for b, best in enumerate(beam_search(step_of(model, memory), state, [START] * B, stop=STOP, steps=6, width=3)):
        for h in (h for h in best if h.finished):
            batch = pair_batch([SOURCES[b]], [h.ids], start=START, stop=STOP)
            close(-h.log_p, model.loss(*batch).item() * h.length)


# Bad input


def test_what_makes_no_sense_is_refused():
    def make(**options):
        return Seq2Seq(**{"V_source": 5, "V": 5, "D": 2, "H": 4} | options)

    refused(ValueError, lambda: make(attention="dot"), "Seq2Seq: attention must be one of additive,", "got 'dot'")
    refused(ValueError, lambda: make(attention=None), "Seq2Seq: attention", "got None")
    refused(ValueError, lambda: make(cell="elman"), "Seq2Seq: cell must be one of rnn, gru, lstm, got 'elman'")
    refused(ValueError, lambda: make(H=5), "Seq2Seq: H is 5; expected an even number")
    refused(ValueError, lambda: make(L=0), "Seq2Seq: L is 0")
    refused(ValueError, lambda: make(dropout=2), "Dropout: p must be a probability")
    model, (source, lengths, inputs, _) = model_of(), batch_of()
    for attention in DECODERS:
        model = model_of(attention)
        for rows, T in ((3, 2), (8, 2), (4, 0)):
            refused(ValueError, lambda m=model, n=rows, T=T: m(source, lengths, np.zeros((n, T), int)),
                    "for 4 sources and a state of 4 rows", f"Seq2Seq: inputs have shape {(rows, T)}")
        refused(ValueError, lambda m=model: m(source[:0], lengths[:0], inputs[:0]), "Seq2Seq: source has no rows")
        refused(ValueError, lambda m=model: m(source[0], lengths, inputs), "Seq2Seq: source came as an array of shape (5,)")
        refused(ValueError, lambda m=model: m(source, lengths, inputs[0]), "Seq2Seq: inputs came as an array of shape (5,)")
        refused(ValueError, lambda m=model: m(source, lengths * 1.0, inputs),
                "Seq2Seq: lengths has shape (4,) and dtype float64")
        memory, state = model.encode(source, lengths)
        five = tuple(mx.tensor(np.zeros((5, 4))) for _ in state)
        refused(ValueError, lambda m=model, a=memory, s=five: m.step(np.zeros(5, int), a, s),
                "for 4 sources and a state of 5 rows")
        memory, state = model.encode(source[:, :0])
        assert model.decode(inputs, memory, state)[0].shape == (B, 5, V), "a source may have no symbol"
    refused(IndexError, lambda: model(source + V_SOURCE, lengths, inputs), "embedding: ids must be from 0 to 5")
    refused(ValueError, lambda: model(source, lengths + 9, inputs), "gru: lengths must be from 0 to T = 5")
    refused(TypeError, lambda: train(model, [(source,)], SGD(model.parameters(), 0.1), steps=1), "train: a batch is (ndarray)",
            "the targets last")
    refused(NotImplementedError, lambda: mx.models.Model().loss(source), "Model: a Model needs a loss method")


# The example


@pytest.fixture
def reverse_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    path = Path(__file__).parent.parent / "examples" / "reverse_words.py"
    spec = importlib.util.spec_from_file_location("reverse_words", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reverse_words(reverse_words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reverse_words, "HELD_OUT", 30)
    monkeypatch.setattr(sys, "argv", ["reverse_words.py", "--steps", "2", "--cell", "rnn"])
    reverse_words.main()
    out, results = capsys.readouterr().out, json.loads((tmp_path / "out" / "reverse_words.json").read_text())
    assert set(results["results"]) == set(DECODERS) and all(name in out for name in DECODERS)
    assert "of all steps are padding in batches of 64 words, sorted by length in pools of 20" in out
    random, pools, everything = results["padding"].values()
    assert 0.4 < random and everything < pools < 0.1
    for name, result in results["results"].items():
        assert len(result["train_bits"]) == 2 and result["heldout_bits"] < 6
        assert len(result["greedy"]) == len(result["beam"]) == 30
        assert (result["backwards"] is None) == (name == "none")
    assert (tmp_path / "out" / "reverse_words.png").stat().st_size > 10_000


def test_reverse_words_takes_at_least_one_step(reverse_words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reverse_words.py", "--steps", "0"])
    with pytest.raises(SystemExit):
        reverse_words.main()
    assert "--steps: 0; expected at least 1" in capsys.readouterr().err


def test_a_word_is_right_when_it_is_written_backwards_and_looks_are_counted_on_the_anti_diagonal(reverse_words):
    assert reverse_words.anti_diagonal([np.eye(3)[::-1], np.array([[0.2, 0.8], [0.3, 0.7]])]) == 4 / 5
    result = {"right": {"greedy": [True, False, True]}}
    assert reverse_words.right_by_length(result, ["abc", "abcd", "abcdefghijklm"]) == {"3-5": 0.5, "12+": 1.0}


def test_the_words_that_are_tested_are_new_and_every_other_is_learned_once_an_epoch(reverse_words):
    words = reverse_words.novel_words(0)
    assert len(set(words)) == len(words) > 6000 and words != sorted(words) and "pemberley" in words
    pairs = [(source[:n], targets[:n + 1]) for batch in reverse_words.batches(words[:200], np.random.default_rng(0))
             for source, n, _, targets in zip(*batch)]
    assert sorted(reverse_words.LETTERS.decode(source) for source, _ in pairs) == sorted(words[:200])
    assert all(np.array_equal(target, [*source[::-1], reverse_words.STOP]) for source, target in pairs)
