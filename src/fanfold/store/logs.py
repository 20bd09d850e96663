"""Stores logs as rows of the database, reads them, and checks that no sequence number is skipped or repeated.

Rules
* `seq` has no gaps in each log, and `tree_seq` has no gaps in each tree. A write that would leave a gap is a
  bug of the caller and is refused as a whole.
* The id of a row is its position: the tree, the last event of the tree up to there, and the number of session
  entries since then. So the runs and sessions of a tree grow at one end of one B-tree. A commit with both
  dirties one page of it.
* The writer caches the key and the last numbers of each log, which saves two queries per write. The cache is
  dropped when a write fails or a lease is acquired. The numbers are read again before a gap is reported, so
  events that another process appended are never reported as a gap.
* Logs are read in chunks, each in its own read transaction. So an abandoned iterator never delays a
  checkpoint. A log only grows, so the chunks are consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import apsw
import msgspec

from fanfold.errors import BugError
from fanfold.kernel.events import Envelope
from fanfold.store.protocol import Batch, Clean, Commit, Decode, as_json, as_stored
from fanfold.store.sealing import Chain, reseal, state_of

CHUNK = 1_000
MAX_REMEMBERED = 10_000
ENTRY_BITS, EVENT_BITS = 19, 22
"""The bits of an event's id: the session entries since the last event of the tree, and the `tree_seq` of that
event. The bits above contain the key of the tree's own log."""
KEY_SHIFT = ENTRY_BITS + EVENT_BITS
MAX_ENTRIES = (1 << ENTRY_BITS) - 1
MAX_EVENTS = (1 << EVENT_BITS) - 1

_INSERT = (
    "INSERT INTO events (id, log, session, seq, at, type, epoch, path, data, chain)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_REACH = (
    "UPDATE logs SET reaches = ?1,"
    " seal = seal(key, log, root_run_id, parent_run_id, depth, path, ?1, unkeyed)"
    " WHERE key = ?2"
)

EventRow: TypeAlias = tuple[int, int | None, str | None, int, int, str, int, str | None, bytes, bytes | None]
"""A row of `events`. The last value is its link in the chain; only the last row of a commit has one."""

_encode = msgspec.json.Encoder().encode
_EVENT = "id, log, seq, at, type, epoch, data"


def row_id(key: int, tree_seq: int) -> int:
    """Return the id of an event of a tree; session entries after this event get the following ids."""
    return (key << EVENT_BITS | tree_seq) << ENTRY_BITS


def span(key: int) -> tuple[int, int]:
    """Return the first and the last id that a tree may use."""
    return row_id(key, 0), row_id(key + 1, 0) - 1


def tree_seq_of(row: int) -> int:
    """Return the `tree_seq` of an event's row, or of the event before a session entry."""
    return row >> ENTRY_BITS & MAX_EVENTS


class _Log:
    """The writer's cache for one run's log; `tree` is itself or the log of its root."""

    __slots__ = ("child_key", "key", "last", "seq", "tree")

    def __init__(self, key: int, tree: _Log | None) -> None:
        self.key = key
        self.seq = 0
        self.last = row_id(key, 0)
        """The last id of the tree; used only on the tree's own log."""
        self.tree = self if tree is None else tree
        self.child_key = None if tree is None else key

    def refresh(self, db: apsw.Connection) -> None:
        """Read the last numbers from the database."""
        if self.child_key is not None:
            query = "SELECT max(seq) FROM events WHERE log = ? AND session IS NULL"
            self.seq = db.execute(query, (self.key,)).get or 0
            return
        whole = span(self.key)
        self.last = db.execute("SELECT max(id) FROM events WHERE id BETWEEN ? AND ?", whole).get or whole[0]
        query = "SELECT seq FROM events WHERE id BETWEEN ? AND ? AND log IS NULL AND session IS NULL"
        self.seq = db.execute(f"{query} ORDER BY id DESC LIMIT 1", whole).get or 0


