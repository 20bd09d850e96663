"""Whatever is changed in the database behind Fanfold's back, `verify` finds it.

Each kind of edit of each column is tried in one row, and each two events change places in one column, chosen
by a seed; in `make hostile` in three rows and in all columns.
"""

import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fanfold.process_identity import ProcessIdentity, machine_name
from fanfold.store.protocol import Claim, Request
from fanfold.store.sealing import COLUMNS as SEALED_COLUMNS
from fanfold.store.sealing import LINK_BYTES, Database, link, prepare, state_of
from fanfold.store.sqlite import SqliteStore
from fanfold.store.tables import bind
from fanfold.workspace.seal import chain_key
from tests.sampling import spread
from tests.sessions.trees import wait_until

pytestmark = pytest.mark.full

EVERYTHING = os.environ.get("HOSTILE") == "all"
COLUMNS = ("data", "at", "type", "chain")
RECIPE = """\
name: tour
steps:
  - {id: first, agent: explorer, prompt: "Say yes", cache: true}
  - {id: each, for_each: '["a", "b"]', as: one, agent: explorer, prompt: "{{one}} {{steps.first.output}}"}
  - {id: below, workflow: ./child.yaml}
  - {id: count, handler: "tour_work:count", depends_on: [each]}
  - {id: ask, approve: "Go on?", depends_on: [count]}
  - {id: last, agent: explorer, prompt: "Say good-bye", depends_on: [ask]}
"""
CHILD = "name: child\nsteps: [{id: deep, agent: explorer, prompt: Dig}]\n"


@pytest.fixture
def told(fanfold, project: Path) -> Path:
    """The database of a project with a run that ended, and one that waits, was asked and claims files."""
    (project / "tour.yaml").write_text(RECIPE)
    (project / "child.yaml").write_text(CHILD)
    (project / "script.yaml").write_text(f"default: {'long ' * 20_000}\n")
    (project / "tour_work.py").write_text("def count():\n    return 3\n")
    for _ in range(2):
        fanfold("run", "tour.yaml", "--script", "script.yaml", "--yes")
    first = fanfold("runs", "--json").json()[-1]["run_id"]
    assert fanfold("approve", first, "ask").status == 0
    assert fanfold("watch", first).status == 0
    log = project / ".fanfold" / "fanfold.db-wal"
    wait_until(lambda: not log.exists())  # the process that `approve` started has closed the database
    store = SqliteStore(project / ".fanfold", key=chain_key(Path(os.environ["HOME"]) / ".fanfold"))
    waiting = store.heads(status="waiting")[0].run_id
    store.request(Request(root=waiting, run_id=waiting, kind="pause", data={}, at=1))
    dead = store.acquire(waiting, ProcessIdentity("an earlier boot", 4711, "12345", "1", machine_name()))
    store.claim(dead, Claim(waiting, waiting, "count", ("docs/**",)))
    store.close()
    assert fanfold("verify", "--all").status == 0
    database = project / ".fanfold" / "fanfold.db"
    shutil.copy(database, project / "whole.db")
    return database


Verify = Callable[[str], Any]


@pytest.fixture
def tampered(fanfold, told: Path) -> Verify:
    """Run SQL on the whole database, then `verify --all`; what it says."""

    def tamper(sql: str, *values: Any) -> Any:
        shutil.copy(told.parent.parent / "whole.db", told)
        with closing(sqlite3.connect(told, isolation_level=None)) as db:
            db.execute(sql, values)
            assert db.total_changes, sql
        return fanfold("verify", "--all", "--json")

    return tamper


def tables(database: Path) -> Iterator[tuple[str, list[str], list[tuple[Any, ...]]]]:
    """Each table with its columns and its rows, `rowid` or the key first."""
    with closing(sqlite3.connect(database)) as db:
        names = db.execute(
            "SELECT name, sql LIKE '%WITHOUT ROWID%' FROM sqlite_schema"
            " WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for table, keyed in names:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            key = columns[0] if keyed else "rowid"
            yield table, [key, *columns], db.execute(f"SELECT {key}, * FROM {table}").fetchall()


def other(value: Any) -> list[Any]:
    """Values of the same and of another type."""
    if value is None:
        return [7, "seven"]
    if isinstance(value, int):
        return [value + 1_000_000, str(value) + "x"]
    if isinstance(value, str):
        return [value + "x", None, b"x"]
    middle = len(value) // 2
    return [value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :], b"", b"\xff\xfe", None]


def is_tried(one: Any, every: Sequence[Any], *kind: object) -> bool:
    """Whether this one of several stands for its kind."""
    return EVERYTHING or one == every[spread(1, len(every), *kind)[0] - 1]


