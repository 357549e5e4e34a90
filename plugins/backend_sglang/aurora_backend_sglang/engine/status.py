"""Aurora's section in SGLang's `/server_info`, and what `/set_internal_state` can say to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_core.records import RequestStats, SinkStats
from aurora_core.wire import to_dict

if TYPE_CHECKING:
    from aurora_backend_sglang.engine.drafter_swap import DrafterSwap
    from aurora_backend_sglang.engine.recorder import Recorder
    from aurora_backend_sglang.engine.settings import EngineSettings

SECTION = "aurora"
"""Key of the section in `internal_states[0]`."""
PROTOCOL = 2
"""Version of the section; the two halves must agree on it."""
REQUESTS_AFTER = "aurora_requests_after"
"""Key in `/set_internal_state`: number of the last request that the controller knows of."""
WITHOUT_DRAFTER = "aurora_without_drafter"
"""Key in `/set_internal_state`: 1 lets go of the drafter."""
CHECK_TARGET = "aurora_check_target"
"""Key in `/set_internal_state`: 1 has the target's weights hashed while the engine decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """How far hashing the target's weights beside decoding has come, and what it found."""

    possible: bool = False
    num_asked: int = 0
    num_done: int = 0
    """Of them; the rest is under way."""
    num_changed: int = 0
    """Tensors that are not what they were when the first look ended."""
    changed: tuple[str, ...] = ()
    """Names of some of these."""
    seconds: float = 0.0
    """That the last look took."""
    failure: str = ""
    """Of the last look; it found nothing then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """The section."""

    protocol: int
    missing_hooks: tuple[str, ...]
    """Places in SGLang that the recorder could not look into."""
    target_fingerprint: str
    versions_dir: str
    aux_layers: tuple[int, ...]
    num_speculative_tokens: int
    requests_without_drafts: str
    live_version: int
    checksum: str
    verification_rule: str
    algorithm: str
    """What drafts, in SGLang's word."""
    num_faults: int
    last_fault: str
    num_running: int
    num_waiting: int
    memory_mib: float
    """Resident memory of the scheduler process."""
    sink: SinkStats
    target: TargetState
    finished: tuple[RequestStats, ...]
    """Since the number that was set last."""


def describe(
    settings: EngineSettings,
    scheduler: Any,
    recorder: Recorder,
    swap: DrafterSwap,
    target: TargetState,
    *,
    missing: list[str],
    after: int,
) -> dict[str, Any]:
    """Return the section as plain data."""
    report = EngineReport(
        protocol=PROTOCOL,
        missing_hooks=tuple(missing),
        target_fingerprint=settings.target.fingerprint,
        versions_dir=settings.versions_dir,
        aux_layers=settings.needs.aux_layers,
        num_speculative_tokens=settings.num_speculative_tokens,
        requests_without_drafts=settings.requests_without_drafts,
        live_version=swap.version,
        checksum=swap.checksum,
        verification_rule=recorder.rule,
        algorithm=settings.algorithm,
        num_faults=recorder.num_faults,
        last_fault=recorder.last_fault,
        num_running=len(scheduler.running_batch.reqs),
        num_waiting=len(scheduler.waiting_queue),
        memory_mib=_resident_mib(),
        sink=recorder.sink_stats(),
        target=target,
        finished=tuple(recorder.finished_after(after)),
    )
    plain: dict[str, Any] = to_dict(report)
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall:
    """A call of `/set_internal_state` that is meant for Aurora."""

    requests_after: int | None
    without_drafter: bool
    check_target: bool

    @classmethod
    def read(cls, values: Mapping[str, float]) -> ControlCall | None:
        """Return the call if it is one, else None."""
        if not values.keys() & {REQUESTS_AFTER, WITHOUT_DRAFTER, CHECK_TARGET}:
            return None
        after = values.get(REQUESTS_AFTER)
        return cls(
            requests_after=None if after is None else int(after),
            without_drafter=bool(values.get(WITHOUT_DRAFTER, 0)),
            check_target=bool(values.get(CHECK_TARGET, 0)),
        )

    def answer(self) -> Any:
        """Return SGLang's answer to a call that succeeded."""
        from sglang.srt.managers.io_struct import SetInternalStateReqOutput

        return SetInternalStateReqOutput(updated=True)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
