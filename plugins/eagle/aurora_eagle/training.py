"""Loss and held-out acceptance of one batch.

Shape legend:
    A  anchors    N  rejected nodes    P  nodes of all depths
    K  steps      H  hidden size       B  traces

The anchor at position t predicts token t + 2 + k at step k. The target row that knows this token's
distribution is the row of position t + 1 + k. The pair is supervised if that row was captured and
the token was committed: the first anchor of a response is the prompt's last position, the last one
lies two before the end, and neither padding nor prompt ever carries loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aurora_core.interfaces import LossOutput
from aurora_eagle.collate import Batch
from aurora_eagle.config import Eagle3Options
from aurora_eagle.head_loss import read_head, supervise
from aurora_eagle.losses import OBJECTIVES
from aurora_eagle.model import Eagle3Network
from aurora_eagle.rollout import Kernel, Rollout
from aurora_eagle.teacher import Teacher
from aurora_eagle.tree import Level, levels, unroll
from aurora_eagle.weights import (
    branch_weights,
    clipped_ratios,
    discard_weights,
    fixed_depth_weights,
    reach_depth_weights,
    reach_of,
)


def compute_loss(
    network: Eagle3Network, batch: Batch, options: Eagle3Options, *, kernel: Kernel | None = None
) -> LossOutput:
    """Return the loss of one batch, summed over all supervised nodes.

    See `aurora_eagle.weights` for what each node weighs under each objective.

    Args:
        network: the drafter.
        batch: collated for the same options.
        options: of the objective.
        kernel: of the attention; see `Rollout`.
    """
    num_steps = options.training_steps
    teacher_row_KA = supervising_rows(batch, num_steps)
    supervised_KA = teacher_row_KA >= 0
    num_tokens = int(supervised_KA[0].sum())
    if not bool(supervised_KA.any()):
        # Connected to the weights, so that a backward pass finds gradients of zero.
        zero = network.fc.weight.float().sum() * 0.0
        return LossOutput(loss_sum=zero, weight_sum=zero.detach().clone(), num_tokens=0, metrics={})
    tree = levels(batch, num_steps)
    hidden = unroll(network, batch, tree, kernel=kernel)
    teacher = Teacher(
        network,
        batch,
        greedy_teacher=options.greedy_teacher,
        tokens_only=not options.uses_teacher,
    )
    trace_A = batch.row_trace[batch.anchor_row]
    weights_KB = _depth_weights(network, batch, hidden, teacher, teacher_row_KA, trace_A, options)
    committed_KA = weights_KB[:, trace_A] * supervised_KA
    weight_sum = committed_KA.sum()
    rejected_N, metrics = _rejected_weights(
        network, batch, tree, hidden, teacher, weights_KB, weight_sum, options
    )
    if options.objective == "branches":
        weight_sum = weight_sum + rejected_N.sum()

    row_P = torch.cat(
        [
            torch.cat([rows_A, batch.branch_teacher[level.branch]])
            for rows_A, level in zip(teacher_row_KA, tree, strict=True)
        ]
    )
    weight_P = torch.cat(
        [
            torch.cat([weights_A, rejected_N[level.branch]])
            for weights_A, level in zip(committed_KA, tree, strict=True)
        ]
    )
    pair = (row_P >= 0).nonzero().flatten()
    pair = pair[row_P[pair].argsort(stable=True)]
    loss_sum, hits = supervise(
        torch.cat(hidden)[pair],
        network.lm_head.weight,
        teacher=teacher,
        teacher_row=row_P[pair],
        weight=weight_P[pair],
        objective=OBJECTIVES[options.objective],
        refusal_weight=0.0 if options.uses_teacher else options.refusal_weight,
    )
    hits_P = torch.zeros(len(row_P), dtype=torch.bool, device=row_P.device)
    hits_P[pair] = hits
    sizes = [len(level.parent) for level in tree]
    num_anchors = supervised_KA.shape[1]
    hits_KA = torch.stack([level_hits[:num_anchors] for level_hits in hits_P.split(sizes)])
    return LossOutput(
        loss_sum=loss_sum,
        weight_sum=weight_sum.detach(),
        num_tokens=num_tokens,
        metrics=_metrics(hits_KA, supervised_KA) | metrics,
    )


def _depth_weights(
    network: Eagle3Network,
    batch: Batch,
    hidden: list[Tensor],
    teacher: Teacher,
    teacher_row_KA: Tensor,
    trace_A: Tensor,
    options: Eagle3Options,
) -> Tensor:
    """Return float32 [K, B]: what a draft position weighs in each trace."""
    num_traces = len(batch.teacher_row)
    if options.depth_weights == "power":
        fixed = fixed_depth_weights(options.training_steps, options.step_decay)
        return fixed.to(teacher_row_KA.device)[:, None].expand(-1, num_traces)
    num_anchors = teacher_row_KA.shape[1]
    right = []
    for level, row_A in zip(hidden, teacher_row_KA, strict=True):
        index_A = teacher.next_index[row_A.clamp(min=0)].masked_fill(row_A < 0, -1)
        right.append(read_head(level[:num_anchors], network.lm_head.weight, index_A)[1])
    return reach_depth_weights(torch.stack(right), teacher_row_KA >= 0, trace_A, num_traces)


@torch.no_grad()
def _rejected_weights(
    network: Eagle3Network,
    batch: Batch,
    tree: list[Level],
    hidden: list[Tensor],
    teacher: Teacher,
    weights_KB: Tensor,
    committed_sum: Tensor,
    options: Eagle3Options,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (float32 [N] weights of rejected nodes, metrics about them)."""
    has_row_N = batch.branch_teacher >= 0
    if not len(has_row_N):
        return has_row_N.float(), {}
    metrics = {
        "branch_nodes": has_row_N.sum().float(),
        "branch_staleness": (batch.branch_version.max() - batch.branch_version.float()).mean(),
    }
    trace_N = batch.row_trace[batch.anchor_row[batch.branch_anchor]]
    weights_N = weights_KB[batch.branch_depth, trace_N] * has_row_N
    if options.branch_ratio_limit is not None:
        now_N = torch.zeros_like(batch.branch_log_prob)
        index_N = teacher.draft_index(batch.branch_token)
        num_anchors = len(batch.anchor_row)
        for above, level in zip(hidden, tree[1:], strict=False):
            parents, index = above[level.parent[num_anchors:]], index_N[level.branch]
            now_N[level.branch], _ = read_head(parents, network.lm_head.weight, index)
        ratio_N = clipped_ratios(
            now_N, batch.branch_log_prob, batch.branch_parent, options.branch_ratio_limit
        )
        metrics["branch_ratio"] = ratio_N.mean()
        weights_N = weights_N * ratio_N
    if options.objective == "discard":
        return discard_weights(weights_N, committed_sum, options.discard_weight), metrics
    above_N = batch.branch_parent
    position_N = batch.row_position[batch.anchor_row[batch.branch_anchor]] + batch.branch_depth
    # A branch can be longer than what was committed; below its first node nobody looks there.
    position_N = position_N.clamp(max=batch.teacher_row.shape[1] - 1)
    asked_N = torch.where(
        above_N < 0,
        batch.teacher_row[trace_N, position_N],
        batch.branch_teacher[above_N.clamp(min=0)],
    )
    reach_N = reach_of(teacher.log_probability(asked_N, batch.branch_token), above_N)
    metrics["branch_reach"] = reach_N.mean()
    return branch_weights(weights_N, reach_N, options.branch_floor), metrics


