"""One step of the engine: draft, one pass of the target over everybody's rows, verify, record.

A pass mixes prompt chunks and verification rows of all running requests. Row-invariant kernels make
each request's output independent of what shares the pass with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aurora_backend_torch.active_request import ActiveRequest
from aurora_backend_torch.draft_tree import RowPlaces
from aurora_backend_torch.drafting import REFILL_ROWS, Drafting
from aurora_backend_torch.generation import TokenLogprob
from aurora_backend_torch.model import TargetModel
from aurora_backend_torch.sampling import choose
from aurora_backend_torch.shadowing import Shadowing
from aurora_backend_torch.verification import follow_own_choice, reject_or_accept
from aurora_core.kernels import RowPlan, argmax_logsumexp
from aurora_core.records import NO_DRAFTER, Needs


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
        drafting: Drafting,
        shadowing: Shadowing,
        needs: Needs,
        *,
        max_prefill_rows: int,
    ) -> None:
        """
        Args:
            model: the target.
            drafting: asks the drafters.
            shadowing: asks those that draft unused.
            needs: features to keep for drafters and traces.
            max_prefill_rows: prompt rows in one pass.
        """
        self._model, self._drafting, self._needs = model, drafting, needs
        self._shadowing = shadowing
        self._max_prefill_rows = max_prefill_rows

    def step(self, running: Sequence[ActiveRequest]) -> list[tuple[ActiveRequest, StepResult]]:
        """Advance every running request by a chunk of its prompt or a verification step.

        Returns:
            the requests that committed tokens, with those tokens; stop tokens and `max_tokens` are
            observed.
        """
        decoding = [active for active in running if not active.is_prefilling]
        self._shadowing.draft(self._drafting.max_nodes(len(decoding)))
        started = time.perf_counter()
        self._drafting.draft(decoding)
        drafted = time.perf_counter()
        spans = self._plan(running)
        if not spans:
            return []
        token_ids = [token for span in spans for token in _row_tokens(span)]
        rows = self._model.forward(
            torch.tensor(token_ids, device=self._model.device),
            _row_plan(spans, self._model.device),
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
                count = 1 + len(active.tree.token_ids)
                start = len(active.token_ids) - 1
            if count:
                spans.append(_Span(active, first, count, start))
                first += count
        return spans

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
        self._keep_rows(active, span.start, span.count, features)
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
        logprobs = self._logprobs(active, [token], [index], logits, logsumexp)
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
        """Follow the branch that is the target's own choice, and commit it."""
        active, request, tree = span.active, span.active.request, span.active.tree

        def ends(chosen: list[int]) -> bool:
            return chosen[-1] in request.stop_token_ids or len(chosen) == active.num_left

        drawn_from = active.proposal.drawn_from if active.proposal else None
        if drawn_from is None:
            verified = follow_own_choice(
                tree,
                logits,
                best,
                sampling=request.sampling,
                seed=active.seed,
                start=span.start,
                ends=ends,
            )
        else:
            verified = reject_or_accept(
                tree,
                drawn_from,
                logits,
                sampling=request.sampling,
                seed=active.seed,
                start=span.start,
                ends=ends,
            )
        chosen, accepted = verified.token_ids, verified.accepted
        path = [0, *(node + 1 for node in accepted)]
        committed = {name: rows[path] for name, rows in features.items()}
        logprobs = self._logprobs(active, chosen, path, logits, logsumexp)
        if not tree.is_chain:
            entries = [tree.entry(span.start, node) for node in accepted]
            active.cache.move(entries, span.start + 1)
        self._keep_rows(active, span.start, len(path), committed)
        if active.recorder is not None:
            self._record(active, span, features, chosen[-1], accepted, times)
        active.count_step(num_accepted=len(accepted), batch=batch)
        active.num_computed = span.start + len(chosen)
        active.commit(chosen, time.time())
        return StepResult(chosen, logprobs)

    def _record(
        self,
        active: ActiveRequest,
        span: _Span,
        features: Mapping[str, Tensor],
        bonus_token: int,
        accepted: Sequence[int],
        times: tuple[float, float],
    ) -> None:
        assert active.recorder is not None
        tree = active.tree
        first_node = active.recorder.add_step(
            root=span.start,
            version=active.step_version,
            bonus_token=bonus_token,
            accepted=accepted,
            draft_ms=times[0],
            verify_ms=times[1],
            tree=tree,
            log_probs=active.proposal.log_probs if active.proposal else (),
        )
        # Row i > 0 has read node i - 1; those accepted are positions, the others nodes.
        positions, nodes = [span.start], [-1]
        for node, depth in enumerate(tree.depth):
            is_accepted = node in accepted
            positions.append(span.start + depth if is_accepted else -1)
            nodes.append(-1 if is_accepted else first_node + node)
        active.recorder.add_rows(positions, nodes, features)

    def _keep_rows(
        self, active: ActiveRequest, start: int, num_rows: int, features: Mapping[str, Tensor]
    ) -> None:
        active.window.append(start, num_rows, features)
        self._shadowing.keep_rows(active, start, num_rows, features)
        if active.draft_version == NO_DRAFTER and active.num_steps:
            active.window.keep(REFILL_ROWS)

    def _logprobs(
        self,
        active: ActiveRequest,
        tokens: Sequence[int],
        rows: Sequence[int],
        logits: Tensor,
        logsumexp: Tensor,
    ) -> list[TokenLogprob] | None:
        wanted = active.request.num_logprobs
        if wanted is None:
            return None
        results = []
        for token, index in zip(tokens, rows, strict=True):
            row = logits[index].float() - logsumexp[index]
            values, token_ids = row.topk(wanted)
            top = tuple(zip(token_ids.tolist(), values.tolist(), strict=True))
            results.append(TokenLogprob(token_id=token, logprob=float(row[token]), top=top))
        return results


def _row_tokens(span: _Span) -> list[int]:
    active = span.active
    if active.is_prefilling:
        return active.request.prompt_token_ids[span.start : span.start + span.count]
    return [active.token_ids[-1], *active.tree.token_ids]


def _row_plan(spans: Sequence[_Span], device: torch.device) -> RowPlan:
    """Return where the rows of a pass belong."""
    places = [
        RowPlaces.in_order(span.start, span.count)
        if span.active.is_prefilling
        else span.active.tree.places(span.start)
        for span in spans
    ]
    columns = [
        [position for place in places for position in place.position],
        [index for index, span in enumerate(spans) for _ in range(span.count)],
        [slot for place in places for slot in place.slot],
        [length for place in places for length in place.length],
    ]
    position, owner, slot, length = torch.tensor(columns, device=device)
    branches = [branch for place in places for branch in place.branch]
    deepest = max(map(len, branches))
    branch = None
    if deepest:
        padded = [entries + [-1] * (deepest - len(entries)) for entries in branches]
        branch = torch.tensor(padded, device=device)
    return RowPlan(position=position, owner=owner, slot=slot, length=length, branch=branch)


def _rows_with_logits(span: _Span) -> range:
    """Return the rows whose logits are needed: all of a verification, the last of a prompt."""
    end = span.first + span.count
    if not span.active.is_prefilling:
        return range(span.first, end)
    is_last = span.start + span.count == span.active.prompt_len
    return range(end - 1, end) if is_last else range(0)
