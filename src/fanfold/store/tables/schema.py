"""The tables: one version of them, and how anything else is told apart.

Rules
* Tables are made in one transaction together with their number (`user_version`): a crash leaves an empty
  database or a whole one.
* A database with another number than this code's is refused untouched, and so is one from before the tables
  had a version (`BEFORE`), or a file that some other program made (`application_id`).

Why the tables look as they do
* What a step costs on the disk is the pages it dirties: one for each B-tree it adds a row to. So events of
  runs and entries of sessions share one table, values and outputs another, a session has no row of its own
  anywhere, and an index is made only where nothing else leads to a row. A test counts.
* `logs` holds once per run what every envelope of its log repeats, so an event's row stays small.
* `events.id` is where a row stands in its tree (see `logs.py`), so replaying a tree is one range of one
  B-tree. `log` is NULL for events of the tree's own log; only child runs pay for their index. `session` is
  set on entries of sessions alone, and `path`, the step that a session serves, on its first entry.
* `blobs` holds values and, in the same row, whose output a value is (see `values.py`). Content stands last,
  so that looking at outputs reads none of it.
* An edit is found in every column: events carry the links of a chain (`chain.py`), values are named by their
  hash, every row that is no event has a seal (`seals.py`).
"""

from __future__ import annotations

from typing import Any

import apsw

from fanfold.store.protocol import StoreFault

APPLICATION_ID = 0x46464F4C  # "FFOL": how `file` and other programs recognise the database
BEFORE = 0x46414E46
"""What databases carried before there was a first version."""
VERSION = 2

TABLES = """
CREATE TABLE logs (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  log TEXT NOT NULL UNIQUE,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT,
  depth INTEGER NOT NULL,
  path TEXT NOT NULL,
  reaches INTEGER,
  seal BLOB
);
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
) WITHOUT ROWID;

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


_FACTS = (
    "SELECT (SELECT application_id FROM pragma_application_id),"
    " (SELECT user_version FROM pragma_user_version), count(*) FROM sqlite_schema"
)


def is_made(db: apsw.Connection) -> bool:
    """Whether the tables are there; raises `StoreFault` for a database that is not ours to use."""
    facts: tuple[Any, ...] = db.execute(_FACTS).fetchall()[0]  # one statement: one moment
    application, number, tables = facts
    ours = application == APPLICATION_ID
    if application == BEFORE or (ours and tables and number < VERSION):
        raise StoreFault(
            "store.older",
            f"{db.filename} was written by an older Fanfold (tables {number}, this one knows {VERSION})",
            hint="move it away; Fanfold then starts a new one, without the runs of this one",
        )
    if not ours and (tables or number):
        raise StoreFault(
            "store.foreign",
            f"{db.filename} is a database of some other program",
            hint="move it away; Fanfold then starts a new one",
        )
    if number > VERSION:
        raise StoreFault(
            "store.newer",
            f"{db.filename} was written by a newer Fanfold (tables {number}, this one knows {VERSION})",
            hint="upgrade Fanfold, or open the project with the version that wrote it",
            details={"found": number, "known": VERSION},
        )
    return bool(number == VERSION)


def check_readable(db: apsw.Connection) -> None:
    """For a database that cannot be written: refuse one without tables."""
    if not is_made(db):
        raise StoreFault(
            "store.read_only",
            "the database holds nothing yet and cannot be written",
            hint="open the project once where its .fanfold folder may be written",
        )


def create(db: apsw.Connection) -> None:
    """Make the tables of a new database; those of an old one stay as they are."""
    if is_made(db):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if not is_made(db):  # else another process made them while this one waited
            db.execute(TABLES)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
