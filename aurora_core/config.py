"""The run configuration. Core sections are typed here, component options by the component.

Precedence: the defaults below, then the file, then `--set`. Every field carries its description:
the configuration page of the documentation and the error messages are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self

import annotated_types
import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from aurora_core import config_source
from aurora_core.config_learner import LearnerSection
from aurora_core.config_lineages import LineageSection, check_lineages
from aurora_core.config_section import ComponentSection, Section
from aurora_core.errors import ConfigError
from aurora_core.tracking_uri import check_tracking_uri

__all__ = [
    "ComponentSection",
    "FinalBenchSection",
    "GuardSection",
    "LearnerSection",
    "LineageSection",
    "RetentionSection",
    "RunConfig",
    "Section",
    "TrackingSection",
    "TrafficSection",
]

_LARGEST_SEED = (1 << 32) - 1
"""NumPy's and Lightning's limit: the learner would crash beyond it."""


class TrafficSection(Section):
    """Requests that the run sends to its own engine."""

    domains: tuple[str, ...] = ("math", "sql", "code", "finance", "chat")
    """Domains of the built-in prompt generator; ignored when `prompts` is set."""
    order: Literal["mixed", "ordered"] = "mixed"
    """`mixed` shuffles the domains, `ordered` sends one after the other."""
    prompts: Path | None = None
    """JSONL file of prompts to send instead of generated ones."""
    concurrency: int = Field(3, ge=1)
    """Requests in flight at once."""
    rate: float | None = Field(None, gt=0)
    """Requests per second; null sends the next one as soon as a slot is free."""
    max_tokens: int = Field(96, ge=1)
    """Output tokens per request."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature; 0 is greedy."""
    lossless_every: int = Field(8, ge=0)
    """Every so many requests, repeat one without speculation and compare; 0 never does. Sampled
    requests are not compared."""


class FinalBenchSection(Section):
    """The measurement at the end of a run: with and without speculation, interleaved."""

    num_prompts: int = Field(24, ge=1)
    """Held-out prompts to measure with; they are never sent as traffic."""
    max_tokens: int = Field(96, ge=1)
    """Output tokens per prompt."""
    batch_sizes: tuple[Annotated[int, annotated_types.Ge(1)], ...] = Field((1,), min_length=1)
    """Numbers of requests decoded together; the first one gives `otps` in the report."""


class GuardSection(Section):
    """What keeps a swap from making serving worse for long, whatever the swap policy says."""

    probation_requests: int = Field(100, ge=0)
    """Requests after a swap in which the new version is rolled back if it accepts less than the
    best version before it; 0 never rolls back."""
    max_loss: float = Field(0.05, ge=0, lt=1)
    """Share of tokens per step that a version on probation may fall behind."""
    min_requests: int = Field(8, ge=2)
    """Requests of a version before anything is concluded from them."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence of every such conclusion, over all looks together."""
    disable_speculation: bool = True
    """Whether speculation is switched off when decoding without it is surely faster."""
    min_acceptance_length: float = Field(1.05, ge=1)
    """A drafter that surely makes fewer tokens per step than this brings nothing, however cheap:
    speculation is switched off without waiting for requests to compare with; 1 waits for them."""
    plain_share: float = Field(0.02, ge=0, le=0.5)
    """Share of the requests that are answered without speculation, so that its true worth is known;
    needs an engine that can route requests. Until ten were, it is 10 %, unless 0."""
    cooldown_s: float = Field(60.0, ge=0)
    """Seconds before speculation that was switched off is tried again; doubles each time in a row,
    up to an hour."""
    retry_share: float = Field(0.05, gt=0, le=0.5)
    """Share of the requests on which it is tried again."""
    drift_threshold: float = Field(30.0, gt=0)
    """Score of the Page-Hinkley test from which a falling acceptance counts as drift, in standard
    deviations of one request."""
    fresh_s: float = Field(120.0, ge=0)
    """Seconds for which the learner trains on nothing but new traces after drift; 0 does not."""


class RetentionSection(Section):
    """How many versions stay on disk; those in use and the newest one always do."""

    keep_versions: int = Field(8, ge=1)
    """Newest versions to keep, at least."""
    max_bytes: int | None = Field(4 << 30, ge=0)
    """Older ones are deleted, oldest first, while all versions together take more; null deletes all
    of them."""


class TrackingSection(Section):
    """Metrics and versions in MLflow."""

    enabled: bool = True
    """Whether to log metrics and register versions."""
    experiment: str = "aurora"
    """MLflow experiment, and prefix of the registered model's name."""
    uri: str | None = None
    """MLflow tracking URI; null keeps a SQLite store in the run directory."""

    @field_validator("uri")
    @classmethod
    def _has_a_store(cls, uri: str | None) -> str | None:
        if uri is not None:
            check_tracking_uri(uri)
        return uri


