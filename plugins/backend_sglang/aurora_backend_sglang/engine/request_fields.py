"""Aurora's field of a request, in the words of a stock SGLang server.

    aurora.record, aurora.tenant, aurora.route   ->  custom_params, which reach the scheduler
    aurora.drafter: none                         ->  custom_params, or a refusal
    return_token_ids of a streamed chat          ->  SGLang's own section at the end of the stream

SGLang ignores what it does not know: a client that asked not to be recorded, or to be answered
without drafts, would not get it, and not be told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aurora_backend_sglang.engine.answer_statistics import AnswerStatistics
from aurora_backend_sglang.engine.response_field import ResponseField
from aurora_core.engine_process.asgi import (
    Application,
    Receive,
    RewritingSender,
    Scope,
    Send,
    read_body,
    replay,
    respond,
    with_length,
)

FIELD = "aurora"
TOKEN_IDS = "return_token_ids"
CHAT = "/v1/chat/completions"
GENERATE = "/generate"
LOOKED_INTO = (CHAT, "/v1/completions", GENERATE)
NO_DRAFTS = "none"
"""Value of `drafter` in a request that is to be decoded plainly."""
_MAX_LABEL = 128


class UnfitField(Exception):
    """A request asks for what this engine cannot do; the message is for the client."""


def refusal_of_plain(policy: str, *, drafts_chains: bool) -> str:
    """Return what a client is told that asks for no drafts; empty if its request is taken.

    Args:
        policy: `allow`, `ignore` or `refuse`, as the backend's options say.
        drafts_chains: the server drafts chains, and can decode without drafts.
    """
    if policy == "ignore":
        return ""
    if not drafts_chains:
        return (
            "`aurora.drafter` must be `live`: SGLang has no step without drafts where it drafts "
            "trees, and none with `EAGLE`, `NGRAM` and `STANDALONE`"
        )
    if policy == "refuse":
        return (
            "`aurora.drafter` must be `live`: a request without drafts would slow down those "
            "beside it, and this server takes none (`backend.requests_without_drafts`)"
        )
    return ""


def translate(body: Mapping[str, Any], *, chat: bool, refusal: str = "") -> dict[str, Any]:
    """Return the body of a request in SGLang's own words.

    Args:
        body: as the client sent it.
        chat: it is one for `CHAT`.
        refusal: what is answered to a request that is to be decoded without drafts; empty takes it.

    Raises:
        UnfitField: the field has an unfit value, or asks for another drafter.
    """
    translated = dict(body)
    if wants_streamed_ids(body, chat=chat):
        del translated[TOKEN_IDS]
        translated |= {"return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True}
    if FIELD not in body:
        return translated
    fields = translated.pop(FIELD)
    check(fields, refusal=refusal)
    own = translated.get("custom_params")
    translated["custom_params"] = {
        **(own if isinstance(own, Mapping) else {}),
        FIELD: dict(fields),
    }
    return translated


def check(fields: Any, *, refusal: str = "") -> None:
    """Raise UnfitField for a field with an unfit value, or one that asks for another drafter."""
    if not isinstance(fields, Mapping):
        raise UnfitField("`aurora` must be an object")
    unknown = sorted(fields.keys() - {"drafter", "record", "tenant", "route"})
    if unknown:
        raise UnfitField(f"`aurora.{unknown[0]}` is not known")
    drafter = fields.get("drafter", "live")
    if drafter not in (None, "live", NO_DRAFTS):
        raise UnfitField("`aurora.drafter` must be `live` or `none`: SGLang holds one drafter")
    if drafter == NO_DRAFTS and refusal:
        raise UnfitField(refusal)
    if not isinstance(fields.get("record", True), bool):
        raise UnfitField("`aurora.record` must be true or false")
    for key in ("tenant", "route"):
        label = fields.get(key, "")
        if not isinstance(label, str) or len(label) > _MAX_LABEL:
            raise UnfitField(f"`aurora.{key}` must be text of at most {_MAX_LABEL} characters")


def check_custom(body: Mapping[str, Any], *, refusal: str = "") -> None:
    """Raise UnfitField for an unfit field among SGLang's own custom parameters.

    They stand in the body itself, or in `sampling_params` of SGLang's own `/generate`.
    """
    given = body.get("sampling_params")
    for parameters in (body, *(given if isinstance(given, list) else [given])):
        custom = parameters.get("custom_params") if isinstance(parameters, Mapping) else None
        if isinstance(custom, Mapping) and FIELD in custom:
            check(custom[FIELD], refusal=refusal)


def wants_streamed_ids(body: Mapping[str, Any], *, chat: bool) -> bool:
    """Return whether a request asks for the token ids of a stream where SGLang refuses them."""
    return chat and bool(body.get("stream")) and bool(body.get(TOKEN_IDS))


def wishes_of(sampling_parameters: Any) -> Mapping[str, Any]:
    """Return the field of a request in the scheduler, given SGLang's `SamplingParams`."""
    custom = sampling_parameters.custom_params
    wishes = custom.get(FIELD) if isinstance(custom, Mapping) else None
    return wishes if isinstance(wishes, Mapping) else {}


def wants_no_drafts(request: Any) -> bool:
    """Return whether a request of the scheduler is to be decoded plainly."""
    return wishes_of(request.sampling_params).get("drafter") == NO_DRAFTS


class RequestFields:
    """ASGI middleware that translates completions; everything else passes through untouched."""

    def __init__(
        self, app: Application, *, statistics: AnswerStatistics, refusal: str = ""
    ) -> None:
        """
        Args:
            app: the rest of the server.
            statistics: of the requests that this process answers.
            refusal: see `translate`.
        """
        self._app, self._statistics, self._refusal = app, statistics, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        path = scope.get("path")
        if scope["type"] != "http" or scope["method"] != "POST" or path not in LOOKED_INTO:
            await self._app(scope, receive, send)
            return
        body = await read_body(receive)
        try:
            request = json.loads(body)
        except ValueError:  # SGLang's own answer to it is the right one
            request = None
        try:
            if isinstance(request, dict):
                check_custom(request, refusal=self._refusal)
            if path != GENERATE and _is_for_us(request):
                chat = path == CHAT
                translated = translate(request, chat=chat, refusal=self._refusal)
                body = json.dumps(translated).encode()
                scope = {**scope, "headers": with_length(scope["headers"], len(body))}
                send = RewritingSender(send, self._field(request, chat=chat))
        except UnfitField as error:
            await _refuse(send, str(error))
            return
        await self._app(scope, replay(body, receive), send)

    def _field(self, request: Mapping[str, Any], *, chat: bool) -> ResponseField:
        options = request.get("stream_options")
        return ResponseField(
            self._statistics.take,
            chat_ids=wants_streamed_ids(request, chat=chat),
            with_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        )


def _is_for_us(request: Any) -> bool:
    return isinstance(request, dict) and bool(FIELD in request or request.get(TOKEN_IDS))


async def _refuse(send: Send, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    await respond(send, 400, {"object": "error", "error": error, **error})
