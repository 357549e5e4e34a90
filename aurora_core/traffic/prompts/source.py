"""Sources of prompts, as a run or a replay selects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aurora_core.errors import ConfigError
from aurora_core.traffic.prompts.files import read_prompts
from aurora_core.traffic.prompts.generator import DOMAINS, Order, Split, generate, split_of
from aurora_core.traffic.prompts.prompt import Prompt


class PromptSource(Protocol):
    """Anything that yields prompts and can say where they come from."""

    @property
    def description(self) -> str:
        """A few words for logs and result files."""

    @property
    def num_prompts(self) -> int | None:
        """How many `prompts` yields; None without end."""

    def prompts(self) -> Iterator[Prompt]:
        """Yield the prompts from the beginning, the same ones each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPrompts:
    """Prompts of the built-in generator; see `generate` for the fields."""

    domains: tuple[str, ...] = tuple(DOMAINS)
    order: Order = "mixed"
    seed: int = 0
    split: Split = "train"
    num_prompts: int | None = None

    @property
    def description(self) -> str:
        return f"{'+'.join(self.domains)}, {self.order}, {self.split}, seed {self.seed}"

    def prompts(self) -> Iterator[Prompt]:
        return generate(
            self.domains,
            order=self.order,
            seed=self.seed,
            split=self.split,
            num_prompts=self.num_prompts,
        )


class FilePrompts:
    """Prompts of a JSONL file, read and checked at once."""

    def __init__(self, path: Path, *, split: Split | None = None) -> None:
        """Read the file.

        Args:
            path: see `read_prompts`.
            split: keep one side of the held-out split; None keeps every line.

        Raises:
            ConfigError: unreadable, malformed, or without a prompt on that side.
        """
        self.path, self.split = path, split
        prompts = read_prompts(path)
        self._prompts = [one for one in prompts if split is None or split_of(one.text) == split]
        if not self._prompts:
            raise ConfigError(
                f"none of the {len(prompts)} prompts in {str(path)!r} falls on the {split} side "
                "of the held-out split; give it more prompts"
            )

    @property
    def description(self) -> str:
        return f"{self.path}{f', {self.split}' if self.split else ''}"

    @property
    def num_prompts(self) -> int | None:
        return len(self._prompts)

    def prompts(self) -> Iterator[Prompt]:
        return iter(self._prompts)


def open_prompts(
    path: Path | None = None,
    *,
    domains: Sequence[str] | None = None,
    order: Order = "mixed",
    seed: int = 0,
    split: Split | None = None,
    num_prompts: int | None = None,
) -> PromptSource:
    """Return the file's prompts, or generated ones without a file.

    Args:
        path: JSONL file; the arguments of the generator are ignored then, except `split`.
        domains: of the generator; None takes all.
        order: `mixed` or `ordered`.
        seed: of the generator.
        split: None is the whole file, or the generator's training side.
        num_prompts: end the generator after so many.

    Raises:
        ConfigError: an unreadable file or an unknown domain.
    """
    if path is not None:
        return FilePrompts(path, split=split)
    chosen = tuple(domains) if domains is not None else tuple(DOMAINS)
    generate(chosen)
    return GeneratedPrompts(
        domains=chosen,
        order=order,
        seed=seed,
        split=split or "train",
        num_prompts=num_prompts,
    )
