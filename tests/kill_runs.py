"""Tiny training runs that are killed at random moments and go on, each time in a new process.

    python -m tests.kill_runs --kills 50

`test_resume.py` does the same with a few kills. What is left of a run that was killed again and again must equal, bit for
bit, what an unbroken run leaves: weights, moments, random states, history, metrics, and what the model writes.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

import minitx as mx
from minitx.checkpoint import load_arrays
from minitx.data import Vocabulary, windows
from minitx.generation import generate
from minitx.models import RecurrentLM, TransformerLM
from minitx.optim import SGD, Adam, AdamW
from minitx.runs import Keeper
from minitx.schedules import warmup_cosine
from minitx.training import train

ROOT = Path(__file__).parent.parent
T, B, ACCUMULATE, STEPS, LR = 8, 4, 2, 60, 0.02
BATCHES = 6                             # in an epoch, wherever it starts: an epoch ends after every third step
TEXT = ("the cat sat on the mat, and the rat sat on the cat. " * 4)[:T * B * BATCHES + T]
VOCABULARY = Vocabulary.of(TEXT)
IDS, V = VOCABULARY.encode(TEXT), len(VOCABULARY)
KINDS = {
    "rnn": (lambda: RecurrentLM(V, 8, 16, L=2, cell="rnn", dropout=0.1), lambda p: SGD(p, LR, momentum=0.9)),
    "lstm": (lambda: RecurrentLM(V, 8, 12, dropout=0.2, rng=np.random.default_rng(1)), lambda p: AdamW(p, LR)),
    "transformer": (lambda: TransformerLM(V, D=16, N=2, L=1, T=T, dropout=0.1), lambda p: Adam(p, LR)),
}


def keeper_of(kind, place, every=1, seed=0):
    """A new model and optimiser of this kind, and the keeper of its run."""
    mx.seed(seed)
    model, optimizer = KINDS[kind][0](), KINDS[kind][1]
    return Keeper(place, model, optimizer(model.parameters()), config={"kind": kind}, every=every)


def run(keeper, history, steps=STEPS, after_step=None):
    """Train until `steps` steps are done, on the batches that come after those of the history."""
    batches = windows(IDS, B, T, np.random.default_rng(0))
    used = len(history.loss) * ACCUMULATE
    with keeper:
        return train(keeper.model, islice(batches, used, None), keeper.optimizer, steps=steps, clip=0.5, accumulate=ACCUMULATE,
                     schedule=warmup_cosine(LR, total=STEPS, warmup=5), history=history,
                     after_step=after_step or keeper)


def interrupted(kind, place, at, every=1):
    """A run that ended after `at` steps."""
    keeper = keeper_of(kind, place, every)
    return run(keeper, keeper.start(), after_step=lambda history: keeper(history) or len(history.loss) == at)


def left_by(place):
    """Everything that a run has left, but for the times that it took."""
    arrays, about = load_arrays(f"{place}.checkpoint")
    lines = [json.loads(line) for line in Path(f"{place}.jsonl").read_text().splitlines()]
    return {**{name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items() if name != "history.seconds_at"}, **about,
            "lines": [{name: number for name, number in line.items() if name != "seconds"} for line in lines]}


def child(kind, place, every, resume):
    print("ready", flush=True)
    keeper = keeper_of(kind, place, every)
    run(keeper, keeper.start(resume))
    print(list(generate(keeper.model, IDS[:3], 20)))


def start(kind, place, every):
    """A process that trains, or goes on where there is a checkpoint; it is about to begin."""
    resume = ["--resume"] * Path(f"{place}.checkpoint").exists()
    process = subprocess.Popen([sys.executable, "-m", "tests.kill_runs", "--child", kind, "--place", place,
                                "--every", str(every), *resume],
                               cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def finish(process):
    """What the process wrote, when it has ended well."""
    written, told = process.communicate()
    assert process.returncode == 0, told
    return written


def kill_and_resume(kind, folder, every, kills, chance):
    """Compare a run that is killed `kills` times with an unbroken one; how many kills left a half-written file."""
    expected = finish(start(kind, f"{folder}/whole", every))
    whole, place, halves = left_by(f"{folder}/whole"), f"{folder}/broken", 0
    for _ in range(kills):
        process, late = start(kind, place, every), chance.randrange(STEPS - 10)
        while process.poll() is None and lines_in(f"{place}.jsonl") < late:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.005))
        process.kill()
        process.communicate()
        halves += any(Path(folder).glob("*.part"))
    assert finish(start(kind, place, every)) == expected, f"{kind} writes something else"
    broken = left_by(place)
    other = [name for name in {**whole, **broken} if whole.get(name) != broken.get(name)]
    assert other == [], f"{kind} has another {', '.join(other)}"
    assert len(broken["lines"]) == STEPS and not list(Path(folder).glob("*.part"))
    return halves


def lines_in(path):
    return Path(path).read_bytes().count(b"\n") if Path(path).exists() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    for option in ("--child", "--place"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.place, args.every, args.resume)
    chance, killed, halves, runs = random.Random(args.seed), 0, 0, 0
    while killed < args.kills:
        kind, every, kills = chance.choice(list(KINDS)), chance.choice([1, 1, 1, 4]), min(5, args.kills - killed)
        with tempfile.TemporaryDirectory() as folder:
            halves += kill_and_resume(kind, folder, every, kills, chance)
        killed, runs = killed + kills, runs + 1
        print(f"{kind}, a checkpoint every {every}: killed {kills} times, and ended as the unbroken run", flush=True)
    print(f"{killed} kills in {runs} runs, {halves} of them while a file was being written: equal bit for bit")


if __name__ == "__main__":
    main()
