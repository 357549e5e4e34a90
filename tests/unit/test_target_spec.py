"""What `read_target_spec` accepts, what it refuses, and in which words."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aurora_core.errors import TargetError
from aurora_core.target.fingerprint import REMEMBER_FROM_BYTES, file_hash
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.tiny_target import FAMILIES, make_tiny_target


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(file.read_text())
    for key, value in changes.items():
        content.pop(key, None)
        if value is not None:
            content[key] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_each_supported_family_is_read(architecture: str, tie: bool, tmp_path: Path) -> None:
    directory = make_tiny_target(tmp_path, architecture, tie=tie, num_layers=3)
    spec = read_target_spec(directory, name="mine")
    assert spec.name == "mine"
    assert spec.path == str(directory)
    assert spec.architecture == architecture
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers) == (256, 32, 3)
    assert spec.max_position_embeddings == 512


def test_reading_a_spec_imports_no_torch(llama: Path) -> None:
    code = (
        "import sys; from aurora_core.target.spec import read_target_spec;"
        "from aurora_core.target.pull import pull_target;"
        f"read_target_spec(pull_target({str(llama)!r}));"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.split() == [b"False", b"False"]


def test_a_copy_elsewhere_has_the_same_fingerprints(llama: Path, copy: Path) -> None:
    edit(copy / "config.json", transformers_version="4.40.0", _name_or_path="elsewhere")
    original, copied = read_target_spec(llama), read_target_spec(copy)
    assert original.fingerprint == copied.fingerprint
    assert original.tokenizer_fingerprint == copied.tokenizer_fingerprint
    assert original.path != copied.path


def test_other_weights_have_another_fingerprint(llama: Path, tmp_path: Path) -> None:
    other = read_target_spec(make_tiny_target(tmp_path, seed=1))
    assert other.fingerprint != read_target_spec(llama).fingerprint
    assert other.tokenizer_fingerprint == read_target_spec(llama).tokenizer_fingerprint


def test_another_configuration_has_another_fingerprint(llama: Path, copy: Path) -> None:
    edit(copy / "config.json", rms_norm_eps=1e-5)
    assert read_target_spec(copy).fingerprint != read_target_spec(llama).fingerprint


@pytest.mark.parametrize("part", ["vocabulary", "special token", "chat template"])
def test_each_part_of_the_tokenizer_counts(part: str, llama: Path, copy: Path) -> None:
    if part == "vocabulary":
        tokenizer = json.loads((copy / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    elif part == "special token":
        edit(copy / "tokenizer_config.json", eos_token="<|endoftext|>")
    else:
        (copy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    original, changed = read_target_spec(llama), read_target_spec(copy)
    assert original.tokenizer_fingerprint != changed.tokenizer_fingerprint
    assert original.fingerprint == changed.fingerprint


def test_padding_left_in_the_tokenizer_file_does_not_count(llama: Path, copy: Path) -> None:
    edit(copy / "tokenizer.json", truncation={"max_length": 8, "strategy": "LongestFirst"})
    assert (
        read_target_spec(copy).tokenizer_fingerprint
        == read_target_spec(llama).tokenizer_fingerprint
    )


def test_the_hash_of_a_large_file_is_remembered_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(REMEMBER_FROM_BYTES))
    first = file_hash(file)
    (side_file,) = (tmp_path / "cache").rglob("*.json")
    remembered = json.loads(side_file.read_text())
    assert remembered["sha256"] == first
    side_file.write_text(json.dumps(remembered | {"sha256": "remembered"}))
    assert file_hash(file) == "remembered"
    file.write_bytes(bytes(REMEMBER_FROM_BYTES) + b"1")
    assert file_hash(file) not in (first, "remembered")


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(REMEMBER_FROM_BYTES))
    assert file_hash(file) == file_hash(file)


def refused(directory: Path, sentence: str) -> None:
    with pytest.raises(TargetError, match=sentence) as caught:
        read_target_spec(directory)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere' is not a directory; give a model directory")


def test_a_directory_without_config_is_refused(copy: Path) -> None:
    (copy / "config.json").unlink()
    refused(copy, "has no config.json; give a directory in Hugging Face layout")


def test_a_damaged_config_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text('{"architectures": [')
    refused(copy, r"config.json cannot be read as JSON .*; fetch the target again")


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_that_would_be_left_out_are_refused(copy: Path, key: str) -> None:
    edit(copy / "config.json", **{key: True})
    refused(copy, f"has `{key}: true`, which Aurora cannot serve; choose a target without")


def test_a_directory_without_weights_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    refused(copy, r"has no weights \(model.safetensors or model.safetensors.index.json\); give")


def test_pickled_weights_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    refused(copy, "only pytorch_model.bin, which is never unpickled; give a directory with safe")


def test_a_directory_without_tokenizer_is_refused(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    refused(copy, "has no tokenizer .*; add the model's tokenizer files")


def test_a_missing_shard_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    index = {
        "model.norm.weight": "model-00001-of-00002.safetensors",
        "model.embed_tokens.weight": "model-00002-of-00002.safetensors",
    }
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    refused(copy, "lacks the shard 'model-00002-of-00002.safetensors' that .* names; fetch")


def test_an_index_that_points_outside_the_directory_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy.parent / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(copy, "lacks the shard '../model.safetensors'")


def test_a_truncated_weights_file_is_refused(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(copy, r"model.safetensors' is incomplete or damaged \(.*\); fetch the target again")


@pytest.mark.parametrize("architecture", ["GemmaForCausalLM", "LlamaForSequenceClassification"])
def test_an_unsupported_architecture_is_refused_by_name(architecture: str, copy: Path) -> None:
    edit(copy / "config.json", architectures=[architecture])
    refused(
        copy,
        f"has architecture '{architecture}', which Aurora cannot serve; "
        "supported: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_hidden_layers": 5}, "lack tensor 'model.layers.4.input_layernorm.weight'"),
        ({"tie_word_embeddings": False}, "lack tensor 'lm_head.weight' of LlamaForCausalLM"),
        (
            {"vocab_size": 300},
            r"embed_tokens.weight' .* has shape \[256, 32\] where .* \[300, 32\]",
        ),
        ({"hidden_size": None}, "has hidden_size = None, expected a positive integer"),
        ({"num_key_value_heads": 3}, "has 4 attention heads, which 3 key-value heads do not"),
        ({"quantization_config": {"quant_method": "awq"}}, r"is quantised \('awq'\); give"),
        ({"use_sliding_window": True}, "uses sliding-window attention, which Aurora cannot"),
        ({"hidden_act": "gelu"}, "has activation 'gelu', which Aurora cannot serve; supported: s"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "has rope scaling 'yarn', which Aurora cannot serve; supported: default, linear, ll",
        ),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "has rope scaling 'dynamic'",
        ),
        ({"partial_rotary_factor": 0.5}, "rotates only 0.5 of each head, which Aurora cannot"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(
    changes: dict[str, object], sentence: str, copy: Path
) -> None:
    edit(copy / "config.json", **changes)
    refused(copy, sentence)


def test_an_unsupported_storage_type_is_refused(copy: Path) -> None:
    file = copy / "model.safetensors"
    # The header alone decides: the same bytes, declared as another type of equal width.
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    refused(copy, "is stored as I32; supported: BF16, F16, F32")
