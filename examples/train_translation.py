"""Train a translator on the sentences of a manual, test it on pages that it never saw, and see where it looks.

    python examples/train_translation.py --model lstm
    python examples/train_translation.py --model transformer
    python examples/train_translation.py --model lstm --pair en-zh

An LSTM with Luong's attention and the Transformer of 2017, with about the same number of parameters, learn from the same
batches: sentences as pieces of words, one vocabulary for both languages, pairs of like length together. On the way each
translates a few sentences of the unseen pages. The end is judged with BLEU and chrF, beside what the untranslated source would
get: names and numbers are right in any language.

The budget is counted in steps. With the defaults it takes less than a quarter of an hour on one CPU core; with
`--threads 2` two share every batch. Another number of threads is another run: dropout draws other numbers.

Results go to `--out`: the pieces, a checkpoint (`--resume` goes on, see `docs/running.md`), measurements and translations as
JSON, pictures of the curves and of the attention. Packages that it needs: pip install "minitx[text,plots]"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import minitx as mx
from minitx.checkpoint import load_arrays
from minitx.data import Pairs, Pieces, length_batches, load_pairs, padding_share
from minitx.models import EncoderDecoder
from minitx.optim import Adam
from minitx.runs import Keeper, finite, resume_command
from minitx.schedules import inverse_sqrt, warmup_cosine
from minitx.seq2seq import Seq2Seq
from minitx.training import History, evaluate, train
from minitx.translation import Sides, Translator, scores, translate

V, LONGEST = 4000, 48                           # pieces in the vocabulary, and in the longest sentence that is trained on
BATCH, POOL = 64, 40                            # pairs per batch, batches that are sorted by length together
D, N, L, H = 128, 4, 2, 282                     # width, heads, blocks of each stack; state of the LSTM: equal parameters
DROPOUT, SMOOTHING = 0.1, 0.1
PRESETS = {"lstm": {"lr": 3e-3, "steps": 3000}, "transformer": {"lr": 2e-3, "steps": 2750}}     # of about equal time
SCHEDULES = ("cosine", "inverse_sqrt")
PROBE = 200                                     # held-out pairs that are translated on the way
WIDTH = 4                                       # of the beam


def build(kind: str, V: int) -> Translator:
    """The model called `kind` for a vocabulary of V pieces, one table of vectors for source, target and head."""
    if kind == "transformer":
        return EncoderDecoder(V, D, N, L, smoothing=SMOOTHING, dropout=DROPOUT)
    return Seq2Seq(V, V, D, H, attention="multiplicative", cell="lstm", tied=True, smoothing=SMOOTHING, dropout=DROPOUT)


def restored(place: Path) -> tuple[Translator, Pieces]:
    """The translator that an earlier run left in a place, and its pieces."""
    arrays, about = load_arrays(f"{place}.checkpoint")
    pieces = Pieces.load(f"{place}.pieces.json")
    model = build(about["config"]["model"], len(pieces))
    model.load_state_dict({name[6:]: array for name, array in arrays.items() if name.startswith("model.")})
    return model, pieces


def main() -> None:
    limited(arguments())


def limited(args: argparse.Namespace) -> dict[str, Any]:
    """Learn with so many threads, and as many for products at all other times; an error ends the program with a sentence."""
    try:
        with threadpool_limits(args.threads):
            return learn(args)
    except (ModuleNotFoundError, FloatingPointError) as error:
        sys.exit(str(error))


def learn(args: argparse.Namespace) -> dict[str, Any]:
    """Train as the options say, judge, and keep everything; returns what the JSON file has."""
    pairs, place = load_pairs(args.pair), Path(args.out) / name_of(args)
    scores(["a"], ["a"], args.pair[3:])                 # should a package be missing, it is known now and not after many steps
    pieces = vocabulary(pairs, place, args.resume)
    sides, heldout = Sides.of(pairs.train, pieces, LONGEST), Sides.of(pairs.test, pieces)
    rng = np.random.default_rng(0)
    wasted = {name: padding_share(sides.lengths, length_batches(sides.lengths, BATCH, rng, pool=pool))
              for name, pool in (("at random", 1), (f"sorted in pools of {POOL}", POOL))}
    mx.seed(args.seed)
    model = build(args.model, len(pieces)).to(args.device)
    lr, steps = args.lr or PRESETS[args.model]["lr"], args.steps or PRESETS[args.model]["steps"]
    sizes = sides.lengths.sum(0)
    print(f"{pairs.name}: {len(sides.sources):,} pairs to learn from, {sizes[0]:,} and {sizes[1]:,} pieces of {len(pieces):,} "
          f"different; {len(pairs.test):,} pairs of other pages held out")
    print("padding in batches of like length: " + ", ".join(f"{share:.0%} {name}" for name, share in wasted.items()))
    print(f"{args.model}: {model.count_parameters():,} parameters on {args.device}, {steps} steps of {BATCH} pairs "
          f"({steps * BATCH / len(sides.sources):.1f} epochs), learning rate {lr:g}\n", flush=True)

    optimizer = Adam(model.parameters(), lr, betas=(0.9, 0.98))
    warmup = min(args.warmup, max(steps // 5, 1))
    schedule = inverse_sqrt(lr, warmup=warmup) if args.schedule == "inverse_sqrt" else warmup_cosine(
        lr, total=steps, warmup=warmup, floor=lr / 20)
    config = {"model": args.model, "pair": args.pair, "steps": steps, "lr": lr, "schedule": args.schedule, "warmup": warmup,
              "seed": args.seed}
    keeper = Keeper(place, model, optimizer, config=config, every=args.every)
    try:
        history = keeper.start(args.resume)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    batches = islice(sides.epochs(BATCH, np.random.default_rng(args.seed), pool=POOL), len(history.loss), None)
    with keeper:
        for until in [*range(args.every, steps, args.every), steps]:        # time spent on translating is no time of training
            if len(history.loss) < until:
                train(model, batches, optimizer, steps=until, schedule=schedule, history=history, after_step=keeper,
                      threads=args.threads, title=args.model)
            if keeper.stopped:
                break
            if until - 1 not in history.recorded:
                history.recorded[until - 1] = look(model, pieces, pairs, heldout, args)
    if keeper.stopped:
        print(f"\n{len(history.loss)} of {steps} steps are in {keeper.checkpoint}; to go on:\n{resume_command()}", flush=True)
        sys.exit(130)
    keeper.save()           # with what was seen after the last step
    return judge(model, pieces, pairs, history, args, {"padding": wasted, "pairs": len(sides.sources), **config})


def name_of(args: argparse.Namespace) -> str:
    """What the files of this run are called."""
    return f"translation_{args.model}_{args.pair}"


def vocabulary(pairs: Pairs, place: Path, resume: bool) -> Pieces:
    """The pieces of the training text; a run that is resumed goes on with its own, which stand beside its checkpoint."""
    path = place.with_name(f"{place.name}.pieces.json")
    if resume and path.exists():
        return Pieces.load(path)
    pieces = Pieces.learn([sentence for pair in pairs.train for sentence in pair], V)
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces.save(path)
    return pieces


def look(model: Translator, pieces: Pieces, pairs: Pairs, heldout: Sides, args: argparse.Namespace) -> dict[str, float]:
    """Translate some held-out sentences: show a few, and the scores."""
    some = range(0, len(pairs.test), max(1, len(pairs.test) // args.probe))
    written = dict(zip(some, translate(model, pieces, [pairs.test[i][0] for i in some])))
    found = scores(list(written.values()), [pairs.test[i][1] for i in some], args.pair[3:])
    bits = evaluate(model, Sides(*([rows[i] for i in some] for rows in heldout)).once(BATCH))
    print(f"\nunseen pages: BLEU {found['bleu']:.1f}, chrF {found['chrf']:.1f}, {bits:.3f} bits per piece")
    for i in list(some)[:: max(1, len(some) // 3)][:3]:
        print(f"   {pairs.test[i][0]}\n   → {written[i]}\n   = {pairs.test[i][1]}")
    print(flush=True)
    return {**found, "bits": bits}


def judge(model: Translator, pieces: Pieces, pairs: Pairs, history: History, args: argparse.Namespace,
          about: dict[str, Any]) -> dict[str, Any]:
    """Translate all held-out sentences, greedily and with a beam; write and draw what was measured."""
    sources, references = map(list, zip(*pairs.test))
    language = args.pair[3:]
    greedily = translate(model, pieces, sources)
    count = len(sources) if args.beam is None else min(args.beam, len(sources))
    by_beam = translate(model, pieces, sources[:count], width=WIDTH)
    judged = {"copied": scores(sources, references, language), "greedy": scores(greedily, references, language)}
    if 0 < count < len(sources):
        judged[f"greedy, first {count:,}"] = scores(greedily[:count], references[:count], language)
    if count:
        judged[f"beam of {WIDTH}, first {count:,}"] = scores(by_beam, references[:count], language)
    print(f"{'':<24}{'BLEU':>6}{'chrF':>8}    on {len(sources):,} sentences of unseen pages")
    for how, found in judged.items():
        print(f"{how:<24}{found['bleu']:6.1f}{found['chrf']:8.1f}")
    print(f"\n{history.symbols / history.seconds:,.0f} pieces of the target per second, {history.seconds:.0f} s of training\n")
    curve = [{"step": step + 1, "seconds": history.seconds_at[step], "pieces": history.symbols_at[step],
              "epochs": (step + 1) * BATCH / about["pairs"], **finite(seen)} for step, seen in sorted(history.recorded.items())]
    results = {"options": vars(args), **about, "parameters": model.count_parameters(), "scores": judged, "curve": curve,
               "seconds": history.seconds, "pieces_per_second": history.symbols / history.seconds,
               "train_bits": [finite(b) for b in history.bits],
               "translations": [{"source": source, "reference": reference, "greedy": written}
                                for source, reference, written in zip(sources, references, greedily)]}
    path = Path(args.out) / f"{name_of(args)}.json"
    path.write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"wrote {path}")
    draw(model, pieces, list(zip(sources, greedily)), results, path)
    return results


def draw(model: Translator, pieces: Pieces, translated: Sequence[tuple[str, str]], results: dict[str, Any], path: Path) -> None:
    """The curves, and where the model looked in some sentences of middle length."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no pictures: matplotlib is not installed; pip install minitx[plots]")
        return
    from minitx.alignments import alignments, picture
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    losses, curve = np.array(results["train_bits"], float), results["curve"]
    k = max(1, len(losses) // 100)
    left.plot(losses, color="0.85", linewidth=0.6, label="each batch, smoothed labels")
    left.plot(np.arange(len(losses) - k + 1) + k - 1, np.convolve(losses, np.ones(k) / k, "valid"), color="C0",
              label=f"mean of {k} batches")
    left.plot([p["step"] for p in curve], [p["bits"] for p in curve], "o-", color="C3", markersize=4, label="unseen pages")
    left.set(xlabel="training step", ylabel="bits per piece", ylim=(0, losses[0] * 1.05), title=path.stem.replace("_", " "))
    right.plot([p["seconds"] for p in curve], [p["bleu"] for p in curve], "o-", color="C0", markersize=4, label="BLEU")
    right.plot([p["seconds"] for p in curve], [p["chrf"] for p in curve], "s-", color="C2", markersize=4, label="chrF")
    right.axhline(results["scores"]["copied"]["bleu"], color="C0", linestyle=":", label="BLEU of the source itself")
    right.set(xlabel="seconds of training", ylabel="score", title="translations of unseen pages",
              xlim=(0, None), ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
    figure.savefig(path.with_suffix(".png"), dpi=130)

    print(f"wrote {path.with_suffix('.png')}")
    middle = [pair for pair in translated if 6 <= len(pieces.encode(pair[0])) <= 16 and pair[1]]
    if shown := middle[:: max(1, len(middle) // 4)][:4]:            # early in training it may write nothing at all
        heat = path.with_name(f"{path.stem}_attention.png")
        picture({path.stem.split("_")[1]: alignments(model, pieces, *map(list, zip(*shown)))}).savefig(heat, dpi=130)
        print(f"wrote {heat}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pair", choices=("en-de", "en-zh"), default="en-de", help="the languages (default: en-de)")
    parser.add_argument("--model", choices=PRESETS, default="lstm")
    parser.add_argument("--steps", type=int, help="training steps (default: about a quarter of an hour)")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--schedule", choices=SCHEDULES, default="cosine", help="after the warm-up (default: cosine)")
    parser.add_argument("--warmup", type=int, default=200, help="steps of rising learning rate (default: 200)")
    parser.add_argument("--every", type=int, default=250, metavar="STEPS", help="translate and save so often (default: 250)")
    parser.add_argument("--probe", type=int, default=PROBE, help=f"held-out pairs that are translated then (default: {PROBE})")
    parser.add_argument("--beam", type=int, help=f"test sentences for the beam of {WIDTH}; 0: none (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="on which a batch is shared out (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out that was interrupted")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out", help="folder for results (default: out)")
    args = parser.parse_args(argv)
    for name, least in {"steps": 1, "warmup": 1, "every": 1, "probe": 1, "threads": 1, "beam": 0}.items():
        if getattr(args, name) is not None and getattr(args, name) < least:
            parser.error(f"--{name}: {getattr(args, name)}; expected at least {least}")
    return args


if __name__ == "__main__":
    main()
