"""What a learner process needs to run on the toy: an installed plugin, a target, traces, a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from aurora_core.config import LearnerSection
from aurora_core.learner.plan import LearnerPlan
from aurora_core.records import DraftVersion, TargetSpec, Trace
from aurora_core.spool import SpoolOptions, open_writer
from aurora_core.testing.traces import make_trace

_DIST_INFO = "aurora_toy-0.1.0.dist-info"


def install_toy(folder: Path) -> Path:
    """Lay out a distribution that registers the toy, as pip would; put `folder` on the path."""
    dist_info = folder / _DIST_INFO
    dist_info.mkdir(parents=True, exist_ok=True)
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: aurora-toy\nVersion: 0.1.0\n")
    (dist_info / "entry_points.txt").write_text(
        "[aurora_core.plugins]\ntoy = aurora_core.testing.toy_speculator\n"
    )
    return folder


def make_learnable_trace(
    seed: int,
    target: TargetSpec,
    *,
    num_tokens: int = 24,
    prompt_len: int = 4,
    version: int = -1,
    last_hidden_state: float | None = None,
    trace_id: str | None = None,
) -> Trace:
    """Return a trace in which every token follows from the one before: (5 t + 7) modulo 61.

    A drafter that learns anything learns this. Steps are plain ones; hidden states are faint noise.

    Args:
        seed: of the first token and the noise.
        target: gives sizes and fingerprints.
        version: draft version that the steps claim.
        last_hidden_state: fills the feature with one value, for example NaN.
    """
    trace = make_trace(
        seed,
        vocab_size=61,
        hidden_size=target.hidden_size,
        prompt_len=prompt_len,
        num_steps=num_tokens - prompt_len,
        version=-1,
        features=("last_hidden_state",),
        target_fingerprint=target.fingerprint,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        request_key=str(seed),
        trace_id=trace_id,
    )
    tokens = [seed % 61]
    while len(tokens) < num_tokens:
        tokens.append((5 * tokens[-1] + 7) % 61)
    token_ids = torch.tensor(tokens)
    features = {name: 0.1 * feature for name, feature in trace.features.items()}
    if last_hidden_state is not None:
        features = {name: torch.full_like(f, last_hidden_state) for name, f in features.items()}
    return dataclasses.replace(
        trace,
        token_ids=token_ids,
        steps=dataclasses.replace(
            trace.steps,
            bonus_token=token_ids[trace.steps.root + 1],
            version=torch.full_like(trace.steps.version, version),
        ),
        features=features,
    )


def write_traces(path: Path, traces: list[Trace], **options: Any) -> None:
    """Put traces into the spool at `path` and wait until they are on disk."""
    for start in range(0, len(traces), 32):
        writer = open_writer(SpoolOptions(path=path, **options).url)
        kept = [writer.put(trace) for trace in traces[start : start + 32]]
        writer.close()
        assert all(kept), writer.stats()


def make_toy_plan(
    run_dir: Path,
    target: TargetSpec,
    *,
    initial_version: DraftVersion | None = None,
    speculator_options: dict[str, object] | None = None,
    sink_options: dict[str, object] | None = None,
    **learner: Any,
) -> LearnerPlan:
    """Return a plan that trains the toy in `run_dir`, quickly.

    Args:
        run_dir: gets `spool`, `versions` and `learner`.
        target: of the traces.
        initial_version: live at the start.
        speculator_options: of the toy.
        sink_options: of the spool, besides its path.
        learner: fields of the learner section that differ from the defaults here.
    """
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "start_traces": 8,
        "first_publish_steps": 5,
        "publish_every_s": 3600.0,
        "warmup_steps": 2,
        "matrix_learning_rate": 0.05,
        "learning_rate": 0.02,
    }
    return LearnerPlan(
        target=target,
        speculator="toy",
        speculator_options=speculator_options or {},
        plugins=("toy",),
        sink="spool",
        sink_options={"path": str(run_dir / "spool"), **(sink_options or {})},
        versions_dir=str(run_dir / "versions"),
        learner_dir=str(run_dir / "learner"),
        initial_version=initial_version,
        num_speculative_tokens=3,
        learner=LearnerSection.model_validate(defaults | learner),
        seed=0,
    )
