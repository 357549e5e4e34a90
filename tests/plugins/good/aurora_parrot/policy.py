from pydantic import Field

from aurora_core.interfaces import Options, SwapPolicy
from aurora_core.records import Evidence, Verdict


class MoodyOptions(Options):
    mood: float = Field(0.5, ge=0, le=1)
    path: str = ""


class Moody(SwapPolicy):
    """Holds everything."""

    Config = MoodyOptions

    def decide(self, evidence: Evidence) -> Verdict:
        return Verdict(action="hold", reason="not in the mood")


class Impostor:
    """No swap policy at all."""


class Unfinished(SwapPolicy):
    """Forgot to decide."""
