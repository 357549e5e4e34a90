"""Benchmarks: the arithmetic on hand-made runs, the procedure on the fake server."""

from __future__ import annotations

import contextlib
import io
import json
from functools import partial

import pytest
from rich.console import Console

from aurora_core.bench import bench_command, compare_drafters, measure_speedup, run_bench
from aurora_core.bench.figures import compute_speedup, summarise_batch
from aurora_core.bench.machine import describe_machine
from aurora_core.bench.pairs import Pair, Run, num_pairs
from aurora_core.cli.measure import read_variants
from aurora_core.config import RunConfig
from aurora_core.errors import BackendError, ConfigError
from aurora_core.traffic.completion import Completion, SpeculationStats
from aurora_core.traffic.lossless import LosslessReport
from aurora_core.traffic.prompts import Prompt, generate

PROMPTS = [Prompt("sql", f"prompt {index}") for index in range(4)]
NOTHING = LosslessReport(checked=0, mismatches=0, near_ties=0, not_checked=0, differences=())


def completion(otps, *, ttft_s=0.1, accepted=0, num_tokens=10):
    return Completion(
        text="",
        token_ids=(1,),
        prompt_token_ids=None,
        finish_reason="stop",
        num_prompt_tokens=3,
        num_output_tokens=num_tokens,
        ttft_s=ttft_s,
        decode_s=1.0,
        otps=otps,
        latency_s=1.1,
        longest_gap_s=None,
        num_retries=0,
        speculation=SpeculationStats(
            num_steps=10,
            num_drafted=30,
            accepted_per_position=(accepted, 0, 0),
            acceptance_length=1 + accepted / 10,
        ),
    )


def run(*speeds, wall_s=2.0, **options):
    return Run(completions=tuple(completion(one, **options) for one in speeds), wall_s=wall_s)


def pairs(*figures):
    return [Pair(none=run(none), speculative=run(speculative)) for none, speculative in figures]


def test_speedup_is_the_ratio_of_the_medians_of_paired_runs():
    speedup = compute_speedup(pairs((10, 15), (12, 24), (20, 22)))
    assert speedup.otps_none == 12
    assert speedup.otps_speculative == 22
    assert speedup.ratio == pytest.approx(22 / 12)
    assert speedup.pair_ratios == pytest.approx((1.5, 2.0, 1.1))
    assert (speedup.low, speedup.high) == pytest.approx((1.14, 1.95))


def test_one_slow_outlier_does_not_move_the_speedup():
    quiet = pairs((10, 20), (10, 20), (10, 20))
    disturbed = [*quiet, Pair(none=run(1), speculative=run(20))]
    assert compute_speedup(quiet).ratio == compute_speedup(disturbed).ratio == 2.0


def test_pairs_too_short_to_time_are_left_out():
    assert compute_speedup(pairs((None, 5), (10, 15))).ratio == 1.5
    assert compute_speedup(pairs((None, 5), (5, None))) is None


def test_a_run_counts_with_the_mean_of_its_requests_and_the_batch_with_every_request():
    slow, fast = run(10, 20, wall_s=2.0), run(20, 40, wall_s=1.0, accepted=12, ttft_s=0.3)
    assert (slow.otps, slow.throughput) == (15, 10)
    figures = summarise_batch(
        2, [Pair(none=slow, speculative=fast)], failed_pairs=1, lossless=NOTHING
    )
    assert figures.speedup.ratio == 2.0
    assert (figures.num_pairs, figures.failed_pairs) == (1, 1)
    assert figures.none.otps.mean == 15
    assert figures.speculative.otps.p95 == pytest.approx(39)
    assert figures.speculative.acceptance_length == pytest.approx(2.2)
    assert (figures.none.acceptance_length, figures.speculative.ttft_s.p50) == (1.0, 0.3)
    assert figures.speculative.throughput.p50 == 20
    assert (figures.none.requests, figures.none.num_output_tokens) == (2, 20)


def test_every_prompt_runs_once_and_every_batch_size_gets_enough_pairs():
    assert num_pairs(1, 32, 3) == 32
    assert num_pairs(8, 32, 3) == 4
    assert num_pairs(32, 32, 3) == 3
    assert num_pairs(8, 30, 1) == 4


