"""What is measured: the workloads by name, their weights and their data, the same for every library and in every run.

    W1, W1s     a training step of an LSTM language model; W1s is the small one
    W2, W2s     a training step of a GPT: pre-norm blocks, tanh-GELU, learned positions
    W3          causal attention alone, forward and backward, ever longer
    W4          single ops, forward and backward
    W5          a language model writes: the likeliest symbols behind a prompt, one text

Nothing here knows a library but NumPy. All numbers are float32; weights carry the names of minitx and stand as in y = x W + b.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

V = 65                                          # characters, as in the well-known Shakespeare text
LR = 1e-3
Arrays = dict[str, np.ndarray]


class Work(NamedTuple):
    """One workload. `sizes` are the letters of `docs/conventions.md`; of ops and attention, the shapes of their arguments and,
    under names that begin with d, of the gradients that arrive from outside."""

    name: str
    kind: str           # "training", "attention", "op" or "generation"
    what: str           # "lstm" or "gpt", or the name of the op
    sizes: dict[str, Any]


def attention(T: int) -> Work:
    return Work(f"W3 T={T}", "attention", "attention", dict.fromkeys(("q", "k", "v", "dy"), (2, 4, T, 64)))


def op(what: str, **shapes: tuple[int, ...]) -> Work:
    return Work(f"W4 {what}", "op", what, shapes)


WIDE, NARROW, STATE = (2048, 1024), (2048, 512), (32, 256)
GROUPS = {
    "W1": [Work("W1", "training", "lstm", {"D": 128, "H": 256, "L": 2, "B": 32, "T": 128})],
    "W1s": [Work("W1s", "training", "lstm", {"D": 32, "H": 64, "L": 1, "B": 16, "T": 64})],
    "W2": [Work("W2", "training", "gpt", {"D": 128, "N": 4, "L": 4, "B": 16, "T": 128})],
    "W2s": [Work("W2s", "training", "gpt", {"D": 64, "N": 2, "L": 2, "B": 8, "T": 64})],
    "W3": [attention(T) for T in (128, 512, 1024, 2048, 4096)],
    "W4": [
        op("softmax", x=WIDE, dy=WIDE),
        op("layer_norm", x=NARROW, gamma=(512,), beta=(512,), dy=NARROW),
        op("gelu", x=NARROW, dy=NARROW),
        op("linear", x=NARROW, W=(512, 2048), b=(2048,), dy=(2048, 2048)),
        op("cross_entropy", logits=(2048, 4096), targets=(2048,), dloss=()),
        op("embedding", ids=(4096,), table=(5000, 256), dy=(4096, 256)),
        op("lstm_cell", x=STATE, h=STATE, c=STATE, W=(256, 1024), U=(256, 1024), b=(1024,), dh=STATE, dc=STATE),
    ],
    "W5": [Work("W5 gpt", "generation", "gpt", {"D": 128, "N": 4, "L": 4, "T": 256, "prompt": 128, "count": 128}),
           Work("W5 lstm", "generation", "lstm", {"D": 128, "H": 256, "L": 2, "prompt": 128, "count": 128})],
}


def hollow(work: Work) -> Work:
    """The same steps in the same order with next to no arithmetic: on a GPU, what it takes to launch them.

    What decides how many steps there are stays: layers, and the time of recurrences and of attention.
    """
    if work.kind == "attention":
        return attention(work.sizes["q"][2])._replace(sizes={name: (1, 1, shape[2], 8) for name, shape in work.sizes.items()})
    if work.kind == "op":
        return work._replace(sizes={name: tuple(max(1, n // 32) for n in shape) for name, shape in work.sizes.items()})
    small = {"D": 8, "H": 8, "N": 1, "B": 1}
    return work._replace(sizes=work.sizes | {letter: n for letter, n in small.items() if letter in work.sizes})


def weights(work: Work) -> Arrays:
    """The parameters of a model: matrices that keep the size of what passes, small biases, scales near 1."""
    rng, shapes = np.random.default_rng(0), {"lstm": lstm, "gpt": gpt}[work.what](**work.sizes)

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = shape[0] ** -0.5 if len(shape) == 2 else 0.1
        return (name.endswith("gamma") + size * rng.standard_normal(shape)).astype("float32")

    return {name: drawn(name, shape) for name, shape in shapes.items()}


def lstm(D: int, H: int, L: int, **_: int) -> dict[str, tuple[int, ...]]:
    """Embedding, L layers of H units, head."""
    layers: dict[str, tuple[int, ...]] = {}
    for i in range(L):
        layer = f"recurrence.layers.{i}"
        layers |= {f"{layer}.W": (H if i else D, 4 * H), f"{layer}.U": (H, 4 * H), f"{layer}.b": (4 * H,)}
    return {"tokens.table": (V, D), **layers, "head.W": (H, V), "head.b": (V,)}


def gpt(D: int, L: int, T: int, **_: int) -> dict[str, tuple[int, ...]]:
    """Embedding, L blocks of width D, norm, head."""
    shapes: dict[str, tuple[int, ...]] = {"embedded.tokens.table": (V, D), "embedded.positions": (T, D)}
    for block in [f"blocks.{i}" for i in range(L)]:
        shapes |= {f"{block}.attention.{name}.W": (D, out) for name, out in (("qkv", 3 * D), ("out", D))}
        shapes |= {f"{block}.attention.{name}.b": (out,) for name, out in (("qkv", 3 * D), ("out", D))}
        shapes |= {f"{block}.feed.up.W": (D, 4 * D), f"{block}.feed.up.b": (4 * D,)}
        shapes |= {f"{block}.feed.down.W": (4 * D, D), f"{block}.feed.down.b": (D,)}
        shapes |= {f"{block}.{norm}.{part}": (D,) for norm in ("attention_norm", "feed_norm") for part in ("gamma", "beta")}
    return shapes | {"final_norm.gamma": (D,), "final_norm.beta": (D,), "head.W": (D, V), "head.b": (V,)}


def batch(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (B, T) of a training step."""
    ids = np.random.default_rng(1).integers(0, V, (work.sizes["B"], work.sizes["T"] + 1))
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def prompt(work: Work) -> np.ndarray:
    """What a text begins with."""
    return np.random.default_rng(2).integers(0, V, work.sizes["prompt"])


def operands(work: Work) -> tuple[Arrays, Arrays]:
    """The arguments of an op, in its order, and the gradients that arrive from outside."""
    rng, shapes = np.random.default_rng(3), work.sizes

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name in ("ids", "targets"):
            return rng.integers(0, shapes["table"][0] if name == "ids" else shapes["logits"][1], shape)
        scale = shape[0] ** -0.5 if name in ("W", "U") else 1
        return np.asarray(scale * rng.standard_normal(shape), "float32")

    arrays = {name: drawn(name, shape) for name, shape in shapes.items()}
    return ({name: array for name, array in arrays.items() if name[0] != "d"},
            {name: array for name, array in arrays.items() if name[0] == "d"})
