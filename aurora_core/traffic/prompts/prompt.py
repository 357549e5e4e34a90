"""One prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked of the target, and the kind of traffic it stands for."""

    domain: str
    text: str
    """The question; with `messages`, the last message of the user."""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) of a whole conversation; empty for a single question."""

    def as_messages(self) -> list[dict[str, str]]:
        """Return the conversation as the chat completions API takes it."""
        turns = self.messages or (("user", self.text),)
        return [{"role": role, "content": content} for role, content in turns]
