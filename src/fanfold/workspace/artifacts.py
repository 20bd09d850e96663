"""Artifacts: files that steps publish for other steps and for users, next to the project.

Each run has a folder of published artifacts. A step creates its own in a staging folder, which also contains
copies of artifacts of earlier steps. They are published when the step succeeds, and deleted when it fails.

Rules
* Artifacts of other steps are read-only: the staging folder contains copies, and a changed copy is refused.
  Only a later round of the same step may publish a name again.
* No links and no special files are allowed. Names must be text. Number and size are limited. No file may
  contain a secret of this process: unlike a log, a file cannot be masked without damage.
* A file is complete and on disk under its name before the event with its name and hash is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.project_files import Closing, names_below, write_beneath, write_whole
from fanfold.workspace.layout import make_folder
from fanfold.workspace.seal import make_removable

VARIABLE = "FANFOLD_ARTIFACTS"
INSIDE = "/tmp/fanfold-artifacts"  # noqa: S108 - private inside a sandbox
"""The path of the staging folder under bubblewrap."""
MAX_FILES = 500
MAX_BYTES = 100 * 1024**2
MAX_PATH_CHARS = 300
MAX_DEPTH = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROUND = r"#\d+(?=/|$)"


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A published file: its path below the run's `artifacts/`, its size and its hash."""

    path: str
    size: int
    sha256: str
    text: str = ""
    """The blob of its text, used for search; empty if it is not text."""
    parts: tuple[str, ...] = ()
    """The blobs of its content, if it was published on a worker without a checkout."""

    def __post_init__(self) -> None:
        names_below(self.path)  # it becomes a path on disk, and may come from the log of another user


class ArtifactView(Struct, frozen=True):
    """The artifacts that one step can see, and the names that belong to other steps."""

    seen: tuple[Artifact, ...] = ()
    taken: dict[str, str] = {}
    """Maps a path to the step that published it."""


NOTHING_SEEN = ArtifactView()


class PublishedNames:
    """Names that are published or about to be, and their owners."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def check(self, path: str, own: str) -> None:
        """Raise `WorldError` if a name belongs to another step, is a folder, or is below a file."""
        owner = self._files.get(path, own)
        if owner != own:
            hint = "publish it under another name; a map can put {{index}} into it"
            message = f"artifacts/{path} is {owner}'s, and only to be read"
            raise WorldError("artifact.taken", message, hint=hint)
        above = next((folder for folder in _folders_of(path) if folder in self._files), "")
        if above or path in self._folders:
            owner = self._files[above] if above else self._folders[path]
            what = f"artifacts/{above} is a file" if above else f"artifacts/{path} is a folder"
            message = f"artifacts/{path} cannot be published: {what} of {owner}'s"
            raise WorldError("artifact.taken", message, hint="publish it under another name")

    def add(self, path: str, owner: str) -> None:
        self._files[path] = owner
        for folder in _folders_of(path):
            self._folders.setdefault(folder, owner)


def family(step: str) -> str:
    """Return the step path without the rounds of loops.

    >>> family("fix#2/draft[0]")
    'fix/draft[0]'
    """
    return re.sub(_ROUND, "", step) if "#" in step else step


class ArtifactRoom:
    """The staging folder of one execution, created on first use. It stores strings to stay small."""

    __slots__ = ("_may_be_there", "_run_id", "_runs", "_session", "_view")

    def __init__(self, runs: str, run_id: str, session: str, view: ArtifactView, *, is_new: bool) -> None:
        self._may_be_there = not is_new
        """False until it is opened, so that the disk need not be checked."""
        self._runs = runs
        self._run_id = run_id
        self._session = session
        self._view = view

    @property
    def folder(self) -> Path:
        """The path of the staging folder."""
        return Path(self._runs, self._run_id, "staging", self._session)

    @property
    def _published(self) -> Path:
        return Path(self._runs, self._run_id, "artifacts")

    @property
    def is_open(self) -> bool:
        return self._may_be_there and os.path.isdir(f"{self._runs}/{self._run_id}/staging/{self._session}")

    @property
    def is_empty(self) -> bool:
        """Whether the staging folder is missing or empty."""
        try:
            return not self.is_open or not os.listdir(self.folder)
        except OSError:
            return False

    def open(self) -> Path:
        """Create the staging folder if it is missing, with the artifacts that the step can see."""
        folder = self.folder
        if not self.is_open:
            self._may_be_there = True
            for part in (*reversed(folder.parents[:3]), folder):
                make_folder(part)
            for file in self._view.seen:
                _copy(self._published, folder, file.path, 0o400 if self.owner(file.path) else 0o600)
        return folder

    def owner(self, path: str) -> str:
        """Return the step that owns a name; empty if this step may use it."""
        return self._view.taken.get(path, "")

    def collect(self, own: str, clean: Callable[[bytes], bytes]) -> dict[str, Artifact]:
        """Return the new artifacts with their text; raises if one must not be published."""
        if not self.is_open:
            return {}
        seen = {file.path: file.sha256 for file in self._view.seen}
        names = PublishedNames()
        for path in (*seen, *self._view.taken):
            names.add(path, self.owner(path) or own)
        found: dict[str, Artifact] = {}
        total = 0
        for path, data in _files_below(self.folder):
            digest = hashlib.sha256(data).hexdigest()
            if seen.get(path) == digest:
                continue
            names.check(path, own)
            total += len(data)
            if len(found) == MAX_FILES or total > MAX_BYTES:
                message = f"a step publishes {MAX_FILES} files and {MAX_BYTES // 1024**2} MiB at most"
                raise WorldError(
                    "artifact.too_large", message, hint="pack them into an archive, or publish fewer"
                )
            if clean(data) != data:
                message = f"artifacts/{path} holds a secret of yours, and is not published"
                raise WorldError("artifact.secret", message, hint="remove the secret from it")
            try:
                text = "" if b"\0" in data else data.decode()
            except UnicodeDecodeError:
                text = ""
            found[path] = Artifact(path, len(data), digest, text)
        return found

    def publish(self, paths: Mapping[str, Artifact]) -> None:
        """Copy files of the staging folder into the run's folder."""
        make_folder(self._published)
        for path in paths:
            _copy(self.folder, self._published, path, 0o600, durable=True)

    def drop(self) -> None:
        """Delete the staging folder."""
        if not self.is_open:
            return
        try:
            os.rmdir(self.folder)  # it is nearly always empty
        except OSError:
            _delete(self.folder)


