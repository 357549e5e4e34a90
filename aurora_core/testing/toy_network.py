"""The toy's network, its checkpoint and its drafter.

Shapes: A anchors, D target hidden size, V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aurora_core.errors import CheckpointError
from aurora_core.interfaces import DraftDistributions, Drafter, DraftRequest, Proposal
from aurora_core.sampling import dense_probs, pick


class ToyNetwork(nn.Module):
    """A recurrent cell between the target's embedding and a part of its head."""

    draft_token_ids: Tensor
    """int64 [W]. Target ids of the draft vocabulary, ascending."""

    def __init__(self, vocab_size: int, hidden_size: int, num_draft_tokens: int) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.embed_tokens.weight.requires_grad_(False)
        self.cell = nn.Linear(2 * hidden_size, hidden_size)
        self.lm_head = nn.Linear(hidden_size, num_draft_tokens, bias=False)
        self.register_buffer("draft_token_ids", torch.arange(num_draft_tokens))

    def forward(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return (state [A, D], logits [A, W]) after reading a token.

        Args:
            state: [A, D], the target's hidden state at first.
            token: int64 [A].
        """
        embedded = self.embed_tokens(token)
        state = state + torch.tanh(self.cell(torch.cat([state, embedded], dim=-1)))
        return state, self.lm_head(state)

    def draft_ids(self) -> Tensor:
        """Return int64 [V]: target id -> draft id, -1 outside the draft vocabulary."""
        ids = self.draft_token_ids.new_full((self.vocab_size,), -1)
        ids[self.draft_token_ids] = torch.arange(len(self.draft_token_ids), device=ids.device)
        return ids


def anchored(batch: Mapping[str, Tensor], num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the cell meets at every anchor of a batch from `ToySpeculator.collate`.

    Returns:
        (state, tokens, exists): float32 [A, D], the hidden state before the anchor; int64
        [A, num_steps + 1], the anchor's token and those after it; bool of the same shape, False
        beyond the end of the trace.
    """
    trace_index, position = batch["is_anchor"].nonzero(as_tuple=True)
    ahead = position[:, None] + torch.arange(num_steps + 1, device=position.device)
    inside = ahead < batch["token_ids"].shape[1]
    ahead = torch.where(inside, ahead, 0)
    return (
        batch["hidden"][trace_index, position - 1],
        batch["token_ids"][trace_index[:, None], ahead],
        batch["has_token"][trace_index[:, None], ahead] & inside,
    )


def save_network(network: ToyNetwork, path: Path, target_fingerprint: str) -> None:
    """Write config.json and model.safetensors into an existing folder."""
    config = {
        "format": "toy",
        "target_fingerprint": target_fingerprint,
        "vocab_size": network.vocab_size,
        "hidden_size": network.hidden_size,
        "num_draft_tokens": len(network.draft_token_ids),
    }
    (path / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tensors = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    save_file(tensors, path / "model.safetensors")


def load_network(path: Path, target_fingerprint: str) -> ToyNetwork:
    """Read what `save_network` wrote.

    Raises:
        CheckpointError: unreadable, of another target, with a tensor that is missing, extra,
            misshaped or not finite, or with ids outside the vocabulary.
    """
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "model.safetensors")
        found = config["target_fingerprint"]
        network = ToyNetwork(
            config["vocab_size"], config["hidden_size"], config["num_draft_tokens"]
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"toy checkpoint {str(path)!r} cannot be read: {error}") from error
    if found != target_fingerprint:
        raise CheckpointError(
            f"toy checkpoint {str(path)!r} was made for target {found!r}, "
            f"not for {target_fingerprint!r}"
        )
    own = network.state_dict()
    for name in sorted(own | tensors):
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
            raise CheckpointError(
                f"toy checkpoint {str(path)!r} has tensor {name!r} missing, extra or misshaped"
            )
        if not bool(tensors[name].isfinite().all()):
            raise CheckpointError(
                f"toy checkpoint {str(path)!r} has tensor {name!r} with values that are not finite"
            )
    ids = tensors["draft_token_ids"]
    if bool((ids < 0).any() or (ids >= network.vocab_size).any() or (ids[1:] <= ids[:-1]).any()):
        raise CheckpointError(
            f"toy checkpoint {str(path)!r} has draft_token_ids that do not ascend within the "
            f"vocabulary of {network.vocab_size}"
        )
    network.load_state_dict(tensors)
    return network


class ToyDrafter(Drafter):
    """Drafts a chain, request by request, so that batching changes nothing.

    With siblings, each depth has several tokens, and the first of them goes on.
    """

    def __init__(
        self,
        network: ToyNetwork,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_siblings: int = 1,
    ) -> None:
        self._network = copy.deepcopy(network).to(device=device, dtype=dtype).eval()
        self._dtype, self._device = dtype, device
        self._num_siblings = num_siblings
        self._states: dict[str, Tensor] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Draft from the newest hidden state, sampled where a request allows it.

        Nothing is drafted where no hidden state is known.
        """
        return [self._propose(request) for request in requests]

    @torch.no_grad()
    def _propose(self, request: DraftRequest) -> Proposal:
        rows = request.features["last_hidden_state"]
        if len(rows):
            self._states[request.request_id] = rows[-1:].to(self._device, self._dtype)
        state = self._states.get(request.request_id)
        if state is None:
            return Proposal(token_ids=[], parents=[], log_probs=[])
        token = request.token_ids[-1:].to(self._device)
        token_ids: list[int] = []
        parents: list[int] = []
        log_probs: list[float] = []
        probs: list[Tensor] = []
        parent = -1
        for depth in range(request.num_speculative_tokens):
            count = min(self._num_siblings, request.max_nodes - len(token_ids))
            if count < 1:
                break
            state, logits = self._network(state, token)
            row = logits.float()[0]
            draft_ids = row.topk(min(count, len(row))).indices.tolist()
            if request.sampling is not None:
                stated, draft_ids = self._sample(row, request, depth, count)
                probs += [stated.float()] * len(draft_ids)
            ids = self._network.draft_token_ids[draft_ids]
            first = len(token_ids)
            token_ids += ids.tolist()
            parents += [parent] * len(draft_ids)
            log_probs += row.log_softmax(-1)[draft_ids].tolist()
            parent, token = first, ids[:1]
        return Proposal(
            token_ids=token_ids,
            parents=parents,
            log_probs=log_probs,
            drawn_from=self._drawn_from(probs),
        )

    def _sample(
        self, logits: Tensor, request: DraftRequest, depth: int, count: int
    ) -> tuple[Tensor, list[int]]:
        """Draw siblings; return the distribution they come from, [W], and their draft ids."""
        assert request.sampling is not None
        probs = dense_probs(logits, request.sampling)
        return probs, [pick(probs, draw) for draw in draws(request.uniforms[depth], count)]

    def _drawn_from(self, probs: Sequence[Tensor]) -> DraftDistributions | None:
        """Return what the nodes were drawn from, [W] each; None where they are the likeliest."""
        if not probs:
            return None
        return DraftDistributions(
            token_ids=self._network.draft_token_ids, probs=torch.stack(list(probs))
        )

    def forget(self, request_id: str) -> None:
        """Drop the request's hidden state."""
        self._states.pop(request_id, None)


def draws(uniform: float, count: int) -> list[float]:
    """Return independent numbers in [0, 1) for siblings, made of the one number of their depth."""
    generator = torch.Generator().manual_seed(int(uniform * 2**53))
    numbers: list[float] = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return numbers
