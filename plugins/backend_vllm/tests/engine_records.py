"""Settings and a target for tests that need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aurora_backend_vllm.engine.settings import EngineSettings
from aurora_core.records import Needs, TargetSpec

HIDDEN, VOCABULARY = 4, 50
FEATURES = frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"})


def target_spec(path: Path = Path("/nowhere")) -> TargetSpec:
    """Return facts about a target that does not exist."""
    return TargetSpec(
        name="tiny",
        path=str(path),
        architecture="LlamaForCausalLM",
        fingerprint="f" * 16,
        tokenizer_fingerprint="t" * 16,
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_layers=4,
        max_position_embeddings=512,
    )


def engine_settings(versions_dir: Path = Path("/nowhere"), **changes: Any) -> EngineSettings:
    """Return settings that record all features in float32."""
    values: dict[str, Any] = {
        "target": target_spec(),
        "needs": Needs(features=FEATURES, aux_layers=(1, 2, 3)),
        "versions_dir": str(versions_dir),
        "feature_dtype": "float32",
        "sink": "spool",
    }
    return EngineSettings(**{**values, **changes})
