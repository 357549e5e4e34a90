"""One request to a made-up target and drafter: equal requests get equal tokens with any drafter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aurora_core.records import NO_DRAFTER, RequestStats

_SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """What was answered, and how."""

    token_ids: list[int]
    """Codes of lowercase letters."""
    finish_reason: Literal["stop", "length"]
    accepted: list[int]
    """[number of steps] Accepted drafts of each."""
    version: int
    """Drafter of all of its steps, `NO_DRAFTER` without one."""
    depth: int
    """Drafts of each step."""

    @property
    def is_speculative(self) -> bool:
        """Whether anything was drafted."""
        return self.version != NO_DRAFTER

    def statistics(self, **known: Any) -> RequestStats:
        """Return the counts of the request.

        Args:
            known: the remaining fields of `RequestStats`: what only its engine can tell.
        """
        num_steps = len(self.accepted)
        return RequestStats(
            num_output_tokens=len(self.token_ids),
            num_steps=num_steps,
            num_speculative_steps=num_steps if self.is_speculative else 0,
            num_drafted=num_steps * self.depth if self.is_speculative else 0,
            accepted_per_position=per_position(self.accepted, self.depth),
            min_draft_version=self.version,
            max_draft_version=self.version,
            finish_reason=self.finish_reason,
            **known,
        )


def simulate_request(
    body: Mapping[str, Any],
    prompt: str,
    *,
    version: int,
    depth: int,
    rate: float,
    max_answer_tokens: int = 24,
    is_lossy: bool = False,
) -> SimulatedRequest:
    """Answer a request.

    Args:
        body: of the request; `max_tokens`, `temperature` and `seed` count.
        prompt: its text.
        version: that drafts, `NO_DRAFTER` for none.
        depth: of a step's drafts.
        rate: chance that the next draft of a step is accepted; without a drafter none is.
        max_answer_tokens: by which answers differ in length.
        is_lossy: whether the drafter changes the answer, as none may.
    """
    wanted = _SHORTEST + draw(prompt, "length") % max_answer_tokens
    limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
    seed = f"{body.get('temperature', 0)}/{body.get('seed', 0)}"
    if is_lossy:
        seed += f"/{version}"
    num_tokens = min(wanted, limit)
    return SimulatedRequest(
        token_ids=[97 + draw(prompt, f"{seed}/{index}") % 26 for index in range(num_tokens)],
        finish_reason="stop" if wanted <= limit else "length",
        accepted=simulate_steps(
            prompt, version=version, depth=depth, rate=rate, num_tokens=num_tokens
        ),
        version=version,
        depth=depth,
    )


def per_position(accepted: Sequence[int], depth: int) -> tuple[int, ...]:
    """Return [depth] in how many steps each draft position was accepted."""
    return tuple(sum(taken > position for taken in accepted) for position in range(depth))


def simulate_steps(
    prompt: str, *, version: int, depth: int, rate: float, num_tokens: int
) -> list[int]:
    """Return how many drafts each step accepts; the first token comes with the prompt.

    Args:
        prompt: of the request.
        version: that drafts, `NO_DRAFTER` for none.
        depth: of a step's drafts.
        rate: chance that the next draft of a step is accepted; without a drafter none is.
        num_tokens: answered.
    """
    if version == NO_DRAFTER:
        rate = 0.0
    accepted: list[int] = []
    done = 1
    while done < num_tokens:
        taken = 0
        while taken < min(depth, num_tokens - done - 1):
            if draw(prompt, f"{version}/{done}/{taken}") % 1000 >= rate * 1000:
                break
            taken += 1
        accepted.append(taken)
        done += taken + 1
    return accepted


def draw(*parts: str) -> int:
    """Return a number below 2^64 that looks random and follows from its arguments alone."""
    digest = hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
