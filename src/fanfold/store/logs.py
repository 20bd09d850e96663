"""Logs as rows: envelopes in, envelopes out, and the check that no number is skipped or used twice.

Rules
* `seq` follows `seq` in each log and `tree_seq` follows `tree_seq` in each tree; a write that would leave
  a gap is a bug of the caller and is refused whole.
* What the writer remembers of a log (its key, its last numbers) saves two queries per write. It is
  dropped whenever a write fails or a lease is taken, and looked up again before a gap is reported, so
  another process's appends never look like gaps.
* Reading goes in chunks, each a read transaction of its own: an abandoned iterator never holds back
  a checkpoint. A log only grows, so chunks fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apsw
import msgspec

from fanfold.errors import BugError
from fanfold.kernel.events import Envelope
from fanfold.store.protocol import Clean

CHUNK = 1_000
MAX_REMEMBERED = 10_000
PLACES = 0xFFFF_FFFF
"""The low bits of an event's id: its place in its tree. The high bits are the tree's key."""

INSERT = "INSERT INTO events (id, log, seq, at, type, epoch, data) VALUES (?, ?, ?, ?, ?, ?, ?)"

EventRow: TypeAlias = tuple[int, int | None, int, int, str, int, bytes]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Log:
    """What the writer remembers of one log. `tree` is the log that orders it: itself, or its root's."""

    __slots__ = ("child_key", "key", "place", "seq", "tree")

    def __init__(self, key: int, tree: _Log | None) -> None:
        self.key = key
        self.seq = 0
        self.place = 0
        """Of the last event of the tree; kept on the tree's own log only."""
        self.tree = self if tree is None else tree
        self.child_key = None if tree is None else key

    def refresh(self, db: apsw.Connection) -> None:
        """Take the last numbers from the database."""
        if self.child_key is not None:
            self.seq = db.execute("SELECT max(seq) FROM events WHERE log = ?", (self.key,)).get or 0
            return
        span = self.key << 32, self.key << 32 | PLACES
        last = db.execute("SELECT max(id) FROM events WHERE id BETWEEN ? AND ?", span).get or 0
        seq = db.execute(
            "SELECT seq FROM events WHERE id BETWEEN ? AND ? AND log IS NULL ORDER BY id DESC LIMIT 1", span
        ).get
        self.place = last & PLACES
        self.seq = seq or 0


class Appender:
    """Turns envelopes into rows, inside a write transaction."""

    def __init__(self, db: apsw.Connection, clean: Clean) -> None:
        self._db = db
        self._clean = clean
        self._logs: dict[str, _Log] = {}

    def forget(self) -> None:
        """Look everything up again: the database may know better."""
        self._logs.clear()

    def rows(self, envelopes: Sequence[Envelope]) -> list[EventRow]:
        """What `INSERT` binds; registers logs that are new."""
        logs, clean = self._logs, self._clean
        if len(logs) > MAX_REMEMBERED:
            logs.clear()
        rows: list[EventRow] = []
        for envelope in envelopes:
            log = logs.get(envelope.log)
            seq = envelope.seq
            place = envelope.tree_seq or seq
            if log is None or log.seq + 1 != seq or log.tree.place + 1 != place:
                log = self._look_up(envelope, place, rows)
            log.seq = seq
            tree = log.tree
            tree.place = place
            rows.append(
                (
                    tree.key << 32 | place,
                    log.child_key,
                    seq,
                    envelope.at,
                    envelope.type,
                    envelope.epoch,
                    clean(_encode(envelope.data)),
                )
            )
        return rows

    def _look_up(self, envelope: Envelope, place: int, pending: list[EventRow]) -> _Log:
        """The log that the event continues; whether it does is checked against the database."""
        log = self._logs.get(envelope.log) or self._open(envelope)
        if log.seq + 1 != envelope.seq or log.tree.place + 1 != place:
            self._db.executemany(INSERT, pending)
            pending.clear()
            log.tree.refresh(self._db)
            log.refresh(self._db)
        if log.seq + 1 != envelope.seq or log.tree.place + 1 != place:
            raise BugError(
                "log.gap",
                f"log {envelope.log} ends at {log.seq} (its tree at {log.tree.place}),"
                f" but event {envelope.seq} ({place} of the tree) was to be appended",
            )
        return log

    def _open(self, envelope: Envelope) -> _Log:
        name, root, db = envelope.log, envelope.root_run_id, self._db
        session = envelope.tree_seq == 0
        tree = None
        if not session and name != root:
            tree = self._logs.get(root) or self._open_tree(root)
        key = _key(db, name)
        if key is not None:
            log = _Log(key, tree)
            log.refresh(db)
        else:
            shared = envelope.run_id, root, envelope.parent_run_id, envelope.depth, envelope.path
            db.execute(
                "INSERT INTO logs (log, session, run_id, root_run_id, parent_run_id, depth, path)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (name, session, *shared),
            )
            log = _Log(db.last_insert_rowid(), tree)
        self._logs[name] = log
        return log

    def _open_tree(self, root: str) -> _Log:
        key = _key(self._db, root)
        if key is None:
            raise BugError("log.no_root", f"a child's event came before any event of its root {root}")
        tree = self._logs[root] = _Log(key, None)
        tree.refresh(self._db)
        return tree


