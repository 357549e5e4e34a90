import dataclasses
import itertools
import json
import math
import re
from html.parser import HTMLParser

import pytest

from aurora_core.bench import ConfigFigures, SpeedupReport
from aurora_core.plugins import Plugins
from aurora_core.records import (
    NO_DRAFTER,
    DraftVersion,
    Holdout,
    RequestStats,
    SwapReceipt,
    TargetSpec,
    Verdict,
)
from aurora_core.report.document import (
    LosslessCounts,
    RequestCounts,
    RunFacts,
    make_report,
    percentile,
)
from aurora_core.report.history import FIRST_WINDOW_REQUESTS, History
from aurora_core.report.holdout import acceptance_of
from aurora_core.report.html import render_html
from aurora_core.report.plots import draw_plots
from aurora_core.report.series import RequestSeries, ScalarSeries
from aurora_core.traffic.distribution import describe
from aurora_core.traffic.lossless import LosslessReport

TARGET = TargetSpec(
    name="tiny", path="/nowhere", architecture="LlamaForCausalLM", fingerprint="f" * 64,
    tokenizer_fingerprint="t", vocab_size=256, hidden_size=32, num_layers=4,
    max_position_embeddings=512,
)  # fmt: skip


def stats(sequence=0, *, version=NO_DRAFTER, accepted=(), num_steps=10, decode_s=1.0, route=""):
    return RequestStats(
        sequence=sequence, request_id=str(sequence), finished=0.0, num_prompt_tokens=5,
        num_output_tokens=21, num_steps=num_steps, num_speculative_steps=num_steps,
        num_drafted=30, accepted_per_position=tuple(accepted), min_draft_version=version,
        max_draft_version=version, ttft_s=0.1, decode_s=decode_s, finish_reason="stop",
        route=route,
    )  # fmt: skip


def draft(version, **changes):
    return DraftVersion(
        version=version, path="v", parent=None, speculator="fake", target_fingerprint="f",
        global_step=10 * version, num_tokens_trained=1000 * version, created=0.0, checksum="c",
        **changes,
    )  # fmt: skip


def measurement():
    nothing = describe([])
    figures = ConfigFigures(
        requests=4, num_output_tokens=80, otps=describe([20.0]), throughput=nothing,
        ttft_s=nothing, acceptance_length=2.0, retries=0,
    )  # fmt: skip
    lossless = LosslessReport(checked=4, mismatches=0, near_ties=0, not_checked=0, differences=())
    return SpeedupReport(
        batch_size=1, num_prompts=4, otps_none=20.0, otps_speculative=36.0, speedup=1.8,
        speedup_low=1.5, speedup_high=2.1, acceptance_length=2.3, none=figures,
        speculative=figures, lossless=lossless,
    )  # fmt: skip


def facts(history, **changes):
    values = dict(
        ended="finished", error=None, target=TARGET, speculator="fake", history=history,
        requests=RequestCounts(total=9, failed=1), num_engine_finished=12, num_engine_aborted=1,
        lossless=LosslessCounts(checked=3, mismatches=0, near_ties=1), num_failed_swaps=0,
        measurements=(), acceptance_by_domain={"sql": 2.5}, traces_kept=8, traces_shed=1,
        engine_peak_mib=100.0, learner_state="stopped", learner_steps=40,
        tokens_trained_before=0, learner_restarts=0, learner_peak_mib=50.0, live_version=2,
        wall_s=60.0, seed=0, run_dir="runs/x", tracking_uri=None, plugins={"core": "c 1"},
        packages={"pydantic": "2", "c": "1"}, settings={"seed": 0}, settings_digest="d",
    )  # fmt: skip
    return RunFacts(**{**values, **changes})


@pytest.fixture(scope="module")
def history():
    """A run of 80 requests with a swap after 40, driven through the hooks."""
    history = History()
    plugins = Plugins()
    plugins.register(history, "history")
    requests = [stats(n) for n in range(40)]
    plugins.notify("aurora_requests_finished", requests=requests)
    holdout = Holdout(
        live_version=None, num_anchors=(10, 10), candidate_accepted=((6, 2), (8, 4)),
        live_accepted=(),
    )  # fmt: skip
    one = draft(1, holdout=holdout, metrics={"train/loss": math.nan})
    plugins.notify("aurora_draft_published", draft=one)
    verdict = Verdict(action="promote", reason="<script>alert(1)</script> & better")
    plugins.notify("aurora_swap_decided", draft=one, verdict=verdict, evidence=None)
    receipt = SwapReceipt(version=1, checksum="c", load_ms=9.0, stall_ms=4.0)
    plugins.notify("aurora_draft_swapped", draft=one, previous=None, receipt=receipt)
    served = [stats(40 + n, version=1, accepted=(8, 2), decode_s=0.5) for n in range(35)]
    compared = [stats(75 + n) for n in range(5)]
    plugins.notify("aurora_requests_finished", requests=served + compared)
    for step in range(50):
        metrics = {"train/loss": 3.0 - step / 50, "train/num_tokens": 20.0 * step}
        plugins.notify("aurora_learner_progress", step=step, metrics=metrics)
    assert not plugins.failures
    return history


