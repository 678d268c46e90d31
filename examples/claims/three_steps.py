"""A first lesson: attention in three lines.

    python examples/claims/three_steps.py

Claim      "The textbook's three steps (scores, softmax, weighted sum), and the split into heads, are all there is."
Statistic  the largest relative difference, of values and of all gradients, between three lines of NumPy (and the same three
           walked backwards) and `ops.attention`, `ops.textbook_attention`, PyTorch's own where it is installed; and between
           `nn.MultiHeadAttention` and those lines, head by head. Random arrays in float64, with and without masks, causal, with
           scales, and with several lengths.
Rule       below 1e-11, each of them.
Control    with a step left out (no scale), or along the wrong axis (softmax over queries), they differ by more than 0.01.

What it prints first is the lesson: a sentence of five words, each with a query, a key and a value that one can read.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, table, worst

import minitx as mx
from minitx import nn, ops

try:
    import torch
except ImportError:
    torch = None

SHAPES = ((1, 1, 3, 3, 2), (2, 4, 5, 7, 8), (3, 2, 1, 9, 16))               # B, N, Tq, Tk, K
FULL_SHAPES = (*SHAPES, (4, 8, 64, 64, 64), (1, 16, 200, 300, 64))
SAME, CLEAR = 1e-11, 0.01

# The lesson. Keys and queries have two channels, "is a being" and "is an action"; values are what a word has to tell.
WORDS = ("the", "cat", "sleeps,", "it", "purrs")
QUERIES = np.array([[0.0, 0], [0, 4], [4, 0], [4, 0], [4, 0]])          # "cat" asks what is done, the last three ask who it is
KEYS = np.array([[0.0, 0], [2, 0], [0, 2], [0.5, 0], [0, 2]])           # a cat is a being, "it" a bit of one, purring an action
VALUES = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]])
TELLS = ("furry", "asleep", "purring")


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def three_lines(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: Any = True, scale: float | None = None) -> tuple:
    """Attention, and its way back."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    scores = np.where(allowed, q @ k.swapaxes(-1, -2) * scale, -np.inf)      # 1  how well does each query fit each key?
    probs = softmax(scores)                                                  # 2  weights that sum to one
    y = probs @ v                                                            # 3  the average of the values

    def backward(dy: np.ndarray) -> tuple[np.ndarray, ...]:
        dprobs, dv = dy @ v.swapaxes(-1, -2), probs.swapaxes(-1, -2) @ dy                    # 3
        dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True))                 # 2
        return dscores @ k * scale, dscores.swapaxes(-1, -2) @ q * scale, dv                 # 1

    return y, backward


def lesson() -> str:
    """The three steps on five words, with all numbers."""
    scores = QUERIES @ KEYS.T / math.sqrt(2)
    probs = softmax(scores)
    y = probs @ VALUES

    def grid(numbers: np.ndarray, columns: Any) -> str:
        return table(["", *columns], *([word, *(f"{n:.2f}" for n in row)] for word, row in zip(WORDS, numbers, strict=True)))

    taken = {word: " and ".join(f"{share:.0%} from {other!r}" for other, share in zip(WORDS, p) if share > 0.1)
             for word, p in zip(WORDS, probs)}
    told = [f"   {word!r} takes {what}" for word, what in taken.items() if what.count("and") < 2]
    has = [["", "query: being?", "action?", "key: being", "action", *(f"value: {t}" if t == TELLS[0] else t for t in TELLS)]]
    has += [[word, *(f"{n:g}" for n in row)] for word, row in zip(WORDS, np.hstack([QUERIES, KEYS, VALUES]), strict=True)]
    return "\n".join([
        f"The sentence: {' '.join(WORDS)}. Every word asks (its query), can be found (its key) and has something to tell (its "
        f"value):", table(*has), "",
        "1. scores = q kᵀ / √K: does the query (row) fit the key (column)?", grid(scores, WORDS), "",
        "2. probs = softmax(scores): every row becomes weights that sum to one", grid(probs, WORDS), "",
        "3. y = probs v: the average of what the words have to tell", grid(y, TELLS), "", *told])


def furthest(ours: Any, theirs: Any) -> float:
    """The largest difference of two lists of arrays, each relative to its largest number."""
    return worst(abs(a - b).max() / abs(b).max() for a, b in zip(ours, theirs, strict=True))


def by_op(op: Any, arrays: list[np.ndarray], dy: np.ndarray, mask: Any, scale: Any) -> list[np.ndarray]:
    y, backward = op.vjp(*arrays, mask, scale=scale)
    return [y, *backward(dy)[:3]]


def by_torch(arrays: list[np.ndarray], dy: np.ndarray, mask: Any, scale: Any) -> list[np.ndarray]:
    q, k, v = (torch.tensor(a, requires_grad=True) for a in arrays)
    allowed = None if mask is None else torch.tensor(np.broadcast_to(mask, (*q.shape[:3], k.shape[2])).copy())
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed, scale=scale)
    return [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y, (q, k, v), torch.tensor(dy)))]


