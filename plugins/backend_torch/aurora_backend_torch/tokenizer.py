"""The target's tokenizer as the API needs it: prompts in, single tokens out, when to stop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from aurora_core.errors import TargetError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\ufffd"


class PromptError(ValueError):
    """A prompt cannot be turned into tokens; the message is one sentence."""


class TargetTokenizer:
    """Wraps a Hugging Face tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        """Tokens at which generation ends unless a request ignores them."""
        self.token_text = lru_cache(maxsize=65536)(self._token_text)
        """token id -> (text, bytes), with whitespace kept; broken UTF-8 reads `bytes:\\xe2`."""

    @classmethod
    def read(cls, path: Path) -> TargetTokenizer:
        """Load the tokenizer of a target directory.

        Raises:
            TargetError: there is none, or it has no fast implementation.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise TargetError(
                f"the tokenizer in {str(path)!r} cannot be read ({reason}); "
                "the directory needs a tokenizer.json"
            ) from error
        if not tokenizer.is_fast:
            raise TargetError(
                f"the tokenizer in {str(path)!r} has no fast implementation; "
                "the directory needs a tokenizer.json"
            )
        return cls(tokenizer, _eos_token_ids(path, tokenizer.eos_token_id))

    @cached_property
    def fast(self) -> Tokenizer:
        """Return the `tokenizers` object, for incremental decoding."""
        fast: Tokenizer = self._tokenizer.backend_tokenizer
        return fast

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text.

        Raises:
            PromptError: the text is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                "the text holds a lone surrogate, which is not valid Unicode"
            ) from error
        return list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
    ) -> list[int]:
        """Return the token ids of a conversation, ready for the assistant's turn.

        Raises:
            PromptError: the target has no chat template, or it refuses the conversation.
        """
        if not self._tokenizer.chat_template:
            raise PromptError("this target has no chat template; use /v1/completions")
        try:
            text: Any = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
        except TemplateError as error:
            raise PromptError(f"the chat template refuses the messages: {error}") from error
        return self.encode(text, add_special_tokens=False)

    def _token_text(self, token_id: int) -> tuple[str, bytes]:
        text = self.fast.decode([token_id], skip_special_tokens=False)
        piece = self.fast.id_to_token(token_id)
        if piece is None:
            return "", b""
        if piece.startswith("\u2581"):  # a lone metaspace piece loses its space when decoded
            text = " " + text.removeprefix(" ")
        if _REPLACEMENT not in text:
            return text, text.encode()
        raw = _piece_bytes(piece)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


def _eos_token_ids(path: Path, tokenizer_eos: int | None) -> frozenset[int]:
    """Collect the end tokens that the target's files name."""
    found: set[int] = set() if tokenizer_eos is None else {tokenizer_eos}
    for name in ("generation_config.json", "config.json"):
        file = path / name
        if not file.is_file():
            continue
        value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            found.update(value)
    return frozenset(found)


def _piece_bytes(piece: str) -> bytes:
    """Return the bytes of a vocabulary entry that is no valid text by itself."""
    if len(piece) == 6 and piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's character -> byte map, in which byte-level vocabularies are written."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet
