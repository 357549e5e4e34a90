"""The `learner` section of the run configuration."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from aurora_core.config_section import Section


class LearnerSection(Section):
    """How the learner process trains, publishes and restarts."""

    num_threads: int = Field(1, ge=1)
    """CPU threads of the learner; the engine has its own count, and together they should not
    exceed the cores of the machine."""
    niceness: int = Field(0, ge=0, le=19)
    """How readily the learner leaves the processor to others, as for `nice`."""
    batch_traces: int = Field(4, ge=1)
    """Traces per optimizer step."""
    fresh_traces: int = Field(2, ge=0)
    """At most this many traces of a batch are new ones; the rest are replayed."""
    max_replays_per_trace: int = Field(16, ge=0)
    """Times that a trace is replayed, on average; then training rests until new traces arrive."""
    matrix_learning_rate: float = Field(0.01, gt=0)
    """Learning rate of Muon, which trains the matrices inside the drafter."""
    learning_rate: float = Field(0.001, gt=0)
    """Learning rate of AdamW, which trains everything else: head, embeddings, norms."""
    gradient_clip: float = Field(1.0, ge=0)
    """Gradient norm to clip to; 0 does not clip."""
    warmup_steps: int = Field(10, ge=0)
    """Optimizer steps over which the learning rates rise from nothing; then they are constant."""
    average_decay: float = Field(0.0, ge=0, lt=1)
    """Publish an exponential moving average of the weights with this decay a step; 0 publishes the
    weights themselves."""
    max_bad_share: float = Field(0.5, gt=0, le=1)
    """Share of unusable traces and batches above which training pauses."""
    start_traces: int = Field(16, ge=1)
    """Traces to wait for before a new lineage starts; its draft vocabulary is chosen from them."""
    first_publish_steps: int = Field(20, ge=1)
    """Optimizer steps before the first version of a lineage is published."""
    publish_every_s: float = Field(45.0, ge=0)
    """Seconds between published versions."""
    publish_every_steps: int = Field(0, ge=0)
    """Optimizer steps after which a version is published even sooner; 0 goes by time alone."""
    checkpoint_every_s: float = Field(60.0, ge=0)
    """Seconds between checkpoints to resume from."""
    holdout_traces: int = Field(32, ge=0)
    """Most recent held-out traces on which every version is scored before it is judged."""
    max_steps: int = Field(-1, ge=-1)
    """Optimizer steps; -1 trains for as long as the run lasts."""
    max_restarts: int = Field(5, ge=0)
    """Times a crashed learner is restarted from its last checkpoint; after that the run serves on
    without learning."""
    accelerator: str = "auto"
    """Lightning's accelerator: `auto`, `cpu`, `gpu`."""
    devices: int | Literal["auto"] = 1
    """Lightning's number of devices."""
    strategy: str = "auto"
    """Lightning's strategy: `auto`, or `ddp` and its variants for several devices."""
    precision: str = "32-true"
    """Lightning's precision: `32-true`, `bf16-mixed`, `bf16-true`."""
    concurrent: int = Field(1, ge=1)
    """Learners that train at the same time when there are several lineages; the others rest."""
    turn_s: float = Field(20.0, gt=0)
    """Seconds for which a learner trains before it makes way for another one that rests."""

    @model_validator(mode="after")
    def _fresh_fits_in_batch(self) -> Self:
        if self.fresh_traces > self.batch_traces:
            raise ValueError(
                f"fresh_traces ({self.fresh_traces}) exceeds batch_traces ({self.batch_traces})"
            )
        return self
