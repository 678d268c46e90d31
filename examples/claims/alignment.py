"""Do the weights of attention show what a translation looks at?

    python examples/claims/alignment.py

Claim      "The weights of attention show which words of the source the model looks at while it writes each word."
Statistic  models of equal parameters learn to write rows of random symbols backwards. Then it is known at which symbol each one
           must look: the one that it writes. Agreement: the share of written symbols for which the largest weight of the last
           attention to the source (of several heads, of their mean) is on that place.
Rule       for the LSTM with attention and for the Transformer, each: an agreement of at least 90 %
Control    both write 95 % of the symbols right, or where they look says nothing; and when they copy a row as it is, they agree
           as well with the diagonal.

One seed only illustrates, `--full` runs three. Beside the rule it is told how often what is written changes when the symbol
that was looked at most is replaced by another, and how often when any other symbol is: weights are worth something only if the
first is large and the second small.

If `examples/train_translation.py` left translators in `--out`, their heat-maps are drawn below, and one thing about them is
counted. The right order of real words is not known; but names, numbers and signs that stand once in the sentence and once in
its translation are each other's translation. For how many of these is the largest weight on the twin?
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import Verdict, agreed, one_thread, options, report, table

import minitx as mx
from minitx.alignments import Alignment, alignments, attended, heat_maps
from minitx.data import load_pairs, pair_batch
from minitx.models import EncoderDecoder
from minitx.optim import Adam
from minitx.schedules import warmup_cosine
from minitx.seq2seq import Seq2Seq
from minitx.training import train
from minitx.translation import Batch, Sides, Translator, on_device, translate

SYMBOLS, SHORTEST, LONGEST = 16, 4, 12                      # of the rows of random symbols
MODELS, TASKS = ("LSTM", "Transformer"), ("copy", "backwards")
BATCH, STEPS, TESTED, RATE = 64, 600, 256, 3e-3
AGREE, RIGHT = 0.9, 0.95
START, STOP = 0, 1
TEXTS, SHOWN = 200, 3                                       # sentences that are counted, that are drawn


def build(name: str) -> Translator:
    """Two models of about 93,000 parameters."""
    V = SYMBOLS + 2
    if name == "Transformer":
        return EncoderDecoder(V, 40, 4, 2, smoothing=0.0, dropout=0.0)
    return Seq2Seq(V, V, 40, 88, attention="multiplicative", cell="lstm", tied=True)


def rows(rng: np.random.Generator, B: int) -> list[np.ndarray]:
    return [rng.integers(2, SYMBOLS + 2, n) for n in rng.integers(SHORTEST, LONGEST + 1, B)]


def batch(task: str, sources: list[np.ndarray]) -> Batch:
    targets = sources if task == "copy" else [row[::-1] for row in sources]
    return pair_batch(sources, targets, start=START, stop=STOP)


def endless(task: str, rng: np.random.Generator) -> Any:
    while True:
        yield batch(task, rows(rng, BATCH))


def oracle(task: str, n: int) -> np.ndarray:
    """Where each of n symbols must be looked for."""
    return np.arange(n) if task == "copy" else np.arange(n)[::-1]


# --- measuring

@one_thread
def learned(name: str, task: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one model on one task, and see where it looks."""
    mx.seed(seed)
    model = build(name).to(args.device)
    schedule = warmup_cosine(RATE, total=args.steps, warmup=min(100, args.steps // 5), floor=RATE / 20)
    train(model, endless(task, np.random.default_rng(seed)), Adam(model.parameters(), RATE), steps=args.steps,
          schedule=schedule, threads=1, title=f"{name}, {task}")
    sources = rows(np.random.default_rng(1000 + seed), TESTED)
    tested = batch(task, sources)
    probs, written, targets = attended(model, tested), predicted(model, tested), tested[3]
    real = targets > STOP                                                                    # (B, T): no padding, no end
    longest = max(range(TESTED), key=lambda i: len(sources[i]))
    hits = [p[:len(s), :len(s)].argmax(-1) == oracle(task, len(s)) for p, s in zip(probs, sources)]
    return {"model": name, "task": task, "seed": seed, "parameters": model.count_parameters(),
            "right": float((written == targets)[real].mean()), "agreement": float(np.concatenate(hits).mean()),
            "guess": float(np.concatenate([np.full(len(s), 1 / len(s)) for s in sources]).mean()),
            **dict(zip(("changed there", "changed elsewhere"), replaced(model, task, sources, probs, seed))),
            "weights": probs[longest, :len(sources[longest]), :len(sources[longest])].round(4).tolist()}


def predicted(model: Translator, of: Batch) -> np.ndarray:
    """The likeliest symbol after each of the inputs, (B, T)."""
    with mx.no_grad(), model.evaluating():
        return model(*on_device(model, *of[:3])).numpy().argmax(-1)


def replaced(model: Translator, task: str, sources: list[np.ndarray], probs: np.ndarray, seed: int) -> tuple[float, float]:
    """How often one symbol that is written, drawn at random in each row, changes when another is put in the source at the place
    of the largest weight, and at any other place. The decoder has read the same symbols in all three cases."""
    rng, B = np.random.default_rng(2000 + seed), np.arange(len(sources))
    source, lengths, inputs, targets = batch(task, sources)
    t = rng.integers(lengths)                                                                # (B): which is watched
    there = probs[B, t].argmax(-1)
    elsewhere = (there + rng.integers(1, lengths)) % lengths
    before, found = predicted(model, (source, lengths, inputs, targets))[B, t], []
    for place in there, elsewhere:
        other = source.copy()
        other[B, place] = 2 + (source[B, place] - 2 + rng.integers(1, SYMBOLS, len(B))) % SYMBOLS
        found.append(float((predicted(model, (other, lengths, inputs, targets))[B, t] != before).mean()))
    return found[0], found[1]


# --- translators that were trained before

def translators(out: Path) -> dict[str, Any]:
    """What the translators in a folder look at: some heat-maps, and how often at the twin of a piece that stays as it is."""
    sys.path.append(str(Path(__file__).parent.parent))
    from train_translation import restored
    found = {}
    for place in sorted(path.with_suffix("") for path in out.glob("translation_*_en-??.checkpoint")):
        try:
            model, pieces = restored(place)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            print(f"{place}: {error}")
            continue
        sentences = [pair[0] for pair in load_pairs(place.name[-5:]).test[:TEXTS]]
        written = translate(model, pieces, sentences)
        both = [(s, w) for s, w in zip(sentences, written) if w]
        seen, sides = alignments(model, pieces, [s for s, _ in both], [w for _, w in both]), Sides.of(both, pieces)
        shown = [a for a in seen if 6 <= len(a.source) <= 14 and 4 < len(set(a.target)) and len(a.target) <= 20][:SHOWN]
        found[place.name.removeprefix("translation_")] = {
            "twins": twins(sides, seen), "shown": [(a.source, a.target, a.weights.round(4).tolist()) for a in shown]}
    return found


def twins(sides: Sides, seen: list[Alignment]) -> dict[str, float]:
    """Of pieces that stand once on both sides: how many there are, for which share the largest weight is on the twin, and what
    chance would give."""
    hits, chance = [], []
    for source, target, alignment in zip(*sides, seen):
        for t, piece in enumerate(target):
            if (source == piece).sum() == (target == piece).sum() == 1:
                hits.append(alignment.weights[t].argmax() == np.flatnonzero(source == piece)[0])
                chance.append(1 / len(source))
    return {"pieces": len(hits), "share": float(np.mean(hits or [0])), "chance": float(np.mean(chance or [0]))}


# --- judging and telling

def verdict(numbers: dict[str, Any]) -> Verdict:
    runs = numbers["runs"]
    seeds = {run["seed"] for run in runs}

    def of(name: str, task: str) -> list[dict[str, Any]]:
        return [run for run in runs if (run["model"], run["task"]) == (name, task)]

    shares = {name: [run["agreement"] for run in of(name, "backwards")] for name in MODELS}
    return Verdict({
        f"{name}: {np.mean(share):.0%} of the symbols are looked at when they are written (at least {AGREE:.0%})":
        agreed(np.array(share) >= AGREE) for name, share in shares.items()
    }, {
        f"at least {RIGHT:.0%} of the symbols are right": all(run["right"] >= RIGHT for run in runs),
        f"copying, each agrees with the diagonal for at least {AGREE:.0%}":
        all(run["agreement"] >= AGREE for name in MODELS for run in of(name, "copy")),
    }, decisive=len(seeds) >= 3)


def text(numbers: dict[str, Any]) -> str:
    head = ["", "parameters", "right", "looks at the right place", "by chance", "changed: replaced there", "elsewhere"]
    shares = ("right", "agreement", "guess", "changed there", "changed elsewhere")
    told = [[f"{run['model']}, {run['task']}, seed {run['seed']}", f"{run['parameters']:,}", *(f"{run[s]:.0%}" for s in shares)]
            for run in numbers["runs"]]
    lines = [table(head, *told)]
    if found := numbers["translators"]:
        head = ["trained translator", "pieces that stay as they are", "looked at", "by chance"]
        lines += ["", table(head, *([name, f"{of['twins']['pieces']:,}", f"{of['twins']['share']:.0%}",
                                     f"{of['twins']['chance']:.0%}"] for name, of in found.items()))]
    else:
        lines += ["", "no trained translators in --out: python examples/train_translation.py makes them"]
    return "\n".join(lines)


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    """The synthetic tasks in the first row, then a row for each translator."""
    found, runs = numbers["translators"], [run for run in numbers["runs"] if run["seed"] == 0]
    parts = np.atleast_1d(figure.subfigures(1 + len(found), 1, height_ratios=[3.2] + [4.2] * len(found)))
    parts[0].suptitle("rows of random symbols: how many are looked at when they are written", fontsize=11)
    for panel, run in zip(parts[0].subplots(1, len(runs)), runs):
        panel.imshow(run["weights"], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        panel.set(xlabel="symbol read", xticks=[], yticks=[], ylabel="symbol to be written")
        panel.set_title(f"{run['model']}, {run['task']}: {run['agreement']:.0%}", fontsize=11)
    for part, (name, of) in zip(parts[1:], found.items()):
        part.suptitle(f"{name}: of pieces that stay as they are, {of['twins']['share']:.0%} are looked at", fontsize=11)
        heat_maps(part.subplots(1, SHOWN), [Alignment(*shown) for shown in of["shown"]])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps of each model and task (default: {STEPS})")
    args = parser.parse_args()
    runs = [learned(name, task, seed, args) for seed in range(3 if args.full else 1) for name in MODELS for task in TASKS]
    numbers = {"runs": runs, "translators": translators(Path(args.out))}
    report("alignment", args, numbers, verdict(numbers), text(numbers), draw, size=(13, 4 + 4.2 * len(numbers["translators"])))


if __name__ == "__main__":
    main()
