"""Heads that nobody would miss: how much each one matters, and a model without those that matter least.

    modules, scores = dict(model.named_modules()), head_importance(model, batches)
    for path, heads in least_important(scores, 14).items():
        prune(modules[path], heads)

It takes one pass forward and back over some data, and no trial with each head left out.

Source  Michel, Levy & Neubig 2019, Are Sixteen Heads Really Better than One?, arXiv 1905.10650
Read next: `examples/claims/heads_differ.py`, which does it with a published model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .backend import Array, to_device, to_host
from .nn import Linear, Module, MultiHeadAttention
from .observer import Observer, observe
from .options import kind, whole
from .tape import gradients, on_gradient
from .tensor import Tensor


def head_importance(model: Module, batches: Iterable[Any], *, loss: Callable[..., Tensor] | None = None,
                    normalised: bool = True) -> dict[str, np.ndarray]:
    """How much every head matters for the loss: an array (N) for each `MultiHeadAttention` of the model, by path.

        I_h = mean over sequences of |Σ y ∘ dy|         y (T, K) is what head h says, dy the gradient of the loss by it

    The sum is the slope dL/dξ of a head that speaks ξ times as loud, at ξ = 1. Its sign is dropped sequence by sequence: a head
    that helps with one and harms with another matters twice, and would not matter at all if the two cancelled.

    Args:
        batches: each is what `loss` is called with, a tuple. It is `model.loss` unless given.
        normalised: divide by √Σ I² of the layer, as the paper does, since gradients of layers differ in size.

    Dropout is off meanwhile, and no `.grad` changes.
    """
    kind("head_importance", Module, "give a model, or any other module", model=model)
    loss = loss or getattr(model, "loss", None)
    if loss is None:
        raise TypeError(f"head_importance: a {type(model).__name__} has no loss of its own; give loss=...")
    slopes = Slopes(model)
    with model.evaluating(), observe(slopes):
        for batch in batches:
            gradients(loss(*batch))
    if silent := [path for path, count in slopes.sequences.items() if not count]:
        raise ValueError(f"head_importance: no gradient came by {', '.join(silent)}; give at least one batch, and a loss that "
                         f"depends on all of the model's attention")
    scores = {path: total / slopes.sequences[path] for path, total in slopes.totals.items()}
    if not normalised:
        return scores
    return {path: score / (np.linalg.norm(score) or 1.0) for path, score in scores.items()}


class Slopes(Observer):
    """Adds up |Σ y ∘ dy| where the heads of an attention, side by side, enter the product that mixes them."""

    def __init__(self, model: Module) -> None:
        attentions = {path: m for path, m in model.named_modules() if isinstance(m, MultiHeadAttention)}
        self.where = {id(m.out): (path, m) for path, m in attentions.items()}
        self.totals = {path: np.zeros(m.N) for path, m in attentions.items()}
        self.sequences = dict.fromkeys(attentions, 0)

    def module(self, module: Any, forward: Callable) -> Callable:
        if id(module) not in self.where:
            return forward
        path, attention = self.where[id(module)]

        def seen(y: Tensor) -> Tensor:                                                       # (B, T, N K)
            if not y.requires_grad:
                raise RuntimeError(f"head_importance: no gradient will come by {path}, since nothing is tracked there; call it "
                                   f"outside of no_grad(), for a model whose parameters require gradients")

            def note(dy: Array) -> None:
                B, T, _ = y.shape
                slopes = (y.array * dy).reshape(B, T, attention.N, attention.K).sum((1, 3))  # (B, N)
                self.totals[path] += to_host(abs(slopes).sum(0))
                self.sequences[path] += B

            on_gradient(y, note)
            return forward(y)
        return seen


def least_important(scores: Mapping[str, np.ndarray], count: int) -> dict[str, list[int]]:
    """The `count` heads of the lowest scores among all layers, by path. Each layer keeps at least its best head.

    >>> least_important({"a": np.array([0.9, 0.1, 0.4]), "b": np.array([0.2, 0.3])}, 2)
    {'a': [1], 'b': [0]}
    """
    whole("least_important", 0, count=count)
    ranked = sorted((score, path, head) for path, row in scores.items() for head, score in enumerate(row.tolist())
                    if head != row.argmax())
    if count > len(ranked):
        raise ValueError(f"least_important: count is {count}, but each of the {len(scores)} layers keeps a head, and only "
                         f"{len(ranked)} can go")
    found: dict[str, list[int]] = {path: [] for path in scores}
    for _, path, head in ranked[:count]:
        found[path].append(head)
    return {path: sorted(heads) for path, heads in found.items() if heads}


def prune(attention: MultiHeadAttention, heads: Sequence[int]) -> None:
    """Take heads out of an attention: its matrices shrink, and it computes what it would if these heads said nothing.

    Heads that share keys and values ("grouped" heads) go together or stay together. One head at least has to stay. To train on,
    make a new optimiser: the old one remembers the old shapes. A model with ALiBi, whose heads are told apart by their number,
    cannot run with fewer.
    """
    kind("prune", MultiHeadAttention, "give one of a model's, such as model.blocks[0].attention", attention=attention)
    N, M, K = attention.N, attention.M, attention.K
    try:
        heads = list(heads)
    except TypeError:
        raise TypeError(f"prune: heads is a {type(heads).__name__}; expected several, such as [0, 2]") from None
    if not all(isinstance(head, int | np.integer) and not isinstance(head, bool) and 0 <= head < N for head in heads):
        raise ValueError(f"prune: heads are {heads!r:.60}; expected whole numbers from 0 to {N - 1}")
    keep = np.ones(N, bool)
    keep[heads] = False
    groups = keep.reshape(M, N // M)                                    # heads of one row share keys and values
    if (groups.any(1) != groups.all(1)).any():
        raise ValueError(f"prune: every {N // M} heads share keys and values, and {heads} has only some of such a group; "
                         f"give whole groups: 0 to {N // M - 1} are the first")
    if not keep.any():
        raise ValueError(f"prune: these are all {N} heads; keep one at least")
    q, kv = np.repeat(keep, K), np.repeat(groups.any(1), K)             # which columns stay
    if hasattr(attention, "qkv"):
        keep_columns(attention.qkv, np.concatenate([q, kv, kv]))
    else:
        keep_columns(attention.q, q)
        keep_columns(attention.kv, np.concatenate([kv, kv]))
    W = attention.out.W
    W.array, W.grad = W.array[to_device(q.nonzero()[0], W.device)], None
    attention.N, attention.M = int(keep.sum()), int(groups.any(1).sum())


def keep_columns(linear: Linear, columns: np.ndarray) -> None:
    """Keep these columns of W, and of b."""
    for p in (p for p in (linear.W, linear.b) if p is not None):
        p.array, p.grad = p.array[..., to_device(columns.nonzero()[0], p.device)], None
