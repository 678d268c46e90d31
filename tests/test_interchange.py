"""Weights under the names of others: every layout there and back, what may be missing or too much, and what is refused.

`test_torch_interchange.py` holds the layouts to models of live PyTorch, `test_pretrained.py` to published weights.
"""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from minitx import interchange, nn
from minitx.models import Encoder, TransformerLM
from minitx.pretrained import from_config, gguf_config

from .common import every_device, refused, same

CONFIGS = {
    "bert": {"model_type": "bert", "vocab_size": 13, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2,
             "max_position_embeddings": 9, "intermediate_size": 20, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
             "type_vocab_size": 2},
    "gpt2": {"model_type": "gpt2", "vocab_size": 13, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 9,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
    "llama": {"model_type": "llama", "vocab_size": 13, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
              "num_hidden_layers": 2, "max_position_embeddings": 9, "intermediate_size": 20, "rms_norm_eps": 1e-5,
              "hidden_act": "silu", "rope_theta": 1e4},
}
MODEL_OF = {"bert": "bert", "gpt2": "gpt2", "llama": "llama", "gguf": "llama"}
IDS = np.array([[1, 7, 3, 0, 12, 5], [2, 2, 9, 11, 4, 8]])
every_layout = pytest.mark.parametrize("layout", interchange.LAYOUTS)


def model_of(layout, seed=0, **changes):
    """A model in the form of a layout, all parameters random."""
    model = from_config(CONFIGS[MODEL_OF[layout]] | changes, pairing=interchange.LAYOUTS[layout].pairing)
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.assign_(rng.normal(0, 0.5, p.shape).astype(p.dtype))
    return model


def checkpoint(layout, seed=0, **changes):
    return interchange.tensors_of(model_of(layout, seed, **changes), layout)


# There and back


@every_layout
def test_what_a_model_gives_another_takes_to_the_last_bit(layout):
    model, other = model_of(layout), model_of(layout, seed=1)
    interchange.load(other, interchange.tensors_of(model, layout), layout)
    assert same(other.state_dict(), model.state_dict())


@every_layout
@every_device
def test_a_file_gives_back_the_model(layout, device, tmp_path):
    model, other = model_of(layout), model_of(layout, seed=1).to(device)
    interchange.save(path := tmp_path / "model.safetensors", model, layout)
    interchange.load(other, interchange.read(path), layout)
    assert same(other.state_dict(), model.state_dict()) and other.parameters()[0].device == device
    header = json.loads(path.read_bytes()[8:].split(b"}}", 1)[0].split(b'"__metadata__":', 1)[1].split(b"}", 1)[0] + b"}")
    assert header == {"format": "pt"}                                    # without it, Hugging Face's loader refuses the file


@every_layout
def test_names_and_shapes_are_the_usual_ones(layout):
    shapes = {name: tensor.shape for name, tensor in checkpoint(layout).items()}
    for name, shape in {
        "bert": {"embeddings.word_embeddings.weight": (13, 12), "embeddings.token_type_embeddings.weight": (2, 12),
                 "embeddings.LayerNorm.bias": (12,), "encoder.layer.1.attention.self.query.bias": (12,),
                 "encoder.layer.0.intermediate.dense.weight": (20, 12), "encoder.layer.0.output.dense.weight": (12, 20)},
        "gpt2": {"wte.weight": (13, 12), "wpe.weight": (9, 12), "h.1.attn.c_attn.weight": (12, 36), "ln_f.bias": (12,),
                 "h.0.mlp.c_fc.weight": (12, 48)},
        "llama": {"model.embed_tokens.weight": (13, 32), "model.layers.0.self_attn.q_proj.weight": (32, 32),
                  "lm_head.weight": (13, 32), "model.layers.1.self_attn.k_proj.weight": (16, 32),
                  "model.layers.0.mlp.gate_proj.weight": (20, 32)},
        "gguf": {"token_embd.weight": (13, 32), "blk.1.attn_v.weight": (16, 32), "blk.0.ffn_down.weight": (32, 20),
                 "output_norm.weight": (32,), "output.weight": (13, 32)},
    }[layout].items():
        assert shapes.pop(name) == shape


@every_layout
def test_tensors_are_contiguous_copies(layout):
    model = model_of(layout)
    for tensor in interchange.tensors_of(model, layout).values():
        assert tensor.flags.c_contiguous
        tensor[...] = 0
    assert all(p.array.any() for p in model.parameters())


# Pairs of channels


@pytest.mark.parametrize("layout", ["llama", "gguf"])
def test_a_model_that_pairs_other_channels_computes_the_same(layout):
    theirs, tensors = model_of(layout), checkpoint(layout)
    other = {"halves": "neighbours", "neighbours": "halves"}[interchange.LAYOUTS[layout].pairing]
    ours = from_config(CONFIGS["llama"], pairing=other)
    interchange.load(ours, tensors, layout)
    assert not np.array_equal(ours.blocks[0].attention.qkv.W.array, theirs.blocks[0].attention.qkv.W.array)
    np.testing.assert_allclose(ours(IDS).numpy(), theirs(IDS).numpy(), rtol=0, atol=2e-5)
    assert same(interchange.tensors_of(ours, layout), tensors)


def test_the_order_of_channels_is_the_known_one():
    """Rows of a head: Meta's order is 0 … 7, and Hugging Face has the even ones first."""
    order = {"llama": [0, 2, 4, 6, 1, 3, 5, 7], "gguf": range(8)}
    model = from_config(CONFIGS["llama"], pairing="neighbours")
    W = model.blocks[0].attention.qkv.W
    W.assign_(np.broadcast_to(np.float32(np.arange(64)), W.shape))    # numbers the columns: 32 of q, 16 of k, 16 of v
    for layout, prefix in ("llama", "model.layers.0.self_attn.{}_proj.weight"), ("gguf", "blk.0.attn_{}.weight"):
        rows = {x: interchange.tensors_of(model, layout)[prefix.format(x)][:, 0] for x in "qkv"}
        heads = np.array([8 * head + place for head in range(4) for place in order[layout]])
        assert rows["q"].tolist() == heads.tolist()
        assert rows["k"].tolist() == (32 + heads[:16]).tolist()
        assert rows["v"].tolist() == list(range(48, 64))


def test_channels_that_do_not_turn_stay_where_they_are():
    attention = nn.MultiHeadAttention(12, 2, rotary={"rotated": 4, "pairing": "neighbours"})
    assert interchange.channels(attention, "neighbours").tolist() == [0, 2, 1, 3, 4, 5]
    assert interchange.channels(attention, "halves").tolist() == [0, 1, 2, 3, 4, 5]


# What may be there beside the model


@pytest.mark.parametrize("layout, extra", [
    ("bert", ["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias", "cls.predictions.bias"]),
    ("gpt2", ["h.0.attn.bias", "h.1.attn.masked_bias"]),
    ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
])
def test_buffers_and_parts_that_are_not_needed_are_ignored(layout, extra):
    model, other = model_of(layout), model_of(layout, seed=1)
    interchange.load(other, checkpoint(layout) | {name: np.zeros(1) for name in extra}, layout)
    assert same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("layout, prefix", [("bert", "bert."), ("gpt2", "transformer.")])
def test_all_names_may_have_the_prefix_of_the_larger_model(layout, prefix):
    model, other = model_of(layout), model_of(layout, seed=1)
    interchange.load(other, {prefix + name: tensor for name, tensor in checkpoint(layout).items()}, layout)
    assert same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("layout, head, table", [
    ("gpt2", "lm_head.weight", "wte.weight"), ("llama", "lm_head.weight", "model.embed_tokens.weight"),
    ("gguf", "output.weight", "token_embd.weight"),
])
def test_a_head_that_is_the_embedding_again_may_be_there_and_another_may_not(layout, head, table):
    tied = model_of(layout, tie_word_embeddings=True)
    tensors = interchange.tensors_of(tied, layout)
    assert head not in tensors
    interchange.load(tied, tensors | {head: tensors[table]}, layout)
    refused(ValueError, lambda: interchange.load(tied, tensors | {head: tensors[table] + 1}, layout), "unknown: " + head)


def test_numbers_of_other_widths_are_taken():
    model, tensors = model_of("gpt2"), checkpoint("gpt2", seed=1)
    interchange.load(model, {name: tensor.astype("float16") for name, tensor in tensors.items()}, "gpt2")
    assert model.embedded.tokens.table.dtype == "float32"
    np.testing.assert_array_equal(model.embedded.tokens.table.array, tensors["wte.weight"].astype("float16"))


# What is refused, with nothing written


@pytest.mark.parametrize("change, parts", [
    (lambda t: t.pop("wpe.weight"), ["missing: wpe.weight;", "unknown: none"]),
    (lambda t: t.update({"h.2.ln_1.bias": np.zeros(12)}), ["missing: none", "unknown: h.2.ln_1.bias"]),
    (lambda t: t.update({"ln_f.bias": np.zeros(13)}), ["ln_f.bias has shape (13,)", "(12,)"]),
    (lambda t: t.update({"h.0.attn.c_attn.weight": np.zeros((36, 12))}), ["c_attn.weight has shape (36, 12)", "(12, 36)"]),
    (lambda t: [t.pop(name) for name in list(t) if "mlp" in name], ["h.0.mlp.c_fc.weight", "and 4 more"]),
])
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(change, parts):
    model, tensors = model_of("gpt2"), checkpoint("gpt2", seed=1)
    before = model.state_dict()
    change(tensors)
    message = refused(ValueError, lambda: interchange.load(model, tensors, "gpt2"), *parts)
    assert message.startswith("interchange.load: ") and same(model.state_dict(), before)


def test_a_model_of_another_kind_is_refused():
    plain = TransformerLM(13, 12, 3, 1, 9)
    refused(ValueError, lambda: interchange.tensors_of(plain, "gpt2"), "'gpt2' has no place for head.b")
    refused(ValueError, lambda: interchange.load(plain, {}, "llama"), "no place for embedded.positions")
    refused(ValueError, lambda: interchange.load(plain, {}, "gtp2"), "bert, gpt2, llama, gguf", "'gtp2'")
    refused(TypeError, lambda: interchange.load(plain, "model.safetensors", "gpt2"), "tensors is a str", "read(path)")
    refused(TypeError, lambda: interchange.load({}, {}, "gpt2"), "model is a dict")


# Files


def test_bfloat16_is_read_as_float32(tmp_path):
    values = np.array([[1.5, -2.0], [0.0078125, 3e38]], "f4")
    data = (values.view("u4") >> 16).astype("<u2").tobytes()
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    x = interchange.read(tmp_path / "a.safetensors")["x"]
    assert x.dtype == "float32" and x.ravel()[:3].tolist() == [1.5, -2.0, 0.0078125]
    assert x[1, 1] == pytest.approx(3e38, rel=0.01)


def test_a_model_in_several_files_is_read_as_one(tmp_path):
    tensors = {"a": np.arange(3.0), "b": np.ones((2, 2), "float16"), "c": np.array([True, False]), "d": np.arange(4)}
    save_file({"a": tensors["a"], "b": tensors["b"]}, tmp_path / "1.safetensors")
    save_file({"c": tensors["c"], "d": tensors["d"]}, tmp_path / "2.safetensors")
    assert same(interchange.read(tmp_path / "1.safetensors", tmp_path / "2.safetensors"), tensors)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    refused(FileNotFoundError, lambda: interchange.read(tmp_path / "none"), "interchange.read: there is no file")
    (tmp_path / "x").write_bytes(b"no tensors at all")
    refused(ValueError, lambda: interchange.read(tmp_path / "x"), "cannot be read", "SafetensorError")


# Configs


@pytest.mark.parametrize("kind, change, parts", [
    ("bert", {"model_type": "t5"}, ["model_type must be one of bert, gpt2, llama", "'t5'"]),
    ("bert", {"hidden_act": "silu"}, ["activation must be one of gelu, gelu_new", "'silu'"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type is 'relative_key'", "'absolute' only"]),
    ("bert", {"is_decoder": True}, ["is_decoder is True"]),
    ("gpt2", {"scale_attn_weights": False}, ["scale_attn_weights is False"]),
    ("gpt2", {"add_cross_attention": True}, ["add_cross_attention is True"]),
    ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor is 0.5"]),
    ("llama", {"rope_scaling": {"type": "linear"}}, ["rope_scaling is {'type': 'linear'}"]),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, ["rope_type is 'llama3'"]),
    ("llama", {"attention_bias": True}, ["attention_bias is True"]),
    ("llama", {"head_dim": 16}, ["head_dim is 16", "8 only"]),
])
def test_what_a_config_wants_and_is_not_here_is_refused(kind, change, parts):
    refused(ValueError, lambda: from_config(CONFIGS[kind] | change), "from_config: ", *parts)


def test_a_config_that_lacks_something_is_refused():
    config = {name: value for name, value in CONFIGS["bert"].items() if name != "layer_norm_eps"}
    refused(ValueError, lambda: from_config(config), "the config of a bert needs 'layer_norm_eps'")


def test_a_config_decides_what_weights_do_not_tell():
    bert, gpt2, llama = (from_config(CONFIGS[kind]) for kind in ("bert", "gpt2", "llama"))
    assert isinstance(bert, Encoder) and bert.blocks[0].norm == "post" and bert.blocks[0].feed.kind == "gelu_exact"
    assert bert.blocks[0].attention_norm.eps == bert.embedding_norm.eps == 1e-12
    assert gpt2.blocks[0].norm == "pre" and gpt2.blocks[0].feed.kind == "gelu" and gpt2.final_norm.eps == 1e-5
    attention, newer = llama.blocks[0].attention, CONFIGS["llama"] | {"rope_parameters": {"rope_theta": 5e5}}
    del newer["rope_theta"]
    assert (attention.N, attention.M, attention.rotary["base"], attention.rotary["pairing"]) == (4, 2, 1e4, "halves")
    assert from_config(newer).blocks[0].attention.rotary["base"] == 5e5
    assert from_config(newer | {"rope_theta": None}).blocks[0].attention.rotary["base"] == 5e5
    assert from_config(CONFIGS["llama"] | {"rope_theta": None}).blocks[0].attention.rotary["base"] == 1e4
    assert llama.final_norm.eps == 1e-5 and isinstance(llama.final_norm, nn.RMSNorm) and llama.head.b is None


def test_a_head_of_its_own_has_no_bias_as_theirs_has_none():
    model, other = (model_of("gpt2", seed, tie_word_embeddings=False) for seed in (0, 1))
    tensors = interchange.tensors_of(model, "gpt2")
    interchange.load(other, tensors, "gpt2")
    assert tensors["lm_head.weight"].shape == (13, 12) and same(other.state_dict(), model.state_dict())
    np.testing.assert_array_equal(other(IDS).numpy(), model(IDS).numpy())


GGUF = {"general.architecture": "llama", "llama.vocab_size": 13, "llama.embedding_length": 32, "llama.block_count": 2,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.context_length": 9,
        "llama.feed_forward_length": 20, "llama.rope.freq_base": 1e4, "llama.attention.layer_norm_rms_epsilon": 1e-5}


@pytest.mark.parametrize("key, value, fine", [
    ("rope.dimension_count", 4, 8), ("attention.key_length", 16, 8), ("attention.value_length", 16, 8),
    ("rope.scale_linear", 2.0, 1.0), ("rope.scaling.type", "yarn", "none"), ("rope.scaling.factor", 4.0, None)])
def test_what_a_gguf_file_wants_and_is_not_here_is_refused(key, value, fine):
    refused(ValueError, lambda: gguf_config(GGUF | {f"llama.{key}": value}, True), f"gguf_config: llama.{key} is {value!r}")
    assert gguf_config(GGUF | {f"llama.{key}": fine}, True) == gguf_config(GGUF, True)


def test_a_gguf_file_tells_its_config():
    unscaled = GGUF | {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    assert gguf_config(unscaled, True) == gguf_config(GGUF, True), "a factor of no scaling is none"
    lacking = {key: value for key, value in GGUF.items() if key != "llama.embedding_length"}
    refused(ValueError, lambda: gguf_config(lacking, True), "gguf_config: the file has no 'llama.embedding_length'")
    assert gguf_config(GGUF, tied=False) | {"hidden_act": "silu"} == CONFIGS["llama"] | {"tie_word_embeddings": False}
    refused(ValueError, lambda: gguf_config({"general.architecture": "rwkv"}, True), "must be llama, got 'rwkv'")