class _Place(NamedTuple):
    """What all envelopes of a log have in common."""

    log: str
    session: int
    run_id: str
    root_run_id: str
    parent_run_id: str | None
    depth: int
    path: str


_PLACES = "SELECT key, log, session, run_id, root_run_id, parent_run_id, depth, path FROM logs"


def read_tree(db: apsw.Connection, root: str, after: int) -> Iterator[Envelope]:
    """The events of all runs of a tree in order of replay."""
    key = _key(db, root)
    if key is None:
        return
    places: dict[int | None, _Place] = {}
    last = key << 32 | after
    while True:
        rows = _chunk(db, "id > ? AND id <= ?", "id", last, key << 32 | PLACES)
        for row in rows:
            place = places.get(row[1])
            if place is None:
                places = _places(db, root, key)
                place = places.get(row[1])
            if place is None:
                return  # deleted while it was read
            yield _envelope(row, place)
        if len(rows) < CHUNK:
            return
        last = rows[-1][0]


def read_log(db: apsw.Connection, log: str, after: int) -> Iterator[Envelope]:
    """The events of one log in order."""
    key = _key(db, log)
    if key is None:
        return
    place = _places(db, log, key).get(None)
    if place is None:
        return
    whole_tree = place.session or place.log == place.root_run_id
    start = key << 32
    while True:
        if whole_tree:
            rows = _chunk(
                db, "id > ? AND id <= ? AND log IS NULL AND seq > ?", "id", start, key << 32 | PLACES, after
            )
        else:
            rows = _chunk(db, "log = ? AND seq > ?", "seq", key, after)
        for row in rows:
            yield _envelope(row, place)
        if len(rows) < CHUNK:
            return
        start, after = rows[-1][0], rows[-1][2]


def _chunk(db: apsw.Connection, where: str, order: str, *values: int) -> list[tuple[Any, ...]]:
    return db.execute(
        f"SELECT id, log, seq, at, type, epoch, data FROM events"  # noqa: S608 - constants only
        f" WHERE {where} ORDER BY {order} LIMIT {CHUNK}",
        values,
    ).fetchall()


def _envelope(row: tuple[Any, ...], place: _Place) -> Envelope:
    return Envelope(
        place.log,
        row[2],
        0 if place.session else row[0] & PLACES,
        row[3],
        row[4],
        _decode(row[6]),
        place.run_id,
        place.root_run_id,
        place.parent_run_id,
        place.depth,
        place.path,
        row[5],
    )


def _key(db: apsw.Connection, log: str) -> int | None:
    key: int | None = db.execute("SELECT key FROM logs WHERE log = ?", (log,)).get
    return key


def _places(db: apsw.Connection, root: str, key: int) -> dict[int | None, _Place]:
    """The logs of a tree by what their events carry in `log`; NULL stands for the tree's own."""
    rows = db.execute(f"{_PLACES} WHERE log = ?1 OR root_run_id = ?1", (root,))
    return {None if row[0] == key else row[0]: _Place(*row[1:]) for row in rows}
