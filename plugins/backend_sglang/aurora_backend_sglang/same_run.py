"""Whether a running server was started for the run that attaches to it."""

from __future__ import annotations

from aurora_backend_sglang.config import SglangBackendOptions
from aurora_backend_sglang.control_client import ServerInfo
from aurora_backend_sglang.other_drafters import algorithm_of
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan


def check_same_run(
    url: str, info: ServerInfo, plan: ServePlan, options: SglangBackendOptions
) -> None:
    """Compare what a server says of itself with what a run would have started.

    Args:
        url: of the server, for the message.
        info: what it says.
        plan: of the run.
        options: of the run.

    Raises:
        BackendError: the first thing that differs.
    """
    running = info.report
    algorithm = algorithm_of(options.arguments)
    # How SGLang's own drafters branch is the user's affair.
    eagle_topk = options.eagle_topk if algorithm == "EAGLE3" else info.eagle_topk
    for what, has, wants in (
        ("target", running.target_fingerprint, plan.target.fingerprint),
        ("folder of versions", running.versions_dir, plan.versions_dir),
        ("layers to record", running.aux_layers, plan.needs.aux_layers),
        ("draft depth", running.num_speculative_tokens, plan.num_speculative_tokens),
        ("drafting algorithm", running.algorithm, algorithm),
        ("number of branches", info.eagle_topk, eagle_topk),
        (
            "rule for requests without drafts",
            running.requests_without_drafts,
            options.requests_without_drafts,
        ),
    ):
        if has != wants:
            raise BackendError(
                f"the server at {url} was started for another run: its {what} is {has!r}, "
                f"expected {wants!r}; start it as `aurora sglang-command` prints it"
            )