class Appender:
    """Inserts envelopes as rows, inside a write transaction."""

    def __init__(self, db: apsw.Connection, clean: Clean) -> None:
        self._db = db
        self._clean = clean
        self._logs: dict[str, _Log] = {}
        self._sessions: dict[str, int] = {}
        """The last `seq` of each session."""
        self._chain = Chain(db)
        self._inserted = 0
        """The number of rows of the current commit that are already inserted."""

    def forget(self) -> None:
        """Drop the cache, because the database may have newer numbers."""
        self._logs.clear()
        self._sessions.clear()
        self._chain.forget()

    def append(self, batch: Batch) -> None:
        """Insert the rows of one commit of one tree and chain them to the rows before. Registers new logs."""
        if len(self._logs) + len(self._sessions) > MAX_REMEMBERED:
            self.forget()
        self._inserted = 0
        rows = self._rows(batch)
        tree = rows[-1][0] >> KEY_SHIFT
        if rows[0][0] >> KEY_SHIFT != tree:
            raise BugError("log.two_trees", "the events of one batch belong to two trees")
        rows[-1] = (*rows[-1][:9], self._chain.follow(span(tree)[0], rows, batch.state))
        self._insert(rows)
        if not batch.outputs:  # without an output row, only `logs.reaches` shows that these rows exist
            self._db.execute(_REACH, (rows[-1][0], tree))

    def _rows(self, batch: Batch) -> list[EventRow]:
        logs, clean = self._logs, self._clean
        rows: list[EventRow] = []
        for envelope, known in zip(batch.envelopes, batch.data or repeat(None)):  # noqa: B905 - or none at all
            data = clean(_encode(envelope.data)) if known is None else known
            if not envelope.tree_seq:
                rows.append(self._entry(envelope, data, rows))
                continue
            log = logs.get(envelope.log)
            seq, place = envelope.seq, envelope.tree_seq
            if log is None or log.seq + 1 != seq or tree_seq_of(log.tree.last) + 1 != place:
                log = self._look_up(envelope, rows)
            log.seq = seq
            tree = log.tree
            tree.last = row_id(tree.key, place)
            of_event = envelope.at, envelope.type, envelope.epoch
            rows.append((tree.last, log.child_key, None, seq, *of_event, None, data, None))
        return rows

    def _entry(self, envelope: Envelope, data: bytes, rows: list[EventRow]) -> EventRow:
        """Return the row of a session's entry. A unique index prevents repeated numbers."""
        name, seq = envelope.log, envelope.seq
        if seq > 1 and self._sessions.get(name) != seq - 1:
            self._insert(rows)
            last = self._db.execute("SELECT max(seq) FROM events WHERE session = ?", (name,)).get or 0
            if last != seq - 1:
                raise BugError("log.gap", f"session {name} ends at {last}, so {seq} cannot be appended")
        self._sessions[name] = seq
        tree = self._logs.get(envelope.root_run_id) or self._open_tree(envelope.root_run_id)
        tree.last += 1
        if tree.last & MAX_ENTRIES == 0:
            raise BugError("log.full", f"more than {MAX_ENTRIES:,} entries of sessions in a row")
        run = None
        if envelope.run_id != envelope.root_run_id:
            log = self._logs.get(envelope.run_id)
            run = log.child_key if log is not None else _key(self._db, envelope.run_id)
        path = envelope.path if seq == 1 else None
        return tree.last, run, name, seq, envelope.at, envelope.type, envelope.epoch, path, data, None

    def _look_up(self, envelope: Envelope, rows: list[EventRow]) -> _Log:
        """Return the log that the event continues; raises `BugError` if the event leaves a gap."""
        place = envelope.tree_seq
        log = self._logs.get(envelope.log) or self._open(envelope)
        if log.seq + 1 != envelope.seq or tree_seq_of(log.tree.last) + 1 != place:
            self._insert(rows)
            log.tree.refresh(self._db)
            log.refresh(self._db)
        ends = tree_seq_of(log.tree.last)
        if log.seq + 1 != envelope.seq or ends + 1 != place or place > MAX_EVENTS:
            raise BugError(
                "log.gap",
                f"log {envelope.log} ends at {log.seq} (its tree at {ends}),"
                f" but event {envelope.seq} ({place} of the tree) was to be appended",
            )
        return log

    def _insert(self, rows: list[EventRow]) -> None:
        """Insert pending rows, so that the next query sees them."""
        self._db.executemany(_INSERT, rows[self._inserted :])
        self._inserted = len(rows)

    def _open(self, envelope: Envelope) -> _Log:
        name, root = envelope.log, envelope.root_run_id
        if name == root:
            return self._open_tree(root)
        if _key(self._db, root) is None:
            raise BugError("log.no_root", f"a child's event came before any event of its root {root}")
        tree = self._logs.get(root) or self._open_tree(root)
        key = _key(self._db, name)
        new = key is None
        if key is None:
            key = self._register(name, root, envelope.parent_run_id, envelope.depth, envelope.path)
        log = self._logs[name] = _Log(key, tree)
        if not new:
            log.refresh(self._db)
        return log

    def _open_tree(self, root: str) -> _Log:
        key = _key(self._db, root)
        if key is None:
            tree = _Log(self._register(root, root, None, 0, ""), None)
        else:
            tree = _Log(key, None)
            tree.refresh(self._db)
        self._logs[root] = tree
        return tree

    def _register(self, log: str, root: str, parent: str | None, depth: int, path: str) -> int:
        self._db.execute(
            "INSERT INTO logs (log, root_run_id, parent_run_id, depth, path) VALUES (?, ?, ?, ?, ?)",
            (log, root, parent, depth, path),
        )
        key = self._db.last_insert_rowid()
        reseal(self._db, "logs", "key = ?", key)
        return key