async def test_configurations_alternate_over_the_same_prompts(server):
    await run_bench(server.url, PROMPTS, batch_sizes=(1,), repeats=1, max_tokens=20)
    asked = [
        (body["aurora"]["drafter"], body["messages"][0]["content"])
        for body in server.bodies
        if body["max_tokens"] == 20
    ]
    assert asked == [
        ("none", "prompt 0"),
        ("live", "prompt 0"),
        ("live", "prompt 1"),
        ("none", "prompt 1"),
        ("none", "prompt 2"),
        ("live", "prompt 2"),
        ("live", "prompt 3"),
        ("none", "prompt 3"),
    ]
    assert all(body["aurora"]["record"] is False for body in server.bodies)
    warm_up = [body["aurora"]["drafter"] for body in server.bodies if body["max_tokens"] == 16]
    assert warm_up == ["none", "live"]


async def test_a_batch_is_sent_at_once(server):
    server.plan = [""] * 10 + ["together"] * 4  # batch size 1 takes ten
    report = await run_bench(server.url, PROMPTS, batch_sizes=(1, 4), repeats=2, max_tokens=8)
    assert server.most_in_flight == 4
    one, four = report.batches
    assert (one.num_pairs, four.num_pairs) == (4, 2)
    assert (one.none.requests, four.none.requests) == (4, 8)


async def test_the_report_holds_figures_and_circumstances(server):
    report = await run_bench(
        server.url, PROMPTS, batch_sizes=(2,), max_tokens=8, settings={"seed": 5}
    )
    figures = report.batches[0]
    assert figures.speedup.ratio == pytest.approx(2.0)
    assert figures.none.otps.p50 == pytest.approx(7.0)
    assert figures.speculative.acceptance_length == 2.0
    assert figures.none.acceptance_length == 1.0
    assert (figures.lossless.checked, figures.lossless.mismatches) == (6, 0)
    assert report.settings["seed"] == 5
    assert report.settings["max_tokens"] == 8
    assert report.machine["threads"] >= 1
    assert report.model == "fake"


async def test_every_pair_is_checked_for_identical_tokens(server):
    server.diverge_at = 2
    report = await run_bench(server.url, PROMPTS, batch_sizes=(1,), repeats=1, max_tokens=8)
    assert report.batches[0].lossless.mismatches == 4
    server.tie_gap = 0.01
    report = await run_bench(server.url, PROMPTS, batch_sizes=(1,), repeats=1, max_tokens=8)
    assert report.batches[0].lossless.near_ties == 4


async def test_a_failed_request_costs_its_pair_only(server):
    server.plan = ["", "", "", "500"]
    report = await run_bench(server.url, PROMPTS, batch_sizes=(1,), repeats=1, max_tokens=8)
    figures = report.batches[0]
    assert (figures.num_pairs, figures.failed_pairs) == (3, 1)
    assert figures.none.requests == figures.speculative.requests == 3


async def test_a_server_on_which_nothing_succeeds_is_an_error(server):
    server.plan = ["500"]
    with pytest.raises(BackendError, match="does not answer 1 requests with `drafter: none`: stat"):
        await run_bench(server.url, PROMPTS, batch_sizes=(1,), max_tokens=8)
    server.plan = [""] * 8 + ["500"]  # the warm-up takes eight
    with pytest.raises(
        BackendError, match=r"^1 of 1 runs with batch size 4 .* one with status 500"
    ):
        await run_bench(server.url, PROMPTS, batch_sizes=(4,), repeats=1, max_tokens=8)


async def test_what_a_server_did_before_it_died_is_no_figure(server):
    server.plan = [""] * 4 + ["500"] * 6  # the warm-up takes two, the first pair as many
    with pytest.raises(
        BackendError, match=r"^3 of 4 runs with batch size 1 .* one with status 500"
    ):
        await measure_speedup(server.url, PROMPTS, max_tokens=8)


async def test_a_server_that_is_not_auroras_is_refused(server):
    server.extensions = False
    with pytest.raises(BackendError, match="does not answer without speculation on request"):
        await run_bench(server.url, PROMPTS, batch_sizes=(1,), max_tokens=8)