def test_every_column_of_every_table(told: Path, tampered):
    tried: dict[str, int] = {}
    for table, (key, *columns), rows in list(tables(told)):
        assert rows, f"the test has no row in {table}"
        places = sorted({0, len(rows) // 2, len(rows) - 1})
        for place in places:
            name, *row = rows[place]
            for column, value in zip(columns, row, strict=True):
                for kind, wrong in enumerate(other(value)):
                    if not is_tried(place, places, table, column, kind):
                        continue
                    try:
                        found = tampered(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", wrong, name)
                    except sqlite3.IntegrityError:
                        continue  # the table itself refuses it
                    what = f"{table}.{column} of row {name!r}: {value!r} to {wrong!r}"
                    assert (found.status, found.json()["ok"]) == (1, False), what
                    tried[f"{table}.{column}"] = tried.get(f"{table}.{column}", 0) + 1
    missed = {f"{table}.{column}" for table, (_, *columns), _ in tables(told) for column in columns} - set(
        tried
    )
    assert missed == set(), "no edit of these was possible"


def test_every_row_that_a_run_needs(told: Path, tampered):
    for table, (key, *_), rows in list(tables(told)):
        if table in ("cache", "requests", "claims", "about"):
            continue  # nothing says that there must be one
        for row in rows:
            found = tampered(f"DELETE FROM {table} WHERE {key} = ?", row[0])
            assert (found.status, found.json()["ok"]) == (1, False), f"{table} {row[0]!r}"


def test_a_log_that_is_cut_off_anywhere(told: Path, tampered):
    ids = next(rows for table, _, rows in tables(told) if table == "events")
    for row in ids:
        found = tampered("DELETE FROM events WHERE id >= ?", row[0])
        assert (found.status, found.json()["ok"]) == (1, False)


def test_a_log_in_another_order(told: Path, tampered):
    (ids,) = ([row[0] for row in rows] for table, _, rows in tables(told) if table == "events")
    for one, two in itertools.pairwise(ids):
        swap = f"CASE id WHEN {one} THEN {two} ELSE {one} END"
        for column in COLUMNS:
            if not is_tried(column, COLUMNS, one):
                continue
            sql = f"UPDATE events SET {column} = (SELECT b.{column} FROM events b WHERE b.id = {swap})"
            with closing(sqlite3.connect(told.parent.parent / "whole.db")) as db:
                pair = db.execute(f"SELECT {column} FROM events WHERE id IN (?, ?)", (one, two)).fetchall()
            if pair[0] != pair[1]:
                found = tampered(f"{sql} WHERE id IN ({one}, {two})".replace("CASE id", "CASE events.id"))
                assert (found.status, found.json()["ok"]) == (1, False), (one, two, column)


def test_an_event_that_cannot_be_read_is_broken_and_no_bug(fanfold, told: Path, tampered):
    for wrong in (b"\xff", b"{", b'"text"', b"null", b'{"kind":"never heard of"}'):
        found = tampered("UPDATE events SET data = ? WHERE id = (SELECT min(id) + 524288 FROM events)", wrong)
        assert found.status == 1
        said = fanfold("verify", "--all").out
        assert "broken" in said
        for run in fanfold("runs", "--json").json():
            assert fanfold("verify", run["run_id"]).status in (0, 1)
            assert fanfold("replay", run["run_id"]).status in (0, 1)


# ------------------------------------------------------------------- by somebody who knows the format


def forge(database: Path, key: bytes, what: str = "1") -> None:
    """Change the time of one row of each tree, and make every hash again with the code that makes them."""
    db = Database(str(database))
    db.key = key
    prepare(db)
    rows = f"SELECT min(id) FROM events WHERE {what} GROUP BY id >> 41"
    db.execute(f"UPDATE events SET at = at + 1 WHERE id IN ({rows})")
    for (tree,) in db.execute("SELECT key FROM logs").fetchall():
        before, since = b"", list[tuple[Any, ...]]()
        query = (
            "SELECT id, log, session, seq, at, type, epoch, path, data, chain FROM events WHERE id >> 41 = ?"
        )
        for *values, chained in db.execute(f"{query} ORDER BY id", (tree,)).fetchall():
            since.append((*values, None))
            if isinstance(chained, bytes):
                before, since = link(before, state_of(chained), since, key), []
                assert len(before) == LINK_BYTES
                made = before + state_of(chained)
                db.execute("UPDATE events SET chain = ? WHERE id = ?", (made, values[0]))
    for table, columns in SEALED_COLUMNS.items():
        db.execute(f"UPDATE {table} SET seal = seal({columns})")
    db.close()


@pytest.mark.parametrize("key", [b"", b"a secret of somebody else"], ids=["no key", "another key"])
def test_a_log_whose_hashes_were_made_again_without_the_secret(fanfold, told: Path, key: bytes):
    forge(told, chain_key(Path(os.environ["HOME"]) / ".fanfold"), "0")
    assert fanfold("verify", "--all").status == 0, "only who knows the secret can make these hashes"
    forge(told, key, "0")
    found = fanfold("verify", "--all", "--json")
    assert (found.status, found.json()["ok"]) == (1, False)
    assert all(not run["ok"] for run in found.json()["runs"])


def test_a_changed_session_differs_from_the_link_that_the_end_of_its_step_names(fanfold, told: Path):
    forge(told, chain_key(Path(os.environ["HOME"]) / ".fanfold"), "session IS NOT NULL")
    found = fanfold("verify", "--all", "--json")
    assert (found.status, found.json()["ok"]) == (1, False)
    assert all("its chain differs" in run["violations"][0]["message"] for run in found.json()["runs"])


def test_a_log_whose_hashes_were_made_again_and_noted_as_older_than_the_key(fanfold, told: Path):
    forge(told, b"")
    db = Database(str(told))
    prepare(db)
    bind(db)
    db.close()
    assert fanfold("verify", "--all").status == 1


def test_a_database_that_claims_to_be_older_than_the_key(fanfold, told: Path):
    forge(told, b"")
    with closing(sqlite3.connect(told, isolation_level=None)) as db:
        db.execute("ALTER TABLE logs DROP COLUMN unkeyed")
        db.execute("DELETE FROM about WHERE name = 'key'")
        db.execute("PRAGMA user_version = 3")
    refused = fanfold("verify", "--all")
    assert "error[store.replaced]" in refused.err


def test_events_of_another_users_state_are_named_as_not_keyed(
    fanfold, told: Path, monkeypatch, tmp_path: Path
):
    assert all(run["unkeyed"] == 0 for run in fanfold("verify", "--all", "--json").json()["runs"])
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "other"))
    assert fanfold("state", "adopt", "--yes").status == 0
    said = fanfold("verify", "--all")
    assert said.status == 0, said.out
    assert "none of them keyed" in said.out
    assert all(run["unkeyed"] == run["events"] for run in fanfold("verify", "--all", "--json").json()["runs"])


FORMS = [
    ("a trigger", "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM requests; END"),
    ("a view", "CREATE VIEW v AS SELECT * FROM runs"),
    ("a table", "CREATE TABLE more (name TEXT)"),
    ("a column", "ALTER TABLE runs ADD COLUMN more TEXT"),
    ("a column that is worked out", "ALTER TABLE runs ADD COLUMN more TEXT GENERATED ALWAYS AS ('x')"),
    ("no index", "DROP INDEX events_of_sessions"),
    ("another index", "DROP INDEX runs_by_root; CREATE INDEX runs_by_root ON runs (recipe)"),
    ("a table by another name", "ALTER TABLE cache RENAME TO cached"),
    ("no name of the key", "DELETE FROM about WHERE name = 'key'"),
    ("nothing about itself", "DELETE FROM about"),
]


@pytest.mark.parametrize("edit", [row[1] for row in FORMS], ids=[row[0] for row in FORMS])
def test_a_database_with_other_tables_is_found(fanfold, told: Path, edit: str):
    with closing(sqlite3.connect(told, isolation_level=None)) as db:
        db.executescript(edit)
    assert fanfold("verify", "--all").status != 0


def test_a_planted_trigger_has_nothing_sealed(fanfold, project: Path, told: Path):
    columns = SEALED_COLUMNS["requests"]
    with closing(sqlite3.connect(told, isolation_level=None)) as db:
        root = db.execute("SELECT root FROM requests").fetchone()[0]
        db.execute(
            "CREATE TRIGGER t AFTER INSERT ON events BEGIN"
            f" INSERT OR IGNORE INTO requests VALUES (9001, '{root}', '{root}', 'cancel', '{{}}', 1, NULL);"
            f" UPDATE requests SET seal = seal({columns}) WHERE id = 9001; END"
        )
    (project / "quick.yaml").write_text("name: quick\nsteps: [{id: a, agent: explorer, prompt: p}]\n")
    assert fanfold("run", "quick.yaml", "--script", "script.yaml").status == 0
    with closing(sqlite3.connect(told, isolation_level=None)) as db:
        assert db.execute("SELECT count(*) FROM requests WHERE id = 9001").fetchone() == (0,)
    assert fanfold("verify", "--all").status == 1
