"""What an engine holds of one lineage: its drafters, how deep they draft, where traces go."""

from __future__ import annotations

from dataclasses import dataclass

from aurora_backend_torch.residents import Residents
from aurora_core.interfaces import TraceWriter
from aurora_core.records import Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLineage:
    """One of several kinds of drafters, each with versions of its own."""

    residents: Residents
    writer: TraceWriter | None
    """None records nothing."""
    needs: Needs
    """Features that its traces hold; the engine may capture more, for others."""
    num_speculative_tokens: int
    """Depth of a proposal, at most."""

    @property
    def reads_traces(self) -> bool:
        """Whether anybody wants to see a finished request."""
        return self.writer is not None or self.residents.learn_by_observing
