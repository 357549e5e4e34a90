"""Records exchanged between engines, trace sinks, learners and swap policies.

This is where they are imported from, whichever file they stand in. K in shapes is
num_speculative_tokens; the shapes of traces are explained in trace_records.py.

This module imports without torch, so that a controller and `aurora check` stay light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aurora_core.serving_figures import (
    Drift,
    Sample,
    ServingStats,
    SwapCost,
    SwitchedOff,
    TrafficSlice,
    Trial,
)
from aurora_core.trace_records import (
    NO_DRAFTER,
    TRACE_SCHEMA,
    FeatureName,
    Nodes,
    Rows,
    Sampling,
    Steps,
    Trace,
    VerificationRule,
)

__all__ = [
    "NO_DRAFTER",
    "TRACE_SCHEMA",
    "UNTRAINED",
    "BackendStatus",
    "DraftVersion",
    "Drift",
    "Evidence",
    "FeatureName",
    "Holdout",
    "Needs",
    "Nodes",
    "Provides",
    "Registration",
    "RequestStats",
    "Route",
    "Rows",
    "Sample",
    "Sampling",
    "ServingStats",
    "ShadowStats",
    "SinkStats",
    "Steps",
    "SwapCost",
    "SwapReceipt",
    "SwitchedOff",
    "TargetSpec",
    "Trace",
    "TrafficSlice",
    "Trial",
    "Verdict",
    "VerificationRule",
]

UNTRAINED = 0
"""Draft version of a speculator that is not trainable: it has no weights to publish."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Names a component without importing it."""

    name: str
    """Value of `name:` in the config section; lowercase, unique per kind."""
    target: str
    """"module:Class", imported only when a config selects the name."""
    summary: str = ""
    """One line for `aurora plugins`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """Facts about the target model; everything a controller may know without loading it."""

    name: str
    """What the user called it: a hub id, a directory, or `quickstart`."""
    path: str
    """Local directory with config.json, safetensors weights and a tokenizer."""
    architecture: str
    """Entry of `architectures` in config.json, for example LlamaForCausalLM."""
    fingerprint: str
    """Hash of the configuration and weights; equal targets have equal fingerprints."""
    tokenizer_fingerprint: str
    """Hash of the vocabulary, special tokens and chat template."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a speculator requires in every trace to learn, and in every step to draft."""

    features: frozenset[str] = frozenset()
    """Subset of `FeatureName` values."""
    aux_layers: tuple[int, ...] = ()
    """Layer ids of `aux_hidden_states`, in the `entering` convention."""
    branch_rows: bool = False
    """Whether rows of rejected draft nodes are required too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provides:
    """What a backend can do for a speculator."""

    features: frozenset[str] = frozenset()
    """Features it can capture at committed positions."""
    branch_rows: bool = False
    """Whether it captures features at rejected draft nodes."""
    topologies: frozenset[str] = frozenset({"chain"})
    """Shapes of proposals it can verify: `chain`, `tree`."""
    formats: frozenset[str] = frozenset()
    """Checkpoint formats it can load; `module` means it steps the speculator's own module."""
    hot_swap: Literal["none", "restart", "pause", "live"] = "none"
    """Whether and how a drafter can be replaced while serving. With `restart` a run records, learns
    and judges, and `Backend.to_swap` says how a version goes live."""
    verification_rules: frozenset[str] = frozenset({"greedy"})
    """Values of `VerificationRule` in use."""
    num_resident_drafters: int = 1
    """Drafters that can be loaded side by side."""
    request_routing: bool = False
    """Whether one request can be sent to a chosen resident drafter, or to none."""
    holds_lineages: bool = False
    """Whether several lineages, each with a speculator and versions of its own, are served at once
    and requests are given to them by tenant, route or share."""
    shadow_drafting: bool = False
    """Whether a resident drafter can draft beside the one that serves, without being used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStats:
    """What a drafter would have done for a request that another one served, or none.

    It drafts from its own roots: each lies where its draft before would have left the request.
    """

    version: int
    num_steps: int
    """Verification steps that it would have taken, as far as it kept up with the request."""
    num_drafted: int
    accepted_per_position: tuple[int, ...]
    """[K] Steps in which its draft position k was what the target chose."""
    draft_s: float
    """Seconds it drafted; a batch's time counts for each of its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """One finished request as the controller sees it: counts and times, no tensors."""

    sequence: int
    """Increases by one with every finished request of an engine process."""
    request_id: str
    finished: float
    """Unix seconds."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int
    """Verification steps, plain decoding steps included."""
    num_speculative_steps: int
    """Verification steps that carried at least one draft token."""
    num_drafted: int
    accepted_per_position: tuple[int, ...]
    """[K] Steps in which draft position k was accepted."""
    min_draft_version: int
    """Oldest draft version in use while decoding; `NO_DRAFTER` for none."""
    max_draft_version: int
    ttft_s: float
    """Seconds from arrival to the first token."""
    decode_s: float
    """Seconds from the first token to the last."""
    finish_reason: str
    tenant: str = ""
    route: str = ""
    batch_size: float = 1.0
    """Mean number of requests decoded together with this one."""
    lineage: str = ""
    """Lineage whose drafters served it, and whose versions the two above are; empty for the default
    one."""
    shadow: ShadowStats | None = None
    """Of a version that drafted beside, unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVersion:
    """A published set of drafter weights: immutable once its directory exists."""

    version: int
    """Increases by one with every publish of a run."""
    path: str
    """Directory with version.json and the exported checkpoint."""
    parent: int | None
    """Version the learner started from, None for the first of a lineage."""
    speculator: str
    target_fingerprint: str
    global_step: int
    """Optimizer steps behind these weights."""
    num_tokens_trained: int
    """Response positions trained on, replays included."""
    created: float
    """Unix seconds."""
    checksum: str
    """sha256 of model.safetensors."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Scalars of the last training window and of the held-out replay."""
    holdout: Holdout | None = None
    """Held-out replay of this version beside the version that was live; None without traces."""
    objective: str = ""
    """What was minimised, as the speculator's options name it; empty where they name none."""
    data_window: tuple[float, float] | None = None
    """Unix seconds at which the oldest and the newest request arrived that were learned from since
    the version before; None if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdout:
    """Held-out replay of two drafters on the same recent traces, one entry per trace.

    Every committed position is drafted from once, which compares two drafters with the least
    noise. Serving sees less than this mean: it must draft again wherever drafting just failed, and
    jumps over the positions where it went well.
    """

    live_version: int | None
    """The version compared with; None when the engine served without a drafter."""
    num_anchors: tuple[int, ...]
    """Committed positions scored per trace."""
    candidate_accepted: tuple[tuple[int, ...], ...]
    """Per trace, per draft position: anchors whose first k drafts were all right. [traces][K]"""
    live_accepted: tuple[tuple[int, ...], ...]
    """The same for the live drafter; empty without one."""
    tenants: tuple[str, ...] = ()
    """Per trace; empty where traces carry none. [traces]"""
    routes: tuple[str, ...] = ()
    """Per trace; empty where traces carry none. [traces]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything a swap policy may look at. Gathered by the controller, logged with the verdict."""

    candidate: DraftVersion
    live: DraftVersion | None
    previous: DraftVersion | None
    serving: tuple[ServingStats, ...]
    """One entry per version seen in the recent window, `NO_DRAFTER` included when measured."""
    num_requests_since_swap: int
    seconds_since_swap: float
    num_tokens_since_swap: int = 0
    """Output tokens of those requests."""
    since_swap: ServingStats | None = None
    """What is live, over the requests that it alone served since the last swap."""
    without_speculation: ServingStats | None = None
    """The standing estimate of speed without speculation: requests that no drafter served since
    the first one went live, and so beside the same learner."""
    swap_cost: SwapCost | None = None
    """None before the first swap of a run."""
    trial: Trial | None = None
    """A version that serves a share of the requests now."""
    waiting: DraftVersion | None = None
    """A newer version than the candidate, which is judged once the candidate is not any more."""
    drift: tuple[Drift, ...] = ()
    """One entry per tenant with enough recent requests of the live version."""
    stored: tuple[int, ...] = ()
    """Versions on disk, which a verdict may return to."""
    can_route: bool = False
    """Whether the engine can send a share of the requests to another version."""
    pinned: bool = False
    """Whether a person chose what is live: it stays until they let go."""
    switched_off: SwitchedOff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a swap policy decided, and why. The reason is logged verbatim."""

    action: Literal[
        "hold", "shadow", "canary", "promote", "roll_back", "drop", "disable_speculation"
    ]
    """What is to become of the candidate; a review of the live version says what becomes of it.

        hold                 nothing changes; judged again later
        shadow, canary       it drafts for a share of the requests: unused, or used
        promote              it goes live
        drop                 it is not judged again
        roll_back            `version` goes live, or else the previous one
        disable_speculation  no drafter is live
    """
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures the verdict rests on."""
    version: int | None = None
    """Where a roll back goes; None is the previous version."""
    share: float = 0.0
    """Share of the requests for `shadow` and `canary`, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A share of the requests that a backend gives to another drafter than the live one.

    Shadow routes take no request from another route: their drafter drafts beside whoever serves.
    """

    draft: DraftVersion | None
    """Loaded beside the live one; None answers without speculation."""
    share: float
    """Share of the requests that name no drafter themselves, 0 to 1."""
    shadow: bool = False
    """Whether its drafts are only counted, in `RequestStats.shadow`, and never used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReceipt:
    """What the engine reports after a drafter became live."""

    version: int
    """`NO_DRAFTER` when speculation was switched off."""
    checksum: str
    """sha256 of the checkpoint, read back from the engine; empty without a drafter."""
    load_ms: float
    """Reading and checking the checkpoint, beside serving."""
    stall_ms: float
    """Time for which the decoding loop did not decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """A running engine, read in one call."""

    live_version: int
    checksum: str
    num_running: int
    num_waiting: int
    memory_mib: float
    """Resident memory of the engine."""
    traces_kept: int
    traces_shed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStats:
    """What a trace sink holds and what it let go."""

    num_traces: int
    num_bytes: int
    kept: int
    """Traces accepted since the sink was created."""
    shed: Mapping[str, int] = field(default_factory=dict)
    """Reason -> traces refused or dropped."""
