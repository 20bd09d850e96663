"""Connections to a PostgreSQL server: at most four for each process and database, one of them for signals.

Rules
* Stores of one process share the connections to one database. A thread that finds all in use waits.
* A lost connection is replaced. An operation is repeated until `patience_s` seconds have passed, so a short
  outage of the server ends no run. Whether an operation may be repeated is decided by its caller.
* No transaction stays open while Python code waits for something else. PostgreSQL ends a connection that
  keeps one open for longer than `IDLE_S`, which is less than the lifetime of a lease.
* One thread sends and receives signals (NOTIFY) on a connection of its own. So a signal never delays a
  commit, and always follows it. After a lost connection all waiters are woken, because they may have missed
  signals.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import conninfo

from fanfold.errors import AuthorError, BugError
from fanfold.store.protocol import Signal, StoreFault, closed, forked, patience, resolve

MAX_CONNECTIONS = 3
"""Besides the one for signals."""
IDLE_S = 4
CONNECT_S = 5
BUCKETS = 64
"""The number of channels of a project. Two runs may share one, so a waiter sometimes wakes for nothing."""
FLUSH_S = 2.0

Database: TypeAlias = "psycopg.Connection[Any]"
T = TypeVar("T")


def shown(url: str) -> str:
    """Return the address without a password and without other parameters, for messages."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "postgresql://…"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"


def unreachable(url: str, error: BaseException) -> StoreFault:
    text = " ".join(str(error).split())
    return StoreFault(
        "store.unreachable",
        f"the database {shown(url)} cannot be reached: {text}",
        hint="check that the server runs and that FANFOLD_STORE and PostgreSQL's own settings name it",
        details={"url": shown(url)},
    )


def fault(url: str, error: psycopg.Error) -> Exception:
    """Return the error to raise instead of an error of the database."""
    details = {"url": shown(url), "postgres": f"{type(error).__name__}: {error}", "sqlstate": error.sqlstate}
    if isinstance(error, psycopg.IntegrityError):
        return BugError("store.constraint", f"a write contradicts the store: {error}", details=details)
    if isinstance(error, psycopg.errors.InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction):
        hint = "grant this user access to the schema fanfold, or open the project with another user"
        return StoreFault("store.read_only", f"{shown(url)}: {error}", hint=hint, details=details)
    if isinstance(error, psycopg.errors.DiskFull):
        hint = "free some space on the server; runs can be resumed afterwards"
        return StoreFault("store.full", f"the disk of {shown(url)} is full", hint=hint, details=details)
    hint = "check the server and its log; runs can be resumed afterwards"
    return StoreFault("store.io", f"{shown(url)} failed: {error}", hint=hint, details=details)


def is_outage(error: psycopg.Error) -> bool:
    """Whether the server or the connection is gone, rather than the statement wrong."""
    if isinstance(error, psycopg.errors.DiskFull | psycopg.errors.ConfigurationLimitExceeded):
        return False
    # Wrong password, no such database or table, refused by `fanfold.commit`: waiting does not help.
    refused = ("28", "3D", "42", "FF")
    if error.sqlstate is not None and error.sqlstate.startswith(refused):
        return False
    if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure):
        return True
    # A server that refuses a connection attempt for good gives no code.
    permanent = any(
        text in str(error) for text in ("password", "does not exist", "no pg_hba.conf entry", "role ")
    )
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not permanent


