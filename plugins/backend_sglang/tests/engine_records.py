"""Settings, a target and checkpoints for tests that need no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from aurora_backend_sglang.engine.settings import EngineSettings
from aurora_core.records import DraftVersion, Needs, TargetSpec
from aurora_core.versions import VersionStore

HIDDEN, VOCABULARY, DRAFT_VOCABULARY = 4, 50, 8
FEATURES = frozenset({"aux_hidden_states", "last_hidden_state", "target_logsumexp"})
LAYERS = (1, 2, 3)


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
        "needs": Needs(features=FEATURES, aux_layers=LAYERS),
        "versions_dir": str(versions_dir),
        "num_speculative_tokens": 3,
        "drafter_dir": str(versions_dir / "v000001"),
        "feature_dtype": "float32",
        "sink": "spool",
    }
    return EngineSettings(**{**values, **changes})


def drafter_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of a drafter with a reduced vocabulary, in miniature."""
    generator = torch.Generator().manual_seed(seed)
    target_ids = torch.arange(DRAFT_VOCABULARY) * 3
    membership = torch.zeros(VOCABULARY, dtype=torch.bool)
    membership[target_ids] = True
    return {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN, generator=generator),
        "lm_head.weight": torch.randn(DRAFT_VOCABULARY, HIDDEN, generator=generator),
        "d2t": target_ids - torch.arange(DRAFT_VOCABULARY),
        "t2d": membership,
    }


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint as the EAGLE-3 speculator does."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(LAYERS)},
        "aurora": {"aux_layers": list(LAYERS)},
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


def publish(versions: Path, tensors: dict[str, torch.Tensor] | None = None) -> DraftVersion:
    """Publish a version; equal tensors give equal checksums."""
    store = VersionStore(versions)
    number = store.next_version()
    found = drafter_tensors(number) if tensors is None else tensors
    return store.stage(
        number,
        lambda folder: write_checkpoint(folder, found),
        parent=None,
        speculator="eagle3",
        target_fingerprint="f" * 16,
        global_step=1,
        num_tokens_trained=1,
    )
