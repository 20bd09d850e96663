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
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from itertools import count
from secrets import token_hex
from typing import Any, TypeAlias, TypeVar

import msgspec
import psycopg
from psycopg import conninfo

from fanfold.errors import AuthorError, BugError
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.store import leases
from fanfold.store.leases import Holder, Renewal, boot_clock_ms
from fanfold.store.postgres_tables import CLAIMS
from fanfold.store.protocol import (
    Claim,
    Clean,
    Lease,
    LeaseLost,
    Request,
    Signal,
    StoreFault,
    closed,
    forked,
    patience,
    resolve,
)

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


REFUSALS = {
    "password": "the password comes from PGPASSWORD, PGPASSFILE or ~/.pgpass, the user from FANFOLD_STORE",
    "no pg_hba.conf entry": "let pg_hba.conf of the server permit this user, database and address",
    "does not exist": "create it on the server (createdb, createuser), or correct FANFOLD_STORE",
}
"""What a server answers that refuses a connection, and what to do."""


def unreachable(url: str, error: BaseException) -> StoreFault:
    text = " ".join(str(error).split())
    message = f"the database {shown(url)} cannot be reached: {text}"
    hint = "check that the server runs and that FANFOLD_STORE and PostgreSQL's own settings name it"
    for word, advice in REFUSALS.items():
        if word in text:
            hint = advice
    return StoreFault("store.unreachable", message, hint=hint, details={"url": shown(url)})


