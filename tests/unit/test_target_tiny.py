"""The tiny target is a real Hugging Face directory whose output means something."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from aurora_core.testing.tiny_target import FAMILIES, make_tiny_target


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_greedy_output_varies_along_the_text_and_with_the_prompt(
    architecture: str, tie: bool, tmp_path: Path
) -> None:
    make_tiny_target(tmp_path, architecture, tie=tie)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    outputs = []
    for prompt in ("Hello, world 42!\n", "SELECT * FROM towns;"):
        inputs = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=32, min_new_tokens=32, do_sample=False)
        outputs.append(output[0, inputs.input_ids.shape[1] :].tolist())
        assert len(set(outputs[-1])) > 5
    assert outputs[0] != outputs[1]


def test_the_tokenizer_writes_text_as_bytes_and_back(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_target(tmp_path, vocab_size=320))
    text = "a + b == 42;\n caf\u00e9 \u4e2d\u6587"
    token_ids = tokenizer(text)["input_ids"]
    assert len(token_ids) == len(text.encode())
    assert tokenizer.decode(token_ids) == text


@pytest.mark.parametrize("vocab_size", [64, 128, 256, 512])
def test_no_token_lies_outside_the_vocabulary(vocab_size: int, tmp_path: Path) -> None:
    make_tiny_target(tmp_path, vocab_size=vocab_size)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) <= vocab_size
    messages = [{"role": "user", "content": "Zebra caf\u00e9?"}]
    token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert max(token_ids) < vocab_size
    assert token_ids[0] == tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_id == 2


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path: Path) -> None:
    first, same, other = (
        (make_tiny_target(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()
        for name, seed in (("first", 0), ("same", 0), ("other", 1))
    )
    assert first == same
    assert first != other


def test_making_one_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    make_tiny_target(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