class ConnectionPool:
    """The connections of this process to one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.users = 0
        self._free: deque[Database] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self.signals = SignalExchange(self.connect)

    def connect(self) -> Database:
        """Open a connection."""
        db = psycopg.connect(
            self.url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="fanfold",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
            options=f"-c idle_in_transaction_session_timeout={IDLE_S}s -c search_path=fanfold",
        )
        db.prepare_threshold = 2
        return db

    @contextmanager
    def connection(self) -> Iterator[Database]:
        """Use a connection alone inside this block."""
        db = self._take()
        try:
            yield db
        except BaseException:
            if not db.closed and db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                self._give_back(db)
            else:
                self._drop(db)
            raise
        self._give_back(db)

    def _take(self) -> Database:
        with self._changed:
            while True:
                if self._free:
                    return self._free.popleft()
                if self._count < MAX_CONNECTIONS:
                    self._count += 1
                    break
                self._changed.wait()
        try:
            return self.connect()
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise

    def _give_back(self, db: Database) -> None:
        if db.closed or db.broken:
            self._drop(db)
            return
        with self._changed:
            self._free.appendleft(db)  # the one used last has the warmest cache
            self._changed.notify()

    def _drop(self, db: Database) -> None:
        with suppress(psycopg.Error):
            db.close()
        with self._changed:
            self._count -= 1
            self._changed.notify()

    def close(self) -> None:
        self.signals.close()
        with self._changed:
            while self._free:
                self._count -= 1
                self._free.popleft().close()


_pools: dict[tuple[int, str], ConnectionPool] = {}
"""By process, because a forked one must not use the connections of its parent."""
_pools_lock = threading.Lock()


class PostgresConnections:
    """The connections that one store uses; it shares them with other stores of this process."""

    def __init__(self, url: str, patience_s: float) -> None:
        self.url = url
        self._patience_s = patience_s
        self._process = os.getpid()
        self._is_closed = False
        self._local = threading.local()
        with _pools_lock:
            self._pool = _pools.setdefault((self._process, url), ConnectionPool(url))
            self._pool.users += 1

    @property
    def signals(self) -> SignalExchange:
        return self._pool.signals

    def check_usable(self) -> None:
        if self._is_closed:
            raise closed()
        if self._process != os.getpid():
            raise forked(self._process)

    def run(
        self,
        work: Callable[[Database], T],
        retry: Callable[[], T | None] | None = None,
        *,
        patience_s: float | None = None,
        is_repeated: bool = False,
    ) -> T:
        """Return the result of `work`. It is repeated after an outage, so it must be safe to repeat.

        If `retry` is set, it is called before each repetition. A result other than None is returned instead.
        `is_repeated`: an earlier call of this function was interrupted by an outage.
        """
        self.check_usable()
        pinned: Database | None = getattr(self._local, "pinned", None)
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        delay_s = 0.05
        while True:
            try:
                if pinned is not None:
                    return work(pinned)
                if is_repeated and retry is not None:
                    known = retry()
                    if known is not None:
                        return known
                with self._pool.connection() as db:
                    return work(db)
            except psycopg.Error as error:
                if not is_outage(error):
                    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
                        raise unreachable(self.url, error) from error
                    raise fault(self.url, error) from error
                if pinned is not None or time.monotonic() + delay_s > deadline:
                    raise unreachable(self.url, error) from error
                is_repeated = True
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 1.0)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside this block, all reads of this thread see the same state of the store."""
        self.check_usable()
        if getattr(self._local, "pinned", None) is not None:
            yield
            return
        with self._pool.connection() as db:
            # A reader may take its time in Python between two reads.
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            self._local.pinned = db
            try:
                yield
            finally:
                self._local.pinned = None
                with suppress(psycopg.Error):
                    db.execute("ROLLBACK")

    def close(self) -> None:
        if self._is_closed or self._process != os.getpid():
            return
        self._is_closed = True
        with _pools_lock:
            self._pool.users -= 1
            if self._pool.users:
                return
            _pools.pop((self._process, self.url), None)
        self._pool.close()


# -----------------------------------------------------------------------------------------------------------
# Signals


def channel_of(project: int, root: str) -> str:
    """Return the channel on which the signals of a run tree are sent."""
    return f"fanfold_{project}_{blake2b(root.encode(), digest_size=1).digest()[0] % BUCKETS}"