async def test_impossible_batch_sizes_are_refused(server):
    with pytest.raises(
        ConfigError, match=r"batch size 8 needs as many different prompts, .* only 4"
    ):
        await run_bench(server.url, PROMPTS, batch_sizes=(1, 8))
    with pytest.raises(ConfigError, match="0 is not a batch size"):
        await run_bench(server.url, PROMPTS, batch_sizes=(0,))
    with pytest.raises(ConfigError, match="there is no batch size to measure"):
        await run_bench(server.url, PROMPTS, batch_sizes=())
    assert not server.bodies


async def test_the_measurement_at_the_end_of_a_run(server):
    seen = []
    report = await measure_speedup(
        server.url, PROMPTS, max_tokens=8, on_pair=lambda size, total: seen.append((size, total))
    )
    assert (report.otps_none, report.otps_speculative, report.speedup) == (7.0, 14.0, 2.0)
    assert (report.speedup_low, report.speedup_high) == (2.0, 2.0)
    assert (report.acceptance_length, report.num_prompts, report.lossless.checked) == (2.0, 4, 4)
    assert seen == [(1, 4)] * 4


async def test_answers_of_one_token_cannot_be_measured(server):
    server.num_tokens = 1
    with pytest.raises(BackendError, match="are too short to measure a speed-up"):
        await measure_speedup(server.url, PROMPTS)


def plain_console():
    return Console(file=io.StringIO(), width=200)


def test_the_command_prints_the_table_and_writes_the_report(server, tmp_path):
    console, out = Console(file=io.StringIO(), width=80), tmp_path / "bench.json"
    bench_command(
        server.url,
        batch_sizes=(1, 2),
        repeats=2,
        num_prompts=4,
        max_tokens=8,
        domains=["sql"],
        seed=3,
        out=out,
        console=console,
    )
    printed = " ".join(console.file.getvalue().split())
    for expected in ("BS", "OTPS", "mean", "P05", "speed-up", "TTFT ms", "none", "speculative"):
        assert expected in printed
    assert "batch size 1: speed-up 2.00x, P05 to P95 of 4 pairs of runs 2.00 to 2.00;" in printed
    assert "..." not in printed and "\u2026" not in printed
    assert "outputs compared: 8, different: 0, parted at a near-tie: 0" in printed
    document = json.loads(out.read_text())
    assert [batch["batch_size"] for batch in document["batches"]] == [1, 2]
    assert document["settings"]["prompts"] == "sql, mixed, holdout, seed 3"
    assert document["batches"][0]["speedup"]["ratio"] == 2.0
    held_out = {one.text for one in generate(["sql"], seed=3, split="holdout", num_prompts=4)}
    assert {body["messages"][0]["content"] for body in server.bodies} == held_out


def test_the_command_serves_for_the_time_of_the_benchmark(server):
    events = []

    @contextlib.asynccontextmanager
    async def serve():
        events.append("started")
        yield server.url
        events.append(len(server.bodies))

    options = {"batch_sizes": (1,), "num_prompts": 2, "repeats": 1, "max_tokens": 8}
    bench_command(serve=serve, console=plain_console(), **options)
    assert events == ["started", 6]


async def test_several_drafters_take_turns_on_the_same_prompts(server, second_server):
    second_server.decode_s = {"none": 1.0, "live": 0.25}
    second_server.accepted_per_step = 2
    reports = await compare_drafters(
        {"one": server.url, "two": second_server.url},
        PROMPTS,
        batch_sizes=(1,),
        repeats=1,
        max_tokens=20,
    )
    asked = [
        (body["asked"], body["aurora"]["drafter"], body["messages"][0]["content"])
        for body in server.bodies
        if body["max_tokens"] == 20
    ]
    none_first, none_second = ("first", "none"), ("second", "none")
    one, two = ("first", "live"), ("second", "live")
    rounds = [
        [none_first, one, two],
        [one, two, none_second],
        [two, none_first, one],
        [none_second, one, two],
    ]
    assert asked == [
        (*who, prompt.text) for prompt, turns in zip(PROMPTS, rounds, strict=True) for who in turns
    ]
    assert list(reports) == ["one", "two"]
    figures = [report.batches[0] for report in reports.values()]
    assert [part.speedup.ratio for part in figures] == [2.0, 4.0]
    assert [part.speculative.acceptance_length for part in figures] == [2.0, 3.0]
    assert figures[0].none == figures[1].none  # the same runs
    assert [part.lossless.checked for part in figures] == [4, 4]


