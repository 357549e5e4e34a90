"""SGLang's command line and environment for a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.engine.settings import SETTINGS_VARIABLE
from aurora_core.interfaces import ServePlan

ADMIN_KEY_VARIABLE = "AURORA_SGLANG_ADMIN_KEY"
"""Environment variable from which the launcher takes the key, since command lines are public."""


def server_arguments(
    options: SglangBackendOptions, plan: ServePlan, *, drafter_dir: Path, port: int
) -> list[str]:
    """Return the arguments of `sglang.launch_server` that a run needs.

    Args:
        options: of the backend.
        plan: of the run.
        drafter_dir: EAGLE-3 checkpoint to start with, in SGLang's convention.
        port: to listen on.
    """
    target = plan.target
    arguments = ["--model-path", target.path, "--served-model-name"]
    arguments += [options.served_name or target.name]
    arguments += ["--host", options.host, "--port", str(port)]
    arguments += ["--device", options.device, "--dtype", options.dtype]
    arguments += ["--random-seed", str(plan.seed)]
    arguments += ["--max-running-requests", str(options.max_running_requests)]
    arguments += ["--enable-metrics"]
    arguments += ["--speculative-algorithm", "EAGLE3"]
    arguments += ["--speculative-draft-model-path", str(drafter_dir)]
    arguments += ["--speculative-num-steps", str(plan.num_speculative_tokens)]
    arguments += ["--speculative-eagle-topk", str(options.eagle_topk)]
    # SGLang counts the root too.
    num_nodes = options.num_draft_nodes(plan.num_speculative_tokens) + 1
    arguments += ["--speculative-num-draft-tokens", str(num_nodes)]
    if options.max_total_tokens is not None:
        arguments += ["--max-total-tokens", str(options.max_total_tokens)]
    if options.max_context is not None:
        arguments += ["--context-length", str(options.max_context)]
    if not options.prefix_cache:
        arguments += ["--disable-radix-cache"]
    if options.device == "cpu":
        arguments += CPU_ARGUMENTS
    return [*arguments, *options.arguments]


CPU_ARGUMENTS = [
    # Asked for as one, the backend that can verify trees is replaced on CPUs without matrix units.
    *("--attention-backend", "torch_native"),
    *("--prefill-attention-backend", "intel_amx"),
    *("--decode-attention-backend", "intel_amx"),
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    *("--grammar-backend", "none"),
    "--skip-server-warmup",
]


def server_environment(
    options: SglangBackendOptions, *, settings_path: Path, admin_key: str
) -> Mapping[str, str]:
    """Return the variables that are added to the controller's own."""
    environment = {
        SETTINGS_VARIABLE: str(settings_path),
        ADMIN_KEY_VARIABLE: admin_key,
        "TOKENIZERS_PARALLELISM": "false",
        # What serves is on this disk already.
        "HF_HUB_OFFLINE": "1",
    }
    if options.device == "cpu":
        environment |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            # The first requests would wait half a minute for a compiler.
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return environment | options.environment
