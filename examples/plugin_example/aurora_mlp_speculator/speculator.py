"""The speculator: what must be recorded, how it learns, how it is judged.

The controller imports this module to validate a configuration, so torch is imported inside methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from aurora_core.errors import TraceError
from aurora_core.interfaces import Drafter, LossOutput, Options, Speculator
from aurora_core.records import Needs, Trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights
    from aurora_mlp_speculator.network import MlpNetwork

FEATURE = "last_hidden_state"


class MlpOptions(Options):
    """What a configuration can say below `speculator:` when its name is `mlp`."""

    num_drafted: int = Field(3, ge=1, le=16)
    """Tokens that can be drafted in a row: one layer for each."""
    draft_vocab_size: int = Field(4096, ge=1)
    """Tokens that can be drafted at all: the most frequent ones of the first traces."""
    min_confidence: float = Field(0.3, ge=0, lt=1)
    """A chain is not extended beyond a token where its probability has fallen below this."""


class MlpSpeculator(Speculator):
    """Drafts chains with an `MlpNetwork`."""

    Config = MlpOptions
    options: MlpOptions

    @property
    def needs(self) -> Needs:
        """Return the one feature that drafting starts from; engines record nothing else then."""
        return Needs(features=frozenset({FEATURE}))

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return a new network that starts from the target's output head."""
        import torch

        from aurora_mlp_speculator.network import MlpNetwork

        counts = torch.zeros(weights.vocab_size, dtype=torch.int64)
        for trace in traces:
            response = trace.token_ids[trace.prompt_len :]
            counts += torch.bincount(response, minlength=weights.vocab_size)
        num_tokens = min(self.options.draft_vocab_size, weights.vocab_size)
        network = MlpNetwork(
            weights.embed_tokens,
            num_drafted=self.options.num_drafted,
            draft_vocab_size=num_tokens,
        )
        most_frequent = counts.argsort(descending=True, stable=True)[:num_tokens]
        network.target_ids.copy_(most_frequent.sort().values)
        with torch.no_grad():
            network.norm.copy_(weights.final_norm)
            network.lm_head.weight.copy_(weights.lm_head[network.target_ids])
        return network

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Return every place of the responses that something can be drafted from.

        An anchor is a token with a token after it and the hidden state of the one before it: the
        drafter knows the target's choice, but not yet what the target computes from it.

        Returns:
            `hidden` float32 [A, D], the state before each anchor; `token_ids` int64 [A, 1 + K],
            the anchor and what follows, -1 beyond the end; `num_anchors` int64 [B] per trace.
        """
        import torch

        ahead = torch.arange(1 + self.options.num_drafted)
        hidden, token_ids, num_anchors = [], [], []
        for trace in traces:
            # Rows name their positions; there may be holes, and rows of rejected drafts.
            anchor = trace.rows.position + 1
            used = (anchor >= trace.prompt_len) & (anchor > 0)
            used &= anchor < len(trace.token_ids) - 1
            padded = torch.nn.functional.pad(trace.token_ids, (0, len(ahead)), value=-1)
            hidden.append(self._rows(trace)[used].float())
            token_ids.append(padded[anchor[used][:, None] + ahead])
            num_anchors.append(int(used.sum()))
            if not bool(hidden[-1].isfinite().all()):
                raise TraceError(
                    f"trace {trace.trace_id!r} holds {FEATURE!r} with values that are not finite"
                )
        return {
            "hidden": torch.cat(hidden),
            "token_ids": torch.cat(token_ids),
            "num_anchors": torch.tensor(num_anchors),
        }

    def _rows(self, trace: Trace) -> Tensor:
        rows = trace.features.get(FEATURE)
        if rows is None or rows.shape[-1] != self.target.hidden_size:
            raise TraceError(
                f"trace {trace.trace_id!r} lacks the feature {FEATURE!r} of "
                f"{self.target.hidden_size} values, as target {self.target.name!r} has it"
            )
        return rows

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return cross-entropy with the committed tokens, which are also what is fed."""
        import torch

        network = _network(module)
        state, token_ids = batch["hidden"], batch["token_ids"]
        draft_ids = network.draft_ids()
        loss_sum = state.new_zeros(())
        num_supervised = 0
        accuracy: dict[str, Tensor] = {}
        for depth in range(len(network.layers)):
            # Beyond the end, any token will do: nothing is supervised there.
            state, logits = network(depth, state, token_ids[:, depth].clamp(min=0))
            following = token_ids[:, depth + 1]
            labels = torch.where(following >= 0, draft_ids[following.clamp(min=0)], -1)
            loss_sum = loss_sum + torch.nn.functional.cross_entropy(
                logits.float(), labels, ignore_index=-1, reduction="sum"
            )
            num_supervised += int((labels >= 0).sum())
            if bool((following >= 0).any()):
                right = (logits.argmax(-1) == labels)[following >= 0]
                accuracy[f"accuracy_{depth + 1}"] = right.float().mean()
        return LossOutput(
            loss_sum=loss_sum,
            weight_sum=loss_sum.detach().new_tensor(float(num_supervised)),
            num_tokens=len(token_ids),
            metrics=accuracy,
        )

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Draft greedily from every anchor, feeding drafts back; what ends early is not right."""
        import torch

        network = _network(module)
        state, token_ids, anchors = batch["hidden"], batch["token_ids"], batch["num_anchors"]
        trace = torch.repeat_interleave(anchors)
        accepted = anchors.new_zeros(len(anchors), num_speculative_tokens)
        token, right = token_ids[:, 0], torch.ones_like(token_ids[:, 0], dtype=torch.bool)
        with torch.no_grad():
            for depth in range(min(num_speculative_tokens, len(network.layers))):
                state, logits = network(depth, state, token)
                token = network.target_ids[logits.argmax(-1)]
                right = right & (token == token_ids[:, depth + 1])
                accepted[:, depth] = torch.bincount(trace[right], minlength=len(anchors))
        return accepted, anchors

    def save(self, module: nn.Module, path: Path) -> None:
        """Write config.json and model.safetensors."""
        from aurora_mlp_speculator.network import save_network

        save_network(_network(module), path, self.target)

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read and check what `save` wrote."""
        from aurora_mlp_speculator.network import load_network

        return load_network(path, weights, self.target)

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return the proposer that the engine steps."""
        from aurora_mlp_speculator.drafter import MlpDrafter

        return MlpDrafter(
            _network(module),
            min_confidence=self.options.min_confidence,
            dtype=dtype,
            device=device,
        )


def _network(module: nn.Module) -> MlpNetwork:
    from aurora_mlp_speculator.network import MlpNetwork

    assert isinstance(module, MlpNetwork)
    return module
