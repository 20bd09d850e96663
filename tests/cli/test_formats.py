"""Databases of every kept format are opened, read and resumed; newer ones name the release to install.

`tests/store/databases/format-N.db.xz` was written by the code of format N and is never written again. Each
holds a completed run with a child run, one that waits for an approval, one that max_agents paused, one that
failed in part, and a spawned agent. The present format has one too, so a changed event or plan is noticed
without a new format. A change of the format adds a database: repeat these runs.
"""

import lzma
import os
from hashlib import blake2b
from pathlib import Path

import apsw
import pytest

from fanfold.process_identity import this_process
from fanfold.store import database as folder
from fanfold.store import postgres_tables, tables
from fanfold.store.sqlite import SqliteStore
from fanfold.workspace.seal import adopt, claim

DATABASES = sorted((Path(__file__).parent.parent / "store" / "databases").glob("format-*.db.xz"))
KEPT, CAPPED, WAITS, FAILS = "pk07ayyf04ks", "xmmk8q1hpr24", "4mshzzc9953t", "5h92gby9zawn"


@pytest.fixture(params=DATABASES, ids=lambda file: file.name.removesuffix(".db.xz"))
def older(project: Path, request: pytest.FixtureRequest) -> Path:
    """A project with a database of an earlier format, or an older one of this format."""
    home = Path(os.environ["HOME"]) / ".fanfold"
    claim(project, home)
    database = project / ".fanfold" / "fanfold.db"
    database.write_bytes(lzma.decompress(request.param.read_bytes()))
    adopt(project, home)
    return database


LAYOUTS = {3: "33304e5b9f899b8f", 4: "989ee8f96c0febd2", 5: "7c481ba0c45f9ebd"}
"""Of each format: the hash of its tables and indexes."""
POSTGRES_LAYOUTS = {1: "e18f8987b29328e9", 2: "93160a350ba5a3e2"}


def layout(database: Path) -> set[tuple[str, str]]:
    db = apsw.Connection(str(database))
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    db.close()
    return {(str(name), " ".join(str(sql).split())) for name, sql in rows}


def test_a_database_of_every_format_is_kept():
    assert [int(file.name[7]) for file in DATABASES] == list(range(tables.FIRST, tables.VERSION + 1))
    assert sorted(tables.MIGRATIONS) == list(range(tables.FIRST, tables.VERSION))


def test_a_changed_layout_has_a_new_version(tmp_path: Path):
    """To change the tables, raise `VERSION` and add a row to `LAYOUTS`; never change a row."""
    SqliteStore(tmp_path / "new").close()
    text = repr(sorted(layout(tmp_path / "new" / "fanfold.db")))
    assert {tables.VERSION: blake2b(text.encode(), digest_size=8).hexdigest()}.items() <= LAYOUTS.items()


def test_a_changed_layout_of_postgresql_has_a_new_version():
    """To change the tables or the function, raise its `VERSION` and add a row; never change a row."""
    text = " ".join(postgres_tables.script().split())
    hashed = blake2b(text.encode(), digest_size=8).hexdigest()
    assert {postgres_tables.VERSION: hashed}.items() <= POSTGRES_LAYOUTS.items()


def test_an_older_database_is_read(fanfold, older: Path):
    runs = {run["run_id"]: run["status"] for run in fanfold("runs", "--json").json()}
    assert runs == {
        KEPT: "completed",
        CAPPED: "paused",
        WAITS: "waiting",
        FAILS: "partial",
        "hand": "waiting",
    }
    kept = fanfold("inspect", KEPT, "--json").json()
    assert kept["output"] == "done with nested/echo"
    assert kept["steps"]["each"]["output"] == ["done with each[0]", "done with each[1]"]
    assert "three facts about owls" in fanfold("query", "facts").out
    assert fanfold("verify", "--all").status == 0


@pytest.mark.full
def test_runs_of_an_older_database_are_resumed_and_answered(fanfold, older: Path):
    resumed = fanfold("resume", CAPPED, "--max-agents", "4", "--json")
    assert (resumed.status, resumed.json()["status"]) == (0, "completed")
    assert len(resumed.json()["output"]) == 4
    assert fanfold("approve", WAITS, "release").status == 0
    assert fanfold("watch", WAITS).status == 0
    assert fanfold("inspect", WAITS, "--json").json()["output"] == "done with ship"
    assert fanfold("verify", "--all").status == 0


def test_an_older_database_has_the_tables_of_a_new_one_afterwards(fanfold, older: Path, tmp_path: Path):
    fanfold("runs")
    SqliteStore(tmp_path / "new").close()
    assert layout(older) == layout(tmp_path / "new" / "fanfold.db")


def test_an_older_database_that_may_not_be_written_is_read_as_it_is(
    fanfold, older: Path, monkeypatch: pytest.MonkeyPatch
):
    before = older.read_bytes()
    monkeypatch.setattr(folder, "is_protected", lambda path: True)
    assert fanfold("inspect", KEPT, "--json").json()["output"] == "done with nested/echo"
    assert older.read_bytes() == before


@pytest.mark.parametrize("older", DATABASES[:-1], indirect=True, ids=lambda file: file.name[:8])
def test_a_migration_that_fails_leaves_the_database_as_it_was(
    fanfold, older: Path, monkeypatch: pytest.MonkeyPatch
):
    last = tables.VERSION - 1
    before = layout(older)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "MIGRATIONS", {**tables.MIGRATIONS, last: lambda db: db.execute("no SQL")})
        assert fanfold("runs").status != 0
    assert layout(older) == before
    assert fanfold("inspect", KEPT).status == 0


def test_this_format_is_migrated_by_the_next(fanfold, older: Path, monkeypatch: pytest.MonkeyPatch):
    fanfold("runs")  # now of this format
    add = "ALTER TABLE runs ADD COLUMN tags TEXT"
    later = {**tables.MIGRATIONS, tables.VERSION: lambda db: db.execute(add)}
    monkeypatch.setattr(tables, "MIGRATIONS", later)
    monkeypatch.setattr(tables, "VERSION", tables.VERSION + 1)
    assert fanfold("inspect", KEPT).status == 0
    assert any("tags" in sql for _, sql in layout(older))


def make_newer(file: Path) -> None:
    """Give a database the format number and the release of a later Fanfold."""
    db = apsw.Connection(str(file))
    db.execute("UPDATE about SET value = '7.1.0'; PRAGMA user_version = 99")
    db.close()


def test_a_newer_database_is_refused_with_the_release_to_install(fanfold, older: Path):
    fanfold("runs")
    make_newer(older)
    refused = fanfold("runs")
    assert "error[store.newer]" in refused.err
    assert 'pip install "fanfold>=7.1.0"' in refused.err


@pytest.mark.full
def test_doctor_reports_a_newer_database_as_an_error(fanfold, older: Path):
    fanfold("runs")
    make_newer(older)
    store = next(one for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "store")
    assert (store["ok"], store["hint"]) == (False, 'install it: pip install "fanfold>=7.1.0"')


def test_an_older_database_with_a_live_owner_is_left_to_it(fanfold, older: Path):
    fanfold("runs")
    store = SqliteStore(older.parent)
    lease = store.acquire(CAPPED)
    assert lease.owner == this_process()
    store._db.execute("DROP TABLE about")
    store._db.execute("PRAGMA user_version = 2")
    refused = fanfold("runs")
    assert "error[store.busy]" in refused.err
    assert CAPPED in refused.err
    store.close()
