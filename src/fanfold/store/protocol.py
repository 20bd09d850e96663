"""The interface of every store, independent of the database behind it.

Rules
* A log is append-only. `seq` runs 1..n in each log, and `tree_seq` 1..n over the logs of a run tree.
* `write` is one transaction for all results of one or more decisions: events, blobs, heads. When it returns,
  all of it survives a power cut. When it raises, nothing was written.
* Each batch carries the lease epoch of its tree. It is refused (`LeaseLost`) if there is a newer owner. An
  effect starts only after `confirm`.
* The log of a session belongs to one execution of its step: `epoch` in the envelope of an entry is that
  execution. The commit that starts an execution raises the session to it (`Batch.started`). Entries of an
  earlier execution are refused from then on (`SessionSuperseded`), whatever the epoch of the tree.
* Heads, outputs and the search index are derived data. They can be rebuilt from the logs at any time.
* Any process may insert a request without the lease. Only the owner handles it, and a signal wakes the owner.
* A commit wakes the processes that wait for the store; they do not poll. A wake-up may be spurious or
  missing: a `Signal` returns after `RECHECK_S` at the latest.
* Steps claim project files before they change them, all files or none. Claims are valid as long as the lease
  under which they were made. A process that waits for a claim is woken like an owner for a request.
* Secrets are never stored. A store gets `clean` and applies it to everything. A caller that names content by
  its hash, or continues to use what it wrote, calls `clean` first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.errors import AuthorError, BugError, NotFoundError, WorldError
from fanfold.kernel.events import Envelope, Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.process_identity import ProcessIdentity

if TYPE_CHECKING:
    import asyncio

Clean: TypeAlias = Callable[[bytes], bytes]
"""Removes secrets from encoded JSON. Returns the same object if there are none."""


def as_it_is(data: bytes) -> bytes:
    """The `Clean` function for projects without secrets: returns `data` unchanged."""
    return data


Decode: TypeAlias = Callable[[bytes], Any]
"""Decodes the stored data of an event."""
as_json: Decode = msgspec.json.Decoder().decode


def as_stored(data: bytes) -> bytes:
    """The `Decode` function for callers that decode events themselves: returns `data` unchanged."""
    return data


LEASE_S = 15.0
"""Seconds until a lease expires if its owner does not renew it."""
PATIENCE_S = 60.0
"""An outage of a remote store of up to so many seconds ends neither drivers nor sessions."""
RECHECK_S = 2.0
"""A process that waits for the store checks it again after this time, even without a signal."""


class LeaseLost(WorldError):
    """This process no longer owns the run tree: nothing was written, and no effect may start."""


class SessionSuperseded(LeaseLost):
    """A later execution of the session has started: nothing was written, and this execution must stop."""


class LeaseHeld(WorldError):
    """The run tree has a live owner; `details` names its process."""


class StoreFault(WorldError):
    """The database or its disk cannot be used. This write stored nothing; acknowledged writes are safe."""


def superseded(session: str, execution: int, current: int) -> SessionSuperseded:
    """Return the error for an entry of an execution that another one has replaced."""
    return SessionSuperseded(
        "session.superseded",
        f"session {session} belongs to execution {current} of its step, and this is execution {execution}",
        hint="nothing was written; the later execution continues the session",
        details={"session": session, "execution": execution, "current": current},
    )


def check_of_session(batch: Batch) -> None:
    """Raise `BugError` if a batch without an epoch contains more than entries of sessions and blobs."""
    rest = (batch.heads, batch.outputs, batch.cache, batch.started, batch.requests_done, batch.unclaimed)
    if any(rest) or batch.requires or any(envelope.tree_seq for envelope in batch.envelopes):
        raise BugError("store.not_owner", f"only the owner of {batch.root} writes more than a session's log")


def closed() -> AuthorError:
    """Return the error for the use of a closed project."""
    hint = "use it inside of its `with` block, or open it again"
    return AuthorError("project.closed", "the project was closed", hint=hint)


def forked(process: int) -> AuthorError:
    """Return the error for a forked process that uses a project opened by its parent process."""
    message = f"the project was opened by process {process}, of which this one is a fork"
    hint = "open it again in this process; the parent process keeps its own"
    return AuthorError("project.forked", message, hint=hint)


def no_run(name: str) -> NotFoundError:
    """Return the error for a run that does not exist in this project."""
    hint = "fanfold runs lists those of this project"
    return NotFoundError("run.not_found", f"there is no run {name!r} here", hint=hint)


class RunHead(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The summary row of one run: lists show it without replaying the log."""

    run_id: str
    root_run_id: str
    parent_run_id: str | None = None
    nesting_depth: int = 0
    execution_path: str = ""
    recipe: str
    version: int
    status: str
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    inputs: str | None = None
    output: str | None = None
    error: Failure | None = None
    usage: Usage = Usage()
    agents: int = 0
    forked_from: str | None = None


