"""Results made by hand, and `aurora run` replaced by a fake engine in this process."""

from __future__ import annotations

import contextlib
import hashlib
import json

from aurora_core.config import RunConfig
from aurora_core.errors import BackendError
from aurora_core.experiments.results import ArmResult, RequestFigures
from aurora_core.experiments.server_gone import ServerGone
from aurora_core.interfaces import ServePlan
from aurora_core.records import Needs, TargetSpec
from aurora_core.testing.fake_backend import FakeBackend, FakeBackendOptions
from aurora_core.versions import RunState, VersionStore, read_run_state, write_run_state


def figures(
    index,
    *,
    accepted=10,
    steps=10,
    otps=10.0,
    domain="sql",
    error="",
    tokens=(1, 2),
    draft_version=1,
):
    return RequestFigures(
        index=index,
        domain=domain,
        error=error,
        num_output_tokens=len(tokens),
        num_steps=0 if error else steps,
        num_accepted=0 if error else accepted,
        otps=None if error else otps,
        ended_s=float(index + 1),
        token_ids=() if error else tokens,
        min_draft_version=draft_version,
        max_draft_version=draft_version,
    )


def result(requests, *, arm="gate", stream="ordered", seed=0, references=(), events=()):
    return ArmResult(
        arm=arm,
        stream=stream,
        seed=seed,
        requests=tuple(requests),
        references=tuple(references),
        events=tuple(events),
        wall_s=float(len(requests)),
        started=0.0,
    )


def write_versions(run_dir, numbers, *, champion=None):
    """Lay out a run directory with some versions, the last of them live."""
    store = VersionStore(run_dir / "versions")
    for number in numbers:
        store.stage(
            number,
            lambda path, number=number: (path / "model.safetensors").write_bytes(
                f"weights of {number}".encode()
            ),
            parent=None,
            speculator="fake",
            target_fingerprint="f",
            global_step=number,
            num_tokens_trained=1,
        )
    write_run_state(run_dir / "state.json", RunState(champion=champion or numbers[-1]))
    return store


def make_config(run_dir, **update):
    return RunConfig.model_validate(
        {
            "target": "t",
            "speculator": "fake",
            "backend": "fake",
            "tracking": {"enabled": False},
            "run_dir": str(run_dir),
        }
        | update
    )


class FailingBackend(FakeBackend):
    """Lives, and answers what asks for no drafts; everything else fails from some request on."""

    def __init__(self, options, *, answers_before_failing):
        super().__init__(options)
        self.answers_before_failing = answers_before_failing

    async def answer(self, body, prompt):
        wants_drafts = (body.get("aurora") or {}).get("drafter") != "none"
        if wants_drafts and len(self._requests) >= self.answers_before_failing:
            raise BackendError("it fails on purpose")
        return await super().answer(body, prompt)


class FakeServing:
    """What `serve` does, without a process; writes down which arms were served."""

    def __init__(self):
        self.served = []
        self.fail_on = None
        self.gone_on = None
        """Arm whose server is found to be gone when its stream has ended."""
        self.answers_before_failing = {}
        """Arm -> requests that are answered before all others fail."""
        self.options = {"step_ms": 0.01, "max_answer_tokens": 12}

    @contextlib.asynccontextmanager
    async def __call__(self, config):
        run_dir = config.run_dir
        self.served.append(run_dir.name)
        if run_dir.name == self.fail_on:
            raise KeyboardInterrupt
        options = FakeBackendOptions(port=config.backend.options["port"], **self.options)
        backend = FakeBackend(options)
        if run_dir.name in self.answers_before_failing:
            before = self.answers_before_failing[run_dir.name]
            backend = FailingBackend(options, answers_before_failing=before)
        state = read_run_state(run_dir / "state.json")
        live = None
        if state.champion is not None:
            live = VersionStore(run_dir / "versions").verify(state.champion)
        await backend.start(plan(live))
        if run_dir.name == "pretrained":
            write_versions(run_dir, [1, 2])
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "verdicts.jsonl").write_text(json.dumps({"kind": "start", "time": 0.0}) + "\n")
        try:
            yield backend.url
        finally:
            await backend.stop()
        if run_dir.name == self.gone_on:
            raise ServerGone("`aurora run` ended before everything was asked, with status 137")


def plan(live):
    fingerprint = hashlib.sha256(b"target").hexdigest()
    target = TargetSpec(
        name="t", path="t", architecture="LlamaForCausalLM", fingerprint=fingerprint,
        tokenizer_fingerprint=fingerprint, vocab_size=8, hidden_size=4, num_layers=2,
        max_position_embeddings=64,
    )  # fmt: skip
    return ServePlan(
        target=target, speculator="fake", speculator_options={}, plugins=None, needs=Needs(),
        num_speculative_tokens=3, versions_dir="", initial_version=live, sink=None,
        sink_options={}, run_dir="", seed=0,
    )  # fmt: skip
