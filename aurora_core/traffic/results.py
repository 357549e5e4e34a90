"""What a replay found out, request by request and summed up."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aurora_core import wire
from aurora_core.errors import ConfigError
from aurora_core.traffic.completion import Completion, RequestFailed, SpeculationStats
from aurora_core.traffic.distribution import Distribution, acceptance_length, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One request of a replay. Times are in seconds and mean what they do in `Completion`."""

    index: int
    """Position of the prompt in its source."""
    domain: str
    ok: bool
    error: str = ""
    """`kind: what happened`; empty for a request that was answered."""
    finish_reason: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    ttft_s: float | None = None
    decode_s: float | None = None
    otps: float | None = None
    latency_s: float | None = None
    longest_gap_s: float | None = None
    num_retries: int = 0
    aurora: SpeculationStats | None = None
    """The engine's own statistics; None from other servers."""
    token_ids: tuple[int, ...] | None = None
    """Output tokens; None from servers that do not report them."""
    text: str = ""

    @classmethod
    def answered(cls, index: int, domain: str, completion: Completion) -> Self:
        """Return the result of a complete answer."""
        return cls(
            index=index,
            domain=domain,
            ok=True,
            finish_reason=completion.finish_reason,
            num_prompt_tokens=completion.num_prompt_tokens,
            num_output_tokens=completion.num_output_tokens,
            ttft_s=completion.ttft_s,
            decode_s=completion.decode_s,
            otps=completion.otps,
            latency_s=completion.latency_s,
            longest_gap_s=completion.longest_gap_s,
            num_retries=completion.num_retries,
            aurora=completion.speculation,
            token_ids=completion.token_ids,
            text=completion.text,
        )

    @classmethod
    def failed(cls, index: int, domain: str, reason: RequestFailed) -> Self:
        """Return the result of a request that failed."""
        return cls(index=index, domain=domain, ok=False, error=str(reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """A whole replay."""

    requests: int
    failed: int
    failures: Mapping[str, int]
    """Kind of failure -> requests."""
    retries: int
    num_prompt_tokens: int
    num_output_tokens: int
    wall_s: float | None
    """From the first request sent to the last one ended."""
    throughput: float | None
    """Output tokens of all requests per second of `wall_s`."""
    otps: Distribution
    ttft_s: Distribution
    latency_s: Distribution
    longest_gap_s: Distribution
    acceptance_length: float | None
    """None from servers that do not report speculation."""
    domains: Mapping[str, DomainSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSummary:
    """The requests of one domain."""

    requests: int
    failed: int
    otps: Distribution
    acceptance_length: float | None


def summarise(results: Sequence[ReplayResult], *, wall_s: float | None = None) -> ReplaySummary:
    """Sum up results; figures leave failed requests out."""
    good = [result for result in results if result.ok]
    num_output_tokens = sum(result.num_output_tokens for result in good)
    kinds = Counter(result.error.partition(":")[0] for result in results if not result.ok)
    return ReplaySummary(
        requests=len(results),
        failed=len(results) - len(good),
        failures=dict(kinds.most_common()),
        retries=sum(result.num_retries for result in good),
        num_prompt_tokens=sum(result.num_prompt_tokens for result in good),
        num_output_tokens=num_output_tokens,
        wall_s=wall_s,
        throughput=num_output_tokens / wall_s if wall_s else None,
        otps=describe(result.otps for result in good),
        ttft_s=describe(result.ttft_s for result in good),
        latency_s=describe(result.latency_s for result in good),
        longest_gap_s=describe(result.longest_gap_s for result in good),
        acceptance_length=acceptance_length(result.aurora for result in good),
        domains={
            domain: _summarise_domain([one for one in results if one.domain == domain])
            for domain in dict.fromkeys(result.domain for result in results)
        },
    )


def _summarise_domain(results: Sequence[ReplayResult]) -> DomainSummary:
    good = [result for result in results if result.ok]
    return DomainSummary(
        requests=len(results),
        failed=len(results) - len(good),
        otps=describe(result.otps for result in good),
        acceptance_length=acceptance_length(result.aurora for result in good),
    )


def describe_result(result: ReplayResult, *, with_text: bool = False) -> dict[str, object]:
    """Return a result as plain data; the answer itself, users' text, only on demand."""
    plain: dict[str, object] = wire.to_dict(result)
    if not with_text:
        del plain["text"], plain["token_ids"]
    return plain


def check_writable(path: Path) -> None:
    """Find out before a long measurement whether its file can be written.

    Raises:
        ConfigError: it cannot.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name a file for the results")
    if not folder.is_dir():
        raise ConfigError(f"the folder {str(folder)!r} for the results does not exist; create it")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"the folder {str(folder)!r} for the results is not writable")


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a results file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps(document, indent=1, allow_nan=False)
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.absolute().parent, prefix=path.name, delete=False
        ) as file:
            temporary = file.name
            file.write(text + "\n")
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise ConfigError(
            f"the results cannot be written to {str(path)!r}: {error.strerror}"
        ) from error
