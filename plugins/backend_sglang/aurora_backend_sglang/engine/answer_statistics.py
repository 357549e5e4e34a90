"""Statistics of finished requests, on their way from the scheduler into the answers.

scheduler    Recorder -> the field        with the last tokens of a request, SGLang's own channel
HTTP server  AnswerStatistics.remember    by the request's id, until its answer is written
             AnswerStatistics.take
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "aurora"
"""Key of the statistics in a request's `meta_info`, which `/generate` shows as well."""

_NUM_REMEMBERED = 4096
"""Answers that nobody asked the statistics of are forgotten after so many others."""


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
