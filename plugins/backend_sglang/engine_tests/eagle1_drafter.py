"""A drafter of EAGLE-1 for a tiny target: written for SGLang, and computed here to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from aurora_core.records import TargetSpec
from plugins.backend_sglang.engine_tests.reference import Reference


class Eagle1Drafter(nn.Module):
    """One layer over the target's last rows beside the embeddings of the tokens behind them.

    Its layer is random. What goes into the layer is fitted to some answers of the target, so that
    some of what it drafts is accepted.
    """

    def __init__(self, target: TargetSpec, *, seed: int) -> None:
        """
        Args:
            target: a tiny target with tied embeddings.
            seed: of all random weights.
        """
        super().__init__()
        hidden = target.hidden_size
        config = LlamaConfig(
            architectures=["LlamaForCausalLMEagle"],
            vocab_size=target.vocab_size,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=hidden // 4,
            max_position_embeddings=target.max_position_embeddings,
            tie_word_embeddings=False,
            dtype="float32",
        )
        torch.manual_seed(seed)
        self._layers = LlamaModel(config).eval()
        # EAGLE-1 has neither the norm before its first layer nor the one behind its last.
        self._layers.layers[0].input_layernorm = nn.Identity()
        self._layers.norm = nn.Identity()
        with torch.no_grad():
            for parameter in self._layers.layers.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.05)
        self._fc = nn.Linear(2 * hidden, hidden)
        weights = load_file(Path(target.path) / "model.safetensors")
        self._embedding = weights["model.embed_tokens.weight"].float()

    @torch.no_grad()
    def fit(self, reference: Reference, sequences: Sequence[Sequence[int]]) -> None:
        """Fit what goes into the layer to the target's next rows, by least squares."""
        inputs, wanted = [], []
        for tokens in sequences:
            rows = _last_rows(reference, tokens)
            inputs.append(self._inputs(tokens[1:], rows[:-1]))
            wanted.append(rows[1:])
        joined = torch.cat(inputs)
        with_bias = torch.cat([joined, torch.ones(len(joined), 1)], dim=-1)
        solution = torch.linalg.lstsq(with_bias, torch.cat(wanted)).solution
        self._fc.weight.copy_(solution[:-1].T)
        self._fc.bias.copy_(solution[-1])

    def write(self, folder: Path) -> None:
        """Write the checkpoint as SGLang reads it: embedding and head are the target's."""
        self._layers.config.save_pretrained(folder)
        layer = self._layers.layers[0].state_dict(prefix="layers.0.")
        tensors = {**layer, **self._fc.state_dict(prefix="fc.")}
        copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})

    @torch.inference_mode()
    def first_logits(self, reference: Reference, tokens: Sequence[int]) -> Tensor:
        """Return logits of the first draft behind every token but the first, [T - 1, V].

        They follow from the target's rows alone, as Hugging Face computes them.
        """
        rows = _last_rows(reference, tokens)
        inputs = self._fc(self._inputs(tokens[1:], rows[:-1]))
        drafted = self._layers(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]
        logits: Tensor = drafted @ self._embedding.T
        return logits

    def _inputs(self, tokens: Sequence[int], rows: Tensor) -> Tensor:
        return torch.cat([self._embedding[torch.tensor(list(tokens))], rows], dim=-1)


def _last_rows(reference: Reference, tokens: Sequence[int]) -> Tensor:
    return reference.features(tokens, (1,))["last_hidden_state"]