@pytest.fixture(scope="module")
def page(history):
    return render_html(make_report(facts(history, measurements=(measurement(),))), history)


@pytest.fixture(scope="module")
def plots(history):
    return draw_plots(history)


def test_report_has_every_promised_key_and_is_strict_json(history):
    report = make_report(facts(history, measurements=(measurement(),)))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    flat = {f"{a}.{b}" for a, inner in report.items() if isinstance(inner, dict) for b in inner}
    assert {
        "requests.total", "requests.failed", "lossless.checked", "lossless.mismatches",
        "lossless.near_ties", "swaps.count", "swaps.stall_ms_p99", "acceptance_length.first",
        "acceptance_length.last", "otps.none", "otps.speculative", "otps.speedup", "traces.kept",
        "traces.shed", "learner.steps", "learner.tokens_trained", "memory.engine_mib",
        "memory.learner_mib", "versions.plugins", "versions.packages",
    } <= flat  # fmt: skip
    assert {"wall_s", "seed", "settings_digest"} <= report.keys()


def test_finished_requests_are_those_that_neither_failed_nor_were_left(history):
    requests = RequestCounts(total=9, failed=2, unfinished=3)
    counts = make_report(facts(history, requests=requests))["requests"]
    assert (counts["total"], counts["finished"]) == (9, 4)
    assert (counts["failed"], counts["unfinished"]) == (2, 3)


def test_clients_that_went_away_and_failures_of_the_engine_are_told_apart():
    history = History()
    reasons = ("stop", "length", "abort", "abort", "error")
    history.aurora_requests_finished(
        [dataclasses.replace(stats(), finish_reason=reason) for reason in reasons]
    )
    assert (history.num_aborted_requests, history.num_failed_requests) == (2, 1)


def test_change_by_the_engine_itself_is_no_swap_and_has_no_stall(history):
    swaps = make_report(facts(history))["swaps"]
    assert (swaps["count"], swaps["by_engine"], swaps["stall_ms_p99"]) == (1, 0, 4.0)
    own = History(live_version=1)
    receipt = SwapReceipt(version=NO_DRAFTER, checksum="", load_ms=0.0, stall_ms=0.0)
    own.aurora_draft_swapped(draft=None, previous=draft(1), receipt=receipt)
    swaps = make_report(facts(own, num_engine_changes=1))["swaps"]
    assert (swaps["count"], swaps["by_engine"], swaps["stall_ms_p99"]) == (0, 1, None)


def test_pauses_at_swaps_stand_beside_those_elsewhere(history):
    gaps = {"gaps_ms_at_swaps": (5.0, 90.0), "gaps_ms_elsewhere": (4.0, 8.0)}
    swaps = make_report(facts(history, **gaps))["swaps"]
    assert (swaps["longest_gap_ms_p99"], swaps["longest_gap_ms_p99_elsewhere"]) == (90.0, 8.0)
    assert make_report(facts(history))["swaps"]["longest_gap_ms_p99"] is None


def test_acceptance_per_position_is_of_live_requests_and_adds_up(history):
    lengths = make_report(facts(history))["acceptance_length"]
    assert lengths["per_position"] == [35 * 8 / 750, 35 * 2 / 750]
    assert 1 + sum(lengths["per_position"]) == pytest.approx(lengths["last"])


def test_first_acceptance_is_of_the_first_requests_and_last_of_the_measurement(history):
    lengths = make_report(facts(history, measurements=(measurement(),)))["acceptance_length"]
    assert lengths["first"] == 1.0
    assert lengths["first_window_requests"] == FIRST_WINDOW_REQUESTS
    assert (lengths["last"], lengths["last_measured_on"]) == (2.3, "held-out prompts")


def test_unmeasured_figures_are_null_and_live_traffic_stands_in_for_acceptance(history):
    report = make_report(facts(history))
    assert report["otps"]["none"] is report["otps"]["speedup"] is None
    lengths = report["acceptance_length"]
    # 40 requests without a drafter and 35 with one; comparisons are no live traffic.
    assert lengths["last"] == pytest.approx(1 + 35 * 10 / (75 * 10))
    assert lengths["last_measured_on"] == "live traffic"
    empty = make_report(facts(History()))["acceptance_length"]
    assert empty["first"] is empty["last"] is empty["last_measured_on"] is None


def test_tokens_trained_count_the_lineage_and_not_only_this_run(history):
    def tokens(**changes):
        return make_report(facts(history, **changes))["learner"]["tokens_trained"]

    assert tokens() == 1000  # of version 1; the learner itself reported 980
    assert tokens(tokens_trained_before=5000) == 5000


