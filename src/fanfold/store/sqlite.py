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

import errno
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

import apsw

from fanfold.errors import BugError, NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.project_files import read_beneath, write_whole
from fanfold.store import database, leases, logs, tables
from fanfold.store.database import DatabaseConnections, LogRoom, Presence
from fanfold.store.leases import Renewal
from fanfold.store.protocol import (
    LEASE_S,
    Announcement,
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
    patience,
    resolve,
)
from fanfold.store.sealing import seal

if TYPE_CHECKING:
    import asyncio

CHECKPOINT_PAGES = 2_000
"""The number of pages in the write-ahead log that triggers a checkpoint. It limits the log to 8 MB and stalls
to 2-3 ms."""
ANNOUNCED, MAX_ANNOUNCED = "announced", 1_000_000
"""The folder of announcements, and the bytes of one that are read."""

P = ParamSpec("P")
R = TypeVar("R")
_AS_SET = nullcontext()
_INSERT_CACHE = "INSERT OR REPLACE INTO cache (key, blob, run_id, seal) VALUES (?, ?, ?, ?)"


class SqliteStore:
    """The store of one project, as `Store` describes it; `path` is its `.fanfold` folder, created if missing.

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
        protected = database.is_protected(path)
        self.read_only = read_only or protected
        file = path / database.DATABASE if self.read_only else database.prepare(path)
        self._file = str(file.absolute())
        self._lock = threading.Lock()
        self._signals = Signals(path, make=not self.read_only)
        self._expiry_ms = int(expiry_s * 1_000)
        self._renewal = Renewal(self._renew, self._signal_owners, expiry_s)
        self._log = LogRoom(self._file, CHECKPOINT_PAGES)
        self._connections = DatabaseConnections(
            self._file, vfs, durability, protected=protected, read_only=self.read_only, key=key, adopts=adopts
        )
        self._key = key
        with database.translated(self._file):
            self._db = self._connections.open_writer(self._log.committed)
        self._presence = Presence(self._file)
        self._appender = logs.Appender(self._db, clean)
        self._data_version: int | None = None
        """Changes when another connection has written."""

    # ------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Batch]) -> None:
        with self._transaction() as db:
            version = db.execute("PRAGMA data_version").get
            if version != self._data_version:  # a worker may have written entries to one of these trees
                self._data_version = version
                self._appender.forget()
            for batch in batches:
                self._write_batch(db, batch)
            freed = [other for b in batches if b.unclaimed for other in leases.waiting(db, b.root)]
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
                message = f"the content of {unclean[0]} contains a secret and is not stored"
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
            leases.drop(db, batch.root, list(batch.unclaimed))

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[apsw.Connection]:
        """Run the block as one write transaction; if anything raises, nothing is written."""
        self._connections.check_usable()  # before the lock, which another thread may have held at a fork
        with self._lock, _AS_SET if durable else self._connections.relaxed():
            db = self._db
            try:
                database.begin(db)
                self._log.make_room(self._presence.log)
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                database.undo(db)
                self._appender.forget()
                if not isinstance(error, apsw.Error):
                    raise
                if isinstance(error, apsw.IOError | apsw.FullError):
                    database.bury(db)
                raise database.fault(error, self._file) from error
            self._presence.check()
            if self._log.pages >= CHECKPOINT_PAGES:
                with suppress(apsw.Error):  # the commit is safe in the log, and a later one tries again
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    # ------------------------------------------------------------------------------------ reading

    def tree(self, root: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        with database.translated(self._file):
            yield from logs.read_tree(self._connections.reader(), root, after, decode)

    def reach(self, root: str) -> int:
        return self._read(logs.reach, root)

    def commits(self, root: str) -> Iterator[Commit]:
        with database.translated(self._file):
            yield from logs.read_commits(self._connections.reader(), root)

    def log(self, log: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        with database.translated(self._file):
            yield from logs.read_log(self._connections.reader(), log, after, decode)

    def blob(self, hash: str) -> bytes:
        content = self._one("SELECT content FROM blobs WHERE hash = ?", hash)
        if content is None:
            raise NotFoundError("blob.not_found", f"the store has no blob {hash!r}")
        assert isinstance(content, bytes)
        return content

    def has_blob(self, hash: str) -> bool:
        return self._one("SELECT 1 FROM blobs WHERE hash = ?", hash) is not None

    def absent_blobs(self, hashes: Sequence[str]) -> list[str]:
        return self._read(tables.absent, hashes)

    def roots(self) -> list[str]:
        return self._read(tables.roots)

    def head(self, run_id: str) -> RunHead | None:
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
        return self._heads(
            "WHERE (NOT ?1 OR run_id = root_run_id) AND (?2 IS NULL OR status = ?2)"
            " AND (?3 IS NULL OR recipe = ?3)"
            " AND (?4 IS NULL OR id < (SELECT id FROM runs WHERE run_id = ?4))"
            " ORDER BY id DESC LIMIT ?5",
            *(roots_only, status, recipe, before, limit),
        )

    def children(self, run_id: str) -> list[RunHead]:
        return self._heads("WHERE parent_run_id = ? ORDER BY id", run_id)

    def tree_heads(self, root: str) -> list[RunHead]:
        return self._heads("WHERE root_run_id = ? ORDER BY id", root)

    def resolve(self, prefix: str) -> str:
        return self._read(tables.resolve, prefix)

    def cached(self, key: str) -> str | None:
        blob = self._one("SELECT blob FROM cache WHERE key = ?", key)
        return None if blob is None else str(blob)

    def output_rows(
        self, after: int = 0, limit: int = 1_000, root: str | None = None
    ) -> list[tuple[int, OutputRow]]:
        return self._read(tables.read_outputs, root, after, limit)

    def ends(self) -> dict[str, int]:
        return self._read(logs.ends)

    def rows_after(self, root: str, place: int) -> Iterator[tuple[int, Envelope]]:
        with database.translated(self._file):
            yield from logs.rows_after(self._connections.reader(), root, place)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with database.translated(self._file):
            db = self._connections.reader()
            db.execute("BEGIN")
            try:
                yield
            finally:
                database.undo(db)

    def unkeyed(self, root: str) -> int:
        return self._read(tables.unkeyed, root)

    def check(self, root: str | None = None) -> list[Damage]:
        found = self._read(tables.check, root)
        if root is None:
            found += [Damage("", text) for text in self._read(lambda db: list(tables.odd_forms(db)))]
        return found

    # ------------------------------------------------------------------- ownership and requests

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        now, myself = leases.boot_clock_ms(), this_process()
        with self._transaction() as db:
            lease = leases.take(db, root, owner or myself, self._expiry_ms)
            freed = leases.waiting(db, root) if leases.drop_tree(db, root) else []
        self._appender.forget()  # the last owner may have been another process
        if lease.owner == myself:
            self._renewal.keep(lease, now)
        self._signal_owners(lease)
        self._wake(freed)
        return lease

    def confirm(self, lease: Lease) -> None:
        self._renewal.confirm(lease)

    def owner(self, root: str) -> tuple[ProcessIdentity, bool] | None:
        holder = self._read(leases.holder, root)
        return None if holder is None else (holder.owner, holder.is_alive())

    def now_ms(self) -> int:
        """Return the time by the clock of the store: the wall clock of this machine."""
        return int(time.time() * 1_000)

    def heartbeat_age_ms(self, root: str) -> int | None:
        holder = self._read(leases.holder, root)
        return None if holder is None else holder.heartbeat_age_ms

    def release(self, lease: Lease) -> None:
        self._renewal.drop(lease)
        with self._transaction() as db:
            freed = []
            if leases.give_back(db, lease) and leases.drop_tree(db, lease.root):
                freed = leases.waiting(db, lease.root)
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
        with self._transaction(durable=False) as db:
            return leases.take_claims(db, lease, claim)

    def blocker(self, claim: Claim) -> Claim | None:
        return self._read(leases.find_blocker, claim)

    def claims_beside(self, root: str) -> list[Claim]:
        return self._read(leases.beside, root)

    def _wake(self, roots: Sequence[str]) -> None:
        """Wake the owners of these trees, so that they retry their claims."""
        for root in roots:
            self._signals.give("requests", root)

    def request(self, request: Request) -> int:
        with self._transaction() as db:
            number = leases.insert(db, request, self.clean)
        self._signals.give("requests", request.root)
        return number

    def requests(self, root: str) -> list[Request]:
        return self._read(leases.select, root)

    def listen(self, root: str) -> Signal:
        return self._signals.listen("requests", root)

    def follow(self, root: str | None = None) -> Signal:
        return self._signals.listen("commits", root)

    def publish(self, root: str, update: str) -> None:
        """Send a text to the processes that hear the `updates` of a tree now. It is stored nowhere."""
        self._signals.send(root, update)

    def updates(self, root: str, heard: Callable[[str], None], /) -> AbstractContextManager[object]:
        """Inside this block, `heard` is called in a thread of its own with the texts for a tree."""
        return self._signals.hear(root, heard)

    def announce(self, name: str, text: str) -> None:
        """Replace what is announced under a name, and its time; an empty text withdraws it."""
        file = database.private_folder(self.path / ANNOUNCED) / name
        if text:
            write_whole(file, self.clean(text.encode()))
        else:
            file.unlink(missing_ok=True)

    def announced(self) -> list[Announcement]:
        """Return all announcements, by name."""
        found: list[Announcement] = []
        for file in sorted((self.path / ANNOUNCED).glob("[!.]*")):
            with suppress(OSError):  # it was withdrawn meanwhile
                age_ms = self.now_ms() - file.stat().st_mtime_ns // 1_000_000
                text = read_beneath(self.path, file, MAX_ANNOUNCED).decode("utf-8", "replace")
                found.append(Announcement(file.name, text, max(0, age_ms)))
        return found

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
        with database.translated(self._file):
            for (found,) in self._connections.reader().execute(query, (value,)):
                return found
        return None

    def _read(
        self, read: Callable[Concatenate[apsw.Connection, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Return the result of `read` with this thread's connection for reading."""
        with database.translated(self._file):
            return read(self._connections.reader(), *args, **options)


