"""A vLLM that does not fit is told in one sentence; the modules here stand in for its own."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from aurora_backend_vllm.engine import capabilities
from aurora_core.errors import BackendError


class State(NamedTuple):
    scheduler_output: Any
    logits: Any
    spec_decode_metadata: Any
    hidden_states: Any
    aux_hidden_states: Any


class Runner:
    """Has everything that the recorder needs of vLLM's V1 runner."""

    execute_model_state = None
    use_async_scheduling = False
    use_aux_hidden_state_outputs = True
    input_batch = SimpleNamespace(req_ids=[], num_reqs=0, num_computed_tokens_cpu=None)
    speculative_config = SimpleNamespace(method="eagle3")

    def execute_model(self, scheduler_output: Any) -> None: ...

    def sample_tokens(self, grammar_output: Any) -> None: ...

    def propose_draft_token_ids(self, *arguments: Any) -> None: ...

    def take_draft_token_ids(self) -> None: ...

    def get_draft_model(self) -> None: ...

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...]:
        return (1, 2, 3)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules of vLLM that the checks look into, by their last name."""
    names = ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu_model_runner")
    names += ("vllm.model_executor", "vllm.model_executor.model_loader")
    names += ("vllm.model_executor.model_loader.reload",)
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    found: dict[str, Any] = {name.rpartition(".")[2]: module for name, module in modules.items()}
    found["vllm"].__version__ = "0.32.5"
    found["gpu_model_runner"].GPUModelRunner = Runner
    found["gpu_model_runner"].ExecuteModelState = State
    found["reload"].initialize_layerwise_reload = found["reload"].finalize_layerwise_reload = None
    return found


def config(**changes: Any) -> Any:
    speculation = SimpleNamespace(method="eagle3", rejection_sample_method="standard")
    parallel = SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=1)
    for name, value in changes.items():
        owner = parallel if hasattr(parallel, name) else speculation
        setattr(owner, name, value)
    return SimpleNamespace(speculative_config=speculation, parallel_config=parallel)


def test_a_fitting_engine_passes(vllm: dict[str, Any]) -> None:
    capabilities.check_version("0.32.0+cpu")
    capabilities.check_version("0.32.3.dev7")
    capabilities.check_engine(config(), Runner())
    capabilities.check_internals(Runner())
    capabilities.check_layers(Runner(), (1, 2, 3))


def test_the_other_model_runner_is_refused_with_its_switch(vllm: dict[str, Any]) -> None:
    with pytest.raises(BackendError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        capabilities.check_engine(config(), object())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "ngram"}, "the speculative method 'ngram'"),
        ({"rejection_sample_method": "synthetic"}, "accepts wrong tokens"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
        ({"data_parallel_size": 2}, "--data-parallel-size 2"),
    ],
)
def test_an_unfit_configuration_is_refused(
    vllm: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BackendError, match=sentence):
        capabilities.check_engine(config(**changes), Runner())


def test_a_server_without_speculation_is_refused() -> None:
    with pytest.raises(BackendError, match="started without speculation"):
        capabilities.check_speculation(None)


def test_asynchronous_scheduling_is_refused(vllm: dict[str, Any]) -> None:
    runner = Runner()
    runner.use_async_scheduling = True
    with pytest.raises(BackendError, match="--no-async-scheduling"):
        capabilities.check_engine(config(), runner)


def test_every_internal_that_moved_is_named(vllm: dict[str, Any]) -> None:
    class Moved(Runner):
        take_draft_token_ids = None
        input_batch = SimpleNamespace(req_ids=[], num_reqs=0)

        def sample_tokens(self) -> None: ...

    vllm["gpu_model_runner"].ExecuteModelState = NamedTuple("State", [("logits", Any)])
    del vllm["reload"].finalize_layerwise_reload
    with pytest.raises(BackendError, match=r"^vLLM 0\.32\.5 has moved ") as raised:
        capabilities.check_internals(Moved())
    for name in (
        "ExecuteModelState.hidden_states",
        "Moved.sample_tokens()",
        "Moved.take_draft_token_ids()",
        "InputBatch.num_computed_tokens_cpu",
        "vllm.model_executor.model_loader.reload",
    ):
        assert name in str(raised.value)


def test_layers_that_the_drafter_does_not_read_are_refused(vllm: dict[str, Any]) -> None:
    with pytest.raises(BackendError, match=r"learns from target layers \[2, 3, 4\]"):
        capabilities.check_layers(Runner(), (2, 3, 4))
    runner = Runner()
    runner.use_aux_hidden_state_outputs = False
    with pytest.raises(BackendError, match="with the method 'eagle3' only"):
        capabilities.check_layers(runner, (1, 2, 3))
    capabilities.check_layers(runner, ())