class _LogPlace(NamedTuple):
    """The values that all events of a run have in common."""

    run_id: str
    root_run_id: str
    parent_run_id: str | None
    depth: int
    path: str


def read_tree(db: apsw.Connection, root: str, after: int, decode: Decode = as_json) -> Iterator[Envelope]:
    """Iterate over the events of all runs of a tree in order of replay."""
    key = _key(db, root)
    if key is None:
        return
    places: dict[int | None, _LogPlace] = {}
    for row in stored_rows(db, key, _EVENT, row_id(key, after), "session IS NULL"):
        if row[1] not in places:
            places = _places(db, root, key)
        if row[1] not in places:
            return  # the run was deleted during the read
        yield _envelope(row, places[row[1]], decode=decode)


def reach(db: apsw.Connection, root: str) -> int:
    """Return the `tree_seq` of the last event of a tree; 0 if there is none."""
    key = _key(db, root)
    within = "SELECT max(id) FROM events WHERE id BETWEEN ? AND ?"
    last = None if key is None else db.execute(within, span(key)).get
    return 0 if last is None else tree_seq_of(last)


def ends(db: apsw.Connection) -> dict[str, int]:
    """Return the id of the last row of each tree."""
    within = f"id BETWEEN key << {KEY_SHIFT} AND ((key + 1) << {KEY_SHIFT}) - 1"
    last = f"SELECT max(id) FROM events WHERE {within}"  # noqa: S608 - constants only
    query = f"SELECT log, ({last}) FROM logs WHERE log = root_run_id"  # noqa: S608 - constants only
    return {str(root): end for root, end in db.execute(query) if isinstance(end, int)}


def rows_after(db: apsw.Connection, root: str, place: int) -> Iterator[tuple[int, Envelope]]:
    """Iterate over the events and session entries of a tree after a row, each with its id."""
    key = _key(db, root)
    if key is None:
        return
    places, steps = _places(db, root, key), dict[str, str]()
    columns = "id, log, seq, at, type, epoch, data, session"
    for *row, session in stored_rows(db, key, columns, place):
        of_run = places.get(row[1])
        if of_run is None:
            return  # the run started after this read started, or was deleted meanwhile
        if session is None:
            yield row[0], _envelope(row, of_run)
            continue
        if session not in steps:
            query = "SELECT path FROM events WHERE session = ? AND seq = 1"
            steps[session] = str(db.execute(query, (session,)).get or "").removeprefix(f"{of_run.path}/")
        yield row[0], msgspec.structs.replace(_envelope(row, of_run, session), path=steps[session])


