"""The folders below the project's `.fanfold`, the workspace lock, and the git repository around it.

    .fanfold/subagents/<session>/     one step workspace: its record, its layer, and `workspace` for the step
    .fanfold/workspace/               private: bases/, store.git/, journal/, proposals/, receipts/, trash/,
                                      tmp/, homes/ (of agents that are programs), prepared/
                                      (what the user's setup command made), lock, merges.jsonl,
                                      merged_ns (of the latest merge), refused/ (protected names that
                                      programs made)

Rules
* All folders are private to this user, and hidden from git.
* Snapshots, merges and clean-up hold the lock. So a base is a real state of the project tree between merges,
  and two processes on one project never mix their work. It is an flock: it ends with its process, even if the
  process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from fanfold.errors import AuthorError, WorldError
from fanfold.project_files import Closing, read_beneath, write_whole

OWN_FOLDER = ".fanfold"
_SESSION = r"[A-Za-z0-9_][A-Za-z0-9_.:#@=+-]{0,199}"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Layout:
    """The folders of one project."""

    def __init__(self, project: Path) -> None:
        self.project = Path(os.path.realpath(project))
        own = self.project / OWN_FOLDER
        self.own = own
        self.children = own / "subagents"
        self.private = own / "workspace"
        self.bases = self.private / "bases"
        self.store = self.private / "store.git"
        self.journal = self.private / "journal"
        self.proposals = self.private / "proposals"
        self.receipts = self.private / "receipts"
        self.merged_ns = self.private / "merged_ns"
        self.trash = self.private / "trash"
        self.scratch = self.private / "tmp"
        self.homes = self.private / "homes"
        self.prepared = self.private / "prepared"
        self.lent = self.private / "lent"

    def prepare(self) -> None:
        """Create the folders; refuses a `.fanfold` that is a link."""
        if not self.project.is_dir():
            raise WorldError("workspace.no_project", f"{self.project} is not a folder")
        try:
            records = (self.journal, self.proposals, self.receipts)
            files = (self.bases, self.store, self.trash, self.scratch, self.homes, self.prepared)
            for folder in (self.own, self.children, self.private, *records, *files):
                make_folder(folder)
            for folder in (self.children, self.private):
                ignore = folder / ".gitignore"
                if not os.path.lexists(ignore):
                    write_whole(ignore, b"*\n")
        except OSError as error:
            message = f"{error.filename or self.own} cannot be used: {error.strerror}"
            hint = "check that the project's folder may be written and the disk has space"
            raise WorldError("workspace.own_folder", message, hint=hint) from error

    def child(self, session_id: str) -> Path:
        """Return the folder of a step workspace; refuses ids that are not plain names."""
        if not re.fullmatch(_SESSION, session_id):
            raise AuthorError("workspace.bad_id", f"{session_id!r:.80} cannot be the name of a workspace")
        return self.children / session_id

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the workspace lock; yields whether it was acquired (always true with `wait`)."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with Closing(os.open(self.private / "lock", flags, 0o600)) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True


def make_folder(folder: Path) -> None:
    """Create a private folder if it is missing; refuses a link, which would redirect the writes."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        message = f"{folder} is a link; workspaces need a folder on the project's own disk"
        raise WorldError("workspace.own_folder", message, hint="replace the link by a folder")


def read_kept(file: Path) -> bytes:
    """Read one of our own files below `.fanfold`; raises `FileNotFoundError` if it does not exist.

    Another program may have replaced the file. A link is not followed, and a pipe does not block: anything
    but a regular file counts as missing.
    """
    with open_kept(file) as opened:
        return opened.read()


def open_kept(file: Path) -> BufferedReader:
    """Open a file like `read_kept`, to read it in parts."""
    try:
        handle = os.open(file, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise _missing(file) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _missing(file)
    return os.fdopen(handle, "rb")


def is_kept(file: Path) -> bool:
    """Return whether there is a regular file at this path."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def _missing(file: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a file", str(file))


# -----------------------------------------------------------------------------------------------------------
# Deletion of trees in the background
#
# Rules
# * Deleted trees are first renamed into the trash. So they are gone at once for all processes, and after a
#   crash `empty` finds them there.
# * Deletion has a time limit and is done in small parts by each caller of `empty`. On common file systems,
#   creating files is slow for minutes after many deletions.
# * No link is followed: links are removed, folders are entered by their own handle and never across mounts.
# * The owner of a project can delete it with `rm -rf` at any time. So files that programs left in our folders
#   get the necessary permissions before they are kept or moved to the trash.

MAX_DEPTH = 200
"""The nesting depth of folders; normal programs stay below it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def throw_away(thing: Path, trash: Path) -> None:
    """Move one of our own files or folders to the trash."""
    with suppress(FileNotFoundError):
        os.rename(thing, trash / f"{thing.name[:80]}.{os.urandom(6).hex()}")


def let_be_removed(folder: Path) -> None:
    """Give the owner permission to delete the content of a folder: programs may make folders read-only."""
    try:
        opened = os.open(folder, _FOLDER)
    except OSError:
        return
    with Closing(opened) as top:
        _open_up(top, os.fstat(top).st_dev, MAX_DEPTH)


def _open_up(folder: int, device: int, depth: int) -> None:
    with os.scandir(folder) as listing:
        names = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
    for name in names if depth else ():
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            status = os.fstat(handle)
            if status.st_dev != device:
                continue
            if status.st_mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | 0o700)
            below = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        finally:
            os.close(handle)
        with Closing(below) as inner:
            _open_up(inner, device, depth - 1)