DELETED = "deleted"
"""The status of the row that a deleted tree leaves among the outputs. Only its root is set."""


class OutputRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One finished step, as indexed by search. `blob` is the hash of its output."""

    run_id: str
    root_run_id: str
    path: str
    role: str = ""
    status: str = "completed"
    blob: str
    at: int


class Batch(Struct, frozen=True, kw_only=True):
    """The writes of one transaction for one run tree."""

    root: str
    epoch: int | None
    """The epoch of the tree's owner. None: the writer executes a step for the owner, and may be on another
    machine. It writes entries of sessions and blobs, and nothing else."""
    envelopes: Sequence[Envelope] = ()
    data: Sequence[bytes | None] = ()
    """The data of each envelope as JSON without secrets, if the owner has already encoded it."""
    blobs: Sequence[tuple[str, bytes]] = ()
    """(hash, content); a hash that is already stored is not stored again."""
    heads: Sequence[RunHead] = ()
    outputs: Sequence[OutputRow] = ()
    cache: Sequence[tuple[str, str, str]] = ()
    """(content key, blob, run id): completed cacheable steps."""
    started: Sequence[tuple[str, int]] = ()
    """(session id, execution): from this commit on, entries of earlier executions are refused."""
    requests_done: Sequence[int] = ()
    unclaimed: Sequence[tuple[str, str]] = ()
    """(run id, path) of steps that release their claims."""
    requires: str = ""
    """The root of a tree that this batch refers to. If that tree is no longer stored, nothing is written."""
    state: bytes = b""
    """A short hash of the kernel's state after these events; `Store.commits` returns it."""


class Commit(Struct, frozen=True):
    """The events that one batch added to the logs of a tree, and the hash of the resulting state."""

    envelopes: Sequence[Envelope]
    state: bytes
    entries: Sequence[Envelope] = ()
    """The entries of the tree's sessions since the previous commit."""


class Damage(Struct, frozen=True):
    """A difference between the stored data and the data that was written."""

    root: str
    """The root of the damaged tree; empty if unknown."""
    message: str


class Lease(Struct, frozen=True):
    root: str
    owner: ProcessIdentity
    epoch: int
    lived_ms: int | None = None
    """How long the previous owner is known to have lived, if it did not release its lease; otherwise None."""


class Request(Struct, frozen=True, kw_only=True):
    """An action that a process requests of a run it does not own: approve, reject, cancel, pause, input."""

    root: str
    run_id: str
    kind: str
    data: dict[str, Any]
    at: int
    id: int = 0


class Claim(Struct, frozen=True):
    """Project files that a step changes."""

    root: str
    run_id: str
    step: str
    """The path of the step in its run."""
    patterns: tuple[str, ...]


class Health(Struct, frozen=True):
    """The result of a check of a store; `problems` is empty if there is no damage."""

    place: str
    bytes: int
    version: int
    problems: tuple[str, ...]
    hint: str = ""


