"""Checkpoints of random weights, in the names and shapes that Hugging Face's models have, against live PyTorch in float64.

The models are written here once more, straight from their tensors, with the functions of torch.
"""

import numpy as np
import pytest

from minitx import interchange
from minitx.pretrained import from_config

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch

V, D, N, M, L, T, INNER = 13, 32, 4, 2, 2, 9, 20
K = D // N
IDS = np.array([[1, 7, 3, 0, 12, 5], [2, 2, 9, 11, 4, 8]])
SHAPES = {
    "bert": {"embeddings.word_embeddings.weight": (V, D), "embeddings.position_embeddings.weight": (T, D),
             "embeddings.token_type_embeddings.weight": (2, D), **dict.fromkeys(
                 ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"], (D,))},
    "gpt2": {"wte.weight": (V, D), "wpe.weight": (T, D), "ln_f.weight": (D,), "ln_f.bias": (D,)},
    "llama": {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,), "lm_head.weight": (V, D)},
}
for i in range(L):
    SHAPES["bert"] |= {f"encoder.layer.{i}.{name}": shape for name, shape in {
        **{f"attention.self.{part}.{end}": shape for part in ("query", "key", "value")
           for end, shape in (("weight", (D, D)), ("bias", (D,)))},
        "attention.output.dense.weight": (D, D), "attention.output.dense.bias": (D,), "attention.output.LayerNorm.weight": (D,),
        "attention.output.LayerNorm.bias": (D,), "intermediate.dense.weight": (INNER, D), "intermediate.dense.bias": (INNER,),
        "output.dense.weight": (D, INNER), "output.dense.bias": (D,), "output.LayerNorm.weight": (D,),
        "output.LayerNorm.bias": (D,)}.items()}
    SHAPES["gpt2"] |= {f"h.{i}.{name}": shape for name, shape in {
        "ln_1.weight": (D,), "ln_1.bias": (D,), "attn.c_attn.weight": (D, 3 * D), "attn.c_attn.bias": (3 * D,),
        "attn.c_proj.weight": (D, D), "attn.c_proj.bias": (D,), "ln_2.weight": (D,), "ln_2.bias": (D,),
        "mlp.c_fc.weight": (D, 4 * D), "mlp.c_fc.bias": (4 * D,), "mlp.c_proj.weight": (4 * D, D),
        "mlp.c_proj.bias": (D,)}.items()}
    SHAPES["llama"] |= {f"model.layers.{i}.{name}.weight": shape for name, shape in {
        "input_layernorm": (D,), "self_attn.q_proj": (D, D), "self_attn.k_proj": (M * K, D), "self_attn.v_proj": (M * K, D),
        "self_attn.o_proj": (D, D), "post_attention_layernorm": (D,), "mlp.gate_proj": (INNER, D), "mlp.up_proj": (INNER, D),
        "mlp.down_proj": (D, INNER)}.items()}
CONFIGS = {
    "bert": {"model_type": "bert", "vocab_size": V, "hidden_size": D, "num_attention_heads": N, "num_hidden_layers": L,
             "max_position_embeddings": T, "intermediate_size": INNER, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
             "type_vocab_size": 2},
    "gpt2": {"model_type": "gpt2", "vocab_size": V, "n_embd": D, "n_head": N, "n_layer": L, "n_positions": T,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
    "llama": {"model_type": "llama", "vocab_size": V, "hidden_size": D, "num_attention_heads": N, "num_key_value_heads": M,
              "num_hidden_layers": L, "max_position_embeddings": T, "intermediate_size": INNER, "rms_norm_eps": 1e-5,
              "hidden_act": "silu", "rope_theta": 1e4},
}


def heads(x):
    return x.unflatten(2, (-1, K)).transpose(1, 2)                       # (B, N, T, K)


def attend(q, k, v, causal):
    return F.scaled_dot_product_attention(heads(q), k, heads(v), is_causal=causal, enable_gqa=True).transpose(1, 2).flatten(2)


def bert(get, ids):
    """(B, T, D)."""
    def linear(x, name):
        return F.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))

    def norm(x, name):
        return F.layer_norm(x, (D,), get(f"{name}.LayerNorm.weight"), get(f"{name}.LayerNorm.bias"), 1e-12)

    words, places, types = (get(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type"))
    x = norm(words[ids] + places[:ids.shape[1]] + types[0], "embeddings")
    for at in (f"encoder.layer.{i}" for i in range(L)):
        q, k, v = (linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        x = norm(x + linear(attend(q, heads(k), v, False), f"{at}.attention.output.dense"), f"{at}.attention.output")
        x = norm(x + linear(F.gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense"), f"{at}.output")
    return x


def gpt2(get, ids):
    """Logits (B, T, V)."""
    def product(x, name):
        return x @ get(f"{name}.weight") + get(f"{name}.bias")

    def norm(x, name):
        return F.layer_norm(x, (D,), get(f"{name}.weight"), get(f"{name}.bias"), 1e-5)

    x = get("wte.weight")[ids] + get("wpe.weight")[:ids.shape[1]]
    for at in (f"h.{i}" for i in range(L)):
        q, k, v = product(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").split(D, 2)
        x = x + product(attend(q, heads(k), v, True), f"{at}.attn.c_proj")
        x = x + product(F.gelu(product(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc"), approximate="tanh"), f"{at}.mlp.c_proj")
    return norm(x, "ln_f") @ get("wte.weight").T


def llama(get, ids):
    """Logits (B, T, V)."""
    def linear(x, name):
        return F.linear(x, get(f"{name}.weight"))

    def norm(x, name):
        return F.rms_norm(x, (D,), get(f"{name}.weight"), 1e-5)

    def turned(x):                                                       # as `rotate_half` has it
        half = torch.cat([-x[..., K // 2:], x[..., :K // 2]], -1)
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 1e4 ** (-torch.arange(0, K, 2, dtype=x.dtype) / K)
        angles = torch.cat([angles, angles], -1)
        return x * angles.cos() + half * angles.sin()

    x = get("model.embed_tokens.weight")[ids]
    for at in (f"model.layers.{i}" for i in range(L)):
        q, k, v = (linear(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn.{part}_proj") for part in "qkv")
        q = turned(heads(q)).transpose(1, 2).flatten(2)
        x = x + linear(attend(q, turned(heads(k)), v, True), f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        x = x + linear(F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama}


@pytest.mark.parametrize("layout, pairing", [("bert", "halves"), ("gpt2", "halves"), ("llama", "halves"),
                                             ("llama", "neighbours")])
def test_a_checkpoint_gives_the_numbers_of_pytorch_and_comes_out_as_it_went_in(layout, pairing):
    rng = np.random.default_rng(0)
    tensors = {name: torch.tensor(rng.normal(0, 0.5, shape)) for name, shape in SHAPES[layout].items()}
    expected = MODELS[layout](tensors.__getitem__, torch.tensor(IDS)).numpy()
    model = from_config(CONFIGS[layout], pairing=pairing).to(dtype="float64")
    interchange.load(model, tensors, layout)
    found = model(IDS).numpy()
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()
    back = interchange.tensors_of(model, layout)
    assert back.keys() == tensors.keys()
    for name, tensor in back.items():
        np.testing.assert_array_equal(tensor, tensors[name].numpy(), err_msg=name)
