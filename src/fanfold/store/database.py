"""Connections to a SQLite database: one writer, and one reader for each thread."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import msgspec

from fanfold.errors import BugError, FanfoldError
from fanfold.store import sealing, tables
from fanfold.store.protocol import Health, StoreFault, closed, forked
from fanfold.store.sealing import Database

# -----------------------------------------------------------------------------------------------------------
# Errors of the database, and how a connection stays usable after one
#
# Rules
# * Every disk error becomes a `StoreFault` with a stable code and a hint that says what to do. A broken
#   constraint is a `BugError`: the caller passed a log that contradicts itself.
# * A failed transaction is rolled back before the store raises the error.
# * If the disk fails during a commit, the write-ahead log may already contain the whole transaction. A crash
#   right afterwards would restore it, although the caller got an error. `bury` overwrites it with a tiny
#   transaction that changes nothing. So an error means that nothing was written, if the disk accepts any
#   write.

PATIENCE_S = 10.0
"""How long one attempt waits for the lock of another process, and how long attempts are repeated."""

_BUSY = (
    "store.busy", "another process kept the database locked",
    "find a process that hangs in the same project, end it, and try again",
)  # fmt: skip
_MEANINGS: dict[type[apsw.Error], tuple[str, str, str]] = {
    apsw.FullError: (
        "store.full", "the disk is full", "free some space; fanfold runs lists what can be resumed",
    ),
    apsw.PermissionsError: ("store.read_only", "the database cannot be written", "check its permissions"),
    apsw.CorruptError: (
        "store.corrupt", "the database is damaged",
        "copy the folder, then restore a backup or move the damaged file away",
    ),
    apsw.NotADBError: (
        "store.corrupt", "the file is not a database", "move it away; Fanfold then creates a new one",
    ),
    apsw.ReadOnlyError: (
        "store.read_only", "the database may only be read here",
        "its runs can be looked at; to run, resume or answer, the project's .fanfold must be writable",
    ),
    apsw.CantOpenError: (
        "store.cannot_open", "the database cannot be opened",
        "check that the folder exists and may be written",
    ),
    apsw.BusyError: _BUSY,
    apsw.LockedError: _BUSY,
}  # fmt: skip
"""The code, message and hint for each kind of error."""


def fault(error: apsw.Error, file: str) -> FanfoldError:
    """Return the error to raise instead of `error`."""
    details = {"file": file, "sqlite": f"{type(error).__name__}: {error}"}
    if isinstance(error, apsw.ConstraintError):
        return BugError(
            "store.constraint", f"a write violates a constraint of the store: {error}", details=details
        )
    for kind, (code, message, hint) in _MEANINGS.items():
        if isinstance(error, kind):
            return StoreFault(code, f"{message}: {file}", hint=hint, details=details)
    hint = "check the disk and the system log; fanfold runs lists what can be resumed"
    return StoreFault(
        "store.io", f"{file} cannot be written or read: the disk failed ({error})", hint=hint, details=details
    )


@contextmanager
def translated(file: str) -> Iterator[None]:
    """Convert database errors that are raised in this block to errors of this project."""
    try:
        yield
    except apsw.Error as error:
        raise fault(error, file) from error
    except (msgspec.MsgspecError, TypeError) as error:
        message = f"the database cannot be read: {file} ({error})"
        hint = "fanfold verify --all lists the changed rows"
        raise StoreFault("store.corrupt", message, hint=hint, details={"file": file}) from error


def be_patient(db: apsw.Connection) -> None:
    """Make the connection wait for locks in short sleeps, because a commit takes only milliseconds."""
    deadline = 0.0

    def nap(calls: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        if calls == 0:
            deadline = now + PATIENCE_S
        if now >= deadline:
            return False
        time.sleep(min(0.0002 * (calls + 1), 0.005))
        return True

    db.set_busy_handler(nap)


def begin(db: apsw.Connection) -> None:
    """Start a write transaction; retry while other processes write."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        insist(lambda: db.execute("BEGIN IMMEDIATE"))