def empty(trash: Path, *, budget_s: float | None = None) -> bool:
    """Delete the trash within a time limit; return whether nothing is left."""
    with Closing(os.open(trash, _FOLDER)) as top:
        return _Emptying(top, None if budget_s is None else time.monotonic() + budget_s).run()


class _Emptying:
    """Deletes the content of an open folder; folders nested too deep are moved to the top first."""

    def __init__(self, top: int, until: float | None) -> None:
        self._top = top
        self._until = until
        self._device = os.fstat(top).st_dev

    def run(self) -> bool:
        done, tried = True, set[str]()
        while names := [name for name in os.listdir(self._top) if name not in tried]:
            for name in names:
                done = self._delete(self._top, name, MAX_DEPTH) and done
            tried.update(names)
        return done

    def _delete(self, folder: int, name: str, depth: int) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            return False
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=folder)
                return True
            if status.st_dev != self._device:
                return False  # a mounted file system is not ours to delete
            if status.st_mode & 0o700 != 0o700:
                os.chmod(name, 0o700, dir_fd=folder)  # overlayfs leaves a folder without permissions
            if depth == 0:
                os.rename(name, f"deep.{os.urandom(6).hex()}", src_dir_fd=folder, dst_dir_fd=self._top)
                return True
            below = os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        with Closing(below):
            done = True
            for inner in os.listdir(below):
                done = self._delete(below, inner, depth - 1) and done
        if done:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                return False
        return done


# -----------------------------------------------------------------------------------------------------------
# Finds the project's git repository by reading a few files, without running git
#
# Rules
# * In a work tree, git obeys that tree's configuration, which may name programs. So git is never started in
#   one. The location of the repository is read from `.git`, and all other queries run in the private store
#   (`git`).
# * A repository is accepted only if it belongs to this user, as git itself requires, and if it refers back to
#   this work tree. Any program can write a `.git` file, and its target is mounted into sandboxes.
# * A `.git` that is a link is not accepted.

MAX_BYTES = 4_096
MAX_CONFIG_BYTES = 1024 * 1024


class UnreadableIndex(Exception):
    """The index of a repository cannot be read."""


class Repository(Struct, frozen=True):
    """A work tree, its git folder (with the index), and the folder it shares with other work trees."""

    top: Path
    folder: Path
    common: Path

    @property
    def index_file(self) -> Path:
        return self.folder / "index"

    @property
    def exclude_file(self) -> Path:
        return self.common / "info" / "exclude"


def find_repository(project: Path) -> Repository | None:
    """Return the repository that contains the project; None if there is none."""
    device = os.stat(project).st_dev
    above, top = "", str(project)
    while top != above:
        try:
            if os.stat(top).st_dev != device:
                return None  # git does not search on another disk either
            kind = os.lstat(os.path.join(top, ".git"))
        except FileNotFoundError:
            above, top = top, os.path.dirname(top)
            continue
        except OSError:
            return None
        return _read(Path(top), kind)
    return None


def remote_name(project: Path) -> str | None:
    """Return the address of the project's git remote `origin` without scheme and user; None if it has none.

    The same remote has the same name on every machine. A folder below the top of its repository has its path
    there appended. A remote that is a folder of this machine has no name.
    """
    repository = find_repository(project.resolve())
    if repository is None:
        return None
    try:
        with open(repository.common / "config", encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CONFIG_BYTES)
    except OSError:
        return None
    found = re.search(r'^\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)\s*$', text, re.MULTILINE | re.DOTALL)
    if found is None or found[1].startswith((".", "/", "file:")):
        return None
    address = r"(?:(?:https?|ssh|git)://)?(?:[^@/\s]+@)?([\w.-]+)(?::\d+)?[:/]/*([\w./~-]+?)(?:\.git)?/*"
    named = re.fullmatch(address, found[1])
    if named is None:
        return None
    below = project.resolve().relative_to(repository.top.resolve()).as_posix()
    name = f"{named[1].lower()}/{named[2]}"
    return name if below == "." else f"{name}/{below}"


