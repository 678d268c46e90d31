"""minitx against live PyTorch, in float64: ops, optimisers, whole models, and training runs of fifty steps.

Two programs that were written apart from each other agree to the last digits. What differs by convention is visible here:
PyTorch keeps its weights transposed, has two biases in a recurrent layer where one does, and starts its causal mask at the
first query and key where ours ends at the last.
"""

import numpy as np
import pytest

import minitx as mx
from minitx.schedules import warmup_cosine
from minitx.training import train

torch = pytest.importorskip("torch")
F, nn, functional_call = torch.nn.functional, torch.nn, torch.func.functional_call
pytestmark = pytest.mark.torch


def tracked(arrays):
    """Arrays as PyTorch tensors, of which those of floats require a gradient; numbers as they are."""
    return [torch.tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a for a in arrays]


def difference(ours, theirs):
    """The largest difference between an array and a tensor, relative to the largest entry."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def agree(op, theirs, *arrays, **static):
    """An op and a PyTorch function of the same arguments have equal values, and equal gradients for random output gradients."""
    ours, backward = op.vjp(*arrays, **static)
    inputs = tracked(arrays)
    values = theirs(*inputs)
    if not isinstance(ours, tuple):
        ours, values = (ours,), (values,)
    rng = np.random.default_rng(1)
    dys = [np.asarray(rng.standard_normal(y.shape)) for y in ours]
    leaves = [t for t in inputs if getattr(t, "requires_grad", False)]
    expected = torch.autograd.grad(values, leaves, [torch.tensor(dy) for dy in dys])
    grads = backward(*dys)
    grads = [dx for dx in (grads if isinstance(grads, (tuple, list)) else (grads,)) if dx is not None]
    for mine, reference in zip([*ours, *grads], [*values, *expected], strict=True):
        assert difference(mine, reference) < 1e-12


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


# Ops

@pytest.mark.parametrize("op, theirs, static", [
    (mx.ops.sigmoid, torch.sigmoid, {}),
    (mx.ops.tanh, torch.tanh, {}),
    (mx.ops.relu, torch.relu, {}),
    (mx.ops.gelu, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    (mx.ops.softmax, lambda x: F.softmax(x, -1), {}),
    (mx.ops.softmax, lambda x: F.softmax(x, 0), {"axis": 0}),
    (mx.ops.log_softmax, lambda x: F.log_softmax(x, -1), {}),
    (mx.ops.log_softmax, lambda x: F.log_softmax(x, 1), {"axis": 1}),
])
def test_functions_of_one_array(op, theirs, static):
    agree(op, theirs, 3 * normal(4, 5, 6), **static)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_cross_entropy(reduction, label_smoothing, ignore_index):
    targets = np.arange(24).reshape(4, 6) % 5
    targets[1, 2:] = ignore_index
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "ignore_index": ignore_index}
    agree(mx.ops.cross_entropy, lambda x, y: F.cross_entropy(x.movedim(-1, 1), y, **options),      # it wants (B, V, T)
          3 * normal(4, 6, 5), targets, **options)


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm(eps):
    agree(mx.ops.layer_norm, lambda x, gamma, beta: F.layer_norm(x, (6,), gamma, beta, eps),
          5 + normal(3, 4, 6), normal(6), normal(6, seed=1), eps=eps)


def test_linear():
    agree(mx.ops.linear, lambda x, W, b: F.linear(x, W.t(), b), normal(3, 4, 6), normal(6, 5), normal(5))


def test_embedding_of_repeated_ids():
    agree(mx.ops.embedding, F.embedding, np.array([[1, 1, 3], [0, 1, 3]]), normal(5, 4))


def attention_arguments(Tq, Tk):
    return normal(2, 3, Tq, 4), normal(2, 3, Tk, 4, seed=1), normal(2, 3, Tk, 5, seed=2)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(scale):
    agree(mx.ops.attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale),
          *attention_arguments(5, 7), scale=scale)


@pytest.mark.parametrize("shape", [(6, 7), (3, 6, 7), (2, 1, 6, 7), (2, 1, 1, 7)])
def test_attention_with_a_mask(shape):
    mask = normal(*shape) < 0.5
    mask[..., 0] = True
    agree(mx.ops.attention, F.scaled_dot_product_attention, *attention_arguments(6, 7), mask)


def test_attention_of_a_query_that_may_look_at_nothing():
    mask = np.array([[True, True, False], [False, False, False]])
    agree(mx.ops.attention, F.scaled_dot_product_attention, *attention_arguments(2, 3), mask)


def test_causal_attention():
    agree(mx.ops.attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
          *attention_arguments(6, 6), causal=True)


@pytest.mark.parametrize("Tq, Tk", [(2, 6), (1, 4), (5, 3)])
def test_causal_attention_aligns_to_the_end(Tq, Tk):
    past = torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)
    agree(mx.ops.attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, past),
          *attention_arguments(Tq, Tk), causal=True)


def recurrence(module, x, state, W, U, b, bU=None, **options):
    """All states and the last of `torch.nn.RNN`, `GRU` or `LSTM` with our weights; without bU its second bias is zero."""
    layer = module(x.shape[2], U.shape[0], batch_first=True, **options)
    bU = torch.zeros_like(b) if bU is None else bU
    weights = {"weight_ih_l0": W.t(), "weight_hh_l0": U.t(), "bias_ih_l0": b, "bias_hh_l0": bU}
    return functional_call(layer, weights, (x, state))


@pytest.mark.parametrize("T", [1, 9])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rnn(activation, T):
    def theirs(x, h, W, U, b):
        hs, h = recurrence(nn.RNN, x, h[None], W, U, b, nonlinearity=activation)
        return hs, h[0]

    agree(mx.ops.rnn, theirs, normal(3, T, 4), normal(3, 5), normal(4, 5), normal(5, 5) / 2, normal(5),
          activation=activation)


@pytest.mark.parametrize("T", [1, 9])
def test_gru(T):
    def theirs(x, h, W, U, b, bU):
        hs, h = recurrence(nn.GRU, x, h[None], W, U, b, bU)
        return hs, h[0]

    agree(mx.ops.gru, theirs, normal(3, T, 4), normal(3, 5), normal(4, 15), normal(5, 15) / 2, normal(15), normal(15, seed=1))


@pytest.mark.parametrize("T", [1, 9])
def test_lstm(T):
    def theirs(x, h, c, W, U, b):
        hs, (h, c) = recurrence(nn.LSTM, x, (h[None], c[None]), W, U, b)
        return hs, h[0], c[0]

    agree(mx.ops.lstm, theirs, normal(3, T, 4), normal(3, 5), normal(3, 5, seed=1),
          normal(4, 20), normal(5, 20) / 2, normal(20))


# Optimisers

@pytest.mark.parametrize("name, options", [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
])
def test_optimizers_over_100_steps(name, options):
    starts = [normal(3, 4), normal(4)]
    ours, theirs = [mx.tensor(a, requires_grad=True) for a in starts], tracked(starts)
    optimizer, reference = getattr(mx.optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(100):
        for p, twin in zip(ours, theirs, strict=True):
            p.grad = normal(*p.shape, seed=step)
            twin.grad = torch.tensor(p.grad)
        optimizer.step()
        reference.step()
    assert max(difference(p.data, twin) for p, twin in zip(ours, theirs, strict=True)) < 1e-12


# Whole models. A twin is a function of ids (B, T) and of the parameters `p`, by our names and in our layout.

V, D, N, H, L, T = 11, 8, 2, 12, 2, 10
STEPS, WARMUP, PEAK, FLOOR = 50, 10, 0.03, 0.003
CLIP = {"rnn": 0.45, "gru": 0.45, "lstm": 0.45, "pre": 0.8, "post": 0.8}      # between the norms that occur


def recurrent_twin(module):
    def logits(p, ids):
        x, zero = F.embedding(ids, p["tokens.table"]), torch.zeros(1, len(ids), H, dtype=torch.float64)
        for i in range(L):
            weights = [p[f"recurrence.layers.{i}.{name}"] for name in ("W", "U", "b", "bU")[:3 + (module is nn.GRU)]]
            x, _ = recurrence(module, x, (zero, zero) if module is nn.LSTM else zero, *weights)
        return F.linear(x, p["head.W"].t(), p["head.b"])
    return logits


BLOCK = {"attention_norm.gamma": "norm1.weight", "attention_norm.beta": "norm1.bias",
         "feed_norm.gamma": "norm2.weight", "feed_norm.beta": "norm2.bias",
         "attention.qkv.W": "self_attn.in_proj_weight", "attention.qkv.b": "self_attn.in_proj_bias",
         "attention.out.W": "self_attn.out_proj.weight", "attention.out.b": "self_attn.out_proj.bias",
         "feed.up.W": "linear1.weight", "feed.up.b": "linear1.bias", "feed.down.W": "linear2.weight",
         "feed.down.b": "linear2.bias"}


def transformer_twin(norm):
    block = nn.TransformerEncoderLayer(D, N, 4 * D, dropout=0.0, activation=lambda x: F.gelu(x, approximate="tanh"),
                                       batch_first=True, norm_first=norm == "pre")

    def logits(p, ids):
        x = F.embedding(ids, p["embedded.tokens.table"]) + p["embedded.positions"][:ids.shape[1]]
        future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        for i in range(L):
            weights = {theirs: p[f"blocks.{i}.{ours}"].t() for ours, theirs in BLOCK.items()}
            x = functional_call(block, weights, (x, future), {"is_causal": True})
        x = F.layer_norm(x, (D,), p["final_norm.gamma"], p["final_norm.beta"])
        return F.linear(x, p["head.W"].t(), p["head.b"])
    return logits


def pair(kind):
    """A model of ours, its twin, and the twin's parameters. No value is as it starts, so that no 0 or 1 hides a mistake."""
    options = {"rng": np.random.default_rng(0), "dtype": "float64"}
    if kind in ("rnn", "gru", "lstm"):
        model, twin = mx.models.RecurrentLM(V, D, H, L, cell=kind, **options), recurrent_twin(getattr(nn, kind.upper()))
    else:
        model, twin = mx.models.TransformerLM(V, D, N, L, T, norm=kind, **options), transformer_twin(kind)
    for i, p in enumerate(model.parameters()):
        p.assign_(p.data + 0.1 * normal(*p.shape, seed=i))
    state = model.state_dict()
    return model, twin, dict(zip(state, tracked(state.values()), strict=True))


