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

from fanfold.process_identity import ProcessIdentity
from fanfold.store.protocol import Claim, Request
from fanfold.store.sqlite import SqliteStore
from tests.sampling import spread

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
    store = SqliteStore(project / ".fanfold")
    waiting = store.heads(status="waiting")[0].run_id
    store.request(Request(root=waiting, run_id=waiting, kind="pause", data={}, at=1))
    dead = store.acquire(waiting, ProcessIdentity("an earlier boot", 4711, "12345", "1"))
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
        if table in ("cache", "requests", "claims"):
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
