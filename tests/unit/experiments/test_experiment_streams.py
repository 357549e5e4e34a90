"""What is sent, and with which settings."""

from __future__ import annotations

from aurora_core.experiments.streams import (
    REFERENCE,
    StreamSettings,
    first_prompts,
    stream_prompts,
    with_references,
)
from aurora_core.traffic.prompts import Prompt

DOMAINS = ("sql", "math", "code")


def test_both_orders_send_the_same_prompts():
    ordered, mixed = (
        stream_prompts(name, DOMAINS, requests_per_domain=8, seed=3)
        for name in ("ordered", "mixed")
    )
    assert ordered != mixed
    assert sorted(one.text for one in ordered) == sorted(one.text for one in mixed)
    assert [one.domain for one in ordered] == ["sql"] * 8 + ["math"] * 8 + ["code"] * 8


def test_no_prompt_of_the_streams_is_pretrained_on():
    stream = stream_prompts("ordered", DOMAINS, requests_per_domain=30, seed=3)
    before = first_prompts("sql", num_prompts=40, requests_per_domain=30, seed=3)
    assert len(before) == 40 and {one.domain for one in before} == {"sql"}
    assert not {one.text for one in before} & {one.text for one in stream}


def test_reference_repeats_the_prompt_before_it_without_drafter_and_trace():
    prompts = [Prompt("sql", str(number)) for number in range(5)]
    sent = with_references(prompts, 2)
    assert [one.text for one in sent] == ["0", "1", "1", "2", "3", "3", "4"]
    settings = StreamSettings(max_tokens=7)
    asked = [settings.for_request(0, one) for one in sent[1:3]]
    assert (asked[0].drafter, asked[0].record, asked[0].route) == (None, None, "sql")
    assert (asked[1].drafter, asked[1].record, asked[1].route) == ("none", False, "")
    assert sent[2].domain == REFERENCE and {one.max_tokens for one in asked} == {7}
    assert with_references(prompts, 0) == prompts
