"""Is a shift of the position a fixed linear map of the sinusoid code?

    python examples/claims/sinusoid_shift.py

Claim      "A shift of position is a fixed linear map of the sinusoid code": the reason that the paper of 2017 gives for it,
           since a model could then learn to attend by relative positions.
Statistic  (1) the largest error of code(p) M_k = code(p + k) over all p, where M_k turns pair j by the angle k · 10000^(-2j/D);
           (2) the best M that least squares finds on every other p, judged on the rest: its error, as a share of what a code
           varies by (root mean square).
Rule       (1) below 1e-9 for every shift; (2) below 1e-6 for every shift: what is there can be found from examples.
Control    for a learned table as it starts, every row drawn apart, no such map is found: (2) above 0.5 for every shift.

M_k is a rotation: it keeps lengths, and k steps are k times one step. Turning queries and keys in this way, in place of adding
a code, is what rotary positions do (`docs/derivations/positions.md`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Verdict, one_thread, options, report, table, worst

from minitx import init
from minitx.ops.positions import sinusoid

D = 64
SHIFTS = (1, 2, 5, 10, 50, 200, 1000)
P, FULL_P = 2000, 20000                 # positions
EXACT, FOUND, NONE = 1e-9, 1e-6, 0.5
SHOWN = 10                              # the shift whose map is drawn


def turn(shift: int) -> np.ndarray:
    """The matrix (D, D) that takes the code of any position to that of `shift` positions later."""
    M = np.zeros((D, D))
    for j in range(0, D, 2):
        angle = shift * 10000.0 ** (-j / D)
        M[j:j + 2, j:j + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return M


def best_map_misses(before: np.ndarray, after: np.ndarray) -> float:
    """The error of the best linear map from rows to rows, fitted on every other pair and judged on the rest."""
    M = np.linalg.lstsq(before[::2], after[::2], rcond=None)[0]
    error = before[1::2] @ M - after[1::2]
    return float(np.sqrt((error ** 2).mean() / after.var(0).mean()))


def measure(P: int) -> dict[str, Any]:
    learned = init.normal(P + max(SHIFTS), D, std=0.1, rng=np.random.default_rng(0), dtype="float64").array
    tables = {"sinusoid": sinusoid(np.arange(P + max(SHIFTS)), D), "learned": learned}
    code = tables["sinusoid"]
    return {"shifts": SHIFTS, "positions": P,
            "closed": [float(abs(code[:P] @ turn(k) - code[k:P + k]).max()) for k in SHIFTS],
            "fitted": {name: [best_map_misses(rows[:P], rows[k:P + k]) for k in SHIFTS] for name, rows in tables.items()}}


def verdict(numbers: dict[str, Any]) -> Verdict:
    closed, fitted = worst(numbers["closed"]), {name: np.array(of) for name, of in numbers["fitted"].items()}
    return Verdict({f"the map in closed form is off by {closed:.0e} at most (< {EXACT:.0e})": closed < EXACT,
                    f"least squares finds it (misses {fitted['sinusoid'].max():.0e} at most, < {FOUND:.0e})":
                        bool((fitted["sinusoid"] < FOUND).all())},
                   {f"a learned table has none (the best map misses {fitted['learned'].min():.2f} at least, > {NONE})":
                        bool((fitted["learned"] > NONE).all())})


def text(numbers: dict[str, Any]) -> str:
    fitted = numbers["fitted"]
    return table(["shift", "closed form, largest error", "best map, sinusoid", "best map, learned table"],
                 *([k, f"{closed:.1e}", f"{a:.1e}", f"{b:.2f}"] for k, closed, a, b in
                   zip(numbers["shifts"], numbers["closed"], fitted["sinusoid"], fitted["learned"], strict=True)))


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    code_panel, map_panel, error_panel = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    code_panel.imshow(sinusoid(np.arange(100), D), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    code_panel.set(title="the code: a row per position", xlabel="channel", ylabel="position")
    map_panel.imshow(turn(SHOWN), cmap="RdBu", vmin=-1, vmax=1)
    map_panel.set(title=f"the map of a shift by {SHOWN}:\nevery pair of channels turns", xlabel="channel", ylabel="channel")
    shifts = numbers["shifts"]
    for name, colour, label in (("learned", "0.5", "best map, learned table"), ("sinusoid", "#0072B2", "best map, sinusoid")):
        error_panel.plot(shifts, numbers["fitted"][name], "o-", color=colour, linewidth=2.5, label=label)
    error_panel.plot(shifts, numbers["closed"], "s--", color="#D55E00", linewidth=2.5, label="closed form, sinusoid")
    error_panel.set(title="how far off the map is", xlabel="shift", xscale="log", yscale="log", ylim=(1e-17, 1e3))
    error_panel.legend(frameon=False, loc="center right")
    figure.suptitle("Is a shift of the position a linear map of its code?", fontsize=16)


@one_thread
def main() -> None:
    args = options(__doc__).parse_args()
    numbers = measure(FULL_P if args.full else P)
    report("sinusoid_shift", args, numbers, verdict(numbers), text(numbers), draw)


if __name__ == "__main__":
    main()
