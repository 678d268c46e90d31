"""Multi-head attention and the Transformer block.

Read next: `models.py`, where blocks become a language model.
"""

from __future__ import annotations

from typing import Any

from .. import ops
from ..options import whole
from ..tensor import Tensor
from .layers import Dropout, LayerNorm, Linear
from .module import Module, check_sequences


class MultiHeadAttention(Module):
    """N heads of width K = D/N, each attending for itself: x (B, T, D) -> (B, T, D).

    One product makes q, k and v of all heads. `mask` (broadcasting to (B, N, T, T)) is True where a key may be attended;
    `causal` lets no position look at a later one.
    """

    def __init__(self, D: int, N: int, *, causal: bool = False, rng: Any = None, dtype: str = "float32") -> None:
        whole("MultiHeadAttention", D=D, N=N)
        if D % N:
            raise ValueError(f"MultiHeadAttention: the width D = {D} must be divisible by the number of heads N = {N}")
        self.qkv, self.out = Linear(D, 3 * D, rng=rng, dtype=dtype), Linear(D, D, rng=rng, dtype=dtype)
        self.N, self.causal = N, causal

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        check_sequences("MultiHeadAttention", x)
        B, T, D = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, self.N, D // self.N)
        q, k, v = ops.unstack(qkv.transpose(2, 0, 3, 1, 4))                                  # (B, N, T, K) each
        y = ops.attention(q, k, v, mask, causal=self.causal)                                 # (B, N, T, K)
        return self.out(y.transpose(0, 2, 1, 3).reshape(B, T, D))


class TransformerBlock(Module):
    """Attention between positions, then a small network at each position, each added to a stream that passes by.

        norm="pre"   x = x + attention(norm(x));  x = x + feed(norm(x))        the stream itself is never normalised
        norm="post"  x = norm(x + attention(x));  x = norm(x + feed(x))        the form of 2017, harder to train when deep

    With `feed(x) = gelu(x W + b) W' + b'`, F = 4 D wide unless given.
    Source  Vaswani et al. 2017, arXiv 1706.03762; pre-norm: Xiong et al. 2020, arXiv 2002.04745
    """

    def __init__(self, D: int, N: int, F: int | None = None, *, norm: str = "pre", causal: bool = False, dropout: float = 0.0,
                 rng: Any = None, dtype: str = "float32") -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"TransformerBlock: norm must be 'pre' or 'post', got {norm!r}")
        whole("TransformerBlock", D=D, N=N)
        self.norm, F = norm, 4 * D if F is None else F
        self.attention_norm, self.feed_norm = LayerNorm(D, dtype=dtype), LayerNorm(D, dtype=dtype)
        self.attention = MultiHeadAttention(D, N, causal=causal, rng=rng, dtype=dtype)
        self.up, self.down = Linear(D, F, rng=rng, dtype=dtype), Linear(F, D, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            return x + self.dropout(self.feed(self.feed_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.feed_norm(x + self.dropout(self.feed(x)))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(ops.gelu(self.up(x)))