# -----------------------------------------------------------------------------------------------------------
# Signals that wake other processes of a project to read the store, without polling or messages
#
# Rules
# * A signal only means "read the store". All data is in the store, so a lost, repeated or late signal changes
#   nothing. A waiter checks again after `RECHECK_S` at the latest. So a signal that the system cannot deliver
#   (no watch left for this user, a read-only folder) costs time but never blocks a waiter.
# * A signal is a read of a file below `wake/`. Waiters watch the file (inotify, kqueue). So the sender need
#   not know the waiters and pays one system call. Any number of processes can wait, also in other
#   containers. Nothing is written to the disk, and a process that dies leaves nothing behind.
# * A live update is a line in the pipe of each listener. The next sender or listener removes those of
#   dead processes.
# * There are `FILES` files for each topic, for any number of runs. Two roots may share a file, so a waiter
#   sometimes gets a spurious wake-up.

FILES = 64
UPDATES = "updates"
"""The folder below `wake/` with a pipe for each listener to the updates of a tree."""
MAX_IDLE = 4
"""The number of unused watches that are kept open; the system limits watches per user."""

Topic: TypeAlias = Literal["commits", "requests"]
"""`commits`: the log of a tree grew or its owner changed. `requests`: a process has a request for the owner.
"""


class Signals:
    """The signals of one project; `folder` is its `.fanfold` folder. Files are created only with `make`.

    >>> import tempfile
    >>> signals = Signals(Path(tempfile.mkdtemp()))
    >>> with signals.listen("commits", "run") as listener:
    ...     signals.give("commits", "run")
    ...     listener.wait_blocking(30), listener.wait_blocking(0)
    (True, False)
    >>> signals.close()
    """

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        self._folder = folder / "wake"
        self._make = make
        self._files: dict[tuple[Topic, int], int] = {}
        self._lock = threading.Lock()
        self._idle: list[_Watch] = []
        """Watches without a listener."""
        self._closed = False
        self._process = os.getpid()

    def give(self, topic: Topic, root: str) -> None:
        """Wake all listeners. Never blocks and never fails; thread-safe."""
        key = topic, _number(root)
        with self._lock:
            file = self._files.get(key)
            if file is None:
                try:
                    file = self._files[key] = self._open(_name(*key))
                except OSError:
                    return  # then no process can listen either
            _touch(file)

    def listen(self, topic: Topic, root: str | None) -> FileSignal:
        """Return a signal for one root or for all roots; it is active until it is closed."""
        names = [_name(topic, number) for number in (range(FILES) if root is None else [_number(root)])]
        try:
            for name in names:
                os.close(self._open(name))
            with self._lock:
                watch = self._idle.pop() if self._idle else _Watch()
            try:
                watch.begin([str(self._folder / name) for name in names])
            except OSError:
                watch.close()
                raise
            return FileSignal(watch, self._keep_watch)
        except OSError:  # the file cannot be created, or the user has no watches left
            return FileSignal(None)

    def _keep_watch(self, watch: _Watch) -> None:
        """Keep a watch for the next listener.

        Closing a watch takes the kernel about ten milliseconds, which would block an event loop that drives
        other runs. A forked process only closes its file descriptor: removing the watches would remove them
        for the parent too.
        """
        if self._process == os.getpid():
            watch.end()
            with self._lock:
                if not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(watch)
                    return
        watch.close()

    def send(self, root: str, text: str) -> None:
        """Send a text to each process that hears a root, unless it is slow. Never blocks and never fails."""
        data = text.encode() + b"\n"
        if len(data) > select.PIPE_BUF:
            return  # a longer one could be mixed with those of other threads
        for pipe in self._folder.glob(f"{UPDATES}/{root}.*"):
            if (handle := _open_pipe(pipe)) is not None:
                with suppress(OSError):
                    os.write(handle, data)
                os.close(handle)

    @contextmanager
    def hear(self, root: str, heard: Callable[[str], None]) -> Iterator[None]:
        """Inside this block, call `heard` in a thread with the texts for a root."""
        pipe = self._folder / UPDATES / f"{root}.{os.urandom(6).hex()}"
        try:
            pipe.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for other in pipe.parent.iterdir():
                if (handle := _open_pipe(other)) is not None:
                    os.close(handle)
            os.mkfifo(pipe, 0o600)
            incoming = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # a file system without pipes
            yield
            return
        end, life = os.pipe()
        reader = threading.Thread(target=_read_lines, args=(incoming, end, heard), daemon=True)
        reader.start()
        try:
            yield
        finally:
            with suppress(OSError):
                pipe.unlink()
            os.close(life)
            reader.join()
            os.close(incoming)
            os.close(end)

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()
            for watch in self._idle:
                watch.close()
            self._idle.clear()
            self._closed = True

    def _open(self, name: str) -> int:
        path, flags = self._folder / name, os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return _regular(os.open(path, os.O_RDONLY | flags))
        except FileNotFoundError:
            if not self._make:
                raise
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = _regular(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600))
        os.pwrite(file, b"\n", 0)  # the file must have content to read
        return file