def has_long_hashes(repository: Repository) -> bool:
    """Return whether a repository is configured to use SHA-256."""
    try:
        config = read_beneath(repository.common, repository.common / "config", MAX_CONFIG_BYTES)
    except OSError:
        return False
    rows = (line.lower().partition(b"=") for line in config.splitlines())
    return any(key.strip() == b"objectformat" and value.strip() == b"sha256" for key, _, value in rows)


def _read(top: Path, kind: os.stat_result) -> Repository | None:
    if not _is_ours(kind) or not _is_ours(os.stat(top)):
        return None
    git = top / ".git"
    if stat.S_ISDIR(kind.st_mode):
        return Repository(top, git, git) if os.path.isfile(git / "HEAD") else None
    folder = _named(git, "gitdir:", top) if stat.S_ISREG(kind.st_mode) else None
    if folder is None or not _is_git_folder(folder):
        return None
    shared = _named(folder / "commondir", "", folder)
    if shared is None:  # a submodule: its folder is in the repository around it
        inner = any(folder.is_relative_to(outer / ".git" / "modules") for outer in top.parents)
        return Repository(top, folder, folder) if inner else None
    back = _named(folder / "gitdir", "", folder)
    linked = back == git and folder.parent == shared / "worktrees"
    return Repository(top, folder, shared) if linked and _is_git_folder(shared) else None


def _named(file: Path, word: str, base: Path) -> Path | None:
    """Return the path that a small git file contains, with all links resolved."""
    try:
        with open_kept(file) as opened:
            text = os.fsdecode(opened.read(MAX_BYTES)).rstrip("\n")
    except OSError:
        return None
    if not text.startswith(word) or "\0" in text:
        return None
    return Path(os.path.realpath(base / text.removeprefix(word).strip()))


