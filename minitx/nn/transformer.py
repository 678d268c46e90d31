"""Multi-head attention, the feed-forward network, and the Transformer block that is made of both.

Read next: `models/language.py`, and then its neighbours, where blocks become models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import backend, ops
from ..backend import Array
from ..options import kind as check_kind
from ..options import whole
from ..tensor import Tensor, zeros
from .cache import Cache
from .layers import Dropout, LayerNorm, Linear, RMSNorm
from .module import Module, check_sequences

FLASH = 512 * 512       # pairs from which causal attention in tiles is faster, on one CPU core and on two: docs/speed.md
NORMS = {"layer": LayerNorm, "rms": RMSNorm}
FEEDS = ("gelu", "gelu_exact", "relu", "swiglu")


class MultiHeadAttention(Module):
    """N heads of width K, each attending for itself: x (B, T, D) -> (B, T, D).

    Args:
        M: heads of keys and values, each shared by N/M heads of queries ("grouped" heads); N unless given.
        cross: keys and values come from another sequence, `memory` (B, Tk, D).
        rotary: options of `ops.rotary`, by which queries and keys are turned; None: they are not.
        dropout: the probability with which a weight of attention is dropped while training.

    One product makes q, k and v of all heads; with `cross`, one makes q and one k and v. `mask`, broadcasting to
    (B, N, T, Tk), is True where a key may be attended; `causal` lets no position look at a later one; `bias` is added to the
    scores. Causal attention of at least `FLASH` pairs of positions, on a CPU and without dropout, is `ops.flash_attention`:
    a rule of lengths alone, so that a run has the same bits however it is looked at.
    """

    def __init__(self, D: int, N: int, *, M: int | None = None, K: int | None = None, causal: bool = False, cross: bool = False,
                 rotary: Mapping[str, Any] | None = None, use_bias: bool = True, dropout: float = 0.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        M = N if M is None else M
        whole("MultiHeadAttention", D=D, N=N, M=M, **({} if K is None else {"K": K}))
        check_kind("MultiHeadAttention", bool, "give True or False", causal=causal, cross=cross, use_bias=use_bias)
        if K is None and D % N:
            raise ValueError(f"MultiHeadAttention: the width D = {D} must be divisible by the number of heads N = {N}")
        if cross and (causal or rotary is not None):
            raise ValueError("MultiHeadAttention: with cross=True, queries and keys are of two sequences, whose places have "
                             "nothing to do with each other; leave out causal and rotary")
        if N % M:
            raise ValueError(f"MultiHeadAttention: the {N} heads of queries must be a multiple of the M = {M} heads of keys")
        self.K, self.N, self.M = K or D // N, N, M
        self.causal, self.rotary, self.dropout = causal, rotary, Dropout(dropout, rng=rng)
        options = {"bias": use_bias, "rng": rng, "dtype": dtype}
        if cross:
            self.q, self.kv = Linear(D, N * self.K, **options), Linear(D, 2 * M * self.K, **options)
        else:
            self.qkv = Linear(D, (N + 2 * M) * self.K, **options)
        self.out = Linear(N * self.K, D, **options)
        if rotary is not None:
            check_kind("MultiHeadAttention", Mapping, "give options of ops.rotary, {} for its own", rotary=rotary)
            ops.rotary(zeros(1, 1, 1, self.K, like=self.out.W), backend.device("cpu").xp.arange(1), **rotary)    # or it refuses

    def forward(self, x: Tensor, mask: Any = None, *, bias: Any = None, memory: Tensor | None = None, positions: Any = None,
                cache: Cache | None = None) -> Tensor:
        check_sequences("MultiHeadAttention", x)
        if cache is not None:
            check_kind("MultiHeadAttention", Cache, "give nn.Cache(T)", cache=cache)
        B, T, _ = x.shape
        if cache is not None and memory is None:            # x goes on from what is in the cache, behind its padding
            mask, positions = cache.within(mask, T), cache.positions(T, x.device) if positions is None else positions
        q, k, v = self.project(x, memory, cache)                                             # (B, N | M, T | Tk, K)
        if self.rotary is not None:
            positions = backend.device(x.device).xp.arange(T) if positions is None else positions
            q, k = (ops.rotary(y, positions, **self.rotary) for y in (q, k))
        if cache is not None and memory is None:
            k, v = cache.extend(self, k, v)
        keep = self.dropout.mask((B, self.N, T, k.shape[2]), x.device)
        if self.causal and keep is None and T * k.shape[2] >= FLASH and x.device == "cpu":   # y (B, N, T, K)
            y = ops.flash_attention(q, k, v, mask, bias, causal=True)
        else:
            y = ops.attention(q, k, v, mask, bias, keep, causal=self.causal, p=self.dropout.p)
        return self.out(ops.merge_heads(y))

    def project(self, x: Tensor, memory: Tensor | None, cache: Cache | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N, T, K), keys and values (B, M, Tk, K); those of a memory are made once for a cache."""
        N, M = self.N, self.M
        if hasattr(self, "qkv"):
            if memory is not None:
                raise ValueError("MultiHeadAttention: memory was given, but this one attends to x; build it with cross=True")
            return ops.split_heads(self.qkv(x), heads=(N, M, M))
        check_sequences("MultiHeadAttention", memory)

        def keys_and_values() -> Any:
            return ops.split_heads(self.kv(memory), heads=(M, M))

        k, v = keys_and_values() if cache is None else cache.once(self, memory, keys_and_values)
        return *ops.split_heads(self.q(x), heads=(N,)), k, v


