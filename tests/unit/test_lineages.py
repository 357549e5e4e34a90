"""Which lineage serves a request, and what several of them need together."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from aurora_core.config import RunConfig
from aurora_core.errors import ConfigError
from aurora_core.lineages import (
    LineageRule,
    choose_lineage,
    internal_name,
    shown_name,
    union_of_needs,
)
from aurora_core.records import Needs
from aurora_core.spool.reader import is_held_out

KEYS = [f"{number:016x}" for number in range(3000)]


def choose(rules, *, tenant="", route="", request_key="k"):
    return choose_lineage(rules, tenant=tenant, route=route, request_key=request_key)


def config(**lineages):
    return {"speculator": "fake", "backend": "fake", "lineages": lineages}


@pytest.mark.parametrize(
    ("tenant", "route", "served_by"),
    [
        ("acme", "", "of_tenant"),
        ("acme", "chat", "of_tenant"),
        ("other", "code", "of_route"),
        ("bank", "code", "of_route"),
        ("bank", "chat", "of_both"),
        ("bank", "", ""),
        ("", "", ""),
    ],
)
def test_tenant_and_route_decide_and_the_first_lineage_that_fits_wins(tenant, route, served_by):
    rules = [
        LineageRule(name="of_tenant", tenants=("acme",)),
        LineageRule(name="of_route", routes=("code",)),
        LineageRule(name="of_both", tenants=("bank",), routes=("chat", "code")),
        LineageRule(name="named"),
    ]
    assert choose(rules, tenant=tenant, route=route) == served_by


def test_shares_are_kept_and_equal_prompts_meet_the_same_lineage():
    rules = [LineageRule(name="a", share=1 / 3), LineageRule(name="b", share=1 / 3)]
    served = [choose(rules, request_key=key) for key in KEYS]
    counts = Counter(served)
    assert all(850 < counts[name] < 1150 for name in ("a", "b", "")), counts
    assert served == [choose(rules, request_key=key) for key in KEYS]


def test_shares_are_of_what_no_tenant_or_route_decides():
    rules = [LineageRule(name="all", share=1.0), LineageRule(name="acme", tenants=("acme",))]
    assert choose(rules, tenant="acme") == "acme"
    assert {choose(rules, request_key=key) for key in KEYS} == {"all"}


def test_shares_do_not_follow_the_held_out_split():
    rules = [LineageRule(name="a", share=0.5)]
    held_out = [key for key in KEYS if is_held_out(key, 0.2)]
    share = sum(choose(rules, request_key=key) == "a" for key in held_out) / len(held_out)
    assert 0.4 < share < 0.6


def test_the_default_lineage_has_a_name_for_people_and_none_in_records():
    assert shown_name("") == "default" and shown_name("medusa") == "medusa"
    assert internal_name("default", ["medusa"]) == "" == internal_name("", ["medusa"])
    assert internal_name("medusa", ["medusa"]) == "medusa"
    assert internal_name("other", ["medusa"]) is None


def test_an_engine_captures_what_all_lineages_need():
    needs = union_of_needs(
        [
            ("", Needs(features=frozenset({"aux_hidden_states"}), aux_layers=(1, 4))),
            ("m", Needs(features=frozenset({"last_hidden_state"}), branch_rows=True)),
            ("n", Needs()),
            ("e", Needs(features=frozenset({"aux_hidden_states"}), aux_layers=(1, 4))),
        ]
    )
    assert needs == Needs(
        features=frozenset({"aux_hidden_states", "last_hidden_state"}),
        aux_layers=(1, 4),
        branch_rows=True,
    )


def test_lineages_that_need_other_layers_are_refused():
    needs = [("", Needs(aux_layers=(1, 4))), ("deep", Needs(aux_layers=(2, 4)))]
    with pytest.raises(ConfigError, match="'default' and 'deep' need hidden states of different"):
        union_of_needs(needs)


@pytest.mark.parametrize(
    ("lineages", "words"),
    [
        ({"default": {"speculator": "fake"}}, "choose another name"),
        ({"A b": {"speculator": "fake"}}, "names are lowercase letters"),
        ({"a": {}}, "lineages.a.speculator: required"),
        (
            {"a": {"speculator": "fake", "share": 0.5, "tenants": ["t"]}},
            "either tenants and routes, or a share",
        ),
        (
            {n: {"speculator": "fake", "share": 0.6} for n in ("a", "b")},
            "add up to 1.2, which is more than 1",
        ),
        ({"a": {"speculator": "fake", "learner": {"batch_trace": 2}}}, "did you mean"),
        ({"a": {"speculator": "fake", "learner": {"fresh_traces": 9}}}, "exceeds batch_traces"),
    ],
)
def test_unfit_lineages_are_refused_in_a_sentence(tmp_path, lineages, words):
    path = tmp_path / "run.yaml"
    path.write_text(RunConfig.quickstart().to_yaml())
    values = yaml.safe_load(path.read_text()) | {"lineages": lineages}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=words):
        RunConfig.load(path)


def test_a_lineage_is_configured_as_a_run_of_its_own_would_be():
    settings = config(
        medusa={
            "share": 0.5,
            "speculator": {"name": "medusa", "num_heads": 2},
            "num_speculative_tokens": 4,
            "learner": {"learning_rate": 0.5},
        },
        gated={"speculator": "fake", "swap_policy": "always", "trace_sink": {"name": "other"}},
    )
    settings |= {
        "run_dir": "runs/x",
        "learner": {"batch_traces": 8},
        "trace_sink": {"name": "spool", "path": "elsewhere", "max_age_s": 5},
    }
    run = RunConfig.model_validate(settings)
    assert run.of_lineage("") is run
    medusa, gated = run.of_lineage("medusa"), run.of_lineage("gated")
    assert str(medusa.run_dir) == "runs/x/lineages/medusa" and medusa.lineages == {}
    assert medusa.speculator.options == {"num_heads": 2}
    assert (medusa.num_speculative_tokens, gated.num_speculative_tokens) == (4, 3)
    assert (medusa.learner.learning_rate, medusa.learner.batch_traces) == (0.5, 8)
    assert (medusa.swap_policy.name, gated.swap_policy.name) == ("gate", "always")
    assert medusa.trace_sink.options == {"max_age_s": 5}  # the path is the run's alone
    assert gated.trace_sink.name == "other"


def test_lineages_survive_being_written_and_read():
    run = RunConfig.model_validate(
        config(a={"share": 0.25, "speculator": "fake", "learner": {"learning_rate": 0.5}})
    )
    again = RunConfig.model_validate(yaml.safe_load(run.to_yaml()))
    assert again == run and again.of_lineage("a").learner == run.of_lineage("a").learner
