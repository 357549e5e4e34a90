"""The operating guide explains every metric and every file of a run directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aurora_core.controller.run_directory import RunDirectory
from aurora_core.records import BackendStatus, RequestStats
from aurora_core.serving_metrics import load_metrics, serving_metrics
from aurora_core.tracking import REPORT_FILES

PAGE = "docs/guides/operating.md"


def test_every_prometheus_metric_is_explained(pages):
    metrics = pytest.importorskip("aurora_backend_torch.metrics")
    status = BackendStatus(
        live_version=-1,
        checksum="",
        num_running=0,
        num_waiting=0,
        memory_mib=0.0,
        traces_kept=0,
        traces_shed=0,
    )
    rendered = metrics.ServerMetrics(lambda: status).render().decode()
    names = set(re.findall(r"^# TYPE (\S+)", rendered, re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) >= 15
    shown = set(re.findall(r"\baurora_\w+", pages[PAGE].text))
    assert names - shown == set()
    assert {name for name in shown - names if not name.startswith("aurora_core")} == set()


def test_every_serving_metric_is_explained(pages):
    stats = RequestStats(
        sequence=1,
        request_id="r",
        finished=0.0,
        num_prompt_tokens=1,
        num_output_tokens=3,
        num_steps=1,
        num_speculative_steps=1,
        num_drafted=2,
        accepted_per_position=(1, 0),
        min_draft_version=1,
        max_draft_version=1,
        ttft_s=0.1,
        decode_s=0.1,
        finish_reason="stop",
    )
    text = pages[PAGE].text
    metrics = serving_metrics([stats]) | load_metrics([stats])
    assert [name for name in metrics if f"`{name}`" not in text] == []


def test_every_metric_named_in_the_source_is_explained(pages, root):
    """Of the learner, of versions and of swaps, which are only made while a run goes on."""
    sources = [*root.glob("aurora_core/learner/*.py"), root / "aurora_core" / "tracking.py"]
    names = {
        name
        for path in sources
        for name in re.findall(r"\"((?:train|swap|holdout)/\w+)\"", path.read_text("utf-8"))
    }
    assert len(names) >= 15
    assert sorted(name for name in names if f"`{name}`" not in pages[PAGE].text) == []


def test_every_reason_for_shedding_is_explained(pages, root):
    source = "".join(path.read_text("utf-8") for path in (root / "aurora_core/spool").glob("*.py"))
    reasons = set(re.findall(r"shed\[\"(\w+)\"\]", source)) | set(
        re.findall(r"(?:return|reason =) \"(\w+)\"", source)
    )
    assert {"queue", "evicted", "stale"} <= reasons
    assert [reason for reason in reasons if f"`{reason}`" not in pages[PAGE].text] == []


def test_every_file_of_a_run_directory_is_explained(pages):
    directory = RunDirectory(Path("run"))
    names = {
        path.name
        for path in vars(directory).values()
        if isinstance(path, Path) and path.name != "run"
    }
    assert {"spool", "versions", "requests.jsonl", "verdicts.jsonl"} <= names
    table = pages[PAGE].text.split("## The run directory")[1].split("\n\nWhat grows")[0]
    assert [name for name in names | set(REPORT_FILES) if f"`{name}" not in table] == []