def insist(attempt: Callable[[], object]) -> None:
    """Retry `attempt` when SQLite reports "busy" without the busy handler, as for a new database."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            attempt()
            return
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def undo(db: apsw.Connection) -> None:
    """Roll back the open transaction, if there is one; never raises a database error."""
    if db.in_transaction:
        # the disk failed again; the transaction is gone with the connection's page cache
        with suppress(apsw.Error):
            db.execute("ROLLBACK")


def bury(db: apsw.Connection) -> None:
    """Overwrite a transaction that a failed commit may have left in the write-ahead log."""
    try:
        db.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {db.pragma('user_version')}; COMMIT")
    except apsw.Error:
        undo(db)


# -----------------------------------------------------------------------------------------------------------
# Checks that the database file is in its place and on a suitable file system
#
# Rules
# * A process can still write a file that was removed or replaced (`git clean -fdx`, a restored backup), but
#   no other process will ever read it. So the file names are checked after each commit. This guarantees that
#   the next process finds all acknowledged writes.
# * On a network file system, SQLite's locks and shared memory do not work between machines. A lease depends
#   on the clock of one machine. Such a project is refused before any file is created.
# * Only regular files are opened: opening a pipe in place of a file would block forever.

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs fhgfs gfs gfs2 glusterfs gpfs lustre ncpfs ndfs nfs nfs4 ocfs2"
    " orangefs panfs prl_fs pvfs2 smb2 smb3 smbfs vboxsf vmhgfs".split()
)
NETWORK_OVER_FUSE = frozenset(
    "afp blobfuse blobfuse2 ceph-fuse cephfs curlftpfs davfs2 gcsfuse gluster glusterfs goofys gvfsd-fuse"
    " hdfs juicefs mfs moosefs rclone s3fs seaweedfs smbnetfs sshfs vmhgfs-fuse".split()
)
"""Local file systems over FUSE are allowed: fuse-overlayfs, ntfs-3g, bindfs, virtiofs of virtual machines."""


class Presence:
    """Checks that the open files of a database are still in their place."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[str, tuple[int, int]] = {}
        self.log: os.stat_result | None = None
        """The status of the write-ahead log at the last check."""
        self.check()

    def check(self) -> None:
        """Raise `StoreFault` if a database file was removed or replaced."""
        for name in (self._file, f"{self._file}-wal"):
            try:
                found = os.stat(name)
            except OSError:
                if name in self._known:
                    raise self._gone() from None
                continue  # the first write creates the write-ahead log
            identity = found.st_dev, found.st_ino
            if self._known.setdefault(name, identity) != identity:
                raise self._gone()
            if name != self._file:
                self.log = found

    def _gone(self) -> StoreFault:
        now = self._moved_to()
        if now:
            return StoreFault(
                "store.gone",
                f"{self._file} was moved to {now} while it was in use",
                hint="nothing is lost: move the folder back, or adopt the state in the new place:"
                " fanfold state adopt; then fanfold runs lists what can be resumed",
                details={"file": self._file, "now": now},
            )
        message = f"{self._file} was removed or replaced while it was in use: its content is lost"
        hint = "start the run again; exclude .fanfold from commands such as git clean -x"
        return StoreFault("store.gone", message, hint=hint, details={"file": self._file})

    def _moved_to(self) -> str:
        """Return the new path of the database if its folder was moved, else ""."""
        handles: list[str] = []
        with suppress(OSError):
            handles = os.listdir("/proc/self/fd")
        for handle in handles:
            try:
                name = os.readlink(f"/proc/self/fd/{handle}")
                found = os.stat(name)
            except OSError:
                continue
            is_it = (found.st_dev, found.st_ino) == self._known.get(self._file)
            if is_it and name != self._file and os.path.basename(name) == os.path.basename(self._file):
                return name
        return ""


def refuse_special(file: str) -> None:
    """Raise `StoreFault` if a database file is a pipe, a device or a folder."""
    for name in (file, f"{file}-wal", f"{file}-shm", f"{file}-journal"):
        try:
            mode = os.stat(name).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            hint = "move it away; Fanfold then starts a new database, without the runs of this one"
            raise StoreFault("store.foreign", f"{name} is not a file", hint=hint, details={"file": name})


def refuse_network(folder: Path) -> None:
    """Raise `StoreFault` if the folder is on a network file system; the folder need not exist yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    kind = file_system(there)
    if kind is None or not is_network(kind):
        return
    message = f"{folder} is on a network file system ({kind}), where runs would not be safe"
    hint = "keep the project on a disk of this machine, or store runs in PostgreSQL: set FANFOLD_STORE"
    details = {"folder": str(folder), "file_system": kind}
    raise StoreFault("store.network", message, hint=hint, details=details)


def file_system(folder: Path) -> str | None:
    """Return the file system type of a folder, such as `ext4`, `nfs4` or `fuse.sshfs`; None if unknown."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split(" ", 3)[2] == wanted:
            return kind.split(" ", 1)[0]
    return None


def is_network(kind: str) -> bool:
    """Return whether other machines can write the same files.

    >>> [is_network(kind) for kind in ("nfs4", "fuse.sshfs", "ext4", "fuse.fuse-overlayfs", "virtiofs")]
    [True, True, False, False, False]
    """
    base, _, above = kind.partition(".")
    return base in NETWORK or (base == "fuse" and above in NETWORK_OVER_FUSE)


WAL_KEPT_BYTES = 16 * 1024 * 1024
CACHE_KIB = 16 * 1024


