"""Is attention a weighted average, and no more?

    python examples/claims/stochastic_matrix.py

Claim      "Attention is a weighted average of the values, no more."
Statistic  over many calls of `ops.attention` (masks, causal, biases, heads that share keys, scores from tiny to huge), and over
           all calls inside a small language model before and after training: (1) how far a row of weights is from summing to 1;
           (2) the smallest weight; (3) how far an output leaves the range of the values that it averages, channel by channel,
           relative to the largest value. The calls are in float64, the model in float32.
Rule       (1) and (3) below 1e-12, in float32 1e-5; (2) not below 0.
Control    dropout on the weights, which scales up what it keeps, breaks (1) by more than 0.1; exp without the division leaves
           the range by more than 1: the statistics can tell.

A row that may look at nothing has no weights: they sum to 0, and so do the outputs; such rows are counted apart. What a whole
layer makes of the averages, a linear map of all heads together, may leave any range; and a matrix whose rows are weights is
called stochastic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, table, worst

import minitx as mx
from minitx import models, ops
from minitx.data import Vocabulary, load_corpus, windows
from minitx.training import train

CALLS, FULL_CALLS = 200, 5000
STEPS, FULL_STEPS = 60, 1000
LIMITS = {"float64": 1e-12, "float32": 1e-5}


class Averages(mx.Observer):
    """What one sees of every call of attention: weights (B, N, Tq, Tk), outputs (B, N, Tq, K), values (B, M, Tk, K), and
    which rows have a key (B, N, Tq)."""

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, ...]] = []

    def around(self, op: Any, vjp: Any) -> Any:
        def looked_at(*arrays: Any, **static: Any) -> Any:
            shown: list[np.ndarray] = []
            y, backward = vjp(*arrays, **{**static, "watch": lambda name, probs, step: shown.append(probs.copy())})
            some = with_a_key(shown[0].shape, *arrays[3:4], causal=static.get("causal", False))
            self.seen.append((shown[0], y, arrays[2], some))
            return y, backward

        return looked_at if op is ops.attention else vjp


def with_a_key(shape: tuple[int, ...], mask: Any = None, *, causal: bool) -> np.ndarray:
    """Which rows (B, N, Tq) of weights (B, N, Tq, Tk) may look at any key."""
    allowed = np.broadcast_to(True if mask is None else mask, shape)
    return (allowed & np.tri(*shape[2:], shape[3] - shape[2], dtype=bool) if causal else allowed).any(-1)


def judged(probs: np.ndarray, y: np.ndarray, v: np.ndarray, some: np.ndarray | bool = True) -> dict[str, float]:
    """The three numbers of a call. Values that a row gives no weight do not count for its range.

    Rows have `some` key to look at. Where one has none, its weights sum to 0 and its output is 0, or it is off, too.
    """
    v = v.repeat(probs.shape[1] // v.shape[1], 1)[:, :, None]                                # (B, N, 1, Tk, K)
    used, sums = probs[..., None] > 0, probs.sum(-1)
    some = np.broadcast_to(some, sums.shape)
    low, high = np.where(used, v, np.inf).min(3), np.where(used, v, -np.inf).max(3)          # (B, N, Tq, K)
    nothing = ~some[..., None] & (y == 0)
    outside = np.where(nothing, 0, np.maximum(low - y, y - high)) / abs(v).max(initial=1e-9)
    return {"sum": float(abs(sums - some).max(initial=0)), "least": float(probs.min(initial=0)),
            "outside": float(outside.max(initial=0)), "nothing": int((~some).sum())}


def together(found: list[dict[str, float]]) -> dict[str, float]:
    return {"sum": worst(f["sum"] for f in found), "least": float(np.min([f["least"] for f in found])),
            "outside": worst(f["outside"] for f in found), "nothing": sum(f["nothing"] for f in found), "calls": len(found)}


def random_call(rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an attention with any of its options."""
    N, M, (Tq, Tk) = 4, int(rng.choice([1, 2, 4])), rng.integers(1, 12, 2)
    q, k, v = (rng.standard_normal((2, heads, T, 8)) for heads, T in ((N, Tq), (M, Tk), (M, Tk)))
    mask = rng.random((2, 1, Tq, Tk)) < 0.7 if rng.random() < 0.5 else None
    bias = rng.standard_normal((N, Tq, Tk)) if rng.random() < 0.5 else None
    return [q, k, v, mask, bias], {"causal": bool(rng.random() < 0.5), "scale": float(10 ** rng.uniform(-2, 2))}


