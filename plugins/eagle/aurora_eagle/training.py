"""Loss and held-out acceptance of one batch.

Shape legend:
    A  anchors    K  steps    H  hidden size    B  traces

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
from aurora_eagle.head_loss import supervise
from aurora_eagle.losses import OBJECTIVES
from aurora_eagle.model import Eagle3Network
from aurora_eagle.rollout import Rollout
from aurora_eagle.teacher import Teacher


def compute_loss(network: Eagle3Network, batch: Batch, options: Eagle3Options) -> LossOutput:
    """Return the loss of one batch, summed over all supervised (anchor, step) pairs.

    A pair at step k weighs `step_decay ** k`.
    """
    num_steps = options.training_steps
    teacher_row_KA = supervising_rows(batch, num_steps)
    supervised_KA = teacher_row_KA >= 0
    decay_K = options.step_decay ** torch.arange(num_steps, device=teacher_row_KA.device).float()
    weight_KA = decay_K[:, None] * supervised_KA
    num_tokens = int(supervised_KA[0].sum())
    if not bool(supervised_KA.any()):
        # Connected to the weights, so that a backward pass finds gradients of zero.
        zero = network.fc.weight.float().sum() * 0.0
        return LossOutput(
            loss_sum=zero, weight_sum=weight_KA.sum().detach(), num_tokens=0, metrics={}
        )
    rollout = Rollout(network, batch)
    hidden_PH = torch.cat([network.norm(rollout.advance()) for _ in range(num_steps)])
    pair = supervised_KA.flatten().nonzero().flatten()
    pair = pair[teacher_row_KA.flatten()[pair].argsort(stable=True)]
    loss_sum, hits = supervise(
        hidden_PH[pair],
        network.lm_head.weight,
        teacher=Teacher(network, batch, greedy_teacher=options.greedy_teacher),
        teacher_row=teacher_row_KA.flatten()[pair],
        weight=weight_KA.flatten()[pair],
        objective=OBJECTIVES[options.objective],
    )
    hits_KA = torch.zeros_like(supervised_KA)
    hits_KA.view(-1)[pair] = hits
    weight_sum = weight_KA.sum()
    return LossOutput(
        loss_sum=loss_sum,
        weight_sum=weight_sum,
        num_tokens=num_tokens,
        metrics=_metrics(hits_KA, supervised_KA),
    )


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
