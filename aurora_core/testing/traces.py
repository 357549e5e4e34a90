"""Random traces that keep every promise of the record, without a model."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor

from aurora_core.records import Nodes, Rows, Sampling, Steps, Trace

ALL_FEATURES = ("aux_hidden_states", "last_hidden_state", "target_logsumexp")


def make_trace(
    seed: int | torch.Generator = 0,
    *,
    vocab_size: int = 64,
    hidden_size: int = 8,
    prompt_len: int = 6,
    num_steps: int = 5,
    num_speculative_tokens: int = 3,
    version: int | Sequence[int] = 1,
    topology: Literal["chain", "tree"] = "chain",
    features: Collection[str] = ALL_FEATURES,
    aux_layers: Sequence[int] = (1, 2, 3),
    branch_rows: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    accept: float = 0.6,
    sampling: Sampling | None = None,
    finish_reason: Literal["stop", "length", "abort"] = "length",
    trace_id: str | None = None,
    request_key: str | None = None,
    created: float | None = None,
    target_fingerprint: str = "target",
    tokenizer_fingerprint: str = "tokenizer",
    tenant: str = "",
    route: str = "",
) -> Trace:
    """Return a random, valid trace; equal seeds give equal tensors.

    Args:
        seed: or a generator, to draw several different traces in turn.
        version: draft version in force, one for all steps or one for each; -1 makes a plain
            decoding step without draft nodes.
        topology: `tree` hangs a second child below some nodes.
        features: feature names to fill with normal noise, in `dtype` (logsumexp in float32), for
            every committed position but the last, which no target pass has read.
        branch_rows: whether rejected nodes have rows too.
        accept: chance that a draft token is accepted, given that its parent was.
        trace_id: random unless given, so that no two traces share one.
        created: now unless given.
    """
    generator = seed
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(generator)
    versions = [version] * num_steps if isinstance(version, int) else list(version)
    if len(versions) != num_steps:
        raise ValueError(f"{len(versions)} versions for {num_steps} steps")

    def tokens(count: int) -> list[int]:
        return torch.randint(vocab_size, (count,), generator=generator).tolist()

    def chance() -> float:
        return float(torch.rand((), generator=generator))

    token_ids = tokens(prompt_len)
    steps: dict[str, list[int]] = {"root": [], "version": [], "bonus_token": [], "num_accepted": []}
    nodes: dict[str, list[int]] = {
        "step": [], "token": [], "parent": [], "depth": [], "accepted": []
    }  # fmt: skip
    for step, version_in_force in enumerate(versions):
        root, parent, on_path = len(token_ids) - 1, -1, True
        depths = 0 if version_in_force < 0 else num_speculative_tokens
        for depth in range(1, depths + 1):
            accepted = on_path and chance() < accept
            siblings = [accepted]
            if topology == "tree" and chance() < 0.7:
                siblings.insert(int(chance() * 2), False)
            # Drawn without replacement: siblings of one parent never repeat a token.
            choices = torch.randperm(vocab_size, generator=generator)[: len(siblings)].tolist()
            grown = len(nodes["step"]) + siblings.index(accepted)
            for token, is_accepted in zip(choices, siblings, strict=True):
                nodes["step"].append(step)
                nodes["token"].append(token)
                nodes["parent"].append(parent)
                nodes["depth"].append(depth)
                nodes["accepted"].append(int(is_accepted))
                if is_accepted:
                    token_ids.append(token)
            parent, on_path = grown, accepted
        # No lossless rule commits the very token it rejected at that place.
        refused = {
            nodes["token"][node]
            for node in range(len(nodes["step"]))
            if nodes["step"][node] == step and nodes["depth"][node] == len(token_ids) - root
        }
        bonus = next(token for token in iter(lambda: tokens(1)[0], -1) if token not in refused)
        steps["root"].append(root)
        steps["version"].append(version_in_force)
        steps["bonus_token"].append(bonus)
        steps["num_accepted"].append(len(token_ids) - 1 - root)
        token_ids.append(bonus)

    num_nodes = len(nodes["step"])
    accepted_nodes = torch.tensor(nodes.pop("accepted"), dtype=torch.bool)
    log_prob = -torch.rand(num_nodes, generator=generator)
    rows = _rows(len(token_ids), accepted_nodes, branch_rows)
    return Trace(
        trace_id=trace_id if trace_id is not None else uuid.uuid4().hex,
        request_key=request_key if request_key is not None else str(token_ids[:prompt_len]),
        created=created if created is not None else time.time(),
        target_fingerprint=target_fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint,
        sampling=sampling if sampling is not None else Sampling(),
        finish_reason=finish_reason,
        token_ids=torch.tensor(token_ids),
        prompt_len=prompt_len,
        steps=Steps(
            **{name: torch.tensor(values, dtype=torch.int64) for name, values in steps.items()},
            draft_ms=torch.rand(num_steps, generator=generator),
            verify_ms=torch.rand(num_steps, generator=generator),
        ),
        nodes=Nodes(
            **{name: torch.tensor(values, dtype=torch.int64) for name, values in nodes.items()},
            accepted=accepted_nodes,
            log_prob=log_prob,
        ),
        rows=rows,
        features=_features(
            features, len(rows.position), hidden_size, len(aux_layers), dtype, generator
        ),
        aux_layers=tuple(aux_layers) if "aux_hidden_states" in features else (),
        tenant=tenant,
        route=route,
    )


def _rows(num_tokens: int, accepted: Tensor, branch_rows: bool) -> Rows:
    position = torch.arange(num_tokens - 1)
    rejected = (~accepted).nonzero().flatten() if branch_rows else torch.empty(0, dtype=torch.int64)
    return Rows(
        position=torch.cat([position, torch.full_like(rejected, -1)]),
        node=torch.cat([torch.full_like(position, -1), rejected]),
    )


def _features(
    names: Collection[str],
    num_rows: int,
    hidden_size: int,
    num_layers: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    shapes = {
        "aux_hidden_states": (num_rows, num_layers * hidden_size),
        "last_hidden_state": (num_rows, hidden_size),
        "target_logsumexp": (num_rows,),
    }
    return {
        name: torch.randn(shapes[name], generator=generator).to(
            torch.float32 if name == "target_logsumexp" else dtype
        )
        for name in ALL_FEATURES
        if name in names
    }
