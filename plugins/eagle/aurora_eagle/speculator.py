"""The EAGLE-3 speculator. Imports torch only inside the methods that need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from aurora_core.interfaces import Drafter, LossOutput, Options, Speculator
from aurora_core.records import Needs, TargetSpec, Trace
from aurora_eagle.config import Eagle3Options, choose_aux_layers

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights

INPUTS = frozenset({"aux_hidden_states"})
TEACHER = frozenset({"last_hidden_state", "target_logsumexp"})


class Eagle3Speculator(Speculator):
    """EAGLE-3: drafts with one decoder layer that reads hidden states of three target layers.

    With `tree_width` above 1 the drafts of a step form a dynamic tree, as in EAGLE-2.
    """

    Config = Eagle3Options
    formats: ClassVar[frozenset[str]] = frozenset({"module", "eagle3"})
    export_formats: ClassVar[frozenset[str]] = frozenset({"sglang", "speculators"})
    options: Eagle3Options

    def __init__(self, options: Options, target: TargetSpec) -> None:
        super().__init__(options, target)
        self._aux_layers = choose_aux_layers(self.options, target)
        self.topologies = frozenset({"tree" if self.options.tree_width > 1 else "chain"})

    @property
    def needs(self) -> Needs:
        """Return what a drafter reads and what the objective learns from."""
        return Needs(
            features=INPUTS | TEACHER if self.options.uses_teacher else INPUTS,
            aux_layers=self._aux_layers,
            branch_rows=self.options.uses_branches,
        )

    @property
    def starts_trained(self) -> bool:
        """Whether a published drafter is what a new run starts from."""
        return self.options.start_from is not None

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return the published drafter to start from, or a new one for the traces' vocabulary.

        Raises:
            CheckpointError: `start_from` is not what it should be.
        """
        if self.options.start_from is not None:
            from aurora_eagle import published

            return published.import_network(
                Path(self.options.start_from),
                weights,
                target=self.target,
                aux_layers=self._aux_layers,
                convention=self.options.start_from_layers,
            )
        from aurora_core.learner.draft_vocabulary import choose_target_ids
        from aurora_eagle import initialise
        from aurora_eagle.model import Eagle3Network

        target_ids = choose_target_ids(
            traces,
            weights.lm_head,
            size=self.options.draft_vocab_size,
            vocab_size=weights.vocab_size,
        )
        shape = initialise.draft_shape(
            weights, draft_vocab_size=len(target_ids), num_aux_layers=len(self._aux_layers)
        )
        network = Eagle3Network(shape, target_ids, weights.embed_tokens, weights.lm_head)
        initialise.initialise(network, weights, from_target=self.options.initialise_from_target)
        return network

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Select the usable rows of the traces and stack them; see `aurora_eagle.collate`."""
        from aurora_eagle.collate import collate
        from aurora_eagle.selection import Wanted

        options = self.options
        return collate(
            traces,
            self.target,
            aux_layers=self._aux_layers,
            max_trace_tokens=options.max_trace_tokens,
            wanted=Wanted(
                teacher=options.uses_teacher,
                branch_depth=options.training_steps - 1 if options.uses_branches else 0,
                max_branch_staleness=options.max_branch_staleness,
                refused=options.objective == "unlikelihood",
            ),
        ).to_dict()

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        """Return the loss of `training_steps` unrolled draft positions."""
        from aurora_eagle.collate import Batch
        from aurora_eagle.training import compute_loss

        return compute_loss(_network(module), Batch.from_dict(batch), self.options)

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replay greedy drafting from every position whose whole draft can be judged."""
        from aurora_eagle.collate import Batch
        from aurora_eagle.training import replay

        return replay(_network(module), Batch.from_dict(batch), num_speculative_tokens)

    def save(self, module: nn.Module, path: Path) -> None:
        """Write the native EAGLE-3 layout."""
        import torch

        from aurora_eagle import checkpoint

        checkpoint.save(
            _network(module),
            path,
            target=self.target,
            aux_layers=self._aux_layers,
            dtype=getattr(torch, self.options.export_dtype),
        )

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Read and check what `save` wrote."""
        from aurora_eagle import checkpoint

        return checkpoint.load(path, weights, target=self.target, aux_layers=self._aux_layers)

    def export(
        self, checkpoint: Path, folder: Path, *, layout: str, num_speculative_tokens: int
    ) -> None:
        """Write what `save` wrote in SGLang's convention, or in the layout of `speculators`."""
        from aurora_eagle import exports

        exports.export(
            checkpoint,
            folder,
            target=self.target,
            layout=layout,
            num_speculative_tokens=num_speculative_tokens,
        )

    @classmethod
    def serving_command(
        cls, folder: Path, *, layout: str, target: str, num_speculative_tokens: int
    ) -> Sequence[str]:
        """Return the command line of a stock SGLang or vLLM."""
        from aurora_eagle import exports

        return exports.serving_command(
            folder, layout=layout, target=target, num_speculative_tokens=num_speculative_tokens
        )

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return the serving drafter of a network."""
        from aurora_eagle.drafter import Eagle3Drafter

        return Eagle3Drafter(_network(module), self.options, dtype=dtype, device=device)


def _network(module: nn.Module):  # type: ignore[no-untyped-def]
    from aurora_eagle.model import Eagle3Network

    assert isinstance(module, Eagle3Network)
    return module
