"""A random target of a few thousand weights, as a real Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES: dict[str, tuple[Any, Any]] = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
}
"""Architecture -> config class and model class; the libraries type neither usefully."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1 (begin) and 2 (end)."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_target(
    path: str | Path,
    architecture: str = "LlamaForCausalLM",
    *,
    vocab_size: int = 256,
    hidden_size: int = 32,
    num_layers: int = 4,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    tie: bool = True,
    seed: int = 0,
    max_position_embeddings: int = 512,
    sharpness: float = 1.0,
) -> Path:
    """Write a random but valid target directory and return it.

    `AutoTokenizer` and `AutoModelForCausalLM` load it. Weights are float32 and large enough that
    greedy output varies with the prompt; equal arguments give equal files. The tokenizer knows
    bytes (every byte from `vocab_size` 259 on, printable ASCII from 99 on; others become
    `<|endoftext|>`) and writes each as one token.

    Args:
        path: directory to write; created if needed.
        architecture: a key of `FAMILIES`.
        tie: whether the output head is the embedding matrix.
        sharpness: factor of all logits. At 1 the best token has a probability of about 0.14.
    """
    directory = Path(path)
    config_type, model_type = FAMILIES[architecture]
    config = config_type(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.device("meta"):
        model = model_type(config)
    model = model.to_empty(device="cpu")
    _fill(model, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)
    model.tie_weights()
    model.save_pretrained(directory)
    _tokenizer(vocab_size).save_pretrained(directory)
    return directory


def _fill(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Fill norms with about 1 and matrices so that layers outweigh the embedding they add to.

    Otherwise a tied output head would repeat the last token for ever.
    """
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.1 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 2.0 / parameter.shape[1] ** 0.5)


def _tokenizer(vocab_size: int) -> Any:
    # GPT-2's printable stand-ins for bytes, ASCII first so that a small vocabulary reads English.
    stand_ins = pre_tokenizers.ByteLevel.alphabet()
    printable = [*sorted(c for c in stand_ins if c.isascii()), "\u0120", "\u010a"]
    others = sorted(set(stand_ins) - set(printable))
    symbols = [*SPECIAL_TOKENS, *printable, *others][:vocab_size]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIAL_TOKENS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer_type: Any = PreTrainedTokenizerFast
    return tokenizer_type(
        tokenizer_object=tokenizer,
        unk_token=SPECIAL_TOKENS[0],
        pad_token=SPECIAL_TOKENS[0],
        bos_token=SPECIAL_TOKENS[1],
        eos_token=SPECIAL_TOKENS[2],
        chat_template=CHAT_TEMPLATE,
    )
