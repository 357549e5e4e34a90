"""The target's tensors, loaded one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from aurora_core.errors import TargetError
from aurora_core.records import TargetSpec
from aurora_core.target.architecture import Architecture
from aurora_core.target.directory import open_target_directory


class TargetWeights:
    """Lazy access to the weights of a target directory, in their stored dtype, on CPU.

    Opening reads headers only. `tensor` and `layer` read from the memory-mapped file with every
    call and keep nothing; `embed_tokens`, `lm_head` and `final_norm` are kept once read.

    Args:
        target: a spec or its directory.

    Raises:
        TargetError: as `read_target_spec`, except that a tokenizer is not required.
    """

    def __init__(self, target: TargetSpec | str | Path) -> None:
        directory = open_target_directory(target.path if isinstance(target, TargetSpec) else target)
        self.path: Path = directory.path
        self.config: Mapping[str, Any] = directory.config
        """Content of config.json."""
        self.architecture: Architecture = directory.architecture
        """The same facts as this object's properties, and the expected shapes."""
        self._stored = directory.tensors

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of all stored tensors, sorted."""
        return tuple(sorted(self._stored))

    def tensor(self, name: str) -> Tensor:
        """Read one tensor by its full name.

        Raises:
            TargetError: there is none of this name.
        """
        stored = self._stored.get(name)
        if stored is None:
            raise TargetError(
                f"target {str(self.path)!r} has no tensor {name!r}; `names` lists what it has"
            )
        with safe_open(stored.file, framework="pt", device="cpu") as opened:
            tensor: Tensor = opened.get_tensor(name)
        return tensor

    @cached_property
    def embed_tokens(self) -> Tensor:
        """Token embeddings, [V, D]."""
        return self.tensor("model.embed_tokens.weight")

    @cached_property
    def lm_head(self) -> Tensor:
        """Output head, [V, D]; the very tensor `embed_tokens` when the two are tied."""
        if self.architecture.tie_word_embeddings:
            return self.embed_tokens
        return self.tensor("lm_head.weight")

    @cached_property
    def final_norm(self) -> Tensor:
        """Weight of the RMS norm before the output head, [D]."""
        return self.tensor("model.norm.weight")

    def layer(self, index: int) -> dict[str, Tensor]:
        """Read one decoder layer: short name (`self_attn.q_proj.weight`, ...) -> tensor.

        Biases are there where the model has them; `self_attn.q_norm.weight` and
        `self_attn.k_norm.weight` for Qwen3.
        """
        if not 0 <= index < self.num_layers:
            raise ValueError(f"layer {index} of a target with {self.num_layers} layers")
        return {
            short_name: self.tensor(f"model.layers.{index}.{short_name}")
            for short_name in self.architecture.layer_shapes()
        }

    def rope_inverse_frequencies(self) -> tuple[Tensor, float]:
        """Return the rotary frequencies, float32 [head_dim / 2], and a factor for cos and sin."""
        facts = self.architecture
        exponents = torch.arange(0, facts.head_dim, 2, dtype=torch.float32) / facts.head_dim
        if facts.rope_type == "default":
            return 1.0 / (facts.rope_theta**exponents), 1.0

        # Scaled rules come from transformers, which owns them; importing it takes seconds.
        from transformers import AutoConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = AutoConfig.from_pretrained(self.path, local_files_only=True)
        frequencies, scaling = ROPE_INIT_FUNCTIONS[facts.rope_type](config, torch.device("cpu"))
        return frequencies, float(scaling)

    @property
    def vocab_size(self) -> int:
        """V, as in config.json: rows of `embed_tokens`."""
        return self.architecture.vocab_size

    @property
    def hidden_size(self) -> int:
        """D."""
        return self.architecture.hidden_size

    @property
    def intermediate_size(self) -> int:
        """Width of the gated feed-forward layer."""
        return self.architecture.intermediate_size

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return self.architecture.num_layers

    @property
    def num_attention_heads(self) -> int:
        """Query heads of a layer."""
        return self.architecture.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Key-value heads of a layer; divides `num_attention_heads`."""
        return self.architecture.num_key_value_heads

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.architecture.head_dim

    @property
    def max_position_embeddings(self) -> int:
        """Positions the model was made for."""
        return self.architecture.max_position_embeddings

    @property
    def rms_norm_eps(self) -> float:
        """Epsilon of every RMS norm."""
        return self.architecture.rms_norm_eps

    @property
    def rope_theta(self) -> float:
        """Base of the rotary frequencies."""
        return self.architecture.rope_theta

    @property
    def rope_scaling(self) -> Mapping[str, Any]:
        """Parameters of the rotary scaling rule; empty without one."""
        return self.architecture.rope_scaling

    @property
    def hidden_act(self) -> str:
        """Activation of the feed-forward layer."""
        return self.architecture.hidden_act

    @property
    def attention_bias(self) -> bool:
        """Whether the attention projections have biases."""
        return self.architecture.attention_bias

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether `lm_head` is `embed_tokens`."""
        return self.architecture.tie_word_embeddings
