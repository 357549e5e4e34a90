"""Speculators with one planted bug each: every class is wrong in the way its docstring says."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aurora_core.errors import CheckpointError
from aurora_core.interfaces import Drafter, DraftRequest, LossOutput, Proposal
from aurora_core.records import Trace
from aurora_core.target.weights import TargetWeights
from aurora_core.testing.toy_network import ToyDrafter, ToyNetwork
from aurora_core.testing.toy_speculator import ToySpeculator


class PromptIsLearned(ToySpeculator):
    """The mask begins two positions early, inside the prompt."""

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        earlier = [
            dataclasses.replace(trace, prompt_len=max(1, trace.prompt_len - 2)) for trace in traces
        ]
        return super().collate(earlier)


class FirstTokenIsLost(ToySpeculator):
    """The mask is not shifted with the targets: the first position has no loss."""

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        later = [dataclasses.replace(t, prompt_len=t.prompt_len + 1) for t in traces]
        return super().collate(later)


class LastTokenIsLost(ToySpeculator):
    """The mask ends one position early."""

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        batch = super().collate(traces)
        for row, trace in enumerate(traces):
            batch["is_anchor"][row, len(trace.token_ids) - 2 :] = False
            batch["has_token"][row, len(trace.token_ids) - 1 :] = False
        return batch


class TargetsAreNotShifted(ToySpeculator):
    """Hidden states are one position off: the row of the token itself, not of that before."""

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        batch = super().collate(traces)
        batch["hidden"] = batch["hidden"].roll(-1, dims=1)
        return batch


class RowsAreTakenAsPositions(ToySpeculator):
    """Rows are laid out in the order they come, whatever position they belong to."""

    def collate(self, traces: Sequence[Trace]) -> dict[str, Tensor]:
        batch = super().collate(traces)
        batch["hidden"].zero_()
        for index, trace in enumerate(traces):
            rows = trace.features["last_hidden_state"]
            num_rows = min(len(rows), batch["hidden"].shape[1])
            batch["hidden"][index, :num_rows] = rows[:num_rows]
        return batch


class PaddingIsCounted(ToySpeculator):
    """The weight counts padded positions too, so the loss of short traces fades in a batch."""

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        output = super().loss(module, batch)
        size = batch["has_token"].numel()
        weight = output.weight_sum * size / batch["has_token"].sum()
        return dataclasses.replace(output, weight_sum=weight)


class LossIsAMean(ToySpeculator):
    """Returns a mean per batch where a sum was asked for."""

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        output = super().loss(module, batch)
        return dataclasses.replace(
            output, loss_sum=output.loss_sum / output.weight_sum.clamp(min=1)
        )


class EmptyBatchIsNan(ToySpeculator):
    """Divides by the number of supervised positions, also when there are none."""

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        output = super().loss(module, batch)
        return dataclasses.replace(
            output, loss_sum=output.loss_sum / output.weight_sum * output.weight_sum
        )


class NanIsLearned(ToySpeculator):
    """Takes features as they come."""

    def _checked_rows(self, trace: Trace) -> Tensor:
        super()._checked_rows(
            dataclasses.replace(
                trace,
                features={n: f.nan_to_num(posinf=0.0) for n, f in trace.features.items()},
            )
        )
        return trace.features["last_hidden_state"]


class BatchIsChanged(ToySpeculator):
    """Writes into the batch that the learner may use again."""

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> LossOutput:
        output = super().loss(module, batch)
        batch["hidden"].mul_(0.5)
        return output


class VocabularyIsNotInTheModule(ToySpeculator):
    """The draft vocabulary is chosen anew with every lineage that goes on."""

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        network = super().build_module(weights, traces)
        assert isinstance(network, ToyNetwork)
        ids = network.draft_token_ids.clone()
        network.register_load_state_dict_post_hook(
            lambda module, _: module.draft_token_ids.copy_(ids)  # type: ignore[operator]
        )
        return network


class TargetIsTrained(ToySpeculator):
    """The head is the target's own tensor, and learns."""

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        network = super().build_module(weights, traces)
        assert isinstance(network, ToyNetwork)
        network.embed_tokens.weight = nn.Parameter(weights.embed_tokens)
        return network


class WeightsAreShared(ToySpeculator):
    """Two weights are one, as in `[block] * 2`."""

    def build_module(self, weights: TargetWeights, traces: Sequence[Trace]) -> nn.Module:
        network = super().build_module(weights, traces)
        network.add_module("second_head", network.get_submodule("lm_head"))
        return network


class MissingTensorIsIgnored(ToySpeculator):
    """Loads what is there and leaves the rest as it was initialised."""

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        tensors = load_file(path / "model.safetensors")
        network = self.build_module(weights, ())
        assert isinstance(network, ToyNetwork)
        if not tensors.keys() < network.state_dict().keys():
            return super().load(path, weights)
        network.load_state_dict(tensors, strict=False)
        return network


class ExtraTensorIsIgnored(ToySpeculator):
    """Leaves out of account what it does not know."""

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        tensors = load_file(path / "model.safetensors")
        known = {name: tensor for name, tensor in tensors.items() if name != "extra.weight"}
        if len(known) < len(tensors):
            save_file(known, path / "model.safetensors")
        return super().load(path, weights)


class AnyTargetIsTaken(ToySpeculator):
    """Does not ask which target a checkpoint was made for."""

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        config = (path / "config.json").read_text(encoding="utf-8")
        made_for = config.partition('"target_fingerprint": "')[2].partition('"')[0]
        if not made_for:
            raise CheckpointError("unreadable")
        other = dataclasses.replace(self.target, fingerprint=made_for)
        return ToySpeculator(self.options, other).load(path, weights)


