"""What an engine counts of one request, step by step, for its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from aurora_core.records import NO_DRAFTER, RequestStats


@dataclass(slots=True, kw_only=True)
class StepCounts:
    """Counts verification steps; a base of whatever follows a request through an engine."""

    first_token_at: float = 0.0
    """Unix seconds; 0 before the first token."""
    last_token_at: float = 0.0
    num_steps: int = 0
    """Steps without drafts included."""
    num_speculative_steps: int = 0
    num_drafted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)
    """Of the drafters that served it."""
    batch_sizes: int = 0
    """Sum over steps, for the mean."""

    def count(
        self, *, batch_size: int, num_drafted: int = 0, max_depth: int = 0, num_accepted: int = 0
    ) -> None:
        """Count a verification step.

        Args:
            batch_size: requests decoded together.
            num_drafted: draft tokens; 0 for a step without.
            max_depth: of the deepest one, from 1.
            num_accepted: of them, each a child of the one before.
        """
        self.num_steps += 1
        self.batch_sizes += batch_size
        if num_drafted:
            self.num_speculative_steps += 1
            self.num_drafted += num_drafted
            missing = max_depth - len(self.accepted_per_position)
            self.accepted_per_position += [0] * missing
            for position in range(num_accepted):
                self.accepted_per_position[position] += 1

    def request_stats(
        self,
        *,
        sequence: int,
        request_id: str,
        arrived: float,
        finished: float,
        num_prompt_tokens: int,
        num_output_tokens: int,
        finish_reason: str,
        tenant: str,
        route: str,
        lineage: str = "",
    ) -> RequestStats:
        """Return the statistics of the finished request.

        Args:
            sequence: number of the request; the other arguments are the fields of that name, and
                `arrived` is when it came, in Unix seconds.
        """
        return RequestStats(
            sequence=sequence,
            request_id=request_id,
            finished=finished,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_steps=self.num_steps,
            num_speculative_steps=self.num_speculative_steps,
            num_drafted=self.num_drafted,
            accepted_per_position=tuple(self.accepted_per_position),
            min_draft_version=min(self.versions, default=NO_DRAFTER),
            max_draft_version=max(self.versions, default=NO_DRAFTER),
            ttft_s=max((self.first_token_at or finished) - arrived, 0.0),
            decode_s=max(self.last_token_at - self.first_token_at, 0.0),
            finish_reason=finish_reason,
            tenant=tenant,
            route=route,
            batch_size=self.batch_sizes / self.num_steps if self.num_steps else 1.0,
            lineage=lineage,
        )
