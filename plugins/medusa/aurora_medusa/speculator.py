"""The Medusa speculator. Imports torch only inside the methods that need it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from aurora_core.interfaces import Drafter, LossOutput, Options, Speculator
from aurora_core.records import Needs, TargetSpec, Trace
from aurora_medusa.config import MedusaOptions

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights
    from aurora_medusa.model import MedusaNetwork
    from aurora_medusa.rank_accuracy import RankAccuracy

FEATURES = frozenset({"last_hidden_state", "target_logsumexp"})


class MedusaSpeculator(Speculator):
    """Medusa: heads that each look one token further ahead, from one hidden state."""

    Config = MedusaOptions
    formats: ClassVar[frozenset[str]] = frozenset({"module", "medusa"})
    options: MedusaOptions

    def __init__(self, options: Options, target: TargetSpec) -> None:
        super().__init__(options, target)
        is_chain = self.options.tree == "chain"
        self.topologies = frozenset({"chain"} if is_chain else {"chain", "tree"})
        self._accuracy: RankAccuracy | None = None

    @property
    def needs(self) -> Needs:
        """Return the features of committed positions; no layer but the last is read."""
        return Needs(features=FEATURES)

    @property
    def starts_trained(self) -> bool:
        """Whether published heads are what a new run starts from, and not cut to its traces."""
        is_whole = self.options.draft_vocab_size >= self.target.vocab_size
        return self.options.start_from is not None and is_whole

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Choose the draft vocabulary from the traces and return a new network.

        Raises:
            CheckpointError: `start_from` is not what it should be.
        """
        from aurora_core.learner.draft_vocabulary import choose_target_ids
        from aurora_medusa import published
        from aurora_medusa.model import MedusaNetwork, MedusaShape

        target_ids = choose_target_ids(
            traces,
            weights.lm_head,
            size=self.options.draft_vocab_size,
            vocab_size=weights.vocab_size,
        )
        if self.options.start_from is not None:
            return published.import_network(
                Path(self.options.start_from),
                weights.lm_head,
                target_ids,
                vocab_size=weights.vocab_size,
            )
        shape = MedusaShape(
            hidden_size=weights.hidden_size,
            vocab_size=weights.vocab_size,
            draft_vocab_size=len(target_ids),
            num_heads=self.options.num_heads,
            num_blocks=self.options.num_blocks,
            own_heads=self.options.own_heads,
        )
        return MedusaNetwork(shape, target_ids, weights.lm_head)

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Select the usable rows of the traces and stack them; see `aurora_medusa.collate`."""
        from aurora_medusa.collate import collate

        return collate(
            traces, self.target, max_trace_tokens=self.options.max_trace_tokens
        ).to_dict()

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return the loss of all heads at all committed positions."""
        from aurora_medusa.collate import Batch
        from aurora_medusa.training import compute_loss

        return compute_loss(_network(module), Batch.from_dict(batch), self.options)

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replay the chain of best tokens from every position whose whole draft can be judged."""
        from aurora_medusa.collate import Batch
        from aurora_medusa.training import replay

        return replay(_network(module), Batch.from_dict(batch), num_speculative_tokens)

    def save(self, module: nn.Module, path: Path) -> None:
        """Write the layout that vLLM's Medusa loads."""
        import torch

        from aurora_medusa import checkpoint

        checkpoint.save(
            _network(module),
            path,
            target=self.target,
            dtype=getattr(torch, self.options.export_dtype),
        )

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read and check what `save` wrote; its shape may differ from what the options say."""
        from aurora_medusa import checkpoint

        return checkpoint.load(path, weights, target=self.target)

    @classmethod
    def serving_command(
        cls, folder: Path, *, layout: str, target: str, num_speculative_tokens: int
    ) -> Sequence[str]:
        """Return the command line of a stock vLLM."""
        if layout != "medusa":
            return ()
        drafting = {
            "method": "medusa",
            "model": str(folder),
            "num_speculative_tokens": num_speculative_tokens,
        }
        return ("vllm", "serve", target, "--speculative-config", json.dumps(drafting))

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return the serving drafter of a network.

        Its tree starts from what the newest drafter of this speculator has measured by now: a new
        version resembles the one before more than it resembles the defaults.
        """
        from aurora_medusa.drafter import MedusaDrafter
        from aurora_medusa.rank_accuracy import RankAccuracy

        network = _network(module)
        newest = self._accuracy
        if newest is not None and newest.num_heads == network.shape.num_heads:
            self._accuracy = newest.copy()
        else:
            self._accuracy = RankAccuracy(network.shape.num_heads)
        return MedusaDrafter(
            network, options=self.options, accuracy=self._accuracy, dtype=dtype, device=device
        )


def _network(module: nn.Module) -> MedusaNetwork:
    from aurora_medusa.model import MedusaNetwork

    assert isinstance(module, MedusaNetwork)
    return module
