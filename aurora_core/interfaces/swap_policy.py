"""What decides whether new weights go live."""

from __future__ import annotations

from abc import ABC, abstractmethod

from aurora_core.interfaces.component import Component
from aurora_core.records import Evidence, Verdict


class SwapPolicy(Component, ABC):
    """Judges whether new weights go live, and when to go back. Pure: no I/O and no clock."""

    needs_routing: bool = False
    """Whether it sends a share of the requests to a candidate: a configuration with a backend that
    cannot is refused."""
    needs_shadow: bool = False
    """Whether it has a candidate draft in the shadow; refused likewise."""

    @abstractmethod
    def decide(self, evidence: Evidence) -> Verdict:
        """Judge a candidate. Equal evidence gives an equal verdict."""
