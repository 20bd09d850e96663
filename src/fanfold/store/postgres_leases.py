"""Leases, claims, requests and signals of a PostgreSQL store.

Rules
* The clock of the server decides when a lease expires, for the processes of all machines.
* Acquiring and releasing a lease wait for the commits of its tree that are in progress. So a commit of an
  earlier owner is stored before the next owner reads the log, or it is refused.
* Claims of a project are made one after another: each runs under the lock (project, CLAIMS).
* An operation whose result was lost is repeated. Those that must not happen twice carry a random name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.store import leases
from fanfold.store.leases import Holder, Renewal, boot_clock_ms
from fanfold.store.postgres_connections import (
    BUCKETS,
    Database,
    PostgresConnections,
    PostgresSignal,
    channel_of,
)
from fanfold.store.postgres_tables import CLAIMS
from fanfold.store.protocol import Claim, Clean, Lease, LeaseLost, Request, Signal, StoreFault

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
MAX_UPDATE_CHARS = 1_900
"""PostgreSQL delivers up to 8,000 bytes at once, and a character has up to four. Longer texts are lost."""
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
            raise StoreFault("store.read_only", "this store was opened to read", hint="open it to write")

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
        found = self._one("SELECT now_ms()")
        assert found is not None
        return int(found[0])

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
            db.execute(
                "UPDATE leases SET heartbeat_at = now_ms(), expires_at = now_ms() + %s"
                " FROM unnest(%s::text[], %s::integer[]) AS x(name, number)"
                " WHERE project = %s AND root = x.name AND epoch = x.number AND pid IS NOT NULL",
                (self._expiry_ms, [one.root for one in held], [one.epoch for one in held], self._project),
            )
            query = "SELECT root, epoch, pid IS NOT NULL FROM leases WHERE project = %s AND root = ANY(%s)"
            rows = db.execute(query, (self._project, [one.root for one in held])).fetchall()
            now = {root: (epoch, owned) for root, epoch, owned in rows}
            return {
                one: leases.lost(one.root, one.epoch, now.get(one.root, (0, False))[0])
                for one in held
                if now.get(one.root) != (one.epoch, True)
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
            db.execute(
                "DELETE FROM claims"
                " WHERE project = %s AND root = %s AND run_id = %s AND step = %s AND held = 2",
                name,
            )
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

        own = (
            "SELECT id FROM claims"
            " WHERE project = %s AND root = %s AND run_id = %s AND step = %s AND held < 2"
        )
        place = db.execute(own, (self._project, claim.root, claim.run_id, claim.step)).fetchone()
        others = (
            "SELECT id, root, run_id, step, patterns, held FROM claims"
            " WHERE project = %s AND root <> %s AND held < 2 ORDER BY held DESC, id"
        )
        for row in db.execute(others, (self._project, claim.root)).fetchall():
            other = leases.claim_of(row)
            ahead = row[5] == leases.HELD or place is None or row[0] < place[0]
            if ahead and overlaps(claim.patterns, other.patterns):
                holder = self._holder(db, other.root)[2]
                if holder is not None and holder.is_alive():
                    return other
        return None

    def blocker(self, claim: Claim) -> Claim | None:
        return self._connections.run(lambda db: self._find_blocker(db, claim))

    def claims_beside(self, root: str) -> list[Claim]:
        query = (
            "SELECT id, root, run_id, step, patterns, held FROM claims"
            " WHERE project = %s AND root <> %s AND held > 0 ORDER BY id"
        )
        return [leases.claim_of(row) for row in self._all(query, self._project, root)]

    # ------------------------------------------------------------------------ requests and signals

    def request(self, request: Request) -> int:
        data, nonce = self.clean(_encode(request.data)).decode(), token_hex(8)

        def insert(db: Database) -> int:
            found = db.execute(
                "INSERT INTO requests (project, root, run_id, kind, data, at, nonce)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (nonce) DO UPDATE SET at = excluded.at RETURNING id",
                (self._project, request.root, request.run_id, request.kind, data, request.at, nonce),
            ).fetchone()
            assert found is not None
            return int(found[0])

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
            text = f"{topic} {root}"
            return self._connections.signals.listen(
                [channel_of(self._project, root)], lambda one: one == text
            )
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
