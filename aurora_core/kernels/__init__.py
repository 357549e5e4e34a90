"""Row-invariant inference kernels shared by engines and drafters.

Every output row is computed by the same sequence of float32 operations whatever else is in the
batch. A token therefore gets the same logits, to the last bit, whether it is decoded alone,
verified as one of several draft tokens, prefilled in a chunk or batched with others. Speculation,
batching and swaps cannot change the output, and a captured feature does not depend on the batch.

On CPUs the kernels are compiled by numba and stream bfloat16 or float32 weights once per call; on
other devices, or without numba, torch operators do the work (`compiled()` tells which).
"""

from aurora_core.kernels.activations import silu_multiply
from aurora_core.kernels.attention import addresses, attend, rotate_and_store
from aurora_core.kernels.decoder import Decoder, DecoderShape, LayerWeights, RowPlan
from aurora_core.kernels.dispatch import compiled, set_num_threads
from aurora_core.kernels.linear import linear
from aurora_core.kernels.normalization import rms_norm
from aurora_core.kernels.reduction import argmax_logsumexp

__all__ = [
    "Decoder",
    "DecoderShape",
    "LayerWeights",
    "RowPlan",
    "addresses",
    "argmax_logsumexp",
    "attend",
    "compiled",
    "linear",
    "rms_norm",
    "rotate_and_store",
    "set_num_threads",
    "silu_multiply",
]
