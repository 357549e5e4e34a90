"""A run as MLflow shows it: metrics with their steps, verdicts, configuration, report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest
from pydantic import BaseModel

from aurora_core import hookspecs
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Evidence,
    RequestStats,
    SwapReceipt,
    Verdict,
)
from aurora_core.serving_metrics import WINDOW_REQUESTS, last_requests, serving_metrics
from aurora_core.testing.mlflow_store import copy_empty_store
from aurora_core.tracking import Tracking, flatten

mlflow = pytest.importorskip("mlflow")
TIMEOUT_S = 120.0


def request(sequence: int, **changes: object) -> RequestStats:
    values: dict[str, object] = {
        "sequence": sequence,
        "request_id": str(sequence),
        "finished": 0.0,
        "num_prompt_tokens": 5,
        "num_output_tokens": 11,
        "num_steps": 5,
        "num_speculative_steps": 5,
        "num_drafted": 10,
        "accepted_per_position": (4, 2),
        "min_draft_version": 1,
        "max_draft_version": 2,
        "ttft_s": 0.5,
        "decode_s": 2.0,
        "finish_reason": "stop",
    }
    return RequestStats(**(values | changes))


def draft(run_dir: Path, version: int) -> DraftVersion:
    path = run_dir / f"v{version:06d}"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    return DraftVersion(
        version=version,
        path=str(path),
        parent=None,
        speculator="toy",
        target_fingerprint="target",
        global_step=3,
        num_tokens_trained=4,
        created=0.0,
        checksum=f"sum{version}",
    )


def evidence(candidate: DraftVersion) -> Evidence:
    return Evidence(
        candidate=candidate,
        live=None,
        previous=None,
        serving=(),
        num_requests_since_swap=0,
        seconds_since_swap=0.0,
    )


class Config(BaseModel):
    target: str = "quickstart"
    speculator: dict[str, object] = {"name": "toy"}
    backend: dict[str, object] = {"name": "torch", "api_key": "hunter2", "tags": ["a", "b"]}
    many: dict[str, int] = {f"key{number}": number for number in range(150)}


@pytest.fixture
def run(tmp_path):
    """The hooks of a run with tracking, and what MLflow holds once it is closed."""
    manager = pluggy.PluginManager("aurora")
    manager.add_hookspecs(hookspecs)
    copy_empty_store(tmp_path)
    tracking = Tracking(tmp_path)
    manager.register(tracking)
    manager.check_pending()

    def closed():
        assert tracking.close(timeout_s=TIMEOUT_S)
        assert tracking.session.num_failed == 0
        client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
        return client, client.get_run(tracking.session.run_id)

    yield SimpleNamespace(hook=manager.hook, closed=closed, tracking=tracking)
    tracking.close(timeout_s=TIMEOUT_S)


def history(client, run, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


def test_serving_metrics_are_pooled_over_requests():
    metrics = serving_metrics(
        [request(1), request(2, num_steps=15, accepted_per_position=(6,), num_drafted=20)]
    )
    assert metrics["serve/acceptance_length"] == pytest.approx(1 + 12 / 20)
    assert metrics["serve/acceptance_rate"] == pytest.approx(12 / 30)
    assert metrics["serve/acceptance_at_1"] == pytest.approx(10 / 20)
    assert metrics["serve/acceptance_at_2"] == pytest.approx(2 / 20)
    assert metrics["serve/otps"] == pytest.approx(5.0)
    assert "serve/otps" not in serving_metrics([request(1, num_output_tokens=1, decode_s=0.0)])


def test_a_position_that_nothing_was_drafted_at_has_rate_0(run):
    """Were it left out, the curve would be that of the batches in which it was reached."""
    run.hook.aurora_requests_finished(requests=[request(1)])
    later = [request(number, accepted_per_position=(3,)) for number in range(WINDOW_REQUESTS)]
    run.hook.aurora_requests_finished(requests=later)
    client, stored = run.closed()
    assert history(client, stored, "serve/acceptance_at_2") == [(1, 0.4), (33, 0.0)]


def test_a_point_is_of_the_last_requests_and_counts_what_just_finished(run):
    run.hook.aurora_requests_finished(requests=[request(1)])
    run.hook.aurora_requests_finished(requests=[request(2, accepted_per_position=(0, 0))])
    client, stored = run.closed()
    assert history(client, stored, "serve/acceptance_length") == [(1, 2.2), (2, 1.6)]
    assert history(client, stored, "serve/num_requests") == [(1, 1.0), (2, 1.0)]


def test_the_last_requests_are_all_that_just_finished_at_least():
    older = [request(number) for number in range(WINDOW_REQUESTS)]
    newer = [request(number) for number in range(40, 43)]
    assert last_requests(older, newer) == (*older[3:], *newer)
    many = [request(number) for number in range(2 * WINDOW_REQUESTS)]
    assert last_requests(older, many) == tuple(many)


def test_requests_without_speculation_on_purpose_have_a_speed_of_their_own():
    plain = request(
        2, min_draft_version=NO_DRAFTER, max_draft_version=NO_DRAFTER, num_drafted=0,
        num_steps=10, accepted_per_position=(), decode_s=4.0,
    )  # fmt: skip
    metrics = serving_metrics([request(1), plain], live_version=2)
    assert metrics["serve/acceptance_length"] == pytest.approx(1 + 6 / 5)
    assert metrics["serve/acceptance_at_1"] == pytest.approx(4 / 5)
    assert (metrics["serve/otps"], metrics["serve/otps_without_speculation"]) == (5.0, 2.5)
    alone = serving_metrics([plain], live_version=2)
    assert not {"serve/acceptance_length", "serve/otps", "serve/draft_version"} & alone.keys()
    before = serving_metrics([plain])  # no drafter is live: this is the live traffic
    assert before["serve/acceptance_length"] == 1.0
    assert before["serve/otps"] == before["serve/otps_without_speculation"] == 2.5


def test_what_is_live_follows_the_swaps(run):
    plain = {"min_draft_version": NO_DRAFTER, "max_draft_version": NO_DRAFTER}
    run.hook.aurora_requests_finished(requests=[request(1, **plain)])
    receipt = SwapReceipt(version=2, checksum="c", load_ms=1.0, stall_ms=1.0)
    run.hook.aurora_draft_swapped(draft=None, previous=None, receipt=receipt)
    run.hook.aurora_requests_finished(requests=[request(2), request(3, **plain)])
    client, stored = run.closed()
    assert [step for step, _ in history(client, stored, "serve/draft_version")] == [1, 3]
    assert [value for _, value in history(client, stored, "serve/draft_version")] == [-1, 2]


def test_metrics_are_logged_at_their_own_steps(run):
    run.hook.aurora_requests_finished(requests=[request(1), request(2)])
    run.hook.aurora_requests_finished(requests=[])
    run.hook.aurora_requests_finished(requests=[request(3)])
    run.hook.aurora_learner_progress(step=7, metrics={"train/loss": 2.5, "train/bad": float("nan")})
    client, stored = run.closed()
    assert history(client, stored, "serve/num_requests") == [(2, 2.0), (3, 1.0)]
    assert history(client, stored, "train/loss") == [(7, 2.5)]
    assert "train/bad" not in stored.data.metrics
    assert stored.info.status == "FINISHED"


def test_configuration_is_logged_without_secrets(run, tmp_path):
    run.hook.aurora_run_started(config=Config(), run_dir=str(tmp_path))
    _, stored = run.closed()
    assert stored.data.params["target"] == "quickstart"
    assert stored.data.params["backend.name"] == "torch"
    assert stored.data.params["many.key149"] == "149"
    assert "hunter2" not in str(stored.data.params)
    assert (stored.data.tags["backend"], stored.data.tags["run_dir"]) == ("torch", str(tmp_path))
    note = stored.data.tags["mlflow.note.content"]
    assert note.startswith("toy on torch, target quickstart")
    assert "requests in `serve/*`" in note


def test_run_directories_in_one_store_have_a_champion_each(tmp_path, monkeypatch):
    copy_empty_store(tmp_path)
    monkeypatch.chdir(tmp_path)  # MLflow keeps files there for a store that no server serves
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for number, folder in enumerate(("one", "the.other"), start=1):
        run_dir = tmp_path / folder
        run_dir.mkdir()
        tracking = Tracking(run_dir, uri=uri)
        version = draft(run_dir, number)
        tracking.registry.publish(version)
        tracking.registry.set_live(version, None)
        assert tracking.close(timeout_s=TIMEOUT_S) and tracking.session.num_failed == 0
    client = mlflow.MlflowClient(uri)
    names = {}
    for folder in ("one", "the-other"):
        entry = client.get_model_version_by_alias(f"aurora-{folder}-drafter", "champion")
        logged = client.get_logged_model(entry.source.removeprefix("models:/"))
        names[logged.name] = logged.params["draft_version"]
    assert names == {"one-v000001": "1", "the-other-v000002": "2"}


def test_swaps_and_verdicts_are_logged_and_versions_registered(run, tmp_path):
    first = draft(tmp_path, 1)
    hold = Verdict(action="hold", reason="not yet", numbers={"gain": -0.1})
    promote = Verdict(action="promote", reason="better", numbers={"gain": 0.2})
    run.hook.aurora_draft_published(draft=first)
    for verdict in (hold, hold, promote):
        run.hook.aurora_swap_decided(draft=first, verdict=verdict, evidence=evidence(first))
    receipt = SwapReceipt(version=1, checksum="sum1", load_ms=20.0, stall_ms=1.5)
    run.hook.aurora_draft_swapped(draft=first, previous=None, receipt=receipt)
    dropped = SwapReceipt(version=NO_DRAFTER, checksum="", load_ms=0.0, stall_ms=0.0)
    run.hook.aurora_draft_swapped(draft=None, previous=first, receipt=dropped)
    client, stored = run.closed()
    assert history(client, stored, "swap/stall_ms") == [(1, 1.5)]
    assert stored.data.metrics["swap/count"] == 2
    assert stored.data.metrics["swap/live_version"] == NO_DRAFTER
    assert history(client, stored, "verdict/gain") == [(1, -0.1), (1, 0.2)]
    assert stored.data.tags["last_verdict"] == "promote: better"
    kept = [file.path for file in client.list_artifacts(stored.info.run_id, "verdicts")]
    assert kept == ["verdicts/00001-v000001-hold.json", "verdicts/00002-v000001-promote.json"]
    challenger = client.get_model_version_by_alias("aurora-drafter", "challenger")
    assert challenger.description.endswith("promote: better")


def test_report_is_attached_and_its_figures_are_metrics(run, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "report.html").write_text("<html>")
    report = {
        "schema": 1,
        "requests": {"total": 4, "failed": None},
        "acceptance_length": {
            "last": 1.7,
            "per_position": [0.5, 0.2],
            "published": {"1": {"x": 1}},
        },
        "learner": {"steps": 9, "metrics": {"train/loss": 0.5}},
        "settings": {"requests": 400},
        "seed": 3,
        "versions": {"x": "1"},
    }
    run.hook.aurora_run_finished(report=report, error=None)
    client, stored = run.closed()
    assert stored.data.metrics == {
        "report/requests.total": 4.0,
        "report/acceptance_length.last": 1.7,
        "report/acceptance_at_1": 0.5,
        "report/acceptance_at_2": 0.2,
        "report/learner.steps": 9.0,
    }
    attached = {file.path for file in client.list_artifacts(stored.info.run_id)}
    assert attached == {"report.json", "report.html"}


def test_report_of_an_earlier_run_is_not_attached_to_one_without(run, tmp_path):
    for name in ("report.json", "report.html", "verdicts.jsonl"):
        (tmp_path / name).write_text("{}")
    run.hook.aurora_run_finished(report=None, error=RuntimeError("x"))
    client, stored = run.closed()
    attached = {file.path for file in client.list_artifacts(stored.info.run_id)}
    assert attached == {"verdicts.jsonl"}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_end_of_the_run_is_its_status(run, error, status):
    run.hook.aurora_run_finished(report=None, error=error)
    _, stored = run.closed()
    assert stored.info.status == status


def test_flatten_joins_keys_with_dots():
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": [1, 2], "d": None}
