"""The run configuration: precedence, YAML without surprises, errors at the user's own paths."""

from __future__ import annotations

import re
from pathlib import Path

import pydantic
import pytest

from aurora_core import config_source
from aurora_core.config import RunConfig, Section
from aurora_core.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


MINIMAL = "speculator: {name: eagle3, num_layers: 1}\nbackend: torch\n"


def test_defaults_then_file_then_set(tmp_path):
    path = write(tmp_path, MINIMAL + "learner: {batch_traces: 6, fresh_traces: 3}\n")
    config = RunConfig.load(path, ["learner.batch_traces=8", "learner.learning_rate=3e-4"])
    assert config.learner.batch_traces == 8
    assert config.learner.fresh_traces == 3
    assert config.learner.learning_rate == 3e-4
    assert config.learner.gradient_clip == 1.0


def test_component_options_are_kept_for_the_component(tmp_path):
    config = RunConfig.load(write(tmp_path, MINIMAL), ["backend.port=8100"])
    assert config.speculator.options == {"num_layers": 1}
    assert (config.backend.name, config.backend.options) == ("torch", {"port": 8100})
    assert config.swap_policy.name == "gate" and config.trace_sink.name == "spool"


def test_without_a_file_it_is_the_quickstart():
    config = RunConfig.load(None)
    assert config == RunConfig.quickstart()
    assert (config.target, config.speculator.name, config.backend.name) == (
        "quickstart",
        "eagle3",
        "torch",
    )
    assert config.traffic is not None and config.final_bench is not None
    assert config.requests is not None, "the quickstart must come to an end by itself"


def test_the_written_configuration_loads_to_an_equal_one(tmp_path):
    config = RunConfig.quickstart(["backend.port=1", "traffic.rate=2.5", "plugins=[eagle, torch]"])
    assert RunConfig.load(write(tmp_path, config.to_yaml())) == config


def test_configurations_do_not_change():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        RunConfig.quickstart().seed = 3


def _sections(model: type[Section]) -> set[type[Section]]:
    found = {model}
    for field in model.model_fields.values():
        for candidate in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                found |= _sections(candidate)
    return found


def test_every_field_is_described():
    sections = _sections(RunConfig)
    assert len(sections) == 8
    bare = [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("lerner.max_steps=1", "lerner: unknown option; did you mean 'learner'? options: target, "),
        (
            "learner.learning_rat=1",
            "learner.learning_rat: unknown option; did you mean 'learning_rate'? options: num_thr",
        ),
        ("traffic.zebra=1", "traffic.zebra: unknown option; options: domains, order, "),
        ("learner.batch_traces=0", "learner.batch_traces: input should be greater than or equal "),
        ("traffic.domains=[sql, 7]", "traffic.domains[1]: input should be a valid string, not 7"),
        ("traffic.order=random", "traffic.order: input should be 'mixed' or 'ordered', not 'rand"),
        ("target=3.10", "target: input should be a valid string, not 3.1; put the value in quotes"),
        ("backend=7", "backend: a name, or a mapping of options is expected, not 7"),
        ("guard=[1]", "guard: a mapping of options is expected, not a list"),
        ("run_dir=", "run_dir: a path is expected, not null"),
        ("learner.max_steps=", "learner.max_steps: input should be a valid integer, not null"),
        ("backend={port: 1}", "backend.name: required, but not set"),
        ("learner.batch_traces=1", "learner: fresh_traces (2) exceeds batch_traces (1)"),
        (
            "seed=4294967296",
            "seed: input should be less than or equal to 4294967295, not 4294967296",
        ),
        ("seed=-1", "seed: input should be greater than or equal to 0, not -1"),
        ("requests=true", "requests: a number is expected, not true"),
        ("guard.max_loss=false", "guard.max_loss: a number is expected, not false"),
        ("learner.learning_rate=.inf", "learner.learning_rate: input should be a finite number"),
        ("traffic.temperature=3", "traffic.temperature: input should be less than or equal to 2"),
        # Else it would be found out when the run has ended, at the cost of its report.
        (
            "final_bench.batch_sizes=[1, 0]",
            "final_bench.batch_sizes[1]: input should be greater than or equal to 1, not 0",
        ),
    ],
)
def test_a_wrong_setting_is_reported_at_its_path(assignment, line):
    message = f"the quickstart with --set is not a usable configuration:\n  {line}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.quickstart([assignment])


