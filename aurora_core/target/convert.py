"""GGUF file -> Hugging Face directory with bfloat16 safetensors, tokenizer and chat template.

Run as a process of its own (`python -m aurora_core.target.convert GGUF DIRECTORY`): it needs
torch and about a gigabyte of memory, which the caller should neither load nor keep.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Dequantise a GGUF model and write it to an existing, empty directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    silence: Any = logging
    silence.disable_progress_bar()
    silence.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        # The default keeps the packed blocks, which cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    # What is left is an ordinary model, but transformers still takes it for a quantised one.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
