"""The command line of a vLLM server with Aurora's half in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_backend_vllm.config import VllmBackendOptions
from aurora_backend_vllm.engine.settings import TOKEN_VARIABLE, EngineSettings
from aurora_backend_vllm.environment import VllmEnvironment
from aurora_core.errors import BackendError, CheckpointError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER

WORKER = "aurora_backend_vllm.engine.worker.AuroraWorker"
MIDDLEWARE = "aurora_backend_vllm.engine.middleware.AuroraMiddleware"

RESERVED = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--speculative-config",
    "--worker-cls",
    "--middleware",
    "--additional-config",
    "--per-request-spec-decode-metrics",
    "--async-scheduling",
)
"""Arguments of the server that Aurora sets."""

SINGLE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's executor that computes in the process that schedules."""

_PARALLEL = ("-tp", "-pp", "-dp", "-n")


def engine_settings(plan: ServePlan, options: VllmBackendOptions) -> EngineSettings:
    """Return what the engine's half is told."""
    initial = plan.initial_version
    return EngineSettings(
        target=plan.target,
        needs=plan.needs,
        versions_dir=plan.versions_dir,
        initial_version=NO_DRAFTER if initial is None else initial.version,
        initial_checksum="" if initial is None else initial.checksum,
        sink=plan.sink if options.record else None,
        sink_options=plan.sink_options,
        feature_dtype=options.feature_dtype,
        max_trace_tokens=options.max_trace_tokens,
        stale_draft_cache=options.stale_draft_cache,
    )


def server_command(
    plan: ServePlan,
    options: VllmBackendOptions,
    *,
    drafter: Path,
    port: int,
    python: Path | None = None,
    single_process: bool = False,
) -> list[str]:
    """Return the program and arguments that start the server.

    Args:
        plan: of the run.
        options: of the backend.
        drafter: folder of the checkpoint to start with: of a version, or of a placeholder.
        port: to listen on.
        python: interpreter; that of the options if not given.
        single_process: whether the engine computes in the process that schedules.

    Raises:
        BackendError: an argument of the user's is one that Aurora sets.
        CheckpointError: the checkpoint is none that vLLM drafts with.
    """
    check_arguments(options.arguments)
    method = speculative_method(drafter)
    if method == "medusa":
        check_medusa(drafter, plan.num_speculative_tokens)
    speculation: dict[str, Any] = {
        "method": method,
        "model": str(drafter),
        "num_speculative_tokens": plan.num_speculative_tokens,
    }
    if options.num_speculative_tokens_by_batch_size:
        speculation["num_speculative_tokens_per_batch_size"] = drafts_by_batch_size(plan, options)
    settings = engine_settings(plan, options)
    command = [
        str(python or options.python),
        "-m",
        # The `vllm` script does not start in builds for CPUs; this module is what it runs.
        "vllm.entrypoints.openai.api_server",
        *("--model", plan.target.path),
        *("--served-model-name", plan.target.name),
        *("--host", options.host, "--port", str(port)),
        *("--dtype", options.dtype),
        *("--seed", str(plan.seed)),
        *("--max-num-seqs", str(options.max_running_requests)),
        *("--speculative-config", json.dumps(speculation)),
        *("--worker-cls", WORKER),
        *("--middleware", MIDDLEWARE),
        *("--additional-config", json.dumps(settings.to_config())),
        *("--per-request-spec-decode-metrics", "detailed"),
        "--no-async-scheduling",
    ]
    if options.max_context is not None:
        command += ["--max-model-len", str(options.max_context)]
    if options.enforce_eager:
        command.append("--enforce-eager")
    if single_process:
        command += ["--distributed-executor-backend", SINGLE_PROCESS]
    return [*command, *options.arguments]


def fits_single_process(options: VllmBackendOptions, environment: VllmEnvironment) -> bool:
    """Return whether scheduler and model need no processes of their own.

    vLLM for CPUs gives them two, to bind threads to cores, and the scheduler's spins while the
    model computes: a core less for the learner. With `num_threads` no thread is bound.
    """
    if not environment.is_cpu or options.num_threads is None:
        return False
    names = [argument.partition("=")[0] for argument in options.arguments]
    return not any(name in _PARALLEL or "parallel" in name or "executor" in name for name in names)


