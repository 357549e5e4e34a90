"""One step of the engine: draft, one pass of the target over everybody's rows, verify, record.

A pass mixes prompt chunks and verification rows of all running requests. Row-invariant kernels make
each request's output independent of what shares the pass with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_backend_torch.active_request import ActiveRequest
from aurora_backend_torch.generation import TokenLogprob
from aurora_backend_torch.model import TargetModel
from aurora_backend_torch.residents import Residents
from aurora_backend_torch.sampling import choose
from aurora_core.interfaces import DraftRequest, Proposal
from aurora_core.kernels import argmax_logsumexp
from aurora_core.records import NO_DRAFTER, Needs

logger = logging.getLogger(__name__)

REFILL_ROWS = 64
"""Rows that a drafter reads of a request that was running before the drafter was live."""

REFILLS_PER_STEP = 2
"""Requests that take up a new drafter in one step, so that a swap never stalls decoding."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step committed for one request."""

    token_ids: list[int]
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows [first, first + count) of a pass that belong to one request."""

    active: ActiveRequest
    first: int
    count: int
    start: int
    """Position of the first row."""


class Stepper:
    """Advances running requests. Used from the engine thread only."""

    def __init__(
        self,
        model: TargetModel,
        residents: Residents,
        needs: Needs,
        *,
        num_speculative_tokens: int,
        max_prefill_rows: int,
        max_verification_rows: int | None,
    ) -> None:
        """
        Args:
            model: the target.
            residents: the drafters.
            needs: features to keep for drafters and traces.
            num_speculative_tokens: depth of a proposal, at most.
            max_prefill_rows: prompt rows in one pass.
            max_verification_rows: rows of one pass that verify drafts, over all requests; None is
                no limit.
        """
        self._model, self._residents, self._needs = model, residents, needs
        self._depth = num_speculative_tokens
        self._max_prefill_rows = max_prefill_rows
        self._max_verification_rows = max_verification_rows

    def step(self, running: Sequence[ActiveRequest]) -> list[tuple[ActiveRequest, StepResult]]:
        """Advance every running request by a chunk of its prompt or a verification step.

        Returns:
            the requests that committed tokens, with those tokens; stop tokens and `max_tokens` are
            observed.
        """
        started = time.perf_counter()
        self._draft([active for active in running if not active.is_prefilling])
        drafted = time.perf_counter()
        spans = self._plan(running)
        if not spans:
            return []
        token_ids = [token for span in spans for token in _row_tokens(span)]
        positions = [span.start + offset for span in spans for offset in range(span.count)]
        owners = [index for index, span in enumerate(spans) for _ in range(span.count)]
        places = torch.tensor([token_ids, positions, owners], device=self._model.device)
        rows = self._model.forward(
            places[0],
            places[1],
            places[2],
            [span.active.cache for span in spans],
            self._needs.aux_layers,
        )
        wanted = [row for span in spans for row in _rows_with_logits(span)]
        logits = self._model.logits(rows.last_hidden[torch.tensor(wanted, dtype=torch.int64)])
        best, logsumexp = argmax_logsumexp(logits)
        at = {row: index for index, row in enumerate(wanted)}
        captured = {
            "aux_hidden_states": rows.aux_hidden,
            "last_hidden_state": rows.last_hidden,
            # Prompt rows teach nothing, so their logits are never computed.
            "target_logsumexp": torch.full((len(token_ids),), float("nan")).index_copy(
                0, torch.tensor(wanted, dtype=torch.int64), logsumexp.float().cpu()
            ),
        }
        captured = {name: captured[name] for name in self._needs.features}
        passed = time.perf_counter()
        times = ((drafted - started) * 1e3, (passed - drafted) * 1e3)
        verifying = sum(not span.active.is_prefilling for span in spans)
        best_ids = best.tolist()
        results = []
        for span in spans:
            mine = {name: rows_[span.first : span.first + span.count]
                    for name, rows_ in captured.items()}  # fmt: skip
            index = at.get(span.first) if not span.active.is_prefilling else None
            if index is None:
                result = self._finish_chunk(span, mine, at, logits, best_ids, logsumexp)
            else:
                result = self._verify(
                    span,
                    mine,
                    logits[index:],
                    best_ids[index:],
                    logsumexp[index:],
                    times,
                    verifying,
                )
            if result is not None:
                results.append((span.active, result))
        return results

    def _plan(self, running: Sequence[ActiveRequest]) -> list[_Span]:
        """Lay out the rows of a pass: all verification rows, then prompt rows up to the limit."""
        spans: list[_Span] = []
        first, left = 0, self._max_prefill_rows
        for active in sorted(running, key=lambda active: active.is_prefilling):
            if active.is_prefilling:
                count = min(active.prompt_len - active.num_computed, left)
                left -= count
                start = active.num_computed
            else:
                count = 1 + (len(active.proposal.token_ids) if active.proposal else 0)
                start = len(active.token_ids) - 1
            if count:
                spans.append(_Span(active, first, count, start))
                first += count
        return spans

    def _draft(self, decoding: Sequence[ActiveRequest]) -> None:
        """Ask each request's drafter for a proposal."""
        by_version: dict[int, list[ActiveRequest]] = {}
        refills = 0
        depth = self._depth
        if self._max_verification_rows is not None and decoding:
            depth = min(depth, self._max_verification_rows // len(decoding) - 1)
        for active in decoding:
            active.proposal, active.step_version = None, NO_DRAFTER
            version = self._version_for(active)
            if version == NO_DRAFTER or active.window is None or active.num_left < 2 or depth < 1:
                continue
            if active.draft_version != version and active.num_steps:
                if refills == REFILLS_PER_STEP:
                    continue
                refills += 1
            by_version.setdefault(version, []).append(active)
        for version, requests in by_version.items():
            self._propose(version, requests, depth)

    def _version_for(self, active: ActiveRequest) -> int:
        chosen = active.request.drafter
        if chosen == "none":
            return NO_DRAFTER
        version = self._residents.live_version if chosen == "live" else chosen
        return version if self._residents.get(version) is not None else NO_DRAFTER

    def _propose(self, version: int, requests: Sequence[ActiveRequest], depth: int) -> None:
        drafter = self._residents.get(version)
        if drafter is None:
            return
        asked = [self._draft_request(active, version, depth) for active in requests]
        try:
            proposals = drafter.propose(asked)
            for proposal, request in zip(proposals, asked, strict=True):
                self._check(proposal, request)
        except Exception:
            logger.exception("drafter version %d failed; serving goes on without it", version)
            self._residents.drop_broken(version)
            return
        for active, proposal in zip(requests, proposals, strict=True):
            active.num_drafted_rows = len(active.token_ids) - 1
            if proposal.token_ids:
                active.proposal, active.step_version = proposal, version
            if active.window is not None:
                active.window.keep(REFILL_ROWS)

    def _check(self, proposal: Proposal, request: DraftRequest) -> None:
        """Refuse what would write beyond the cache or index beyond the vocabulary."""
        drafted = proposal.token_ids
        if len(drafted) > request.num_speculative_tokens:
            raise ValueError(
                f"{len(drafted)} draft tokens where {request.num_speculative_tokens} were asked for"
            )
        if not all(0 <= token < self._model.vocab_size for token in drafted):
            raise ValueError(f"draft tokens {list(drafted)} are not all in the target's vocabulary")
        if list(proposal.parents) != list(range(-1, len(drafted) - 1)):
            raise ValueError(f"parents {list(proposal.parents)} are not those of a chain")
        if len(proposal.log_probs) != len(drafted):
            raise ValueError(
                f"{len(proposal.log_probs)} log-probabilities for {len(drafted)} tokens"
            )

    def _draft_request(self, active: ActiveRequest, version: int, depth: int) -> DraftRequest:
        assert active.window is not None
        root = len(active.token_ids) - 1
        if active.draft_version != version:
            if (old := self._residents.get(active.draft_version)) is not None:
                old.forget(active.request.request_id)
            active.draft_version = version
            # A request's first step reads its whole prompt; a running one only a window.
            active.num_drafted_rows = max(root - REFILL_ROWS, 0) if active.num_steps else 0
        start, features = active.window.since(active.num_drafted_rows)
        return DraftRequest(
            request_id=active.request.request_id,
            start=start,
            token_ids=torch.tensor(active.token_ids[start:], dtype=torch.int64),
            features=features,
            num_speculative_tokens=min(
                depth, active.num_left - 1, active.cache.capacity - root - 2
            ),
        )

    def _finish_chunk(
        self,
        span: _Span,
        features: Mapping[str, Tensor],
        at: Mapping[int, int],
        logits: Tensor,
        best: Sequence[int],
        logsumexp: Tensor,
    ) -> StepResult | None:
        """Take in a chunk of a prompt; its last row gives the first token of the response."""
        active = span.active
        self._keep_rows(active, span.start, features)
        if active.recorder is not None:
            count = span.count
            active.recorder.add_rows(range(span.start, span.start + count), [-1] * count, features)
        active.num_computed += span.count
        if active.is_prefilling:
            return None
        index = at[span.first + span.count - 1]
        token = choose(
            logits[index], best[index], active.request.sampling, active.seed, active.prompt_len
        )
        logprobs = self._logprobs(active, [token], logits[index:], logsumexp[index:])
        active.commit([token], time.time())
        return StepResult([token], logprobs)

    def _verify(
        self,
        span: _Span,
        features: Mapping[str, Tensor],
        logits: Tensor,
        best: Sequence[int],
        logsumexp: Tensor,
        times: tuple[float, float],
        batch: int,
    ) -> StepResult:
        """Accept draft tokens while they are the target's own choice, and commit them."""
        active, request = span.active, span.active.request
        drafts = list(active.proposal.token_ids) if active.proposal else []
        chosen: list[int] = []
        for index in range(len(drafts) + 1):
            position = span.start + index + 1
            token = choose(logits[index], best[index], request.sampling, active.seed, position)
            chosen.append(token)
            ends = token in request.stop_token_ids or len(chosen) == active.num_left
            if ends or index == len(drafts) or drafts[index] != token:
                break
        # The last token chosen is the target's own, whether or not a draft foresaw it: tokens per
        # step are then 1 + accepted in every step, also in one that a stop token cuts short.
        num_accepted = len(chosen) - 1
        logprobs = self._logprobs(active, chosen, logits, logsumexp)
        committed = {name: rows[: len(chosen)] for name, rows in features.items()}
        self._keep_rows(active, span.start, committed)
        if active.recorder is not None:
            self._record(active, span, features, chosen, times)
        active.count_step(
            num_drafted=len(drafts),
            num_accepted=num_accepted,
            version=active.step_version,
            batch=batch,
        )
        active.num_computed = span.start + len(chosen)
        active.commit(chosen, time.time())
        active.proposal = None
        return StepResult(chosen, logprobs)

    def _record(
        self,
        active: ActiveRequest,
        span: _Span,
        features: Mapping[str, Tensor],
        chosen: Sequence[int],
        times: tuple[float, float],
    ) -> None:
        assert active.recorder is not None
        proposal = active.proposal
        num_nodes = len(proposal.token_ids) if proposal else 0
        first_node = active.recorder.add_step(
            root=span.start,
            version=active.step_version,
            bonus_token=chosen[-1],
            num_accepted=len(chosen) - 1,
            draft_ms=times[0],
            verify_ms=times[1],
            tokens=proposal.token_ids if proposal else (),
            parents=proposal.parents if proposal else (),
            log_probs=proposal.log_probs if proposal else (),
        )
        # Row i > 0 has read draft token i - 1; those accepted are positions, the others nodes.
        kept = len(chosen)
        positions = list(range(span.start, span.start + kept)) + [-1] * (num_nodes + 1 - kept)
        nodes = [-1] * kept + [first_node + index - 1 for index in range(kept, num_nodes + 1)]
        active.recorder.add_rows(positions, nodes, features)

    def _keep_rows(self, active: ActiveRequest, start: int, features: Mapping[str, Tensor]) -> None:
        if active.window is not None:
            active.window.append(start, features)
            if active.draft_version == NO_DRAFTER and active.num_steps:
                active.window.keep(REFILL_ROWS)

    def _logprobs(
        self, active: ActiveRequest, tokens: Sequence[int], logits: Tensor, logsumexp: Tensor
    ) -> list[TokenLogprob] | None:
        wanted = active.request.num_logprobs
        if wanted is None:
            return None
        results = []
        for index, token in enumerate(tokens):
            row = logits[index].float() - logsumexp[index]
            values, token_ids = row.topk(wanted)
            top = tuple(zip(token_ids.tolist(), values.tolist(), strict=True))
            results.append(TokenLogprob(token_id=token, logprob=float(row[token]), top=top))
        return results


def _row_tokens(span: _Span) -> list[int]:
    active = span.active
    if active.is_prefilling:
        return active.request.prompt_token_ids[span.start : span.start + span.count]
    drafts = active.proposal.token_ids if active.proposal else ()
    return [active.token_ids[-1], *drafts]


def _rows_with_logits(span: _Span) -> range:
    """Return the rows whose logits are needed: all of a verification, the last of a prompt."""
    end = span.first + span.count
    if not span.active.is_prefilling:
        return range(span.first, end)
    is_last = span.start + span.count == span.active.prompt_len
    return range(end - 1, end) if is_last else range(0)
