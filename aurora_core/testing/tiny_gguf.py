"""A random Llama of a few thousand weights, as a quantised GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Weight = NDArray[np.float32]

HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 2, 4, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "\u0120", "\u010a", "ab"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_weights() -> dict[str, Weight]:
    """Return a tiny Llama's float32 tensors by their names in Hugging Face layout."""
    generator = np.random.default_rng(0)
    shapes = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (96, HIDDEN),
        "mlp.up_proj": (96, HIDDEN),
        "mlp.down_proj": (HIDDEN, 96),
    }
    weights = {
        f"model.layers.{layer}.{name}.weight": generator.standard_normal(shape)
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }
    weights["model.embed_tokens.weight"] = generator.standard_normal((len(TOKENS), HIDDEN))
    weights["model.norm.weight"] = generator.standard_normal(HIDDEN)
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


def _interleaved(weight: Weight, num_heads: int) -> Weight:
    """Return a query or key projection in the row order of GGUF's Llama."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(file: Path, weights: Mapping[str, Weight]) -> None:
    """Write a tiny Llama with a byte-pair tokenizer; matrices are quantised to Q4_1."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in weights.items():
        if name.startswith("model.layers."):
            layer, short_name = name.removeprefix("model.layers.").split(".", 1)
            short_name = GGUF_NAMES[short_name.removesuffix(".weight")]
            gguf_name = f"blk.{layer}.{short_name}.weight"
            if short_name in ("attn_q", "attn_k"):
                weight = _interleaved(weight, HEADS if short_name == "attn_q" else KV_HEADS)
        else:
            known = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
            gguf_name = f"{known[name]}.weight"
        if weight.ndim == 1:
            writer.add_tensor(gguf_name, weight)
        else:
            quantised = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_1)
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(gguf_name, quantised, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
