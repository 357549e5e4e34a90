"""The API page names every request parameter, every route and every key of the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from aurora_core.bench.figures import ConfigFigures
from aurora_core.bench.measure import SpeedupReport
from aurora_core.engine_process.aurora_field import describe_answer
from aurora_core.records import RequestStats, SwapReceipt, TargetSpec
from aurora_core.report.document import LosslessCounts, RequestCounts, RunFacts, make_report
from aurora_core.report.history import History
from aurora_core.traffic.distribution import describe
from aurora_core.traffic.lossless import LosslessReport

STABLE_KEYS = (
    "requests.total",
    "requests.failed",
    "lossless.checked",
    "lossless.mismatches",
    "lossless.near_ties",
    "swaps.count",
    "swaps.stall_ms_p99",
    "acceptance_length.first",
    "acceptance_length.last",
    "otps.none",
    "otps.speculative",
    "otps.speedup",
    "traces.kept",
    "traces.shed",
    "learner.steps",
    "learner.tokens_trained",
    "memory.engine_mib",
    "memory.learner_mib",
    "wall_s",
    "seed",
    "versions",
)
"""What programs may rely on from the first release on."""

OPEN_KEYS = {
    "settings",
    "verdicts",
    "lossless.by_version",
    "acceptance_length.by_domain",
    "acceptance_length.published",
    "learner.metrics",
    "lineages",
    "versions.plugins",
    "versions.packages",
}
"""Mappings whose keys depend on the run."""


def keys(value: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, inner in value.items():
        path = f"{prefix}{name}"
        if isinstance(inner, Mapping) and path not in OPEN_KEYS:
            yield from keys(inner, f"{path}.")
        else:
            yield path


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    figures = ConfigFigures(
        requests=1,
        num_output_tokens=9,
        otps=describe([20.0]),
        throughput=describe([20.0]),
        ttft_s=describe([0.1]),
        acceptance_length=2.0,
        retries=0,
    )
    measured = SpeedupReport(
        batch_size=1,
        num_prompts=1,
        otps_none=10.0,
        otps_speculative=20.0,
        speedup=2.0,
        speedup_low=1.9,
        speedup_high=2.1,
        acceptance_length=2.0,
        none=figures,
        speculative=figures,
        lossless=LosslessReport(
            checked=1, mismatches=0, near_ties=0, not_checked=0, differences=()
        ),
    )
    history = History()
    receipt = SwapReceipt(version=1, checksum="c", load_ms=1.0, stall_ms=0.1)
    history.aurora_draft_swapped(draft=None, previous=None, receipt=receipt)
    target = TargetSpec(
        name="tiny",
        path="/tiny",
        architecture="LlamaForCausalLM",
        fingerprint="f",
        tokenizer_fingerprint="t",
        vocab_size=8,
        hidden_size=8,
        num_layers=4,
        max_position_embeddings=64,
    )
    return make_report(
        RunFacts(
            ended="finished",
            error=None,
            target=target,
            speculator="eagle3",
            history=history,
            requests=RequestCounts(total=1, failed=0),
            num_engine_finished=2,
            num_engine_aborted=0,
            lossless=LosslessCounts(checked=1),
            num_failed_swaps=0,
            measurements=(measured,),
            acceptance_by_domain={"sql": 2.0},
            traces_kept=1,
            traces_shed=0,
            engine_peak_mib=1.0,
            learner_state="stopped",
            learner_steps=1,
            tokens_trained_before=0,
            learner_restarts=0,
            learner_peak_mib=1.0,
            live_version=1,
            wall_s=1.0,
            seed=0,
            run_dir="runs/x",
            tracking_uri=None,
            plugins={},
            packages={},
            settings={},
            settings_digest="d",
        )
    )


def documented(pages) -> set[str]:
    """Return the keys in the first column of the table under report.json."""
    section = pages["docs/api.md"].text.split("## report.json")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {cell.strip(" `") for row in rows for cell in row.split(",")}


@pytest.mark.parametrize("key", STABLE_KEYS)
def test_stable_key_is_in_the_report_and_on_the_page(report, pages, key):
    if key == "versions":
        assert {"versions.plugins", "versions.packages"} <= documented(pages) & set(keys(report))
        return
    assert key in set(keys(report))
    assert key in documented(pages)


def test_the_page_has_every_key_of_the_report_and_no_other(report, pages):
    assert documented(pages) == set(keys(report))


def test_keys_inside_lists_are_on_the_page(report, pages):
    text = pages["docs/api.md"].text
    [event], [item] = report["swaps"]["events"], report["otps"]["measurements"]
    assert [name for name in (*event, *item) if f"`{name}`" not in text] == []


def test_every_request_parameter_is_on_the_page(pages):
    protocol = pytest.importorskip("aurora_backend_torch.openai_protocol")
    text = pages["docs/api.md"].text
    names = {
        name
        for body in (protocol.CompletionBody, protocol.ChatBody, protocol.AuroraFields)
        for name in body.model_fields
    }
    names |= set(protocol.GenerationBody.unsupported) | set(protocol.StreamOptions.model_fields)
    assert sorted(name for name in names - {"model"} if f"`{name}`" not in text) == []


def test_every_field_of_the_response_extension_is_on_the_page(pages):
    stats = RequestStats(
        sequence=1,
        request_id="r",
        finished=0.0,
        num_prompt_tokens=1,
        num_output_tokens=2,
        num_steps=1,
        num_speculative_steps=1,
        num_drafted=1,
        accepted_per_position=(1,),
        min_draft_version=1,
        max_draft_version=1,
        ttft_s=0.1,
        decode_s=0.1,
        finish_reason="stop",
    )
    text = pages["docs/api.md"].text
    assert [name for name in describe_answer(stats) if f"`{name}`" not in text] == []


def test_every_route_is_on_the_page(pages, root):
    """Read from the source: building the application would load an engine."""
    import re

    folder = root / "plugins" / "backend_torch" / "aurora_backend_torch"
    text = pages["docs/api.md"].text
    missing = []
    for file, prefix in (("routes.py", "/v1"), ("control.py", "/aurora"), ("server.py", "")):
        source = Path(folder / file).read_text("utf-8")
        for method, path in re.findall(r"@(?:router|app)\.(get|post|delete)\(\"([^\"]+)\"", source):
            shown = f"{method.upper()} {prefix}{path}".replace(":path}", "}")
            if f"`{shown}" not in text:
                missing.append(shown)
    assert missing == []


def test_every_error_code_is_on_the_page(pages, root):
    import re

    folder = root / "plugins" / "backend_torch" / "aurora_backend_torch"
    source = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    codes = set(re.findall(r"\bcode=\"(\w+)\"", source))
    assert codes and [code for code in codes if f"`{code}`" not in pages["docs/api.md"].text] == []