def call(arrays: list[Any], **static: Any) -> dict[str, float]:
    seen: list[np.ndarray] = []
    y, _ = ops.attention.vjp(*arrays, **static, watch=lambda name, probs, step: seen.append(probs.copy()))
    return judged(seen[0], y, arrays[2], with_a_key(seen[0].shape, arrays[3], causal=static["causal"]))


def controls() -> dict[str, float]:
    """What the statistics say of two that are no averages."""
    rng = np.random.default_rng(0)
    arrays, _ = random_call(rng)
    q, k, v = arrays[:3]
    scores = q @ k.repeat(4 // k.shape[1], 1).swapaxes(-1, -2)
    raw, weights = np.exp(scores), ops.softmax.vjp(scores)[0]
    dropped = weights * (rng.random(weights.shape) >= 0.3) / 0.7
    values = v.repeat(4 // v.shape[1], 1)
    return {"dropout": judged(dropped, dropped @ values, v)["sum"], "no division": judged(raw, raw @ values, v)["outside"]}


def inside(model: Any, ids: np.ndarray) -> dict[str, float]:
    """All calls that a model makes while it reads."""
    with mx.observe(Averages()) as averages:
        model(ids)
    return together([judged(*call) for call in averages.seen])


def measure(calls: int, steps: int) -> dict[str, Any]:
    rng, text = np.random.default_rng(0), load_corpus("en")
    drawn = [random_call(rng) for _ in range(calls)]
    found = {"float64": {"random calls": together([call(arrays, **static) for arrays, static in drawn])}, "float32": {}}
    vocabulary = Vocabulary.of(text.train)
    ids = vocabulary.encode(text.train)
    model = models.TransformerLM(len(vocabulary), 32, 4, 2, 32, rng=rng)
    batch = next(windows(ids, 8, 32, rng))[0]
    found["float32"]["a model at its start"] = inside(model, batch)
    history = train(model, windows(ids, 16, 32, rng), mx.optim.AdamW(model.parameters(), 3e-3), steps=steps,
                    threads=1, title=None)
    found["float32"]["the same, trained"] = inside(model, batch)
    with mx.observe(Averages()) as averages:
        model(batch[:1])
    return {"found": found, "controls": controls(), "losses": [float(history.loss[0]), float(history.loss[-1])],
            "weights": averages.seen[-1][0][0].tolist()}


def verdict(numbers: dict[str, Any]) -> Verdict:
    found = [(LIMITS[width], of) for width, group in numbers["found"].items() for of in group.values()]
    off, out, least = (worst(of["sum"] / limit for limit, of in found), worst(of["outside"] / limit for limit, of in found),
                       float(np.min([of["least"] for _, of in found])))
    dropout, raw = numbers["controls"]["dropout"], numbers["controls"]["no division"]
    return Verdict({f"rows sum to one (the worst takes {off:.0%} of what rounding is allowed)": off < 1,
                    f"no weight is negative (least {least:g})": least >= 0,
                    f"outputs stay in the range of their values (the worst takes {out:.0%} of the same)": out < 1},
                   {f"dropout is found out (rows off by {dropout:.2f} > 0.1)": dropout > 0.1,
                    f"exp without division is found out (outside by {raw:.1f} > 1)": raw > 1})


def text(numbers: dict[str, Any]) -> str:
    rows = [["", "calls", "rows off 1 by", "least weight", "outside the range by", "rows without a key"]]
    for width, group in numbers["found"].items():
        for name, of in group.items():
            rows.append([f"{name}, {width}", of["calls"], f"{of['sum']:.1e}", f"{of['least']:g}", f"{of['outside']:.1e}",
                         of["nothing"]])
    first, last = numbers["losses"]
    return f"{table(*rows)}\nthe model was trained from {first:.2f} to {last:.2f} nats"


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    weights = np.array(numbers["weights"])
    panels = figure.subplots(1, len(weights), sharey=True)
    for head, (panel, p) in enumerate(zip(panels, weights, strict=True)):
        image = panel.imshow(p, cmap="Blues", vmin=0, vmax=1)
        sums = p.sum(-1)
        panel.set(title=f"head {head}: rows sum to\n{sums.min():.6f} … {sums.max():.6f}", xlabel="key")
    panels[0].set_ylabel("query")
    figure.colorbar(image, ax=list(panels), label="weight")
    figure.suptitle("The stochastic matrices of a small language model, last block, after training", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_CALLS, FULL_STEPS) if args.full else measure(CALLS, STEPS)
    report("stochastic_matrix", args, numbers, verdict(numbers), text(numbers), draw, size=(15, 5))


if __name__ == "__main__":
    main()
