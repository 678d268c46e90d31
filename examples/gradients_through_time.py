"""See where gradients die, where they blow up, and where they do not: RNN, GRU, LSTM and Transformer side by side.

    python examples/gradients_through_time.py

Each model reads T characters of a novel and is asked for the next one. How strongly does the loss at the end depend on what
the model had in mind d steps earlier? That is the length of one gradient,

    g(d) = ‖∂ loss / ∂ state at step T - d‖      averaged over sequences

where the state is h (and c) of a recurrence, and for a Transformer the stream that enters its first block. `minitx.record`
sees it. The script measures g before and after a short training, fits an exponential and a power law to it, prints a table,
states a verdict from rules that were fixed before the run, and saves a picture. Each model is trained twice, with and without
clipping, and three things that can go wrong are counted apart: a loss or a gradient that is not finite, and a loss that rises.

Claim under test: "RNN gradients explode or vanish; gates soften it; a Transformer's path is direct."
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx import backend
from minitx.data import Vocabulary, load_corpus, windows
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import Adam
from minitx.training import train

LENGTHS = (64, 128, 256)                # T at initialisation; the training is at the first, and so is what is seen after it
B = 32                                  # sequences that are measured
TRAINING = {"rnn": 1e-3, "gru": 3e-3, "lstm": 3e-3, "transformer": 3e-3}        # learning rates of Adam
CLIP = 1.0
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN, gain 0.5": ("rnn", {"gain": 0.5}),
    "RNN, gain 1": ("rnn", {"gain": 1.0}),
    "RNN, gain 1.8": ("rnn", {"gain": 1.8}),
    "RNN, gain 2.5": ("rnn", {"gain": 2.5}),
    "GRU": ("gru", {}),
    "LSTM, forget bias 0": ("lstm", {"forget_bias": 0.0}),
    "LSTM, forget bias 1": ("lstm", {"forget_bias": 1.0}),
    "LSTM, forget bias 2": ("lstm", {"forget_bias": 2.0}),
    "Transformer, pre-norm": ("transformer", {"norm": "pre"}),
    "Transformer, post-norm": ("transformer", {"norm": "post"}),
}


# --- models of equal size

def build(kind: str, V: int, H: int, seed: int, **options: Any) -> LanguageModel:
    rng = np.random.default_rng(seed)
    if kind == "transformer":
        return TransformerLM(V, D=64, N=4, L=2, T=max(LENGTHS), rng=rng, **options)
    return RecurrentLM(V, 64, H, cell=kind, rng=rng, **options)


def equal_width(kind: str, V: int) -> int:
    """The hidden size that gives a recurrence as many parameters as the Transformer has."""
    target = build("transformer", V, 0, 0).count_parameters()
    gates, biases = {"rnn": (1, 1), "gru": (3, 2), "lstm": (4, 1), "transformer": (1, 1)}[kind]
    sizes = {H: V * 64 + gates * H * (64 + H + biases) + (H + 1) * V for H in range(8, 600)}
    return min(sizes, key=lambda H: abs(sizes[H] - target))


# --- measuring

def gradients_by_distance(model: LanguageModel, ids: Any, targets: Any) -> np.ndarray:
    """g for each sequence and distance: (B, T - 1), the first column one step before the loss. The last step is left out."""
    with mx.record(model, norms=True) as log, backend.expecting_overflow():
        last = model.body(model.embed(ids))[:, -1]                                           # (B, H)
        mx.ops.cross_entropy(model.head(last), targets[:, -1], reduction="sum").backward()
    if isinstance(model, TransformerLM):
        g = log.dstream()[0]                                                                 # (B, T), entering the first block
    else:
        [layer] = log.showing("dh")
        g = np.hypot(log[layer]["dh"], log[layer].get("dc", 0))
    return g[:, -2::-1]


def fit(g: np.ndarray) -> dict[str, float]:
    """Straight lines through log g, against distance (an exponential; its slope is `rate`) and log distance (a power law)."""
    mean = g.mean(0)
    distance = np.arange(1, len(mean) + 1)[mean > 0]
    log_g = np.log(mean[mean > 0])
    fits = {}
    for name, x in (("exponential", distance), ("power", np.log(distance))):
        slope, start = np.polyfit(x, log_g, 1)
        residual = log_g - (start + slope * x)
        fits[name], fits[f"{name}_r2"] = float(slope), float(1 - residual.var() / max(log_g.var(), 1e-300))
    rng = np.random.default_rng(0)
    again = [np.polyfit(distance, np.log(g[rng.integers(len(g), size=len(g))].mean(0)[mean > 0]), 1)[0] for _ in range(50)]
    return {"rate": fits.pop("exponential"), "rate_r2": fits.pop("exponential_r2"), **fits,
            "rate_error": float(np.std(again)), "mean": float(mean.mean())}


def control(device: str) -> float:
    """A linear RNN whose U is a rotation times s: g(d) must be s^d. The largest relative error over s, in float64."""
    errors, d = [], np.arange(1, max(LENGTHS))
    ids = backend.to_device(np.random.default_rng(0).integers(0, 10, (4, max(LENGTHS))), device)
    for s in (0.9, 1.0, 1.1):
        model = RecurrentLM(10, 8, 16, cell="rnn", activation="linear", gain=s, dtype="float64").to(device)
        model.tokens.table.assign_(1e-12 * model.tokens.table.array)     # or h grows until a logit leaves no gradient at all
        g = gradients_by_distance(model, ids, ids)
        errors.append(np.abs(g / g[:, :1] / s ** (d - 1) - 1).max())
    return float(np.max(errors))                                         # nan, if one of them is


# --- verdict

def verdict(rates: dict[str, np.ndarray], control_error: float) -> list[str]:
    """The rules, fixed before the runs, applied to the rates at initialisation: {model: (seeds, lengths)}."""
    def runs_away(r: np.ndarray) -> bool:
        """Exponential: the rate is the same at every T (within a factor 1.3), and over 256 steps it amounts to e^±10."""
        return bool((r.min() > 0 or r.max() < 0) and abs(r).max() / abs(r).min() < 1.3 and abs(r[-1]) * LENGTHS[-1] > 10)

    def direct(r: np.ndarray) -> bool:
        return bool((abs(r) * LENGTHS < 2).all())

    def agreed(seeds: list[bool]) -> str:
        return "yes" if all(seeds) else "no" if not any(seeds) else "undecided"

    def word(answers: list[str]) -> str:
        if set(answers) == {"undecided"}:
            return "undecided"
        return "holds" if set(answers) == {"yes"} else "holds in part" if "yes" in answers else "does not hold here"

    if not control_error <= 1e-6:
        return [f"UNDECIDED: the control failed, the linear RNN is off its closed form by {control_error:.1e}"]
    away = {n: agreed([runs_away(r) for r in rates[n]]) for n, (kind, _) in MODELS.items() if kind != "transformer"}
    softer = agreed([abs(lstm[-1]) < abs(rnn[-1])
                     for lstm, rnn in zip(rates["LSTM, forget bias 1"], rates["RNN, gain 1"], strict=True)])
    path = agreed([direct(r) for r in rates["Transformer, pre-norm"]])
    groups = [f"    {answer + ':':<11}{'; '.join(n for n in away if away[n] == answer)}"
              for answer in ("yes", "no", "undecided") if answer in away.values()]
    overall, seeds = word([*away.values(), softer, path]).upper(), len(rates["RNN, gain 1"])
    return [f"verdict at initialisation, over {seeds} seed{'s'[:seeds > 1]}: {overall}",
            f"  recurrences explode or vanish (same rate at every T, |rate|·{LENGTHS[-1]} > 10): {word(list(away.values()))}",
            *groups,
            f"  gates soften it (|rate| of LSTM with forget bias 1 below that of RNN with gain 1): {word([softer])}",
            f"  the path of the pre-norm Transformer is direct (|rate|·T < 2 at every T): {word([path])}"]


# --- the run

@threadpool_limits.wrap(limits=1)     # the products are small: a second thread gains little, and on a busy machine it waits
def main() -> None:
    args = arguments()
    start = time.perf_counter()
    corpus = load_corpus()
    vocabulary = Vocabulary.of(corpus.train)
    text, V = vocabulary.encode(corpus.train), len(vocabulary)
    batches = {T: next(windows(text, B, T, np.random.default_rng(args.seed))) for T in LENGTHS}
    results: dict[str, Any] = {"options": vars(args), "initial": {}, "trained": {}, "parameters": {}, "training": {},
                               "rates": {}}
    curves: dict[str, dict[str, np.ndarray]] = {"initial": {}, "trained": {}}

    results["control_error"] = control(args.device)
    for name, (kind, options) in MODELS.items():
        def measure(model: LanguageModel, T: int) -> np.ndarray:
            model.to(dtype="float64")       # g falls below what float32 can hold
            g = gradients_by_distance(model, *(backend.to_device(a, args.device) for a in batches[T]))
            model.to(dtype="float32")
            return g

        H = equal_width(kind, V)
        seeds = [build(kind, V, H, args.seed + i, **options).to(args.device) for i in range(args.seeds)]
        measured = [{T: measure(model, T) for T in LENGTHS} for model in seeds]
        fits = [{T: fit(g) for T, g in of_seed.items()} for of_seed in measured]
        results["initial"][name], curves["initial"][name] = fits[0], measured[0][LENGTHS[0]].mean(0)
        results["rates"][name] = [[of_seed[T]["rate"] for T in LENGTHS] for of_seed in fits]

        results["parameters"][name], results["training"][name] = seeds[0].count_parameters(), {}
        for clip in (None, CLIP):
            model = build(kind, V, H, args.seed, **options).to(args.device)
            history = train(model, windows(text, 16, LENGTHS[0], np.random.default_rng(args.seed)),
                            Adam(model.parameters(), TRAINING[kind]), steps=args.steps, clip=clip, on_nonfinite="record",
                            threads=1, title=f"{name + (', clipped' if clip else ', free'):<32}")
            results["training"][name]["clipped" if clip else "free"] = {
                "bits": history.smooth_bits(), "events": sorted(history.trouble()), "longest": max(history.grad_norm)}
        g = measure(model, LENGTHS[0])
        results["trained"][name], curves["trained"][name] = fit(g), g.mean(0)

    results["verdict"] = verdict({n: np.array(r) for n, r in results["rates"].items()}, results["control_error"])
    print(table(results))
    save(args, results, curves)
    print(f"{time.perf_counter() - start:.0f} s in all")


def table(results: dict[str, Any]) -> str:
    T0, T = LENGTHS[0], LENGTHS[-1]
    lines = ["", "log g against distance: slope per step back (rate), over all (rate·T), how well a line fits (R²)", "",
             f"{'':<24}{'parameters':>10}   " + "".join(f"{f'rate, T={t}':>12}" for t in LENGTHS)
             + f"{f'rate·T, T={T}':>15}{'R²':>6}   after {results['options']['steps']} steps at T={T0}:",
             " " * 97 + f"{'bits':>5}{'rate·T':>9}{'R² exp':>8}{'R² power':>10}"]
    for name, fits in results["initial"].items():
        after, bits = results["trained"][name], results["training"][name]["clipped"]["bits"]
        rates = "".join(f"{fits[t]['rate']:>+12.4f}" for t in LENGTHS)
        lines.append(f"{name:<24}{results['parameters'][name]:>10,}   {rates}"
                     f"{fits[T]['rate'] * T:>+15.1f}{fits[T]['rate_r2']:>6.2f}   {bits:>5.2f}"
                     f"{after['rate'] * T0:>+9.1f}{after['rate_r2']:>8.2f}{after['power_r2']:>10.2f}")
    means = [results["initial"]["Transformer, pre-norm"][t]["mean"] for t in LENGTHS]
    dilution = np.polyfit(np.log(LENGTHS), np.log(means), 1)[0]
    bent = [n for n, after in results["trained"].items() if after["power_r2"] > after["rate_r2"]]
    seeds = len(next(iter(results["rates"].values())))
    spread = max(np.ptp(rates, axis=0).max() for rates in results["rates"].values())
    errors = max(f[t]["rate_error"] for f in results["initial"].values() for t in LENGTHS)
    return "\n".join([*lines, "", f"control: a linear RNN against its closed form, largest relative error "
                      f"{results['control_error']:.1e}",
                      f"standard error of a rate over the {B} sequences at most {errors:.4f}"
                      + (f"; it differs by at most {spread:.4f} between seeds" if seeds > 1 else ""),
                      f"dilution: with more positions to look at, the pre-norm Transformer's gradient of each one is smaller, "
                      f"like T^{dilution:.2f}",
                      f"after training, a power law fits better than an exponential: {'; '.join(bent) or 'nowhere'}",
                      "", *clipping(results), "", *results["verdict"]])


def clipping(results: dict[str, Any]) -> list[str]:
    """What it did to the training of each model, and the three events."""
    lines = [f"trained with Adam, the gradient clipped to length {CLIP:g} or free; events: a loss that is not finite (loss), "
             f"a gradient that is not (gradient),", "a loss that ends above 1.1 × where it began (diverged)", "",
             f"{'':<24}{'longest gradient':>18}{'bits, free':>12}{'clipped':>9}   events, free → clipped"]
    for name, runs in results["training"].items():
        free, clipped = runs["free"], runs["clipped"]
        events = " → ".join(", ".join(run["events"]) or "none" for run in (free, clipped))
        lines.append(f"{name:<24}{free['longest']:>18.3g}{free['bits']:>12.2f}{clipped['bits']:>9.2f}   {events}")
    return lines


def save(args: argparse.Namespace, results: dict[str, Any], curves: dict[str, dict[str, np.ndarray]]) -> None:
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "gradients_through_time.json").write_text(json.dumps(results, indent=1))
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed; pip install minitx[plots]")
        return
    plt.rcParams.update({"font.size": 13})
    figure, panels = plt.subplots(1, 2, figsize=(14, 6.4), sharey=True, layout="constrained")
    shades = {"rnn": plt.cm.Reds(np.linspace(0.45, 0.95, 4)), "gru": ["tab:green"],
              "lstm": plt.cm.Blues(np.linspace(0.5, 0.95, 3)), "transformer": ["black", "0.5"]}
    titles = {"initial": "at initialisation", "trained": f"after {args.steps} training steps"}
    for panel, (when, title) in zip(panels, titles.items(), strict=True):
        used = dict.fromkeys(shades, 0)
        for name, (kind, _) in MODELS.items():
            g = curves[when][name] / curves[when][name][0]
            colour = shades[kind][used[kind]]
            used[kind] += 1
            panel.semilogy(np.arange(1, len(g) + 1), g, color=colour, linewidth=4 if kind == "transformer" else 2.2, label=name)
        panel.axhline(1, color="0.8", linewidth=1, zorder=0)
        panel.set(title=title, xlabel="steps back from the loss", xlim=(1, LENGTHS[0]), ylim=(1e-12, 1e7))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("gradient of the state, relative to one step back")
    panels[0].annotate("explodes", (2, 1e6), color="0.4")
    panels[0].annotate("vanishes", (2, 1e-11), color="0.4")
    panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.suptitle("How much does the loss still feel of what was there d steps ago?", fontsize=17)
    not_so = [line.strip().removeprefix("no:").strip() for line in results["verdict"] if line.strip().startswith("no:")]
    caption = results["verdict"][0] + "".join(f"; neither explodes nor vanishes: {models}" for models in not_so)
    figure.supxlabel(caption, fontsize=11, color="0.4")
    path = out / "gradients_through_time.png"
    figure.savefig(path, dpi=120)
    print(f"\nwrote {path} and {path.with_suffix('.json').name}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--steps", type=int, default=150, help="training steps per model (default: 150)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="how many initialisations decide the verdict (default: 3)")
    parser.add_argument("--out", default="out", help="folder for the picture and the numbers (default: out)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
