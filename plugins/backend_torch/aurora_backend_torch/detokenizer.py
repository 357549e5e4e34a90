"""Tokens to text as they arrive, holding back what may turn out to be a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NUM_CONTEXT_TOKENS = 8
"""Prompt tokens that prime the decoder: whether a first token keeps its leading space depends on
what stands before it."""


class Detokenizer:
    """Turns one sequence's tokens into text. Never emits half a character."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._context = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        self._pending: list[int] = []
        self._stream = self._new_stream(self._context)

    def step(self, token_id: int) -> str:
        """Return the text that became certain with this token; may be empty."""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # tokenizers raises a bare Exception
            # Its stream gives up when more tokens make earlier text different, which invalid
            # UTF-8 does: start a new one at this token.
            if "prefix" not in str(error).lower():
                raise
            text = self._flush()
            self._stream = self._new_stream(self._context)
            return text
        if text is None:
            return ""
        self._context, self._pending = (self._context + self._pending)[-_NUM_CONTEXT_TOKENS:], []
        return text

    def finish(self) -> str:
        """Return the text of tokens that never became whole characters."""
        return self._flush() if self._pending else ""

    def _new_stream(self, context: list[int]) -> DecodeStream:
        return DecodeStream(ids=context, skip_special_tokens=self._skip_special_tokens)

    def _flush(self) -> str:
        before = self._decode(self._context)
        whole = self._decode(self._context + self._pending)
        if not whole.startswith(before):  # the prompt ends within a character
            before, whole = "", self._decode(self._pending)
        self._context, self._pending = (self._context + self._pending)[-_NUM_CONTEXT_TOKENS:], []
        return whole[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


class StopStrings:
    """Finds the first stop string in text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max((len(prefix) for prefix in self._prefixes), default=0)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """Take in a piece of text.

        Returns:
            (text, found): what can be shown now, and whether a stop string is complete; text ends
            before it then.
        """
        if not self._stops:
            return piece, False
        if not piece:
            return "", False
        text = self._held + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self._held = ""
            return text[: min(starts)], True
        keep = len(text)
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                keep = len(text) - length
                break
        self._held = text[keep:]
        return text[:keep], False

    def finish(self) -> str:
        """Return the text held back, when no more follows."""
        held, self._held = self._held, ""
        return held
