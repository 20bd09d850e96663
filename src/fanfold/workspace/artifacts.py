"""Artifacts: files that steps leave for one another and for people, beside the project and not in it.

Each run has a folder of published ones. A step makes its own in a staging folder, where it also finds what
the steps before it published; they are published when it has done its work, and dropped when it has not.

Rules
* What others published is for reading: a copy lies in the staging folder, and one that was changed is
  refused. Only a later round of the same step may publish a name again.
* No links, no special files, names that are text; bounded in number and size. No file holds a secret of this
  process: unlike a log, a file cannot be masked without being damaged.
* A file is whole and on the disk under its name before the event that names it, and its hash, is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.trust.project_files import write_whole
from fanfold.trust.state import make_removable

VARIABLE = "FANFOLD_ARTIFACTS"
INSIDE = "/tmp/fanfold-artifacts"  # noqa: S108 - private inside a sandbox
"""Where programs find the staging folder under bubblewrap."""
MAX_FILES = 500
MAX_BYTES = 100 * 1024**2
MAX_PATH_CHARS = 300
MAX_DEPTH = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROUND = r"#\d+(?=/|$)"


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A published file: its path below the run's `artifacts/`, and what is in it."""

    path: str
    size: int
    sha256: str
    text: str = ""
    """Blob of the same as text, by which it is searched; empty where it is none."""


class ArtifactView(Struct, frozen=True):
    """What one step sees of those of its run, and which names are somebody else's."""

    seen: tuple[Artifact, ...] = ()
    taken: dict[str, str] = {}
    """Path to the step that published it."""


NOTHING_SEEN = ArtifactView()


class PublishedNames:
    """Names that are published, or about to be, and whose they are."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def check(self, path: str, own: str) -> None:
        """A name may be published if it is nobody else's, no folder, and below no file."""
        owner = self._files.get(path, own)
        if owner != own:
            hint = "publish it under another name; a map can put {{index}} into it"
            raise WorldError(
                "artifact.taken", f"artifacts/{path} is {owner}'s, and only to be read", hint=hint
            )
        above = next((one for one in _folders_of(path) if one in self._files), "")
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
    """The step whichever round of a loop it is in.

    >>> family("fix#2/draft[0]")
    'fix/draft[0]'
    """
    return re.sub(_ROUND, "", step) if "#" in step else step


class ArtifactRoom:
    """Where one execution makes its artifacts; nothing is made on disk before it is needed.

    Every agent has one and few use it, so it holds words and no paths.
    """

    __slots__ = ("_may_be_there", "_run_id", "_runs", "_session", "_view")

    def __init__(self, runs: str, run_id: str, session: str, view: ArtifactView, *, is_new: bool) -> None:
        self._may_be_there = not is_new
        """Before anybody opened it, the disk need not be asked."""
        self._runs = runs
        self._run_id = run_id
        self._session = session
        self._view = view

    @property
    def folder(self) -> Path:
        """The staging folder."""
        return Path(self._runs, self._run_id, "staging", self._session)

    @property
    def _published(self) -> Path:
        return Path(self._runs, self._run_id, "artifacts")

    @property
    def is_open(self) -> bool:
        return self._may_be_there and os.path.isdir(f"{self._runs}/{self._run_id}/staging/{self._session}")

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies there, as far as that is seen at a glance."""
        try:
            return not self.is_open or not os.listdir(self.folder)
        except OSError:
            return False

    def open(self) -> Path:
        """The staging folder, with what the step may see in it."""
        from fanfold.workspace.files.layout import make_folder

        folder = self.folder
        if not self.is_open:
            self._may_be_there = True
            for part in (*reversed(folder.parents[:3]), folder):
                make_folder(part)
            for one in self._view.seen:
                _copy(self._published, folder, one.path, 0o400 if self.owner(one.path) else 0o600)
        return folder

    def owner(self, path: str) -> str:
        """Who published a name that is not this step's to use; empty when it is."""
        return self._view.taken.get(path, "")

    def collect(self, own: str, clean: Callable[[bytes], bytes]) -> dict[str, Artifact]:
        """What the step made, with the text of it under `text`; raises when something is not to be published.

        `own` is the step (`family`), `clean` takes secrets out.
        """
        if not self.is_open:
            return {}
        seen = {one.path: one.sha256 for one in self._view.seen}
        names = PublishedNames()
        for path in (*seen, *self._view.taken):
            names.add(path, self.owner(path) or own)
        found: dict[str, Artifact] = {}
        total = 0
        for path, data in _walk(self.folder):
            digest = hashlib.sha256(data).hexdigest()
            if seen.get(path) == digest:
                continue
            names.check(path, own)
            total += len(data)
            if len(found) == MAX_FILES or total > MAX_BYTES:
                message = f"a step publishes {MAX_FILES} files and {MAX_BYTES // 1024**2} MiB at most"
                raise WorldError("artifact.too_large", message, hint="pack them, or leave some out")
            if clean(data) != data:
                message = f"artifacts/{path} holds a secret of yours, and is not published"
                raise WorldError("artifact.secret", message, hint="leave the secret out of it")
            found[path] = Artifact(path, len(data), digest, _text(data))
        return found

    def publish(self, paths: Mapping[str, Artifact]) -> None:
        """Put files of the staging folder where the run keeps them."""
        from fanfold.workspace.files.layout import make_folder

        make_folder(self._published)
        for path in paths:
            _copy(self.folder, self._published, path, 0o600, durable=True)

    def drop(self) -> None:
        """Throw the staging folder away."""
        if not self.is_open:
            return
        try:
            os.rmdir(self.folder)  # nearly always nobody put anything there
        except OSError:
            import shutil

            make_removable(self.folder)  # a program may have closed its own folders
            shutil.rmtree(self.folder, ignore_errors=True)