def test_every_wrong_setting_of_a_file_is_reported_at_once(tmp_path):
    path = write(tmp_path, "speculator: eagle3\nsede: 1\nlearner: {max_steps: -2}\n")
    with pytest.raises(ConfigError) as raised:
        RunConfig.load(path)
    first, *lines = str(raised.value).splitlines()
    assert first == f"{path} is not a usable configuration:"
    assert [line.split(":")[0].strip() for line in lines] == [
        "backend",
        "learner.max_steps",
        "sede",
    ]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed", "--set 'seed' is not of the form key.path=value, for example learner.learning_"),
        ("a..b=1", "--set 'a..b=1' is not of the form key.path=value"),
        ("=1", "--set '=1' is not of the form key.path=value"),
        ("seed=[1", "--set 'seed=[1': the value is not YAML: expected ',' or ']'"),
        ("seed=!!int x", "the value is not YAML: 'x' is no int (line 1, column 1)"),
        ("seed=!!bool x", "the value is not YAML: 'x' is no bool (line 1, column 1)"),
        ("seed=!!timestamp x", "the value is not YAML: 'x' is no timestamp (line 1, column 1)"),
        (f"seed={'1' * 5000}", "the value is not YAML: '11111"),
        (f"seed={'[' * 600}", "the value is not YAML: it is nested too deeply"),
        ("requests.x=1", "--set 'requests.x=1': requests is 400, not a section"),
        ("traffic.domains.x=1", "--set 'traffic.domains.x=1': traffic.domains is a list, not a "),
    ],
)
def test_a_malformed_override_is_reported_as_typed(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.quickstart(["requests=400", assignment])


def test_an_override_opens_a_section_that_was_empty(tmp_path):
    config = RunConfig.load(write(tmp_path, MINIMAL), ["traffic.concurrency=2"])
    assert config.traffic is not None and config.traffic.concurrency == 2


def test_overrides_leave_the_values_they_are_given_alone():
    values = {"learner": {"max_steps": 1}}
    assert config_source.override(values, "learner.max_steps=2") == {"learner": {"max_steps": 2}}
    assert values == {"learner": {"max_steps": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.5E+3", 1500.0),
        (".5", 0.5),
        ("-7", -7),
        ("0x10", 16),
        ("1_000", 1000),
        ("true", True),
        ("~", None),
        ("", None),
        # Booleans, sexagesimal numbers, dates and octal numbers to PyYAML alone.
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2026-11-30", "2026-11-30"),
        ("010", "010"),
        ("'5'", "5"),
    ],
)
def test_yaml_scalars_mean_what_they_look_like(text, value):
    parsed = config_source.parse(f"key: {text}", "text")["key"]
    assert parsed == value and type(parsed) is type(value)


def test_yaml_keys_are_not_turned_into_booleans():
    assert config_source.parse("on: 1", "text") == {"on": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"is not valid YAML: key 'a' is written twice \(line 3, column 1\)"),
        ("a: [1\n", r"is not valid YAML: expected ',' or '\]'"),
        ("- a\n", "holds a list where a mapping of sections is expected"),
        ("a: !!python/name:os.system\n", "is not valid YAML: could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_place(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))} {message}"):
        RunConfig.load(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    message = r"^there is no configuration file '.*/none\.yaml'; correct the path, or leave it out"
    with pytest.raises(ConfigError, match=message):
        RunConfig.load(tmp_path / "none.yaml")


def test_an_unreadable_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"configuration file '.*' cannot be read: Is a dire"):
        RunConfig.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"target: \xe9\n")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8 text"):
        RunConfig.load(tmp_path / "latin.yaml")


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("**/*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_valid_configuration(example):
    assert RunConfig.load(example).target


def test_the_quickstart_example_is_what_runs_without_a_file():
    [example] = [path for path in EXAMPLES if path.name == "quickstart.yaml"]
    assert RunConfig.load(example) == RunConfig.quickstart()


@pytest.mark.parametrize(
    "path",
    [
        "run_dir",
        "target",
        "traffic.prompts",
        "speculator.start_from",
        "trace_sink.path",
        "tracking.uri",
        "backend.host",
        "plugins",
        "lineages.other.speculator.start_from",
    ],
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r"a\0b", "holds a NUL character, which no path or name can; remove it"),
        (r"\ud800", "holds half of a surrogate pair, which is no character; remove it"),
    ],
)
def test_text_that_the_system_cannot_take_is_refused_at_its_path(path, text, problem):
    with pytest.raises(ConfigError, match=f"  {re.escape(path)}: '.*' {problem}"):
        RunConfig.quickstart([f'{path}="{text}"'])


def test_text_that_the_system_cannot_take_is_found_in_lists_and_keys(tmp_path):
    text = 'traffic: {domains: [sql, "a\\0b"]}\nbackend: {"po\\0rt": 1}\n'
    with pytest.raises(ConfigError, match=r"(?s)  traffic.domains\[1\]: .*  backend: 'po\\x00rt'"):
        RunConfig.load(write(tmp_path, text))
