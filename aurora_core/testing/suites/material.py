"""What suites work on: a tiny target, its exact computation, and traces recorded from it.

All of it is made once per process: a session runs many suites.
"""

from __future__ import annotations

import atexit
import copy
import functools
import tempfile

import torch

from aurora_core.records import Needs, TargetSpec, Trace
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.reference_engine import ReferenceEngine
from aurora_core.testing.reference_target import ReferenceTarget
from aurora_core.testing.scripted_drafter import ScriptedDrafter
from aurora_core.testing.tiny_target import make_tiny_target

PROMPT_LENGTHS = (7, 13, 5, 9)
NUM_ANSWER_TOKENS = 18
NUM_MEMORISED_TOKENS = 24
SHARPNESS = 4.0
"""Logits of the target are so much larger that soft targets teach its best token in few steps."""
CLEAR_SEED = 12
"""Prompt whose answer has no near-ties between the best token and the next."""


@functools.cache
def tiny_target() -> TargetSpec:
    """Return a random Llama of 4 layers and 256 tokens that lies in a folder of this process."""
    folder = tempfile.TemporaryDirectory(prefix="aurora-tiny-target-")
    atexit.register(folder.cleanup)
    return read_target_spec(make_tiny_target(folder.name, sharpness=SHARPNESS), name="tiny")


@functools.cache
def reference_target(target: TargetSpec) -> ReferenceTarget:
    """Return the exact computation of a target."""
    return ReferenceTarget(target)


@functools.cache
def prompt_of(seed: int, length: int, target: TargetSpec) -> tuple[int, ...]:
    """Return random tokens without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, target.vocab_size, (length,), generator=generator).tolist())


def recorded_traces(target: TargetSpec, needs: Needs, *, branching: int) -> list[Trace]:
    """Return greedy answers to a few prompts, drafted with some errors.

    Args:
        branching: children per draft node; 1 records chains.
    """
    return copy.deepcopy(_recorded_traces(target, needs, branching))


@functools.cache
def _recorded_traces(target: TargetSpec, needs: Needs, branching: int) -> list[Trace]:
    engine = ReferenceEngine(reference_target(target), needs)
    traces = []
    for seed, length in enumerate(PROMPT_LENGTHS):
        prompt = prompt_of(seed, length, target)
        answer = engine.serve(prompt, max_tokens=NUM_ANSWER_TOKENS + 4)
        drafter = ScriptedDrafter(
            answer.token_ids.tolist(),
            vocab_size=target.vocab_size,
            right=0.7,
            branching=branching,
            seed=seed,
        )
        traces.append(
            engine.serve(
                prompt, drafter, max_tokens=NUM_ANSWER_TOKENS, max_nodes=3 * branching, version=1
            )
        )
    return traces


def plain_trace(
    target: TargetSpec,
    needs: Needs,
    *,
    seed: int = CLEAR_SEED,
    prompt_len: int = 7,
    num_response: int,
) -> Trace:
    """Return a greedy answer that was decoded without a drafter."""
    return copy.deepcopy(_plain_trace(target, needs, seed, prompt_len, num_response))


@functools.cache
def _plain_trace(
    target: TargetSpec, needs: Needs, seed: int, prompt_len: int, num_response: int
) -> Trace:
    engine = ReferenceEngine(reference_target(target), needs)
    return engine.serve(prompt_of(seed, prompt_len, target), max_tokens=num_response)
