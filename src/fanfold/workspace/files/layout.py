"""Where things are kept below the project's `.fanfold`, and the one lock that guards them.

    .fanfold/subagents/<session>/     one child: its record, its layer, and `workspace`, which the step sees
    .fanfold/workspace/               private: bases/, store.git/, journal/, proposals/, receipts/, trash/,
                                      tmp/, homes/ (of agents that are programs), lock, merges.jsonl,
                                      merged_ns (of the latest merge), refused/ (protected names that
                                      programs made)

Rules
* All of it is ours and nobody else may enter. Git sees none of it.
* Snapshots, merges and clean-up hold the lock, so a base is a state the parent really had between merges, and
  two processes on one project never mix theirs. It is an flock: it ends with its holder, however that dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from fanfold.errors import AuthorError, WorldError
from fanfold.trust.project_files import write_whole

OWN_FOLDER = ".fanfold"
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:#@=+-]{0,199}")
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
        self.lent = self.private / "lent"

    def prepare(self) -> None:
        """Make the folders; refuses a `.fanfold` that leads elsewhere."""
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
        """The folder of a child; refuses ids that are no plain name."""
        if not _SESSION.fullmatch(session_id):
            raise AuthorError("workspace.bad_id", f"{session_id!r:.80} cannot name a workspace")
        return self.children / session_id

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the workspace lock; whether it was got (always, when waiting)."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self.private / "lock", flags, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder of ours where it is missing; refuses a link, which would have us work elsewhere."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        message = f"{folder} is a link; workspaces need a folder on the project's own disk"
        raise WorldError("workspace.own_folder", message, hint="replace the link by a folder")


def read_kept(file: Path) -> bytes:
    """What was written below `.fanfold` by ourselves; `FileNotFoundError` when it is not there.

    Somebody may have put another thing in its place since. A link is not followed and a pipe not waited for:
    what is no file is not there.
    """
    with open_kept(file) as opened:
        return opened.read()


def open_kept(file: Path) -> BufferedReader:
    """The same, to be read in parts."""
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
    """Whether there is a file, and nothing else in its place."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def _missing(file: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a file", str(file))
