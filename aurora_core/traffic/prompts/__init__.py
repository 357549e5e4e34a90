"""Where prompts come from: the built-in generator, or files of the user's own.

The generator writes from templates, word lists and numbers of this package, in five domains, and
random text where that is asked for. It is seeded: equal arguments give equal prompts on any
machine. A prompt belongs to the training or to the held-out side by what it says, not by when it is
drawn, so the sides cannot overlap.
"""

from __future__ import annotations

from aurora_core.traffic.prompts.files import read_prompts
from aurora_core.traffic.prompts.generator import ARTIFICIAL, DOMAINS, generate, split_of
from aurora_core.traffic.prompts.prompt import Prompt
from aurora_core.traffic.prompts.source import (
    FilePrompts,
    GeneratedPrompts,
    PromptSource,
    open_prompts,
)

__all__ = [
    "ARTIFICIAL",
    "DOMAINS",
    "FilePrompts",
    "GeneratedPrompts",
    "Prompt",
    "PromptSource",
    "generate",
    "open_prompts",
    "read_prompts",
    "split_of",
]
