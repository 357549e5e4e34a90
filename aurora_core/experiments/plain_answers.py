"""Answers without speculation: what every other answer to the same prompt must be equal to."""

from __future__ import annotations

from aurora_core.errors import BackendError
from aurora_core.traffic.completion import RequestFailed
from aurora_core.traffic.endpoint import Endpoint, RequestSettings
from aurora_core.traffic.prompts import Prompt


async def plain_answer(endpoint: Endpoint, prompt: Prompt, *, max_tokens: int) -> tuple[int, ...]:
    """Return the output tokens of a prompt, asked without speculation and without a trace.

    Raises:
        BackendError: it is not answered.
    """
    settings = RequestSettings(max_tokens=max_tokens, drafter="none", record=False)
    try:
        completion = await endpoint.complete(prompt, settings)
    except RequestFailed as failure:
        raise BackendError(
            f"the server fails on a prompt without speculation: {failure}; its log lies beside "
            "its run directory"
        ) from failure
    return completion.token_ids or ()
