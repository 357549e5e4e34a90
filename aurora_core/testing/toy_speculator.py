"""A real speculator of a few thousand weights: what tests of learner, engine and controller train.

A recurrent cell reads the target's last hidden state and the latest token and predicts the next
one; its own state takes the place of the hidden state from then on. Drafts are chains or have
siblings and are sampled on request, the draft vocabulary is its own and frozen, checkpoints are
strict: everything the interface asks for, and nothing clever.

This module is a plugin: name it in an entry point `toy = "aurora_core.testing.toy_speculator"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from aurora_core import hookimpl
from aurora_core.errors import TraceError
from aurora_core.interfaces import Drafter, LossOutput, Options, Speculator
from aurora_core.records import Needs, Registration, TargetSpec, Trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights

_FEATURE = "last_hidden_state"


@hookimpl
def aurora_register_speculators() -> Iterable[Registration]:
    """Register the toy."""
    yield Registration(
        "toy", "aurora_core.testing.toy_speculator:ToySpeculator", "a recurrent cell, for tests"
    )


class ToyOptions(Options):
    """Options of the toy."""

    num_steps: int = Field(3, ge=1)
    """Draft positions that are trained."""
    draft_vocab_size: int = Field(64, ge=1)
    """Tokens it can draft, at most: the most frequent ones of the first traces."""
    num_siblings: int = Field(1, ge=1)
    """Tokens drafted at each depth; the first of them goes on. More than one makes trees."""
    noise: float = Field(0.0, ge=0)
    """Standard deviation of what is added to hidden states while training. Training then depends
    on random states, and on all of the past."""


class ToySpeculator(Speculator):
    """Builds, trains, saves and loads a `ToyNetwork`."""

    Config = ToyOptions

    def __init__(self, options: ToyOptions, target: TargetSpec) -> None:
        super().__init__(options, target)
        self.options: ToyOptions = options
        if options.num_siblings > 1:
            self.topologies = frozenset({"tree"})

    @property
    def needs(self) -> Needs:
        """Return the one feature it reads."""
        return Needs(features=frozenset({_FEATURE}))

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return a network with the target's embedding and the rows of its head that it drafts."""
        import torch

        from aurora_core.testing.toy_network import ToyNetwork

        counts = torch.zeros(weights.vocab_size, dtype=torch.int64)
        for trace in traces:
            response = trace.token_ids[trace.prompt_len :]
            counts += torch.bincount(response, minlength=weights.vocab_size)
        num_tokens = min(self.options.draft_vocab_size, weights.vocab_size)
        draft_token_ids = counts.argsort(descending=True, stable=True)[:num_tokens].sort().values
        network = ToyNetwork(weights.vocab_size, weights.hidden_size, num_tokens)
        with torch.no_grad():
            network.draft_token_ids.copy_(draft_token_ids)
            network.embed_tokens.weight.copy_(weights.embed_tokens)
            network.lm_head.weight.copy_(weights.lm_head[draft_token_ids])
        return network

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Return `token_ids` int64 [B, T], `hidden` float32 [B, T, D], and what they are.

        `has_token` and `is_anchor` are bool [B, T]. A position is an anchor if it lies in the
        response, a token follows it, and the hidden state of the position before it was captured.
        Padding is 0 and never an anchor.
        """
        import torch

        hidden_size = self.target.hidden_size
        num_positions = max(trace.token_ids.numel() for trace in traces)
        shape = (len(traces), num_positions)
        token_ids = torch.zeros(shape, dtype=torch.int64)
        hidden = torch.zeros(*shape, hidden_size)
        has_token = torch.zeros(shape, dtype=torch.bool)
        is_anchor = torch.zeros(shape, dtype=torch.bool)
        for index, trace in enumerate(traces):
            rows = self._checked_rows(trace)
            num_tokens = trace.token_ids.numel()
            token_ids[index, :num_tokens] = trace.token_ids
            has_token[index, :num_tokens] = True
            committed = trace.rows.position >= 0
            position = trace.rows.position[committed]
            hidden[index, position] = rows[committed].float()
            anchors = position + 1
            anchors = anchors[(anchors >= trace.prompt_len) & (anchors < num_tokens - 1)]
            is_anchor[index, anchors] = True
        return {
            "token_ids": token_ids,
            "hidden": hidden,
            "has_token": has_token,
            "is_anchor": is_anchor,
        }

    def _checked_rows(self, trace: Trace) -> Tensor:
        rows = trace.features.get(_FEATURE)
        if rows is None:
            raise TraceError(f"trace {trace.trace_id!r} lacks the feature {_FEATURE!r}")
        if rows.shape[-1] != self.target.hidden_size or not bool(rows.isfinite().all()):
            raise TraceError(
                f"trace {trace.trace_id!r} holds {_FEATURE!r} with values that are not finite, "
                f"or not of the target's size {self.target.hidden_size}"
            )
        return rows

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return cross-entropy with the committed tokens, which are also what it is fed."""
        import torch

        from aurora_core.testing.toy_network import ToyNetwork, anchored

        assert isinstance(module, ToyNetwork)
        state, tokens, exists = anchored(batch, self.options.num_steps)
        state = state + self.options.noise * torch.randn_like(state)
        draft_ids = module.draft_ids()
        num_supervised = 0
        # Connected to the weights even when there is nothing to learn.
        loss_sum = 0.0 * module.lm_head.weight.sum()
        accuracy: dict[str, Tensor] = {}
        for step in range(self.options.num_steps):
            state, logits = module(state, tokens[:, step])
            labels = draft_ids[tokens[:, step + 1]]
            supervised = exists[:, step + 1] & (labels >= 0)
            loss_sum = loss_sum + torch.nn.functional.cross_entropy(
                logits[supervised], labels[supervised], reduction="sum"
            )
            num_supervised += int(supervised.sum())
            hit = logits.argmax(-1)[exists[:, step + 1]] == labels[exists[:, step + 1]]
            if hit.numel():
                accuracy[f"accuracy_{step + 1}"] = hit.float().mean()
        return LossOutput(
            loss_sum=loss_sum,
            weight_sum=loss_sum.new_tensor(float(num_supervised)),
            num_tokens=int(batch["is_anchor"].sum()),
            metrics=accuracy,
        )

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Draft greedily from every anchor, feeding drafts back."""
        import torch

        from aurora_core.testing.toy_network import ToyNetwork, anchored

        assert isinstance(module, ToyNetwork)
        state, tokens, exists = anchored(batch, num_speculative_tokens)
        trace_index = batch["is_anchor"].nonzero()[:, 0]
        num_traces = len(batch["token_ids"])
        anchors = torch.bincount(trace_index, minlength=num_traces)
        accepted = tokens.new_zeros(num_traces, num_speculative_tokens)
        token, alive = tokens[:, 0], torch.ones_like(exists[:, 0])
        with torch.no_grad():
            for step in range(num_speculative_tokens):
                state, logits = module(state, token)
                token = module.draft_token_ids[logits.argmax(-1)]
                alive = alive & exists[:, step + 1] & (token == tokens[:, step + 1])
                accepted[:, step] = torch.bincount(trace_index[alive], minlength=num_traces)
        return accepted, anchors

    def save(self, module: nn.Module, path: Path) -> None:
        """Write config.json and model.safetensors."""
        from aurora_core.testing.toy_network import ToyNetwork, save_network

        assert isinstance(module, ToyNetwork)
        save_network(module, path, self.target.fingerprint)

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read what `save` wrote; anything else is refused."""
        from aurora_core.testing.toy_network import load_network

        return load_network(path, self.target.fingerprint)

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return a proposer with its own copy of the weights."""
        from aurora_core.testing.toy_network import ToyDrafter, ToyNetwork

        assert isinstance(module, ToyNetwork)
        return ToyDrafter(
            module, dtype=dtype, device=device, num_siblings=self.options.num_siblings
        )
