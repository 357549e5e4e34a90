"""Loss and held-out acceptance of one batch.

Shape legend:
    A  anchors    K  heads    H  hidden size    B  traces

The anchor at position t predicts token t + 2 + k with head k. The target row that knows this
token's distribution is the row of position t + 1 + k. The pair is supervised if that row was
captured and the token was committed: the first anchor of a response is the prompt's last position,
the last one lies two before the end, and neither padding nor prompt ever carries loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.interfaces import LossOutput
from aurora_core.learner.teacher import TargetRows, Teacher
from aurora_medusa.collate import Batch
from aurora_medusa.config import MedusaOptions
from aurora_medusa.head_loss import Lesson, supervise
from aurora_medusa.model import MedusaNetwork


def compute_loss(network: MedusaNetwork, batch: Batch, options: MedusaOptions) -> LossOutput:
    """Return the sum over k of head_decay^k * KL(target at t + 1 + k || head k at t).

    It is summed over all supervised pairs of anchor and head. Medusa's loss (section 2.2.1 of the
    paper) with the target's whole distribution in the place of its sampled token.
    """
    teacher_row_KA = supervising_rows(batch, network.shape.num_heads)
    supervised_KA = teacher_row_KA >= 0
    weights = [options.head_decay**head for head in range(len(supervised_KA))]
    decay_K = torch.tensor(weights, device=supervised_KA.device)
    weight_sum = (decay_K[:, None] * supervised_KA).sum()
    num_tokens = int(supervised_KA[0].sum())
    if not bool(supervised_KA.any()):
        # Connected to the weights, so that a backward pass finds gradients of zero.
        zero = torch.stack([parameter.sum() for parameter in network.parameters()]).sum() * 0.0
        return LossOutput(loss_sum=zero.float(), weight_sum=weight_sum, num_tokens=0, metrics={})
    dtype = next(network.parameters()).dtype
    hidden_AH = batch.last_hidden_state[batch.anchor_row].to(dtype)
    rows = [mask_A.nonzero().flatten() for mask_A in supervised_KA]
    loss_sum, hits = supervise(
        [block(hidden_AH[row]) for block, row in zip(network.blocks, rows, strict=True)],
        network.output_heads,
        [
            Lesson(teacher_row=teacher_row_A[row], weight=weight)
            for teacher_row_A, row, weight in zip(teacher_row_KA, rows, weights, strict=True)
        ],
        _teacher(network, batch, options),
    )
    hits_KA = torch.zeros_like(supervised_KA)
    hits_KA[supervised_KA] = hits
    return LossOutput(
        loss_sum=loss_sum,
        weight_sum=weight_sum,
        num_tokens=num_tokens,
        metrics=_metrics(hits_KA, supervised_KA),
    )


@torch.no_grad()
def replay(
    network: MedusaNetwork, batch: Batch, num_speculative_tokens: int
) -> tuple[Tensor, Tensor]:
    """Draft the heads' best tokens from every anchor whose whole draft can be judged.

    A draft token counts as accepted while it and all before it are the committed ones. Anchors with
    fewer than `num_speculative_tokens` committed tokens after the one they follow are left out:
    their last drafts have nothing to be compared with. Positions beyond the last head are never
    accepted. It is the chain that is judged whatever the shape of proposals: it needs no engine's
    limits, and heads that are better for the chain are better for a tree.

    Returns:
        (int64 [B, num_speculative_tokens] anchors whose first k drafts were right, int64 [B]
        anchors judged)
    """
    trace_A = batch.row_trace[batch.anchor_row]
    position_A = batch.row_position[batch.anchor_row]
    judged_A = position_A + 1 + num_speculative_tokens < batch.num_tokens[trace_A]
    trace_A, position_A = trace_A[judged_A], position_A[judged_A]
    num_traces = len(batch.token_ids)
    accepted = torch.zeros(
        num_traces, num_speculative_tokens, dtype=torch.int64, device=batch.token_ids.device
    )
    anchors = torch.bincount(trace_A, minlength=num_traces)
    hidden_AH = batch.last_hidden_state[batch.anchor_row[judged_A]]
    hidden_AH = hidden_AH.to(next(network.parameters()).dtype)
    for head, (block, matrix) in enumerate(zip(network.blocks, network.output_heads, strict=True)):
        if head == num_speculative_tokens or not len(trace_A):
            break
        best_A = (block(hidden_AH) @ matrix.to(hidden_AH.dtype).T).argmax(-1)
        right_A = network.token_map[best_A] == batch.token_ids[trace_A, position_A + 2 + head]
        trace_A, position_A, hidden_AH = trace_A[right_A], position_A[right_A], hidden_AH[right_A]
        accepted[:, head] = torch.bincount(trace_A, minlength=num_traces)
    return accepted, anchors


def supervising_rows(batch: Batch, num_heads: int) -> Tensor:
    """Return int64 [K, A]: the target row that supervises each head at each anchor, or -1."""
    trace_A = batch.row_trace[batch.anchor_row]
    position_A = batch.row_position[batch.anchor_row]
    heads = torch.arange(num_heads, device=position_A.device)
    taught_KA = position_A + 1 + heads[:, None]
    inside_KA = taught_KA < batch.num_tokens[trace_A] - 1
    rows_KA = batch.teacher_row[trace_A.expand_as(taught_KA), taught_KA.masked_fill(~inside_KA, 0)]
    return rows_KA.masked_fill(~inside_KA, -1)


def _teacher(network: MedusaNetwork, batch: Batch, options: MedusaOptions) -> Teacher:
    trace_C = batch.row_trace
    return Teacher(
        TargetRows(
            last_hidden_state=batch.last_hidden_state,
            logsumexp=batch.target_logsumexp,
            next_token=batch.token_ids[trace_C, batch.row_position + 1],
            temperature=batch.temperature[trace_C],
            top_p=batch.top_p[trace_C],
            top_k=batch.top_k[trace_C],
        ),
        network.target_head,
        network.token_map,
        greedy_teacher=options.greedy_teacher,
    )


def _metrics(hits_KA: Tensor, supervised_KA: Tensor) -> dict[str, Tensor]:
    judged_A = supervised_KA.all(0)
    right_KA = hits_KA[:, judged_A].cumprod(0).float()
    num_judged = judged_A.sum().clamp(min=1)
    metrics = {"acceptance_length": 1 + right_KA.sum() / num_judged}
    for depth, right_A in enumerate(right_KA, start=1):
        metrics[f"accepted_{depth}"] = right_A.sum() / num_judged
    return metrics
