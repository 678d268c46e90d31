"""Weights under the names that everybody uses: those of Hugging Face's BERT, GPT-2 and Llama, and of Llama in GGUF files.

    interchange.load(model, interchange.read("model.safetensors"), "gpt2")
    interchange.save("mine.safetensors", model, "gpt2")

The numbers are the same there, and lie differently. A layout tells what is what, and

    turned      whether their matrices are (out, in), as torch.nn.Linear has them; only GPT-2's blocks have (in, out), as ours
    joined      which of theirs stand side by side in one of ours: queries, keys and values are one product here
    pairing     which channels of queries and keys rotary positions turn together, "halves" or "neighbours"; a model that
                pairs them otherwise gets the channels of each head in its own order, and computes the same

Weights do not tell everything: the kind of norm, of GELU, eps, the base of rotary positions. A config does, and
`pretrained.from_config` builds the model that it describes.

Read next: `pretrained.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as as_bytes

from .backend import to_host
from .checkpoint import write
from .nn import Module, MultiHeadAttention
from .ops.positions import pairs
from .options import kind

# Layouts


class Layout(NamedTuple):
    """How others name the weights of a model, and in which order they have them."""

    outside: dict[str, str]             # our module or parameter: theirs
    block: str                          # the name of their blocks, which are numbered
    inside: dict[str, str]              # inside a block; several of theirs, one space between, are joined in ours
    turned: bool = True
    pairing: str = "halves"
    prefix: str = ""                    # what may stand before all their names
    ignored: tuple[str, ...] = ()       # beginnings and ends of names that are not needed here
    tied: str = ""                      # their head: a mere copy, where ours is the embedding again

    def names(self, path: str) -> list[str]:
        """What one of our parameters is called there; nothing, if there is no such thing."""
        where, rows = "", self.outside
        if path.startswith("blocks."):
            _, i, path = path.split(".", 2)
            where, rows = f"{self.block}.{i}.", self.inside
        module, _, last = path.rpartition(".")
        end = "bias" if last in ("b", "beta") else "weight"
        return [f"{where}{name}.{end}" for name in rows.get(path, rows.get(module, "")).split()]

    def needed(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """What of a checkpoint belongs to the model, by names without the prefix."""
        plain = {name.removeprefix(self.prefix): tensor for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in plain.items()
                if not name.startswith(self.ignored) and not name.endswith(self.ignored)}


LAYOUTS = {
    "bert": Layout(
        {"embedded.tokens": "embeddings.word_embeddings", "embedded.positions": "embeddings.position_embeddings",
         "types": "embeddings.token_type_embeddings", "embedding_norm": "embeddings.LayerNorm"},
        "encoder.layer",
        {"attention.qkv": "attention.self.query attention.self.key attention.self.value",
         "attention.out": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
         "feed.up": "intermediate.dense", "feed.down": "output.dense", "feed_norm": "output.LayerNorm"},
        prefix="bert.", ignored=("embeddings.position_ids", "pooler.", "cls.")),
    "gpt2": Layout(
        {"embedded.tokens": "wte", "embedded.positions": "wpe", "final_norm": "ln_f", "head.W": "lm_head"},
        "h",
        {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
         "feed_norm": "ln_2", "feed.up": "mlp.c_fc", "feed.down": "mlp.c_proj"},
        turned=False, prefix="transformer.", ignored=(".attn.bias", ".attn.masked_bias"), tied="lm_head"),
    "llama": Layout(
        {"embedded.tokens": "model.embed_tokens", "final_norm": "model.norm", "head.W": "lm_head"},
        "model.layers",
        {"attention_norm": "input_layernorm", "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
         "attention.out": "self_attn.o_proj", "feed_norm": "post_attention_layernorm",
         "feed.gate": "mlp.gate_proj", "feed.up": "mlp.up_proj", "feed.down": "mlp.down_proj"},
        ignored=(".rotary_emb.inv_freq",), tied="lm_head"),
    "gguf": Layout(
        {"embedded.tokens": "token_embd", "final_norm": "output_norm", "head.W": "output"},
        "blk",
        {"attention_norm": "attn_norm", "attention.qkv": "attn_q attn_k attn_v", "attention.out": "attn_output",
         "feed_norm": "ffn_norm", "feed.gate": "ffn_gate", "feed.up": "ffn_up", "feed.down": "ffn_down"},
        pairing="neighbours", tied="output"),
}


# Files


def read(*paths: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by name, from its safetensors file, or files. Those of bfloat16 become float32."""
    found = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise FileNotFoundError(f"interchange.read: there is no file {str(path)!r} (looked from {Path.cwd()}); "
                                    f"check the path")
        try:
            for name, tensor in deserialize(path.read_bytes()):
                found[name] = as_array(tensor["dtype"], tensor["data"]).reshape(tensor["shape"])
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"interchange.read: {str(path)!r} cannot be read ({type(error).__name__}: {error}); it was cut "
                             f"short, is no safetensors file, or has numbers of a kind that NumPy lacks") from None
    return found


KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2",
         "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


