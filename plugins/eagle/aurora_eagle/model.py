"""The draft network, under the names of the native EAGLE-3 checkpoint.

Shape legend, letters of tensor suffixes:
    R  rows, whatever they stand for    H  hidden size        V  target vocabulary
    N  query heads                      M  key-value heads    E  head dimension
    D  draft vocabulary

A row at position t holds what the target computed at token t, and the embedding of token t + 1; it
predicts token t + 2. In later steps the network's own output takes the target's place.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from aurora_eagle import vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """Dimensions and constants of a drafter: all that its weights do not say."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_aux_layers: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: tuple[tuple[str, str | float], ...] = ()
    """Parameters of the scaling rule of rotary positions, sorted by name; empty without one. Only
    published drafters have any: one that begins here learns its positions from its own traces."""
    norm_before_residual: bool = False
    """Whether the layer's residual is the normalised hidden state, as many published drafters made
    with `speculators` have it, and not the hidden state itself."""


class Attention(nn.Module):
    """Projections of the attention; the two callers attend each in their own way."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width = 2 * shape.hidden_size
        self.q_proj = nn.Linear(width, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)


class FeedForward(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_RH: Tensor) -> Tensor:
        """Return [R, H]."""
        gated: Tensor = self.down_proj(functional.silu(self.gate_proj(x_RH)) * self.up_proj(x_RH))
        return gated


class MidLayer(nn.Module):
    """The drafter's decoder layer."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)


class Eagle3Network(nn.Module):
    """Trainable drafter weights, the draft vocabulary, and the target's frozen ends.

    `state_dict` holds what a native checkpoint holds. The target's embedding and head are buffers
    that no checkpoint contains: they are shared, in the target's dtype.
    """

    d2t: Tensor
    """int64 [D]. Target id minus draft index."""
    t2d: Tensor
    """bool [V]. Whether a target id can be drafted."""
    embed_tokens: Tensor
    """[V, H]"""
    _untied_head: Tensor | None

    def __init__(
        self, shape: DraftShape, target_ids: Tensor, embed_tokens: Tensor, target_head: Tensor
    ) -> None:
        """Build the network with torch's random initial weights, float32.

        Args:
            shape: dimensions.
            target_ids: int64 [D]. Increasing target ids of the draft vocabulary.
            embed_tokens: [V, H] of the target.
            target_head: [V, H] of the target; the very same tensor if the target ties the two.
        """
        super().__init__()
        self.shape = shape
        hidden = shape.hidden_size
        self.fc = nn.Linear(shape.num_aux_layers * hidden, hidden, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = nn.RMSNorm(hidden, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab_size, bias=False)
        self.register_buffer("d2t", vocabulary.to_offsets(target_ids))
        self.register_buffer("t2d", vocabulary.to_membership(target_ids, shape.vocab_size))
        self.register_buffer("embed_tokens", embed_tokens, persistent=False)
        untied = None if target_head is embed_tokens else target_head
        self.register_buffer("_untied_head", untied, persistent=False)

    @property
    def target_head(self) -> Tensor:
        """The target's output head, [V, H]."""
        return self.embed_tokens if self._untied_head is None else self._untied_head

    @property
    def target_ids(self) -> Tensor:
        """Target ids of the draft vocabulary, int64 [D]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def attention_input(self, tokens_R: Tensor, hidden_RH: Tensor) -> Tensor:
        """Return what the projections of the attention read, [R, 2H].

        Args:
            tokens_R: int64 target ids of the *next* token of each row.
            hidden_RH: fused target features, or the network's output at the step before.
        """
        embedded_RH = self.embed_tokens[tokens_R].to(hidden_RH.dtype)
        return torch.cat(
            (self.midlayer.input_layernorm(embedded_RH), self.midlayer.hidden_norm(hidden_RH)), -1
        )

    def queries(self, x_R2H: Tensor, positions_R: Tensor) -> Tensor:
        """Return rotated queries, [R, N, E]."""
        heads_RNE = self.midlayer.self_attn.q_proj(x_R2H).unflatten(-1, (-1, self.shape.head_dim))
        return self._rotate(heads_RNE, positions_R)

    def keys_values(self, x_R2H: Tensor, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values, both [R, M, E]."""
        attention, split = self.midlayer.self_attn, (-1, self.shape.head_dim)
        keys_RME = self._rotate(attention.k_proj(x_R2H).unflatten(-1, split), positions_R)
        return keys_RME, attention.v_proj(x_R2H).unflatten(-1, split)

    def finish(self, hidden_RH: Tensor, attended_RA: Tensor) -> Tensor:
        """Return the layer's output [R, H]: what the next step and, after `norm`, the head read.

        Args:
            hidden_RH: as given to `attention_input`: whether the residual is normalised, the shape
                says.
            attended_RA: [R, N * E].
        """
        if self.shape.norm_before_residual:
            hidden_RH = self.midlayer.hidden_norm(hidden_RH)
        hidden_RH = hidden_RH + self.midlayer.self_attn.o_proj(attended_RA)
        normed_RH = self.midlayer.post_attention_layernorm(hidden_RH)
        output: Tensor = hidden_RH + self.midlayer.mlp(normed_RH)
        return output

    def _rotate(self, heads: Tensor, positions_R: Tensor) -> Tensor:
        cosine, sine = rotary_table(self.shape, positions_R)
        cosine, sine = cosine[:, None].to(heads.dtype), sine[:, None].to(heads.dtype)
        first, second = heads.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def tensor_shapes(shape: DraftShape) -> dict[str, tuple[int, ...]]:
    """Return what a native checkpoint of this shape holds: name -> shape."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "d2t": (shape.draft_vocab_size,),
        "t2d": (shape.vocab_size,),
        "fc.weight": (hidden, shape.num_aux_layers * hidden),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (shape.draft_vocab_size, hidden),
    }


def find_shape_fault(shape: DraftShape) -> str | None:
    """Return which entry of a config.json no drafter can have, in words, or None."""
    for name, size, largest in (
        ("draft_vocab_size", shape.draft_vocab_size, shape.vocab_size),
        ("intermediate_size", shape.intermediate_size, 1 << 20),
        ("num_attention_heads", shape.num_heads, 1 << 10),
        ("num_key_value_heads", shape.num_kv_heads, shape.num_heads),
        ("head_dim", shape.head_dim, 1 << 12),
    ):
        if not 0 < size <= largest:
            return f"{name} = {size}, expected 1 to {largest}"
    if shape.num_heads % shape.num_kv_heads or shape.head_dim % 2:
        return (
            f"{shape.num_heads} heads of {shape.head_dim} for {shape.num_kv_heads} key-value heads"
        )
    return None


def rotary_table(shape: DraftShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary angles, float32 [len(positions), head_dim / 2] each."""
    frequencies, factor = _rotary_frequencies(shape)
    angles = positions.float()[:, None] * frequencies.to(positions.device)
    return angles.cos() * factor, angles.sin() * factor


@functools.lru_cache(maxsize=8)
def _rotary_frequencies(shape: DraftShape) -> tuple[Tensor, float]:
    """Return float32 [head_dim / 2] and a factor for cosines and sines."""
    if not shape.rope_scaling:
        exponents = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        return 1.0 / shape.rope_theta**exponents, 1.0
    # Scaled rules come from transformers, which owns them; importing it takes seconds.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rule = {**dict(shape.rope_scaling), "rope_theta": shape.rope_theta}
    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        rope_parameters=rule,
    )
    initialise = ROPE_INIT_FUNCTIONS[str(rule["rope_type"])]
    frequencies, factor = initialise(config, torch.device("cpu"))
    return frequencies, float(factor)