class Announcement(Struct, frozen=True):
    """What a process of the project announced to the others about itself, and when."""

    name: str
    text: str
    age_ms: int


class Signal(Protocol):
    """A subscription of one waiter. Create it, read the store, wait, read again: no change is missed.

    Both wait methods return True when the store should be read again: a signal arrived since they last
    returned True, or `RECHECK_S` passed. They return False if `timeout_s` passed before that.
    """

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait in a task of an event loop."""
        ...

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """Wait in a separate thread, or in a command without an event loop."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def patience(timeout_s: float | None) -> tuple[float, bool]:
    """Return how long a signal waits, and its result if nothing arrives."""
    return (RECHECK_S, True) if timeout_s is None or timeout_s > RECHECK_S else (timeout_s, False)


def resolve(heard: asyncio.Future[None]) -> None:
    """Wake the task that waits for this future."""
    if not heard.done():
        heard.set_result(None)


class Store(Protocol):
    """The store of one project. Methods are synchronous and fast; call them from the owning thread."""

    clean: Clean
    read_only: bool
    """Whether this store was opened read-only, or can only be opened read-only."""

    def write(self, batches: Sequence[Batch]) -> None:
        """Append all or nothing, durably. Raises `LeaseLost`, `StoreFault` or `NotFoundError`."""

    is_remote: bool
    """Whether a commit travels to a server. Then the driver of a run awaits `submit` instead of `write`."""

    def submit(self, batches: Sequence[Batch]) -> Awaitable[None]:
        """Start a write, stored in the order of calls. Await it once; it raises as `write` does."""
        ...

    def tree(self, root: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        """Iterate over the events of a run tree in order of replay; `decode` decodes their `data`."""
        ...

    def reach(self, root: str) -> int:
        """Return the `tree_seq` of the last event of a tree; 0 if there is none."""
        ...

    def commits(self, root: str) -> Iterator[Commit]:
        """Iterate over the commits of a run tree in order of replay; `data` is as stored."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Inside this block, all reads of this thread see the same state of the store."""
        ...

    def unkeyed(self, root: str) -> int:
        """Count the first events of a tree that are not bound to the user's secret.

        They were written before there was a key, or by another user whose state was adopted. `check` finds
        only accidental changes in them.
        """
        ...

    def check(self, root: str | None = None) -> list[Damage]:
        """Find rows that were changed, removed or reordered, in one tree or in the whole store."""
        ...

    def log(self, log: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        """Iterate over the events of one run's or session's log; `decode` decodes their `data`."""
        ...

    def blob(self, hash: str) -> bytes:
        """Return content by its hash; raises `NotFoundError`."""
        ...

    def has_blob(self, hash: str) -> bool: ...

    def absent_blobs(self, hashes: Sequence[str]) -> list[str]:
        """Return the hashes that are not stored."""
        ...

    def roots(self) -> list[str]:
        """Return every tree with stored data, readable or not, newest first."""
        ...

    def head(self, run_id: str) -> RunHead | None: ...

    def heads(
        self,
        *,
        roots_only: bool = True,
        status: str | None = None,
        recipe: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunHead]:
        """Return runs, newest first; only older than `before`, and without limit for -1."""
        ...

    def children(self, run_id: str) -> list[RunHead]:
        """Return the child runs in order of creation."""
        ...

    def tree_heads(self, root: str) -> list[RunHead]:
        """Return the root and all its descendants in order of creation."""
        ...

    def resolve(self, prefix: str) -> str:
        """Return the run id for a unique prefix or `last`; raises `NotFoundError` or `AuthorError`."""
        ...

    def cached(self, key: str) -> str | None:
        """Return the blob of a completed cacheable step with this content key."""
        ...

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        """Acquire the lease of a run tree with a new epoch, by default for this process.

        Raises `LeaseHeld` while the tree has a live owner. The store renews a lease of this process until it
        is released or the store is closed.
        """
        ...

    def confirm(self, lease: Lease) -> None:
        """Return if the lease is live at this moment; raise `LeaseLost` otherwise.

        Called right before every effect, from any thread. It reads a clock, and the store only if the lease
        was not renewed in time.
        """

    def owner(self, root: str) -> tuple[ProcessIdentity, bool] | None:
        """Return the owner of the lease, and whether the lease is live.

        A live lease has not expired by the clock of the store, and its process is not known to be dead. Only
        a process of this machine can be known to be dead.
        """
        ...

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch, by the clock that all processes of the store share."""
        ...

    def heartbeat_age_ms(self, root: str) -> int | None:
        """Return the milliseconds since the owner's last heartbeat; None if the lease has no owner."""
        ...

    def release(self, lease: Lease) -> None: ...

    def claim(self, lease: Lease, claim: Claim) -> Claim | None:
        """Claim all files for a step, or queue the claim and return the claim of another tree that blocks it.

        Raises `LeaseLost`. Call it again for a queued claim when the owner is woken (`listen`). A claim ends
        with `Batch.unclaimed`, or with the lease.
        """
        ...

    def blocker(self, claim: Claim) -> Claim | None:
        """Return the claim of another tree with a live owner that blocks this claim. Changes nothing."""
        ...

    def claims_beside(self, root: str) -> list[Claim]:
        """Return claims that other trees hold, or released while any claim was held."""
        ...

    def request(self, request: Request) -> int:
        """Insert a request durably, wake the owner of the tree, and return the request's id."""
        ...

    def requests(self, root: str) -> list[Request]:
        """Return the unhandled requests, oldest first."""
        ...

    def listen(self, root: str) -> Signal:
        """Return a signal for the owner of a tree: woken by requests, and when other trees release claims."""
        ...

    def follow(self, root: str | None = None) -> Signal:
        """Return a signal for any process: woken when a tree gets a commit, or gets or loses its owner.

        Without a root, it covers all current and future trees. A killed owner gives no signal: followers find
        out when they check again.
        """
        ...

    def publish(self, root: str, update: str) -> None:
        """Send a short text to the processes that hear the `updates` of a tree now. It is stored nowhere."""

    def updates(self, root: str, heard: Callable[[str], None], /) -> AbstractContextManager[object]:
        """Inside this block, `heard` is called in another thread with published texts; some may be lost."""
        ...

    def announce(self, name: str, text: str) -> None:
        """Replace what is announced under a name, and its time; an empty text withdraws it."""
        ...

    def announced(self) -> list[Announcement]:
        """Return all announcements, by name. A process that died leaves its last one."""
        ...

    def output_rows(
        self, after: int = 0, limit: int = 1_000, root: str | None = None
    ) -> list[tuple[int, OutputRow]]:
        """Return outputs in order of arrival with their running number; the search index reads from it."""
        ...

    def ends(self) -> dict[str, int]:
        """Return the position of each tree's last row; it grows with every event and session entry."""
        ...

    def rows_after(self, root: str, place: int) -> Iterator[tuple[int, Envelope]]:
        """Iterate over events and session entries after a position; the path of an entry is its step's."""
        ...

    def delete_tree(self, root: str) -> None:
        """Delete a run tree and the blobs that no other tree refers to."""

    def close(self) -> None: ...


class StoreAddress(Protocol):
    """The location of a project's store, which may not exist yet. Queries create and change nothing."""

    def exists(self) -> bool:
        """Return whether the store contains data."""
        ...

    def open(self) -> Store:
        """Open the store; create it if it is missing."""
        ...

    def open_to_read(self) -> Store:
        """Open the existing store read-only; raises `NotFoundError` if there is none."""
        ...

    def examine(self) -> Health | None:
        """Check the store for damage; None if there is no store."""
        ...

    def engine(self) -> str:
        """Return the name and the version of the database engine."""
        ...


# -----------------------------------------------------------------------------------------------------------
# Values by hash: each is encoded once, stored, and cached for some time
#
# `put` does not write. New blobs wait in `fresh` until the decision that refers to them is committed, in the
# same transaction as its events. So an event never refers to a missing value. Secrets are removed before a
# value is hashed, and `get` returns the stored value.

REMEMBERED = 2_000
REMEMBERED_BYTES = 16 * 1024 * 1024
"""The maximum size of all cached values, as stored. The value used last is cached at any size, so that a loop
over a long list does not read the list again for every item."""
LARGE_BYTES = 8 * 1024
"""A larger text is stored once, even if it is repeated."""
_encoder = msgspec.json.Encoder()


class Blobs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, tuple[JSON, int]] = OrderedDict()
        self._known_bytes = 0
        self.fresh: list[tuple[str, bytes]] = []
        """Values that the next batch writes."""
        self._last: tuple[JSON, str] = (None, "")
        self._texts: dict[int, str] = {}
        """The hashes of cached large texts, by the `id` of the text object."""

    def put(self, value: JSON) -> str:
        """Add a JSON value to the next batch, unless it is known, and return its hash."""
        last, name = self._last
        if value is last and isinstance(value, str):
            return name  # a step often returns the same text object as its session
        content = _encoder.encode(value)
        clean = self._store.clean(content)
        if clean is not content:
            content, value = clean, msgspec.json.decode(clean)
        name = _name(content)
        if name not in self._known:
            self.fresh.append((name, content))
            self._remember(name, value, len(content))
        self._last = (value, name)
        return name

    def adopt(self, name: str) -> bool:
        """Write the value of another run with the next commit; return False if it no longer exists."""
        try:
            content = self._store.blob(name)
        except NotFoundError:
            return False
        self.fresh.append((name, content))
        return True

    def put_encoded(self, content: bytes) -> str:
        """Add a value that is already JSON without secrets, and return its hash. The value is not cached."""
        name = _name(content)
        self.fresh.append((name, content))
        return name

    def name_of(self, text: str) -> str | None:
        """Return the hash of this very text object if it is large and cached, else None."""
        return self._texts.get(id(text))

    def get(self, name: str) -> JSON:
        """Return the value of a hash. Treat it as read-only: it is shared."""
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name][0]
        for fresh, content in self.fresh:
            if fresh == name:
                return msgspec.json.decode(content)
        content = self._store.blob(name)
        value = msgspec.json.decode(content)
        self._remember(name, value, len(content))
        return value

    def read_from(self, store: Store) -> None:
        """Read from another `Store` object of the same store from now on."""
        self._store = store

    def take_fresh(self) -> list[tuple[str, bytes]]:
        taken, self.fresh = self.fresh, []
        return taken

    def _remember(self, name: str, value: JSON, size: int) -> None:
        self._known[name] = (value, size)
        self._known_bytes += size
        if size > LARGE_BYTES and isinstance(value, str):
            self._texts[id(value)] = name
        while len(self._known) > 1 and (
            len(self._known) > REMEMBERED or self._known_bytes > REMEMBERED_BYTES
        ):
            _, (value, gone) = self._known.popitem(last=False)
            self._known_bytes -= gone
            self._texts.pop(id(value), None)


def _name(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


SESSION_LINK_BYTES = 12


def session_link(before: bytes, session: str, seq: int, at: int, execution: int, data: bytes) -> bytes:
    """Return the link of a session's own chain after `before`; `data` is the entry as it is stored.

    The chain is plain, so that a worker without the user's secret can continue it. The event that ends the
    step names its last link, and the chain of the tree protects that event.
    """
    digest = blake2b(before, digest_size=SESSION_LINK_BYTES)
    digest.update(msgspec.msgpack.encode((session, seq, at, execution, data)))
    return digest.digest()
