"""The tables of the database, the version of their format, and the migrations from older formats.

Rules
* Tables are created in one transaction together with their version (`user_version`). So a crash leaves an
  empty database or a complete one.
* Each format since the first supported one (`FIRST`) has a migration to the next. A database is migrated when
  it is opened, in one transaction, also by commands that only read. A protected one is copied to memory.
* To change the format: raise `VERSION`, add the migration to `MIGRATIONS`, change `TABLES` accordingly, and
  keep a database of the previous format in `tests/store/databases`. Tests open, read and resume every one of
  them.
* A database of a newer format is refused unchanged, with the release to install (`about`). The same applies
  to one from before the first supported format (`BEFORE`), and to a file of another program
  (`application_id`).

Reasons for this table design
* The disk cost of a step is the number of pages it dirties: one for each B-tree that gets a row. So events of
  runs and entries of sessions share one table, and values and outputs share another. A session has no row of
  its own. An index exists only if there is no other way to find a row. A test counts the pages.
* `logs` stores once per run the values that every envelope of its log repeats, so the row of an event is
  small.
* `events.id` is the position of a row in its tree (see `logs.py`), so a tree is replayed from one range of
  one B-tree. `log` is NULL for events of the tree's own log; only child runs need their index. `session` is
  set only for entries of sessions. `path`, the step that a session serves, is set only for its first entry.
* `blobs` stores values and, in the same row, the step whose output a value is. Content is the last column, so
  that a read of outputs does not read it.
* A change of any column is detected. Events carry the links of a chain, values are named by their hash, and
  every other row has a seal (see `sealing.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from typing import Any

import apsw
import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.events import Failure, Usage
from fanfold.store import leases, sealing
from fanfold.store.logs import KEY_SHIFT, span, stored_rows
from fanfold.store.protocol import DELETED, Batch, Damage, OutputRow, RunHead, StoreFault, no_run
from fanfold.store.sealing import key_of, name_of, reseal, seal

APPLICATION_ID = 0x46464F4C  # "FFOL": how `file` and other programs recognise the database
BEFORE = 0x46414E46
"""The `application_id` of databases from before the first version."""
FIRST = 2
"""The oldest format that can still be opened."""
VERSION = 5
KEYED = 4
"""The first format whose hashes are keyed."""
RELEASE = "0.1.0"
"""The first release that reads this format. Users of an older release are asked to install it."""

FACTS = frozenset({"key", "release"})
"""The names of the rows in the table `about`."""
_ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB) WITHOUT ROWID;"

TABLES = (
    """
CREATE TABLE logs (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  log TEXT NOT NULL UNIQUE,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT,
  depth INTEGER NOT NULL,
  path TEXT NOT NULL,
  reaches INTEGER,
  seal BLOB
, unkeyed INTEGER);
CREATE INDEX logs_by_root ON logs (root_run_id);

CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  log INTEGER,
  session TEXT,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  type TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  path TEXT,
  data BLOB NOT NULL,
  chain BLOB
);
CREATE UNIQUE INDEX events_of_children ON events (log, seq) WHERE log IS NOT NULL AND session IS NULL;
CREATE UNIQUE INDEX events_of_sessions ON events (session, seq) WHERE session IS NOT NULL;

CREATE TABLE blobs (
  id INTEGER PRIMARY KEY,
  hash TEXT,
  output TEXT,
  run_id TEXT,
  root_run_id TEXT,
  path TEXT,
  role TEXT,
  status TEXT,
  at INTEGER,
  seal BLOB NOT NULL,
  content BLOB
);
CREATE UNIQUE INDEX blobs_by_hash ON blobs (hash) WHERE hash IS NOT NULL;

CREATE TABLE runs (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT REFERENCES runs (run_id) DEFERRABLE INITIALLY DEFERRED,
  nesting_depth INTEGER NOT NULL DEFAULT 0,
  execution_path TEXT NOT NULL DEFAULT '',
  recipe TEXT NOT NULL,
  version INTEGER NOT NULL,
  status TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  inputs TEXT,
  output TEXT,
  error TEXT,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  micro_usd INTEGER,
  agents INTEGER NOT NULL DEFAULT 0,
  forked_from TEXT,
  seal BLOB
);
CREATE INDEX runs_by_root ON runs (root_run_id);
CREATE INDEX runs_by_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE leases (
  root TEXT PRIMARY KEY,
  epoch INTEGER NOT NULL,
  boot_id TEXT,
  pid INTEGER,
  started TEXT,
  pid_namespace TEXT,
  taken_at INTEGER,
  heartbeat_at INTEGER,
  expires_at INTEGER,
  seal BLOB
, machine TEXT) WITHOUT ROWID;

