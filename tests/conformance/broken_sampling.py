"""Speculators that sample their drafts, with one planted bug each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from aurora_core.interfaces import Drafter, DraftRequest, Proposal
from aurora_core.sampling import dense_probs, pick
from aurora_core.testing.toy_network import ToyDrafter, ToyNetwork, draws
from aurora_core.testing.toy_speculator import ToySpeculator


class StatesTheUntempered(ToyDrafter):
    """Draws as the request samples, and states what the network alone would give."""

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        _, drawn = super()._sample(logits, request, depth, count)
        return logits.double().softmax(-1), drawn


class StatesTheNextNode(ToyDrafter):
    """The rows of what is stated are one node late."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [
            dataclasses.replace(
                proposal,
                drawn_from=dataclasses.replace(
                    proposal.drawn_from, probs=proposal.drawn_from.probs.roll(1, 0)
                ),
            )
            if proposal.drawn_from is not None
            else proposal
            for proposal in super().propose(requests)
        ]


class StatesDraftIds(ToyDrafter):
    """Says which entries of its own vocabulary the tokens could have been, not of the target's."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [
            dataclasses.replace(
                proposal,
                drawn_from=dataclasses.replace(
                    proposal.drawn_from, token_ids=torch.arange(len(self._network.draft_token_ids))
                ),
            )
            if proposal.drawn_from is not None
            else proposal
            for proposal in super().propose(requests)
        ]


class DraftsTheLikeliest(ToyDrafter):
    """States a distribution, and takes its best token instead of drawing."""

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        probs, drawn = super()._sample(logits, request, depth, count)
        return probs, [int(probs.argmax())] * len(drawn)


class DrawsWithoutReplacement(ToyDrafter):
    """No sibling repeats another, although the same distribution is stated for both."""

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        assert request.sampling is not None
        probs = dense_probs(logits, request.sampling)
        left, drawn = probs.clone(), []
        for draw in draws(request.uniforms[depth], count):
            if not bool(left.sum() > 0):
                break
            drawn.append(pick(left, draw))
            left[drawn[-1]] = 0
        return probs, drawn


class DrawsSiblingsTogether(ToyDrafter):
    """One number for all siblings: they are the same token."""

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        probs, drawn = super()._sample(logits, request, depth, count)
        return probs, drawn[:1] * len(drawn)


class HidesUnlikelyDraws(ToyDrafter):
    """Ends a draft before an unlikely token: those that are left were not drawn as stated."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._cut(proposal) for proposal in super().propose(requests)]

    def _cut(self, proposal: Proposal) -> Proposal:
        kept = 0
        while kept < len(proposal.token_ids) and proposal.log_probs[kept] > -2.5:
            kept += 1
        stated = proposal.drawn_from
        return dataclasses.replace(
            proposal,
            token_ids=proposal.token_ids[:kept],
            parents=proposal.parents[:kept],
            log_probs=proposal.log_probs[:kept],
            drawn_from=stated and dataclasses.replace(stated, probs=stated.probs[:kept]),
        )


class DrawsItsOwnNumbers(ToyDrafter):
    """Samples with the random state of the process."""

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        own = dataclasses.replace(request, uniforms=torch.rand(len(request.uniforms)).tolist())
        return super()._sample(logits, own, depth, count)


class SampledToy(ToySpeculator):
    """A toy whose drafter is of another class, with siblings if its options say so."""

    drafter_class: type[ToyDrafter] = ToyDrafter

    def drafter(
        self, module: torch.nn.Module, *, dtype: torch.dtype, device: torch.device
    ) -> Drafter:
        assert isinstance(module, ToyNetwork)
        return self.drafter_class(
            module, dtype=dtype, device=device, num_siblings=self.options.num_siblings
        )


_DISHONEST = "test_sampled_drafts_are_drawn_from_what_they_say"
_DEPENDENT = "test_siblings_are_drawn_independently"

BROKEN_SAMPLING: dict[type[ToyDrafter], set[str]] = {
    StatesTheUntempered: {_DISHONEST},
    StatesTheNextNode: {_DISHONEST},
    StatesDraftIds: {"test_sampled_drafts_say_what_they_were_drawn_from"},
    DraftsTheLikeliest: {_DISHONEST},
    DrawsWithoutReplacement: {_DEPENDENT},
    DrawsSiblingsTogether: {_DEPENDENT},
    HidesUnlikelyDraws: {_DISHONEST},
    DrawsItsOwnNumbers: {"test_all_chance_comes_from_the_numbers_given"},
}
"""Bug -> tests that must fail for it."""
