"""Whether this vLLM is one that the recorder understands; asked before anything is observed.

Every answer "no" is one sentence that says what to change.
"""

from __future__ import annotations

import inspect
from typing import Any

from packaging.version import Version

from aurora_core.errors import BackendError

SUPPORTED = ("0.32", "0.33")
"""First version of vLLM that is supported, and the first that is not any more."""

METHODS = frozenset({"eagle3", "eagle", "medusa"})
"""Speculative methods of vLLM that Aurora trains drafters for."""

_STATE_FIELDS = (
    "scheduler_output",
    "logits",
    "spec_decode_metadata",
    "hidden_states",
    "aux_hidden_states",
)
_RUNNER_METHODS = {
    "execute_model": 1,
    "sample_tokens": 1,
    "propose_draft_token_ids": 1,
    "take_draft_token_ids": 0,
    "get_draft_model": 0,
}
"""Method of the model runner -> positional arguments that the recorder passes at least."""
_BATCH_FIELDS = ("req_ids", "num_reqs", "num_computed_tokens_cpu")


def check_version(version: str) -> None:
    """Raise BackendError unless this version of vLLM is supported."""
    first, beyond = SUPPORTED
    if not Version(first) <= Version(Version(version).base_version) < Version(beyond):
        raise BackendError(
            f"vLLM {version} is installed, but this backend works with {first} up to, not "
            f"including, {beyond}; install a version in that range in the engine's environment"
        )


def check_engine(vllm_config: Any, runner: Any) -> None:
    """See that the engine runs in a way the recorder follows.

    Args:
        vllm_config: the engine's configuration.
        runner: the worker's model runner, with its models loaded.

    Raises:
        BackendError: the first thing that does not fit.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if not isinstance(runner, GPUModelRunner):
        raise BackendError(
            "vLLM runs model runner V2, which Aurora's recorder does not follow; set the "
            "environment variable VLLM_USE_V2_MODEL_RUNNER=0 for the server"
        )
    check_speculation(vllm_config.speculative_config)
    parallel = vllm_config.parallel_config
    for name, size in (
        ("pipeline", parallel.pipeline_parallel_size),
        ("data", parallel.data_parallel_size),
    ):
        if size > 1:
            raise BackendError(
                f"vLLM runs with --{name}-parallel-size {size}, which Aurora's recorder does not "
                "follow; set it to 1, and start one server per replica"
            )
    if runner.use_async_scheduling:
        raise BackendError(
            "vLLM schedules asynchronously, which hides rejected drafts from Aurora's recorder; "
            "start the server with --no-async-scheduling"
        )


def check_speculation(speculative_config: Any) -> None:
    """Raise BackendError unless the server speculates, in a lossless way that Aurora knows."""
    if speculative_config is None:
        raise BackendError(
            "vLLM was started without speculation, so no drafter can be swapped in; start it with "
            "--speculative-config, as `aurora vllm-command` prints it"
        )
    if speculative_config.method not in METHODS:
        raise BackendError(
            f"vLLM was started with the speculative method {speculative_config.method!r}; Aurora "
            f"trains drafters for {', '.join(sorted(METHODS))}"
        )
    if speculative_config.rejection_sample_method == "synthetic":
        raise BackendError(
            "vLLM was started with rejection_sample_method 'synthetic', which accepts wrong "
            "tokens; leave it out of --speculative-config"
        )


def check_internals(runner: Any) -> None:
    """See that what the recorder observes is where it was in the versions it was written for.

    Raises:
        BackendError: an internal of vLLM has moved.
    """
    from vllm.v1.worker.gpu_model_runner import ExecuteModelState

    missing = [
        f"ExecuteModelState.{name}"
        for name in _STATE_FIELDS
        if name not in getattr(ExecuteModelState, "_fields", ())
    ]
    for name, num_arguments in _RUNNER_METHODS.items():
        method = getattr(runner, name, None)
        if method is None or not _takes(method, num_arguments):
            missing.append(f"{type(runner).__name__}.{name}()")
    batch = getattr(runner, "input_batch", None)
    missing += [f"InputBatch.{name}" for name in _BATCH_FIELDS if not hasattr(batch, name)]
    if not hasattr(runner, "execute_model_state"):
        missing.append(f"{type(runner).__name__}.execute_model_state")
    try:
        from vllm.model_executor.model_loader.reload import (  # noqa: F401 - asked for, not used
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )
    except ImportError:
        missing.append("vllm.model_executor.model_loader.reload")
    if missing:
        import vllm

        raise BackendError(
            f"vLLM {vllm.__version__} has moved {', '.join(missing)}, which Aurora's recorder "
            "needs; use a version of vLLM that this backend was tested with"
        )


def check_layers(runner: Any, wanted: tuple[int, ...]) -> None:
    """Raise BackendError unless the target hands out the layers that the speculator learns from."""
    if not wanted:
        return
    if not runner.use_aux_hidden_state_outputs:
        raise BackendError(
            f"the speculator learns from target layers {list(wanted)}, but vLLM hands out hidden "
            f"states of layers with the method 'eagle3' only, and runs "
            f"{runner.speculative_config.method!r}"
        )
    found = tuple(runner._get_eagle3_aux_layers_from_config() or ())
    if found != wanted:
        raise BackendError(
            f"the speculator learns from target layers {list(wanted)}, but vLLM's drafter reads "
            f"{list(found)}; start vLLM with a drafter of this run"
        )


def _takes(method: Any, num_arguments: int) -> bool:
    try:
        inspect.signature(method).bind_partial(*([None] * num_arguments))
    except (TypeError, ValueError):
        return False
    return True
