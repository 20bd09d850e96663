"""Connections to a SQLite database: one that writes, one for each thread that reads, how they are opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from fanfold.store import sealing
from fanfold.store.database import faults
from fanfold.store.database.presence import refuse_special
from fanfold.store.protocol import closed, forked
from fanfold.store.tables import schema

WAL_KEPT_BYTES = 16 * 1024 * 1024
CACHE_KIB = 16 * 1024


class DatabaseConnections:
    """`protected`: nothing may be written there at all, not even beside the database."""

    def __init__(self, file: str, vfs: str, durability: str, *, protected: bool, read_only: bool) -> None:
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
        """The one connection that writes; the tables are made when they are missing."""
        db = self._connect()
        try:
            self._prepare(db, on_commit)
        except BaseException:
            db.close()
            raise
        self._writer = db
        self._opened.append(db)
        return db

    def check_usable(self) -> None:
        """Refuse what was closed, and what another process opened: SQLite does not survive a fork."""
        if self._is_closed:
            raise closed()
        if self._process != os.getpid():
            raise forked(self._process)

    def reader(self) -> apsw.Connection:
        """This thread's connection for reading."""
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
        """Inside it, what is written need not survive a power cut."""
        self._writer.pragma("synchronous", "NORMAL")
        try:
            yield
        finally:
            self._writer.pragma("synchronous", self._synchronous)

    def close(self) -> None:
        """Close them all, the one that writes last."""
        self._is_closed = True
        while self._opened:
            self._opened.pop().close()

    def _prepare(self, db: apsw.Connection, on_commit: Callable[[apsw.Connection, str, int], int]) -> None:
        if self._read_only:
            schema.check_readable(db)
            db.pragma("query_only", True)
            return
        faults.insist(lambda: schema.is_made(db))  # a stranger's file is refused as it is
        faults.insist(lambda: db.pragma("journal_mode", "WAL"))
        db.pragma("synchronous", self._synchronous)
        db.pragma("foreign_keys", True)
        db.pragma("journal_size_limit", WAL_KEPT_BYTES)
        # Replaces SQLite's own checkpoints, so that a failing one is never taken for a failing commit.
        db.set_wal_hook(on_commit)
        sealing.prepare(db)
        schema.create(db)

    def _connect(self) -> apsw.Connection:
        refuse_special(self._file)
        db = self._connect_protected() if self._is_protected else self._connect_existing()
        faults.be_patient(db)
        db.pragma("cache_size", -CACHE_KIB)
        return db

    def _connect_existing(self) -> apsw.Connection:
        return apsw.Connection(self._file, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)

    def _connect_protected(self) -> apsw.Connection:
        """Without a write-ahead log SQLite would have to make one, unless told that nothing changes."""
        from urllib.parse import quote

        log = Path(f"{self._file}-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"file:{quote(self._file)}?{how}", flags=flags, vfs=self._vfs)