def fault(url: str, error: psycopg.Error) -> Exception:
    """Return the error to raise instead of an error of the database."""
    details = {"url": shown(url), "postgres": f"{type(error).__name__}: {error}", "sqlstate": error.sqlstate}
    if isinstance(error, psycopg.IntegrityError):
        return BugError("store.constraint", f"a write violates a constraint: {error}", details=details)
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
    full = isinstance(error, psycopg.errors.DiskFull | psycopg.errors.ConfigurationLimitExceeded)
    # Wrong password, no such database or table, refused by `fanfold.commit`: waiting does not help.
    if full or (error.sqlstate or "").startswith(("28", "3D", "42", "FF")):
        return False
    if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure):
        return True
    # A server that refuses a connection attempt for good gives no code.
    permanent = any(text in str(error) for text in (*REFUSALS, "role "))
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
        self.signals = self._pool.signals

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
        """Return the result of `work`, which is repeated after an outage and must be safe to repeat.

        `retry` is called before each repetition, also if `is_repeated`; its result replaces the repetition.
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
                found = self._listeners.get(channel, set())
                found.discard(signal)
                if not found:
                    self._listeners.pop(channel, None)

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
        message = f"store.url is not an address of a PostgreSQL database: {str(error).strip()}"
        raise AuthorError("config.bad_store", message, hint="postgresql://HOST/DATABASE") from None
    if parts.get("password"):
        hint = "remove it there, and give it by PGPASSWORD, PGPASSFILE or ~/.pgpass"
        raise AuthorError("config.bad_store", "store.url contains a password", hint=hint)


# -----------------------------------------------------------------------------------------------------------
# Leases, claims, requests and signals of a PostgreSQL store
#
# Rules
# * The clock of the server decides when a lease expires, for the processes of all machines.
# * Acquiring and releasing a lease wait for the commits of its tree that are in progress. So a commit of an
#   earlier owner is stored before the next owner reads the log, or it is refused.
# * Claims of a project are made one after another: each runs under the lock (project, CLAIMS).
# * An operation whose result was lost is repeated. Those that must not happen twice carry a random name.

_encode = msgspec.json.Encoder().encode
MAX_UPDATE_CHARS = 1_900
"""PostgreSQL delivers up to 8,000 bytes at once, and a character has up to four. Longer texts are lost."""
_CLAIMS = "SELECT id, root, run_id, step, patterns, held FROM claims WHERE project = %s AND root <> %s"
_OF_STEP = "project = %s AND root = %s AND run_id = %s AND step = %s"
_HOLDER = (
    "SELECT epoch, nonce, boot_id, pid, started, pid_namespace, machine, taken_at, heartbeat_at, expires_at,"
    " now_ms() FROM leases WHERE project = %s AND root = %s"
)


class PostgresLeases:
    """The part of a store that processes use to own and to wake each other."""

    clean: Clean
    read_only: bool

    def __init__(self, url: str, expiry_s: float, patience_s: float) -> None:
        self._expiry_ms = int(expiry_s * 1_000)
        self._connections = PostgresConnections(url, patience_s)
        self._renewal = Renewal(self._renew, self._tell_owners, expiry_s)
        self._project = 0
        self._updates = count()
        self._ends: dict[str, tuple[int, bytes]] = {}
        """The last `tree_seq` and the last link of each tree that this store wrote."""

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreFault("store.read_only", "this store was opened read-only", hint="open it to write")

    def _change(self, work: Callable[[Database], T]) -> T:
        """Run `work` in one transaction; it must be safe to repeat."""
        self._check_writable()

        def transaction(db: Database) -> T:
            with db.transaction():
                return work(db)

        return self._connections.run(transaction)

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connections.run(lambda db: db.execute(query.encode(), values).fetchall())

    def _one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._all(query, *values)
        return rows[0] if rows else None

    # ------------------------------------------------------------------- ownership and requests

    def now_ms(self) -> int:
        """Return the time by the clock of the server."""
        return int(self._all("SELECT now_ms()")[0][0])

    def _lock_tree(self, db: Database, root: str) -> None:
        db.execute("SELECT pg_advisory_xact_lock(fanfold.tree_lock(%s, %s))", (self._project, root))

    def _holder(self, db: Database, root: str) -> tuple[int, str | None, Holder | None]:
        """Return the epoch of a lease, the random name of its acquisition, and its owner."""
        row = db.execute(_HOLDER, (self._project, root)).fetchone()
        if row is None:
            return 0, None, None
        epoch, nonce, boot, pid, started, namespace, machine, taken, heartbeat, expires, now = row
        if pid is None:
            return epoch, nonce, None
        owner = ProcessIdentity(boot, pid, started, namespace, machine)
        return epoch, nonce, Holder(owner, taken, heartbeat, expires, now)

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        began, myself, nonce = boot_clock_ms(), this_process(), token_hex(8)
        chosen = owner or myself

        def take(db: Database) -> tuple[Lease, list[str]]:
            self._lock_tree(db, root)
            epoch, name, before = self._holder(db, root)
            if name == nonce:  # this attempt was stored, and its result was lost
                return Lease(root, chosen, epoch), []
            if before is not None and before.is_alive():
                raise leases.held(root, before)
            db.execute(
                "INSERT INTO leases AS l"
                " SELECT %s, %s, 1, %s, %s, %s::integer, %s, %s, %s, now, now, now + %s"
                " FROM (SELECT now_ms() AS now) AS x"
                " ON CONFLICT (project, root) DO UPDATE SET epoch = l.epoch + 1, nonce = excluded.nonce,"
                " boot_id = excluded.boot_id, pid = excluded.pid, started = excluded.started,"
                " pid_namespace = excluded.pid_namespace, machine = excluded.machine,"
                " taken_at = excluded.taken_at, heartbeat_at = excluded.taken_at,"
                " expires_at = excluded.taken_at + %s",
                (
                    *(self._project, root, nonce, chosen.boot_id, chosen.pid, chosen.started),
                    *(chosen.namespace, chosen.machine, self._expiry_ms, self._expiry_ms),
                ),
            )
            freed = self._drop_claims(db, root)
            return Lease(root, chosen, epoch + 1, None if before is None else before.lived_ms), freed

        lease, freed = self._change(take)
        self._ends.pop(root, None)  # the last owner may have been another process
        if lease.owner == myself:
            self._renewal.keep(lease, began)
        self._tell_owners(lease)
        self._wake(freed)
        return lease

    def confirm(self, lease: Lease) -> None:
        self._renewal.confirm(lease)

    def owner(self, root: str) -> tuple[ProcessIdentity, bool] | None:
        holder = self._connections.run(lambda db: self._holder(db, root))[2]
        return None if holder is None else (holder.owner, holder.is_alive())

    def heartbeat_age_ms(self, root: str) -> int | None:
        holder = self._connections.run(lambda db: self._holder(db, root))[2]
        return None if holder is None else holder.heartbeat_age_ms

    def release(self, lease: Lease) -> None:
        self._renewal.drop(lease)

        def give_back(db: Database) -> list[str]:
            self._lock_tree(db, lease.root)
            done = db.execute(
                "UPDATE leases SET boot_id = NULL, pid = NULL, started = NULL, pid_namespace = NULL,"
                " machine = NULL, taken_at = NULL, heartbeat_at = NULL, expires_at = NULL"
                " WHERE project = %s AND root = %s AND epoch = %s",
                (self._project, lease.root, lease.epoch),
            )
            return self._drop_claims(db, lease.root) if done.rowcount else []

        freed = self._change(give_back)
        self._tell_owners(lease)
        self._wake(freed)

    def _renew(self, held: Sequence[Lease]) -> dict[Lease, LeaseLost]:
        if not held:
            return {}

        def renew(db: Database) -> dict[Lease, LeaseLost]:
            roots = [lease.root for lease in held]
            db.execute(
                "UPDATE leases SET heartbeat_at = now_ms(), expires_at = now_ms() + %s"
                " FROM unnest(%s::text[], %s::integer[]) AS x(name, number)"
                " WHERE project = %s AND root = x.name AND epoch = x.number AND pid IS NOT NULL",
                (self._expiry_ms, roots, [lease.epoch for lease in held], self._project),
            )
            query = "SELECT root, epoch, pid IS NOT NULL FROM leases WHERE project = %s AND root = ANY(%s)"
            rows = db.execute(query, (self._project, roots)).fetchall()
            now = {root: (epoch, owned) for root, epoch, owned in rows}
            gone = [lease for lease in held if now.get(lease.root) != (lease.epoch, True)]
            return {
                lease: leases.lost(lease.root, lease.epoch, now.get(lease.root, (0,))[0]) for lease in gone
            }

        return self._change(renew)

    def _tell_owners(self, lease: Lease) -> None:
        """Signal a change of owner. Followers read the new owner, and the previous owner checks its lease."""
        self._signal("commits", lease.root)
        self._signal("requests", lease.root)

    # ------------------------------------------------------------------------------------- claims

    def _lock_claims(self, db: Database) -> None:
        db.execute("SELECT pg_advisory_xact_lock(%s, %s)", (self._project, CLAIMS))

    def _drop_claims(self, db: Database, root: str) -> list[str]:
        """Release the claims of a tree; return the trees that wait for claims."""
        had = "SELECT 1 FROM claims WHERE project = %s AND root = %s AND held < 2 LIMIT 1"
        if db.execute(had, (self._project, root)).fetchone() is None:
            return []
        self._lock_claims(db)
        db.execute("SELECT fanfold.unclaim(%s, %s, NULL, NULL)", (self._project, root))
        query = (
            "SELECT DISTINCT root FROM claims WHERE project = %s AND held = 0 AND root <> %s ORDER BY root"
        )
        return [other for (other,) in db.execute(query, (self._project, root))]

    def claim(self, lease: Lease, claim: Claim) -> Claim | None:
        name = (self._project, claim.root, claim.run_id, claim.step)

        def take(db: Database) -> Claim | None:
            self._lock_claims(db)
            epoch = self._holder(db, lease.root)[0]
            if epoch != lease.epoch:
                raise leases.lost(lease.root, lease.epoch, epoch)
            others = "SELECT DISTINCT root FROM claims WHERE project = %s AND root <> %s AND held < 2"
            for (root,) in db.execute(others, (self._project, claim.root)).fetchall():
                holder = self._holder(db, root)[2]
                if holder is None or not holder.is_alive():
                    db.execute("SELECT fanfold.unclaim(%s, %s, NULL, NULL)", (self._project, root))
            db.execute(f"DELETE FROM claims WHERE {_OF_STEP} AND held = 2".encode(), name)  # noqa: S608 - constants only
            found = self._find_blocker(db, claim)
            db.execute(
                "INSERT INTO claims (project, root, run_id, step, patterns, held)"
                " VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (project, root, run_id, step)"
                " DO UPDATE SET held = excluded.held, patterns = excluded.patterns",
                (*name, _encode(claim.patterns).decode(), int(found is None)),
            )
            return found

        return self._change(take)

    def _find_blocker(self, db: Database, claim: Claim) -> Claim | None:
        from fanfold.kernel.paths import overlaps

        own = f"SELECT id FROM claims WHERE {_OF_STEP} AND held < 2".encode()  # noqa: S608 - constants only
        place = db.execute(own, (self._project, claim.root, claim.run_id, claim.step)).fetchone()
        others = f"{_CLAIMS} AND held < 2 ORDER BY held DESC, id".encode()
        for row in db.execute(others, (self._project, claim.root)).fetchall():
            other = _claim(row)
            ahead = row[5] == leases.HELD or place is None or row[0] < place[0]
            if ahead and overlaps(claim.patterns, other.patterns):
                holder = self._holder(db, other.root)[2]
                if holder is not None and holder.is_alive():
                    return other
        return None

    def blocker(self, claim: Claim) -> Claim | None:
        return self._connections.run(lambda db: self._find_blocker(db, claim))

    def claims_beside(self, root: str) -> list[Claim]:
        rows = self._all(f"{_CLAIMS} AND held > 0 ORDER BY id", self._project, root)
        return [_claim(row) for row in rows]

    # ------------------------------------------------------------------------ requests and signals

    def request(self, request: Request) -> int:
        data, nonce = self.clean(_encode(request.data)).decode(), token_hex(8)

        def insert(db: Database) -> int:
            found = db.execute(
                "INSERT INTO requests (project, root, run_id, kind, data, at, nonce)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (nonce) DO UPDATE SET at = excluded.at RETURNING id",
                (self._project, request.root, request.run_id, request.kind, data, request.at, nonce),
            ).fetchall()
            return int(found[0][0])

        number = self._change(insert)
        self._signal("requests", request.root)
        return number

    def requests(self, root: str) -> list[Request]:
        query = "SELECT id, run_id, kind, data, at FROM requests WHERE project = %s AND root = %s ORDER BY id"
        return [
            Request(root=root, run_id=run, kind=kind, data=msgspec.json.decode(data), at=at, id=number)
            for number, run, kind, data, at in self._all(query, self._project, root)
        ]

    def _signal(self, topic: str, root: str) -> None:
        self._connections.signals.give(channel_of(self._project, root), f"{topic} {root}")

    def _wake(self, roots: Sequence[str]) -> None:
        """Wake the owners of these trees, so that they retry their claims."""
        for root in roots:
            self._signal("requests", root)

    def _listen(self, topic: str, root: str | None) -> PostgresSignal:
        self._connections.check_usable()
        if root is not None:
            channel = channel_of(self._project, root)
            return self._connections.signals.listen([channel], lambda one: one == f"{topic} {root}")
        channels = [f"fanfold_{self._project}_{number}" for number in range(BUCKETS)]
        return self._connections.signals.listen(channels, lambda one: one.startswith(f"{topic} "))

    def listen(self, root: str) -> Signal:
        return self._listen("requests", root)

    def follow(self, root: str | None = None) -> Signal:
        return self._listen("commits", root)

    def publish(self, root: str, update: str) -> None:
        """Send a text to the processes that hear the `updates` of a tree now. It is stored nowhere."""
        if len(update) <= MAX_UPDATE_CHARS:
            text = f"update {root} {next(self._updates)} {update}"
            self._connections.signals.give(channel_of(self._project, root), text)

    def updates(self, root: str, heard: Callable[[str], None], /) -> AbstractContextManager[object]:
        """Inside this block, `heard` is called in the thread of the signals with the texts for a tree."""
        begin = f"update {root} "

        def take(text: str) -> bool:
            if text.startswith(begin):
                heard(text[len(begin) :].partition(" ")[2])
            return False

        self._connections.check_usable()
        return self._connections.signals.listen([channel_of(self._project, root)], take)


def _claim(row: Sequence[Any]) -> Claim:
    return Claim(row[1], row[2], row[3], msgspec.json.decode(row[4], type=tuple[str, ...]))
