"""From finished requests to the figures that a swap policy compares versions by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from aurora_core.acceptance import acceptance_length, per_position, sum_per_position
from aurora_core.confidence import sample_of
from aurora_core.records import NO_DRAFTER, RequestStats
from aurora_core.serving_figures import ServingStats, TrafficSlice

Key = TypeVar("Key", bound=Hashable)


def serving_stats(version: int, requests: Sequence[RequestStats]) -> ServingStats:
    """Return the figures of one version over requests that it alone served."""
    accepted = sum_per_position(request.accepted_per_position for request in requests)
    num_steps = sum(request.num_steps for request in requests)
    by_batch_size = _group(requests, lambda request: bucket(request.batch_size))
    by_label = _group(requests, lambda request: (request.tenant, request.route))
    return ServingStats(
        version=version,
        num_requests=len(requests),
        num_output_tokens=sum(request.num_output_tokens for request in requests),
        acceptance_length=acceptance_length_of(requests),
        otps=mean_otps(requests),
        acceptance_per_position=per_position(accepted, num_steps),
        step_s=_step_s(requests),
        by_batch_size=tuple(
            traffic_slice(some, batch_size=size) for size, some in sorted(by_batch_size.items())
        ),
        by_label=tuple(
            traffic_slice(some, tenant=tenant, route=route)
            for (tenant, route), some in sorted(by_label.items())
        ),
    )


def traffic_slice(
    requests: Sequence[RequestStats], *, batch_size: int = 0, tenant: str = "", route: str = ""
) -> TrafficSlice:
    """Return the figures of a part of the traffic, with their spread over requests."""
    return TrafficSlice(
        length=sample_of([length_of(one) for one in requests if one.num_steps]),
        otps=sample_of([speed for one in requests if (speed := otps(one)) is not None]),
        step_s=_step_s(requests),
        batch_size=batch_size,
        tenant=tenant,
        route=route,
    )


def bucket(batch_size: float) -> int:
    """Return the upper edge of a batch size's bucket: 1, 2, 4, 8 and so on."""
    edge = 1
    while edge < batch_size:
        edge *= 2
    return edge


def length_of(request: RequestStats) -> float:
    """Return the tokens per verification step of one request."""
    return acceptance_length(sum(request.accepted_per_position), request.num_steps)


def version_of(request: RequestStats) -> int | None:
    """Return the version that served a request, None when it saw a swap.

    Engines report plain steps as `NO_DRAFTER` even while a drafter is live, for example where no
    draft fits before the token limit. Such a request belongs to its drafter if most of its steps
    carried drafts.
    """
    oldest, newest = request.min_draft_version, request.max_draft_version
    if oldest == newest:
        return newest
    if oldest == NO_DRAFTER and 2 * request.num_speculative_steps > request.num_steps:
        return newest
    return None


def as_shadowed(request: RequestStats) -> RequestStats:
    """Return a request as if the drafter in its shadow had served it, without any speed.

    Raises:
        ValueError: no drafter was in its shadow.
    """
    shadow = request.shadow
    if shadow is None:
        raise ValueError(f"no drafter was in the shadow of request {request.request_id}")
    return replace(
        request,
        num_steps=shadow.num_steps,
        num_speculative_steps=shadow.num_steps,
        num_drafted=shadow.num_drafted,
        accepted_per_position=shadow.accepted_per_position,
        min_draft_version=shadow.version,
        max_draft_version=shadow.version,
        decode_s=0.0,
        shadow=None,
    )


def is_live(request: RequestStats, live_version: int) -> bool:
    """Return whether a request was served by whatever was live.

    The others are losslessness comparisons, the plain half of a measurement and whatever else
    asked for no speculation: they say nothing about the live drafter.

    Args:
        request: the finished request.
        live_version: version that was live then, `NO_DRAFTER` for none.
    """
    return request.max_draft_version != NO_DRAFTER or live_version == NO_DRAFTER


def acceptance_length_of(requests: Iterable[RequestStats]) -> float:
    """Return the acceptance length over all steps of some requests."""
    counts = [(sum(one.accepted_per_position), one.num_steps) for one in requests]
    return acceptance_length(sum(a for a, _ in counts), sum(steps for _, steps in counts))


def otps(request: RequestStats) -> float | None:
    """Return output tokens per second after the first token, None for too short an answer."""
    if request.num_output_tokens < 2 or request.decode_s <= 0:
        return None
    return (request.num_output_tokens - 1) / request.decode_s


def mean_otps(requests: Iterable[RequestStats]) -> float:
    """Return the mean over requests of their output tokens per second, 0.0 without any."""
    values = [value for request in requests if (value := otps(request)) is not None]
    return fmean(values) if values else 0.0


def _step_s(requests: Sequence[RequestStats]) -> float:
    timed = [one for one in requests if one.decode_s > 0 and one.num_steps]
    num_steps = sum(one.num_steps for one in timed)
    return sum(one.decode_s for one in timed) / num_steps if num_steps else 0.0


def _group(
    requests: Iterable[RequestStats], key: Callable[[RequestStats], Key]
) -> dict[Key, list[RequestStats]]:
    groups: dict[Key, list[RequestStats]] = defaultdict(list)
    for request in requests:
        groups[key(request)].append(request)
    return groups
