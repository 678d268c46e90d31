"""Is a Transformer sooner at a good translation than an LSTM with attention, and better in the end?

    python examples/claims/translation_race.py

Claim      "The same translation task takes an LSTM two weeks and a Transformer a day and a half, and the latter is better."
Statistic  an LSTM with attention and the Transformer of 2017, of equal parameters, learn English to German from the same
           batches (`examples/train_translation.py`). BLEU of unseen pages, against seconds of training. The budget is counted
           in steps, as many for each as take about the same time; seconds are those of this machine, which is told below.
Rule       sooner   the Transformer is at 15 BLEU in at most half the time that the LSTM takes
           better   at the end of the same time, its BLEU is higher by 1 or more
Control    both beat the untranslated source; the two trainings took the same time, within 20 %; the models have the same
           number of parameters, within 5 %. Where times differ, `--steps` makes them alike.

The default run trains each once, for some minutes, and only illustrates. `--full` takes hours: for each model the best of three
learning rates, by short trainings, then a quarter of an hour with each of three seeds. Every training has a checkpoint, and
results are kept in `--out`: start it again and it goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import COLOURS, Verdict, agreed, options, report, table

sys.path.append(str(Path(__file__).parent.parent))
import train_translation as translation

MODELS = {"LSTM": "lstm", "Transformer": "transformer"}
STEPS = {"default": (1200, 1100), "rates": (750, 690), "full": (4500, 4130)}       # of about equal time on one CPU core
RATES = (1e-3, 2e-3, 3e-3)
TARGET, FACTOR, BETTER = 15.0, 2.0, 1.0                     # BLEU; times; BLEU
SAME_TIME, SAME_SIZE = 1.2, 1.05
Run = dict[str, Any]


def trained(name: str, steps: int, seed: int, lr: float | None, args: argparse.Namespace) -> Run:
    """What came of one training: from the file, from its checkpoint on, or from the beginning."""
    rate = lr or translation.PRESETS[MODELS[name]]["lr"]
    where = f"seed{seed}_rate{rate:g}_steps{steps}_probe{args.probe}_{args.device.replace(':', '')}"
    place = Path(args.out) / "claims" / "translation_race" / where
    asked = ["--model", MODELS[name], "--steps", steps, "--lr", rate, "--seed", seed, "--device", args.device, "--out", place,
             "--every", max(1, min(100, steps // 8)), "--beam", 0, "--probe", args.probe, "--threads", 1]
    told = translation.arguments(list(map(str, asked)))
    kept = place / f"{translation.name_of(told)}.json"
    if not kept.exists():
        told.resume = kept.with_suffix(".checkpoint").exists()
        translation.limited(told)
    result = json.loads(kept.read_text(encoding="utf-8"))
    wanted = ("parameters", "seconds", "pieces_per_second", "curve")
    return {"model": name, "seed": seed, "lr": rate, "steps": steps, "bleu": result["scores"]["greedy"]["bleu"],
            "chrf": result["scores"]["greedy"]["chrf"], "copied": result["scores"]["copied"]["bleu"],
            **{key: result[key] for key in wanted}, "epochs": result["curve"][-1]["epochs"]}


def measure(args: argparse.Namespace) -> list[Run]:
    """All trainings. The learning rate is chosen by the bits of unseen pages, at the end of a short one."""
    runs, steps = [], args.steps or STEPS["full" if args.full else "default"]
    for name, of_model in zip(MODELS, steps):
        lr = None
        if args.full:
            short = STEPS["rates"][list(MODELS).index(name)]
            lr = min(RATES, key=lambda rate: trained(name, short, 0, rate, args)["curve"][-1]["bits"])
        runs += [trained(name, of_model, seed, lr, args) for seed in range(3 if args.full else 1)]
    return runs


# --- the rules

def seconds_to(run: Run, target: float) -> float:
    """After how many seconds of training the BLEU on the way is at the target, on the straight line between two looks."""
    at = [(0.0, 0.0), *((point["seconds"], point["bleu"]) for point in run["curve"])]
    for (s0, b0), (s1, b1) in pairwise(at):
        if b1 >= target:
            return s0 + (s1 - s0) * (target - b0) / (b1 - b0)
    return float("inf")


def sooner(lstm: Run, other: Run) -> bool | None:
    """Whether the other is at the target in at most half the time; None if neither gets there."""
    a, b = seconds_to(lstm, TARGET), seconds_to(other, TARGET)
    return None if a == b == float("inf") else FACTOR * b <= a


def verdict(runs: Sequence[Run]) -> Verdict:
    seeds = sorted({run["seed"] for run in runs})
    of = {(run["model"], run["seed"]): run for run in runs}
    pairs = [(of["LSTM", seed], of["Transformer", seed]) for seed in seeds]
    answers = [sooner(*pair) for pair in pairs]
    times = " and ".join(f"{np.median([seconds_to(pair[i], TARGET) for pair in pairs]):,.0f} s" for i in (1, 0))
    ends = " and ".join(f"{np.mean([pair[i]['bleu'] for pair in pairs]):.1f}" for i in (1, 0))
    return Verdict({
        f"sooner: Transformer and LSTM are at {TARGET:g} BLEU after {times.replace('inf s', 'no time')} (at most half)":
        None if None in answers else agreed(answers),
        f"better: at the end of the same time they have BLEU {ends} ({BETTER:g} more)":
        agreed(other["bleu"] >= lstm["bleu"] + BETTER for lstm, other in pairs),
    }, {
        f"both beat the source itself, BLEU {runs[0]['copied']:.1f}": all(run["bleu"] > run["copied"] for run in runs),
        f"trainings took the same time, within {SAME_TIME - 1:.0%}": all(within(pair, "seconds", SAME_TIME) for pair in pairs),
        f"models have the same number of parameters, within {SAME_SIZE - 1:.0%}":
        all(within(pair, "parameters", SAME_SIZE) for pair in pairs),
    }, decisive=len(seeds) >= 3)


def within(pair: Sequence[Run], what: str, factor: float) -> bool:
    low, high = sorted(run[what] for run in pair)
    return high <= factor * low


# --- telling

def bleu_at(run: Run, epochs: float) -> float:
    return float(np.interp(epochs, [0, *(p["epochs"] for p in run["curve"])], [0, *(p["bleu"] for p in run["curve"])]))


def text(runs: Sequence[Run], device: str) -> str:
    alike = min(run["epochs"] for run in runs)
    head = ["", "parameters", "rate", "steps", "seconds", "epochs", "pieces/s", f"s to {TARGET:g}", "BLEU", "chrF",
            f"BLEU at {alike:.1f} epochs"]
    rows = [[f"{run['model']}, seed {run['seed']}", f"{run['parameters']:,}", f"{run['lr']:g}", run["steps"],
             f"{run['seconds']:,.0f}", f"{run['epochs']:.1f}", f"{run['pieces_per_second']:,.0f}",
             f"{seconds_to(run, TARGET):,.0f}".replace("inf", "-"), f"{run['bleu']:.1f}", f"{run['chrf']:.1f}",
             f"{bleu_at(run, alike):.1f} *"] for run in runs]
    return "\n".join([f"on {device} ({platform.processor() or platform.machine()}), with one thread; the seconds of the LSTM "
                      "have a Python loop over time in them", "", table(head, *rows),
                      "* on the way, of some sentences, and each with the learning rate that its own schedule had by then"])


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for panel, x, label in (left, "seconds", "seconds of training"), (right, "epochs", "epochs"):
        for run in numbers["runs"]:
            panel.plot([0, *(p[x] for p in run["curve"])], [0, *(p["bleu"] for p in run["curve"])], "o-", markersize=4,
                       color=COLOURS[run["model"]], linewidth=2, label=run["model"] if run["seed"] == 0 else None)
        panel.axhline(numbers["runs"][0]["copied"], color="0.4", linestyle=":", label="the source itself")
        panel.axhline(TARGET, color="0.8")
        panel.set(xlabel=label, ylim=(0, None))
    left.set_ylabel("BLEU of unseen pages")
    left.legend(frameon=False)
    figure.suptitle("English to German, equal parameters")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, nargs=2, metavar=("LSTM", "TRANSFORMER"),
                        help="training steps that take the same time on your machine (default: on a CPU core)")
    parser.add_argument("--probe", type=int, default=200, help="sentences that are translated on the way (default: 200)")
    args = parser.parse_args()
    runs = measure(args)
    report("translation_race", args, {"runs": runs}, verdict(runs), text(runs, args.device), draw)


if __name__ == "__main__":
    main()
