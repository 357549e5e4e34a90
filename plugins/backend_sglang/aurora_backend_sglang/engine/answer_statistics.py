"""Statistics of finished requests, on their way from the scheduler into the answers.

scheduler    Recorder -> field_of         with the last tokens of a request, SGLang's own channel
HTTP server  AnswerStatistics.remember    by the request's id, until its answer is written
             AnswerStatistics.take
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aurora_core.records import RequestStats

KEY = "aurora"
"""Key of the statistics in a request's `meta_info`, which `/generate` shows as well."""

_NUM_REMEMBERED = 4096
"""Answers that nobody asked the statistics of are forgotten after so many others."""


def field_of(stats: RequestStats) -> dict[str, Any]:
    """Return the `aurora` field of a response.

    `acceptance_length` is 1 + accepted / steps over all steps of the request, plain ones included;
    `otps` is the output tokens after the first per second of decoding, None without any. Times are
    the scheduler's own: they hold neither network nor detokenizing.
    """
    num_accepted = sum(stats.accepted_per_position)
    num_later = stats.num_output_tokens - 1
    return {
        "request_id": stats.request_id,
        "num_steps": stats.num_steps,
        "num_speculative_steps": stats.num_speculative_steps,
        "num_drafted": stats.num_drafted,
        "accepted_per_position": list(stats.accepted_per_position),
        "acceptance_length": 1 + num_accepted / stats.num_steps if stats.num_steps else 1.0,
        "min_draft_version": stats.min_draft_version,
        "max_draft_version": stats.max_draft_version,
        "ttft_s": stats.ttft_s,
        "decode_s": stats.decode_s,
        "otps": num_later / stats.decode_s if num_later > 0 and stats.decode_s > 0 else None,
    }


class AnswerStatistics:
    """Fields of answers that are being written. Used from the HTTP server's event loop only."""

    def __init__(self) -> None:
        self._fields: dict[str, Mapping[str, Any]] = {}

    def remember(self, meta_info: Mapping[str, Any]) -> None:
        """Take in what SGLang says of a request; most of it says nothing yet.

        Args:
            meta_info: SGLang's, with a list of one field under `KEY` once the request has ended.
        """
        found = meta_info.get(KEY)
        if not found:
            return
        self._fields[str(meta_info["id"])] = found[-1]
        if len(self._fields) > _NUM_REMEMBERED:
            del self._fields[next(iter(self._fields))]

    def take(self, request_id: str) -> Mapping[str, Any] | None:
        """Return the field of a finished request, once; None if there is none."""
        return self._fields.pop(request_id, None)
