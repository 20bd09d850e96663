"""The tables, as numbered migrations that carry an old database forward without loss.

Rules
* A migration, once released, never changes; a change of the tables is a new migration at the end.
* Each migration is one transaction together with its number (`user_version`): a crash leaves the
  database at the number before or after, never between.
* A database with a higher number than this code knows is refused untouched, and so is a file that some
  other program made (`application_id`).

Why the tables look as they do
* `logs` holds once per log what every envelope of that log repeats, so an event's row stays small.
* `events.id` is (tree key << 32) + place in the tree, so replaying a tree is one range of one B-tree and
  a commit dirties one page of it. `log` is NULL for events of the tree's own log; only child runs pay
  for the second index. A session's log is a tree of its own, with its `seq` as the place.
* `outputs` is only ever appended to (a deleted tree leaves one row that says so), so a reader that
  remembers the last number it saw misses nothing.
"""

from __future__ import annotations

import apsw

from fanfold.store.protocol import StoreFault

APPLICATION_ID = 0x46414E46  # "FANF": how `file` and other programs recognise the database

BASE = """
CREATE TABLE logs (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  log TEXT NOT NULL UNIQUE,
  session INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT,
  depth INTEGER NOT NULL,
  path TEXT NOT NULL
);
CREATE INDEX logs_by_root ON logs (root_run_id);

CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  log INTEGER,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  type TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_children ON events (log, seq) WHERE log IS NOT NULL;

CREATE TABLE blobs (
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  content BLOB NOT NULL
);

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
  agents INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX runs_by_root ON runs (root_run_id);
CREATE INDEX runs_by_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE outputs (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  root_run_id TEXT NOT NULL,
  path TEXT NOT NULL,
  role TEXT NOT NULL,
  status TEXT NOT NULL,
  blob TEXT NOT NULL,
  at INTEGER NOT NULL
);

CREATE TABLE leases (
  root TEXT PRIMARY KEY,
  epoch INTEGER NOT NULL,
  boot_id TEXT,
  pid INTEGER,
  started TEXT
) WITHOUT ROWID;

CREATE TABLE requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  root TEXT NOT NULL,
  run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX requests_by_root ON requests (root);
"""

REUSE = """
-- Completed steps whose result may be taken again, and where a forked run came from.
CREATE TABLE cache (
  key TEXT PRIMARY KEY,
  blob TEXT NOT NULL,
  run_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX cache_by_run ON cache (run_id);
ALTER TABLE runs ADD COLUMN forked_from TEXT;

-- Writes that failed; see `faults.py` for why one is counted.
CREATE TABLE failed_writes (count INTEGER NOT NULL);
INSERT INTO failed_writes VALUES (0);
"""

MIGRATIONS = (BASE, REUSE)


def check_readable(db: apsw.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """For a database that cannot be migrated: refuse one whose tables are not the newest."""
    number, known = _version(db), len(migrations)
    _refuse_strangers(db, number, known)
    if number != known:
        raise StoreFault(
            "store.read_only",
            "the database was written by an older Fanfold and cannot be brought up to date here",
            hint="open the project once where its .fanfold folder may be written",
        )


def migrate(db: apsw.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the tables to the newest number; what was stored stays."""
    known = len(migrations)
    if _version(db) == known:
        return
    while True:
        db.execute("BEGIN IMMEDIATE")
        try:
            number = _version(db)  # another process may have migrated while this one waited
            _refuse_strangers(db, number, known)
            if number == known:
                return
            db.execute(migrations[number])
            db.execute(
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number + 1}; COMMIT"
            )
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def _version(db: apsw.Connection) -> int:
    return int(db.pragma("user_version"))


def _refuse_strangers(db: apsw.Connection, number: int, known: int) -> None:
    application = db.pragma("application_id")
    empty = next(db.execute("SELECT count(*) FROM sqlite_schema"))[0] == 0
    if application != APPLICATION_ID and not (empty and number == 0):
        raise StoreFault(
            "store.foreign",
            f"{db.filename} is a database of some other program",
            hint="move it away; Fanfold then starts a new one",
        )
    if number > known:
        raise StoreFault(
            "store.newer",
            f"{db.filename} was written by a newer Fanfold (tables {number}, this one knows {known})",
            hint="upgrade Fanfold, or open the project with the version that wrote it",
            details={"found": number, "known": known},
        )
