"""Transformers against live PyTorch, in float64: attention, blocks and models with all their options, values and gradients.

The twins are written in PyTorch as others write them: rotary positions as Llama does (complex numbers) and as Hugging Face
does (`rotate_half`), ALiBi as its authors', and the model of 2017 out of PyTorch's own encoder and decoder layers.
"""

import itertools
import math

import numpy as np
import pytest

import minitx as mx
from minitx import models, nn, ops
from minitx.data import pair_batch

from .test_torch import F, agree, difference, functional_call, normal, torch, tracked

pytestmark = pytest.mark.torch
B, T, D, N, L, V = 2, 5, 8, 4, 2, 11


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def options(*choices):
    """All combinations of choices, each with a readable name."""
    return [pytest.param(*chosen, id="-".join(map(str, chosen))) for chosen in itertools.product(*choices)]


# The op


def three_steps(q, k, v, mask, bias, keep, causal, scale, p):
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = scores if bias is None else scores + bias
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
    allowed = allowed.tril(scores.shape[-1] - scores.shape[-2]) if causal else allowed
    allowed = allowed if mask is None else allowed & mask
    probs = F.softmax(scores.masked_fill(~allowed, -math.inf), -1)
    return (probs if keep is None else probs * keep / (1 - p)) @ v


def their_own(q, k, v, mask, bias, _, causal, scale, p):
    """PyTorch's op, which has no mask beside its bias, and draws its dropout itself."""
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    allowed = allowed.tril(k.shape[2] - q.shape[2]) if causal else allowed
    allowed = allowed if mask is None else allowed & mask
    added = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill(~allowed, -math.inf) + (0 if bias is None else bias)
    return F.scaled_dot_product_attention(q, k, v, added, scale=scale, enable_gqa=True)


