"""Copies of what a pass leaves in the engine's buffers, as features of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from aurora_backend_sglang.engine.settings import EngineSettings


def capture(output: Any, settings: EngineSettings, *, last_logits_only: bool) -> dict[str, Tensor]:
    """Return the wanted features of a pass by name, copied off the device's buffers.

    Args:
        output: SGLang's `LogitsProcessorOutput`.
        settings: which features, and in which type of number.
        last_logits_only: the pass read prompts, and has logits of their last rows alone.
    """
    import torch

    dtype: torch.dtype = getattr(torch, settings.feature_dtype)
    wanted = settings.needs.features
    features = {}
    # One copy each, off the buffers that the next pass will overwrite.
    for name, tensor in (
        ("aux_hidden_states", output.hidden_states),
        ("last_hidden_state", output.last_hidden_states),
    ):
        if name in wanted and tensor is not None:
            features[name] = tensor.detach().to("cpu", dtype, copy=True)
    if "target_logsumexp" in wanted and not last_logits_only:
        logits = output.next_token_logits.detach().float()
        features["target_logsumexp"] = logits.logsumexp(-1).cpu()
    return features


def last_row_alone(output: Any, index: int, count: int) -> Tensor:
    """Return the logsumexp of a prompt's rows, float32 [count]: NaN for all but the last.

    Args:
        output: SGLang's `LogitsProcessorOutput`, with logits of the last row of each prompt.
        index: of the prompt.
        count: rows of the prompt that were read.
    """
    import torch

    rows = torch.full((count,), float("nan"))
    rows[-1] = output.next_token_logits[index].detach().float().logsumexp(-1)
    return rows
