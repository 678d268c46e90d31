"""The time of one training step, minitx against PyTorch eager: same weights, same data, same number of threads, float32.

    python examples/benchmarks/training_step.py
    python examples/benchmarks/training_step.py --work W1,W2s --threads 1 --out training_step.json

A step is forward, loss, backward and the update by Adam (recurrent) or AdamW (Transformer). Before anything is timed, the
losses of the first three steps must agree. Each library runs each workload in a process of its own, so that the threads and
the memory allocator of one do not touch another, and they take turns, so that a busy moment of the machine meets both.
Read the ratio, not the milliseconds; it is trustworthy when its range over the rounds is narrow.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from minitx.memory import keep_freed_memory
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import Adam, AdamW

V = 65                                          # characters, as in the well-known Shakespeare text
WORKLOADS = {
    # LSTM language models: embedding of width D, L layers of H units, a batch of B windows of T characters
    "W1": {"D": 128, "H": 256, "L": 2, "B": 32, "T": 128},
    "W1s": {"D": 32, "H": 64, "L": 1, "B": 16, "T": 64},
    # GPTs: L pre-norm blocks of width D with N heads, feed-forward width 4 D with tanh-GELU, learned positions
    "W2": {"D": 128, "N": 4, "L": 4, "B": 16, "T": 128},
    "W2s": {"D": 64, "N": 2, "L": 2, "B": 8, "T": 64},
}
LIBRARIES = ("minitx", "torch")
LR = 1e-3
Step = Callable[[], float]                      # one training step; returns its loss


def build(D: int, L: int, B: int, T: int, H: int = 0, N: int = 0) -> tuple[LanguageModel, np.ndarray]:
    """The model of a workload and its batch (B, T + 1), the same in every process."""
    rng = np.random.default_rng(0)
    model = RecurrentLM(V, D, H, L, rng=rng) if H else TransformerLM(V, D, N, L, T, rng=rng)
    return model, rng.integers(0, V, (B, T + 1))


def minitx_step(sizes: dict[str, int]) -> Step:
    keep_freed_memory()                         # as minitx.training.train does
    model, ids = build(**sizes)
    optimizer = (Adam if "H" in sizes else AdamW)(model.parameters(), LR)
    inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])

    def step() -> float:
        optimizer.zero_grad()
        loss = model.loss(inputs, targets)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def torch_step(sizes: dict[str, int]) -> Step:
    import torch
    from torch import nn
    from torch.nn import functional as F

    model, ids = build(**sizes)
    inputs, targets = torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:])
    p = {name: nn.Parameter(torch.tensor(array.T if name[-2:] in (".W", ".U") else array))     # theirs are transposed
         for name, array in model.state_dict().items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"{name}.W"], p[f"{name}.b"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.gamma"], p[f"{name}.beta"])

    def recurrent() -> torch.Tensor:
        return linear("head", lstm(F.embedding(inputs, p["tokens.table"]))[0])

    def transformer() -> torch.Tensor:
        x = F.embedding(inputs, p["embedded.tokens.table"]) + p["embedded.positions"]
        for block in [f"blocks.{i}" for i in range(sizes["L"])]:
            qkv = linear(f"{block}.attention.qkv", norm(f"{block}.attention_norm", x))
            q, k, v = qkv.view(*x.shape[:2], 3, sizes["N"], -1).permute(2, 0, 3, 1, 4)         # (B, N, T, K) each
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(f"{block}.attention.out", y.transpose(1, 2).reshape(x.shape))
            inner = F.gelu(linear(f"{block}.feed.up", norm(f"{block}.feed_norm", x)), approximate="tanh")
            x = x + linear(f"{block}.feed.down", inner)
        return linear("head", norm("final_norm", x))

    if "H" in sizes:
        inputs, targets = inputs.t().contiguous(), targets.t().contiguous()                    # time first is faster there
        lstm = nn.LSTM(sizes["D"], sizes["H"], sizes["L"])
        for i in range(sizes["L"]):
            for ours, theirs in {"W": "weight_ih", "U": "weight_hh", "b": "bias_ih"}.items():
                getattr(lstm, f"{theirs}_l{i}").data.copy_(p.pop(f"recurrence.layers.{i}.{ours}").data)
            getattr(lstm, f"bias_hh_l{i}").requires_grad_(False).zero_()                       # one bias is enough
        parameters = [*p.values(), *(w for w in lstm.parameters() if w.requires_grad)]
        logits, optimizer = recurrent, torch.optim.Adam(parameters, LR)
    else:
        logits, optimizer = transformer, torch.optim.AdamW(p.values(), LR)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# What runs in the process of a library

_step: Step


def prepare(library: str, work: str, threads: int) -> list[float]:
    """Build the step; returns the losses of the first three."""
    global _step
    threadpool_limits(threads, "blas")
    if library == "torch":
        import torch
        torch.set_num_threads(threads)
    _step = {"minitx": minitx_step, "torch": torch_step}[library](WORKLOADS[work])
    return [_step() for _ in range(3)]


def measure(seconds: float) -> float:
    """The median time of a step in ms, over as many steps as fit, at least three, after one that is not counted."""
    times, end = [], time.perf_counter() + seconds
    _step()
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        _step()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


# What runs in the main process

def compare(work: str, args: argparse.Namespace) -> dict:
    """The results of one workload: check the losses, then let the libraries take turns."""
    processes = {name: ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) for name in LIBRARIES}
    losses = {name: process.submit(prepare, name, work, args.threads).result() for name, process in processes.items()}
    if not np.allclose(*losses.values(), rtol=1e-4):
        sys.exit(f"{work}: the losses of the first three steps differ, so the times cannot be compared: {losses}")
    rounds: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(args.rounds):
        for name, process in processes.items():
            rounds[name].append(process.submit(measure, args.seconds).result())
    for process in processes.values():
        process.shutdown()
    ratios = [ours / theirs for ours, theirs in zip(*rounds.values())]
    return {"sizes": WORKLOADS[work], "losses": losses, "ms": {name: median(times) for name, times in rounds.items()},
            "ratio": median(ratios), "ratio_range": [min(ratios), max(ratios)], "rounds_ms": rounds}


def main() -> None:
    args = arguments()
    if importlib.util.find_spec("torch") is None:
        sys.exit("This benchmark compares with PyTorch, which is not installed: pip install torch")
    results = {}
    print("      minitx ms   torch ms   ratio (lowest … highest of a round)")
    for work in args.work:
        r = results[work] = compare(work, args)
        (ours, theirs), (low, high) = r["ms"].values(), r["ratio_range"]
        print(f"{work:4}{ours:11.2f}{theirs:11.2f}{r['ratio']:8.2f} ({low:.2f} … {high:.2f})", flush=True)
    if args.out:
        versions = {name: version(name) for name in ("numpy", "torch")}
        Path(args.out).write_text(json.dumps({"threads": args.threads, "versions": versions, "workloads": results}, indent=1))
        print(f"\nwrote {args.out}")


def arguments() -> argparse.Namespace:
    def workloads(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(WORKLOADS):
            raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
        return names

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=workloads, default=list(WORKLOADS), help="such as W1,W2s (default: all four)")
    parser.add_argument("--threads", type=int, default=2, help="for each library (default: 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns that each library takes (default: 7)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn, at least three steps (default: 0.5)")
    parser.add_argument("--out", help="a JSON file for all numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