def _open_pipe(pipe: Path) -> int | None:
    """Open the pipe of a listener to write; None if there is none. The pipe of a dead process is removed."""
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            with suppress(OSError):
                pipe.unlink()
        return None
    if stat.S_ISFIFO(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def _read_lines(incoming: int, end: int, heard: Callable[[str], None]) -> None:
    """Call `heard` with each line of a pipe until `end` is closed at its other side."""
    poll, rest = select.poll(), b""
    poll.register(incoming, select.POLLIN)
    poll.register(end, select.POLLIN)
    while all(ready != end for ready, _ in poll.poll()):
        *lines, rest = (rest + os.read(incoming, 1 << 16)).split(b"\n")
        for line in lines:
            heard(line.decode("utf-8", "replace"))


def _regular(file: int) -> int:
    """Return `file` if it is a regular file; close it and raise `OSError` if it is a pipe or a folder."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a file")
    return file


class FileSignal(Signal):
    """A subscription of one waiter; see `Signal`. Without a `watch`, only time wakes the waiter."""

    def __init__(self, watch: _Watch | None, give_back: Callable[[_Watch], None] | None = None) -> None:
        self._watch = watch
        self._give_back = give_back

    async def wait(self, timeout_s: float | None = None) -> bool:
        import asyncio  # imported here because most commands only read and never wait

        watch = self._watch
        if watch is not None and watch.drain():
            return True
        waited_s, answer = patience(timeout_s)
        if watch is None:
            await asyncio.sleep(waited_s)
            return answer
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()
        loop.add_reader(watch.fileno(), resolve, heard)
        try:
            async with asyncio.timeout(waited_s):
                await heard
        except TimeoutError:
            return answer
        finally:
            loop.remove_reader(watch.fileno())  # also if the watch was closed meanwhile and is used again
        if self._watch is watch:
            watch.drain()
        return True

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        waited_s, answer = patience(timeout_s)
        if self._watch is None:
            time.sleep(waited_s)
            return answer
        select.select([self._watch.fileno()], [], [], waited_s)
        return self._watch.drain() or answer

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None and self._give_back is not None:
            self._give_back(watch)


@lru_cache(maxsize=256)
def _number(root: str) -> int:
    return blake2b(root.encode(), digest_size=1).digest()[0] % FILES


def _name(topic: Topic, number: int) -> str:
    return f"{topic}-{number:02}"


if sys.platform == "linux":
    IN_ACCESS = 1

    def _touch(file: int) -> None:
        os.pread(file, 1, 0)

    class _Watch:
        """Receives an event for every read of the watched files."""

        def __init__(self) -> None:
            import ctypes

            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._file < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
            self._watched: list[int] = []

        def begin(self, paths: list[str]) -> None:
            import ctypes

            for path in paths:
                number = self._libc.inotify_add_watch(self._file, os.fsencode(path), IN_ACCESS)
                if number < 0:
                    raise OSError(ctypes.get_errno(), "inotify_add_watch")
                self._watched.append(number)

        def end(self) -> None:
            for number in self._watched:
                self._libc.inotify_rm_watch(self._file, number)  # fails if the file was removed
            self._watched.clear()
            self.drain()

        def fileno(self) -> int:
            return self._file

        def drain(self) -> bool:
            """Discard the pending events; return whether there were any."""
            heard = False
            with suppress(BlockingIOError):
                while os.read(self._file, 16_384):
                    heard = True
            return heard

        def close(self) -> None:
            os.close(self._file)

else:

    def _touch(file: int) -> None:
        os.utime(file)

    class _Watch:
        """Receives an event for every change of the times of the watched files."""

        def __init__(self) -> None:
            self._files: list[int] = []
            self._queue = select.kqueue()

        def begin(self, paths: list[str]) -> None:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            for path in paths:
                file = os.open(path, flags)
                self._files.append(file)
                event = select.kevent(
                    file,
                    filter=select.KQ_FILTER_VNODE,
                    flags=select.KQ_EV_ADD | select.KQ_EV_CLEAR,
                    fflags=select.KQ_NOTE_ATTRIB,
                )
                self._queue.control([event], 0)

        def end(self) -> None:
            self.drain()
            for file in self._files:
                os.close(file)  # this also removes its events
            self._files.clear()

        def fileno(self) -> int:
            return self._queue.fileno()

        def drain(self) -> bool:
            """Discard the pending events; return whether there were any."""
            return bool(self._queue.control(None, len(self._files), 0))

        def close(self) -> None:
            self.end()
            self._queue.close()
