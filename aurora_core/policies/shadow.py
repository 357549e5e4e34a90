"""A judge that has the candidate draft beside live requests and compares before it serves any."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from aurora_core.interfaces import Options
from aurora_core.policies.canary import CanaryOptions, CanarySwap
from aurora_core.records import DraftVersion


class ShadowOptions(Options):
    """How many requests a candidate is compared on, and what it must show."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    share: float = Field(0.25, gt=0, le=1)
    """Share of the requests that the candidate drafts beside, unused. Costs its drafting time."""
    min_requests: int = Field(8, ge=2)
    """Requests on either side before anything is decided."""
    max_requests: int = Field(100, ge=2)
    """Shadowed requests after which it is dropped if it is not surely better."""
    min_gain: float = Field(0.0, ge=0)
    """Gain in acceptance length over the live version that must be exceeded, as a share."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence with which it must be exceeded, over all looks together."""
    min_acceptance_length: float = Field(1.25, ge=1)
    """Acceptance length that must be exceeded with that confidence while no drafter is live; a
    held-out one below it is not tried at all."""


class ShadowSwap(CanarySwap):
    """Promotes a version that would surely have been accepted longer on live requests.

    Nobody is served by a version before it is promoted. The price is that its speed is not seen:
    the guard watches that once it serves.
    """

    Config = ShadowOptions
    needs_shadow = True
    trial_action = "shadow"
    _does, _done, _makes = "drafts beside", "drafted beside", "would make"

    def __init__(self, options: ShadowOptions) -> None:
        super().__init__(
            CanaryOptions.model_construct(**options.model_dump(), measure="acceptance_length")
        )

    def _compared(self, live: DraftVersion | None) -> tuple[str, float]:
        # Without a drafter every step makes one token: the ratio is the acceptance length itself.
        minimum = self.options.min_acceptance_length - 1
        return "acceptance_length", minimum if live is None else self.options.min_gain
