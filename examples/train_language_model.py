"""Train a character language model on a novel, measure it on another, and let it write.

    python examples/train_language_model.py --model lstm
    python examples/train_language_model.py --model transformer --language zh
    python examples/train_language_model.py --model rnn --text my_book.txt --steps 500
    python examples/train_language_model.py --model gru --carry

The models have about the same number of parameters. With `--carry` a recurrent one reads on from batch to batch with the state
it had (truncated backprop through time), in training and on the held-out text; else it sees windows, each with a blank memory.
The budget is counted in steps; with the defaults it takes two to three minutes on two CPU cores, and about four times as long
in Chinese, which has 58 times as many different characters.

Results go to `--out`: the loss curve as a picture, all measurements as JSON. With `--look` there are pictures of the inside as
well: the gradients at every time step, gates or attention, on a piece of the held-out text; `--record 50` notes the lengths of
all outputs, gradients and parameters at every 50th step (`docs/recording.md`). Stop it with Ctrl-C, or kill it: with `--resume`
it goes on as if nothing had happened (`docs/running.md`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np

import minitx as mx
from minitx import backend
from minitx.carried import Carried
from minitx.data import Vocabulary, bigram_bits, load_corpus, read_text, sequential, streams, windows
from minitx.generation import generate
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import AdamW
from minitx.runs import Keeper, finite, resume_command
from minitx.schedules import warmup_cosine
from minitx.shards import Shards
from minitx.training import History, evaluate, train

T = 128                                         # characters per window
PRESETS = {                                     # learning rate and steps, for about 250,000 parameters on English
    "rnn": {"lr": 1e-3, "steps": 2400},
    "gru": {"lr": 4e-3, "steps": 2600},
    "lstm": {"lr": 4e-3, "steps": 2600},
    "transformer": {"lr": 3e-3, "steps": 2400},
}


def build(kind: str, V: int) -> LanguageModel:
    """The model called `kind` for a vocabulary of V characters."""
    if kind == "transformer":
        return TransformerLM(V, D=96, N=4, L=2, T=T)
    return RecurrentLM(V, D=64, H={"rnn": 429, "gru": 243, "lstm": 209}[kind], cell=kind)


def main() -> None:
    args = arguments()
    preset = PRESETS[args.model]
    lr, steps = args.lr or preset["lr"], args.steps or preset["steps"]
    mx.seed(args.seed)

    corpus, (train_text, heldout_text) = texts(args)
    vocabulary = Vocabulary.of(train_text, min_count=2)
    ids, heldout = (vocabulary.encode(text, unknown="replace") for text in (train_text, heldout_text))
    model = trained = build(args.model, len(vocabulary)).to(args.device)
    if args.carry:
        trained = Carried(model)
    threads = Shards(trained, args.threads).threads
    unigram, bigram = bigram_bits(ids, len(vocabulary))
    print(f"{corpus}: {len(ids):,} characters to train on, {len(heldout):,} held out, {len(vocabulary)} different")
    print(f"{args.model}: {model.count_parameters():,} parameters on {args.device}, {threads} thread{'s' * (threads > 1)}, "
          f"{steps} steps of {args.batch} × {T} characters, learning rate {lr:g}")

    try:
        batches, measured = batches_of(ids, heldout, args)
    except ValueError as error:
        sys.exit(f"the text is too short: {error}")
    optimizer = AdamW(model.parameters(), lr)
    schedule = warmup_cosine(lr, total=steps, warmup=min(100, steps // 10), floor=lr / 20)
    config = {"model": args.model, "text": sha256((train_text + heldout_text).encode()).hexdigest()[:12], "steps": steps,
              "lr": lr, "batch": args.batch, "accumulate": args.accumulate, "clip": args.clip, "seed": args.seed,
              "carry": args.carry, "threads": threads}
    keeper = Keeper(Path(args.out) / name_of(args), trained, optimizer, config=config, every=args.checkpoint_every)
    try:
        history = keeper.start(args.resume)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    used = len(history.loss) * args.accumulate
    try:
        with keeper:
            train(trained, islice(batches, used, None), optimizer, steps=steps, schedule=schedule, clip=args.clip or None,
                  history=history, accumulate=args.accumulate, on_nonfinite=args.on_nonfinite, after_step=keeper,
                  record=mx.record(trained, norms=True, every=args.record) if args.record else None, threads=threads,
                  title=args.model)
    except FloatingPointError as error:
        sys.exit(str(error))
    if keeper.stopped:
        print(f"\n{len(history.loss)} of {steps} steps are in {keeper.checkpoint}; to go on:\n{resume_command()}", flush=True)
        sys.exit(130)
    bits = evaluate(Carried(model) if args.carry else model, measured)

    print(f"\nheld-out text  {bits:.3f} bits per character   (training text {history.smooth_bits(100):.3f})")
    print(f"to beat        {bigram:.2f} with a table of pairs, {unigram:.2f} with single frequencies")
    print(f"speed          {history.symbols / history.seconds:,.0f} characters/s, {history.seconds:.0f} s of training\n")
    middle = len(heldout) // 2
    print(sample(model, vocabulary, heldout[middle:middle + 60], args.characters, args.seed))
    save(args, history, bits, unigram, bigram)
    if args.look:
        look(args, model, vocabulary, heldout[middle:middle + 49])


def name_of(args: argparse.Namespace) -> str:
    """What the files of this run are called."""
    return f"language_model_{args.model}{'_carry' * args.carry}_{'own' if args.text else args.language}"


def texts(args: argparse.Namespace) -> tuple[str, tuple[str, str]]:
    """The name of the text, and its two parts: a bundled corpus, or your own file with the last tenth held out."""
    if args.text:
        text = read_text(args.text)
        cut = len(text) * 9 // 10
        return Path(args.text).name, (text[:cut], text[cut:])
    corpus = load_corpus(args.language)
    return corpus.name, (corpus.train, corpus.heldout)


def batches_of(ids: np.ndarray, heldout: np.ndarray, args: argparse.Namespace) -> tuple[Iterator[tuple], Iterator[tuple]]:
    """What to train on, without end, and what to measure on; ValueError if a text is too short."""
    if not args.carry:
        return windows(ids, args.batch, T, np.random.default_rng(args.seed)), sequential(heldout, 64, T)
    readers = min(64, max(1, (len(heldout) - 1) // T))          # each from a blank memory on
    return streams(ids, args.batch, T), streams(heldout, readers, T, steps=max(1, len(heldout) // (readers * T)))


def sample(model: LanguageModel, vocabulary: Vocabulary, prompt: np.ndarray, count: int, seed: int) -> str:
    """What the model writes after `prompt`, or why it cannot."""
    written = generate(model, prompt, count, temperature=0.8, rng=np.random.default_rng(seed))
    try:
        return f"--- {vocabulary.decode(prompt)}|{vocabulary.decode(np.fromiter(written, np.int64))} ---"
    except FloatingPointError as error:
        return str(error)


def save(args: argparse.Namespace, history: History, bits: float, unigram: float, bigram: float) -> None:
    """The loss curve and the numbers behind it."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    name = name_of(args)
    (out / f"{name}.json").write_text(json.dumps(
        {"options": vars(args), "heldout_bits": finite(bits), "unigram_bits": unigram, "bigram_bits": bigram,
         "seconds": history.seconds, "train_bits": [finite(b) for b in history.bits],
         "grad_norm": [finite(g) for g in history.grad_norm], "lr": history.lr, "events": history.events}))
    print(f"\nwrote {out / name}.json")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed; pip install minitx[plots]")
        return
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), height_ratios=(3, 1), sharex=True, layout="constrained")
    k = max(1, len(history.bits) // 100)
    smooth = np.convolve(history.bits, np.ones(k) / k, "valid")
    top.plot(history.bits, color="0.8", linewidth=0.8, label="each batch")
    top.plot(np.arange(len(smooth)) + k - 1, smooth, color="C0", label=f"mean of {k} batches")
    top.axhline(bits, color="C3", label=f"held-out text: {bits:.3f}")
    top.axhline(bigram, color="0.4", linestyle=":", label=f"table of pairs: {bigram:.2f}")
    top.set(ylabel="bits per character", title=f"{args.model}: learning to predict the next character", ylim=(1.5, 6))
    top.legend(frameon=False)
    bottom.semilogy(history.grad_norm, color="C2", linewidth=0.6)
    bottom.set(xlabel="training step", ylabel="gradient norm")
    figure.savefig(out / f"{name}.png", dpi=150)
    print(f"wrote {out / name}.png")


def look(args: argparse.Namespace, model: LanguageModel, vocabulary: Vocabulary, ids: np.ndarray) -> None:
    """Pictures of what happens inside the model when it learns from ids (T + 1)."""
    ids = backend.to_device(ids[None], args.device)                                          # (1, T + 1)
    with mx.record(model) as log:
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
    print(f"\n{log.text.gradients()}")
    tokens = list(vocabulary.decode(backend.to_host(ids)[0, :-1]))
    pictures = {"gradients": log.plot.gradients}
    if args.model == "transformer":
        pictures["attention"] = log.plot.attention
    elif args.model != "rnn":
        pictures["gates"] = log.plot.gates
    for name, picture in pictures.items():
        path = Path(args.out) / f"{name_of(args)}_{name}.png"
        picture(tokens=tokens).savefig(path, dpi=120)
        print(f"wrote {path}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=PRESETS, default="lstm")
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="the bundled text (default: en)")
    parser.add_argument("--text", help="a text file of your own instead; its last tenth is held out")
    parser.add_argument("--carry", action="store_true", help="read on from batch to batch with the state (recurrent models)")
    parser.add_argument("--steps", type=int, help="training steps (default: about three minutes)")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--batch", type=int, default=16, help="windows per step (default: 16)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches that make one step together (default: 1)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest length of the gradient; 0: any (default: 1)")
    parser.add_argument("--on-nonfinite", choices=("stop", "record"), default="stop",
                        help="at numbers that are not finite: stop and say where, or note it and go on (default: stop)")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS", help="(default: 200)")
    parser.add_argument("--record", type=int, metavar="STEPS", help="note the lengths of everything at every so many steps")
    parser.add_argument("--look", action="store_true", help="draw what happens inside, at the end; needs matplotlib")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out that was interrupted")
    parser.add_argument("--characters", type=int, default=400, help="length of the sample (default: 400)")
    parser.add_argument("--threads", type=int, help="on which a batch is shared out (default: one for each core, up to 8)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out", help="folder for results (default: out)")
    args = parser.parse_args()
    if args.carry and args.model == "transformer":
        parser.error("--carry: a Transformer has no state to carry; choose --model rnn, gru or lstm")
    if args.carry and (args.threads or 1) > 1:
        parser.error("--carry: a batch that reads on stays in one piece; leave --threads out")
    for name in "steps", "threads":
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name}: {getattr(args, name)}; expected at least 1")
    return args


if __name__ == "__main__":
    main()
