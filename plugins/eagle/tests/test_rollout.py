"""Training and serving compute the same drafts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aurora_core.interfaces import DraftRequest
from aurora_core.records import TargetSpec, Trace
from aurora_core.target.weights import TargetWeights
from aurora_eagle.collate import Batch
from aurora_eagle.model import Eagle3Network, rotary_table
from aurora_eagle.rollout import Rollout
from aurora_eagle.speculator import Eagle3Speculator


@pytest.fixture
def traces(make_trace: Callable[..., Trace]) -> list[Trace]:
    return [
        make_trace(1, prompt_len=7, num_response=16),
        make_trace(2, prompt_len=13, num_response=9),
    ]


@pytest.fixture
def network(
    speculator: Eagle3Speculator, weights: TargetWeights, traces: list[Trace]
) -> Eagle3Network:
    torch.manual_seed(0)
    return speculator.build_module(weights, traces)  # type: ignore[return-value]


def draft_alone(network: Eagle3Network, trace: Trace, position: int, tokens: list[int]) -> Tensor:
    """Draft from one anchor the slow, obvious way: full causal attention over plain rows.

    Args:
        position: of the anchor.
        tokens: the anchor's next token and then those that the drafter is fed.

    Returns:
        logits [len(tokens), D], one row per step
    """
    shape = network.shape
    features = trace.features["aux_hidden_states"][: position + 1]
    hidden = list(network.fc(features))
    fed = [int(token) for token in trace.token_ids[1 : position + 1]] + tokens
    logits = []
    for step in range(len(tokens)):
        rows = torch.stack(hidden)
        positions = torch.arange(len(rows))
        x = network.attention_input(torch.tensor(fed[: len(rows)]), rows)
        keys, values = network.keys_values(x, positions)
        query = network.queries(x, positions)[-1]
        attended = []
        for head in range(shape.num_heads):
            shared = head // (shape.num_heads // shape.num_kv_heads)
            scores = keys[:, shared] @ query[head] / shape.head_dim**0.5
            attended.append(scores.softmax(-1) @ values[:, shared])
        output = network.finish(rows[-1:], torch.cat(attended)[None])[0]
        logits.append(network.lm_head(network.norm(output)))
        hidden.append(output)
        assert len(hidden) == position + 2 + step
    return torch.stack(logits)


@torch.no_grad()
def test_every_unrolled_step_equals_drafting_from_that_anchor_alone(
    speculator: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    batch = Batch.from_dict(speculator.collate(traces))
    rollout = Rollout(network, batch)
    steps = 4
    unrolled = torch.stack(
        [network.lm_head(network.norm(rollout.advance())) for _ in range(steps)], 1
    )
    compared = 0
    for anchor, (index, position) in enumerate(
        zip(rollout.trace.tolist(), rollout.position.tolist(), strict=True)
    ):
        trace = traces[index]
        fed = trace.token_ids[position + 1 : position + 1 + steps].tolist()
        expected = draft_alone(network, trace, position, fed)
        torch.testing.assert_close(unrolled[anchor, : len(fed)], expected, rtol=1e-4, atol=1e-4)
        compared += len(fed)
    assert compared > 80


@torch.no_grad()
def test_anchors_that_are_kept_go_on_as_if_alone(
    speculator: Eagle3Speculator, network: Eagle3Network, traces: list[Trace]
) -> None:
    batch = Batch.from_dict(speculator.collate(traces))
    everything, some = Rollout(network, batch), Rollout(network, batch)
    mask = torch.arange(len(some.trace)) % 3 == 1
    everything.advance(), some.advance()
    some.keep(mask)
    for _ in range(2):
        torch.testing.assert_close(some.advance(), everything.advance()[mask])


@torch.no_grad()
def test_drafter_proposes_what_training_computed_token_by_token(
    speculator: Eagle3Speculator, network: Eagle3Network, traces: list[Trace], target: TargetSpec
) -> None:
    drafter = speculator.drafter(network, dtype=torch.float32, device=torch.device("cpu"))
    trace = traces[0]
    num_tokens, depth = len(trace.token_ids), 4
    start = 0
    # Rows arrive as after verification: the prompt at once, then a few at a time.
    for root in (7, 8, 10, 13, 14, num_tokens - 1):
        (proposal,) = drafter.propose([request(trace, start, root, depth)])
        start = root
        logits = draft_alone(
            network, trace, root - 1, [int(trace.token_ids[root]), *proposal.token_ids[:-1]]
        )
        best = network.target_ids[logits.argmax(-1)]
        assert list(proposal.token_ids) == best.tolist()
        expected = logits.log_softmax(-1).amax(-1)
        torch.testing.assert_close(torch.tensor(proposal.log_probs), expected, rtol=1e-3, atol=1e-3)
        assert list(proposal.parents) == [-1, 0, 1, 2]


def request(
    trace: Trace, start: int, root: int, depth: int, name: str = "", max_nodes: int | None = None
) -> DraftRequest:
    return DraftRequest(
        request_id=name or trace.trace_id,
        start=start,
        token_ids=trace.token_ids[start : root + 1],
        features={"aux_hidden_states": trace.features["aux_hidden_states"][start:root]},
        num_speculative_tokens=depth,
        max_nodes=depth if max_nodes is None else max_nodes,
    )


def test_rotary_angles_match_the_transformers_library() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from aurora_eagle.model import DraftShape

    shape = DraftShape(
        hidden_size=128, intermediate_size=8, num_heads=2, num_kv_heads=2, head_dim=64,
        num_aux_layers=3, vocab_size=8, draft_vocab_size=8, max_position_embeddings=8192,
        rms_norm_eps=1e-5, rope_theta=100000.0,
    )  # fmt: skip
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    positions = torch.tensor([0, 1, 2047, 8191])
    cosine, sine = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    mine = rotary_table(shape, positions)
    torch.testing.assert_close(mine[0], cosine[0, :, :32], rtol=0, atol=1e-5)
    torch.testing.assert_close(mine[1], sine[0, :, :32], rtol=0, atol=1e-5)