@pytest.mark.parametrize("M", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, (5, 7), (2, 1, 1, 7), (4, 5, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("bias", [None, (5, 7), (4, 1, 7), (2, 4, 5, 7)])
def test_attention(M, mask, bias):
    q, k, v = normal(2, 4, 5, 6), normal(2, M, 7, 6, seed=1), normal(2, M, 7, 3, seed=2)
    bias, keep = None if bias is None else normal(*bias, seed=3), normal(2, 4, 5, 7) < 0.5
    if mask is not None:
        mask = normal(*mask) < 0.5
        mask[..., 0] = True
    for causal, scale in ((False, None), (True, None), (True, 0.3)):
        for twin, kept, p in ((their_own, None, 0.0), (three_steps, keep, 0.3)):
            def theirs(q, k, v, mask, bias, keep, twin=twin, rest=(causal, scale, p)):
                return twin(q, k, v, mask, bias, keep, *rest)

            agree(ops.attention, theirs, q, k, v, mask, bias, kept, causal=causal, scale=scale, p=p)


def theta(positions, R, base, stretch):
    return torch.as_tensor(positions)[..., None] / stretch * base ** (-torch.arange(0, R, 2, dtype=torch.float64) / R)


def turned(x, positions, pairing, base=1e4, stretch=1.0):
    angle = theta(positions, x.shape[-1], base, stretch)
    if pairing == "neighbours":                                              # Llama: each pair is a complex number
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    a, b = x.chunk(2, -1)                                                    # Hugging Face: rotate_half
    return x * cos + torch.cat([-b, a], -1) * sin


@pytest.mark.parametrize("pairing", ["halves", "neighbours"])
@pytest.mark.parametrize("base, stretch", [(1e4, 1.0), (500.0, 4.0)])
@pytest.mark.parametrize("rotated", [None, 4])
def test_rotary(pairing, base, stretch, rotated):
    def theirs(x, positions):
        R = rotated or x.shape[-1]
        return torch.cat([turned(x[..., :R], positions, pairing, base, stretch), x[..., R:]], -1)

    agree(ops.rotary, theirs, normal(2, 3, 5, 8), np.array([0, 3, 1, 70, 2000]), pairing=pairing, base=base, stretch=stretch,
          rotated=rotated)


# Twins of modules: functions of their parameters `p`, by our names and in our layout


def part(p, name):
    """The parameters below a path, by the rest of their paths."""
    return {path[len(name) + 1:]: value for path, value in p.items() if path.startswith(f"{name}.")}


def linear(p, name, x):
    return F.linear(x, p[f"{name}.W"].t(), p.get(f"{name}.b"))


def normed(p, x, eps=1e-5):
    if "beta" in p:
        return F.layer_norm(x, x.shape[-1:], p["gamma"], p["beta"], eps)
    return F.rms_norm(x, x.shape[-1:], p["gamma"], eps)


def attended(p, x, memory=None, mask=None, bias=None, *, M=N, causal=False, pairing=None):
    K = D // N
    if memory is None:
        q, k, v = linear(p, "qkv", x).split((N * K, M * K, M * K), -1)
    else:
        q, (k, v) = linear(p, "q", x), linear(p, "kv", memory).chunk(2, -1)
    q, k, v = (y.unflatten(-1, (-1, K)).transpose(1, 2) for y in (q, k, v))
    if pairing:
        q, k = (turned(y, torch.arange(y.shape[2]), pairing) for y in (q, k))
    y = their_own(q, k, v, mask, bias, None, causal, None, 0.0)
    return linear(p, "out", y.transpose(1, 2).flatten(2))


def fed(p, x, kind):
    up = linear(p, "up", x)
    return linear(p, "down", {"gelu": lambda: F.gelu(up, approximate="tanh"), "gelu_exact": lambda: F.gelu(up),
                              "relu": lambda: F.relu(up), "swiglu": lambda: F.silu(linear(p, "gate", x)) * up}[kind]())


def block_twin(p, x, mask=None, bias=None, memory=None, memory_mask=None, *, norm="pre", feed="gelu", eps=1e-5, **heads):
    def add(x, name, step):
        own = part(p, f"{name}_norm")
        return x + step(normed(own, x, eps)) if norm == "pre" else normed(own, x + step(x), eps)

    x = add(x, "attention", lambda y: attended(part(p, "attention"), y, None, mask, bias, **heads))
    if memory is not None:
        M = heads.get("M", N)
        x = add(x, "cross", lambda y: attended(part(p, "cross"), y, memory, memory_mask, M=M))
    return add(x, "feed", lambda y: fed(part(p, "feed"), y, feed))


def disturbed(model):
    """No value as it starts, so that no 0 or 1 hides a mistake; and the parameters again, for the twin."""
    for i, p in enumerate(model.parameters()):
        p.assign_(p.data + 0.1 * normal(*p.shape, seed=i))
    state = model.state_dict()
    return model, dict(zip(state, tracked(state.values()), strict=True))


def equal(model, ours, p, theirs):
    """Outputs and all gradients are the same, for a random gradient from outside."""
    dy = normal(*ours.shape, seed=9)
    worst = {"output": difference(ours.data, theirs)}
    theirs.backward(torch.tensor(dy))
    ours.backward(dy)
    worst |= {name: difference(mine.grad, p[name].grad) for name, mine in model.named_parameters()}
    assert {name: d for name, d in worst.items() if not d < 1e-10} == {}


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("norm, normaliser, feed, M, pairing, use_bias, causal", options(
    ["pre", "post"], ["layer", "rms"], ["gelu", "gelu_exact", "relu", "swiglu"], [4, 2, 1], [None, "halves", "neighbours"],
    [True, False], [True]))
def test_a_block(norm, normaliser, feed, M, pairing, use_bias, causal):
    block, p = disturbed(nn.TransformerBlock(
        D, N, 12, norm=norm, normaliser=normaliser, feed=feed, M=M, rotary=pairing and {"pairing": pairing}, use_bias=use_bias,
        causal=causal, rng=rng(), dtype="float64"))
    x, bias = normal(B, T, D), normal(N, T, T)
    ours, theirs = tracked_pair(x)
    equal(block, block(ours, bias=bias), p,
          block_twin(p, theirs, bias=torch.tensor(bias), norm=norm, feed=feed, M=M, pairing=pairing, causal=causal))
    assert difference(ours.grad, theirs.grad) < 1e-10


def tracked_pair(x):
    return mx.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)


@pytest.mark.parametrize("norm, normaliser, M", options(["pre", "post"], ["layer", "rms"], [4, 2]))
def test_a_block_that_looks_at_a_second_sequence(norm, normaliser, M):
    block, p = disturbed(nn.TransformerBlock(D, N, norm=norm, normaliser=normaliser, cross=True, causal=True, M=M, rng=rng(),
                                             dtype="float64"))
    (x, their_x), (memory, their_memory) = tracked_pair(normal(B, T, D)), tracked_pair(normal(B, 7, D, seed=1))
    mask = np.arange(7) < np.array([7, 3])[:, None, None, None]
    equal(block, block(x, memory=memory, memory_mask=mask), p,
          block_twin(p, their_x, memory=their_memory, memory_mask=torch.tensor(mask), norm=norm, M=M, causal=True))
    assert max(difference(x.grad, their_x.grad), difference(memory.grad, their_memory.grad)) < 1e-10


# Whole models


def table(T, width):
    """The sinusoids of 2017 as tutorials make them."""
    position, found = torch.arange(T, dtype=torch.float64)[:, None], torch.zeros(T, width, dtype=torch.float64)
    div = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    found[:, 0::2], found[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
    return found


def slopes(n):
    """As the authors of ALiBi have them."""
    if math.log2(n).is_integer():
        start = 2 ** (-2 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return slopes(below) + slopes(2 * below)[0::2][:n - below]


def entered(p, ids, positions):
    x = F.embedding(ids, p["tokens.table"])
    if positions == "learned":
        return x + p["positions"][:ids.shape[1]]
    return x * math.sqrt(D) + table(ids.shape[1], D) if positions == "sinusoid" else x


def language_twin(p, ids, *, positions="learned", rotary=None, tied=False, **options):
    x, bias = entered(part(p, "embedded"), ids, positions), None
    if positions == "alibi":
        places = torch.arange(ids.shape[1])
        bias = torch.tensor(slopes(N), dtype=torch.float64)[:, None, None] * (places - places[:, None])
    pairing = (rotary or {}).get("pairing", "halves") if positions == "rotary" else None
    for i in range(L):
        x = block_twin(part(p, f"blocks.{i}"), x, bias=bias, pairing=pairing, causal=True, **options)
    x = normed(part(p, "final_norm"), x)
    return F.linear(x, p["embedded.tokens.table"]) if tied else linear(p, "head", x)


GPT2 = {"tied": True}
LLAMA = {"positions": "rotary", "rotary": {"pairing": "neighbours"}, "normaliser": "rms", "feed": "swiglu", "M": 2,
         "use_bias": False}


def language_pair(**options):
    return disturbed(models.TransformerLM(V, D, N, L, T, rng=rng(), dtype="float64", **options))


def for_twin(options):
    return {name: value for name, value in options.items() if name not in ("normaliser", "use_bias")}


@pytest.mark.parametrize("chosen", [
    *({"positions": positions, "tied": tied} for positions in ("learned", "sinusoid", "rotary", "alibi", "none")
      for tied in (False, True)), {"norm": "post"}, LLAMA, {**LLAMA, "tied": True, "M": 1}], ids=str)
def test_a_language_model(chosen):
    model, p = language_pair(**chosen)
    ids = rng().integers(0, V, (B, T))
    equal(model, model(ids), p, language_twin(p, torch.tensor(ids), **for_twin(chosen)))


@pytest.mark.parametrize("positions, norm, segments, lengths", options(
    ["learned", "sinusoid", "rotary", "none"], ["pre", "post"], [0, 2], [None, (5, 3)]))
def test_an_encoder(positions, norm, segments, lengths):
    model, p = disturbed(models.Encoder(V, D, N, L, T, positions=positions, norm=norm, types=segments,
                                        embedding_norm=bool(segments), feed="gelu_exact", eps=1e-12, rng=rng(),
                                        dtype="float64"))
    ids, types = rng().integers(0, V, (B, T)), rng().integers(0, 2, (B, T)) if segments else None
    x, mask = entered(part(p, "embedded"), torch.tensor(ids), positions), None
    if segments:
        x = normed(part(p, "embedding_norm"), x + F.embedding(torch.tensor(types), p["types.table"]), 1e-12)
    if lengths:
        lengths = np.array(lengths)
        mask = torch.tensor(np.arange(T) < lengths[:, None])[:, None, None]
    for i in range(L):
        x = block_twin(part(p, f"blocks.{i}"), x, mask, norm=norm, feed="gelu_exact", eps=1e-12,
                       pairing="halves" if positions == "rotary" else None)
    x = normed(part(p, "final_norm"), x, 1e-12) if norm == "pre" else x
    equal(model, model(ids, lengths, types), p, x)


# The model of 2017, whose twin is made of PyTorch's own layers

NAMES = {"attention_norm.gamma": "norm1.weight", "attention_norm.beta": "norm1.bias",
         "attention.qkv.W": "self_attn.in_proj_weight", "attention.qkv.b": "self_attn.in_proj_bias",
         "attention.out.W": "self_attn.out_proj.weight", "attention.out.b": "self_attn.out_proj.bias",
         "feed.up.W": "linear1.weight", "feed.up.b": "linear1.bias", "feed.down.W": "linear2.weight",
         "feed.down.b": "linear2.bias"}
READS = NAMES | {"feed_norm.gamma": "norm2.weight", "feed_norm.beta": "norm2.bias"}
WRITES = NAMES | {"cross_norm.gamma": "norm2.weight", "cross_norm.beta": "norm2.bias", "feed_norm.gamma": "norm3.weight",
                  "feed_norm.beta": "norm3.bias", "cross.out.W": "multihead_attn.out_proj.weight",
                  "cross.out.b": "multihead_attn.out_proj.bias"}


def translation_twin(p, source, lengths, inputs, norm):
    made = {"batch_first": True, "dropout": 0.0, "norm_first": norm == "pre", "activation": F.relu}
    reader, writer = (layer(D, N, 12, dtype=torch.float64, **made)
                      for layer in (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer))

    def embed(ids):
        return F.embedding(ids, p["tokens.table"]) * math.sqrt(D) + table(ids.shape[1], D)

    def final(name, x):
        return normed(part(p, f"{name}_norm"), x) if norm == "pre" else x

    padding, future = torch.arange(source.shape[1]) >= lengths[:, None], torch.ones(2 * inputs.shape[1:], dtype=bool).triu(1)
    memory = embed(source)
    for i in range(L):
        weights = {theirs: p[f"encoder.{i}.{ours}"].t() for ours, theirs in READS.items()}
        memory = functional_call(reader, weights, memory, {"src_key_padding_mask": padding})
    memory, x = final("encoder", memory), embed(inputs)
    for i in range(L):
        own = part(p, f"decoder.{i}")
        weights = {theirs: own[ours].t() for ours, theirs in WRITES.items()}
        for kind, theirs in (("W", "weight"), ("b", "bias")):               # theirs has q, k and v in one
            joined = torch.cat([own[f"cross.q.{kind}"], own[f"cross.kv.{kind}"]], -1)
            weights[f"multihead_attn.in_proj_{theirs}"] = joined.t()
        x = functional_call(writer, weights, (x, memory), {"tgt_mask": future, "memory_key_padding_mask": padding})
    return F.linear(final("decoder", x), p["tokens.table"])


def translations(seed):
    """Pairs of unequal lengths, and the same as tensors."""
    draw = np.random.default_rng(seed)
    rows = [[draw.integers(3, V, n).tolist() for n in sizes] for sizes in ((6, 2, 4), (3, 5, 1))]
    batch = pair_batch(*rows, start=1, stop=2)
    return batch, [torch.tensor(a) for a in batch]


def translation_pair(norm):
    return disturbed(models.EncoderDecoder(V, D, N, L, F=12, norm=norm, dropout=0.0, rng=rng(), dtype="float64"))


def translation_loss(p, norm, source, lengths, inputs, targets, smoothing):
    logits = translation_twin(p, source, lengths, inputs, norm)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)


@pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_translator(norm):
    model, p = translation_pair(norm)
    (source, lengths, inputs, _), theirs = translations(0)
    equal(model, model(source, lengths, inputs), p, translation_twin(p, *theirs[:3], norm))


@pytest.mark.parametrize("norm, training", options(["pre", "post"], [True, False]))
def test_the_loss_of_a_translator_has_label_smoothing_while_it_trains(norm, training):
    model, p = translation_pair(norm)
    batch, theirs = translations(0)
    model.train(training)
    equal(model, model.loss(*batch), p, translation_loss(p, norm, *theirs, 0.1 if training else 0.0))


# Fifty steps


def language_batch(step):
    ids = np.random.default_rng(step % 3).integers(0, V, (B, T + 1))
    return (ids[:, :-1], ids[:, 1:]), [torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:])]


