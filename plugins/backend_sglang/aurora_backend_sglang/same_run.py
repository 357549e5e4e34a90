"""Whether a running server was started for the run that attaches to it."""

from __future__ import annotations

from aurora_backend_sglang.control_client import ServerInfo
from aurora_backend_sglang.other_drafters import Algorithm
from aurora_core.errors import BackendError
from aurora_core.interfaces import ServePlan


def check_same_run(
    url: str, info: ServerInfo, plan: ServePlan, *, eagle_topk: int, algorithm: Algorithm
) -> None:
    """Compare what a server says of itself with what a run would have started.

    Args:
        url: of the server, for the message.
        info: what it says.
        plan: of the run.
        eagle_topk: branches that the run is configured for.
        algorithm: what drafts in it.

    Raises:
        BackendError: the first thing that differs.
    """
    running = info.report
    for what, has, wants in (
        ("target", running.target_fingerprint, plan.target.fingerprint),
        ("folder of versions", running.versions_dir, plan.versions_dir),
        ("layers to record", running.aux_layers, plan.needs.aux_layers),
        ("draft depth", running.num_speculative_tokens, plan.num_speculative_tokens),
        ("drafting algorithm", running.algorithm, algorithm),
        ("number of branches", info.eagle_topk, eagle_topk),
    ):
        if what == "number of branches" and algorithm != "EAGLE3":
            continue  # is SGLang's own affair
        if has != wants:
            raise BackendError(
                f"the server at {url} was started for another run: its {what} is {has!r}, "
                f"expected {wants!r}; start it as the guide to SGLang says"
            )
