"""What attention is for: read a word, then spell it backwards.

    python examples/reverse_words.py
    python examples/reverse_words.py --attention additive --cell lstm

Models with states of one size learn it from the words of a novel, letters in and letters out. Without attention all that the
decoder knows of a word is one state, and the longer the word, the less of it is in there. With it, the decoder looks back at
each step, and should look at one letter after the other from the last to the first: an anti-diagonal in the picture. How often
it does is counted. No word that is tested was trained on.

Results go to `--out`: a picture, and all measurements as JSON. With the defaults it takes about half a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

import minitx as mx
from minitx.backend import to_device
from minitx.data import Vocabulary, length_batches, load_corpus, pad, padding_share, pair_batch
from minitx.decoding import beam_search, greedy
from minitx.models import CELLS
from minitx.optim import AdamW
from minitx.schedules import warmup_cosine
from minitx.seq2seq import DECODERS, Seq2Seq
from minitx.training import evaluate, train

LETTERS = Vocabulary("<>" + ascii_lowercase)                # "<" starts a word, ">" ends it
START, STOP = LETTERS.encode("<>").tolist()
BATCH, POOL, HELD_OUT = 64, 20, 600                         # words per batch, batches per pool, words that are only tested
D, H, LR = 32, 64, 5e-3
WIDTH, ALPHA = 4, 0.0                                       # of the beam; all right answers are as long as their word
LENGTHS = ((3, 5), (6, 7), (8, 9), (10, 11), (12, 99))      # letters


def main() -> None:
    args = arguments()
    words = novel_words(args.seed)
    heldout, words = words[:HELD_OUT], words[HELD_OUT:]
    print(f"{len(words):,} words to learn from, up to {max(map(len, words))} letters long; {len(heldout)} held out")
    shares = shares_of_padding(words)
    for name, share in shares.items():
        print(f"{share:6.1%} of all steps are padding in batches of {BATCH} words, {name}")
    print()

    results = {}
    for attention in args.attention:
        results[attention] = run(attention, words, heldout, args)
        print(row(attention, results[attention]), flush=True)
    print("\n" + table(results, heldout))
    save(args, results, heldout, shares)


def novel_words(seed: int) -> list[str]:
    """The different words of the novel that have three letters or more, shuffled."""
    words = sorted(set(re.findall(f"[{ascii_lowercase}]{{3,}}", load_corpus().train.lower())))
    np.random.default_rng(seed).shuffle(words)
    return words


def batches(words: Sequence[str], rng: np.random.Generator) -> Iterator[tuple]:
    """One epoch of pairs: words, and the same backwards."""
    for rows in length_batches([len(word) for word in words], BATCH, rng, pool=POOL):
        sources = [LETTERS.encode(words[i]) for i in rows]
        yield pair_batch(sources, [source[::-1] for source in sources], start=START, stop=STOP)


def endless(words: Sequence[str], rng: np.random.Generator) -> Iterator[tuple]:
    while True:
        yield from batches(words, rng)


def shares_of_padding(words: Sequence[str]) -> dict[str, float]:
    """How much of an epoch would be padding, by how its batches are made."""
    lengths = [len(word) for word in words]
    pools = {"at random": 1, f"sorted by length in pools of {POOL}": POOL, "all sorted": None}
    return {name: padding_share(lengths, length_batches(lengths, BATCH, np.random.default_rng(0), pool=pool))
            for name, pool in pools.items()}


def run(attention: str, words: Sequence[str], heldout: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Train one model and measure it."""
    mx.seed(args.seed)
    model = Seq2Seq(len(LETTERS), len(LETTERS), D, H, attention=attention, cell=args.cell).to(args.device)
    optimizer = AdamW(model.parameters(), LR)
    history = train(model, endless(words, np.random.default_rng(args.seed)), optimizer, steps=args.steps, title=attention,
                    schedule=warmup_cosine(LR, total=args.steps, warmup=min(50, args.steps // 10), floor=LR / 20),
                    threads=args.threads)
    model.eval()
    written = write(model, heldout)
    probs = None if attention == "none" else alignments(model, heldout)
    return {"parameters": model.count_parameters(), "seconds": history.seconds, "letters": history.symbols,
            "train_bits": history.bits, "heldout_bits": evaluate(model, batches(heldout, np.random.default_rng(0))),
            **written, "right": {how: [a == word[::-1] for a, word in zip(written[how], heldout)] for how in written},
            "backwards": None if probs is None else anti_diagonal(probs), "probs": probs}


def write(model: Seq2Seq, words: Sequence[str]) -> dict[str, list[str]]:
    """What the model writes for each word, greedily and with a beam."""
    with mx.no_grad():
        memory, state = model.encode(*on_device(model, *pad(map(LETTERS.encode, words))))

    def step(ids: np.ndarray, state: Any) -> tuple[mx.Tensor, Any]:
        return model.step(ids, memory, state)

    start, options = [START] * len(words), {"stop": STOP, "steps": 2 + max(map(len, words))}
    first = greedy(step, state, start, **options)
    best = [found[0] for found in beam_search(step, state, start, width=WIDTH, alpha=ALPHA, **options)]
    return {how: [LETTERS.decode(h.ids) for h in found] for how, found in (("greedy", first), ("beam", best))}


def alignments(model: Seq2Seq, words: Sequence[str]) -> list[np.ndarray]:
    """For each word of n letters (n, n): where the model looks before it writes each letter of the word backwards."""
    sources = [LETTERS.encode(word) for word in words]
    source, lengths, inputs, _ = on_device(model, *pair_batch(sources, [s[::-1] for s in sources], start=START, stop=STOP))
    with mx.record(model) as log, mx.no_grad():
        model(source, lengths, inputs)
    probs = log["decoder"]["probs"].reshape(len(words), -1, source.shape[1])                         # (B, T, S)
    return [p[:len(word), :len(word)] for p, word in zip(probs, words)]


def anti_diagonal(probs: Sequence[np.ndarray]) -> float:
    """For which part of all letters the largest weight is on the letter that is written."""
    hits = [p.argmax(-1) == np.arange(len(p))[::-1] for p in probs]
    return float(np.concatenate(hits).mean())


def on_device(model: Seq2Seq, *arrays: np.ndarray) -> list[Any]:
    return [to_device(array, model.parameters()[0].device) for array in arrays]


def row(attention: str, result: dict[str, Any]) -> str:
    looks = "" if result["backwards"] is None else f", looks at the letter it writes {result['backwards']:4.0%}"
    right = {how: f"{np.mean(answers):6.1%}" for how, answers in result["right"].items()}
    return (f"{attention:<15}{result['parameters']:>7,} parameters {result['letters'] / result['seconds']:>8,.0f} letters/s "
            f"{result['heldout_bits']:7.3f} bits/letter   right: greedy {right['greedy']}, beam {right['beam']}{looks}")


def right_by_length(result: dict[str, Any], heldout: Sequence[str]) -> dict[str, float]:
    """The share of words that are right, greedily, by their number of letters."""
    right, n = np.array(result["right"]["greedy"]), np.array([len(word) for word in heldout])
    shares = {}
    for low, high in LENGTHS:
        group = (n >= low) & (n <= high)
        if group.any():
            shares[f"{low}-{high}" if high < 99 else f"{low}+"] = float(right[group].mean())
    return shares


def table(results: dict[str, Any], heldout: Sequence[str]) -> str:
    rows = {attention: right_by_length(result, heldout) for attention, result in results.items()}
    head = "letters in the word  " + "".join(f"{name:>8}" for name in next(iter(rows.values())))
    return "\n".join([head, *(f"{name:<15}right:" + "".join(f"{share:8.0%}" for share in shares.values())
                              for name, shares in rows.items())])


def save(args: argparse.Namespace, results: dict[str, Any], heldout: Sequence[str], shares: dict[str, float]) -> None:
    """The numbers, and a picture of them."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    numbers = {name: {key: value for key, value in result.items() if key != "probs"}
                     | {"right_by_length": right_by_length(result, heldout)} for name, result in results.items()}
    (out / "reverse_words.json").write_text(json.dumps(
        {"options": vars(args), "padding": shares, "heldout": heldout, "results": numbers}))
    print(f"\nwrote {out / 'reverse_words'}.json")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed; pip install minitx[plots]")
        return
    looking = {name: result for name, result in results.items() if result["probs"] is not None}
    panels = len(looking) + 1
    figure, [axes] = plt.subplots(1, panels, figsize=(4.6 * panels, 4.6), layout="constrained", squeeze=False)
    at = max(range(len(heldout)), key=lambda i: len(heldout[i]))
    word = heldout[at]
    for ax, (name, result) in zip(axes, looking.items()):
        image = ax.imshow(result["probs"][at], cmap="viridis", vmin=0, vmax=1)
        ax.set(xticks=range(len(word)), xticklabels=word, yticks=range(len(word)), yticklabels=word[::-1],
               xlabel="letter read", ylabel="letter to be written",
               title=f"{name}: where it looks\n(most at that letter: {result['backwards']:.0%} of all letters)")
    if looking:
        figure.colorbar(image, ax=axes[:-1], shrink=0.7, label="weight")
    for name, result in results.items():
        axes[-1].plot(*zip(*right_by_length(result, heldout).items()), "o-", label=name)
    axes[-1].set(ylim=(-0.03, 1.03), xlabel="letters in the word", ylabel="share of held-out words",
                 title="spelled backwards\nwithout a mistake")
    axes[-1].legend(frameon=False, title="attention")
    figure.savefig(out / "reverse_words.png", dpi=150)
    print(f"wrote {out / 'reverse_words'}.png")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attention", nargs="+", choices=DECODERS, default=list(DECODERS), help="(default: all three)")
    parser.add_argument("--cell", choices=CELLS, default="gru", help="of the recurrences (default: gru)")
    parser.add_argument("--steps", type=int, default=600, help="training steps of each model (default: 600)")
    parser.add_argument("--threads", type=int, help="on which a batch is shared out (default: one for each core, up to 8)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out", help="folder for results (default: out)")
    args = parser.parse_args()
    for name in "steps", "threads":
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name}: {getattr(args, name)}; expected at least 1")
    return args


if __name__ == "__main__":
    main()
