"""The draft network, under the names of vLLM's Medusa checkpoint.

Shape legend, letters of tensor suffixes:
    R  rows, whatever they stand for    H  hidden size    V  target vocabulary
    D  draft vocabulary                 K  heads

Medusa: Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding
heads", 2024, section 2.1. A row at position t is what the target's own head reads there, after its
final norm. That head predicts token t + 1; head k, from 0, predicts token t + 2 + k. Heads know
nothing of each other's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaShape:
    """Dimensions of a drafter: all that its weights do not say."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int
    num_blocks: int
    own_heads: bool


class ResidualBlocks(nn.Module):
    """A few times `x + silu(W x + b)`; the identity at first, because W and b begin at zero."""

    def __init__(self, hidden_size: int, num_blocks: int) -> None:
        super().__init__()
        # Each layer is made anew: a repeated list would share one layer's weights.
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_blocks))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x_RH: Tensor) -> Tensor:
        """Return [R, H]."""
        for layer in self.layers:
            x_RH = x_RH + functional.silu(layer(x_RH))
        return x_RH


class MedusaNetwork(nn.Module):
    """Trainable heads, the draft vocabulary, and the target's frozen output head.

    `state_dict` holds what a checkpoint holds, but for the target's head. That is a buffer: shared,
    in the target's dtype.
    """

    token_map: Tensor
    """int64 [D]. Target ids of the draft vocabulary, increasing."""
    target_head: Tensor
    """[V, H]"""
    draft_head: Tensor
    """[D, H]. The target's head, cut to the draft vocabulary."""

    def __init__(self, shape: MedusaShape, token_map: Tensor, target_head: Tensor) -> None:
        """Build the network as it starts: every head predicts what the target's own head does.

        Args:
            shape: dimensions.
            token_map: int64 [D].
            target_head: [V, H] of the target.
        """
        super().__init__()
        self.shape = shape
        is_cut = shape.draft_vocab_size < shape.vocab_size
        self.blocks = nn.ModuleList(
            ResidualBlocks(shape.hidden_size, shape.num_blocks) for _ in range(shape.num_heads)
        )
        self.register_buffer("token_map", token_map, persistent=is_cut)
        self.register_buffer("target_head", target_head, persistent=False)
        draft_head = target_head[token_map] if is_cut else target_head
        self.register_buffer("draft_head", draft_head, persistent=False)
        num_own = shape.num_heads if shape.own_heads else 0
        self.lm_heads = nn.ModuleList(
            nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False) for _ in range(num_own)
        )
        with torch.no_grad():
            for parameter in self.lm_heads.parameters():
                parameter.copy_(draft_head)

    @property
    def output_heads(self) -> Sequence[Tensor]:
        """The matrix that each head ends with, [D, H] each; one and the same if it is shared."""
        if self.shape.own_heads:
            return [head.get_parameter("weight") for head in self.lm_heads]
        return [self.draft_head] * self.shape.num_heads

    def forward(self, hidden_RH: Tensor) -> list[Tensor]:
        """Return what each head's output matrix reads, [R, H] each."""
        return [block(hidden_RH) for block in self.blocks]


def tensor_shapes(shape: MedusaShape) -> dict[str, tuple[int, ...]]:
    """Return what a checkpoint of this shape holds: name -> shape."""
    hidden, draft = shape.hidden_size, shape.draft_vocab_size
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(shape.num_heads):
        for layer in range(shape.num_blocks):
            shapes[f"blocks.{head}.layers.{layer}.weight"] = (hidden, hidden)
            shapes[f"blocks.{head}.layers.{layer}.bias"] = (hidden,)
        if shape.own_heads:
            shapes[f"lm_heads.{head}.weight"] = (draft, hidden)
    if not shape.own_heads:
        shapes["lm_head.weight"] = (draft, hidden)
    if draft < shape.vocab_size:
        shapes["token_map"] = (draft,)
    return shapes
