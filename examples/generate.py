"""Let a model that `train_language_model.py` has trained write, character by character as they come.

    python examples/train_language_model.py --model transformer
    python examples/generate.py --model transformer --prompt "It is a truth" --temperature 0.8 --top-p 0.9
    python examples/generate.py --model gru --prompt "Mr. Darcy" --top-k 10 --stop "." --seed 3
    python examples/generate.py --model lstm --prompt "She was" --beam 4 --stop "." --characters 100

Give the options that say which model it was: `--model`, `--language` or `--text`, `--carry`, `--out`. `--stop` ends the text at
any of its characters. With `--beam` the likeliest sentences are searched instead of drawn; they come all at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from train_language_model import PRESETS, build, name_of, texts

from minitx.checkpoint import load_arrays
from minitx.data import Vocabulary
from minitx.generation import generate, generate_best
from minitx.models import LanguageModel


def main() -> None:
    args = arguments()
    try:
        model, vocabulary = trained(args)
        prompt, stop = (vocabulary.encode(text).tolist() for text in (args.prompt, args.stop))
        write = search if args.beam else stream
        write(model, vocabulary, prompt, stop, args)
    except (OSError, ValueError, FloatingPointError) as error:
        sys.exit(str(error))


def trained(args: argparse.Namespace) -> tuple[LanguageModel, Vocabulary]:
    """The model in its checkpoint, and the characters that it knows."""
    path = Path(args.out) / f"{name_of(args)}.checkpoint"
    if not path.is_file():
        raise ValueError(f"there is no {path}; train one first: python examples/train_language_model.py --model {args.model}")
    vocabulary = Vocabulary.of(texts(args)[1][0], min_count=2)
    arrays, _ = load_arrays(path)
    model = build(args.model, len(vocabulary))
    prefix = "model.model." if args.carry else "model."
    model.load_state_dict({name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)})
    return model.to(args.device), vocabulary


def stream(model: LanguageModel, vocabulary: Vocabulary, prompt: list[int], stop: list[int], args: argparse.Namespace) -> None:
    """Print each character when it is known."""
    print(args.prompt, end="", flush=True)
    begin, count = time.perf_counter(), 0
    for symbol in generate(model, prompt, args.characters, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
                           stop=stop, rng=np.random.default_rng(args.seed)):
        print(vocabulary.decode([symbol]), end="", flush=True)
        count += 1
    print(flush=True)
    print(f"{count} characters, {count / (time.perf_counter() - begin):,.0f} per second", file=sys.stderr)


def search(model: LanguageModel, vocabulary: Vocabulary, prompt: list[int], stop: list[int], args: argparse.Namespace) -> None:
    """Print the likeliest texts that a beam finds, with the bits per character that they surprise the model by."""
    if len(stop) != 1:
        raise ValueError(f"--beam needs one character that ends a text, and --stop is {args.stop!r}; give --stop '.'")
    [found] = generate_best(model, [prompt], args.characters, stop=stop[0], width=args.beam)
    for h in found:
        print(f"{-h.log_p / h.length / np.log(2):5.2f}  {args.prompt}{vocabulary.decode(h.ids)}{args.stop * h.finished}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=PRESETS, default="lstm")
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--text", help="the text file that it was trained on")
    parser.add_argument("--carry", action="store_true", help="it was trained with --carry")
    parser.add_argument("--prompt", default="The ", help="where to go on from (default: 'The ')")
    parser.add_argument("--characters", type=int, default=400, help="at most so many more (default: 400)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest (default: 0.8)")
    parser.add_argument("--top-k", type=int, help="draw among so many of the likeliest")
    parser.add_argument("--top-p", type=float, help="draw among the likeliest whose probabilities have this sum")
    parser.add_argument("--stop", default="", help="characters of which any ends the text")
    parser.add_argument("--beam", type=int, default=0, metavar="WIDTH", help="search for the likeliest texts instead")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out", help="folder of the training (default: out)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