def test_metric_that_is_no_number_is_null_in_json(history):
    published = make_report(facts(history))["acceptance_length"]["published"]
    assert published == {"1": {"train/loss": None}}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 99, None), ([5.0], 99, 5.0), ([3.0, 1.0, 2.0], 99, 3.0), ([4.0, 1.0, 2.0, 3.0], 50, 2.0)],
)
def test_percentile_is_a_value_that_occurred(values, percent, expected):
    assert percentile(values, percent) == expected


class Loads(HTMLParser):
    """Collects everything a browser would fetch or run."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        names = {"src", "href", "xlink:href", "data", "action", "srcset"}
        for name, value in attributes:
            if name in names and not str(value).startswith("#"):
                self.found.append((tag, name, value))


def test_html_report_loads_and_runs_nothing(page):
    loads = Loads()
    loads.feed(page)
    assert loads.found == [] and "script" not in loads.tags
    assert not re.search(r"url\((?!#)|@import|@font-face", page)


def test_html_report_escapes_what_plugins_say(page):
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; better" in page


def test_html_report_shows_the_key_figures(page):
    for shown in ("1.80\u00d7", "1.00 \u2192 2.30", "36.0 against 20.0 tokens/s", "3 of 3"):
        assert shown in page


def test_html_report_names_a_plugins_package_once(page):
    assert "<span>plugin core</span><span>c 1</span>" in page
    assert "<span>pydantic</span><span>2</span>" in page and "<span>c</span>" not in page


def test_html_report_of_a_run_that_did_nothing_renders():
    report = make_report(facts(History(), ended="interrupted", error="the engine <died>"))
    page = render_html(report, History())
    assert "before there was anything to plot" in page and "the engine &lt;died&gt;" in page


def test_plots_take_their_colours_from_the_page(plots):
    assert len(plots) == 5
    for svg in plots.values():
        assert "var(--first)" in svg and not re.search(r"#00000[1-9]", svg)
        assert len(svg) < 60_000


def test_ids_on_the_page_are_unique_and_every_reference_has_its_target(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page)) <= {
        pair for one in ids for pair in ((one, ""), ("", one))
    }


def test_plot_marks_every_swap_with_the_version_that_went_live(plots):
    assert ">v1</text>" in plots["Acceptance length of live requests"]


def test_series_of_any_length_stays_bounded_and_loses_no_request():
    series = RequestSeries(max_bins=8)
    for number in range(1000):
        series.add(
            stats(number, version=1, accepted=(number % 3,)), live_version=1, newest_version=2
        )
    assert len(series.bins) <= 8
    assert sum(one.num_requests for one in series.bins) == 1000
    windows = series.windows(3)
    assert len(windows) <= 3 and sum(window.num_requests for _, window in windows) == 1000
    positions = [position for position, _ in windows]
    assert positions == sorted(positions) and positions[-1] < 1000
    [(_, whole)] = series.windows(1)
    assert whole.acceptance_length == pytest.approx(1 + 999 / 10_000)
    assert whole.staleness == 1.0


def test_comparisons_count_for_plain_speed_and_not_for_acceptance():
    series = RequestSeries()
    series.add(stats(version=3, accepted=(10,), decode_s=0.5), live_version=3, newest_version=3)
    series.add(stats(), live_version=3, newest_version=3)
    [(_, window)] = series.windows(1)
    assert window.acceptance_length == 2.0
    assert (window.live_otps, window.plain_otps) == (40.0, 20.0)


def test_scalar_series_is_thinned_evenly():
    series = ScalarSeries(max_points=10)
    for x in range(1000):
        series.add(x, -x)
    steps = {later[0] - one[0] for one, later in itertools.pairwise(series.points)}
    assert len(series.points) <= 10 and len(steps) == 1 and series.points[0] == (0, 0)


def test_steps_that_a_restarted_learner_does_again_replace_the_lost_ones():
    series = ScalarSeries()
    for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 3.5), (3, 2.5)):
        series.add(step, loss)
    assert series.points == [(1, 5.0), (2, 3.5), (3, 2.5)]


def test_held_out_acceptance_of_candidate_and_live_drafter():
    scored = Holdout(
        live_version=1, num_anchors=(10, 30), candidate_accepted=((5, 1), (15, 3)),
        live_accepted=((4, 0), (12, 4)),
    )  # fmt: skip
    assert acceptance_of(scored) == (1 + 24 / 40, 1 + 20 / 40)
    none_live = Holdout(
        live_version=None, num_anchors=(10,), candidate_accepted=((5, 1),), live_accepted=()
    )
    assert acceptance_of(none_live) == (1.6, 1.0)
    unscored = Holdout(
        live_version=2, num_anchors=(10,), candidate_accepted=((5, 1),), live_accepted=()
    )
    assert acceptance_of(unscored) == (1.6, None)
