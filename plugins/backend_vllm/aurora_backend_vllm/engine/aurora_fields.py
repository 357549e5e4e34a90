"""Aurora's fields of a request, in the words that a stock vLLM server understands.

aurora.drafter, aurora.record, aurora.tenant, aurora.route   ->  vllm_xargs, for the worker
one prefix cache for each draft version                      ->  cache_salt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aurora_backend_vllm.engine import request_fields
from aurora_core.engine_process.aurora_field import FIELD, UnfitField, read_field


def translate(
    body: Mapping[str, Any], *, live_version: int, arrived: float, salt: bool
) -> dict[str, Any]:
    """Return the body of a request without Aurora's fields, and with vLLM's in their place.

    Args:
        body: as the client sent it.
        live_version: drafter in force.
        arrived: Unix seconds.
        salt: whether prefixes are cached for every draft version apart.

    Raises:
        UnfitField: a field has an unfit value, or asks for another drafter.
    """
    translated = dict(body)
    wishes = read_field(translated.pop(FIELD, None))
    arguments: dict[str, Any] = {request_fields.ARRIVED: arrived}
    without_drafts = _wants_none(wishes.drafter, live_version)
    if without_drafts:
        arguments[request_fields.DRAFTER] = request_fields.NO_DRAFTS
    if not wishes.record:
        arguments[request_fields.RECORD] = 0
    for name, label in (
        (request_fields.TENANT, wishes.tenant),
        (request_fields.ROUTE, wishes.route),
    ):
        if label is not None:
            arguments[name] = label
    given = translated.get("vllm_xargs")
    translated["vllm_xargs"] = {**(given if isinstance(given, Mapping) else {}), **arguments}
    if salt:
        # Nothing is drafted for such a request, so the drafter may not have read its prompt.
        mark = "none" if without_drafts else str(live_version)
        own = translated.get("cache_salt")
        translated["cache_salt"] = f"{own}/aurora-{mark}" if own else f"aurora-{mark}"
    return translated


def _wants_none(drafter: Any, live_version: int) -> bool:
    if drafter == "none":
        return True
    is_number = isinstance(drafter, int) and not isinstance(drafter, bool)
    if drafter == "live" or (is_number and drafter == live_version):
        return False
    raise UnfitField(
        "`aurora.drafter` must be `live` or `none`: vLLM holds one drafter, and version "
        f"{live_version} is live"
    )
