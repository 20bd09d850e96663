"""The store of a project in a PostgreSQL database, for processes on several machines.

Rules
* A commit is one call of a function of the database: one round trip, one transaction. Signals follow it.
* A commit whose result did not arrive is in doubt. It is looked up by its numbers and its chain; only if it
  is not there, it is sent again. So a commit is stored once, however often the connection breaks.
* Reads are repeated after an outage. So are changes that are safe to repeat; the others carry a random name
  under which the repetition finds them.
* The clock of the server decides about leases and is the clock of the store.
* Rows have no seals and links are plain, because the secret of a user is on one machine. Access to the
  database protects the rows; `check` finds accidental changes, and changes that did not adapt the chain.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from hashlib import blake2b
from itertools import repeat
from typing import Any, TypeVar

import msgspec
import psycopg

from fanfold.errors import BugError, NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.process_identity import this_process
from fanfold.store import leases, tables
from fanfold.store.postgres_connections import (
    Database,
    PostgresLeases,
    shown,
)
from fanfold.store.postgres_tables import (
    COLLECTION,
    GAP,
    LOST,
    NO_TREE,
    SHIFT,
    SUPERSEDED,
    require_version,
    version,
)
from fanfold.store.protocol import (
    DELETED,
    LEASE_S,
    PATIENCE_S,
    Announcement,
    Batch,
    Clean,
    Commit,
    Damage,
    Decode,
    OutputRow,
    RunHead,
    StoreFault,
    as_it_is,
    as_json,
    as_stored,
    check_of_session,
    no_run,
    superseded,
)
from fanfold.store.sealing import LINK_BYTES, breaks, link, state_of

T = TypeVar("T")
CHUNK = 1_000
HEAD_COLUMNS = ", ".join(tables.HEAD_NAMES)
HELD_BACK_S, LOOK_S = 0.5, 0.005
"""How long a reader waits for outputs of transactions that are about to become visible, and how often."""
NEAR_S = 0.0005
_encode = msgspec.json.Encoder().encode
_ROW = "root, place, tree_seq, log, session, seq, at, type, epoch, path, data, chain"
_SETTLED = f"place < (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << {SHIFT})"


class PostgresStore(PostgresLeases):
    """The store of one project, as `Store` describes it; `project` is its name in the database."""

    is_remote = True

    def __init__(
        self,
        url: str,
        project: str,
        *,
        clean: Clean = as_it_is,
        read_only: bool = False,
        expiry_s: float = LEASE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(url, expiry_s, patience_s)
        self.clean = clean
        self.read_only = read_only
        self._url = url
        self._is_near = False
        """Whether the server answers faster than another thread would."""
        self._writes = threading.Lock()
        self._writer: ThreadPoolExecutor | None = None
        try:
            self._project = self._connections.run(lambda db: self._open(db, project))
        except BaseException:
            self._connections.close()
            raise

    def _open(self, db: Database, name: str) -> int:
        require_version(version(db), shown(self._url))
        find = "SELECT id FROM projects WHERE name = %s"
        found = db.execute(find, (name,)).fetchone()
        if found is None and self.read_only:
            raise NotFoundError("run.not_found", f"nothing has run in the project {name} yet")
        if found is None:
            db.execute("INSERT INTO projects (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", (name,))
            found = db.execute(find, (name,)).fetchone()
        assert found is not None
        for _ in range(3):
            began = time.monotonic()
            db.execute("SELECT 1")
            self._is_near = self._is_near or time.monotonic() - began < NEAR_S
        return int(found[0])

    # ------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Batch]) -> None:
        if self._writer is not None:  # after everything that was submitted
            self._writer.submit(self._write_now, batches).result()
        else:
            self._write_now(batches)

    def _write_now(
        self, batches: Sequence[Batch], patience_s: float | None = None, is_repeated: bool = False
    ) -> None:
        self._check_writable()
        with self._writes:
            freed = self._write(batches, patience_s, is_repeated)
        for batch in batches:
            self._signal("commits", batch.root)
        self._wake(freed)

    def submit(self, batches: Sequence[Batch]) -> Awaitable[None]:
        """Write, in the thread of the writer if that takes long; see `Store.submit`.

        A server that answers within `NEAR_S` is written at once, because a change of threads takes as long.
        In an outage the writer waits, not the event loop.
        """
        is_repeated = False
        if self._is_near:
            try:
                self._write_now(batches, patience_s=0)
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                done.set_result(None)
                return done
            except StoreFault as fault:
                if fault.code != "store.unreachable":
                    raise
                is_repeated = True
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "fanfold writer")
        return asyncio.get_running_loop().run_in_executor(
            self._writer, self._write_now, batches, None, is_repeated
        )

    def _write(
        self, batches: Sequence[Batch], patience_s: float | None = None, is_repeated: bool = False
    ) -> list[str]:
        calls: list[tuple[int, bytes, list[bytes]]] = []
        ends: dict[str, tuple[int, bytes]] = {}
        first = 0
        for batch in batches:
            document, raw = self._document(batch, first, ends)
            calls.append((self._project, _encode(document), raw))
            first += max(len(batch.envelopes), len(batch.outputs))
        try:
            freed = self._connections.run(
                lambda db: _call(db, calls),
                lambda: [] if self._is_stored(batches, ends) else None,
                patience_s=patience_s,
                is_repeated=is_repeated,
            )
        except (StoreFault, BugError) as error:
            self._ends.clear()
            cause = error.__cause__
            raise (
                self._refusal(batches, cause) if isinstance(cause, psycopg.Error) else error
            ) or error from None
        except BaseException:
            self._ends.clear()
            raise
        if len(self._ends) > CHUNK:
            self._ends.clear()
        self._ends |= ends
        return freed

    def _refusal(self, batches: Sequence[Batch], error: psycopg.Error) -> Exception | None:
        """Return the error for a commit that the database refused; None for any other reason."""
        text = error.diag.message_primary or ""
        if error.sqlstate == LOST:
            stale = next(batch for batch in batches if batch.epoch is not None)
            return leases.lost(stale.root, stale.epoch or 0, int(text))
        if error.sqlstate == SUPERSEDED:
            session, execution, current = text.split()
            return superseded(session, int(execution), int(current))
        if error.sqlstate == NO_TREE:
            return no_run(text)
        if error.sqlstate == GAP:
            return BugError("log.gap", f"{text}, so the batch does not follow it")
        return None

    def _is_stored(self, batches: Sequence[Batch], ends: dict[str, tuple[int, bytes]]) -> bool:
        """Whether a commit in doubt is in the database: its last rows are, with our link or our data."""
        for batch in batches:
            events = [envelope for envelope in batch.envelopes if envelope.tree_seq]
            if events:
                query = "SELECT chain FROM events WHERE project = %s AND log = %s AND seq = %s"
                last = events[-1]
                found = self._one(f"{query} AND session IS NULL", self._project, last.log, last.seq)
                return found is not None and bytes(found[0] or b"")[:LINK_BYTES] == ends[batch.root][1]
            if batch.envelopes:
                entry = batch.envelopes[-1]
                query = "SELECT at, epoch FROM events WHERE project = %s AND session = %s AND seq = %s"
                return self._one(query, self._project, entry.log, entry.seq) == (entry.at, entry.epoch)
        return False  # without events or entries, a repetition writes the same again

    def _document(
        self, batch: Batch, first: int, ends: dict[str, tuple[int, bytes]]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return a batch as `fanfold.commit` reads it, and the blobs that are not text."""
        if batch.epoch is None:
            check_of_session(batch)
        document: dict[str, Any] = {"root": batch.root, "epoch": batch.epoch, "requires": batch.requires}
        if first:
            document["first"] = first
        raw: list[bytes] = []
        if batch.envelopes:
            self._add_rows(document, batch, ends)
        for name, content in batch.blobs:
            self._add_blob(document, name, content, raw)
        if batch.outputs:
            document["outputs"] = batch.outputs
        if batch.heads:
            rows = {head.run_id: tables.head_row(head) for head in batch.heads}
            document["heads"] = [dict(zip(tables.HEAD_NAMES, row, strict=True)) for row in rows.values()]
        if batch.cache:
            found = {key: {"key": key, "blob": blob, "run_id": run} for key, blob, run in batch.cache}
            document["cache"] = list(found.values())
        if batch.started:
            document["started"] = [{"session": one, "execution": number} for one, number in batch.started]
        if batch.requests_done:
            document["done"] = batch.requests_done
        if batch.unclaimed:
            document["unclaimed"] = [{"run_id": run, "step": step} for run, step in batch.unclaimed]
        return document, raw

    def _add_blob(self, document: dict[str, Any], name: str, content: bytes, raw: list[bytes]) -> None:
        if self.clean(content) is not content:
            raise BugError("store.secret", f"the content of {name} contains a secret and is not stored")
        try:
            document.setdefault("blobs", []).append({"hash": name, "content": content.decode()})
        except UnicodeDecodeError:
            raw.append(content)
            document.setdefault("raw", []).append({"hash": name, "n": len(raw)})

    def _add_rows(self, document: dict[str, Any], batch: Batch, ends: dict[str, tuple[int, bytes]]) -> None:
        rows: list[dict[str, Any]] = []
        events: list[tuple[Any, ...]] = []
        logs: dict[str, int] = {}
        sessions: dict[str, tuple[int, int]] = {}
        fresh: dict[str, dict[str, Any]] = {}
        lasts: dict[str, int] = {}
        place = 0
        for one, known in zip(batch.envelopes, batch.data or repeat(None)):  # noqa: B905 - or none at all
            if one.root_run_id != batch.root:
                raise BugError("log.two_trees", "the events of one batch belong to two trees")
            data = self.clean(_encode(one.data)) if known is None else known
            if one.tree_seq:
                if place and one.tree_seq != place + 1:
                    raise BugError("log.gap", f"{one.log} does not continue after {place}")
                place = one.tree_seq
                document.setdefault("tree_seq", place)
                logs.setdefault(one.log, one.seq)
                if one.seq == 1:
                    if one.tree_seq == 1 and one.log != batch.root:
                        raise BugError("log.no_root", f"{one.log} came before its root")
                    above = {"parent": one.parent_run_id, "depth": int(one.depth), "path": one.path}
                    fresh[one.log] = {"log": one.log, **above}
                events.append((one.tree_seq, one.log, one.seq, one.at, one.type, one.epoch, data))
            else:
                sessions.setdefault(one.log, (one.seq, one.epoch))
            key = one.log if one.tree_seq else f"{one.log} "
            if lasts.setdefault(key, one.seq - 1) != one.seq - 1:
                raise BugError("log.gap", f"{one.log} does not continue after {lasts[key]}")
            lasts[key] = one.seq
            rows.append(
                {
                    "tree_seq": one.tree_seq or None,
                    "log": one.run_id,
                    "session": None if one.tree_seq else one.log,
                    "seq": one.seq,
                    "at": one.at,
                    "type": one.type,
                    "epoch": one.epoch,
                    "path": None if one.tree_seq or one.seq > 1 else one.path,
                    "data": data.decode(),
                }
            )
        if events:
            # If the tree ends at another number, the database refuses the batch.
            _, before = ends.get(batch.root) or self._end_of(batch.root, events[0][0])
            made = link(before, batch.state, events)
            ends[batch.root] = place, made
            of_last = next(row for row in reversed(rows) if row["tree_seq"])
            of_last["chain"] = (made + batch.state).hex()
        document["rows"] = rows
        document["logs"] = [{"log": log, "seq": seq} for log, seq in logs.items()]
        if fresh:
            document["new"] = list(fresh.values())
        if sessions:
            rows = [{"log": log, "seq": seq, "epoch": epoch} for log, (seq, epoch) in sessions.items()]
            document["sessions"] = rows

    def _end_of(self, root: str, first: int) -> tuple[int, bytes]:
        """Return the number and the link of the last event before `first`."""
        known = self._ends.get(root)
        if known is not None and known[0] + 1 == first:
            return known
        query = "SELECT tree_seq, chain FROM events WHERE project = %s AND root = %s AND tree_seq < %s"
        found = self._one(f"{query} ORDER BY place DESC LIMIT 1", self._project, root, first)
        return (0, b"") if found is None else (found[0], bytes(found[1] or b"")[:LINK_BYTES])

    # ------------------------------------------------------------------------------------ reading

    def _places(self, root: str) -> dict[str, tuple[Any, ...]]:
        query = (
            "SELECT log, root_run_id, parent_run_id, depth, path FROM logs"
            " WHERE project = %s AND (log = %s OR root_run_id = %s)"
        )
        return {row[0]: row for row in self._all(query, self._project, root, root)}

    def _rows(self, where: str, order: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows in chunks; `where` contains `{last}`, the value of `order` to start after."""
        last = -1
        column = {"place": 1, "seq": 5}[order]
        query = (
            f"SELECT {_ROW} FROM events WHERE project = %s AND {where} AND {order} > %s"  # noqa: S608 - constants only
            f" ORDER BY {order} LIMIT {CHUNK}"
        )
        while True:
            rows = self._all(query, self._project, *values, last)
            yield from rows
            if len(rows) < CHUNK:
                return
            last = rows[-1][column]

    def tree(self, root: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        start = -1
        if after:
            query = "SELECT place FROM events WHERE project = %s AND root = %s AND tree_seq <= %s"
            found = self._one(f"{query} ORDER BY place DESC LIMIT 1", self._project, root, after)
            start = -1 if found is None else found[0]
        places: dict[str, tuple[Any, ...]] = {}
        for row in self._rows("root = %s AND session IS NULL AND place > %s", "place", root, start):
            if row[3] not in places:
                places = self._places(root)
            if row[3] not in places:
                return  # the run was deleted during the read
            yield _envelope(row, places[row[3]], decode)

    def reach(self, root: str) -> int:
        query = "SELECT tree_seq FROM events WHERE project = %s AND root = %s AND tree_seq IS NOT NULL"
        found = self._one(f"{query} ORDER BY place DESC LIMIT 1", self._project, root)
        return 0 if found is None else int(found[0])

    def commits(self, root: str) -> Iterator[Commit]:
        places = self._places(root)
        events: list[Envelope] = []
        entries: list[Envelope] = []
        steps: dict[str, str] = {}
        for row in self._rows("root = %s", "place", root):
            place = places.get(row[3]) or self._place_of_session(row)
            if row[4] is None:
                events.append(_envelope(row, place, as_stored))
                if row[11] is not None:
                    yield Commit(events, state_of(bytes(row[11])), entries)
                    events, entries = [], []
            else:
                steps.setdefault(row[4], row[9] or "")
                entries.append(_envelope(row, place, as_stored, steps[row[4]]))
        if events or entries:
            yield Commit(events, b"", entries)

    def _place_of_session(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the place of a session that came before any event of its run."""
        return row[3], row[0], None, 0, ""

    def log(self, log: str, after: int = 0, decode: Decode = as_json) -> Iterator[Envelope]:
        first = self._one(
            f"SELECT {_ROW} FROM events WHERE project = %s AND session = %s AND seq = 1",  # noqa: S608 - constants only
            *(self._project, log),
        )
        if first is not None:
            place = self._places(first[3]).get(first[3]) or self._place_of_session(first)
            for row in self._rows("session = %s AND seq > %s", "seq", log, after):
                yield _envelope(row, place, decode, first[9] or "")
            return
        of_run = self._places(log).get(log)
        if of_run is not None:
            for row in self._rows("log = %s AND session IS NULL AND seq > %s", "seq", log, after):
                yield _envelope(row, of_run, decode)

    def blob(self, hash: str) -> bytes:
        found = self._one("SELECT content FROM blobs WHERE project = %s AND hash = %s", self._project, hash)
        if found is None:
            raise NotFoundError("blob.not_found", f"the store has no blob {hash!r}")
        return bytes(found[0])

    def has_blob(self, hash: str) -> bool:
        return not self.absent_blobs([hash])

    def absent_blobs(self, hashes: Sequence[str]) -> list[str]:
        found = self._all(
            "SELECT hash FROM blobs WHERE project = %s AND hash = ANY(%s)", self._project, list(hashes)
        )
        stored = {name for (name,) in found}
        return [name for name in dict.fromkeys(hashes) if name not in stored]

    def roots(self) -> list[str]:
        logs = "SELECT log FROM logs WHERE project = %s AND log = root_run_id ORDER BY created DESC"
        runs = "SELECT run_id FROM runs WHERE project = %s AND run_id = root_run_id ORDER BY id DESC"
        rows = [*self._all(logs, self._project), *self._all(runs, self._project)]
        return list(dict.fromkeys(root for (root,) in rows))

    def _heads(self, rest: str, *values: Any) -> list[RunHead]:
        query = f"SELECT {HEAD_COLUMNS} FROM runs WHERE project = %s AND {rest}"  # noqa: S608 - constants only
        return [tables.head_of(row) for row in self._all(query, self._project, *values)]

    def head(self, run_id: str) -> RunHead | None:
        return next(iter(self._heads("run_id = %s", run_id)), None)

    def heads(
        self,
        *,
        roots_only: bool = True,
        status: str | None = None,
        recipe: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunHead]:
        where, values = ["true"], list[Any]()
        if roots_only:
            where.append("run_id = root_run_id")
        for name, value in (("status", status), ("recipe", recipe)):
            if value is not None:
                where.append(f"{name} = %s")
                values.append(value)
        if before is not None:
            where.append("id < (SELECT id FROM runs WHERE project = %s AND run_id = %s)")
            values += [self._project, before]
        return self._heads(
            f"{' AND '.join(where)} ORDER BY id DESC LIMIT %s", *values, None if limit < 0 else limit
        )

    def children(self, run_id: str) -> list[RunHead]:
        return self._heads("parent_run_id = %s ORDER BY id", run_id)

    def tree_heads(self, root: str) -> list[RunHead]:
        return self._heads("root_run_id = %s ORDER BY id", root)

    def resolve(self, prefix: str) -> str:
        find = "SELECT run_id FROM runs WHERE project = %s AND"
        if prefix == "last":
            rows = self._all(f"{find} run_id = root_run_id ORDER BY id DESC LIMIT 1", self._project)
        elif not prefix or not prefix.isascii():
            raise no_run(prefix)
        else:
            query = f'{find} starts_with(run_id, %s) ORDER BY run_id COLLATE "C" LIMIT 6'
            rows = self._all(query, self._project, prefix)
        return tables.one_of([name for (name,) in rows], prefix)

    def cached(self, key: str) -> str | None:
        found = self._one("SELECT blob FROM cache WHERE project = %s AND key = %s", self._project, key)
        return None if found is None else str(found[0])

    def announce(self, name: str, text: str) -> None:
        """Replace what is announced under a name, and its time; an empty text withdraws it."""
        query = "DELETE FROM announcements WHERE project = %s AND name = %s"
        values: tuple[object, ...] = (self._project, name)
        if text:
            query = (
                "INSERT INTO announcements VALUES (%s, %s, %s, now_ms())"
                " ON CONFLICT (project, name) DO UPDATE SET data = excluded.data, at = excluded.at"
            )
            values = (*values, self.clean(text.encode()).decode())
        self._change(lambda db: db.execute(query.encode(), values))

    def announced(self) -> list[Announcement]:
        """Return all announcements, by name."""
        query = "SELECT name, data, now_ms() - at FROM announcements WHERE project = %s ORDER BY name"
        return [Announcement(*row) for row in self._all(query, self._project)]

    def output_rows(
        self, after: int = 0, limit: int = 1_000, root: str | None = None
    ) -> list[tuple[int, OutputRow]]:
        """Return outputs in order of arrival with their running number.

        Outputs of a transaction become visible when no older transaction can still add some before them. A
        short wait bridges the end of commits that are in progress now.
        """
        of_tree = "" if root is None else " AND root_run_id = %s"
        settled = _SETTLED.replace("place", "number")
        query = (
            f"SELECT number, run_id, root_run_id, path, role, status, blob, at, {settled} FROM outputs"  # noqa: S608 - constants only
            f" WHERE project = %s AND number > %s{of_tree} ORDER BY number LIMIT %s"
        )
        values = [self._project, after, *([] if root is None else [root]), None if limit < 0 else limit]
        deadline = time.monotonic() + HELD_BACK_S
        while True:
            rows = self._all(query, *values)
            if all(row[-1] for row in rows) or time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        names = ("run_id", "root_run_id", "path", "role", "status", "blob", "at")
        return [(row[0], OutputRow(**dict(zip(names, row[1:-1], strict=True)))) for row in rows if row[-1]]

    def ends(self) -> dict[str, int]:
        query = f"SELECT root, max(place) FROM events WHERE project = %s AND {_SETTLED} GROUP BY root"  # noqa: S608 - constants only
        return dict(self._all(query, self._project))

    def rows_after(self, root: str, place: int) -> Iterator[tuple[int, Envelope]]:
        places, steps = self._places(root), dict[str, str]()
        for row in self._rows(f"root = %s AND {_SETTLED} AND place > %s", "place", root, place):
            of_run = places.get(row[3]) or self._place_of_session(row)
            if row[4] is None:
                yield row[1], _envelope(row, of_run, as_json)
                continue
            if row[4] not in steps:
                query = "SELECT path FROM events WHERE project = %s AND session = %s AND seq = 1"
                found = self._one(query, self._project, row[4])
                steps[row[4]] = str(found[0] if found else "").removeprefix(f"{of_run[4]}/")
            yield row[1], _envelope(row, of_run, as_json, steps[row[4]])

    def snapshot(self) -> AbstractContextManager[None]:
        return self._connections.snapshot()

    def unkeyed(self, root: str) -> int:
        return self.reach(root)

    def check(self, root: str | None = None) -> list[Damage]:
        found = [
            Damage(tree, text)
            for tree in (self.roots() if root is None else [root])
            for text in self._check_tree(tree)
        ]
        if root is None:
            query = "SELECT hash, content FROM blobs WHERE project = %s"
            for hash, content in self._all(query, self._project):
                found += [Damage("", text) for text in _unlike_its_name(hash, content)]
        return found

    def _check_tree(self, root: str) -> Iterator[str]:
        rows = list(self._rows("root = %s", "place", root))
        if not rows:
            yield "the log is gone"
            return
        events = [row for row in rows if row[4] is None]
        linked = (  # the columns that a link is made of, and the link
            (row[2], row[3], *row[5:9], bytes(row[10]), None if row[11] is None else bytes(row[11]))
            for row in events
        )
        yield from breaks(linked, None, padded=False)
        epoch = max((row[8] for row in events), default=0)
        lease = self._one("SELECT epoch FROM leases WHERE project = %s AND root = %s", self._project, root)
        current = lease[0] if lease is not None else 0
        if current < epoch:
            yield f"the lease is of epoch {current}, but the log reaches epoch {epoch}"
        names = sorted(tables.mentioned((bytes(row[10]),) for row in rows))
        query = "SELECT hash, content FROM blobs WHERE project = %s AND hash = ANY(%s)"
        for hash, content in self._all(query, self._project, names):
            yield from _unlike_its_name(hash, content)

    # ----------------------------------------------------------------------------------- deletion

    def delete_tree(self, root: str) -> None:
        """Delete a run tree, its sessions and unused blobs. Commits wait meanwhile."""
        p = self._project

        def delete(db: Database) -> None:
            self._lock_tree(db, root)
            holder = self._holder(db, root)[2]
            if holder is not None and holder.owner != this_process() and holder.is_alive():
                raise leases.held(root, holder)
            db.execute("SELECT pg_advisory_xact_lock(%s, %s)", (p, COLLECTION))
            named = tables.mentioned(
                (bytes(data),)
                for (data,) in db.execute(
                    "SELECT data FROM events WHERE project = %s AND root = %s"
                    " UNION ALL SELECT convert_to(concat_ws(' ', inputs, output), 'UTF8') FROM runs"
                    " WHERE project = %s AND root_run_id = %s"
                    " UNION ALL SELECT convert_to(blob, 'UTF8') FROM outputs"
                    " WHERE project = %s AND root_run_id = %s",
                    (p, root, p, root, p, root),
                )
            )
            had = db.execute(
                "DELETE FROM outputs WHERE project = %s AND root_run_id = %s AND status <> %s",
                (p, root, DELETED),
            )
            if had.rowcount:
                db.execute(
                    "INSERT INTO outputs SELECT %s, (pg_current_xact_id()::text::bigint << %s) + 1,"
                    " %s, %s, '', '', %s, '', 0",
                    (p, SHIFT, root, root, DELETED),
                )
            tables_of_root = ("events", "leases", "executions", "requests", "claims")
            for table, column in (*((one, "root") for one in tables_of_root), ("logs", "root_run_id")):
                db.execute(f"DELETE FROM {table} WHERE project = %s AND {column} = %s".encode(), (p, root))  # noqa: S608 - constants only
            db.execute(
                "DELETE FROM cache WHERE project = %s AND run_id IN"
                " (SELECT run_id FROM runs WHERE project = %s AND root_run_id = %s)",
                (p, p, root),
            )
            db.execute("DELETE FROM runs WHERE project = %s AND root_run_id = %s", (p, root))
            if named:
                self._collect(db, named)

        self._change(delete)
        self._ends.pop(root, None)
        self._signal("commits", root)

    def _collect(self, db: Database, named: set[str]) -> None:
        """Delete those of the named blobs that no row refers to any more."""
        p = self._project
        rest = db.execute(
            "SELECT convert_to(concat_ws(' ', inputs, output), 'UTF8') FROM runs WHERE project = %s"
            " UNION ALL SELECT convert_to(blob, 'UTF8') FROM outputs WHERE project = %s"
            " UNION ALL SELECT convert_to(blob, 'UTF8') FROM cache WHERE project = %s"
            " UNION ALL SELECT data FROM events WHERE project = %s",
            (p, p, p, p),
        )
        named -= tables.mentioned((bytes(data),) for (data,) in rest)
        db.execute("DELETE FROM blobs WHERE project = %s AND hash = ANY(%s)", (p, sorted(named)))

    def close(self) -> None:
        """Send pending signals and close every connection that no other store of this process uses."""
        self._renewal.close()
        if self._writer is not None:
            self._writer.shutdown()
        self._connections.close()


def _call(db: Database, calls: Sequence[tuple[int, bytes, list[bytes]]]) -> list[str]:
    """Write batches in one transaction, and in one round trip if it is one batch."""
    query = "SELECT fanfold.commit(%s, %s::json, %s::bytea[])"
    texts = [(project, document.decode(), raw) for project, document, raw in calls]
    if len(texts) == 1:
        found = db.execute(query, texts[0]).fetchone()
        return list((found and found[0]) or ())
    freed: list[str] = []
    with db.transaction():
        for values in texts:
            found = db.execute(query, values).fetchone()
            freed += (found and found[0]) or ()
    return freed


def _envelope(row: Sequence[Any], place: Sequence[Any], decode: Decode, path: str | None = None) -> Envelope:
    run, root, parent, depth, step = place
    session = row[4]
    content = row[5], 0 if session else row[2], row[6], row[7], decode(bytes(row[10]))
    of_run = run, root, parent, depth, step if path is None else path
    return Envelope(session or run, *content, *of_run, row[8])


def _unlike_its_name(hash: str, content: bytes) -> Iterator[str]:
    if blake2b(content, digest_size=16).hexdigest() != hash:
        yield f"the content stored as {hash} is not what was stored"