def read_commits(db: apsw.Connection, root: str) -> Iterator[Commit]:
    """Iterate over the commits of a tree: their events, and the session entries in between."""
    key = _key(db, root)
    if key is None:
        return
    places = _places(db, root, key)
    events: list[Envelope] = []
    entries: list[Envelope] = []
    for *row, session, chained in stored_rows(db, key, "id, log, seq, at, type, epoch, data, session, chain"):
        place = places.get(row[1])
        if place is None:
            raise BugError("log.no_place", f"an event has no run: row {row[0]}")
        (events if session is None else entries).append(_envelope(row, place, session or "", as_stored))
        if chained is not None and events:
            yield Commit(events, state_of(chained), entries)
            events, entries = [], []
    if events or entries:
        yield Commit(events, b"", entries)


def stored_rows(
    db: apsw.Connection, key: int, columns: str, after: int = 0, where: str = "1", *values: int
) -> Iterator[tuple[Any, ...]]:
    """Iterate over rows of a tree after the id `after`, in order. `id` must be the first column."""
    last, end = span(key)
    last = max(last, after)
    query = f"SELECT {columns} FROM events WHERE id > ? AND id <= ? AND {where} ORDER BY id LIMIT {CHUNK}"  # noqa: S608 - constants only
    while True:
        rows: list[tuple[Any, ...]] = db.execute(query, (last, end, *values)).fetchall()
        yield from rows
        if len(rows) < CHUNK:
            return
        last = rows[-1][0]


def read_log(db: apsw.Connection, log: str, after: int, decode: Decode) -> Iterator[Envelope]:
    """Iterate over the events of one run's or session's log in order."""
    first = db.execute("SELECT id, log, path FROM events WHERE session = ? AND seq = 1", (log,)).fetchone()
    if first is not None:
        number, run, path = first
        query = f"{_PLACES} WHERE key = ?"
        of_run = db.execute(query, (number >> KEY_SHIFT if run is None else run,)).fetchone()
        if of_run is not None:  # else the run was deleted during the read
            place = _LogPlace(*of_run[1:])._replace(path=path)
            for row in _rows_by_seq(db, "session = ?", log, after):
                yield _envelope(row, place, log, decode)
        return
    key = _key(db, log)
    known = None if key is None else _places(db, log, key).get(None)
    if key is None or known is None:
        return
    if known.run_id == known.root_run_id:
        rows = stored_rows(db, key, _EVENT, 0, "log IS NULL AND session IS NULL AND seq > ?", after)
    else:
        rows = _rows_by_seq(db, "log = ? AND session IS NULL", key, after)
    for row in rows:
        yield _envelope(row, known, decode=decode)


def _rows_by_seq(db: apsw.Connection, where: str, log: int | str, after: int) -> Iterator[tuple[Any, ...]]:
    query = f"SELECT {_EVENT} FROM events WHERE {where} AND seq > ? ORDER BY seq LIMIT {CHUNK}"  # noqa: S608 - constants only
    while True:
        rows: list[tuple[Any, ...]] = db.execute(query, (log, after)).fetchall()
        yield from rows
        if len(rows) < CHUNK:
            return
        after = rows[-1][2]


def _envelope(row: Sequence[Any], place: _LogPlace, session: str = "", decode: Decode = as_json) -> Envelope:
    number = 0 if session else tree_seq_of(row[0])
    return Envelope(session or place.run_id, row[2], number, row[3], row[4], decode(row[6]), *place, row[5])


def _key(db: apsw.Connection, log: str) -> int | None:
    key: int | None = db.execute("SELECT key FROM logs WHERE log = ?", (log,)).get
    return key


_PLACES = "SELECT key, log, root_run_id, parent_run_id, depth, path FROM logs"


def _places(db: apsw.Connection, root: str, key: int) -> dict[int | None, _LogPlace]:
    """Return the runs of a tree by the value of `log` in their events; None is the tree's own run."""
    rows = db.execute(f"{_PLACES} WHERE log = ?1 OR root_run_id = ?1", (root,))
    return {None if row[0] == key else row[0]: _LogPlace(*row[1:]) for row in rows}
