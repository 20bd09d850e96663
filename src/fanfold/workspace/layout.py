"""The folders below the project's `.fanfold`, and the workspace lock.

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
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from fanfold.errors import AuthorError, WorldError
from fanfold.project_files import Closing, write_whole

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
            raise WorldError("workspace.no_project", f"{self.project} is no folder")
        try:
            inner = (
                self.bases,
                self.store,
                self.journal,
                self.proposals,
                self.receipts,
                self.trash,
                self.scratch,
                self.homes,
                self.prepared,
            )
            for folder in (self.own, self.children, self.private, *inner):
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
            raise AuthorError("workspace.bad_id", f"{session_id!r:.80} cannot name a workspace")
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
        try:
            done = True
            for inner in os.listdir(below):
                done = self._delete(below, inner, depth - 1) and done
        finally:
            os.close(below)
        if done:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                return False
        return done
