"""Where Aurora's half looks into SGLang's HTTP server; one line in the table for each place."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aurora_backend_sglang.engine.answer_statistics import AnswerStatistics
from aurora_backend_sglang.engine.request_fields import RequestFields, refusal_of_plain
from aurora_backend_sglang.engine.settings import TOKEN_VARIABLE, EngineSettings

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerHalf:
    """What the hooks of the server's process share."""

    settings: EngineSettings
    statistics: AnswerStatistics = field(default_factory=AnswerStatistics)
    missing: Callable[[], list[str]] = field(default=list)
    """Places of `table` that this SGLang does not have."""

    def table(self) -> dict[str, tuple[Callable[..., Any], str]]:
        """Return target -> (hook, kind of hook)."""
        server = "sglang.srt.entrypoints.http_server"
        manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
        return {
            f"{server}._setup_and_run_http_server": (self.server_set_up, "before"),
            "sglang.srt.utils.auth.add_api_key_middleware": (self.keys_set, "before"),
            f"{manager}.update_request_meta_info": (self.request_told, "after"),
        }

    def server_set_up(self, *args: Any, **options: Any) -> None:
        """Have the server understand Aurora's field, and its control routes ask for the token."""
        if missing := self.missing():
            # The routes stay open, and the controller refuses a server with open routes.
            logger.error("Aurora's plugin is not in place: SGLang has no %s", ", ".join(missing))
            return
        from sglang.srt.entrypoints.http_server import app
        from sglang.srt.runtime_context import get_serving
        from sglang.srt.utils.auth import add_api_key_middleware

        app.add_middleware(
            RequestFields,
            statistics=self.statistics,
            refusal=refusal_of_plain(
                self.settings.requests_without_drafts, drafts_chains=self.settings.drafts_chains
            ),
        )
        # With a key for clients, SGLang does it itself, a little later.
        if not get_serving().api_key:
            add_api_key_middleware(app, api_key=None, admin_api_key=None)

    def keys_set(self, *args: Any, **options: Any) -> Any:
        """Give SGLang the token as the key of its control routes.

        As an argument of SGLang's it would stand in its log, and in what it tells anyone.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        return (args, options | {"admin_api_key": token}) if token else None

    def request_told(
        self, _: Any, manager: Any, meta_info: dict[str, Any], *args: Any, **options: Any
    ) -> None:
        """See what the scheduler says of a request, before its answer is written."""
        self.statistics.remember(meta_info)
