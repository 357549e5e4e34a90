"""Versions in the MLflow registry: a mirror that is complete when it works and harmless if not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aurora_core.mlflow_session import MlflowSession
from aurora_core.model_registry import ModelRegistry
from aurora_core.records import (
    DraftVersion,
    Holdout,
    Sample,
    ServingStats,
    TrafficSlice,
    Verdict,
)
from aurora_core.testing.mlflow_store import copy_empty_store
from aurora_core.version_figures import describe, figures
from aurora_core.versions import VersionStore

mlflow = pytest.importorskip("mlflow")

NAME = "aurora-drafter"
TIMEOUT_S = 120.0


def stage(run_dir: Path, content: bytes | None = None, **metrics: float) -> DraftVersion:
    store = VersionStore(run_dir / "versions")
    version = store.next_version()

    def write(path: Path) -> None:
        (path / "config.json").write_text("{}")
        (path / "model.safetensors").write_bytes(content or b"%d" % version)

    return store.stage(
        version,
        write,
        parent=version - 1 or None,
        speculator="toy",
        target_fingerprint="target",
        global_step=10 * version,
        num_tokens_trained=100,
        metrics=metrics,
        holdout=Holdout(
            live_version=None,
            num_anchors=(10, 10),
            candidate_accepted=((6, 2), (4, 0)),
            live_accepted=(),
        ),
    )


def served(draft: DraftVersion) -> ServingStats:
    speed = Sample(count=3, mean=40.0, variance=4.0)
    return ServingStats(
        version=draft.version,
        num_requests=3,
        num_output_tokens=90,
        acceptance_length=2.25,
        otps=40.0,
        acceptance_per_position=(0.75, 0.5),
        by_batch_size=(TrafficSlice(length=Sample(), otps=speed, batch_size=4),),
    )


@pytest.fixture(autouse=True)
def empty_store(tmp_path):
    copy_empty_store(tmp_path)


@pytest.fixture
def session(tmp_path):
    session = MlflowSession(tmp_path)
    yield session
    assert session.close(timeout_s=TIMEOUT_S)


@pytest.fixture
def registry(session):
    return ModelRegistry(session, name=NAME)


@pytest.fixture
def client(tmp_path):
    return mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def aliases(client) -> dict[str, str]:
    """Alias -> draft version."""
    found = client.get_registered_model(NAME).aliases
    return {
        alias: client.get_model_version(NAME, number).tags["draft_version"]
        for alias, number in found.items()
    }


def test_published_version_has_files_figures_and_links(tmp_path, registry, client):
    stage(tmp_path)
    draft = stage(tmp_path, **{"train/loss": 1.5, "train/broken": float("nan")})
    registry.publish(draft)
    assert registry.flush(TIMEOUT_S)
    entry = client.get_model_version_by_alias(NAME, "challenger")
    assert entry.tags == {"draft_version": "2", "parent": "1", "checksum": draft.checksum}
    logged = client.get_logged_model(entry.source.removeprefix("models:/"))
    expected = {
        "draft_version": "2",
        "parent": "1",
        "global_step": "20",
        "num_tokens_trained": "100",
        "target_fingerprint": "target",
        "speculator": "toy",
    }
    assert expected.items() <= logged.params.items()
    assert {metric.key: (metric.value, metric.step) for metric in logged.metrics} == {
        "holdout/acceptance_length": (1.6, 20),
        "holdout/acceptance_at_1": (0.5, 20),
        "holdout/acceptance_at_2": (0.1, 20),
        "train/loss": (1.5, 20),
    }
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    files = mlflow.artifacts.download_artifacts(f"models:/{NAME}@challenger")
    assert Path(files).is_relative_to(tmp_path / "mlartifacts")
    assert (Path(files) / "model.safetensors").read_bytes() == b"2"
    assert (Path(files) / "version.json").exists()


def test_versions_differ_where_the_registry_compares_them(tmp_path, session, registry, client):
    """Its page shows parameters and metrics of the runs that the versions are registered with."""
    drafts = stage(tmp_path, **{"train/loss": 2.0}), stage(tmp_path, **{"train/loss": 1.0})
    for draft in drafts:
        registry.publish(draft)
    registry.note_serving(drafts[1], served(drafts[1]))
    registry.note_verdict(drafts[1], Verdict(action="promote", reason="better"))
    assert registry.flush(TIMEOUT_S)
    entries = {one.version: one for one in client.search_model_versions(f"name = '{NAME}'")}
    first, second = (client.get_run(entries[number].run_id) for number in (1, 2))
    assert first.data.params["global_step"] == "10" and second.data.params["global_step"] == "20"
    assert first.data.metrics["train/loss"] == 2.0 and second.data.metrics["train/loss"] == 1.0
    assert "live/otps" not in first.data.metrics and second.data.metrics["live/otps"] == 40.0
    assert second.data.tags["mlflow.note.content"].endswith("promote: better")
    assert (second.info.status, second.info.run_name) == ("FINISHED", "draft-v000002")
    # The table of runs folds them up below the run that made them, which keeps the curves.
    assert second.data.tags["mlflow.parentRunId"] == session.run_id
    curve = client.get_metric_history(session.run_id, "holdout/acceptance_length")
    assert [point.step for point in curve] == [10, 20]
    made = client.get_run(session.run_id).outputs.model_outputs  # in no order
    assert {f"models:/{one.model_id}" for one in made} == {entries[n].source for n in (1, 2)}


def test_registered_model_says_what_its_aliases_mean(registry, client):
    registry.set_live(None, None)
    assert registry.flush(TIMEOUT_S)
    description = client.get_registered_model(NAME).description
    assert all(f"`{alias}`" in description for alias in ("champion", "previous", "challenger"))


def test_figures_of_a_version_are_its_own_with_the_held_out_ones_first(tmp_path):
    of_the_learner = {"train/memory_mib": 900.0, "train/tokens_per_s": 9.0, "reward/version_1": 0.4}
    draft = stage(tmp_path, **of_the_learner, **{"train/loss": 1.5, "holdout/num_traces": 2.0})
    assert list(figures(draft)) == [
        "holdout/acceptance_length",
        "holdout/acceptance_at_1",
        "holdout/acceptance_at_2",
        "holdout/num_traces",
        "train/loss",
    ]


def test_aliases_follow_swaps(tmp_path, registry, client):
    first, second = stage(tmp_path), stage(tmp_path)
    registry.publish(first)
    registry.set_live(first, None)
    registry.publish(second)
    assert registry.flush(TIMEOUT_S)
    assert aliases(client) == {"champion": "1", "challenger": "2"}
    registry.set_live(second, first)
    assert registry.flush(TIMEOUT_S)
    assert aliases(client) == {"champion": "2", "previous": "1"}
    registry.set_live(None, second)
    assert registry.flush(TIMEOUT_S)
    assert aliases(client) == {"previous": "2"}


def test_aliases_that_were_never_set_can_be_removed(registry, session):
    registry.set_live(None, None)
    assert registry.flush(TIMEOUT_S)
    assert session.num_failed == 0


def test_verdict_stands_beside_its_version(tmp_path, registry, client):
    draft = stage(tmp_path)
    registry.publish(draft)
    registry.note_verdict(draft, Verdict(action="hold", reason="x" * 9000))
    assert registry.flush(TIMEOUT_S)
    entry = client.get_model_version_by_alias(NAME, "challenger")
    assert entry.tags["verdict"] == "hold"
    assert entry.description.endswith("xxx") and len(entry.description) <= 4000


def test_the_list_of_versions_says_what_each_is(tmp_path, registry, client):
    draft = stage(tmp_path)
    registry.publish(draft)
    assert registry.flush(TIMEOUT_S)
    first_line = "Acceptance length 1.60 held out; draft version 1, toy, 10 optimizer steps"
    assert client.get_model_version_by_alias(NAME, "challenger").description == first_line
    registry.note_verdict(draft, Verdict(action="hold", reason="not better"))
    assert registry.flush(TIMEOUT_S)
    entry = client.get_model_version_by_alias(NAME, "challenger")
    assert entry.description == f"{first_line}\n\nhold: not better"
    unscored = dataclasses.replace(draft, holdout=None)
    assert describe(unscored) == "Not scored; draft version 1, toy, 10 optimizer steps"


def test_live_figures_stand_beside_the_held_out_ones(tmp_path, registry, client):
    draft = stage(tmp_path)
    registry.publish(draft)
    registry.note_serving(draft, served(draft))
    assert registry.flush(TIMEOUT_S)
    [version] = client.search_model_versions(f"name = '{NAME}'")
    model = client.get_logged_model(str(version.source).removeprefix("models:/"))
    found = {metric.key: metric.value for metric in model.metrics}
    assert found["live/acceptance_length"] == 2.25 and found["live/acceptance_at_2"] == 0.5
    assert found["live/otps_at_batch_size_4"] == 40.0
    assert "holdout/acceptance_length" in found


def test_versions_with_equal_weights_are_told_apart(tmp_path, registry, client):
    drafts = [stage(tmp_path, b"same"), stage(tmp_path, b"same")]
    for draft in drafts:
        registry.publish(draft)
    registry.set_live(drafts[0], None)
    assert registry.flush(TIMEOUT_S)
    assert aliases(client) == {"champion": "1", "challenger": "2"}


def test_later_run_on_the_same_store_continues_the_mirror(tmp_path, client):
    draft = stage(tmp_path)
    for _ in range(2):
        session = MlflowSession(tmp_path)
        registry = ModelRegistry(session, name=NAME)
        registry.publish(draft)
        registry.set_live(draft, None)
        assert session.close(timeout_s=TIMEOUT_S)
        assert session.num_failed == 0
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 1
    parents = [run.data.tags.get("mlflow.parentRunId") for run in client.search_runs(["1"])]
    assert parents.count(None) == 2 and len(parents) == 3


def test_retired_version_loses_its_files_and_keeps_its_figures(tmp_path, registry, client):
    draft = stage(tmp_path, **{"train/loss": 2.0})
    registry.publish(draft)
    registry.retire(draft)
    registry.retire(stage(tmp_path))  # never published: nothing to do
    assert registry.flush(TIMEOUT_S)
    assert not list((tmp_path / "mlartifacts").rglob("model.safetensors"))
    entry = client.get_model_version_by_alias(NAME, "challenger")
    assert entry.tags["files"] == "deleted"
    logged = client.get_logged_model(entry.source.removeprefix("models:/"))
    assert "train/loss" in {metric.key for metric in logged.metrics}


def test_failing_call_is_counted_and_the_next_one_works(tmp_path, session, registry, client):
    lost = dataclasses.replace(stage(tmp_path), path=str(tmp_path / "gone"))
    registry.publish(lost)
    registry.publish(stage(tmp_path))
    assert registry.flush(TIMEOUT_S)
    assert session.num_failed == 1
    assert aliases(client) == {"challenger": "2"}


def test_an_experiment_opens_with_the_pages_for_runs_and_models(tmp_path):
    session = MlflowSession(tmp_path, experiment="another")
    assert session.close(timeout_s=TIMEOUT_S)
    found = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_experiment_by_name
    tags = found("another").tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    # Shown above the charts, which have no names for their axes.
    assert tags["mlflow.note.content"].startswith("Step: requests in `serve/*`")


def test_store_that_cannot_be_opened_stops_nothing(tmp_path):
    session = MlflowSession(tmp_path, uri="nowhere://store")
    registry = ModelRegistry(session, name=NAME)
    registry.publish(stage(tmp_path))
    assert registry.flush(TIMEOUT_S)
    assert session.run_id is None
    assert session.num_failed == 2
    assert session.close(timeout_s=TIMEOUT_S)


def test_calls_run_on_one_thread_in_order_and_never_block_the_caller(session):
    let_go, ran = threading.Event(), []
    session.submit("wait", lambda run: let_go.wait(TIMEOUT_S))
    for number in range(3):
        session.submit("note", lambda run, n=number: ran.append((n, threading.get_ident())))
    assert ran == []
    assert not session.flush(0.01)
    let_go.set()
    assert session.flush(TIMEOUT_S)
    assert [number for number, _ in ran] == [0, 1, 2]
    assert {thread for _, thread in ran}.isdisjoint({threading.get_ident()})
    assert len({thread for _, thread in ran}) == 1


def test_metrics_are_dropped_before_the_queue_grows_and_versions_are_not(tmp_path):
    session = MlflowSession(tmp_path, max_waiting=2)
    let_go, ran = threading.Event(), []
    session.submit("wait", lambda run: let_go.wait(TIMEOUT_S))
    for number in range(5):
        session.submit("metric", lambda run, n=number: ran.append(n), droppable=True)
    session.submit("version", lambda run: ran.append("version"))
    let_go.set()
    assert session.close(timeout_s=TIMEOUT_S)
    assert ran[-1] == "version"
    assert session.num_dropped == 5 - len(ran[:-1]) >= 3
    assert not session.submit("late", lambda run: None)


def test_controller_side_imports_neither_torch_nor_mlflow():
    code = (
        "import sys, aurora_core.model_registry, aurora_core.tracking;"
        "print('torch' in sys.modules, 'mlflow' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.split() == ["False", "False"], output.stderr


def test_mlflow_calls_import_no_torch(tmp_path):
    code = f"""
import pathlib, sys
from aurora_core.mlflow_session import MlflowSession
session = MlflowSession(pathlib.Path({str(tmp_path)!r}))
print(session.close(timeout_s={TIMEOUT_S}), session.num_failed, "torch" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.split() == ["True", "0", "False"], output.stderr
    assert "INFO" not in output.stderr  # MLflow and alembic announce every migration
