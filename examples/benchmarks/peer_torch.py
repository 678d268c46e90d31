"""The workloads in PyTorch, eager: `nn.LSTM`, `scaled_dot_product_attention`, `torch.optim` with its defaults.

Its recurrence reads time first, which is faster there. On a GPU everything stays in full float32, as it is in minitx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from workloads import LR, Work, batch, operands, prompt, weights

Step = Callable[[], Any]
Read = Callable[..., tuple[torch.Tensor, Any]]      # (ids, state) -> logits, state


def use_threads(threads: int) -> None:
    """How many threads this process has."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False


def build(work: Work, variant: str = "", device: str = "cpu") -> Step:
    return BUILDERS[work.kind](work, torch.device(device))


def turned(name: str, array: Any) -> Any:
    """Matrices of a layer stand transposed there."""
    return array.T if name.rpartition(".")[2] in ("W", "U") else array


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def model_of(work: Work, device: torch.device) -> tuple[Read, Iterable[nn.Parameter]]:
    """A model as the function that reads on, and its parameters."""
    p = {name: nn.Parameter(torch.tensor(turned(name, array), device=device)) for name, array in weights(work).items()}
    return (lstm if work.what == "lstm" else gpt)(p, work.sizes, device)


def lstm(p: dict[str, nn.Parameter], sizes: dict[str, int], device: torch.device) -> tuple[Read, Iterable[nn.Parameter]]:
    layers = nn.LSTM(sizes["D"], sizes["H"], sizes["L"], device=device)
    for i in range(sizes["L"]):
        for ours, theirs in {"W": "weight_ih", "U": "weight_hh", "b": "bias_ih"}.items():
            getattr(layers, f"{theirs}_l{i}").data.copy_(p.pop(f"recurrence.layers.{i}.{ours}").data)
        getattr(layers, f"bias_hh_l{i}").requires_grad_(False).zero_()                         # one bias is enough

    def read(ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:                # ids (T, B)
        hs, state = layers(F.embedding(ids, p["tokens.table"]), state)
        return F.linear(hs, p["head.W"], p["head.b"]), state

    return read, [*p.values(), *(w for w in layers.parameters() if w.requires_grad)]


def gpt(p: dict[str, nn.Parameter], sizes: dict[str, int], device: torch.device) -> tuple[Read, Iterable[nn.Parameter]]:
    N, blocks = sizes["N"], [f"blocks.{i}" for i in range(sizes["L"])]

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"{name}.W"], p[f"{name}.b"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.gamma"], p[f"{name}.beta"])

    def attend(block: str, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None, seen: int) -> torch.Tensor:
        (B, T, D), qkv = x.shape, linear(f"{block}.attention.qkv", x)
        q, k, v = qkv.view(B, T, 3, N, D // N).permute(2, 0, 3, 1, 4)                          # (B, N, T, K) each
        if cache is not None:
            for kept, new in zip(cache, (k, v)):
                kept[:, :, seen:seen + T] = new
            k, v = (kept[:, :, :seen + T] for kept in cache)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        return linear(f"{block}.attention.out", y.transpose(1, 2).reshape(B, T, D))

    def read(ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:                # ids (B, T)
        caches, seen = state or ({}, 0)
        x = F.embedding(ids, p["embedded.tokens.table"]) + p["embedded.positions"][seen:seen + ids.shape[1]]
        for block in blocks:
            x = x + attend(block, norm(f"{block}.attention_norm", x), caches.get(block), seen)
            inner = F.gelu(linear(f"{block}.feed.up", norm(f"{block}.feed_norm", x)), approximate="tanh")
            x = x + linear(f"{block}.feed.down", inner)
        return linear("head", norm("final_norm", x)), (caches, seen + ids.shape[1])

    return read, p.values()


def training(work: Work, device: torch.device) -> Step:
    read, parameters = model_of(work, device)
    optimizer = (torch.optim.Adam if work.what == "lstm" else torch.optim.AdamW)(parameters, LR)
    inputs, targets = (torch.tensor(ids.T.copy() if work.what == "lstm" else ids) for ids in batch(work))

    def step() -> float:
        optimizer.zero_grad()
        logits, _ = read(inputs.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
        loss.backward()
        optimizer.step()
        synchronize(device)
        return loss.item()

    return step


OPS: dict[str, Callable[..., Any]] = {
    "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x, gamma, beta: F.layer_norm(x, x.shape[-1:], gamma, beta),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "linear": F.linear,
    "cross_entropy": F.cross_entropy,
    "embedding": F.embedding,
    "lstm_cell": lambda x, h, c, W, U, b: torch.lstm_cell(x, (h, c), W, U, b),
}


def single_op(work: Work, device: torch.device) -> Step:
    f, (arrays, outside) = OPS[work.what], operands(work)
    inputs = {name: torch.tensor(turned(name, array), device=device) for name, array in arrays.items()}
    leaves = {name: x.requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    dys = [torch.tensor(dy, device=device) for dy in outside.values()]

    def step() -> list[torch.Tensor]:
        out = f(*inputs.values())
        outs = list(out) if isinstance(out, tuple) else [out]
        dxs = torch.autograd.grad(outs, list(leaves.values()), dys)
        synchronize(device)
        return outs + [turned(name, dx) for name, dx in zip(leaves, dxs)]

    return step


def generation(work: Work, device: torch.device) -> Step:
    read, _ = model_of(work, device)
    s, text, time_first = work.sizes, torch.tensor(prompt(work), device=device), work.what == "lstm"

    def room() -> Any:
        """The empty memory of a text."""
        if time_first:
            return None
        shape = 1, s["N"], s["T"], s["D"] // s["N"]
        return {f"blocks.{i}": tuple(torch.empty(shape, device=device) for _ in "kv") for i in range(s["L"])}, 0

    @torch.inference_mode()
    def step() -> torch.Tensor:
        logits, state = read(text[:, None] if time_first else text[None], room())
        symbols = [logits.view(-1, logits.shape[-1])[-1:].argmax(-1)]
        while len(symbols) < s["count"]:
            logits, state = read(symbols[-1][None], state)
            symbols.append(logits[0].argmax(-1))
        found = torch.cat(symbols)
        synchronize(device)
        return found

    return step


BUILDERS: dict[str, Callable[[Work, torch.device], Step]] = {
    "training": training, "attention": single_op, "op": single_op, "generation": generation}


def host(x: Any) -> np.ndarray:
    """A result for comparison."""
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