def llama_loss(p, ids, targets):
    return F.cross_entropy(language_twin(p, ids, **for_twin(LLAMA)).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("pair, batch, loss", [
    (lambda: language_pair(**LLAMA), language_batch, llama_loss),
    (lambda: translation_pair("pre"), lambda step: translations(step % 3), lambda p, *b: translation_loss(p, "pre", *b, 0.1)),
    (lambda: translation_pair("post"), lambda step: translations(step % 3), lambda p, *b: translation_loss(p, "post", *b, 0.1)),
], ids=["Llama", "translator, pre", "translator, post"])
def test_fifty_steps_of_adamw(pair, batch, loss, record_property):
    model, p = pair()
    ours, theirs = mx.optim.AdamW(model.parameters(), 0.01), torch.optim.AdamW(p.values(), 0.01)
    losses = []
    for step in range(50):
        mine, twin = batch(step)
        theirs.zero_grad()
        model.zero_grad()
        pair_of_losses = model.loss(*mine), loss(p, *twin)
        for one in pair_of_losses:
            one.backward()
        ours.step()
        theirs.step()
        losses.append([one.item() for one in pair_of_losses])
    losses = np.array(losses)
    worst = abs(losses[:, 0] / losses[:, 1] - 1).max()
    record_property("largest relative difference", float(worst))
    assert worst < 1e-9 and losses[-1, 0] < 0.8 * losses[0, 0]
    assert max(difference(mine.data, p[name]) for name, mine in model.named_parameters()) < 1e-7
