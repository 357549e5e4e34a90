"""What is sent: the same prompts in the same order to every arm, and in between references.

    ordered   domain after domain, as a shift of traffic
    mixed     all domains in shuffled rounds

A reference is a prompt of the stream, asked once more without speculation and without a trace: how
fast the machine is just then, whatever else it has to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from aurora_core.traffic.driver import ReplaySettings
from aurora_core.traffic.endpoint import RequestSettings
from aurora_core.traffic.prompts import Prompt, generate

StreamName = Literal["ordered", "mixed"]
STREAMS: tuple[StreamName, ...] = ("ordered", "mixed")

REFERENCE = "without speculation"
"""Domain of a reference."""


def stream_prompts(
    name: StreamName, domains: Sequence[str], *, requests_per_domain: int, seed: int
) -> list[Prompt]:
    """Return the prompts of a stream, the same ones in either order of the domains.

    Raises:
        ConfigError: no domain, or one that does not exist.
    """
    count = requests_per_domain * len(domains)
    return list(generate(domains, order=name, seed=seed, num_prompts=count))


def first_prompts(
    domain: str, *, num_prompts: int, requests_per_domain: int, seed: int
) -> list[Prompt]:
    """Return prompts to pretrain on: of the first domain, and none of the streams' own.

    Raises:
        ConfigError: there is no such domain.
    """
    every = generate([domain], seed=seed, num_prompts=requests_per_domain + num_prompts)
    return list(islice(every, requests_per_domain, None))


def with_references(prompts: Sequence[Prompt], every: int) -> list[Prompt]:
    """Return the prompts with a reference after each `every`th, a repetition of it; 0: none."""
    sent: list[Prompt] = []
    for number, prompt in enumerate(prompts, 1):
        sent.append(prompt)
        if every and number % every == 0:
            sent.append(Prompt(REFERENCE, prompt.text, prompt.messages))
    return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(ReplaySettings):
    """As of a replay, and references that no drafter touches."""

    def for_request(self, index: int, prompt: Prompt) -> RequestSettings:
        """Return the settings of one request."""
        if prompt.domain == REFERENCE:
            return RequestSettings(max_tokens=self.max_tokens, drafter="none", record=False)
        # Two arguments: a dataclass with slots is another class than the one in the closure.
        return super(StreamSettings, self).for_request(index, prompt)
