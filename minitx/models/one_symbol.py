"""One symbol more for one text: what a Transformer does when it writes, in as few calls as NumPy needs.

A single vector is through a layer before an op has checked its shapes, and made a Tensor, and a backward that nobody asks for.
So here the same mathematics stands once more, forward only and on plain vectors: each part of a block becomes a function that
computes with the arrays of the model itself. Nothing is copied, so it pays from the first symbol on. Factors stand in arrays
without axes, since NumPy takes twice as long where a vector meets a Python number.

It differs from the model in rounding alone: `tests/test_one_symbol.py` holds the two equal. The readable form is
`TransformerBlock.forward` in `nn/transformer.py`. It is what runs where `fits` says no: for models that are not of GPT-2's form
or on a GPU; and in training, for several texts or symbols at once, and while somebody observes.

Read next: `one_step.py`, the same for recurrent models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn
from ..nn.cache import Cache

Write = Callable[[int, Any], tuple[np.ndarray, Any]]    # a symbol, the state before it -> scores (V), the state behind it
Layer = Callable[[np.ndarray], np.ndarray]              # a vector -> a vector
GELU_C = math.sqrt(2 / math.pi)                         # c of `ops.gelu`
WIDTHS = {(np.ndarray, np.dtype(width)) for width in ("float32", "float64")}


def fits(model: Any) -> bool:
    """Whether `writer` knows the form of this TransformerLM."""
    return (plain(model) and model.embedded.kind == "learned" and type(model.embedded.tokens) is nn.Embedding
            and type(model.final_norm) is nn.LayerNorm and type(model.head) is nn.Linear and type(model.dropout) is nn.Dropout
            and all(map(usual, model.blocks)))


def plain(model: Any) -> bool:
    """Whether all parameters are on the host, in one width, and not in float16, whose sums would have to be `wide`.

    Nobody may have replaced a method of this one model or of a part of it, as a test does that counts calls.
    """
    kinds = {(type(p.array), p.array.dtype) for p in model.parameters()}
    return len(kinds) == 1 and kinds <= WIDTHS and not any(
        callable(value) and hasattr(type(module), name)
        for _, module in model.named_modules() for name, value in vars(module).items())


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
            and type(attention.dropout) is type(block.dropout) is nn.Dropout)


def writer(model: Any) -> Write:
    """How this model reads on in the cache of one text, without dropout."""
    table, positions = model.embedded.tokens.table.array, model.embedded.positions.array
    blocks = [(norm_of(block.attention_norm), attention_of(block.attention), norm_of(block.feed_norm), feed_of(block.feed))
              for block in model.blocks]
    final_norm, head = norm_of(model.final_norm), linear_of(model.head)

    def write(symbol: int, cache: Cache) -> tuple[np.ndarray, Cache]:
        x = row(table, symbol) + positions[cache.length]                                     # (D)
        for attention_norm, attention, feed_norm, feed in blocks:
            x += attention(attention_norm(x), cache)
            x += feed(feed_norm(x))
        cache.advance(1)
        return head(final_norm(x)), cache

    return write


def row(table: np.ndarray, symbol: int) -> np.ndarray:
    """See `ops.embedding`. NumPy would count negative symbols from the end."""
    if not 0 <= symbol < len(table):
        raise IndexError(f"embedding: ids must be from 0 to {len(table) - 1}, got {symbol}")
    return table[symbol]


def norm_of(layer: nn.LayerNorm) -> Layer:
    """See `ops.layer_norm`. Products with a vector add up: 1/D times each number is the mean."""
    gamma, beta, eps, D = layer.gamma.array, layer.beta.array, layer.eps, layer.gamma.size
    share = np.full(D, 1 / D, gamma.dtype)

    def norm(x: np.ndarray) -> np.ndarray:
        y = x - x.dot(share)
        y *= 1 / math.sqrt(y.dot(y) / D + eps)
        y *= gamma
        y += beta
        return y

    return norm


def linear_of(layer: nn.Linear) -> Layer:
    """See `ops.linear`."""
    W = layer.W.array
    b = np.zeros((), W.dtype) if layer.b is None else layer.b.array

    def linear(x: np.ndarray) -> np.ndarray:
        y = x.dot(W)
        y += b
        return y

    return linear


def attention_of(layer: nn.MultiHeadAttention) -> Callable[[np.ndarray, Cache], np.ndarray]:
    """See `ops.attention`: what the query of the newest position finds at all so far; its key and value go into the cache."""
    N, M, K, qkv, out = layer.N, layer.M, layer.K, linear_of(layer.qkv), linear_of(layer.out)
    scale = np.array(1 / math.sqrt(K), layer.out.W.dtype)

    def attention(x: np.ndarray, cache: Cache) -> np.ndarray:
        heads = qkv(x).reshape(1, N + 2 * M, 1, K)
        keys, values = cache.append(layer, heads[:, N:N + M], heads[:, N + M:])              # (1, M, Tk, K)
        q = heads[:, :N].reshape(1, M, N // M, K)
        q *= scale
        probs = q @ keys.swapaxes(2, 3)                                                      # (1, M, N/M, Tk)
        probs -= probs.max(-1, keepdims=True)
        np.exp(probs, out=probs)
        y = probs @ values                                                                   # (1, M, N/M, K)
        y /= probs.sum(-1, keepdims=True)
        return out(y.reshape(N * K))

    return attention


def feed_of(layer: nn.FeedForward) -> Layer:
    """Up, `ops.gelu`, down. The GELU x (1 + tanh u) / 2 is x / (1 + exp(-2u)), with u = c (x + a x³)."""
    up, down = linear_of(layer.up), linear_of(layer.down)
    one, first, third = (np.array(n, layer.up.W.dtype) for n in (1, -2 * GELU_C, -2 * GELU_C * 0.044715))

    def feed(x: np.ndarray) -> np.ndarray:
        x = up(x)
        y = x * x
        y *= third
        y += first
        y *= x                                                                               # -2u
        np.exp(y, out=y)
        y += one
        return down(np.divide(x, y, out=y))

    return feed