def _folders_of(path: str) -> list[str]:
    """Every folder above a name, as far as artifacts go."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def carry_over(runs: Path, source: str, target: str, paths: Iterable[str]) -> None:
    """Put artifacts of one run into another that goes on from it."""
    from fanfold.workspace.files.layout import make_folder

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
    """A published file, opened to be read; no link is followed on the way, and nothing else is opened."""
    names = path.split("/")
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


def is_whole(file: BufferedReader, size: int, sha256: str) -> bool:
    """Whether an open file is what was published; it stands at its beginning afterwards."""
    if os.fstat(file.fileno()).st_size != size:
        return False
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest == sha256


def clear_staging(home: Path) -> None:
    """Throw away what steps of a run that is over left unpublished; `home` is the folder of the run."""
    if (home / "staging").is_dir():
        make_removable(home / "staging")  # a program may have closed its own folders
        import shutil

        shutil.rmtree(home / "staging", ignore_errors=True)


def _walk(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder that a program wrote into, no link followed, in order of names."""
    top = os.open(folder, _FOLDER)
    try:
        yield from _below(top, "", 0)
    finally:
        os.close(top)


def _below(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, bytes]]:
    with os.scandir(folder) as listing:
        names = sorted(entry.name for entry in listing)
    for name in names:
        path = f"{prefix}{name}"
        if depth == MAX_DEPTH or len(path) > MAX_PATH_CHARS or not _is_text(path):
            raise _refused(path, "its name is too long, too deep, or no plain text")
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _below(inner, f"{path}/", depth + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            yield path, _read(folder, name, path)
        else:
            raise _refused(path, "only regular files are published")


def _read(folder: int, name: str, path: str) -> bytes:
    with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise _refused(path, f"it has more than {MAX_BYTES // 1024**2} MiB")
        return file.read(MAX_BYTES + 1)


def _is_text(path: str) -> bool:
    return path.isprintable() and not any("\ud800" <= char <= "\udfff" for char in path)


def _refused(path: str, why: str) -> WorldError:
    return WorldError("artifact.refused", f"artifacts/{path!r:.120} cannot be published: {why}")


def _text(data: bytes) -> str:
    try:
        return "" if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return ""


def _copy(source: Path, target: Path, path: str, mode: int, *, durable: bool = False) -> None:
    """Copy one file between two folders of ours, whole or not at all; no link is followed."""
    names = path.split("/")
    here, there = os.open(source, _FOLDER), os.open(target, _FOLDER)
    try:
        for name in names[:-1]:
            here = _enter(here, name)
            try:
                os.mkdir(name, 0o700, dir_fd=there)
            except FileExistsError:
                pass
            there = _enter(there, name)
        data = _read(here, names[-1], path)
        write_whole(names[-1], data, folder=there, mode=mode, durable=durable)
    finally:
        os.close(here)
        os.close(there)


def _enter(folder: int, name: str) -> int:
    """A folder in another, which is closed; when it cannot be entered, the caller has still to close it."""
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner
