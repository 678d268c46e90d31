"""One symbol more for one text: what a Transformer does when it writes, in as few calls as NumPy needs.

A single vector is through a layer before an op has checked its shapes, and made a Tensor, and a backward that nobody asks for.
So here the same mathematics stands once more, forward only and on plain vectors. Of layer norm, what is the same for every
symbol is worked out before the first one, in the weights beside it:

    ((x - mean) r γ + β) W + b = (x - mean) r (γ W) + (β W + b)         r = 1/√(variance + eps); see `after`
    mean = 0, and variance = Σ x² / D                                   if whatever is added to x has mean 0; see `centred`

It differs from the model in rounding alone: `tests/test_one_symbol.py` holds the two equal. The readable form is
`TransformerBlock.forward` in `nn/transformer.py`. It is what runs where `fits` says no: for models that are not of GPT-2's form
or on a GPU; and in training, for several texts or symbols at once, and while somebody looks on.

Source  layer norm in the weights beside it: Ashkboos et al. 2024, arXiv 2401.15024

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
GELU_C = math.sqrt(2 / math.pi)                         # c of `ops.gelu`
WIDTHS = {(np.ndarray, np.dtype(width)) for width in ("float32", "float64")}
METHODS = "forward", "embed", "body", "step", "extend"  # which a model may have been given for itself


def fits(model: Any) -> bool:
    """Whether `writer` knows the form of this TransformerLM."""
    return (plain(model) and model.embedded.kind == "learned" and type(model.embedded.tokens) is nn.Embedding
            and type(model.final_norm) is nn.LayerNorm and type(model.head) is nn.Linear and all(map(usual, model.blocks)))


def plain(model: Any) -> bool:
    """Whether all parameters are on the host, in one width, and not in float16, whose sums would have to be `wide`.

    Nobody may have replaced a method of this one model, as a test does that counts calls.
    """
    kinds = {(type(p.array), p.array.dtype) for p in model.parameters()}
    return len(kinds) == 1 and kinds <= WIDTHS and vars(model).keys().isdisjoint(METHODS)


def usual(block: Any) -> bool:
    """Whether a block is one of GPT-2: normalised before each step, with the GELU that has a tanh, and without a memory."""
    if type(block) is not nn.TransformerBlock:
        return False
    attention, feed = block.attention, block.feed
    return (block.norm == "pre" and not hasattr(block, "cross")
            and type(attention) is nn.MultiHeadAttention and attention.rotary is None
            and type(feed) is nn.FeedForward and feed.kind == "gelu"
            and type(block.attention_norm) is type(block.feed_norm) is nn.LayerNorm
            and type(attention.qkv) is type(attention.out) is type(feed.up) is type(feed.down) is nn.Linear)


def writer(model: Any) -> Write:
    """How this model, with the weights that it has now, reads on in the cache of one text, without dropout."""
    table, positions = model.embedded.tokens.table.array, model.embedded.positions.array
    blocks = [(block.attention, after(block.attention_norm, block.attention.qkv), centred(block.attention.out),
               after(block.feed_norm, block.feed.up), centred(block.feed.down)) for block in model.blocks]
    head = after(model.final_norm, model.head)

    def write(symbol: int, cache: Cache) -> tuple[np.ndarray, Cache]:
        x = row(table, symbol) + positions[cache.length]                                     # (D)
        x -= x.sum() / x.size
        for attention, qkv, out, up, down in blocks:
            x += linear(attended(attention, normal(x, *qkv), cache), *out)
            x += linear(gelu(normal(x, *up)), *down)
        cache.advance(1)
        return normal(x, *head), cache

    return write


def after(norm: nn.LayerNorm, layer: nn.Linear) -> tuple[np.ndarray, np.ndarray, float]:
    """γ W and β W + b of a layer that follows a norm, and its eps, for `normal`."""
    W, b = weights(layer)
    return norm.gamma.array[:, None] * W, norm.beta.array.dot(W) + b, norm.eps


def centred(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """W and b of a layer whose results shall have mean 0: without the mean of each row."""
    W, b = weights(layer)
    return W - W.mean(1, keepdims=True), b - b.mean()


def weights(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """W and b of a layer; zeros where it has no b."""
    W = layer.W.array
    return W, np.zeros(W.shape[1], W.dtype) if layer.b is None else layer.b.array


def row(table: np.ndarray, symbol: int) -> np.ndarray:
    """See `ops.embedding`. NumPy would count negative symbols from the end."""
    if not 0 <= symbol < len(table):
        raise IndexError(f"embedding: ids must be from 0 to {len(table) - 1}, got {symbol}")
    return table[symbol]


def normal(x: np.ndarray, W: np.ndarray, b: np.ndarray, eps: float) -> np.ndarray:
    """See `ops.layer_norm` and `ops.linear`: of x (D), whose mean is 0, with what `after` made of both."""
    return linear(x * (1 / math.sqrt(x.dot(x) / x.size + eps)), W, b)


def linear(x: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """See `ops.linear`."""
    y = x.dot(W)
    y += b
    return y


def attended(attention: nn.MultiHeadAttention, qkv: np.ndarray, cache: Cache) -> np.ndarray:
    """See `ops.attention`: what the query of the newest position finds at all so far; its key and value go into the cache."""
    N, M, K = attention.N, attention.M, attention.K
    heads = qkv.reshape(1, N + 2 * M, 1, K)
    keys, values = cache.append(attention, heads[:, N:N + M], heads[:, N + M:])              # (1, M, Tk, K)
    q = heads[:, :N].reshape(1, M, N // M, K)
    q *= 1 / math.sqrt(K)
    probs = q @ keys.swapaxes(2, 3)                                                          # (1, M, N/M, Tk)
    probs -= probs.max(-1, keepdims=True)
    np.exp(probs, out=probs)
    y = probs @ values                                                                       # (1, M, N/M, K)
    y /= probs.sum(-1, keepdims=True)
    return y.reshape(N * K)


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