def _is_git_folder(folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_ours(status) and os.path.isfile(folder / "HEAD")


def _is_ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; with sudo, also to the user who ran sudo, as in git."""
    if status.st_uid == os.geteuid():
        return True
    asked_by = os.environ.get("SUDO_UID", "")
    return os.geteuid() == 0 and asked_by.isdigit() and status.st_uid == int(asked_by)


# -----------------------------------------------------------------------------------------------------------
# The project of a command: searched upward from the current folder
#
# Rules
# * The nearest folder with a `.fanfold` of this user is the project, at most up to the top of the surrounding
#   git repository. Outside a repository, the search excludes the home folder, the folders above it and other
#   file systems. Without a `.fanfold`, the top of the repository is the project; else the folder itself.
# * Files of other users are ignored: a `.fanfold` or `.git` that another user put into a folder above
#   (`/tmp`), or one that is a link, does not count. The user's own folder is not a project either.
# * No program is run: only the existence of `.git` is checked, and it is never read.


def project_folder(given: str | os.PathLike[str], option: str = "project") -> Path:
    """Return the folder that the caller named as a project by this `option`."""
    named: object = given  # callers may pass any value
    if isinstance(named, str | os.PathLike) and "\0" not in str(named) and os.path.isdir(named):
        return Path(named)
    hint = "name the folder that holds, or will hold, .fanfold"
    raise AuthorError("usage.bad_project", f"{option} {given} is not a folder", hint=hint)


def find_project(start: Path, *, home: Path, own_folder: Path) -> Path:
    """Return the project of a command that is run in `start`; `own_folder` contains the user's own files."""
    here = Path(os.path.realpath(start))
    reachable = _reachable(here)
    top = next((folder for folder in reachable if _is_ours_location(folder / ".git", file_too=True)), None)
    if top is not None:
        reachable = reachable[: reachable.index(top) + 1]
    else:
        above_home = {Path(os.path.realpath(home)), *Path(os.path.realpath(home)).parents}
        reachable = [folder for folder in reachable if folder == here or folder not in above_home]
    own = os.path.realpath(own_folder)
    for folder in reachable:
        state = folder / ".fanfold"
        if _is_ours_location(state) and os.path.realpath(state) != own:
            return folder
    return top or here


def folders_above(project: Path) -> list[Path]:
    """Return the folders above a project in its own repository, the nearest first; maybe none."""
    here = Path(os.path.realpath(project))
    reachable = _reachable(here)
    top = next((folder for folder in reachable if _is_ours_location(folder / ".git", file_too=True)), None)
    return [] if top is None else reachable[1 : reachable.index(top) + 1]


def _reachable(here: Path) -> list[Path]:
    """Return a folder and the folders above it on the same file system."""
    try:
        device = os.stat(here).st_dev
    except OSError:
        return []  # it does not exist yet
    found = []
    for folder in (here, *here.parents):
        try:
            if os.stat(folder).st_dev != device:
                break
        except OSError:
            break
        found.append(folder)
    return found


def _is_ours_location(path: Path, *, file_too: bool = False) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    right_kind = stat.S_ISDIR(found.st_mode) or (file_too and stat.S_ISREG(found.st_mode))
    return right_kind and found.st_uid == os.geteuid()


# -----------------------------------------------------------------------------------------------------------
# Tracked paths, read from git's index
#
# Supports versions 2, 3 and 4, with SHA-1 and SHA-256. Any other index is refused. A split index stores most
# names in a second file. Names that it marks as removed from there are included: callers need every path that
# a commit may have brought.

GIT_INDEX_MAX_BYTES = 1024**3
SHARED = "sharedindex"


def tracked_below(index: Path, folder: str) -> list[str]:
    """Return the tracked paths below a folder. If there are none, this costs one search of the file."""
    found, shared = _look(index, folder, is_split(index))
    if shared:
        second = index.with_name(f"{SHARED}.{shared}")
        if not second.is_file():
            raise UnreadableIndex
        found += _look(second, folder, False)[0]
    return found


def is_split(index: Path) -> bool:
    """Return whether an index may have most of its names in a second file."""
    try:
        return any(name.startswith(f"{SHARED}.") for name in os.listdir(index.parent))
    except OSError:
        return False


def _look(index: Path, folder: str, whole: bool) -> tuple[list[str], str]:
    """Return the tracked paths below a folder, and the hash in the name of a split index's second file."""
    try:
        opened = open_kept(index)
    except OSError:
        return [], ""
    with opened:
        if not 0 < os.fstat(opened.fileno()).st_size <= GIT_INDEX_MAX_BYTES:
            return [], ""
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            word = folder.rpartition("/")[2].encode()
            # Version 4 omits the prefix that a name shares with the previous one, so the name may not occur
            # as a whole.
            if not whole and data[4:8] != b"\0\0\0\x04" and data.find(word) < 0:
                return [], ""
            for object_bytes in (20, 32):
                try:
                    names, at = _entries(data, object_bytes)
                    shared = _named_second_file(data, at, object_bytes)
                except (UnreadableIndex, struct.error, IndexError, ValueError):
                    continue
                return [path for path in names if path.startswith(f"{folder}/")], shared
            raise UnreadableIndex


def _entries(data: mmap.mmap, object_bytes: int) -> tuple[list[str], int]:
    """Return the names, and the offset after them."""
    signature, version, count = struct.unpack_from(">4sII", data, 0)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndex
    at = 12
    before = b""
    names: list[str] = []
    for _ in range(count):
        start = at
        (mode,) = struct.unpack_from(">I", data, at + 24)
        if not stat.S_ISREG(mode) and stat.S_IFMT(mode) not in (0o120000, 0o160000, 0o040000):
            raise UnreadableIndex
        at += 40 + object_bytes
        (flags,) = struct.unpack_from(">H", data, at)
        at += 4 if version >= 3 and flags & 0x4000 else 2
        cut = 0
        if version == 4:
            cut, at = _number(data, at)
        end = data.find(b"\0", at)
        if end < 0 or cut > len(before):
            raise UnreadableIndex
        name = before[: len(before) - cut] + data[at:end] if version == 4 else data[at:end]
        at = end + 1 if version == 4 else start + ((end - start + 8) & ~7)
        before = name
        names.append(os.fsdecode(name))
    return names, at


def _named_second_file(data: mmap.mmap, at: int, object_bytes: int) -> str:
    """Return the hash in the extension of a split index, between the names and the checksum."""
    named = ""
    while at + 8 <= len(data) - object_bytes:
        signature, size = struct.unpack_from(">4sI", data, at)
        at += 8
        if at + size > len(data) - object_bytes:
            raise UnreadableIndex
        if signature == b"link":
            shared = data[at : at + object_bytes]
            named = shared.hex() if any(shared) else ""
        at += size
    if at != len(data) - object_bytes:
        raise UnreadableIndex
    return named


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Read a variable-length number in git's offset format; return it and the next position."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at
