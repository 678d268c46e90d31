"""Does an exploding gradient turn the loss into NaN, and is it only RNNs that need their gradients clipped?

    python examples/claims/nan_and_clipping.py

Claim      "An exploding gradient turns the loss into NaN; RNNs need clipping, a Transformer hardly."
Statistic  models of equal parameters read the novel, with five pairs of optimiser and rate, at two lengths, free and with the
           gradient clipped to length 1. A run breaks by one or more of three events, told apart (`History.trouble`): its loss
           diverges (ends above 1.1 × where it began), a gradient is not finite, a loss is not finite.
Rule       for the RNN with tanh and that with relu, each, over all its gains:
           NaN    most of its free runs that broke met a number that is not finite
           need   at least 3 × the Transformer's share of free runs broke. Settings at which one of the three breaks with
                  clipping as well, at every gain, say nothing about needing it, and are left out of this part
           cure   clipping lowers the share that broke by 80 %. Settings at which all models break are left out
Control    of the relu RNN with gain 2, most free runs break; of the GRU, the LSTM and the Transformer, clipped and with the
           lowest rate of SGD, none does.

A run ends at its first number that is not finite, as any would: the next step would write it into all parameters. (minitx does
not take that step.) One seed only illustrates, `--full` runs three. Finished runs are kept in a file, one a line, and are not
run again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import Verdict, agreed, one_thread, options, report, table
from tqdm import tqdm

from minitx import backend
from minitx.data import Vocabulary, load_corpus, windows
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import SGD, Adam
from minitx.training import train

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh RNN, gain 1": ("rnn", {"activation": "tanh", "gain": 1.0}),
    "tanh RNN, gain 2": ("rnn", {"activation": "tanh", "gain": 2.0}),
    "relu RNN, gain 1": ("rnn", {"activation": "relu", "gain": 1.0}),
    "relu RNN, gain 1.4": ("rnn", {"activation": "relu", "gain": 1.4}),
    "relu RNN, gain 2": ("rnn", {"activation": "relu", "gain": 2.0}),
    "GRU": ("gru", {}),
    "LSTM": ("lstm", {}),
    "Transformer": ("transformer", {}),
}
RNNS = ("tanh RNN", "relu RNN")
D, HEADS, BLOCKS = 64, 4, 2                             # of the Transformer; D is the width of all embeddings
LENGTHS = {64: (8, 50), 256: (4, 25)}                   # T: the sequences of a batch, the steps of a run
RATES = (("SGD", 0.1), ("SGD", 1.0), ("SGD", 10.0), ("Adam", 3e-3), ("Adam", 3e-2))
OPTIMIZERS: dict[str, Any] = {"SGD": SGD, "Adam": Adam}
CLIP = 1.0
EVENTS = ("diverged", "gradient", "loss")               # from bad to worse
BEYOND = math.sqrt(float(np.finfo("float32").max))      # of a longer gradient, float32 cannot hold the square
COLOURS = {"trains": "#e6e6e6", "diverged": "#E69F00", "gradient": "#0072B2", "loss": "#000000"}        # Okabe & Ito 2008
LABELS = {"trains": "none of these", "diverged": "diverged", "gradient": "gradient not finite", "loss": "loss not finite"}
LINES = {"tanh RNN": "#CC79A7", "relu RNN": "#D55E00", "Transformer": "#000000"}

Told = dict[str, Any]       # a run and what came of it


# --- one run

@dataclass(frozen=True)
class Run:
    """What is known of a training before it starts."""

    model: str
    T: int
    optimizer: str
    rate: float
    clip: float | None
    seed: int
    device: str


def grid(seeds: int, device: str) -> list[Run]:
    return [Run(model, T, optimizer, rate, clip, seed, device) for seed, model, T, (optimizer, rate), clip in
            product(range(seeds), MODELS, LENGTHS, RATES, (None, CLIP))]


def build(name: str, V: int, seed: int) -> LanguageModel:
    """A model with as many parameters as the Transformer. The U of an RNN is normal with standard deviation gain/√H."""
    kind, chosen = MODELS[name]
    rng = np.random.default_rng(seed)
    if kind == "transformer":
        return TransformerLM(V, D, HEADS, BLOCKS, max(LENGTHS), rng=rng)
    H = equal_width(kind, V)
    model = RecurrentLM(V, D, H, cell=kind, rng=rng, **chosen)
    if kind == "rnn":
        model.recurrence.layers[0].U.assign_((chosen["gain"] / math.sqrt(H) * rng.standard_normal((H, H))).astype("float32"))
    return model


def equal_width(kind: str, V: int) -> int:
    """The hidden size that gives a recurrence as many parameters as the Transformer has."""
    target = build("Transformer", V, 0).count_parameters()
    gates, biases = {"rnn": (1, 1), "gru": (3, 2), "lstm": (4, 1)}[kind]
    sizes = {H: V * D + gates * H * (D + H + biases) + (H + 1) * V for H in range(8, 600)}
    return min(sizes, key=lambda H: abs(sizes[H] - target))


@cache
def novel() -> tuple[Any, int]:
    """The characters of the novel as ids, and how many there are to choose from."""
    text = load_corpus().train
    vocabulary = Vocabulary.of(text)
    return vocabulary.encode(text), len(vocabulary)


@one_thread
def trained(run: Run) -> Told:
    """The losses and the lengths of the gradients of one training, until a number is not finite; None stands for such."""
    ids, V = novel()
    model = build(run.model, V, run.seed).to(run.device)
    optimizer = OPTIMIZERS[run.optimizer](model.parameters(), run.rate)
    B, steps = LENGTHS[run.T]
    batches = windows(ids, B, run.T, np.random.default_rng(run.seed))
    history = train(model, batches, optimizer, steps=steps, clip=run.clip, on_nonfinite="record", title=None, threads=1,
                    after_step=lambda history: bool(history.events))    # one bar for the whole grid is enough

    def or_none(numbers: list[float]) -> list[float | None]:
        return [x if math.isfinite(x) else None for x in numbers]

    norms, losses = (list(filter(math.isfinite, numbers)) for numbers in (history.grad_norm, history.loss))
    squares, parameters = optimizer.v.values() if isinstance(optimizer, Adam) else [], model.count_parameters()
    return {**asdict(run), "parameters": parameters, "trouble": history.trouble(), "longest": max(norms, default=0.0),
            "still": sum(int(np.isinf(backend.to_host(v)).sum()) for v in squares) / parameters,
            "end": sum(losses[-5:]) / max(len(losses[-5:]), 1), "guess": math.log(V),
            "loss": or_none(history.loss), "grad_norm": or_none(history.grad_norm)}


# --- all of them

def measure(runs: list[Run], path: Path, processes: int) -> list[Told]:
    """What came of each run: from the file, or from a training, which the file then keeps."""
    missing = [run for run in runs if run not in kept(path)]
    if len(missing) < len(runs):
        print(f"{len(runs) - len(missing)} of {len(runs)} runs are kept in {path}; delete it to run them again")
    path.parent.mkdir(parents=True, exist_ok=True)
    workers = multiprocessing.get_context("spawn").Pool(processes) if processes > 1 and missing else nullcontext()
    with path.open("a") as file, workers as pool:
        results = pool.imap_unordered(trained, missing) if pool else map(trained, missing)
        for told in tqdm(results, "runs", len(missing), unit="run", mininterval=1):
            print("\n" + json.dumps(told), end="", file=file, flush=True)        # a line of its own, even behind half a line
    found = kept(path)
    return [found[run] for run in runs]


def kept(path: Path) -> dict[Run, Told]:
    """The runs that a file holds."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):            # it is empty, or was cut off when the program was stopped
            told = json.loads(line)
            found[Run(**{field.name: told[field.name] for field in fields(Run)})] = told
    return found


# --- the rules

def kind(told: Told) -> str:
    """The model without its gain."""
    return told["model"].split(",")[0]


def setting(told: Told) -> tuple[int, str, float]:
    return told["T"], told["optimizer"], told["rate"]


def informative(runs: list[Told]) -> dict[str, set[tuple[int, str, float]]]:
    """The settings that each rule is about: all; those at which, clipped, each of the three trains at some gain, in every seed;
    those at which, clipped, anything trains."""
    trains = {(kind(run), run["seed"], setting(run)) for run in runs if run["clip"] and not run["trouble"]}
    settings, seeds = {setting(run) for run in runs}, {run["seed"] for run in runs}
    each = {s for s in settings if all((name, seed, s) in trains for name in (*RNNS, "Transformer") for seed in seeds)}
    return {"NaN": settings, "need": each, "cure": {s for _, _, s in trains}}


def share(runs: list[Told], name: str, clip: float | None, settings: Any = None, events: Any = EVENTS) -> Fraction:
    """How many of the runs of a model, or of a kind with all gains, met one of the events, at these settings or all."""
    met = [any(event in run["trouble"] for event in events) for run in runs
           if name in (kind(run), run["model"]) and run["clip"] == clip and (settings is None or setting(run) in settings)]
    return Fraction(sum(met), len(met) or 1)


RULES: dict[str, tuple[str, Callable[[Fraction, Fraction], bool]]] = {
    "NaN": ("of its free runs {:.0%} met a number that is not finite, {:.0%} broke", lambda nan, broke: nan > broke / 2),
    "need": ("of its free runs {:.0%} broke, of the Transformer's {:.0%}", lambda rnn, other: rnn > 0 and rnn >= 3 * other),
    "cure": ("of its clipped runs {:.0%} broke, of the free {:.0%}", lambda clipped, free: free > 0 and 5 * clipped <= free),
}


def compared(runs: list[Told], name: str, where: dict[str, set]) -> dict[str, tuple[Fraction, Fraction]]:
    """The two shares that each rule is about, for one of the RNNs."""
    return {"NaN": (share(runs, name, None, where["NaN"], ("gradient", "loss")), share(runs, name, None, where["NaN"])),
            "need": (share(runs, name, None, where["need"]), share(runs, "Transformer", None, where["need"])),
            "cure": (share(runs, name, CLIP, where["cure"]), share(runs, name, None, where["cure"]))}


def verdict(runs: list[Told], rules: Any = tuple(RULES)) -> Verdict:
    """The rules, or some of them, applied to each seed; the sentences tell the shares over all."""
    seeds = [[run for run in runs if run["seed"] == seed] for seed in sorted({run["seed"] for run in runs})]
    where, parts = informative(runs), {}
    for rule, name in product(rules, RNNS):
        says, passes = RULES[rule]
        parts[f"{rule}, {name}: {says.format(*map(float, compared(runs, name, where)[rule]))}"] = agreed(
            passes(*compared(of_seed, name, where)[rule]) for of_seed in seeds if where[rule])
    gentle = {(T, *RATES[0]) for T in LENGTHS}
    return Verdict(parts, {
        "most free runs of the relu RNN with gain 2 break":
        all(share(of_seed, "relu RNN, gain 2", None) > Fraction(1, 2) for of_seed in seeds),
        f"clipped and with {RATES[0][0]} {RATES[0][1]:g}, no GRU, LSTM or Transformer breaks":
        not any(share(runs, name, CLIP, gentle) for name in ("GRU", "LSTM", "Transformer")),
    }, decisive=len(seeds) >= 3)


# --- telling

def text(runs: list[Told]) -> str:
    """Every run, then the shares that broke, then what the rules say one by one."""
    sizes, seeds = [run["parameters"] for run in runs], {run["seed"] for run in runs}
    found = [f"{len(runs)} runs of models with {min(sizes):,} to {max(sizes):,} parameters",
             "D diverged, G gradient not finite, L loss not finite, and the step at which it began; - none"
             + ("; seed/seed/seed, where they differ" if len(seeds) > 1 else "") + "; then the longest finite gradient"]
    for clip, title in (None, "free"), (CLIP, f"clipped to {CLIP:g}"):
        rows = [[title, *(f"{name} {rate:g}" for name, rate in RATES)]]
        for model, T in product(MODELS, LENGTHS):
            of = [run for run in runs if (run["model"], run["T"], run["clip"]) == (model, T, clip)]
            rows.append([f"{model}, T {T}", *(cell([run for run in of if setting(run)[1:] == rate]) for rate in RATES)])
        found += ["", table(*rows)]
    where = informative(runs)
    rows = [["share of runs that", "broke, free", "by D", "by G", "by L", "broke, clipped", "saved", "broke, free *"]]
    for name in dict.fromkeys(map(kind, runs)):
        free, clipped = share(runs, name, None), share(runs, name, CLIP)
        events = [share(runs, name, None, events=(event,)) for event in EVENTS]
        shown = (free, *events, clipped, free - clipped, share(runs, name, None, where["need"]))
        rows.append([name, *(f"{float(share):.0%}" for share in shown)])
    found += ["", table(*rows), "* without the settings that 'need' leaves out"]
    for rule in ("need", "cure"):
        out = [f"T {T} {name} {rate:g}" for T, name, rate in sorted(where["NaN"] - where[rule])]
        found.append(f"settings that {rule!r} leaves out: {', '.join(out) or 'none'}")
    return "\n".join([*found, "", *remarks(runs), "",
                      "each by itself:  " + ";  ".join(f"{rule}: {verdict(runs, [rule]).word}" for rule in RULES)])


def remarks(runs: list[Told]) -> list[str]:
    """What the three events do not tell."""
    lost = [run for run in runs if "loss" in run["trouble"]]
    calm = sum(run["longest"] < 100 for run in lost)
    beyond = sum(run["longest"] > BEYOND for run in runs)
    still = [run for run in runs if run["still"]]
    unseen = sum(not {"gradient", "loss"} & set(run["trouble"]) for run in still)
    guessing = sum(not run["trouble"] and run["end"] >= run["guess"] for run in runs)
    return [
        f"{calm} of {len(lost)} runs lost their loss though no gradient before was longer than 100: it was the states that "
        f"exploded",
        f"{beyond} runs met finite gradients longer than {BEYOND:.1e}; float32 cannot hold the square, float64 adds them up",
        f"{len(still)} runs with Adam, which squares in float32, went on with an infinite v: such a parameter never moves "
        f"again; {unseen} met no NaN",
        f"{guessing} runs met no event, and yet ended no better than a guess",
    ]


def cell(runs: list[Told]) -> str:
    events = ["".join(f"{event[0].upper()}{step}" for event, step in run["trouble"].items()) or "-" for run in runs]
    longest = f"{max(run['longest'] for run in runs):.0e}".replace("e+", "e")
    return f"{'/'.join(events if len(set(events)) > 1 else events[:1])} {longest}"


def outcome(run: Told) -> str:
    """The gravest of the events that a run met."""
    return next((event for event in reversed(EVENTS) if event in run["trouble"]), "trains")


def saved(runs: list[Told]) -> list[tuple[Told, Told]]:
    """For each kind the free run that broke, and would not have with clipping: the one that lasted longest, and its twin."""
    clipped = {(run["model"], setting(run)): run for run in runs if run["clip"] and run["seed"] == 0}
    pairs = [(run, clipped[run["model"], setting(run)]) for run in runs if run["clip"] is None and run["seed"] == 0]
    pairs = [(free, twin) for free, twin in pairs if free["trouble"] and not twin["trouble"]]
    longest = {kind(free): (free, twin) for free, twin in sorted(pairs, key=lambda pair: len(pair[0]["loss"]))}
    return [longest[name] for name in LINES if name in longest]


# --- the picture

def draw(figure: Any, numbers: dict[str, Any]) -> None:
    from matplotlib.patches import Patch
    panels = figure.subplot_mosaic("aabbccdd;gggggggg;eeeeffff", height_ratios=[8, 0.6, 7])
    for letter, (clip, T) in zip("abcd", product((None, CLIP), LENGTHS), strict=True):
        draw_grid(panels[letter], [run for run in numbers["runs"] if run["clip"] == clip and run["T"] == T])
        panels[letter].set_title(f"{'clipped' if clip else 'free'}, T = {T}")
        panels[letter].set_yticks(np.arange(len(MODELS)) + 0.5, MODELS if letter == "a" else [""] * len(MODELS))
    panels["g"].axis("off")
    panels["g"].legend(handles=[Patch(color=COLOURS[event], label=LABELS[event]) for event in COLOURS], ncols=len(COLOURS),
                       title="each number: the step at which it began", loc="center", frameon=False)
    for letter, what, title in ("e", "loss", "loss (nats)"), ("f", "grad_norm", "length of the gradient"):
        draw_curves(panels[letter], numbers["saved"], what)
        panels[letter].set_title(title, pad=14)
        panels[letter].set_xlabel("step")
    if numbers["saved"]:
        panels["e"].legend(title="dashed: the same, clipped;  ×: not finite", loc=(0.34, 0.42), frameon=False)
    figure.suptitle("What breaks, and what clipping the gradient saves", fontsize=16)


def draw_grid(panel: Any, runs: list[Told]) -> None:
    """A row for each model, a column for each rate, in it a stripe for each seed: the outcome as a colour, and its step."""
    seeds = len({run["seed"] for run in runs})
    for run in runs:
        row, column, what = list(MODELS).index(run["model"]), RATES.index((run["optimizer"], run["rate"])), outcome(run)
        width = 0.92 / seeds
        left = column + 0.04 + run["seed"] * width
        panel.barh(row + 0.5, width, 0.88, left, color=COLOURS[what])
        if what != "trains":
            panel.text(left + width / 2, row + 0.5, run["trouble"][what], color="black" if what == "diverged" else "white",
                       ha="center", va="center_baseline", fontsize=11 if seeds == 1 else 8)
    panel.set(xlim=(0, len(RATES)), ylim=(len(MODELS), 0))
    panel.set_xticks(np.arange(len(RATES)) + 0.5, [f"{name}\n{rate:g}" for name, rate in RATES], fontsize=10)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def draw_curves(panel: Any, pairs: list[tuple[Told, Told]], what: str) -> None:
    """Free runs that broke, and with a dashed line the same with clipping."""
    for free, clipped in pairs:
        label = f"{free['model']}, T {free['T']}, {free['optimizer']} {free['rate']:g}"
        panel.semilogy(clipped[what], "--", color=LINES[kind(free)], linewidth=1.6)
        panel.semilogy([np.nan if x is None else x for x in free[what]], color=LINES[kind(free)], linewidth=2.4, label=label)
    top = panel.get_ylim()[1]
    for free, _ in pairs:
        *_, before, last = free[what]
        if last is None:                                # beyond all numbers: at the upper edge
            end = len(free[what]) - 1
            panel.plot([end - 1, end], [before, top], ":", color=LINES[kind(free)], linewidth=2.4)
            panel.plot(end, top, "X", color=LINES[kind(free)], markersize=12, clip_on=False)
    panel.set_ylim(top=top)


@one_thread
def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many runs at a time (default: one per core)")
    args = parser.parse_args()
    path = Path(args.out) / "claims" / "nan_and_clipping.jsonl"
    runs = measure(grid(3 if args.full else 1, args.device), path, args.processes)
    numbers = {"runs": [{key: value for key, value in run.items() if key not in ("loss", "grad_norm")} for run in runs],
               "saved": saved(runs)}
    report("nan_and_clipping", args, numbers, verdict(runs), text(runs), draw, size=(15, 10))


if __name__ == "__main__":
    main()