def by_module(rng: np.random.Generator) -> float:
    """`nn.MultiHeadAttention` against three lines in a loop over its heads, with slices of its matrices."""
    B, T, D, N = 2, 6, 12, 3
    module, (x, dy) = nn.MultiHeadAttention(D, N, rng=rng, dtype="float64"), rng.standard_normal((2, B, T, D))
    t = mx.tensor(x, requires_grad=True)
    y = module(t)
    y.backward(dy)
    K, (W, b, out, c) = D // N, (p.array for p in (module.qkv.W, module.qkv.b, module.out.W, module.out.b))
    total, dx = np.zeros((B, T, D)) + c, np.zeros((B, T, D))
    for n in range(N):
        columns = [slice(part * D + n * K, part * D + (n + 1) * K) for part in range(3)]     # of q, k and v of head n
        y_n, backward = three_lines(*(x @ W[:, cut] + b[cut] for cut in columns))
        rows = out[n * K:(n + 1) * K]
        total += y_n @ rows
        dx += sum(d @ W[:, cut].T for d, cut in zip(backward(dy @ rows.T), columns, strict=True))
    return furthest([y.array, t.grad], [total, dx])


def measure(shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rivals = {"ops.attention": lambda *a: by_op(ops.attention, *a), "ops.textbook_attention":
              lambda *a: by_op(ops.textbook_attention, *a)} | ({"PyTorch": by_torch} if torch else {})
    found = {name: 0.0 for name in rivals} | {"nn.MultiHeadAttention": by_module(rng)}
    wrong = {"no scale": math.inf, "softmax over queries": math.inf}
    for (B, N, Tq, Tk, K), kind, scale in itertools.product(shapes, ("all", "mask", "causal"), (None, 0.3)):
        arrays = [rng.standard_normal((B, N, T, K)) for T in (Tq, Tk, Tk)]
        dy = rng.standard_normal((B, N, Tq, K))
        mask = {"all": None, "mask": rng.random((B, 1, Tq, Tk)) < 0.6, "causal": np.tri(Tq, Tk, Tk - Tq, dtype=bool)}[kind]
        if kind == "mask":
            mask[..., 0] = True
        y, backward = three_lines(*arrays, True if mask is None else mask, scale)
        expected = [y, *backward(dy)]
        for name, rival in rivals.items():
            found[name] = worst([found[name], furthest(rival(arrays, dy, mask, scale), expected)])
        if kind == "all" and scale is None and Tq > 1:
            q, k, v = arrays
            unscaled, flipped = q @ k.swapaxes(-1, -2), q @ k.swapaxes(-1, -2) / math.sqrt(K)
            over_queries = softmax(flipped.swapaxes(-1, -2)).swapaxes(-1, -2)
            for name, p in (("no scale", softmax(unscaled)), ("softmax over queries", over_queries)):
                wrong[name] = float(np.min([wrong[name], furthest([p @ v], [y])]))
    return {"differences": found, "wrong": wrong}


def verdict(numbers: dict[str, Any]) -> Verdict:
    return Verdict({f"{name} is these steps (differs by {d:.0e}, < {SAME:.0e})": d < SAME
                    for name, d in numbers["differences"].items()},
                   {f"{name} would be seen (differs by {d:.2f}, > {CLEAR})": d > CLEAR for name, d in numbers["wrong"].items()})


def text(numbers: dict[str, Any]) -> str:
    rows = [["three lines of NumPy against", "largest relative difference"]]
    rows += [[name, f"{d:.1e}"] for name, d in (numbers["differences"] | numbers["wrong"]).items()]
    return f"{lesson()}\n\n{table(*rows)}"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    scores = QUERIES @ KEYS.T / math.sqrt(2)
    probs = softmax(scores)
    panels = figure.subplots(1, 3)
    steps = (("1. scores: does the query fit the key?", scores, WORDS, "Purples"),
             ("2. softmax: weights", probs, WORDS, "Blues"), ("3. average of the values", probs @ VALUES, TELLS, "Greens"))
    for panel, (title, grid, columns, colours) in zip(panels, steps, strict=True):
        panel.imshow(grid, cmap=colours, vmin=0, vmax=grid.max())
        for (i, j), number in np.ndenumerate(grid):
            panel.text(j, i, f"{number:.2f}", ha="center", va="center", color="white" if number > 0.6 * grid.max() else "black")
        panel.set_xticks(range(len(columns)), columns)
        panel.set_yticks(range(len(WORDS)), WORDS)
        panel.set_title(title)
    panels[0].set(xlabel="key of", ylabel="query of")
    panels[1].set_xlabel("how much is taken from")
    panels[2].set_xlabel("what it now knows")
    figure.suptitle(f"Attention in three steps: “{' '.join(WORDS)}”", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_SHAPES if args.full else SHAPES)
    report("three_steps", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
