"""Drafting as training sees it: every anchor of a batch unrolled at once.

Shape legend:
    B  traces          C  context rows            S  context rows of the longest trace
    A  anchors         L  nodes of one depth      H  hidden size

This is EAGLE-3's training-time test, with parent pointers in the place of its diagonals. An anchor
at position t starts from the target's features of t and the embedding of token t + 1, as the
serving drafter does. A node of depth k reads the output of its parent and the embedding of its own
token, at rotary position t + k, and attends to
    - the context rows of its trace up to t, whose keys come from the target's features, and
    - its ancestors and itself.
Without branches each anchor has one node at each depth, whose token is the committed one; a chain
that had drafted it would have computed the same.

Only anchors and nodes pass through attention, feed-forward layer and head; other rows give keys and
values.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from aurora_eagle.attention import Context, Depth, Slots, attend_fused, attend_plain
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network

Kernel = Literal["plain", "fused"]
"""Which attention; see `aurora_eagle.attention`."""


class Rollout:
    """Unrolls the drafter from the anchors of a batch, one depth with each call of `advance`."""

    def __init__(
        self, network: Eagle3Network, batch: Batch, *, kernel: Kernel | None = None
    ) -> None:
        """Encode the context.

        Args:
            network: the drafter.
            batch: where to draft from.
            kernel: None takes the fused one where there is an accelerator.
        """
        self._network = network
        self._token_ids = batch.token_ids
        self._kernel = kernel or ("plain" if batch.token_ids.device.type == "cpu" else "fused")
        self.trace = batch.row_trace[batch.anchor_row]
        """int64 [L]. Trace of each node."""
        self.position = batch.row_position[batch.anchor_row]
        """int64 [L]. Position of the anchor above each node."""
        self.num_steps = 0
        """Depths so far."""
        dtype = network.fc.weight.dtype
        hidden_CH = network.fc(batch.aux_hidden_states.to(dtype))
        next_tokens = batch.token_ids[batch.row_trace, batch.row_position + 1]
        x_C2H = network.attention_input(next_tokens, hidden_CH)
        keys_CME, values_CME = network.keys_values(x_C2H, batch.row_position)
        self._hidden_LH: Tensor = hidden_CH[batch.anchor_row]
        self._x_L2H = x_C2H[batch.anchor_row]

        slots = Slots.arrange(batch.row_trace, len(batch.token_ids))
        self._context_keys = keys_CME[slots.row].transpose(1, 2)
        self._context_values = values_CME[slots.row].transpose(1, 2)
        # An empty slot lies beyond every anchor.
        self._beyond = batch.token_ids.shape[1]
        self._context_positions_BS = batch.row_position[slots.row].masked_fill(
            ~slots.filled, self._beyond
        )
        self._depths: list[tuple[Tensor, Tensor, Tensor]] = []
        self._ancestors: list[Tensor | None] = []
        self._lay_out()

    def advance(self, tokens: Tensor | None = None) -> Tensor:
        """Compute the next depth and return its outputs, [L, H].

        An output's logits are those of the token at `position + 2 + k`, k being the depths before.

        Args:
            tokens: int64 [L]. What each node reads; None is the committed token. The anchors
                themselves always read theirs.
        """
        network = self._network
        rotary_L = self.position + self.num_steps
        if self.num_steps:
            if tokens is None:
                tokens = self.committed_tokens()
            self._x_L2H = network.attention_input(tokens, self._hidden_LH)
            self._depths.append((*network.keys_values(self._x_L2H, rotary_L), self.trace))
            self._ancestors.append(None)
        self.num_steps += 1
        attended_LI = self._attend(network.queries(self._x_L2H, rotary_L))
        self._hidden_LH = network.finish(self._hidden_LH, attended_LI)
        return self._hidden_LH

    def committed_tokens(self) -> Tensor:
        """Return int64 [L]: what each node of the next depth reads on the committed path.

        Beyond the end of a trace nothing is supervised, and any token is returned.
        """
        column = (self.position + 1 + self.num_steps).clamp(max=self._token_ids.shape[1] - 1)
        return self._token_ids[self.trace, column]

    def keep(self, mask: Tensor) -> None:
        """Go on with some nodes only; bool [L]."""
        self.descend(mask.nonzero().flatten())

    def descend(self, parent: Tensor) -> None:
        """Let the nodes of the next depth hang below given ones of this.

        Args:
            parent: int64 [L of the next depth]. May name a node several times, or not at all.
        """
        self.trace, self.position = self.trace[parent], self.position[parent]
        self._hidden_LH = self._hidden_LH.index_select(0, parent)
        self._x_L2H = self._x_L2H.index_select(0, parent)
        self._ancestors = [
            parent if ancestor is None else ancestor[parent] for ancestor in self._ancestors
        ]
        self._lay_out()

    def _lay_out(self) -> None:
        """Arrange nodes by trace, so that each trace's attend to its context together."""
        self._slots = Slots.arrange(self.trace, len(self._token_ids))
        # Empty slots see everything: a softmax over nothing would not be a number.
        positions_BZ = self.position[self._slots.row].masked_fill(~self._slots.filled, self._beyond)
        hidden_BZS = self._context_positions_BS[:, None] > positions_BZ[:, :, None]
        self._context = Context(
            keys=self._context_keys, values=self._context_values, hidden=hidden_BZS
        )

    def _attend(self, queries_LNE: Tensor) -> Tensor:
        attend = attend_plain if self._kernel == "plain" else attend_fused
        depths = [
            Depth(keys=keys, values=values, trace=trace, ancestor=ancestor)
            for (keys, values, trace), ancestor in zip(self._depths, self._ancestors, strict=True)
        ]
        return attend(queries_LNE, self._slots, self._context, depths)