class InfiniteWeightsAreTaken(ToySpeculator):
    """Does not look at the values of a checkpoint."""

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        tensors = load_file(path / "model.safetensors") if _whole(path) else {}
        finite = {
            name: tensor.nan_to_num(0, 0, 0) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        if any(not torch.equal(finite[name], tensor) for name, tensor in tensors.items()):
            save_file(finite, path / "model.safetensors")
        return super().load(path, weights)


class VocabularyMapIsSwapped(ToySpeculator):
    """Saves the map as offsets, and reads it as ids: the first draft ids win."""

    def load(self, path: Path, weights: TargetWeights) -> nn.Module:
        network = super().load(path, weights)
        assert isinstance(network, ToyNetwork)
        network.draft_token_ids.copy_(torch.arange(len(network.draft_token_ids)))
        return network


class ReplayIsOptimistic(ToySpeculator):
    """Counts a chain as right to its end once its first token is right."""

    def acceptance(
        self, module: nn.Module, batch: Mapping[str, Tensor], num_speculative_tokens: int
    ) -> tuple[Tensor, Tensor]:
        accepted, anchors = super().acceptance(module, batch, num_speculative_tokens)
        return accepted[:, :1].expand_as(accepted).clone(), anchors


def _whole(path: Path) -> bool:
    try:
        load_file(path / "model.safetensors")
    except Exception:  # whatever safetensors raises for half a file; the super class reports it
        return False
    return (path / "config.json").exists()


class BrokenDrafterSpeculator(ToySpeculator):
    """A toy whose drafter is of another class."""

    drafter_class: type[ToyDrafter] = ToyDrafter

    def drafter(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device) -> Drafter:
        assert isinstance(module, ToyNetwork)
        return self.drafter_class(module, dtype=dtype, device=device)


def with_drafter(drafter_class: type[ToyDrafter]) -> type[ToySpeculator]:
    """Return a toy speculator that serves with a broken drafter."""
    return type(
        drafter_class.__name__,
        (BrokenDrafterSpeculator,),
        {"drafter_class": drafter_class, "__doc__": drafter_class.__doc__},
    )


class DrafterDependsOnTheBatch(ToyDrafter):
    """The state of the first request of a batch is everybody's."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        if requests:
            requests = [
                dataclasses.replace(request, features=requests[0].features) for request in requests
            ]
        return super().propose(requests)


class DrafterRollsDice(ToyDrafter):
    """Adds noise to what it knows."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        noisy = [
            dataclasses.replace(
                request,
                features={n: f + 3 * torch.randn_like(f) for n, f in request.features.items()},
            )
            for request in requests
        ]
        return super().propose(noisy)


class DrafterIgnoresItsLimit(ToyDrafter):
    """Always drafts one token more than it may."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return super().propose(
            [
                dataclasses.replace(
                    request,
                    num_speculative_tokens=request.num_speculative_tokens + 1,
                    max_nodes=request.max_nodes + 1,
                )
                for request in requests
            ]
        )


class DrafterIgnoresTheNodeBudget(ToyDrafter):
    """Keeps to the depth alone."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return super().propose([dataclasses.replace(r, max_nodes=99) for r in requests])


class DrafterForgetsNothing(ToyDrafter):
    """Keeps the first state of a request id for ever."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        known = dict(self._first) if hasattr(self, "_first") else {}
        self._first = known
        kept = []
        for request in requests:
            rows = request.features["last_hidden_state"]
            if request.start == 0 and len(rows):
                known.setdefault(request.request_id, rows)
                rows = known[request.request_id][-1:].expand_as(rows)
            kept.append(dataclasses.replace(request, features={"last_hidden_state": rows}))
        return super().propose(kept)

    def forget(self, request_id: str) -> None:
        """Nothing is dropped."""


class DrafterSpeaksDraftIds(ToyDrafter):
    """Proposes ids of the draft vocabulary as if they were the target's."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        to_draft = {int(t): d for d, t in enumerate(self._network.draft_token_ids)}
        return [
            dataclasses.replace(p, token_ids=[to_draft[int(t)] for t in p.token_ids])
            for p in super().propose(requests)
        ]


class DrafterIsOneRowLate(ToyDrafter):
    """Reads the row before the newest: an off-by-one between training and serving."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        late = []
        for request in requests:
            rows = request.features["last_hidden_state"]
            rows = rows[:-1] if len(rows) > 1 else rows
            late.append(dataclasses.replace(request, features={"last_hidden_state": rows}))
        return super().propose(late)


class DrafterSharesTheWeights(ToyDrafter):
    """Serves the very tensors that training changes."""

    def __init__(self, network: ToyNetwork, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(network, dtype=dtype, device=device)
        self._network = network if dtype == torch.float32 else copy.deepcopy(self._network)


class DrafterWritesIntoFeatures(ToyDrafter):
    """Normalises the engine's own tensors in place."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = super().propose(requests)
        for request in requests:
            request.features["last_hidden_state"].mul_(0.5)
        return proposals


class DrafterPlaysSafe(ToyDrafter):
    """Joins no request in its middle: an unknown one with start > 0 is an error."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        for request in requests:
            if request.start and request.request_id not in self._states:
                raise KeyError(request.request_id)
        return super().propose(requests)


class DrafterIgnoresTraining(ToyDrafter):
    """A swap that loads nothing: it serves what the first weights would."""

    def __init__(self, network: ToyNetwork, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(network, dtype=dtype, device=device)
        with torch.no_grad():
            torch.nn.init.zeros_(self._network.cell.weight)
            torch.nn.init.zeros_(self._network.cell.bias)
            self._network.lm_head.weight.copy_(
                self._network.embed_tokens.weight[self._network.draft_token_ids]
            )
