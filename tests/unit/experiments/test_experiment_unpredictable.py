"""What speculation costs where it brings nothing."""

from __future__ import annotations

import json

import pytest

from aurora_core.errors import BackendError
from aurora_core.experiments import unpredictable
from aurora_core.experiments.unpredictable import Pair, as_markdown, measure_loss, summarise
from aurora_core.plugins import Plugins
from aurora_core.testing.fake_speculator import FakePlugin
from aurora_core.traffic.prompts import generate
from aurora_core.versions import read_run_state
from tests.unit.experiments.hand_made import FakeServing, make_config, write_versions


def pair(seconds, plain_seconds, *, drafted=True, same=True):
    return Pair(
        drafted=drafted, seconds=seconds, plain_seconds=plain_seconds, same=same, num_tokens=9
    )


def test_loss_weighs_requests_by_their_time():
    report = summarise(
        [pair(1.2, 1.0), pair(3.0, 3.0, drafted=False), pair(1.0, 1.0, drafted=False, same=False)],
        [("disable_speculation", "it is slower")],
        [pair(1.02, 1.0, drafted=False)],
        [pair(1.01, 1.0, drafted=False)],
    )
    assert report.loss_between_servers.estimate == pytest.approx(0.02)
    assert report.loss.estimate == pytest.approx(0.04)
    assert report.loss.lower == 0.0 and report.loss.upper == pytest.approx(0.2)
    assert report.loss_while_drafting.estimate == pytest.approx(0.2)
    assert report.loss_after.estimate == 0.0
    assert (report.num_pairs, report.num_drafted, report.num_different) == (3, 1, 1)
    text = as_markdown(report)
    assert "| all | 3 | +4.0% [+0.0%, +20.0%] |" in text and "it is slower" in text
    assert "| asked for none | 1 | +2.0% [+2.0%, +2.0%] |" in text
    assert "| without drafts, against asked for none | 1 | +1.0% [+1.0%, +1.0%] |" in text


def test_nothing_answered_is_one_sentence():
    with pytest.raises(BackendError, match="no prompt was answered by both servers"):
        summarise([])


async def test_each_prompt_is_asked_of_both_servers(tmp_path, monkeypatch):
    serving = FakeServing()
    monkeypatch.setattr(unpredictable, "serve", serving)
    write_versions(tmp_path / "source", [3])
    plugins = Plugins()
    plugins.register(FakePlugin(), "fake")
    done = []
    report = await measure_loss(
        make_config(tmp_path / "unused"), plugins, source=tmp_path / "source",
        folder=tmp_path / "out", num_requests=6, max_tokens=12, temperature=1.5, seed=0,
        num_controls=2, on_pair=done.append,
    )  # fmt: skip
    assert serving.served == ["with-drafter", "without"] and done == [1, 2, 3, 4, 5, 6]
    assert (report.num_pairs, report.num_drafted, report.num_different) == (6, 6, 0)
    assert report.num_controls == 2
    # Every answer of the fake server had drafts.
    assert report.num_switched_off == 0 and report.loss_switched_off is None
    # The guard may switch it off: nobody pinned it.
    assert not read_run_state(tmp_path / "out" / "with-drafter" / "state.json").pinned


@pytest.mark.parametrize(
    ("count", "numbers"),
    [(0, []), (2, [2, 5]), (3, [2, 4, 6]), (6, [2, 3, 4, 5, 6, 7]), (20, None)],
)
def test_controls_lie_evenly_behind_the_first_quarter(count, numbers):
    expected = [2, 3, 4, 5, 6, 7] if numbers is None else numbers
    assert sorted(unpredictable._spread(count, 8)) == expected


def test_decisions_are_told_with_their_reasons():
    lines = [
        {"kind": "verdict", "verdict": {"action": "hold", "reason": "h"}},
        {"kind": "verdict", "verdict": {"action": "disable_speculation", "reason": "d"}},
        json.loads('{"kind": "swap", "version": -1}'),
    ]
    assert unpredictable._events(lines) == [("disable_speculation", "d")]


def test_random_prompts_are_all_different_and_no_part_of_a_stream_that_does_not_name_them():
    prompts = [one.text for one in generate(["random"], num_prompts=200)]
    assert len(set(prompts)) == 200
    words = [word for text in prompts for word in text.split()]
    assert len(set(words)) > 0.8 * len(words)
    assert {one.domain for one in generate(num_prompts=20)} == {
        "math", "sql", "code", "finance", "chat"
    }  # fmt: skip