def as_array(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "BF16":                 # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("u4") << 16).view("f4")
    return np.frombuffer(data, KINDS[dtype])


def save(path: str | os.PathLike[str], model: Module, layout: str) -> None:
    """Write the parameters of a model as a safetensors file, under the names of a layout. There is never half a file."""
    write(Path(path), as_bytes(tensors_of(model, layout), {"format": "pt"}))     # what Hugging Face's reader wants to see


# Between a model and tensors by name


def load(model: Module, tensors: Mapping[str, Any], layout: str) -> None:
    """Overwrite all parameters of a model by the tensors of a checkpoint, arrays by name.

    Nothing is written unless every name and shape fits. What a layout ignores (buffers, BERT's pooler) may be there, and so may
    a head that is only a copy of the embedding.
    """
    kind("interchange.load", Mapping, "read(path) gives them", tensors=tensors)
    between = Between(model, layout)
    given = between.layout.needed(tensors)
    expected = {name: piece.shape for path, p in model.named_parameters()
                for name, piece in between.to_theirs(path, np.broadcast_to(np.float32(0), p.shape))}
    [original], copy = between.layout.names("embedded.tokens.table"), f"{between.layout.tied}.weight"
    if copy in given.keys() - expected.keys() and original in given and np.array_equal(given[copy], given[original]):
        del given[copy]
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(f"interchange.load: in the layout {layout!r} the names differ; missing: {few(missing)}; "
                         f"unknown: {few(unknown)}; build the model as the config of the checkpoint says")
    for name, shape in expected.items():
        if np.shape(given[name]) != shape:
            raise ValueError(f"interchange.load: {name} has shape {tuple(np.shape(given[name]))}, and {shape} is what fits "
                             f"this model; build it with the sizes of the checkpoint")
    model.load_state_dict({path: between.to_ours(path, given) for path, _ in model.named_parameters()})


def tensors_of(model: Module, layout: str) -> dict[str, np.ndarray]:
    """The parameters of a model by the names of a layout, as they lie there: what `load` takes, to the last bit."""
    between = Between(model, layout)
    return {name: np.array(piece, order="C") for path, p in model.named_parameters()
            for name, piece in between.to_theirs(path, to_host(p.array))}


class Between:
    """A model and a layout: how the parameters of the one become tensors of the other, and back."""

    def __init__(self, model: Module, layout: str) -> None:
        kind("interchange", Module, "give one of minitx.models", model=model)
        if layout not in list(LAYOUTS):
            raise ValueError(f"interchange: layout must be one of {', '.join(LAYOUTS)}, got {layout!r:.60}")
        self.layout, self.modules = LAYOUTS[layout], dict(model.named_modules())
        if homeless := [path for path, _ in model.named_parameters() if not self.layout.names(path)]:
            raise ValueError(f"interchange: the layout {layout!r} has no place for {few(homeless)}; build the model without, "
                             f"or choose among {', '.join(LAYOUTS)}")

    def to_theirs(self, path: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The tensors, with their names, that a parameter is made of."""
        pieces, names = [self.turned(path, array)], self.layout.names(path)
        if len(names) > 1:
            attention = self.attention(path)
            queries, keys = attention.N * attention.K, attention.M * attention.K
            q, k, v = np.split(pieces[0], [queries, queries + keys])
            order = [channels(attention, pairing) for pairing in (None, self.layout.pairing)]
            pieces = [reordered(q, *order), reordered(k, *order), v]
        return list(zip(names, pieces, strict=True))

    def to_ours(self, path: str, tensors: Mapping[str, Any]) -> np.ndarray:
        """A parameter from the tensors that it is made of."""
        pieces = [np.asarray(tensors[name]) for name in self.layout.names(path)]
        if len(pieces) > 1:
            attention = self.attention(path)
            order = [channels(attention, pairing) for pairing in (self.layout.pairing, None)]
            pieces = [*(reordered(piece, *order) for piece in pieces[:2]), pieces[2]]
        return self.turned(path, np.concatenate(pieces))

    def turned(self, path: str, array: np.ndarray) -> np.ndarray:
        return array.T if path.endswith(".W") and (self.layout.turned or path == "head.W") else array

    def attention(self, path: str) -> MultiHeadAttention:
        """Whose queries, keys and values they are: "blocks.0.attention" of "blocks.0.attention.qkv.W"."""
        return self.modules[path.rsplit(".", 2)[0]]              # type: ignore[return-value]


def channels(attention: MultiHeadAttention, pairing: str | None) -> np.ndarray:
    """The channels of a head, first all that are the first of a pair: of this pairing, or None: of the model's own."""
    options, K = attention.rotary or {}, attention.K
    R = options.get("rotated") or K
    first, second = pairs(R, pairing or options.get("pairing", "halves"))
    return np.concatenate([np.arange(K)[first], np.arange(K)[second], np.arange(R, K)])


def reordered(rows: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Channels of heads, (heads K, ...): the one at source[j] of a head goes to target[j]."""
    heads = rows.reshape(-1, len(source), *rows.shape[1:])
    return heads[:, source[np.argsort(target)]].reshape(rows.shape)


def few(names: list[str]) -> str:
    """Some names, for an error of one line."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "none"
