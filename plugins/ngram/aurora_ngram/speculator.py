"""The n-gram speculator. Imports torch only inside the methods that need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from aurora_core.errors import ConfigError
from aurora_core.interfaces import Drafter, Options, Speculator
from aurora_core.records import Needs, TargetSpec, Trace
from aurora_ngram.config import NgramOptions

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from aurora_core.target.weights import TargetWeights


class NgramSpeculator(Speculator):
    """Drafts what followed the same tokens before: in the request's own text, and in answers that
    other requests got lately.

    Prompt lookup (Saxena 2023) and SuffixDecoding (Oliaro et al. 2024) in one: no weights, no
    features, nothing to train. It reads tokens alone, so that a batch of traces can still be
    replayed and a checkpoint names its target.
    """

    Config = NgramOptions
    trainable: ClassVar[bool] = False
    options: NgramOptions

    def __init__(self, options: Options, target: TargetSpec) -> None:
        super().__init__(options, target)
        self.topologies = frozenset({"chain" if self.options.num_branches == 1 else "tree"})

    @property
    def needs(self) -> Needs:
        """Return that nothing must be recorded but tokens."""
        return Needs()

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        """Return a module without weights."""
        from torch import nn

        return nn.Module()

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        """Stack the tokens of traces; see `aurora_ngram.replay`."""
        from aurora_ngram.replay import collate

        return collate(traces)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> NoReturn:
        """Refuse: `trainable` says that there is nothing to train.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "speculator 'ngram' has no weights and no loss: it drafts from text alone; choose "
            "another speculator to train one"
        )

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Replay drafting from each trace's own text, as chains."""
        from aurora_ngram.replay import acceptance

        return acceptance(
            self.options, batch, num_speculative_tokens, vocab_size=self.target.vocab_size
        )

    def save(self, module: nn.Module, path: Path) -> None:
        """Write for which target this drafts, and an empty model.safetensors."""
        from aurora_ngram import checkpoint

        checkpoint.save(path, self.target)

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        """Check what `save` wrote and return a module without weights."""
        from torch import nn

        from aurora_ngram import checkpoint

        checkpoint.check(path, self.target)
        return nn.Module()

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        """Return a drafter that has seen no text yet; it works on CPU wherever the target is."""
        from aurora_ngram.drafter import NgramDrafter

        return NgramDrafter(self.options, vocab_size=self.target.vocab_size)