class FeedForward(Module):
    """A small network at every position: (B, T, D) -> (B, T, D), F wide inside.

        "gelu", "gelu_exact", "relu"    f(x W + b) W' + b'; "gelu" is the form with tanh
        "swiglu"                        (silu(x W) ∘ x G) W', Shazeer 2020, arXiv 2002.05202
    """

    def __init__(self, D: int, F: int, kind: str = "gelu", *, use_bias: bool = True, rng: Any = None,
                 dtype: str = "float32") -> None:
        whole("FeedForward", D=D, F=F)
        check_kind("FeedForward", bool, "give True or False", use_bias=use_bias)
        if kind not in FEEDS:
            raise ValueError(f"FeedForward: kind must be one of {', '.join(FEEDS)}, got {kind!r}")
        options = {"bias": use_bias, "rng": rng, "dtype": dtype}
        self.kind, self.up = kind, Linear(D, F, **options)
        if kind == "swiglu":
            self.gate = Linear(D, F, **options)
        self.down = Linear(F, D, **options)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "swiglu":
            return self.down(ops.silu(self.gate(x)) * self.up(x))
        if self.kind == "relu":
            return self.down(ops.relu(self.up(x)))
        return self.down(ops.gelu(self.up(x), approximate="tanh" if self.kind == "gelu" else "none"))


class TransformerBlock(Module):
    """Attention between positions, then a small network at each position, each added to a stream that passes by.

        norm="pre"   x = x + attention(norm(x));  x = x + feed(norm(x))        the stream itself is never normalised
        norm="post"  x = norm(x + attention(x));  x = norm(x + feed(x))        the form of 2017, harder to train when deep

    Args:
        F: the width of the feed-forward network, 4 D unless given; `feed` is its kind (see `FeedForward`).
        normaliser: "layer" or "rms"; `eps` is its.
        cross: between the two, a third step attends to a second sequence, `memory` (B, Tk, D): the decoder of 2017.
        M, rotary, use_bias: see `MultiHeadAttention`; dropout: of its weights, and of what each step adds to the stream.

    Source  Vaswani et al. 2017, arXiv 1706.03762; pre-norm: Xiong et al. 2020, arXiv 2002.04745
    """

    def __init__(self, D: int, N: int, F: int | None = None, *, norm: str = "pre", normaliser: str = "layer", eps: float = 1e-5,
                 feed: str = "gelu", causal: bool = False, cross: bool = False, M: int | None = None,
                 rotary: Mapping[str, Any] | None = None, use_bias: bool = True, dropout: float = 0.0, rng: Any = None,
                 dtype: str = "float32") -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"TransformerBlock: norm must be 'pre' or 'post', got {norm!r}")
        if normaliser not in list(NORMS):
            raise ValueError(f"TransformerBlock: normaliser must be one of {', '.join(NORMS)}, got {normaliser!r}")
        whole("TransformerBlock", D=D, N=N)
        check_kind("TransformerBlock", bool, "give True or False", cross=cross)
        shared: dict[str, Any] = {"use_bias": use_bias, "rng": rng, "dtype": dtype}

        def normal() -> Module:
            return NORMS[normaliser](D, eps=eps, dtype=dtype)

        self.norm = norm
        self.attention_norm, self.attention = normal(), MultiHeadAttention(D, N, M=M, causal=causal, rotary=rotary,
                                                                           dropout=dropout, **shared)
        if cross:
            self.cross_norm, self.cross = normal(), MultiHeadAttention(D, N, M=M, cross=True, dropout=dropout, **shared)
        self.feed_norm, self.feed = normal(), FeedForward(D, 4 * D if F is None else F, feed, **shared)
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x: Tensor, mask: Any = None, *, bias: Any = None, positions: Any = None, cache: Cache | None = None,
                memory: Tensor | None = None, memory_mask: Array | None = None) -> Tensor:
        x = self.add(x, self.attention_norm,
                     lambda y: self.attention(y, mask, bias=bias, positions=positions, cache=cache))
        if hasattr(self, "cross"):
            x = self.add(x, self.cross_norm, lambda y: self.look(y, memory, memory_mask, cache))
        elif memory is not None or memory_mask is not None:
            raise ValueError("TransformerBlock: memory was given, but this one looks at x alone; build it with cross=True")
        return self.add(x, self.feed_norm, self.feed)

    def look(self, y: Tensor, memory: Any, mask: Array | None, cache: Cache | None) -> Tensor:
        """Attention to a memory. Several rows of y for each of its rows, side by side, are so many queries to it."""
        check_sequences("TransformerBlock", memory)
        (R, T, D), B = y.shape, memory.shape[0]
        if R % max(B, 1) or (R and not B):
            raise ValueError(f"TransformerBlock: x has {R} rows and the memory {B}; expected as many, or a multiple: so many "
                             f"for each row of the memory, side by side")
        queries = y.reshape(B, R // max(B, 1) * T, D)
        return self.cross(queries, mask, memory=memory, cache=cache).reshape(R, T, D)

    def add(self, x: Tensor, norm: Module, step: Any) -> Tensor:
        """One step of the block, added to the stream."""
        if self.norm == "pre":
            return x + self.dropout(step(norm(x)))
        return norm(x + self.dropout(step(x)))
