"""What every store offers, whatever database is behind it.

Rules
* A log is append-only; `seq` runs 1..n in each log and `tree_seq` 1..n over the logs of a run tree.
* `write` is one transaction for everything one or more decisions made: events, blobs, heads. When it
  returns, all of it survives a power cut; when it raises, none of it happened.
* Each batch carries its tree's lease epoch and is refused (`LeaseLost`) when a newer owner exists. An effect
  begins after `confirm`.
* Heads, outputs and the search index are derived: convenient to query, rebuilt from the logs at will.
* Any process may insert a request without holding the lease; only the owner acts on it, and is woken for it.
* Whoever waits for something in the store is woken by a commit, not by looking again and again. A wake-up may
  come for nothing, and none is needed: a `Signal` says "look" after `RECHECK_S` at the latest.
* What steps change in the project itself they claim first, all of it or nothing. Claims live as long as the
  lease they were made under, and whoever waits for one is woken as an owner is for a request.
* Secrets are never stored. A store is given `clean` and passes everything through it; who names content by
  its hash, or goes on working with what it wrote, asks `clean` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.events import Envelope, Failure, Usage
from fanfold.process_identity import ProcessIdentity

Clean: TypeAlias = Callable[[bytes], bytes]
"""Takes secrets out of encoded JSON; what holds none comes back as the same object."""


def as_it_is(data: bytes) -> bytes:
    """`Clean` where there are no secrets."""
    return data


Decode: TypeAlias = Callable[[bytes], Any]
"""Reads what an event was written as."""
as_json: Decode = msgspec.json.Decoder().decode
LEASE_S = 15.0
"""How long a lease lives that its owner does not renew."""
RECHECK_S = 2.0
"""Who waits for the store looks again after this long, whether woken or not."""


class LeaseLost(WorldError):
    """This process does not own the run tree any more: nothing was written, and no effect may begin."""


class LeaseHeld(WorldError):
    """The run tree has a live owner; `details` names its process."""


class StoreFault(WorldError):
    """The disk is full or failing. Nothing of the write happened; what was acknowledged is safe."""


def closed() -> AuthorError:
    """What to say to whoever uses a project that was left."""
    hint = "use it inside of its `with` block, or open it again"
    return AuthorError("project.closed", "the project was closed", hint=hint)


def forked(process: int) -> AuthorError:
    """What to say to a fork that uses what another process opened."""
    message = f"the project was opened by process {process}, of which this one is a fork"
    hint = "open it again in this process; what was opened before the fork stays with the other"
    return AuthorError("project.forked", message, hint=hint)


def no_run(name: str) -> NotFoundError:
    """What to say to whoever means a run that is not here."""
    hint = "fanfold runs lists those of this project"
    return NotFoundError("run.not_found", f"there is no run {name!r} here", hint=hint)


class RunHead(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The row of one run: what lists show without folding its log."""

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
"""Status of the row that a deleted tree leaves among the outputs, with nothing else but its root."""


class OutputRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One finished step, as search finds it. `blob` is the hash of its output."""

    run_id: str
    root_run_id: str
    path: str
    role: str = ""
    status: str = "completed"
    blob: str
    at: int


class Batch(Struct, frozen=True, kw_only=True):
    """What one transaction writes for one run tree (or, with `root` = session id, for a session)."""

    root: str
    epoch: int
    envelopes: Sequence[Envelope] = ()
    data: Sequence[bytes | None] = ()
    """Of each envelope as JSON without secrets, where its owner had to make that anyway."""
    blobs: Sequence[tuple[str, bytes]] = ()
    """(hash, content); a hash already stored is not stored again."""
    heads: Sequence[RunHead] = ()
    outputs: Sequence[OutputRow] = ()
    cache: Sequence[tuple[str, str, str]] = ()
    """(content key, blob, run id): completed cacheable steps."""
    requests_done: Sequence[int] = ()
    unclaimed: Sequence[tuple[str, str]] = ()
    """(run id, path) of steps that give back what they claimed."""
    state: bytes = b""
    """A short hash of the kernel's state after these events; `Store.commits` gives it back."""


class Commit(Struct, frozen=True):
    """What one batch added to the logs of a tree's runs, and the hash of the state that this led to."""

    envelopes: Sequence[Envelope]
    state: bytes


class Damage(Struct, frozen=True):
    """Something stored that is not as it was written."""

    root: str
    """The tree it belongs to; empty when it belongs to none that is known."""
    message: str


class Lease(Struct, frozen=True):
    root: str
    owner: ProcessIdentity
    epoch: int
    lived_ms: int | None = None
    """How long the owner before, which did not give it back, is known to have lived; None when it did."""


class Request(Struct, frozen=True, kw_only=True):
    """Something a process asks of a run it does not own: approve, reject, cancel, pause, input."""

    root: str
    run_id: str
    kind: str
    data: dict[str, Any]
    at: int
    id: int = 0


class Claim(Struct, frozen=True):
    """Files of the project itself that a step changes."""

    root: str
    run_id: str
    step: str
    """Its path in that run."""
    patterns: tuple[str, ...]


class Health(Struct, frozen=True):
    """What an examination of a store found; `problems` is empty for one that is sound."""

    place: str
    bytes: int
    version: int
    problems: tuple[str, ...]