@torch.no_grad()
def replay(
    network: Eagle3Network, batch: Batch, num_speculative_tokens: int
) -> tuple[Tensor, Tensor]:
    """Draft greedily from every anchor whose whole draft can be judged.

    A draft token counts as accepted while it and all before it are the committed ones. Anchors with
    fewer than `num_speculative_tokens` committed tokens after the one they follow are left out:
    their last drafts have nothing to be compared with. For a sampled request this estimates the
    acceptance of verification by point mass, for the committed tokens are then draws from it.

    Returns:
        (int64 [B, K] anchors whose first k drafts were right, int64 [B] anchors judged)
    """
    num_traces = len(batch.token_ids)
    accepted = torch.zeros(
        num_traces, num_speculative_tokens, dtype=torch.int64, device=batch.token_ids.device
    )
    rollout = Rollout(network, batch)
    rollout.keep(rollout.position + 1 + num_speculative_tokens < batch.num_tokens[rollout.trace])
    anchors = torch.bincount(rollout.trace, minlength=num_traces)
    for step in range(num_speculative_tokens):
        if not len(rollout.trace):
            break
        best_A = network.lm_head(network.norm(rollout.advance())).argmax(-1)
        committed_A = batch.token_ids[rollout.trace, rollout.position + 2 + step]
        right_A = network.target_ids[best_A] == committed_A
        rollout.keep(right_A)
        accepted[:, step] = torch.bincount(rollout.trace, minlength=num_traces)
    return accepted, anchors


def supervising_rows(batch: Batch, num_steps: int) -> Tensor:
    """Return int64 [K, A]: the target row that supervises each anchor at each step, or -1."""
    trace_A = batch.row_trace[batch.anchor_row]
    position_A = batch.row_position[batch.anchor_row]
    steps = torch.arange(num_steps, device=position_A.device)
    taught_KA = position_A + 1 + steps[:, None]
    inside_KA = taught_KA < batch.num_tokens[trace_A] - 1
    rows_KA = batch.teacher_row[trace_A.expand_as(taught_KA), taught_KA.masked_fill(~inside_KA, 0)]
    return rows_KA.masked_fill(~inside_KA, -1)


def _metrics(hits_KA: Tensor, supervised_KA: Tensor) -> dict[str, Tensor]:
    judged_A = supervised_KA.all(0)
    right_KA = hits_KA[:, judged_A].cumprod(0).float()
    num_judged = judged_A.sum().clamp(min=1)
    metrics = {"acceptance_length": 1 + right_KA.sum() / num_judged}
    for step, right_A in enumerate(right_KA, start=1):
        metrics[f"accepted_{step}"] = right_A.sum() / num_judged
    return metrics
