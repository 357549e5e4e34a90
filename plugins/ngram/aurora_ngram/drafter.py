"""The serving drafter: an index of each running request's text, and one of recent answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import Trace
from aurora_ngram.config import NgramOptions
from aurora_ngram.continuation import Limits, Places, continue_text
from aurora_ngram.text_index import BYTES_PER_TOKEN, TextIndex


@dataclass(slots=True)
class _Running:
    """A request that is being served."""

    base: int
    """Position of the first token that is known."""
    text: TextIndex


class NgramDrafter(Drafter):
    """Drafts what followed the latest tokens of a request earlier, in its own text and in others'.

    A step costs time for the new tokens and for `max_matches` places, whatever the length of the
    text and the traffic.
    """

    def __init__(self, options: NgramOptions, *, vocab_size: int) -> None:
        """Start without any text.

        Args:
            options: of the speculator.
            vocab_size: the target's; other tokens are never drafted.
        """
        self._options = options
        self._vocab_size = vocab_size
        self._running: dict[str, _Running] = {}
        self._traffic = self._new_text(options.traffic_bytes // BYTES_PER_TOKEN)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Take in the new tokens and draft for each request by itself.

        A draft ends at the limits of its request, where the probability of the whole falls below
        `min_confidence`, and where no text goes on.
        """
        return [self._propose(request) for request in requests]

    def forget(self, request_id: str) -> None:
        """Drop a request's text."""
        self._running.pop(request_id, None)

    def observe(self, trace: Trace) -> None:
        """Keep the answer of a finished request, and as much before it as is ever compared.

        Does nothing without `share_traffic`, nor with tokens that this target does not have.
        """
        if not self._options.share_traffic:
            return
        begin = max(trace.prompt_len - self._options.max_ngram, 0)
        token_ids = trace.token_ids[begin:].tolist()
        if token_ids and min(token_ids) >= 0 and max(token_ids) < self._vocab_size:
            self._traffic.add_text(token_ids)

    def _propose(self, request: DraftRequest) -> Proposal:
        text = self._take_in(request)
        limits = Limits(
            max_depth=request.num_speculative_tokens,
            max_nodes=request.max_nodes,
            num_branches=self._options.num_branches,
            min_confidence=self._options.min_confidence,
        )
        return continue_text(self._places(text), limits)

    def _take_in(self, request: DraftRequest) -> TextIndex:
        token_ids = request.token_ids.tolist()
        running = self._running.get(request.request_id)
        if running is not None and running.base + running.text.end - 1 == request.start:
            # The first token is the root of the step before.
            running.text.append(token_ids[1:])
            return running.text
        # Unknown, or out of step with the target: begin with the window given.
        running = _Running(request.start, self._new_text())
        running.text.append(token_ids)
        self._running[request.request_id] = running
        return running.text

    def _places(self, text: TextIndex) -> Places:
        key, options = text.key, self._options
        places = Places([], [], [])
        if key is None:
            return places
        context = text.last(options.max_ngram)
        for where, found in (
            (text, text.own_matches(options.max_matches)),
            (self._traffic, self._traffic.matches(key, context, options.max_matches)),
        ):
            places.texts.extend([where] * len(found.lengths))
            places.positions.extend(found.following)
            places.weights.extend(2.0 ** (length - options.min_ngram) for length in found.lengths)
        return places

    def _new_text(self, max_tokens: int | None = None) -> TextIndex:
        return TextIndex(
            min_ngram=self._options.min_ngram,
            max_ngram=self._options.max_ngram,
            vocab_size=self._vocab_size,
            max_tokens=max_tokens,
        )