class Signal(Protocol):
    """What one waiter has heard. Make it, look into the store, wait, look again: nothing is missed.

    Both ways of waiting answer True when it is time to look: something happened since they last answered so,
    or `RECHECK_S` passed. They answer False when `timeout_s` passed before that.
    """

    async def wait(self, timeout_s: float | None = None) -> bool:
        """For a task of an event loop."""
        ...

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """For a thread of its own, or a command without an event loop."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Store(Protocol):
    """One project's memory. Methods are synchronous and quick; call them from the owning thread."""

    clean: Clean
    read_only: bool
    """Whether this store was opened, or can only be opened, to look at what is there."""

    def write(self, batches: Sequence[Batch]) -> None:
        """Append atomically and durably. Raises `LeaseLost` or `StoreFault`; then nothing was written."""
        ...

    def tree(self, root: str, after: int = 0) -> Iterator[Envelope]:
        """The events of a run tree in order of replay, `data` as plain JSON values."""
        ...

    def reach(self, root: str) -> int:
        """The `tree_seq` of the last event of a tree; 0 where there is none."""
        ...

    def commits(self, root: str) -> Iterator[Commit]:
        """The events of a run tree as they were committed, in order of replay."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Inside it, everything that this thread reads is as it was at one moment."""
        ...

    def check(self, root: str | None = None) -> list[Damage]:
        """Find what is not as it was written, in one tree or anywhere: rows changed, removed, reordered.

        Each commit carries the hash of all before it, so nothing in the middle of a log changes unseen.
        """
        ...

    def log(self, log: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        """The events of one run's or session's log; `data` is what `decode` makes of what was written."""
        ...

    def blob(self, hash: str) -> bytes:
        """Content by hash; raises `NotFoundError`."""
        ...

    def has_blob(self, hash: str) -> bool: ...

    def roots(self) -> list[str]:
        """Every tree that anything is stored of, readable or not, newest first."""
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
        """Newest first; a limit of -1 is none. `before`: only those that are older than this run."""
        ...

    def children(self, run_id: str) -> list[RunHead]:
        """Child runs in order of creation."""
        ...

    def tree_heads(self, root: str) -> list[RunHead]:
        """The root and all its descendants in order of creation."""
        ...

    def resolve(self, prefix: str) -> str:
        """A run id from a unique prefix or `last`; raises `NotFoundError` or, for several, `AuthorError`."""
        ...

    def cached(self, key: str) -> str | None:
        """Blob of a completed cacheable step with this content key."""
        ...

    def acquire(self, root: str, owner: ProcessIdentity | None = None) -> Lease:
        """Own a run tree: a new epoch, for this process unless told. Raises `LeaseHeld` while it is owned.

        The store keeps this process's lease alive until it is given back or the store is closed.
        """
        ...

    def confirm(self, lease: Lease) -> None:
        """Return when the lease is live at this moment; raises `LeaseLost` when it is not.

        Asked right before every effect, from any thread: it looks at a clock, and into the store only when
        the lease was not renewed in time.
        """
        ...

    def owner(self, root: str) -> tuple[ProcessIdentity, bool] | None:
        """Who holds the lease, and whether it is live: neither did it run out, nor is that process dead."""
        ...

    def heartbeat_age_ms(self, root: str) -> int | None:
        """How long ago the holder of the lease gave a sign of life; None: nobody holds it."""
        ...

    def release(self, lease: Lease) -> None: ...

    def claim(self, lease: Lease, claim: Claim) -> Claim | None:
        """Claim all of it for a step, or stand in line and learn which other tree's claim is in the way.

        Raises `LeaseLost`. A claim that somebody stands in line for is asked for again when the owner is
        woken (`listen`); it ends with `Batch.unclaimed`, or with the lease.
        """
        ...

    def blocker(self, claim: Claim) -> Claim | None:
        """The claim of another tree with a live owner that is in the way of this one. Changes nothing."""
        ...

    def claims_beside(self, root: str) -> list[Claim]:
        """What other trees hold, or gave back while somebody held a claim. Whoever holds one learns so what
        else was changed meanwhile, and by whom.
        """
        ...

    def request(self, request: Request) -> int:
        """Insert a request durably and wake the owner of the tree; its id."""
        ...

    def requests(self, root: str) -> list[Request]:
        """Requests nobody has acted on, oldest first."""
        ...

    def listen(self, root: str) -> Signal:
        """For the owner of a tree: woken by requests to it, and when others gave back what they claimed."""
        ...

    def follow(self, root: str | None = None) -> Signal:
        """For anybody: woken when the owner of a tree commits, and when the tree gets or loses its owner;
        without a root, for every tree there is or will be.

        An owner that was killed cannot say so: followers find out when they look again.
        """
        ...

    def output_rows(
        self, after: int = 0, limit: int = 1_000, root: str | None = None
    ) -> list[tuple[int, OutputRow]]:
        """Outputs in order of arrival with their running number; what the search index catches up from."""
        ...

    def delete_tree(self, root: str) -> None:
        """Forget a run tree and the blobs nobody else refers to."""
        ...

    def close(self) -> None: ...


class StoreAddress(Protocol):
    """Where a project's store is, or will be. Asking about it makes and changes nothing."""

    def exists(self) -> bool:
        """Whether anything was ever stored there."""
        ...

    def open(self) -> Store:
        """The store, made when it is missing."""
        ...

    def open_to_read(self) -> Store:
        """The store as it is, for looking only; raises `NotFoundError` when there is none."""
        ...

    def examine(self) -> Health | None:
        """Look for damage; None when there is no store."""
        ...

    def engine(self) -> str:
        """What keeps the data, with its version."""
        ...