class RunConfig(Section):
    """Everything `aurora run` needs to know. Immutable; built once and passed on in parts."""

    target: str = "quickstart"
    """Model to serve: a directory, a hub id, or `quickstart` for SmolLM2-135M-Instruct."""
    plugins: tuple[str, ...] | None = None
    """Plugins to load: exactly these, and a broken one is fatal; null loads all that work, an empty
    list none but core."""
    speculator: ComponentSection
    """Drafter algorithm and its options."""
    backend: ComponentSection
    """Serving engine and its options."""
    trace_sink: ComponentSection = ComponentSection(name="spool")
    """Buffer between serving and learning, and its options."""
    swap_policy: ComponentSection = ComponentSection(name="gate")
    """Judge of new versions, and its options."""
    guard: GuardSection = GuardSection()
    """Probation, roll back and the way without speculation."""
    retention: RetentionSection = RetentionSection()
    """Versions on disk."""
    num_speculative_tokens: int = Field(3, ge=1)
    """Draft tokens per verification step, at most."""
    lineages: Mapping[str, LineageSection] = {}
    """Further kinds of drafters, served at the same time; the top level describes the one that
    serves everything else. Needs a backend that holds several."""
    learner: LearnerSection = LearnerSection()
    """Training."""
    traffic: TrafficSection | None = None
    """Requests that the run sends to itself; null waits for clients."""
    requests: int | None = Field(None, ge=1)
    """End the run after so many finished requests; null serves until stopped."""
    duration_s: float | None = Field(None, gt=0)
    """End the run after so many seconds; null serves until stopped."""
    final_bench: FinalBenchSection | None = None
    """Measure the speed-up when the run ends; null does not."""
    tracking: TrackingSection = TrackingSection()
    """MLflow."""
    run_dir: Path = Path("runs/default")
    """Folder of everything the run writes; one run at a time. A later run continues from it."""
    seed: int = Field(0, ge=0, le=_LARGEST_SEED)
    """Seed of prompts, sampling, initialisation and replay."""

    @model_validator(mode="after")
    def _lineages_are_fit(self) -> Self:
        check_lineages(self.lineages)
        for name, section in self.lineages.items():
            try:
                self._learner_of(section)
            except ValidationError as error:
                raise ValueError(
                    config_source.explain(
                        error, LearnerSection, "a lineage", root=f"lineages.{name}.learner"
                    )
                ) from error
        return self

    def of_lineage(self, name: str) -> RunConfig:
        """Return what a run of one lineage alone would be configured with, in a folder of its own.

        Its folder is a run directory like any other: whatever reads one reads a lineage.

        Args:
            name: of a lineage; empty for the default one, which is this configuration.
        """
        if not name:
            return self
        section = self.lineages[name]
        sink = section.trace_sink
        if sink is None:
            # Its own place: two lineages do not share their traces.
            options = {
                key: value for key, value in self.trace_sink.options.items() if key != "path"
            }
            sink = ComponentSection.model_validate({"name": self.trace_sink.name, **options})
        return self.model_copy(
            update={
                "speculator": section.speculator,
                "swap_policy": section.swap_policy or self.swap_policy,
                "num_speculative_tokens": section.num_speculative_tokens
                or self.num_speculative_tokens,
                "learner": self._learner_of(section),
                "trace_sink": sink,
                "lineages": {},
                "run_dir": self.run_dir / "lineages" / name,
            }
        )

    def _learner_of(self, section: LineageSection) -> LearnerSection:
        return LearnerSection.model_validate({**self.learner.model_dump(), **section.learner})

    @classmethod
    def load(cls, path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
        """Read a YAML file, or the quickstart without one, and apply `key.path=value` overrides.

        Raises:
            ConfigError: unreadable, unknown or unfit; the message names the user's own paths.
        """
        if path is None:
            return cls.quickstart(overrides)
        return cls._from_text(config_source.read(path), str(path), overrides)

    @classmethod
    def quickstart(cls, overrides: Sequence[str] = ()) -> RunConfig:
        """Return what `aurora run` does without a configuration file."""
        text = resources.files("aurora_core").joinpath("quickstart.yaml").read_text("utf-8")
        return cls._from_text(text, "the quickstart", overrides)

    @classmethod
    def _from_text(cls, text: str, source: str, overrides: Sequence[str]) -> RunConfig:
        values = config_source.parse(text, source)
        for override in overrides:
            values = config_source.override(values, override)
        if overrides:
            source = f"{source} with --set"
        config_source.check_texts(values, source)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(config_source.explain(error, cls, source)) from error

    def to_yaml(self) -> str:
        """Return the configuration, defaults included, as YAML that loads to an equal one."""
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
        return text