class SignalExchange:
    """Sends and receives the signals of this process in one thread."""

    def __init__(self, connect: Callable[[], Database]) -> None:
        self._connect = connect
        self._lock = threading.Condition()
        self._outgoing: deque[tuple[str, str]] = deque()
        self._listeners: dict[str, set[PostgresSignal]] = {}
        self._wanted: set[str] = set()
        self._heard: set[str] = set()
        """The channels that the connection listens on."""
        self._barriers: dict[str, threading.Event] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_sending = False
        self._wake_read, self._wake_write = -1, -1

    def give(self, channel: str, text: str) -> None:
        """Send a signal soon. Never blocks and never fails."""
        with self._lock:
            if self._is_closed or (channel, text) in self._outgoing:
                return
            self._outgoing.append((channel, text))
            self._start()
        self._poke()

    def listen(self, channels: Sequence[str], wants: Callable[[str], bool]) -> PostgresSignal:
        """Return a signal for the texts that `wants` accepts. It is active when this returns."""
        signal = PostgresSignal(self, channels, wants)
        token = f"barrier {id(signal)} {os.getpid()}"
        ready = threading.Event()
        with self._lock:
            for channel in channels:
                self._listeners.setdefault(channel, set()).add(signal)
            self._wanted.update(channels)
            self._barriers[token] = ready
            self._outgoing.append((channels[0], token))
            self._start()
        self._poke()
        # Signals that were sent before this call arrive before the token, and are not for this listener.
        ready.wait(CONNECT_S)
        with self._lock:
            self._barriers.pop(token, None)
        signal.forget()
        return signal

    def remove(self, signal: PostgresSignal, channels: Sequence[str]) -> None:
        with self._lock:
            for channel in channels:
                found = self._listeners.get(channel)
                if found is not None:
                    found.discard(signal)
                    if not found:
                        del self._listeners[channel]

    def close(self) -> None:
        """Send what is pending, and end the thread."""
        with self._lock:
            if self._thread is not None:
                self._lock.wait_for(lambda: not self._outgoing and not self._is_sending, FLUSH_S)
            self._is_closed = True
        if self._thread is not None:
            self._poke()
            self._thread.join(FLUSH_S)

    def _start(self) -> None:
        if self._thread is None:
            self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="fanfold signals", daemon=True)
            self._thread.start()

    def _poke(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b".")

    def _run(self) -> None:
        delay_s = 0.05
        while not self._is_closed:
            try:
                with self._connect() as db:
                    self._heard.clear()
                    self._serve(db, is_again=delay_s > 0.05)
            except psycopg.Error:
                self._wake_all()
                time.sleep(delay_s)
                delay_s = min(delay_s * 2, 1.0)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _serve(self, db: Database, *, is_again: bool) -> None:
        while not self._is_closed:
            with self._lock:
                fresh = sorted(self._wanted - self._heard)
                sent, self._outgoing = list(self._outgoing), deque()
                self._is_sending = bool(sent)
            try:
                if fresh:
                    db.execute("; ".join(f'LISTEN "{name}"' for name in fresh).encode())
                    self._heard.update(fresh)
                    if is_again:  # signals were missed meanwhile
                        self._wake_all()
                if sent:
                    names, texts = zip(*sent, strict=True)
                    db.execute(
                        "SELECT pg_notify(c, t) FROM unnest(%s::text[], %s::text[]) AS x(c, t)",
                        (list(names), list(texts)),
                    )
            except BaseException:
                with self._lock:
                    self._outgoing.extendleft(reversed(sent))
                raise
            finally:
                with self._lock:
                    self._is_sending = False
                    self._lock.notify_all()
            for notice in db.notifies(timeout=0):
                with self._lock:
                    barrier = self._barriers.get(notice.payload)
                    listeners = self._listeners.get(notice.channel, ())
                    woken = [signal for signal in listeners if signal.wants(notice.payload)]
                if barrier is not None:
                    barrier.set()
                for signal in woken:
                    signal.give()
            with self._lock:
                if self._outgoing or self._wanted - self._heard:
                    continue
            select.select([db.fileno(), self._wake_read], [], [])
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4_096)

    def _wake_all(self) -> None:
        with self._lock:
            found = {one for some in self._listeners.values() for one in some}
        for signal in found:
            signal.give()


class PostgresSignal(Signal):
    """A subscription of one waiter; see `Signal`."""

    def __init__(
        self, exchange: SignalExchange, channels: Sequence[str], wants: Callable[[str], bool]
    ) -> None:
        self.wants = wants
        self._exchange = exchange
        self._channels = channels
        self._event = threading.Event()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def give(self) -> None:
        """Wake the waiter; called by the thread of the signals."""
        self._event.set()
        for loop, heard in list(self._waiters):
            with suppress(RuntimeError):  # its event loop was closed
                loop.call_soon_threadsafe(resolve, heard)

    def forget(self) -> None:
        self._event.clear()

    async def wait(self, timeout_s: float | None = None) -> bool:
        waited_s, answer = patience(timeout_s)
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        self._waiters.add(waiter)
        try:
            if not self._event.is_set():
                async with asyncio.timeout(waited_s):
                    await waiter[1]
        except TimeoutError:
            return answer
        finally:
            self._waiters.discard(waiter)
        self._event.clear()
        return True

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        waited_s, answer = patience(timeout_s)
        heard = self._event.wait(waited_s)
        self._event.clear()
        return heard or answer

    def close(self) -> None:
        self._exchange.remove(self, self._channels)


def check_url(url: str) -> None:
    """Raise `AuthorError` if the text is not an address of a PostgreSQL database, or contains a password."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        message = f"store.url is not an address of a PostgreSQL database: {error}"
        raise AuthorError("config.bad_store", message, hint="postgresql://HOST/DATABASE") from None
    if parts.get("password"):
        raise AuthorError(
            "config.bad_store",
            "store.url contains a password",
            hint="remove it there, and give it by PGPASSWORD, PGPASSFILE or ~/.pgpass",
        )
