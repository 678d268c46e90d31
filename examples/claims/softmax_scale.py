"""What happens to softmax without the factor 1/√d?

    python examples/claims/softmax_scale.py

Claim      "Without 1/√d softmax saturates, and its gradient vanishes."
Statistic  for queries and keys of d independent normal numbers, of the median row of weights over 64 keys: (1) its entropy, as
           a share of ln 64; (2) the norm of its Jacobian diag(p) - p pᵀ, through which every gradient goes back.
Rule       without the factor, at the largest d: entropy below 0.1, and the Jacobian below 1 % of what it is with the factor.
           With it, from d = 16 on: neither changes by more than a quarter. Five seeds have to agree.
Control    at d = 1 both are the same; the Jacobian is the one that `ops.softmax` goes back through.

The mean of the Jacobians is reported, too, and falls much more slowly, like 1/√d: a few rows have two keys that are nearly
equal, and in those a lot of gradient is left. Saturated attention does not stop learning in every row, but in most.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from common import Verdict, agreed, one_thread, options, report, table, worst

from minitx import ops

KEYS = 64
WIDTHS, FULL_WIDTHS = (1, 4, 16, 64, 256, 1024), (1, 4, 16, 64, 256, 1024, 4096)
ROWS, SEEDS = 2000, 5
SATURATED, VANISHED, STEADY = 0.1, 0.01, 1.25
WAYS = {"with 1/√d": True, "without": False}


def weights(d: int, scaled: bool, rng: np.random.Generator) -> np.ndarray:
    """The weights that queries of width d give to keys, (ROWS, KEYS)."""
    q, k = rng.standard_normal((ROWS, d)), rng.standard_normal((KEYS, d))
    scores = q @ k.T
    return ops.softmax.vjp(scores / math.sqrt(d) if scaled else scores)[0]


def entropy(p: np.ndarray) -> np.ndarray:
    """Of each row, as a share of that of equal weights."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1) / math.log(p.shape[-1])


def jacobian_norm(p: np.ndarray) -> np.ndarray:
    """√Σ (p_i (δ_ij - p_j))², without making the matrices."""
    squares = (p * p).sum(-1)
    return np.sqrt(np.maximum(squares - 2 * (p ** 3).sum(-1) + squares ** 2, 0))


def by_the_op(p: np.ndarray) -> float:
    """The norm of the matrix that `ops.softmax` multiplies by on the way back, for one row."""
    _, backward = ops.softmax.vjp(np.log(np.tile(p, (p.size, 1))))
    return float(np.linalg.norm(backward(np.eye(p.size))))


def measure(widths: tuple[int, ...]) -> dict[str, Any]:
    names = ("entropy", "jacobian", "mean_jacobian")
    found: dict[str, Any] = {"widths": widths, **{name: {way: [] for way in WAYS} for name in names}}
    for way, scaled in WAYS.items():
        for d in widths:
            p = [weights(d, scaled, np.random.default_rng([seed, d])) for seed in range(SEEDS)]
            found["entropy"][way].append([float(np.median(entropy(rows))) for rows in p])
            found["jacobian"][way].append([float(np.median(jacobian_norm(rows))) for rows in p])
            found["mean_jacobian"][way].append([float(jacobian_norm(rows).mean()) for rows in p])
    row = weights(4, True, np.random.default_rng(0))[0]
    found["by_formula"], found["by_the_op"] = float(jacobian_norm(row)), by_the_op(row)
    return found


def verdict(numbers: dict[str, Any]) -> Verdict:
    with_it, without = WAYS
    wide = np.array(numbers["widths"]) >= 16
    found = {name: {way: np.array(of) for way, of in numbers[name].items()} for name in ("entropy", "jacobian")}
    end, share = found["entropy"][without][-1], found["jacobian"][without][-1] / found["jacobian"][with_it][-1]
    change = {name: of[with_it][wide].max(0) / of[with_it][wide].min(0) for name, of in found.items()}
    same = all(of[with_it][0].tolist() == of[without][0].tolist() for of in found.values())
    formula = math.isclose(numbers["by_formula"], numbers["by_the_op"], rel_tol=1e-12)
    return Verdict({f"without, it saturates (entropy {end.max():.3f} at most, < {SATURATED})": agreed(end < SATURATED),
                    f"and its gradient vanishes (Jacobian {share.max():.1e} of that with it, < {VANISHED})":
                        agreed(share < VANISHED),
                    f"with it, neither changes (by {worst(c.max() for c in change.values()):.2f} at most, < {STEADY})":
                        agreed(np.maximum(*change.values()) < STEADY)},
                   {"d = 1: both are the same": numbers["widths"][0] == 1 and same,
                    "the Jacobian is that of ops.softmax": formula})


def text(numbers: dict[str, Any]) -> str:
    rows = [["d", *(f"{what}, {way}" for what in ("entropy", "Jacobian", "its mean") for way in WAYS)]]
    for i, d in enumerate(numbers["widths"]):
        cells = [np.mean(numbers[name][way][i]) for name in ("entropy", "jacobian", "mean_jacobian") for way in WAYS]
        rows.append([d, *(f"{cell:.3f}" if j < 2 else f"{cell:.1e}" for j, cell in enumerate(cells))])
    return table(*rows)


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    panels = figure.subplots(1, 3)
    colours = dict(zip(WAYS, ("#0072B2", "#D55E00"), strict=True))
    row, entropies, jacobians = panels
    for way, scaled in WAYS.items():
        p = np.sort(weights(256, scaled, np.random.default_rng(0))[:200], axis=-1)[:, ::-1].mean(0)
        row.plot(np.arange(1, KEYS + 1), p, color=colours[way], linewidth=2.5, label=way)
        for panel, name in ((entropies, "entropy"), (jacobians, "jacobian")):
            panel.plot(numbers["widths"], np.mean(numbers[name][way], 1), "o-", color=colours[way], linewidth=2.5, label=way)
        jacobians.plot(numbers["widths"], np.mean(numbers["mean_jacobian"][way], 1), ":", color=colours[way], linewidth=2)
    row.set(title="weights at d = 256, largest first", xlabel="key", xscale="log", ylim=(0, 1))
    entropies.set(title="entropy, 1 = all keys alike", xlabel="d", ylim=(0, 1))
    jacobians.set(title="Jacobian, median row (dotted: mean)", xlabel="d", yscale="log")
    for panel in (entropies, jacobians):
        panel.set_xscale("log", base=2)
        panel.set_xticks(numbers["widths"], [str(d) for d in numbers["widths"]])
    row.legend(frameon=False)
    figure.suptitle("Softmax of 64 scores, each a product of d numbers", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_WIDTHS if args.full else WIDTHS)
    report("softmax_scale", args, numbers, verdict(numbers), text(numbers), draw, size=(15, 5.5))


if __name__ == "__main__":
    main()
