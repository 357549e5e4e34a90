"""Before a run, the learner's trainer is made on trial: same code, same sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aurora_core.config import LearnerSection
from aurora_core.errors import ConfigError
from aurora_core.learner.lightning_trainer import make_trainer
from aurora_core.learner.trainer_check import check_trainer, main


def test_the_sentence_is_the_one_that_the_learner_ends_with(tmp_path: Path) -> None:
    options = LearnerSection(precision="8-true")  # of accelerators, Lightning lists a set
    with pytest.raises(ConfigError) as told_by_learner:
        make_trainer(options, [], folder=tmp_path)
    with pytest.raises(ConfigError) as told_before:
        check_trainer(options)
    assert str(told_before.value) == " ".join(str(told_by_learner.value).split())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strategy": "fsdp"}, "learner.strategy 'fsdp' splits parameters between devices"),
        ({"strategy": "ddp_of_mine"}, "Lightning cannot train with .* 'ddp_of_mine'"),
        ({"precision": "8-true"}, "Lightning cannot train with .*: Precision '8-true' is invalid"),
        ({"precision": "transformer-engine"}, "Lightning cannot train with .*'transformer-engine'"),
        ({"accelerator": "tpu"}, "Lightning cannot train with learner.accelerator 'tpu'"),
    ],
)
def test_what_is_not_here_ends_the_trial_with_a_sentence(
    changes: dict[str, str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([LearnerSection.model_validate(changes).model_dump_json()]) == 2
    [line] = capfd.readouterr().err.strip().splitlines()[-1:]
    with pytest.raises(ConfigError, match=sentence):
        raise ConfigError(line)


def test_the_defaults_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    check_trainer(LearnerSection(learning_rate=0.1))


def test_a_trial_that_crashes_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"Traceback\nImportError: no torch\n")

    monkeypatch.setattr(subprocess, "run", crash)
    with pytest.raises(ConfigError, match="cannot be found out: ImportError: no torch; look at"):
        check_trainer(LearnerSection(precision="bf16-mixed"))
