"""Can attention tell in which order it reads?

    python examples/claims/no_order.py

Claim      "Without positions attention cannot tell order."
Statistic  how much an output moves, relative to the largest, (1) bidirectional: when the input is permuted and the output is
           permuted back; (2) causal: at the last symbol, when those before it are permuted. The worst of several permutations.
           Two-headed blocks of equal width with random weights, in float64.
Rule       less than 1e-10, which is rounding: bidirectional, one causal block, two causal blocks.
Control    with positions (learned, sinusoid, rotary) the bidirectional output moves by more than 1 %; so does that of an LSTM.

A query takes an average over all keys, and a sum knows no order of its terms: bidirectional attention cannot tell. A causal
mask is a kind of position: the t-th symbol averages over t symbols. One causal block still cannot tell at its last symbol,
since that sees all as a set. But what it makes of the symbols *before* depends on who came before them, and so a second block
can tell. How much a model knows, the last column shows: where a symbol stands, read out of its vector by a straight line fitted
on other texts (R²; 1 is exact, 0 a guess).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, table, worst

from minitx import models, nn

V, D, HEADS, T = 16, 32, 2, 24
ORDERS, FULL_ORDERS = 10, 200
TEXTS = 200                             # half to fit the line, half to judge it
EXACT, CLEAR = 1e-10, 0.01


def encoder(positions: str) -> Callable[[np.random.Generator], nn.Module]:
    return lambda rng: models.Encoder(V, D, HEADS, 2, T, positions=positions, rng=rng, dtype="float64")


def causal(L: int) -> Callable[[np.random.Generator], nn.Module]:
    return lambda rng: models.TransformerLM(V, D, HEADS, L, T, positions="none", rng=rng, dtype="float64")


class LSTM(nn.Module):
    """The other kind: it reads one symbol after the other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.tokens = nn.Embedding(V, D, rng=rng, dtype="float64")
        self.lstm = nn.LSTM(D, D, bidirectional=True, rng=rng, dtype="float64")

    def forward(self, ids: Any) -> Any:
        return self.lstm(self.tokens(ids))[0]


WITHOUT = {"bidirectional": encoder("none"), "causal, one block": causal(1), "causal, two blocks": causal(2)}
WITH = {f"{kind} positions": encoder(kind) for kind in ("learned", "sinusoid", "rotary")} | {"an LSTM": LSTM}


def vectors(model: Any, ids: np.ndarray) -> np.ndarray:
    """What a model makes of ids (B, T) in front of its head: (B, T, D)."""
    return (model.body(model.embed(ids)) if isinstance(model, models.LanguageModel) else model(ids)).array


def moved(model: Any, rng: np.random.Generator, orders: int) -> float:
    """The largest change of an output, relative to the largest output."""
    ids = rng.integers(0, V, (1, T))
    y, is_causal, changes = vectors(model, ids), isinstance(model, models.LanguageModel), []
    for _ in range(orders):
        order = np.append(rng.permutation(T - 1), T - 1) if is_causal else rng.permutation(T)
        after, before = vectors(model, ids[:, order]), y[:, order]
        change = after[:, -1] - before[:, -1] if is_causal else after - before
        changes.append(abs(change).max() / abs(y).max())
    return worst(changes)


def place_read(model: Any, rng: np.random.Generator) -> float:
    """R² of the position, read out of the vectors of texts that the line was not fitted on."""
    x = vectors(model, rng.integers(0, V, (TEXTS, T)))
    x = np.concatenate([x, np.ones((TEXTS, T, 1))], -1)
    half, places = TEXTS // 2, np.arange(T) - (T - 1) / 2
    fit, judge = (part.reshape(-1, x.shape[-1]) for part in (x[:half], x[half:]))
    line = np.linalg.lstsq(fit, np.tile(places, half), rcond=None)[0]
    target = np.tile(places, TEXTS - half)
    return float(1 - ((judge @ line - target) ** 2).sum() / (target ** 2).sum())


def measure(orders: int) -> dict[str, Any]:
    found: dict[str, Any] = {"moved": {}, "place": {}}
    for name, make in (WITHOUT | WITH).items():
        rng = np.random.default_rng(0)
        model = make(rng)
        found["moved"][name] = moved(model, rng, orders)
        if name in WITHOUT:
            found["place"][name] = place_read(model, rng)
    return found


def verdict(numbers: dict[str, Any]) -> Verdict:
    change = numbers["moved"]
    return Verdict({f"{name}: order leaves no trace (moved by {change[name]:.0e} < {EXACT:.0e})": change[name] < EXACT
                    for name in WITHOUT},
                   {f"{name}: another order is another output (moved by {change[name]:.2f} > {CLEAR})": change[name] > CLEAR
                    for name in WITH})


def text(numbers: dict[str, Any]) -> str:
    rows = [["", "moved by another order", "place read out, R²"]]
    for name, change in numbers["moved"].items():
        place = f"{numbers['place'][name]:.2f}" if name in WITHOUT else ""
        rows.append([f"no positions: {name}" if name in WITHOUT else name, f"{change:.1e}", place])
    return table(*rows)


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    names = [*WITHOUT, *WITH]
    colours = ["#0072B2" if name in WITHOUT else "0.6" for name in names]
    labels = [name.replace(", ", ",\n") for name in names]
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.barh(labels, [max(numbers["moved"][name], 1e-17) for name in names], color=colours)
    left.set_xscale("log")
    left.set_xlim(1e-17, 10)
    left.axvline(EXACT, color="#D55E00", linestyle="--")
    left.annotate("the limit", (EXACT, 1), xycoords=("data", "axes fraction"), color="#D55E00", va="bottom", ha="center")
    left.set_xlabel("how much an output moves when the order changes")
    left.invert_yaxis()
    right.barh(labels[:len(WITHOUT)], [numbers["place"][name] for name in WITHOUT], color=colours[0])
    right.set_xlim(min(0, *numbers["place"].values()) - 0.02, 1)
    right.set_xlabel("how well the place of a symbol\ncan be read out (R²)")
    right.invert_yaxis()
    figure.suptitle("Can it tell order?  (blue: no positions)", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_ORDERS if args.full else ORDERS)
    report("no_order", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
