"""The command line of an SGLang server with Aurora's half in it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.engine.settings import (
    SETTINGS_VARIABLE,
    TOKEN_VARIABLE,
    EngineSettings,
)
from aurora_backend_sglang.other_drafters import algorithm_of, check_beside, may_name
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan
from aurora_core.records import NO_DRAFTER

RESERVED = (
    "--model",
    "--model-path",
    "--served-model-name",
    "--host",
    "--port",
    "--admin-api-key",
    "--custom-weight-loader",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-draft-model",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--speculative-adaptive",
    "--speculative-adaptive-config",
    "--tokenizer-worker-num",
    "--dp-size",
)
"""Arguments of the server that Aurora sets, or that its half does not work with."""

NOT_REACHED = {
    "--api-key": "SGLang asks for that key where Aurora reads what the engine says of itself",
    "--ssl-certfile": "Aurora speaks plain HTTP with the server",
    "--grpc-mode": "Aurora speaks HTTP with the server",
    "--smg-grpc-mode": "Aurora speaks HTTP with the server",
}
"""Arguments with which the controller would not reach the server, and why."""

CPU_ARGUMENTS = (
    # Asked for as one, the backend that verifies trees is replaced on CPUs without matrix units.
    *("--attention-backend", "torch_native"),
    *("--prefill-attention-backend", "intel_amx"),
    *("--decode-attention-backend", "intel_amx"),
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    *("--grammar-backend", "none"),
    "--skip-server-warmup",
    # A scheduler without requests would keep a core of the learner's busy by looking for some.
    "--sleep-on-idle",
)


def engine_settings(
    plan: ServePlan, options: SglangBackendOptions, *, drafter: Path | None
) -> EngineSettings:
    """Return what the engine's half is told.

    Args:
        plan: of the run.
        options: of the backend.
        drafter: folder of the checkpoint to start with; None where SGLang drafts by itself.
    """
    initial = plan.initial_version
    return EngineSettings(
        target=plan.target,
        needs=plan.needs,
        versions_dir=plan.versions_dir,
        num_speculative_tokens=plan.num_speculative_tokens,
        drafter_dir="" if drafter is None else str(drafter),
        algorithm=algorithm_of(options.arguments),
        initial_version=NO_DRAFTER if initial is None else initial.version,
        initial_checksum="" if initial is None else initial.checksum,
        plugins=plan.plugins,
        sink=plan.sink if options.record else None,
        sink_options=plan.sink_options,
        feature_dtype=options.feature_dtype,
        drafts_chains=options.eagle_topk == 1 and drafter is not None,
        requests_without_drafts=options.requests_without_drafts,
        max_trace_tokens=options.max_trace_tokens,
    )


def server_command(
    plan: ServePlan,
    options: SglangBackendOptions,
    *,
    drafter: Path | None,
    port: int,
    python: Path,
) -> list[str]:
    """Return the program and arguments that start the server.

    Args:
        plan: of the run.
        options: of the backend.
        drafter: folder of an EAGLE-3 checkpoint with layers in SGLang's convention; `depths.json`
            beside it tells SGLang which depths of drafting to hold ready. None where SGLang
            drafts by itself, as the user's own arguments say.
        port: to listen on.
        python: interpreter.

    Raises:
        BackendError: an argument of the user's is one that Aurora sets.
    """
    check_arguments(options.arguments)
    command = [str(python), "-m", "sglang.launch_server"]
    command += ["--model-path", plan.target.path, "--served-model-name", plan.target.name]
    command += ["--host", options.host, "--port", str(port)]
    command += ["--device", options.device, "--dtype", options.dtype]
    command += ["--random-seed", str(plan.seed), "--enable-metrics"]
    command += ["--max-running-requests", str(options.max_running_requests)]
    if drafter is not None:
        command += _drafting(drafter, plan.num_speculative_tokens, options)
    elif options.record and algorithm_of(options.arguments) != "EAGLE":
        # Graphs on a GPU are captured with the layers in them, as those of EAGLE are anyway.
        command.append("--enable-return-hidden-states")
    if options.max_total_tokens is not None:
        command += ["--max-total-tokens", str(options.max_total_tokens)]
    if options.max_context is not None:
        command += ["--context-length", str(options.max_context)]
    if not options.prefix_cache:
        command.append("--disable-radix-cache")
    if options.device == "cpu":
        command += CPU_ARGUMENTS
    return [*command, *options.arguments]


def _drafting(drafter: Path, num_steps: int, options: SglangBackendOptions) -> list[str]:
    """Return the arguments of EAGLE-3."""
    arguments = ["--speculative-algorithm", "EAGLE3"]
    arguments += ["--speculative-draft-model-path", str(drafter)]
    arguments += ["--speculative-num-steps", str(num_steps)]
    arguments += ["--speculative-eagle-topk", str(options.eagle_topk)]
    # SGLang counts the root too.
    arguments += ["--speculative-num-draft-tokens", str(options.num_draft_nodes(num_steps) + 1)]
    if options.eagle_topk == 1:
        arguments += ["--speculative-adaptive", "--speculative-adaptive-config"]
        arguments += [str(depths_file(drafter))]
    return arguments


def server_environment(
    options: SglangBackendOptions, *, settings_path: Path, token: str
) -> dict[str, str]:
    """Return the variables that the server is started with; the token is only here."""
    variables = {
        SETTINGS_VARIABLE: str(settings_path),
        TOKEN_VARIABLE: token,
        # Without a drafter nothing that a drafter would read is prepared.
        "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "1",
        # Threads that spin between two kernels take the learner's cores away.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        # What is served lies on this disk.
        "HF_HUB_OFFLINE": "1",
        # The engine's environment is its own: nothing of the controller's may shadow it.
        "PYTHONPATH": "",
    }
    if options.device == "cpu":
        num_threads = options.num_threads or max(1, len(os.sched_getaffinity(0)) // 2)
        variables |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            # The first requests would wait half a minute for a compiler.
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": str(num_threads),
        }
    elif options.num_threads is not None:
        variables["OMP_NUM_THREADS"] = str(options.num_threads)
    return variables | dict(options.environment)


def write_depths(drafter: Path, num_speculative_tokens: int) -> None:
    """Write the depths of drafting that SGLang holds ready: none at all, and all of it."""
    depths = {"1": {"candidate_steps": [0, num_speculative_tokens]}}
    depths_file(drafter).write_text(json.dumps(depths), encoding="utf-8")


def depths_file(drafter: Path) -> Path:
    """Return where `write_depths` writes."""
    return drafter / "depths.json"


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise BackendError for arguments that Aurora sets itself."""
    algorithm = algorithm_of(arguments)
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        check_beside(name, algorithm)
        if name in NOT_REACHED:
            raise BackendError(
                f"`backend.arguments` names {name!r}, and {NOT_REACHED[name]}; leave it out, and "
                "let a proxy before the server do that for clients"
            )
        if name in RESERVED and not may_name(name, algorithm):
            raise BackendError(
                f"`backend.arguments` names {name!r}, which Aurora sets itself or cannot work "
                "with; leave it out"
            )
