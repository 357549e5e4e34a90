"""Serves one request with a drafter, as an engine would, on a reference target.

Every node of a proposal is computed from its own root-to-node path alone: there is no cache and no
attention mask that could be wrong. The record of a request is a complete trace.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.records import NO_DRAFTER, Needs, Nodes, Rows, Sampling, Steps, Trace
from aurora_core.testing.reference_target import ReferenceTarget, TargetRows
from aurora_core.testing.reference_verification import distribution, verify

NOTHING = Proposal(token_ids=(), parents=(), log_probs=())


def draft_request(
    trace: Trace,
    start: int,
    root: int,
    *,
    num_speculative_tokens: int,
    max_nodes: int | None = None,
    request_id: str | None = None,
) -> DraftRequest:
    """Return what an engine asks of a drafter when `root` is the last committed position.

    Args:
        trace: with one row for every position up to `root`, in order.
        start: first position that the drafter has not read yet.
        max_nodes: `num_speculative_tokens` unless given.
        request_id: the trace's id unless given.
    """
    return DraftRequest(
        request_id=trace.trace_id if request_id is None else request_id,
        start=start,
        token_ids=trace.token_ids[start : root + 1],
        features={name: feature[start:root] for name, feature in trace.features.items()},
        num_speculative_tokens=num_speculative_tokens,
        max_nodes=num_speculative_tokens if max_nodes is None else max_nodes,
    )


@dataclass(slots=True)
class _Record:
    """Steps and nodes of one request, column by column."""

    root: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    bonus_token: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)
    path_tokens: list[list[int]] = field(default_factory=list)
    """Per node, the whole sequence that ends with it."""


class ReferenceEngine:
    """One request at a time; no end-of-sequence token ends an answer."""

    def __init__(self, reference: ReferenceTarget, needs: Needs) -> None:
        """Take the target, and what a speculator needs of it."""
        self.reference, self.needs = reference, needs

    def serve(
        self,
        prompt: Sequence[int],
        drafter: Drafter | None = None,
        *,
        max_tokens: int,
        num_speculative_tokens: int = 3,
        max_nodes: int | None = None,
        sampling: Sampling | None = None,
        version: int = 1,
        drafters_later: Sequence[tuple[int, Drafter]] = (),
    ) -> Trace:
        """Answer a prompt and return the trace.

        Args:
            prompt: token ids.
            drafter: None decodes plainly.
            max_nodes: `num_speculative_tokens` unless given.
            sampling: greedy unless given.
            version: that the steps claim.
            drafters_later: (response tokens after which it takes over, drafter), in order: a swap
                in mid-request, after which the newcomer reads the last rows only.
        """
        sampling = sampling or Sampling()
        generator = torch.Generator().manual_seed(sampling.seed or 0)
        request_id = uuid.uuid4().hex
        tokens, record, later = list(prompt), _Record(), list(drafters_later)
        logits = self.reference.rows(tokens).logits[-1]
        first = distribution(logits, sampling)
        tokens.append(int(torch.multinomial(first, 1, generator=generator)))
        start, last = 0, len(prompt) + max_tokens
        while len(tokens) < last:
            if later and len(tokens) >= len(prompt) + later[0][0]:
                drafter, start = later.pop(0)[1], max(0, len(tokens) - 5)
            root = len(tokens) - 1
            proposal = NOTHING
            if drafter is not None:
                rows = self.reference.rows(tokens[:root])
                depth = min(num_speculative_tokens, last - len(tokens) - 1)
                budget = num_speculative_tokens if max_nodes is None else max_nodes
                features = self._needed(rows)
                (proposal,) = drafter.propose(
                    [
                        DraftRequest(
                            request_id=request_id,
                            start=start,
                            token_ids=torch.tensor(tokens[start:]),
                            features={name: rows[start:] for name, rows in features.items()},
                            num_speculative_tokens=depth,
                            max_nodes=budget if depth else 0,
                        )
                    ]
                )
                start = root
            after = self._logits_after(tokens)
            accepted = verify(proposal, after, sampling, generator)
            _note(record, tokens, proposal, accepted.path)
            record.root.append(root)
            record.version.append(NO_DRAFTER if drafter is None else version)
            record.bonus_token.append(accepted.bonus_token)
            record.num_accepted.append(len(accepted.path))
            tokens += [proposal.token_ids[node] for node in accepted.path]
            tokens.append(accepted.bonus_token)
        if drafter is not None:
            drafter.forget(request_id)
        return self._trace(tokens, len(prompt), record, sampling)

    def _logits_after(self, tokens: Sequence[int]) -> Callable[[Sequence[int]], Tensor]:
        return lambda drafted: self.reference.rows([*tokens, *drafted]).logits[-1]

    def _needed(self, rows: TargetRows) -> dict[str, Tensor]:
        features = rows.features(self.needs.aux_layers)
        return {name: feature for name, feature in features.items() if name in self.needs.features}

    def _trace(
        self, tokens: list[int], prompt_len: int, record: _Record, sampling: Sampling
    ) -> Trace:
        # No pass has read the last token.
        committed = self._needed(self.reference.rows(tokens[:-1]))
        num_committed = len(tokens) - 1
        if "target_logsumexp" in committed:
            committed["target_logsumexp"][: prompt_len - 1] = float("nan")
        rejected = [index for index, accepted in enumerate(record.accepted) if not accepted]
        rejected = rejected if self.needs.branch_rows else []
        parts = [committed]
        for node in rejected:
            rows = self._needed(self.reference.rows(record.path_tokens[node]))
            parts.append({name: feature[-1:] for name, feature in rows.items()})
        spec = self.reference.spec
        return Trace(
            trace_id=uuid.uuid4().hex,
            request_key=str(tokens[:prompt_len]),
            created=0.0,
            target_fingerprint=spec.fingerprint,
            tokenizer_fingerprint=spec.tokenizer_fingerprint,
            sampling=sampling,
            finish_reason="length",
            token_ids=torch.tensor(tokens),
            prompt_len=prompt_len,
            steps=Steps(
                root=_integers(record.root),
                version=_integers(record.version),
                bonus_token=_integers(record.bonus_token),
                num_accepted=_integers(record.num_accepted),
                draft_ms=torch.zeros(len(record.root)),
                verify_ms=torch.zeros(len(record.root)),
            ),
            nodes=Nodes(
                step=_integers(record.step),
                token=_integers(record.token),
                parent=_integers(record.parent),
                depth=_integers(record.depth),
                accepted=torch.tensor(record.accepted, dtype=torch.bool),
                log_prob=torch.tensor(record.log_prob, dtype=torch.float32),
            ),
            rows=Rows(
                position=_integers([*range(num_committed), *([-1] * len(rejected))]),
                node=_integers([*([-1] * num_committed), *rejected]),
            ),
            features={name: torch.cat([part[name] for part in parts]) for name in committed},
            aux_layers=self.needs.aux_layers,
        )


def _note(record: _Record, tokens: Sequence[int], proposal: Proposal, path: Sequence[int]) -> None:
    """Add one step's nodes to the record."""
    first, step = len(record.step), len(record.root)
    for node, (token, parent) in enumerate(zip(proposal.token_ids, proposal.parents, strict=True)):
        above = list(tokens) if parent < 0 else record.path_tokens[first + parent]
        record.step.append(step)
        record.token.append(int(token))
        record.parent.append(parent if parent < 0 else first + parent)
        record.depth.append(1 if parent < 0 else record.depth[first + parent] + 1)
        record.accepted.append(node in path)
        record.log_prob.append(proposal.log_probs[node])
        record.path_tokens.append([*above, int(token)])


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
