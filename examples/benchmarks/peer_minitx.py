"""The workloads in minitx, as a program of yours would write them: models, `Shards`, optimisers, `generate`; ops on arrays.

A step takes what training takes: freed memory is kept, a batch is shared out on threads by `minitx.shards`. Attention alone
(W3) is shared out in the same way, with one BLAS thread for each row of the batch. Single ops (W4) are plain calls, with as
many BLAS threads as the other libraries have.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from workloads import LR, V, Work, batch, operands, prompt, weights

import minitx as mx
from minitx import backend, ops
from minitx.generation import generate
from minitx.memory import keep_freed_memory
from minitx.models import LanguageModel, RecurrentLM, TransformerLM
from minitx.optim import Adam, AdamW
from minitx.shards import Shards, cores

Step = Callable[[], Any]                        # takes one step, waits for it, and returns what came out
_open = ExitStack()                             # threads that live as long as the process


def use_threads(threads: int) -> None:
    """How many threads this process has."""
    threadpool_limits(threads, "blas")


def build(work: Work, variant: str = "", device: str = "cpu") -> Step:
    keep_freed_memory()
    return BUILDERS[work.kind](work, variant, device)


def model_of(work: Work, device: str) -> LanguageModel:
    s = work.sizes
    model: LanguageModel = (RecurrentLM(V, s["D"], s["H"], s["L"]) if work.what == "lstm" else
                            TransformerLM(V, s["D"], s["N"], s["L"], s["T"]))
    model.load_state_dict(weights(work))
    return model.to(device)


def training(work: Work, _: str, device: str) -> Step:
    model = model_of(work, device)
    optimizer = (Adam if work.what == "lstm" else AdamW)(model.parameters(), LR)
    shards, pair = _open.enter_context(Shards(model)), batch(work)

    def step() -> float:
        optimizer.zero_grad()
        loss = shards.backward([pair])
        optimizer.step()
        return float(loss)

    return step


def attention(work: Work, variant: str, device: str) -> Step:
    op = ops.flash_attention if variant == "flash" else ops.attention
    parts = min(cores(), work.sizes["q"][0]) if device == "cpu" else 1
    inputs, dys = (list(arrays.values()) for arrays in operands(work))
    rows = [[backend.to_device(part, device) for part in row]
            for row in zip(*(np.array_split(array, parts) for array in (*inputs, *dys)))]
    pool = _open.enter_context(ThreadPoolExecutor(parts))
    if parts > 1:
        use_threads(1)                          # for BLAS, as within `Shards`

    def one(row: list[Any]) -> tuple[Any, ...]:
        *qkv, dy = row
        y, backward = op.vjp(*qkv, causal=True)
        return (y, *backward(dy)[:3])

    def step() -> tuple[list[Any], ...]:
        found = list(pool.map(one, rows))
        backend.device(device).synchronize()
        return tuple(map(list, zip(*found)))    # y, dq, dk, dv, each in parts

    return step


def single_op(work: Work, _: str, device: str) -> Step:
    op = getattr(ops, work.what)
    inputs, dys = ([backend.to_device(array, device) for array in arrays.values()] for arrays in operands(work))

    def step() -> list[Any]:
        out, backward = op.vjp(*inputs)
        dxs = backward(*dys)
        backend.device(device).synchronize()
        return [y for part in (out, dxs) for y in (part if type(part) is tuple else (part,)) if y is not None]

    return step


def generation(work: Work, _: str, device: str) -> Step:
    model, text = model_of(work, device), prompt(work)
    return lambda: np.array(list(generate(model, text, work.sizes["count"], temperature=0)))


BUILDERS: dict[str, Callable[[Work, str, str], Step]] = {
    "training": training, "attention": attention, "op": single_op, "generation": generation}


def host(x: Any) -> np.ndarray:
    """A result, or its parts, for comparison."""
    if isinstance(x, list):
        return np.concatenate([host(part) for part in x])
    return np.asarray(x) if isinstance(x, float | np.generic) else backend.to_host(x)


def shares(step: Step, steps: int = 3) -> list[dict[str, Any]]:
    """Where the time of a step goes, by op, most first. An onlooker sees the whole batch, so all of it runs on one thread here.
    """
    with threadpool_limits(1, "blas"), mx.profile() as p:
        for _ in range(steps):
            step()
    seconds = {row.op: row.forward + row.backward for row in p.rows.values()}
    return [{"op": name, "calls": p.rows[name].calls // steps, "ms": 1e3 * seconds[name] / steps,
             "share": seconds[name] / sum(seconds.values())} for name in sorted(seconds, key=lambda name: -seconds[name])]