def batch(step):
    ids = np.random.default_rng(step % 3).integers(0, V, (4, T + 1))            # three batches, learned by heart
    return ids[:, :-1], ids[:, 1:]


def surprise(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "pre", "post"])
def test_logits_and_all_gradients_of_a_model(kind, record_property):
    model, twin, p = pair(kind)
    ids, targets = batch(0)
    expected = twin(p, torch.tensor(ids))
    surprise(expected, targets).backward()
    model.loss(ids, targets).backward()
    differences = {"logits": difference(model(ids).data, expected)}
    differences |= {name: difference(mine.grad, p[name].grad) for name, mine in model.named_parameters()}
    record_property("largest relative difference", float(max(differences.values())))
    assert {name: d for name, d in differences.items() if not d < 1e-10} == {}


def trained(twin, p, clip):
    """The losses, gradient norms and learning rates of a training run that is PyTorch's own."""
    optimizer, schedulers = torch.optim.AdamW(p.values(), PEAK, weight_decay=0.1), torch.optim.lr_scheduler
    schedule = schedulers.SequentialLR(optimizer, [schedulers.LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP - 1),
                                                   schedulers.CosineAnnealingLR(optimizer, STEPS - WARMUP, FLOOR)], [WARMUP])
    for ids, targets in map(batch, range(STEPS)):
        optimizer.zero_grad()
        loss = surprise(twin(p, torch.tensor(ids)), targets)
        loss.backward()
        norm = nn.utils.get_total_norm([w.grad for w in p.values()])
        for w in p.values():
            w.grad *= min(1, clip / norm)       # clip_grad_norm_ adds 1e-6 to the norm, which would show in the sixth digit
        yield loss.item(), norm.item(), optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "pre", "post"])
def test_fifty_training_steps_with_clipping_and_schedule(kind, record_property):
    (model, twin, p), clip = pair(kind), CLIP[kind]
    history = train(model, map(batch, range(STEPS)), mx.optim.AdamW(model.parameters(), weight_decay=0.1), steps=STEPS,
                    schedule=warmup_cosine(PEAK, total=STEPS, warmup=WARMUP, floor=FLOOR), clip=clip)
    losses, norms, rates = np.array(list(trained(twin, p, clip))).T
    worst = np.max(np.abs(history.loss - losses) / losses)
    record_property("largest relative difference", float(worst))
    assert min(norms) < clip < max(norms)       # some steps were clipped, some were not
    assert worst < 1e-8
    assert history.grad_norm == pytest.approx(norms, rel=1e-6)
    assert history.lr == pytest.approx(rates, rel=1e-12)