class DatabaseConnections:
    """The connections of this process to one database; with `protected`, no file may be written."""

    def __init__(
        self,
        file: str,
        vfs: str,
        durability: str,
        *,
        protected: bool,
        read_only: bool,
        key: bytes = b"",
        adopts: bool = True,
    ) -> None:
        self._key = key
        self._adopts = adopts
        self._file = file
        self._vfs = vfs or None
        self._synchronous = durability.upper()
        self._is_protected = protected
        self._read_only = read_only
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._writer: apsw.Connection
        self._process = os.getpid()
        self._is_closed = False

    def open_writer(self, on_commit: Callable[[apsw.Connection, str, int], int]) -> apsw.Connection:
        """Open the only connection that writes; create missing tables."""
        db = self._connect()
        try:
            sealing.prepare(db)
            if self._read_only:
                if not self._is_protected:
                    tables.prepare(db, make=False, adopts=self._adopts)
                tables.check_readable(db)
                db.pragma("query_only", True)
            else:
                insist(lambda: tables.version(db))  # a file of another program is refused unchanged
                insist(lambda: db.pragma("journal_mode", "WAL"))
                db.pragma("synchronous", self._synchronous)
                db.pragma("foreign_keys", True)
                db.pragma("journal_size_limit", WAL_KEPT_BYTES)
                # Replaces SQLite's checkpoints, so that a failed one is not reported as a failed commit.
                db.set_wal_hook(on_commit)
                tables.prepare(db, adopts=self._adopts)
        except BaseException:
            db.close()
            raise
        self._writer = db
        self._opened.append(db)
        return db

    def check_usable(self) -> None:
        """Raise if the store was closed, or opened before a fork, which SQLite does not survive."""
        if self._is_closed:
            raise closed()
        if self._process != os.getpid():
            raise forked(self._process)

    def reader(self) -> apsw.Connection:
        """Return this thread's connection for reading."""
        self.check_usable()
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._connect()
            db.pragma("query_only", True)
            self._local.db = db
            self._opened.append(db)
        return db

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Inside this block, writes need not survive a power cut."""
        self._writer.pragma("synchronous", "NORMAL")
        try:
            yield
        finally:
            self._writer.pragma("synchronous", self._synchronous)

    def close(self) -> None:
        """Close all connections, the writer last."""
        self._is_closed = True
        while self._opened:
            self._opened.pop().close()

    def _connect(self) -> apsw.Connection:
        refuse_special(self._file)
        if self._is_protected:
            db = self._connect_protected()
        else:
            db = Database(self._file, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
        db.key = self._key
        for what in (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_VIEW):
            db.config(what, 0)  # Fanfold creates none; any that exist come from another program
        be_patient(db)
        db.pragma("cache_size", -CACHE_KIB)
        return db

    def _connect_protected(self) -> Database:
        """Open the database read-only, without creating a file.

        If there is no write-ahead log, SQLite creates one, unless the database is opened as immutable. A
        database in an older format is copied to memory and migrated there.
        """
        from urllib.parse import quote

        log = Path(f"{self._file}-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db = Database(f"file:{quote(self._file)}?{how}", flags=flags, vfs=self._vfs)
        if tables.version(db) in (0, tables.VERSION):
            return db
        copy = Database(":memory:")
        copy.key = self._key
        with db, copy.backup("main", db, "main") as backup:
            backup.step()
        db.close()
        sealing.prepare(copy)
        tables.prepare(copy, adopts=self._adopts)
        return copy


# -----------------------------------------------------------------------------------------------------------
# The project's `.fanfold` folder: private files and files for git
#
# The folder also contains the user's recipes, roles and configuration. So only Fanfold's own files are closed
# to other users: the database and the folders created by `private_folder`.

DATABASE = "fanfold.db"
PAGE_BYTES = 4_096
"""SQLite's page size. The first page contains the list of tables, and each table uses at least one page."""

GITIGNORE = """\
# Written by Fanfold. Recipes, roles and configuration belong in version control; the rest is this machine's.
*
!config.toml
!agents/
!agents/**
!workflows/
!workflows/**
"""
MAX_PROBLEMS = 20


def prepare(folder: Path) -> Path:
    """Create the folder if it is missing, and return the path of its database."""
    refuse_network(folder)
    database = folder / DATABASE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _ignore_state(folder)
        # SQLite's side files inherit the permissions of the database. An existing file is not opened here:
        # closing it would release the locks that another connection of this process has on it.
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        message = f"{folder} cannot be used: {error.strerror}"
        hint = "check that the project's folder may be written and the disk has space"
        raise StoreFault("store.cannot_open", message, hint=hint, details={"file": str(database)}) from error
    return database