def drafts_by_batch_size(plan: ServePlan, options: VllmBackendOptions) -> list[list[int]]:
    """Return vLLM's schedule of draft tokens: [first batch size, last one, draft tokens] each.

    Raises:
        BackendError: it asks for more draft tokens than `num_speculative_tokens`.
    """
    largest = plan.num_speculative_tokens
    limits = {1: largest, **options.num_speculative_tokens_by_batch_size}
    for batch_size, limit in limits.items():
        if limit > largest:
            raise BackendError(
                f"`backend.num_speculative_tokens_by_batch_size` asks for {limit} draft tokens "
                f"from {batch_size} requests on, but `num_speculative_tokens` is {largest}; lower "
                "the one or raise the other"
            )
    firsts = sorted(limits)
    lasts = [first - 1 for first in firsts[1:]]
    lasts.append(max(firsts[-1], options.max_running_requests))
    return [[first, last, limits[first]] for first, last in zip(firsts, lasts, strict=True)]


def server_environment(
    options: VllmBackendOptions, environment: VllmEnvironment, token: str
) -> dict[str, str]:
    """Return the variables that the server is started with; the token is only here."""
    variables = {
        TOKEN_VARIABLE: token,
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # Threads that spin between two kernels take the learner's cores away.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        # The engine's environment is its own: nothing of the controller's may shadow it.
        "PYTHONPATH": "",
    }
    if environment.is_cpu:
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_cache_gib)
        if options.num_threads is not None:
            # Bound threads would wait for a core that the learner has, beside one that is free.
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            variables["OMP_NUM_THREADS"] = str(options.num_threads)
    return variables


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise BackendError for arguments that Aurora sets itself."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name in RESERVED:
            raise BackendError(
                f"`backend.arguments` names {name!r}, which Aurora sets itself; leave it out"
            )


def speculative_method(folder: Path) -> str:
    """Return vLLM's name of the method that a checkpoint drafts with.

    Raises:
        CheckpointError: config.json is missing, or names none that Aurora can swap.
    """
    config = _read_config(folder)
    architecture = str((config.get("architectures") or [""])[0])
    if "Eagle3" in architecture:
        return "eagle3"
    if "Medusa" in architecture:
        return "medusa"
    speculator = str((config.get("aurora") or {}).get("speculator", ""))
    if speculator.startswith("eagle") or architecture.startswith("Eagle"):
        return "eagle"
    raise CheckpointError(
        f"checkpoint {str(folder)!r} has the architecture {architecture!r}, and vLLM drafts with "
        "EAGLE-3, EAGLE and Medusa checkpoints of Aurora"
    )


def check_medusa(folder: Path, num_speculative_tokens: int) -> None:
    """Refuse heads that vLLM would not load, or would fill up with random ones.

    Raises:
        CheckpointError: there are fewer heads than draft tokens, or they draft a part of the
            vocabulary only: vLLM 0.32 has a `token_map` for that, and fails to load it.
    """
    config = _read_config(folder)
    num_heads, vocabulary = config.get("num_heads"), config.get("vocab_size")
    if isinstance(num_heads, int) and num_heads < num_speculative_tokens:
        raise CheckpointError(
            f"checkpoint {str(folder)!r} has {num_heads} Medusa heads for num_speculative_tokens = "
            f"{num_speculative_tokens}, and vLLM would take random weights for the rest; set "
            f"num_speculative_tokens to {num_heads} or fewer"
        )
    if config.get("truncated_vocab_size", vocabulary) != vocabulary:
        raise CheckpointError(
            f"checkpoint {str(folder)!r} has Medusa heads for {config['truncated_vocab_size']} of "
            f"{vocabulary} tokens, which vLLM cannot load; set `draft_vocab_size` of the "
            f"speculator to {vocabulary}"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"config.json of checkpoint {str(folder)!r} is missing or damaged ({error})"
        ) from error
    return config
