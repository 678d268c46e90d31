"""The workloads in JAX on the CPU: one `jit` around a whole training step, or around the writing of a whole text.

Recurrences are `lax.scan`; parameters and moments are donated, so that a step updates them in place. Attention is written out,
since JAX has no kernel for it on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from workloads import LR, Work, batch, operands, prompt, weights

Step = Callable[[], Any]
Parameters = dict[str, jax.Array]


def use_threads(threads: int) -> None:
    """JAX takes as many threads as there are cores for its process; `worker.py` has seen to those."""


def build(work: Work, variant: str = "", device: str = "cpu") -> Step:
    return BUILDERS[work.kind](work)


# Ops

def linear(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.W"] + p[f"{name}.b"]


def layer_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * gamma + beta


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def attention(q: jax.Array, k: jax.Array, v: jax.Array, first: Any = 0) -> jax.Array:
    """Causal attention of queries (B, N, Tq, K) that stand at `first` and behind it."""
    sees = jnp.arange(k.shape[2]) <= first + jnp.arange(q.shape[2])[:, None]
    scores = jnp.where(sees, q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def lstm_step(state: tuple[jax.Array, jax.Array], a: jax.Array, U: jax.Array) -> tuple[jax.Array, jax.Array]:
    h, c = state
    i, f, g, o = jnp.split(a + h @ U, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


OPS: dict[str, Callable[..., Any]] = {
    "attention": attention, "softmax": jax.nn.softmax, "layer_norm": layer_norm, "gelu": jax.nn.gelu,
    "linear": lambda x, W, b: x @ W + b,
    "cross_entropy": cross_entropy,
    "embedding": lambda ids, table: table[ids],
    "lstm_cell": lambda x, h, c, W, U, b: lstm_step((h, c), x @ W + b, U),
}


# Models: (parameters, ids, state) -> logits, state

def lstm(work: Work, p: Parameters, ids: jax.Array, state: Any = None) -> tuple[jax.Array, Any]:
    """ids (T, B)."""
    s, x, after = work.sizes, p["tokens.table"][ids], []
    for i in range(s["L"]):
        W, U, b = (p[f"recurrence.layers.{i}.{name}"] for name in "WUb")

        def one(state: Any, a: jax.Array, U: jax.Array = U) -> tuple[Any, jax.Array]:
            state = lstm_step(state, a, U)
            return state, state[0]

        start = (jnp.zeros((ids.shape[1], s["H"])),) * 2 if state is None else state[i]
        end, x = lax.scan(one, start, x @ W + b)
        after.append(end)
    return linear(p, "head", x), after


def gpt(work: Work, p: Parameters, ids: jax.Array, state: Any = None) -> tuple[jax.Array, Any]:
    """ids (B, T); the state is how many were seen, and all keys and values (L, 2, B, N, room, K), filled so far."""
    (B, T), D, N = ids.shape, work.sizes["D"], work.sizes["N"]
    seen, kept = (0, None) if state is None else state
    x = p["embedded.tokens.table"][ids] + lax.dynamic_slice_in_dim(p["embedded.positions"], seen, T)
    for i in range(work.sizes["L"]):
        block = f"blocks.{i}"
        y = layer_norm(x, p[f"{block}.attention_norm.gamma"], p[f"{block}.attention_norm.beta"])
        q, k, v = linear(p, f"{block}.attention.qkv", y).reshape(B, T, 3, N, D // N).transpose(2, 0, 3, 1, 4)
        if kept is not None:
            kept = lax.dynamic_update_slice(kept, jnp.stack([k, v])[None], (i, 0, 0, 0, seen, 0))
            k, v = kept[i]
        y = attention(q, k, v, seen).transpose(0, 2, 1, 3).reshape(B, T, D)
        x = x + linear(p, f"{block}.attention.out", y)
        y = layer_norm(x, p[f"{block}.feed_norm.gamma"], p[f"{block}.feed_norm.beta"])
        x = x + linear(p, f"{block}.feed.down", jax.nn.gelu(linear(p, f"{block}.feed.up", y)))
    return linear(p, "head", layer_norm(x, p["final_norm.gamma"], p["final_norm.beta"])), (seen + T, kept)


# Steps

def training(work: Work) -> Step:
    read, decay = partial({"lstm": lstm, "gpt": gpt}[work.what], work), 0.0 if work.what == "lstm" else 0.01

    def loss_of(p: Parameters, ids: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(read(p, ids)[0], targets)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(p: Parameters, m: Parameters, v: Parameters, t: jax.Array, ids: jax.Array, targets: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(p, ids, targets)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
        first, second = 1 - 0.9 ** t, 1 - 0.999 ** t
        p = jax.tree.map(lambda w, m, v: w * (1 - LR * decay) - LR * (m / first) / (jnp.sqrt(v / second) + 1e-8), p, m, v)
        return p, m, v, loss

    p = jax.tree.map(jnp.asarray, weights(work))
    learned, t = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)], 0
    pair = [jnp.asarray(ids.T if work.what == "lstm" else ids) for ids in batch(work)]

    def step() -> float:
        nonlocal learned, t
        t += 1
        *learned, loss = update(*learned, jnp.float32(t), *pair)
        return float(loss)

    return step


def single_op(work: Work) -> Step:
    inputs, dys = ([jnp.asarray(array) for array in arrays.values()] for arrays in operands(work))
    seed, leaves = tuple(dys), [i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

    @jax.jit
    def both(inputs: list[jax.Array], seed: tuple[jax.Array, ...]) -> Any:
        def of_leaves(*floats: jax.Array) -> Any:
            given = dict(enumerate(inputs)) | dict(zip(leaves, floats))
            return OPS[work.what](*given.values())
        out, back = jax.vjp(of_leaves, *(inputs[i] for i in leaves))
        outs = out if isinstance(out, tuple) else (out,)
        return [*outs, *back(seed if isinstance(out, tuple) else seed[0])]

    return lambda: jax.block_until_ready(both(inputs, seed))


def generation(work: Work) -> Step:
    s, time_first = work.sizes, work.what == "lstm"
    read = partial(lstm if time_first else gpt, work)

    @jax.jit
    def write(p: Parameters, text: jax.Array) -> jax.Array:
        state = None if time_first else (0, jnp.zeros((s["L"], 2, 1, s["N"], s["T"], s["D"] // s["N"])))
        logits, state = read(p, text[:, None] if time_first else text[None], state)

        def one(carried: Any, _: None) -> Any:
            symbol, state = carried
            logits, state = read(p, symbol[None, None], state)
            return (logits[0, 0].argmax(), state), symbol

        start = logits.reshape(-1, logits.shape[-1])[-1].argmax()
        return lax.scan(one, (start, state), None, length=s["count"])[1]

    p, text = jax.tree.map(jnp.asarray, weights(work)), jnp.asarray(prompt(work))
    return lambda: jax.block_until_ready(write(p, text))


BUILDERS: dict[str, Callable[[Work], Step]] = {
    "training": training, "attention": single_op, "op": single_op, "generation": generation}


def host(x: Any) -> np.ndarray:
    """A result for comparison."""
    return np.asarray(x)