async def test_a_drafter_that_fails_costs_the_others_nothing(server, second_server):
    second_server.plan = ["", "", "500"]  # the warm-up takes two
    reports = await compare_drafters(
        {"one": server.url, "two": second_server.url},
        PROMPTS,
        batch_sizes=(1,),
        repeats=1,
        max_tokens=8,
    )
    pairs = {name: report.batches[0].num_pairs for name, report in reports.items()}
    assert pairs == {"one": 4, "two": 3}


def test_the_command_compares_variants_in_one_table(server, second_server, tmp_path):
    second_server.decode_s = {"none": 1.0, "live": 0.25}
    console, out = Console(file=io.StringIO(), width=80), tmp_path / "bench.json"
    reports = bench_command(
        variants={
            "eagle3": partial(contextlib.nullcontext, server.url),
            "ngram": partial(contextlib.nullcontext, second_server.url),
        },
        batch_sizes=(1,),
        repeats=1,
        num_prompts=3,
        max_tokens=8,
        domains=["sql"],
        out=out,
        console=console,
    )
    printed = console.file.getvalue()
    rows = [line.split()[:2] for line in printed.splitlines()]
    assert [row for row in rows if row[:1] == ["1"]] == [
        ["1", "none"],
        ["1", "eagle3"],
        ["1", "ngram"],
    ]
    assert "ngram: batch size 1: speed-up 4.00x" in printed
    assert "eagle3: outputs compared: 3, different: 0" in printed
    document = json.loads(out.read_text())["variants"]
    assert document["eagle3"]["batches"][0]["speedup"]["ratio"] == 2.0
    assert reports["ngram"].batches[0].speedup.ratio == 4.0


def test_variants_are_read_as_overrides():
    texts = ["tree: {speculator.tree_width: 2}", 'x: {speculator: {name: ngram}, run_dir: "on"}']
    variants = read_variants(texts, taken="eagle3")
    assert list(variants) == ["tree", "x"]
    tree, other = (RunConfig.quickstart(overrides) for overrides in variants.values())
    assert tree.speculator.options["tree_width"] == 2
    assert (other.speculator.name, other.run_dir.name) == ("ngram", "on")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["tree"], "holds 'tree' where a mapping of sections is expected"),
        (["tree: 2"], "is not one name with its settings, for example 'tree: "),
        (["a: {seed: 1}\nb: {seed: 2}"], "is not one name with its settings"),
        (["eagle3: {seed: 1}"], "the name 'eagle3' is taken; choose another"),
        (["a: {seed: 1}", "a: {seed: 2}"], "the name 'a' is taken; choose another"),
    ],
)
def test_variants_that_cannot_be_read_are_refused(texts, message):
    with pytest.raises(ConfigError, match=message):
        read_variants(texts, taken="eagle3")


def test_the_command_needs_one_server():
    for arguments in ({}, {"url": "http://x", "serve": contextlib.nullcontext}):
        with pytest.raises(ConfigError, match="either the URL of a server or a run to serve from"):
            bench_command(**arguments)


def test_remarks_tell_of_a_drafter_that_drafts_in_vain(server):
    server.accepted_per_step = 0
    server.plan = ["429"]
    console = plain_console()
    bench_command(
        server.url, batch_sizes=(1,), num_prompts=1, repeats=1, max_tokens=8, console=console
    )
    assert "no draft token was accepted; is a drafter live?" in console.file.getvalue()


def test_the_machine_is_described_without_its_name():
    import platform

    machine = describe_machine()
    assert machine["memory_gib"] > 0
    assert machine["threads"] >= 1
    assert platform.node() not in json.dumps(machine) or not platform.node()
