"""Aurora's section in SGLang's `/server_info`, and the one thing that `/set_internal_state` sets."""

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

SECTION = "aurora"
"""Key of the section in `internal_states[0]`."""
PROTOCOL = 1
"""Version of the section; the two halves must agree on it."""
AFTER_KEY = "aurora_requests_after"
"""Key in `/set_internal_state`: number of the last request that the controller knows of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """The section."""

    protocol: int
    missing_hooks: tuple[str, ...]
    """Places in SGLang that the recorder could not look into."""
    live_version: int
    checksum: str
    verification_rule: str
    num_faults: int
    last_fault: str
    memory_mib: float
    """Resident memory of the scheduler process."""
    sink: SinkStats
    finished: tuple[RequestStats, ...]
    """Since the number that was set last."""


def describe(
    recorder: Recorder, swap: DrafterSwap, *, missing: list[str], after: int
) -> dict[str, Any]:
    """Return the section as plain data."""
    report = EngineReport(
        protocol=PROTOCOL,
        missing_hooks=tuple(missing),
        live_version=swap.version,
        checksum=swap.checksum,
        verification_rule=recorder.rule,
        num_faults=recorder.num_faults,
        last_fault=recorder.last_fault,
        memory_mib=_resident_mib(),
        sink=recorder.sink_stats(),
        finished=tuple(recorder.finished_after(after)),
    )
    plain: dict[str, Any] = to_dict(report)
    return plain


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """A call of `/set_internal_state` that is meant for Aurora."""

    after: int

    @classmethod
    def read(cls, values: Mapping[str, float]) -> SequenceRequest | None:
        """Return the call if it is one, else None."""
        return cls(int(values[AFTER_KEY])) if AFTER_KEY in values else None

    def answer(self) -> Any:
        """Return SGLang's answer to a call that succeeded."""
        from sglang.srt.managers.io_struct import SetInternalStateReqOutput

        return SetInternalStateReqOutput(updated=True)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