CREATE TABLE requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  root TEXT NOT NULL,
  run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL,
  at INTEGER NOT NULL,
  seal BLOB
);
CREATE INDEX requests_by_root ON requests (root);

-- Files of the project itself that steps change; `held`: in line (0), held (1), given back (2).
CREATE TABLE claims (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  root TEXT NOT NULL,
  run_id TEXT NOT NULL,
  step TEXT NOT NULL,
  patterns TEXT NOT NULL,
  held INTEGER NOT NULL,
  seal BLOB,
  UNIQUE (root, run_id, step)
);

-- Completed steps whose result may be taken again.
CREATE TABLE cache (
  key TEXT PRIMARY KEY,
  blob TEXT NOT NULL,
  run_id TEXT NOT NULL,
  seal BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX cache_by_run ON cache (run_id);
"""
    + _ABOUT
)


_ADDED = {"logs": ", unkeyed", "leases": ", machine"}
"""Columns that the first keyed format, or a later one, added to a table; older seals do not include them."""


def _key(db: apsw.Connection) -> None:
    db.execute("ALTER TABLE logs ADD COLUMN unkeyed INTEGER; ALTER TABLE leases ADD COLUMN machine TEXT")
    bind(db)


def _name_machines(db: apsw.Connection) -> None:
    if "machine" in {name for _, name, *_ in db.execute("PRAGMA table_info(leases)")}:
        return  # the migration before this one added it
    db.execute("ALTER TABLE leases ADD COLUMN machine TEXT")
    columns = sealing.COLUMNS["leases"]
    before = columns.removesuffix(_ADDED["leases"])
    db.execute(f"UPDATE leases SET seal = seal({columns}) WHERE seal IS seal({before})")  # noqa: S608 - constants only


MIGRATIONS: Mapping[int, Callable[[apsw.Connection], object]] = {
    2: lambda db: db.execute(_ABOUT),  # format 3 names the release that reads the database
    3: _key,  # format 4 is keyed with the user's secret
    4: _name_machines,  # format 5 names the machine of an owner
}
"""Migrations by the format they start from; each leads to the next format. They run inside a transaction."""


_FORMS = (
    "SELECT name, type || coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)
_FACTS = (
    "SELECT (SELECT application_id FROM pragma_application_id),"
    " (SELECT user_version FROM pragma_user_version), count(*) FROM sqlite_schema"
)


def version(db: apsw.Connection) -> int:
    """Return the format of the tables, 0 if there are none; raises `StoreFault` for an unsupported one."""
    facts: tuple[Any, ...] = db.execute(_FACTS).fetchall()[0]  # one statement reads one consistent state
    application, number, tables = facts
    ours = application == APPLICATION_ID
    if application == BEFORE or (ours and tables and number < FIRST):
        message = f"{db.filename} has format {number}, and this Fanfold opens formats {FIRST} to {VERSION}"
        hint = "move it away; Fanfold then creates a new one, without the runs of this one"
        raise StoreFault("store.older", message, hint=hint)
    if not ours and (tables or number):
        message = f"{db.filename} is a database of another program"
        raise StoreFault("store.foreign", message, hint="move it away; Fanfold then creates a new one")
    if number > VERSION:
        release = ""
        with suppress(apsw.SQLError):
            release = str(db.execute("SELECT value FROM about WHERE name = 'release'").get)
        if not release.replace(".", "").isalnum() or len(release) >= 20:
            release = ""  # it does not look like a release
        raise StoreFault(
            "store.newer",
            f"{db.filename} was written by a newer Fanfold (format {number}, this one opens up to {VERSION})",
            hint=f'install it: pip install "fanfold>={release}"' if release else "upgrade Fanfold",
            details={"found": number, "known": VERSION, "release": release},
        )
    return int(number)


def check_readable(db: apsw.Connection) -> None:
    """Raise `StoreFault` for a read-only database without tables."""
    if not version(db):
        hint = "open the project once where its .fanfold folder may be written"
        raise StoreFault("store.read_only", "the database is empty and cannot be written", hint=hint)


def prepare(db: apsw.Connection, *, make: bool = True, adopts: bool = True) -> None:
    """Migrate the tables in one transaction; `make` creates new ones, `adopts` accepts unkeyed ones."""
    found = version(db)
    if found == VERSION and adopts and key_of(db) and _key_name(db) != name_of(key_of(db)):
        _adopt(db)
    if found == VERSION or not (found or make):
        return
    if 0 < found < KEYED and not adopts:
        message = f"{db.filename} has format {found}, but Fanfold made a newer one here"
        raise StoreFault("store.replaced", message, hint="if you put it there, fanfold state adopt keeps it")
    db.execute("BEGIN IMMEDIATE")
    try:
        found = version(db)  # another process may have migrated it meanwhile
        if not found:
            db.execute(TABLES)
        elif found < VERSION:
            _refuse_owned(db, found)
            for number in range(found, VERSION):
                MIGRATIONS[number](db)
        if found < VERSION:
            if found >= KEYED and adopts and key_of(db) and _key_name(db) != name_of(key_of(db)):
                bind(db, adopt=True)
            db.execute("INSERT OR REPLACE INTO about VALUES ('release', ?, NULL)", (RELEASE,))
            if found < KEYED or adopts:
                _name_key(db)
            else:
                reseal(db, "about", "name = 'release'")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def odd_forms(db: apsw.Connection) -> Iterator[str]:
    """Report tables and indexes that differ from `TABLES`, unknown ones, and missing rows of `about`."""
    with closing(apsw.Connection(":memory:")) as made:
        made.execute(TABLES)
        known, found = (dict(one.execute(_FORMS)) for one in (made, db))
    for name in sorted({*known, *found}):
        if known.get(name) != found.get(name):
            yield f"{name} in the database is not as Fanfold made it"
    named = {name for (name,) in db.execute("SELECT name FROM about")} if "about" in found else set()
    for name in sorted(FACTS - named):
        yield f"row {name!r} of the table about is gone"


def _key_name(db: apsw.Connection) -> object:
    return db.execute("SELECT value FROM about WHERE name = 'key'").get


def _name_key(db: apsw.Connection) -> None:
    db.execute("INSERT OR REPLACE INTO about VALUES ('key', ?, NULL)", (name_of(key_of(db)),))
    reseal(db, "about", "1")


def _adopt(db: apsw.Connection) -> None:
    """Bind a database that another user's Fanfold wrote to the key of this connection."""

    db.execute("BEGIN IMMEDIATE")
    try:
        if _key_name(db) != name_of(key_of(db)):
            bind(db, adopt=True)
            _name_key(db)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _refuse_owned(db: apsw.Connection, found: int) -> None:
    """Raise `StoreFault` if a live owner of an older release would continue to write the older format."""
    for (root,) in db.execute("SELECT root FROM leases WHERE pid IS NOT NULL").fetchall():
        holder = leases.holder(db, str(root), machine="''")  # formats before 5 have no such column
        if holder is not None and holder.is_alive():
            message = f"an older Fanfold, {holder.owner.place}, runs {root} here (format {found})"
            hint = "let that run finish, or stop that process; then the database is converted"
            details = {"root": root, "pid": holder.owner.pid}
            raise StoreFault("store.busy", message, hint=hint, details=details)


# -----------------------------------------------------------------------------------------------------------
# Summary rows of runs, derived from the logs

_FIXED = "run_id root_run_id parent_run_id nesting_depth execution_path recipe version created_at".split()
_CHANGING = (
    "status started_at ended_at inputs output error input_tokens output_tokens micro_usd agents forked_from"
).split()
HEAD_NAMES = (*_FIXED, *_CHANGING)
"""The columns of `runs` in the order of `head_row`."""
HEAD_UPDATES = ", ".join(f"{name} = excluded.{name}" for name in _CHANGING)
_COLUMNS = ", ".join(HEAD_NAMES)
_UPSERT = (
    f"INSERT INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * len(HEAD_NAMES))})"  # noqa: S608 - constants only
    f" ON CONFLICT (run_id) DO UPDATE SET {HEAD_UPDATES}"
)
_SELECT = f"SELECT {_COLUMNS} FROM runs"  # noqa: S608 - constants only

as_text = msgspec.json.Encoder().encode


def head_row(head: RunHead) -> tuple[Any, ...]:
    """Return the values of a row of `runs`."""
    error = None if head.error is None else as_text(head.error).decode()
    computed = {"error": error, **msgspec.structs.asdict(head.usage)}
    return tuple(computed[name] if name in computed else getattr(head, name) for name in HEAD_NAMES)


def write(db: apsw.Connection, heads: Sequence[RunHead]) -> None:
    """Insert or update the rows of runs, inside a write transaction."""
    db.executemany(_UPSERT, [head_row(head) for head in heads])
    for head in heads:
        reseal(db, "runs", "run_id = ?", head.run_id)


def head_of(row: Sequence[Any]) -> RunHead:
    """Return the head of a row of `runs`."""
    values = dict(zip(HEAD_NAMES, row, strict=True))
    error = values.pop("error")
    usage = Usage(values.pop("input_tokens"), values.pop("output_tokens"), values.pop("micro_usd"))
    failure = None if error is None else msgspec.json.decode(error, type=Failure)
    return RunHead(**values, error=failure, usage=usage)


def select(db: apsw.Connection, rest: str, *values: Any) -> list[RunHead]:
    """Return the heads that the given end of a SELECT statement selects."""
    return [head_of(row) for row in db.execute(f"{_SELECT} {rest}", values)]


def roots(db: apsw.Connection) -> list[str]:
    """Return every tree that has a log or the row of a run, newest first."""
    rows = [
        *db.execute("SELECT log FROM logs WHERE log = root_run_id ORDER BY key DESC"),
        *db.execute("SELECT run_id FROM runs WHERE run_id = root_run_id ORDER BY id DESC"),
    ]
    return list(dict.fromkeys(root for (root,) in rows if isinstance(root, str)))


def resolve(db: apsw.Connection, prefix: str) -> str:
    """Return the run id for a unique prefix, or for `last`."""
    found: Iterator[tuple[str]]
    if prefix == "last":
        found = db.execute("SELECT run_id FROM runs WHERE run_id = root_run_id ORDER BY id DESC LIMIT 1")
    elif not prefix or not prefix.isascii():  # an unset shell variable, or undecodable bytes
        found = iter(())
    else:
        found = db.execute(
            "SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT 6",
            (prefix, prefix + "\U0010ffff"),
        )
    return one_of([run_id for (run_id,) in found], prefix)


def one_of(ids: Sequence[str], prefix: str) -> str:
    """Return the only one of these run ids, or the one that equals the prefix; `ids` is sorted."""
    if not ids:
        raise no_run(prefix)
    if len(ids) > 1 and ids[0] != prefix:
        raise AuthorError(
            "run.ambiguous",
            f"{prefix!r} is a prefix of several run ids: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}",
            hint="use more characters of the id",
            details={"runs": ids[:5]},
        )
    return ids[0]


# -----------------------------------------------------------------------------------------------------------
# Values by hash, and outputs of steps, in one table
#
# Rules
# * A value is stored once, under its hash. An output with a new value is one row: the value and the step that
#   produced it. An output whose value is already stored has a row without content; `output` contains the
#   hash.
# * Rows are numbered in order of arrival. The number of an output is never reused: a deleted tree leaves one
#   row that records the deletion after all others.

_INSERT = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_VALUES_SELECT = (
    "SELECT id, run_id, root_run_id, path, role, status, coalesce(hash, output), at FROM blobs"
    " WHERE id > ?1 AND status IS NOT NULL AND (?2 IS NULL OR root_run_id = ?2) ORDER BY id LIMIT ?3"
)


def write_values(db: apsw.Connection, batch: Batch) -> None:
    """Store the values and outputs of a batch. Runs inside a write transaction."""
    fresh, key = dict(batch.blobs), key_of(db)
    number = db.execute("SELECT max(id) FROM blobs").get or 0
    if batch.outputs:
        numbered = enumerate(batch.outputs, number + 1)
        rows = [_row_values(key, n, row, fresh.pop(row.blob, None)) for n, row in numbered]
        number += len(rows)
        before = db.total_changes()
        db.executemany(_INSERT, rows)
        if db.total_changes() - before < len(rows):  # another run has stored the same value
            for made, row in zip(rows, batch.outputs, strict=True):
                if not db.execute("SELECT 1 FROM blobs WHERE id = ?", (made[0],)).get:
                    number += 1
                    db.execute(_INSERT, _row_values(key, number, row, None))
    values: list[tuple[Any, ...]] = []
    for n, (name, content) in enumerate(fresh.items(), number + 1):  # no outputs of steps
        sealed = n, name, None, None, None, None, None, None, None
        values.append((*sealed, seal(key, *sealed), content))
    if values:
        db.executemany(_INSERT, values)


def _row_values(key: bytes, number: int, row: OutputRow, content: bytes | None) -> tuple[Any, ...]:
    """Return the row of an output, with `content` if its value is not stored yet."""
    known = content is None
    of_output = row.run_id, row.root_run_id, row.path, row.role, row.status, row.at
    sealed = number, None if known else row.blob, row.blob if known else None, *of_output
    return *sealed, seal(key, *sealed), content


def read_outputs(
    db: apsw.Connection, root: str | None, after: int, limit: int
) -> list[tuple[int, OutputRow]]:
    """Return the outputs of one tree or of all, in order of arrival, with their running number."""
    names = ("run_id", "root_run_id", "path", "role", "status", "blob", "at")
    rows = db.execute(_VALUES_SELECT, (after, root, limit))
    return [(number, OutputRow(**dict(zip(names, row, strict=True)))) for number, *row in rows]


def absent(db: apsw.Connection, hashes: Sequence[str]) -> list[str]:
    """Return the hashes that are not stored."""
    query = "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE hash = value)"
    return [str(name) for (name,) in db.execute(query, (as_text(hashes),))]


def forget_outputs(db: apsw.Connection, root: str) -> None:
    """Record that a tree's outputs are deleted; their values stay, as other trees may use them."""
    if db.execute("SELECT 1 FROM blobs WHERE root_run_id = ? AND status <> ? LIMIT 1", (root, DELETED)).get:
        last = db.execute("SELECT max(id) FROM blobs").get or 0
        deleted = OutputRow(run_id=root, root_run_id=root, path="", status=DELETED, blob="", at=0)
        # Inserted first, because free numbers are reused.
        db.execute(_INSERT, _row_values(key_of(db), last + 1, deleted, None))
        db.execute("DELETE FROM blobs WHERE root_run_id = ? AND id <= ? AND hash IS NULL", (root, last))
        db.execute(
            "UPDATE blobs SET run_id = NULL, root_run_id = NULL, path = NULL, role = NULL, status = NULL,"
            " at = NULL, seal = seal(id, hash, output, NULL, NULL, NULL, NULL, NULL, NULL)"
            " WHERE root_run_id = ? AND id <= ?",
            (root, last),
        )


# -----------------------------------------------------------------------------------------------------------
# Deletion of a run tree: its logs, heads and sessions, and the blobs that only it refers to
#
# Rules
# * A blob is in use if its hash occurs in any event, head, output or cache row. There are no reference
#   counts: every step would pay for them, and a wrong count loses data. A search is exact, and only a
#   deletion pays for it.
# * The search runs twice. The first one runs in parallel with writers and reads all logs. The second one runs
#   under the write lock and reads only events that were appended meanwhile. So writers never wait for a long
#   search, and no blob is deleted that a new event refers to.
# * A reader of the outputs sees the row that records the deleted tree.

_HASHES = rb"(?<![0-9a-f])[0-9a-f]{32,128}(?![0-9a-f])"
_HELD = (
    "SELECT inputs FROM runs WHERE inputs IS NOT NULL"
    " UNION ALL SELECT output FROM runs WHERE output IS NOT NULL"
    " UNION ALL SELECT coalesce(hash, output) FROM blobs WHERE status IS NOT NULL"
    " UNION ALL SELECT blob FROM cache"
)
_HELD_BY_TREE = (
    "SELECT inputs FROM runs WHERE root_run_id = ?1 AND inputs IS NOT NULL"
    " UNION SELECT output FROM runs WHERE root_run_id = ?1 AND output IS NOT NULL"
    " UNION SELECT coalesce(hash, output) FROM blobs WHERE root_run_id = ?1"
)


class Removal:
    """Deletes a run tree. The constructor searches in parallel with writers; `carry_out` is short."""

    def __init__(self, db: apsw.Connection, root: str) -> None:
        self._root = root
        query = "SELECT key FROM logs WHERE log = ?1 OR root_run_id = ?1"
        self._trees: list[int] = [int(key) for (key,) in db.execute(query, (root,))]
        self._seen: dict[int, int] = {}
        """The highest event id that was read of each other tree."""
        self._orphans = {hash for (hash,) in db.execute(_HELD_BY_TREE, (root,))}
        for key in self._trees:
            self._orphans |= mentioned(
                db.execute("SELECT data FROM events WHERE id BETWEEN ? AND ?", span(key))
            )
        self._look(db)

    def carry_out(self, db: apsw.Connection) -> None:
        """Delete the tree. Runs inside a write transaction."""
        root = self._root
        forget_outputs(db, root)
        sessions: set[str] = set()
        for key in self._trees:
            named = "SELECT session FROM events WHERE id BETWEEN ? AND ? AND session IS NOT NULL"
            sessions.update(session for (session,) in db.execute(named, span(key)))
            db.execute("DELETE FROM events WHERE id BETWEEN ? AND ?", span(key))
        db.execute("DELETE FROM logs WHERE log = ?1 OR root_run_id = ?1", (root,))
        for rest in (
            "cache WHERE run_id IN (SELECT run_id FROM runs WHERE root_run_id = ?)",
            "runs WHERE root_run_id = ?",
            "requests WHERE root = ?",
            "claims WHERE root = ?",
        ):
            db.execute(f"DELETE FROM {rest}", (root,))  # noqa: S608 - constants only
        db.executemany("DELETE FROM leases WHERE root = ?", [(name,) for name in (root, *sessions)])
        self._look(db)
        self._orphans.difference_update(hash for (hash,) in db.execute(_HELD))
        db.executemany("DELETE FROM blobs WHERE hash = ?", [(hash,) for hash in sorted(self._orphans)])

    def _look(self, db: apsw.Connection) -> None:
        """Remove the blobs that other trees mention, starting after the events of the last search."""
        for tree, last in _trees(db):
            if tree in self._trees or not self._orphans:
                continue
            start = self._seen.get(tree, span(tree)[0])
            if last > start:
                rows = db.execute("SELECT data FROM events WHERE id > ? AND id <= ?", (start, last))
                self._orphans -= mentioned(rows)
                self._seen[tree] = last


def _trees(db: apsw.Connection) -> list[tuple[int, int]]:
    """Return the key of each tree and the id of its last event."""
    trees: list[tuple[int, int]] = []
    end = 0
    while True:
        # The first event of the next tree, then the last event of that tree.
        first: int | None = db.execute("SELECT min(id) FROM events WHERE id > ?", (end,)).get
        if first is None:
            return trees
        key = first >> KEY_SHIFT
        end = span(key)[1]
        trees.append((key, db.execute("SELECT max(id) FROM events WHERE id <= ?", (end,)).get))


def mentioned(rows: Iterable[tuple[bytes]]) -> set[str]:
    """Return every hash that occurs in the data of the given events."""
    found: set[bytes] = set()
    for (data,) in rows:
        found.update(re.findall(_HASHES, data))
    return {hash.decode() for hash in found}


# -----------------------------------------------------------------------------------------------------------
# Verification of stored data: chains, seals, and content against its hash

_ROW = "id, log, session, seq, at, type, epoch, path, data, chain"
_LAST = f"SELECT coalesce(max(events.id), 0) FROM events WHERE events.id >> {KEY_SHIFT} = logs.key"  # noqa: S608 - constants only
_OF_TREE = {
    "logs": "log = ?1 OR root_run_id = ?1",
    "runs": "run_id = ?1 OR root_run_id = ?1",
    "blobs": "root_run_id = ?1",
    "leases": "root = ?1",
    "requests": "root = ?1",
    "claims": "root = ?1",
    "cache": "run_id = ?1 OR run_id IN (SELECT run_id FROM runs WHERE root_run_id = ?1)",
}


def check(db: apsw.Connection, root: str | None) -> list[Damage]:
    """Return all damage of one tree, or of the whole store."""
    if root is not None:
        rows = (text for table, where in _OF_TREE.items() for text in sealing.changed(db, table, where, root))
        return [Damage(root, text) for text in (*rows, *_tree(db, root))]
    found = [Damage("", text) for table in sealing.SEALED for text in sealing.changed(db, table)]
    found += [Damage(tree, text) for tree in roots(db) for text in _tree(db, tree)]
    query = f"SELECT count(*) FROM events WHERE id >> {KEY_SHIFT} NOT IN (SELECT key FROM logs)"  # noqa: S608 - constants only
    if count := db.execute(query).get:
        found.append(Damage("", f"{count} rows of the table events belong to no log"))
    blobs = db.execute("SELECT hash, content FROM blobs WHERE hash IS NOT NULL OR content IS NOT NULL")
    return found + [Damage("", text) for text in _unlike_their_name(blobs)]


def unkeyed(db: apsw.Connection, root: str) -> int:
    """Count the first events of a tree that have plain links, which any program can compute."""
    found = db.execute("SELECT key, unkeyed FROM logs WHERE log = ?", (root,)).fetchone()
    if found is None or not isinstance(found[0], int):
        return 0
    first, last = span(found[0])
    if sealing.key_of(db):
        last = found[1] if isinstance(found[1], int) else -1
    count = "SELECT count(*) FROM events WHERE id BETWEEN ? AND ? AND session IS NULL"
    return int(db.execute(count, (first, last)).get or 0)


def bind(db: apsw.Connection, *, adopt: bool = False) -> None:
    """Seal every row with the key of this connection, and record that the existing links are plain.

    A row whose plain seal does not match keeps it, so `check` still reports it. With `adopt`, the seals and
    links were made with an unknown key. Then nothing can be verified, and the links are rebuilt without a
    key.
    """
    if adopt:
        for (tree,) in db.execute("SELECT key FROM logs WHERE log = root_run_id").fetchall():
            if isinstance(tree, int):
                _make_plain(db, tree)
    for table, columns in sealing.COLUMNS.items():
        before = columns.removesuffix(_ADDED.get(table, ""))
        fits = "1" if adopt else f"seal IS plain_seal({before})"
        what = f"unkeyed = ({_LAST}), seal = NULL" if table == "logs" else f"seal = seal({columns})"
        db.execute(f"UPDATE {table} SET {what} WHERE {fits}")  # noqa: S608 - constants only
    sealing.reseal(db, "logs", "seal IS NULL AND unkeyed IS NOT NULL")


def _make_plain(db: apsw.Connection, tree: int) -> None:
    before = b""
    since: list[tuple[Any, ...]] = []
    for *row, chained in list(stored_rows(db, tree, _ROW)):
        since.append((*row, None))
        if isinstance(chained, bytes):
            state = sealing.state_of(chained)
            before, since = sealing.link(before, state, since), []
            db.execute("UPDATE events SET chain = ? WHERE id = ?", (before + state, row[0]))


def _tree(db: apsw.Connection, root: str) -> Iterator[str]:
    found = db.execute("SELECT key, reaches, unkeyed FROM logs WHERE log = ?", (root,)).fetchone()
    if found is None or not isinstance(found[0], int):
        yield "the log is gone"
        return
    key, reaches, unkeyed = found
    plain = unkeyed if isinstance(unkeyed, int) else -1
    yield from sealing.breaks(stored_rows(db, key, _ROW), reaches, sealing.key_of(db), plain)
    query = "SELECT max(epoch) FROM events WHERE id BETWEEN ? AND ? AND session IS NULL"
    ends = db.execute(query, span(key)).get or 0
    epoch = db.execute("SELECT epoch FROM leases WHERE root = ?", (root,)).get or 0
    if not isinstance(ends, int) or not isinstance(epoch, int) or epoch < ends:
        yield f"the lease is of epoch {epoch}, but the log goes on to epoch {ends}"
    names = mentioned((data,) for _, data in stored_rows(db, key, "id, data") if isinstance(data, bytes))
    held = "SELECT hash, content FROM blobs WHERE hash IN (SELECT value FROM json_each(?))"
    yield from _unlike_their_name(db.execute(held, (as_text(sorted(names)),)))


def _unlike_their_name(blobs: Iterable[tuple[object, object]]) -> Iterator[str]:
    for name, content in blobs:
        if not isinstance(content, bytes) or blake2b(content, digest_size=16).hexdigest() != name:
            yield f"the content stored as {name} is not what was stored"
