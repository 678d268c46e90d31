"""One symbol more for one text: what a Transformer does when it writes, in as few calls as NumPy needs.

A single vector is through a layer before an op has checked its shapes, and made a Tensor, and a backward that nobody asks for.
So here the same mathematics stands once more, forward only and on plain vectors. It differs from the model in rounding alone:
`tests/test_one_symbol.py` holds the two equal.

The readable form is `TransformerBlock.forward` in `nn/transformer.py`. It is what runs where `fits` says no: in training, for
several texts or symbols at once, on a GPU, while somebody looks on, and for models that are not of GPT-2's form.

Read next: `one_step.py`, the same for recurrent models.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import nn
from ..nn.cache import Cache
from ..observer import observer
from ..tensor import tracking

GELU_C = math.sqrt(2 / math.pi)             # c of `ops.gelu`
METHODS = "embed", "body", "extend"         # what `step` of a model calls


def fits(model: Any, ids: Any, cache: Cache) -> bool:
    """Whether `logits` can read these ids: one symbol for one text that was begun, and no gradient or observer waits for it."""
    tokens = model.embedded.tokens
    return (type(tokens) is nn.Embedding and plain(model, ids, table := tokens.table.array) and model.embedded.kind == "learned"
            and cache.blank is None and 0 < cache.length < min(cache.T, model.context)
            and type(model.final_norm) is nn.LayerNorm and type(model.head) is nn.Linear and model.head.W.dtype == table.dtype
            and not active(model.dropout)
            and all(usual(block) and len(cache.buffers.get(id(block.attention), [[]])[0]) == 1 for block in model.blocks))


def plain(model: Any, ids: Any, table: Any) -> bool:
    """Whether ids are one symbol of the table, both on the host; sums in float16 would have to be `wide`.

    Nobody may wait for a gradient, look on, or have replaced a method of this one model, as a test does that counts calls.
    """
    return (type(ids) is np.ndarray and ids.shape == (1, 1) and ids.dtype.kind in "iu" and 0 <= ids.item() < len(table)
            and type(table) is np.ndarray and table.dtype != "float16" and not tracking.get() and observer.get() is None
            and vars(model).keys().isdisjoint(METHODS))


def usual(block: Any) -> bool:
    """Whether a block is one of GPT-2: normalised before each step, with the GELU that has a tanh, and without a memory."""
    if type(block) is not nn.TransformerBlock:
        return False
    attention, feed = block.attention, block.feed
    return (block.norm == "pre" and not hasattr(block, "cross")
            and type(attention) is nn.MultiHeadAttention and attention.rotary is None
            and type(feed) is nn.FeedForward and feed.kind == "gelu"
            and type(block.attention_norm) is type(block.feed_norm) is nn.LayerNorm
            and type(attention.qkv) is type(attention.out) is type(feed.up) is type(feed.down) is nn.Linear
            and not active(block.dropout) and not active(attention.dropout))


def active(dropout: nn.Dropout) -> bool:
    return dropout.training and dropout.p > 0


def logits(model: Any, symbol: int, cache: Cache) -> np.ndarray:
    """The scores (V) of what comes after `symbol`, whose keys and values go into the cache."""
    at = cache.length
    x = model.embedded.tokens.table.array[symbol] + model.embedded.positions.array[at]       # (D)
    for block in model.blocks:
        x += attended(block.attention, normal(block.attention_norm, x), cache.buffers[id(block.attention)], at)
        hidden = linear(block.feed.up, normal(block.feed_norm, x))                           # (F)
        x += linear(block.feed.down, gelu(hidden))
    cache.advance(1)
    return linear(model.head, normal(model.final_norm, x))


def attended(attention: nn.MultiHeadAttention, x: np.ndarray, buffers: list[np.ndarray], at: int) -> np.ndarray:
    """What the newest position, x (D), finds at all positions so far; its own key and value stand at place `at` from now on."""
    N, M, K = attention.N, attention.M, attention.K
    qkv = linear(attention.qkv, x).reshape(N + 2 * M, K)
    keys, values = (buffer[0, :, :at + 1] for buffer in buffers)                             # (M, at + 1, K)
    keys[:, at], values[:, at] = qkv[N:N + M], qkv[N + M:]
    q = qkv[:N].reshape(M, N // M, K)
    q *= 1 / math.sqrt(K)
    probs = q @ keys.swapaxes(1, 2)                                                          # (M, N/M, at + 1)
    probs -= probs.max(-1, keepdims=True)
    np.exp(probs, out=probs)
    probs /= probs.sum(-1, keepdims=True)
    return linear(attention.out, (probs @ values).reshape(N * K))


def normal(norm: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    """See `ops.layer_norm`."""
    y = x - x.sum() / x.size
    y *= 1 / math.sqrt(y.dot(y) / y.size + norm.eps)
    y *= norm.gamma.array
    y += norm.beta.array
    return y


def gelu(x: np.ndarray) -> np.ndarray:
    """See `ops.gelu`: x (1 + tanh u) / 2 with u = c (x + a x³)."""
    y = x * x
    y *= 0.044715 * GELU_C
    y += GELU_C
    y *= x                                                                                   # u
    np.tanh(y, out=y)
    y += 1
    y *= 0.5
    y *= x
    return y


def linear(layer: Any, x: np.ndarray) -> np.ndarray:
    """x W + b with the weights of a layer, an `nn.Linear` say."""
    y = x.dot(layer.W.array)
    if layer.b is not None:
        y += layer.b.array
    return y