def is_protected(folder: Path) -> bool:
    """Return whether there is a database here that this process can read but must not change."""
    database = folder / DATABASE
    if not database.exists() or not os.access(database, os.R_OK):
        return False
    return not (os.access(folder, os.W_OK | os.X_OK) and os.access(database, os.W_OK))


def is_bare(folder: Path) -> bool:
    """Return whether the database has no content, not even tables.

    Then another process is creating it now, or died while it created it. Only file sizes are checked: opening
    and closing the file would release the locks of this process.
    """
    try:
        known = os.lstat(folder / DATABASE)
        if not stat.S_ISREG(known.st_mode) or known.st_size not in (0, PAGE_BYTES):
            return False
        return os.stat(f"{folder / DATABASE}-wal").st_size == 0
    except FileNotFoundError:  # only the write-ahead log is missing
        return True
    except OSError:
        return False


def private_folder(folder: Path) -> Path:
    """Create a folder that only this user can enter; raises for a link, which would redirect the writes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(folder))
    return folder


def _ignore_state(folder: Path) -> None:
    """Write a `.gitignore` that excludes state, unless a file or a link of that name exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        made = os.open(folder / ".gitignore", flags, 0o644)
    except FileExistsError:
        return
    with os.fdopen(made, "w") as out:
        out.write(GITIGNORE)


def engine() -> str:
    """Return the version of the SQLite library that is bundled with this installation."""
    return f"SQLite {apsw.sqlite_lib_version()}"


def examine(folder: Path) -> Health:
    """Check the database of a `.fanfold` folder for damage."""
    file = folder / DATABASE
    size = sum(part.stat().st_size for part in (file, file.with_name(f"{DATABASE}-wal")) if part.exists())
    version, problems, hint = 0, ["ok"], ""
    try:
        refuse_special(str(file))
        db = apsw.Connection(str(file.absolute()), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            problems = [str(line) for (line,) in db.execute(f"PRAGMA quick_check({MAX_PROBLEMS})")]
            version = tables.version(db)
        finally:
            db.close()
    except (apsw.Error, StoreFault) as error:
        problems, hint = [str(error)], error.hint if isinstance(error, StoreFault) else ""
    return Health(str(file), size, version, () if problems == ["ok"] else tuple(problems), hint)


# -----------------------------------------------------------------------------------------------------------
# Preallocation of SQLite's write-ahead log
#
# A commit that extends a file also waits for the journal of the file system, which about doubles its cost.
# SQLite extends its log with each commit and removes it when the last connection closes. So every process
# would pay this cost again until its first checkpoint. Therefore a process that writes more than
# `WORTH_PAGES` pages appends zeros to the log, `PIECE_BYTES` at a time. Its later commits overwrite them.
#
# Rules
# * Zeros are appended to the end of the file, only while this process has the write lock. So no other process
#   changes the size of the log meanwhile.
# * Zeros are not a valid frame of a log (there is no page 0). A reader after a crash stops there, as it does
#   at frames of an earlier round.
# * Preallocation is optional. Errors are ignored, and the commit uses the file as it is. If the disk is
#   nearly full, nothing is preallocated, because other steps and programs need the space.

FRAME_BYTES = 4_096 + 24
"""The size of one page in the log."""
WORTH_PAGES = 48
"""A process that writes less than this gets no preallocation."""
AHEAD_BYTES = 128 * 1024
"""More than nearly every commit writes."""
PIECE_BYTES = 1024 * 1024
MIN_FREE_BYTES = 64 * PIECE_BYTES
"""With less free disk space, nothing is preallocated."""


class LogRoom:
    """Preallocates the write-ahead log of one database, which is checkpointed after `max_pages` pages."""

    def __init__(self, file: str, max_pages: int) -> None:
        self._log = f"{file}-wal"
        self._max_bytes = max_pages * FRAME_BYTES + AHEAD_BYTES
        self.pages = 0
        """The number of pages in the log after the last commit."""

    def committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """Store the size of the log; SQLite calls this after each commit."""
        self.pages = pages
        return apsw.SQLITE_OK

    def make_room(self, known: os.stat_result | None) -> None:
        """Preallocate space for the next commit; `known` is the last status of the log. Never raises."""
        needed = min(self.pages * FRAME_BYTES + AHEAD_BYTES, self._max_bytes)
        if known is None or self.pages < WORTH_PAGES or needed <= known.st_size:
            return
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                disk, found = os.fstatvfs(log), os.fstat(log)
                if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
                    self._max_bytes = 0  # do not try again
                elif os.path.samestat(found, known):  # never write to a file that replaced the log
                    end = found.st_size
                    os.pwrite(log, bytes(min(PIECE_BYTES, max(0, self._max_bytes - end))), end)
            finally:
                os.close(log)
        except OSError:
            self._max_bytes = 0  # do not try again
