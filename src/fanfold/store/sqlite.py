"""The store of a project in one SQLite file, for any number of processes.

Rules
* One connection writes, under a lock. Every thread that reads has its own connection.
* A write is `BEGIN IMMEDIATE`, the epoch check, the rows, `COMMIT`. No part of the transaction depends on
  data that was read before the lock was acquired. So another process can only make a write wait for the lock.
* A checkpoint is not part of a write. It runs after the commit, and its failure does not fail the write.
* The write path does no work that a reader can do: one encoded blob per event, no derived text, no second
  copy of values that all events of a log share. Nothing is compressed: compressing a blob of 64 kB takes as
  long as writing it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

import apsw

from fanfold.errors import BugError, NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.store import database as faults
from fanfold.store import database as folder
from fanfold.store import leases, logs, tables
from fanfold.store import leases as claims
from fanfold.store import leases as requests
from fanfold.store.database import DatabaseConnections, LogRoom, Presence
from fanfold.store.leases import Renewal
from fanfold.store.protocol import (
    LEASE_S,
    Batch,
    Claim,
    Clean,
    Commit,
    Damage,
    Decode,
    Lease,
    LeaseLost,
    OutputRow,
    Request,
    RunHead,
    Signal,
    as_it_is,
    as_json,
    check_of_session,
    no_run,
)
from fanfold.store.sealing import seal
from fanfold.store.signals import Signals

CHECKPOINT_PAGES = 2_000
"""The number of pages in the write-ahead log that triggers a checkpoint. It limits the log to 8 MB and stalls
to 2-3 ms."""

P = ParamSpec("P")
R = TypeVar("R")
_AS_SET = nullcontext()
_INSERT_CACHE = "INSERT OR REPLACE INTO cache (key, blob, run_id, seal) VALUES (?, ?, ?, ?)"


class SqliteStore:
    """The store of one project; `path` is its `.fanfold` folder, created if missing.

    `key` binds written data to its user's secret. With `adopts`, a database without that key gets it.

    >>> import tempfile
    >>> store = SqliteStore(Path(tempfile.mkdtemp()))
    >>> store.resolve("last")
    Traceback (most recent call last):
    fanfold.errors.NotFoundError: there is no run 'last' here
    >>> store.close()
    """

    is_remote = False

    def __init__(
        self,
        path: Path,
        *,
        durability: Literal["full", "normal"] = "full",
        vfs: str = "",
        clean: Clean = as_it_is,
        read_only: bool = False,
        expiry_s: float = LEASE_S,
        key: bytes = b"",
        adopts: bool = True,
    ) -> None:
        self.path = path
        self.clean = clean
        protected = folder.is_protected(path)
        self.read_only = read_only or protected
        database = path / folder.DATABASE if self.read_only else folder.prepare(path)
        self._file = str(database.absolute())
        self._lock = threading.Lock()
        self._signals = Signals(path, make=not self.read_only)
        self._expiry_ms = int(expiry_s * 1_000)
        self._renewal = Renewal(self._renew, self._signal_owners, expiry_s)
        self._log = LogRoom(self._file, CHECKPOINT_PAGES)
        self._connections = DatabaseConnections(
            self._file, vfs, durability, protected=protected, read_only=self.read_only, key=key, adopts=adopts
        )
        self._key = key
        with faults.translated(self._file):
            self._db = self._connections.open_writer(self._log.committed)
        self._presence = Presence(self._file)
        self._appender = logs.Appender(self._db, clean)
        self._data_version: int | None = None
        """Changes when another connection has written."""

    # ------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Batch]) -> None:
        """Append atomically and durably; see `Store.write`."""
        with self._transaction() as db:
            version = db.execute("PRAGMA data_version").get
            if version != self._data_version:  # a worker may have written entries to one of these trees
                self._data_version = version
                self._appender.forget()
            for batch in batches:
                self._write_batch(db, batch)
            freed = [other for b in batches if b.unclaimed for other in claims.waiting(db, b.root)]
        for batch in batches:
            self._signals.give("commits", batch.root)
        self._wake(freed)

    async def submit(self, batches: Sequence[Batch]) -> None:
        """Write at once; see `Store.submit`."""
        self.write(batches)

    def _write_batch(self, db: apsw.Connection, batch: Batch) -> None:
        if batch.epoch is None:
            check_of_session(batch)
        else:
            current = leases.current_epoch(db, batch.root)
            if current != batch.epoch:
                raise leases.lost(batch.root, batch.epoch, current)
        if batch.requires and not db.execute("SELECT 1 FROM logs WHERE log = ?", (batch.requires,)).get:
            raise no_run(batch.requires)
        if batch.blobs or batch.outputs:
            # Named by their hash, so they cannot be cleaned here.
            unclean = [name for name, content in batch.blobs if self.clean(content) is not content]
            if unclean:
                message = f"the content of {unclean[0]} was to be stored with a secret in it"
                raise BugError("store.secret", message)
            tables.write_values(db, batch)
        if batch.envelopes:
            leases.check_executions(db, batch.envelopes)
            self._appender.append(batch)
        if batch.started:
            leases.raise_executions(db, batch.started)
        if batch.heads:
            tables.write(db, batch.heads)
        if batch.cache:
            db.executemany(_INSERT_CACHE, [(*row, seal(self._key, *row)) for row in batch.cache])
        if batch.requests_done:
            done = [(number, batch.root) for number in batch.requests_done]
            db.executemany("DELETE FROM requests WHERE id = ? AND root = ?", done)
        if batch.unclaimed:
            claims.drop(db, batch.root, list(batch.unclaimed))

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[apsw.Connection]:
        """Run the block as one write transaction; if anything raises, nothing is written."""
        self._connections.check_usable()  # before the lock, which another thread may have held at a fork
        with self._lock, _AS_SET if durable else self._connections.relaxed():
            db = self._db
            try:
                faults.begin(db)
                self._log.make_room(self._presence.log)
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                faults.undo(db)
                self._appender.forget()
                if not isinstance(error, apsw.Error):
                    raise
                if isinstance(error, apsw.IOError | apsw.FullError):
                    faults.bury(db)
                raise faults.fault(error, self._file) from error
            self._presence.check()
            if self._log.pages >= CHECKPOINT_PAGES:
                with suppress(apsw.Error):  # the commit is safe in the log, and a later one tries again
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    # ------------------------------------------------------------------------------------ reading

    def tree(self, root: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        """Iterate over the events of a run tree in order of replay."""
        with faults.translated(self._file):
            yield from logs.read_tree(self._reader(), root, after, decode)

    def reach(self, root: str) -> int:
        """Return the `tree_seq` of the last event of a tree."""
        return self._read(logs.reach, root)

    def commits(self, root: str) -> Iterator[Commit]:
        """Iterate over the commits of a run tree."""
        with faults.translated(self._file):
            yield from logs.read_commits(self._reader(), root)

    def log(self, log: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        """Iterate over the events of one run's or session's log."""
        with faults.translated(self._file):
            yield from logs.read_log(self._reader(), log, after, decode)

    def blob(self, hash: str) -> bytes:
        """Return content by its hash; raises `NotFoundError`."""
        content = self._one("SELECT content FROM blobs WHERE hash = ?", hash)
        if content is None:
            raise NotFoundError("blob.not_found", f"the store holds nothing under {hash!r}")
        assert isinstance(content, bytes)
        return content

    def has_blob(self, hash: str) -> bool:
        return self._one("SELECT 1 FROM blobs WHERE hash = ?", hash) is not None

    def absent_blobs(self, hashes: Sequence[str]) -> list[str]:
        """Return the hashes that are not stored."""
        return self._read(tables.absent, hashes)

    def roots(self) -> list[str]:
        """Return every tree with stored data, readable or not."""
        return self._read(tables.roots)

    def head(self, run_id: str) -> RunHead | None:
        """Return the summary row of one run."""
        return next(iter(self._heads("WHERE run_id = ?", run_id)), None)

    def heads(
        self,
        *,
        roots_only: bool = True,
        status: str | None = None,
        recipe: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunHead]:
        """Return runs, newest first; see `Store.heads`."""
        return self._heads(
            "WHERE (NOT ?1 OR run_id = root_run_id) AND (?2 IS NULL OR status = ?2)"
            " AND (?3 IS NULL OR recipe = ?3)"
            " AND (?4 IS NULL OR id < (SELECT id FROM runs WHERE run_id = ?4))"
            " ORDER BY id DESC LIMIT ?5",
            *(roots_only, status, recipe, before, limit),
        )

    def children(self, run_id: str) -> list[RunHead]:
        """Return the child runs in order of creation."""
        return self._heads("WHERE parent_run_id = ? ORDER BY id", run_id)

    def tree_heads(self, root: str) -> list[RunHead]:
        """Return the root and all its descendants in order of creation."""
        return self._heads("WHERE root_run_id = ? ORDER BY id", root)

    def resolve(self, prefix: str) -> str:
        """Return the run id for a unique prefix or `last`."""
        return self._read(tables.resolve, prefix)

    def cached(self, key: str) -> str | None:
        """Return the blob of a completed cacheable step with this content key."""
        blob = self._one("SELECT blob FROM cache WHERE key = ?", key)
        return None if blob is None else str(blob)

    def output_rows(
        self, after: int = 0, limit: int = 1_000, root: str | None = None
    ) -> list[tuple[int, OutputRow]]:
        """Return outputs in order of arrival with their running number."""
        return self._read(tables.read_outputs, root, after, limit)

    def ends(self) -> dict[str, int]:
        """Return the position of the last row of each tree."""
        return self._read(logs.ends)

    def rows_after(self, root: str, place: int) -> Iterator[tuple[int, Envelope]]:
        """Iterate over the events and session entries of a tree after a position."""
        with faults.translated(self._file):
            yield from logs.rows_after(self._reader(), root, place)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside this block, all reads of this thread see the same state of the store."""
        with faults.translated(self._file):
            db = self._reader()
            db.execute("BEGIN")
            try:
                yield
            finally:
                faults.undo(db)

    def unkeyed(self, root: str) -> int:
        """Count the first events of a tree that are not bound to the user's secret."""
        return self._read(tables.unkeyed, root)

    def check(self, root: str | None = None) -> list[Damage]:
        """Find rows that differ from what was written, in one tree or in the whole store."""
        found = self._read(tables.check, root)
        if root is None:
            found += [Damage("", text) for text in self._read(lambda db: list(tables.odd_forms(db)))]
        return found

    # ------------------------------------------------------------------- ownership and requests

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        """Acquire the lease of a run tree with a new epoch; see `Store.acquire`."""
        now, myself = leases.boot_clock_ms(), this_process()
        with self._transaction() as db:
            lease = leases.take(db, root, owner or myself, self._expiry_ms)
            freed = claims.waiting(db, root) if claims.drop_tree(db, root) else []
        self._appender.forget()  # the last owner may have been another process
        if lease.owner == myself:
            self._renewal.keep(lease, now)
        self._signal_owners(lease)
        self._wake(freed)
        return lease

    def confirm(self, lease: Lease) -> None:
        """Return if the lease is live at this moment; raise `LeaseLost` otherwise."""
        self._renewal.confirm(lease)

    def owner(self, root: str) -> tuple[ProcessIdentity, bool] | None:
        """Return the owner of the lease, and whether the lease is live."""
        holder = self._read(leases.holder, root)
        return None if holder is None else (holder.owner, holder.is_alive())

    def now_ms(self) -> int:
        """Return the time by the clock of the store: the wall clock of this machine."""
        return int(time.time() * 1_000)

    def heartbeat_age_ms(self, root: str) -> int | None:
        """Return the milliseconds since the owner's last heartbeat."""
        holder = self._read(leases.holder, root)
        return None if holder is None else holder.heartbeat_age_ms

    def release(self, lease: Lease) -> None:
        """Release the lease; the next owner gets a higher epoch."""
        self._renewal.drop(lease)
        with self._transaction() as db:
            freed = []
            if leases.give_back(db, lease) and claims.drop_tree(db, lease.root):
                freed = claims.waiting(db, lease.root)
        self._signal_owners(lease)
        self._wake(freed)

    def _renew(self, held: Sequence[Lease]) -> dict[Lease, LeaseLost]:
        with self._transaction() as db:
            return leases.renew(db, held, self._expiry_ms)

    def _signal_owners(self, lease: Lease) -> None:
        """Signal a change of owner. Followers read the new owner, and the previous owner checks its lease."""
        self._signals.give("commits", lease.root)
        self._signals.give("requests", lease.root)

    def claim(self, lease: Lease, claim: Claim) -> Claim | None:
        """Claim all files, or queue the claim and return the claim that blocks it."""
        with self._transaction(durable=False) as db:
            return claims.take_claims(db, lease, claim)

    def blocker(self, claim: Claim) -> Claim | None:
        """Return the claim of another tree that blocks this claim."""
        return self._read(claims.find_blocker, claim)

    def claims_beside(self, root: str) -> list[Claim]:
        """Return claims that other trees hold, or released while any claim was held."""
        return self._read(claims.beside, root)

    def _wake(self, roots: Sequence[str]) -> None:
        """Wake the owners of these trees, so that they retry their claims."""
        for root in roots:
            self._signals.give("requests", root)

    def request(self, request: Request) -> int:
        """Insert a request durably, wake the owner of the tree, and return the request's id."""
        with self._transaction() as db:
            number = requests.insert(db, request, self.clean)
        self._signals.give("requests", request.root)
        return number

    def requests(self, root: str) -> list[Request]:
        """Return the unhandled requests, oldest first."""
        return self._read(requests.select, root)

    def listen(self, root: str) -> Signal:
        """Return a signal for the owner of a tree: woken by requests and released claims."""
        return self._signals.listen("requests", root)

    def follow(self, root: str | None = None) -> Signal:
        """Return a signal for any process: woken by commits and changes of owner, of one or all trees."""
        return self._signals.listen("commits", root)

    def publish(self, root: str, update: str) -> None:
        """Do nothing: see `updates`."""

    def updates(self, _root: str, _heard: Callable[[str], None], /) -> AbstractContextManager[object]:
        """Deliver nothing: the process that drives a run has the updates of its sessions itself."""
        return nullcontext()

    # ----------------------------------------------------------------------------------- deletion

    def delete_tree(self, root: str) -> None:
        """Delete a run tree, its sessions, and the blobs that no other tree refers to."""
        removal = self._read(tables.Removal, root)
        with self._transaction() as db:
            holder = leases.holder(db, root)
            if holder is not None and holder.owner != this_process() and holder.is_alive():
                raise leases.held(root, holder)
            removal.carry_out(db)
        self._appender.forget()
        self._signals.give("commits", root)

    def close(self) -> None:
        """Close every connection. The last process to close merges the write-ahead log into the database."""
        self._renewal.close()
        with self._lock:
            self._connections.close()
        self._signals.close()

    # ---------------------------------------------------------------------------------- connections

    def _heads(self, rest: str, *values: str | int | None) -> list[RunHead]:
        return self._read(tables.select, rest, *values)

    def _one(self, query: str, value: str) -> object:
        with faults.translated(self._file):
            for (found,) in self._reader().execute(query, (value,)):
                return found
        return None

    def _read(
        self, read: Callable[Concatenate[apsw.Connection, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Return the result of `read` with this thread's connection for reading."""
        with faults.translated(self._file):
            return read(self._reader(), *args, **options)

    def _reader(self) -> apsw.Connection:
        """Return this thread's connection for reading."""
        return self._connections.reader()
