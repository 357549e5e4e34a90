"""The two response shapes of the OpenAI API: text completions and chat completions.

A streamed chunk and a whole response hold the same choices, built from one delta or from all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from aurora_core.engine_process.aurora_field import describe_answer

if TYPE_CHECKING:
    from aurora_backend_torch.generation import TokenLogprob
    from aurora_backend_torch.generation_service import Delta
    from aurora_backend_torch.tokenizer import TargetTokenizer


class ResponseShape(ABC):
    """Builds the bodies of one response. Holds what a stream must remember between chunks."""

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]

    def __init__(
        self,
        *,
        response_id: str,
        created: int,
        model: str,
        tokenizer: TargetTokenizer,
        prompts: Sequence[list[int]],
        num_choices: int,
        with_logprobs: bool,
        with_token_ids: bool,
    ) -> None:
        """Describe the response.

        Args:
            num_choices: choices per prompt.
        """
        self._head = {"id": self.id_prefix + response_id, "created": created, "model": model}
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._num_choices = num_choices
        self._with_logprobs = with_logprobs
        self._with_token_ids = with_token_ids
        self._num_output_tokens = 0
        self._is_started: set[int] = set()

    @property
    def has_one_choice(self) -> bool:
        """Whether statistics belong to the response rather than to its choices."""
        return len(self._prompts) * self._num_choices == 1

    def usage(self) -> dict[str, int]:
        """Return the token counts of the choices built so far."""
        num_prompt_tokens = sum(len(prompt) for prompt in self._prompts)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": num_prompt_tokens + self._num_output_tokens,
        }

    def is_visible(self, delta: Delta) -> bool:
        """Return whether a delta is worth a chunk of its own."""
        return bool(
            delta.text or delta.finish_reason or self._with_logprobs or self._with_token_ids
        )

    def skip(self, delta: Delta) -> None:
        """Count a delta that gets no chunk."""
        self._num_output_tokens += len(delta.token_ids)

    def chunk(self, delta: Delta, *, with_usage: bool) -> dict[str, Any]:
        """Return one streamed chunk."""
        is_first = delta.index not in self._is_started
        self._is_started.add(delta.index)
        choice = self._choice(delta, self._chunk_content(delta.text, is_first))
        body = {**self._head, "object": self.chunk_object_name, "choices": [choice]}
        if is_first and self._with_token_ids:
            self._add_prompt(body, choice)
        if delta.stats is not None:
            if not self.has_one_choice:
                choice["aurora"] = describe_answer(delta.stats)
            elif not with_usage:
                body["aurora"] = describe_answer(delta.stats)
        if with_usage:
            body["usage"] = None
        return body

    def usage_chunk(self, last: Delta) -> dict[str, Any]:
        """Return the chunk that ends a stream with usage."""
        body = {
            **self._head,
            "object": self.chunk_object_name,
            "choices": [],
            "usage": self.usage(),
        }
        if self.has_one_choice and last.stats is not None:
            body["aurora"] = describe_answer(last.stats)
        return body

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """Return a response that is not streamed.

        Args:
            deltas: everything a choice produced, one entry per choice, in order.
        """
        choices: list[dict[str, Any]] = []
        body: dict[str, Any] = {**self._head, "object": self.object_name, "choices": choices}
        for delta in deltas:
            choice = self._choice(delta, self._whole_content(delta.text))
            choices.append(choice)
            if self._with_token_ids:
                self._add_prompt(body, choice)
            if delta.stats is not None:
                (body if self.has_one_choice else choice)["aurora"] = describe_answer(delta.stats)
        body["usage"] = self.usage()
        return body

    def _choice(self, delta: Delta, content: dict[str, Any]) -> dict[str, Any]:
        self._num_output_tokens += len(delta.token_ids)
        choice = {"index": delta.index, **content, "finish_reason": delta.finish_reason}
        choice["logprobs"] = self._logprobs(delta) if self._with_logprobs else None
        if self._with_token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def _add_prompt(self, body: dict[str, Any], choice: dict[str, Any]) -> None:
        owner = body if len(self._prompts) == 1 else choice
        owner["prompt_token_ids"] = self._prompts[choice["index"] // self._num_choices]

    @abstractmethod
    def _chunk_content(self, text: str, is_first: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_content(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, delta: Delta) -> dict[str, Any]: ...


class CompletionShape(ResponseShape):
    """`text_completion` objects."""

    id_prefix = "cmpl-"
    object_name = chunk_object_name = "text_completion"

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._text_offsets: dict[int, int] = {}

    def _chunk_content(self, text: str, is_first: bool) -> dict[str, Any]:
        return {"text": text}

    def _whole_content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        offset = self._text_offsets.get(delta.index, 0)
        tokens, offsets, top_logprobs = [], [], []
        for entry in delta.logprobs:
            text, raw = self._tokenizer.token_text(entry.token_id)
            tokens.append(text)
            offsets.append(offset)
            offset += sum(byte & 0xC0 != 0x80 for byte in raw)  # characters that begin here
            # The chosen token is listed whether or not it is among the most likely.
            alternatives = dict(((entry.token_id, entry.logprob), *entry.top))
            top_logprobs.append(
                {
                    self._tokenizer.token_text(token_id)[0]: logprob
                    for token_id, logprob in alternatives.items()
                }
            )
        self._text_offsets[delta.index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in delta.logprobs],
            "top_logprobs": top_logprobs,
            "text_offset": offsets,
        }


class ChatShape(ResponseShape):
    """`chat.completion` objects."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def _chunk_content(self, text: str, is_first: bool) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": text} if is_first else {"content": text}}

    def _whole_content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        return {"content": [self._entry(entry) for entry in delta.logprobs], "refusal": None}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in entry.top]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = self._tokenizer.token_text(token_id)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(raw)}
