"""Request bodies of the OpenAI-compatible API, and Aurora's optional extensions of them.

Unknown parameters and parameters this server does not act on are refused, never ignored: a client
that asks for a JSON schema must not get free text. Values that ask for nothing (`null`, a penalty
of 0) are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from aurora_backend_torch.field_parsing import DrafterChoice, Prompts, StopStrings, TextContent

MAX_TOP_LOGPROBS = 20
_INT64 = 2**63

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_json": (None,),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None, "none"),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "use_beam_search": (None, False),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Parameters that are known and not supported, with the values that ask for nothing."""


class Body(BaseModel):
    """Base of the request bodies: nothing unknown, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AuroraFields(Body):
    """Aurora's own request fields."""

    drafter: DrafterChoice = "live"
    """`live`, `none` for no speculation, or the number of a resident version."""
    record: bool = True
    """False keeps this request out of the traces."""
    tenant: Annotated[str, Field(max_length=128)] | None = None
    route: Annotated[str, Field(max_length=128)] | None = None
    lineage: Annotated[str, Field(max_length=128)] | None = None
    """Whose drafters are to serve this request; else tenant, route and shares decide."""


class StreamOptions(Body):
    """What a stream carries beside text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class GenerationBody(Body):
    """Parameters that completions and chat completions share."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = _NEUTRAL

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=-1, lt=_INT64)
    """0 and -1 keep the whole vocabulary."""
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
    n: int | None = Field(default=None, ge=1, le=128)
    stop: StopStrings = []
    stop_token_ids: list[int] | None = Field(default=None, max_length=64)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    aurora: AuroraFields = Field(default_factory=AuroraFields)

    # Accepted because they do not ask for different output.
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name in sorted(cls.unsupported.keys() & body.keys()):
            if body[name] not in cls.unsupported[name]:
                raise PydanticCustomError(
                    "unsupported_parameter",
                    "'{name}' is not supported by this server; leave it out",
                    {"name": name},
                )
        return {name: value for name, value in body.items() if name not in cls.unsupported}

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream_options", "only valid with stream=true", {"name": "stream_options"}
            )
        return self

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """Body of `POST /v1/completions`."""

    default_output_tokens: ClassVar[int | None] = 16
    """The API's default."""

    prompt: Prompts
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        """None: no log-probabilities; n: those of the n most likely tokens too."""
        return self.logprobs

    @property
    def output_limit(self) -> int | None:
        """Output tokens asked for; None takes the default."""
        return self.max_tokens


class ChatMessage(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextContent
    name: str | None = None


class ChatBody(GenerationBody):
    """Body of `POST /v1/chat/completions`."""

    default_output_tokens: ClassVar[int | None] = None
    """None fills the context."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    """Variables for the chat template, for example `enable_thinking`."""

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError(
                "top_logprobs", "only valid with logprobs=true", {"name": "top_logprobs"}
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        """None: no log-probabilities; n: those of the n most likely tokens too."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def output_limit(self) -> int | None:
        """Output tokens asked for; None takes the default."""
        return self.max_completion_tokens or self.max_tokens
