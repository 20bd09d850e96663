"""What the database's errors mean to people, and how a connection stays usable after one.

Rules
* Every error of the disk becomes a `StoreFault` with a stable code and a hint that says what to do. A
  broken constraint is a `BugError`: the caller handed over a log that contradicts itself.
* A failed transaction is rolled back before the error leaves the store.
* When the disk fails in the middle of a commit, the write-ahead log may already hold the whole
  transaction, and a crash right afterwards would bring it back although the caller was told it failed.
  `bury` overwrites it with a tiny transaction that changes nothing, so that "it raised" means "it did not
  happen" whenever the disk accepts anything at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import msgspec

from fanfold.errors import BugError, FanfoldError
from fanfold.store.protocol import StoreFault

PATIENCE_S = 10.0
"""How long one attempt waits for another process, and how long new attempts are made."""

_MEANINGS: tuple[tuple[type[apsw.Error], str, str, str], ...] = (
    (
        apsw.FullError,
        "store.full",
        "the disk is full",
        "free some space; fanfold runs lists what can be resumed",
    ),
    (apsw.PermissionsError, "store.read_only", "the database cannot be written", "check its permissions"),
    (
        apsw.CorruptError,
        "store.corrupt",
        "the database is damaged",
        "copy the folder, then restore a backup or move the damaged file away",
    ),
    (
        apsw.NotADBError,
        "store.corrupt",
        "the file is not a database",
        "move it away; Fanfold then starts a new one",
    ),
    (
        apsw.ReadOnlyError,
        "store.read_only",
        "the database may only be read here",
        "its runs can be looked at; to run, resume or answer, the project's .fanfold must be writable",
    ),
    (
        apsw.CantOpenError,
        "store.cannot_open",
        "the database cannot be opened",
        "check that the folder exists and may be written",
    ),
    (
        apsw.BusyError,
        "store.busy",
        "another process kept the database locked",
        "find a process that hangs in the same project, end it, and try again",
    ),
    (
        apsw.LockedError,
        "store.busy",
        "another process kept the database locked",
        "find a process that hangs in the same project, end it, and try again",
    ),
)


def fault(error: apsw.Error, file: str) -> FanfoldError:
    """The error to raise instead of `error`."""
    details = {"file": file, "sqlite": f"{type(error).__name__}: {error}"}
    if isinstance(error, apsw.ConstraintError):
        return BugError("store.constraint", f"a write contradicts the store: {error}", details=details)
    for kind, code, message, hint in _MEANINGS:
        if isinstance(error, kind):
            return StoreFault(code, f"{message}: {file}", hint=hint, details=details)
    hint = "check the disk and the system log; fanfold runs lists what can be resumed"
    return StoreFault("store.io", f"the disk failed: {file} ({error})", hint=hint, details=details)


@contextmanager
def translated(file: str) -> Iterator[None]:
    """Errors of the database leave this block in the words of the project."""
    try:
        yield
    except apsw.Error as error:
        raise fault(error, file) from error
    except (msgspec.MsgspecError, TypeError) as error:
        raise StoreFault(
            "store.corrupt",
            f"something that is stored cannot be read: {file} ({error})",
            hint="fanfold verify --all says what was changed since it was written",
            details={"file": file},
        ) from error


def be_patient(db: apsw.Connection) -> None:
    """Wait for locks of other processes in short naps: a commit takes milliseconds, so should the wait."""
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
    """Start a write transaction, however many other processes write."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        insist(lambda: db.execute("BEGIN IMMEDIATE"))


def insist(attempt: Callable[[], object]) -> None:
    """Try again where SQLite answers "busy" without asking the busy handler, as around a new database."""
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
    """Leave the connection without a transaction, whatever happened."""
    if db.in_transaction:
        try:
            db.execute("ROLLBACK")
        except apsw.Error:
            pass  # the disk failed again; the transaction is gone with the connection's page cache


def bury(db: apsw.Connection) -> None:
    """Overwrite what a failed commit may have left behind in the write-ahead log."""
    try:
        db.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {db.pragma('user_version')}; COMMIT")
    except apsw.Error:
        undo(db)