def _folders_of(path: str) -> list[str]:
    """Return all folders of an artifact's path."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def carry_over(runs: Path, source: str, target: str, paths: Iterable[str]) -> None:
    """Copy artifacts of one run into another run that continues it."""
    home = runs / target / "artifacts"
    for folder in (runs, home.parent, home):
        make_folder(folder)
    for path in paths:
        try:
            _copy(runs / source / "artifacts", home, path, 0o600, durable=True)
        except FileNotFoundError:
            message = f"artifacts/{path} of run {source} is gone"
            raise WorldError("artifact.lost", message, hint="fork from the step that made it") from None


def open_published(runs: Path, run_id: str, path: str) -> BufferedReader:
    """Open a published file for reading; no link is followed."""
    names = names_below(path)
    here = os.open(runs / run_id / "artifacts", _FOLDER)
    try:
        for name in names[:-1]:
            here = _enter(here, name)
        file = os.fdopen(os.open(names[-1], _FILE, dir_fd=here), "rb")
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file


def write_published(runs: Path, run_id: str, path: str, data: bytes) -> None:
    """Write a file that another machine published."""
    folder = runs / run_id / "artifacts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_beneath(folder, path, data, mode=0o600)


def is_whole(file: BufferedReader, size: int, sha256: str) -> bool:
    """Return whether an open file has the published content; rewinds it to the start."""
    if os.fstat(file.fileno()).st_size != size:
        return False
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest == sha256


def clear_staging(home: Path) -> None:
    """Delete the unpublished files of a finished run; `home` is the folder of the run."""
    if (home / "staging").is_dir():
        _delete(home / "staging")


def _delete(folder: Path) -> None:
    import shutil

    make_removable(folder)  # a program may have removed permissions of its folders
    shutil.rmtree(folder, ignore_errors=True)


def _files_below(
    folder: str | Path, prefix: str = "", depth: int = 0, above: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """Iterate over all files below a folder in order of names, without following links."""
    with Closing(os.open(folder, _FOLDER, dir_fd=above)) as handle:
        for name in sorted(os.listdir(handle)):
            path = f"{prefix}{name}"
            text = path.isprintable() and not any("\ud800" <= char <= "\udfff" for char in path)
            if depth == MAX_DEPTH or len(path) > MAX_PATH_CHARS or not text:
                raise _refused(path, "its name is too long, too deep, or no plain text")
            mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                yield from _files_below(name, f"{path}/", depth + 1, handle)
            elif stat.S_ISREG(mode):
                yield path, _read(handle, name, path)
            else:
                raise _refused(path, "only regular files are published")


def _read(folder: int, name: str, path: str) -> bytes:
    with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise _refused(path, f"it has more than {MAX_BYTES // 1024**2} MiB")
        return file.read(MAX_BYTES + 1)


def _refused(path: str, why: str) -> WorldError:
    return WorldError("artifact.refused", f"artifacts/{path!r:.120} cannot be published: {why}")


def _copy(source: Path, target: Path, path: str, mode: int, *, durable: bool = False) -> None:
    """Copy one file atomically between two of our own folders; no link is followed."""
    names = names_below(path)
    here, there = os.open(source, _FOLDER), os.open(target, _FOLDER)
    try:
        for name in names[:-1]:
            here = _enter(here, name)
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=there)
            there = _enter(there, name)
        data = _read(here, names[-1], path)
        write_whole(names[-1], data, folder=there, mode=mode, durable=durable)
    finally:
        os.close(here)
        os.close(there)


def _enter(folder: int, name: str) -> int:
    """Open a folder in another one and close that. If it raises, the caller must close it."""
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner
