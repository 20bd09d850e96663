"""The suite of every store, on PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from fanfold.store.address import PostgresAddress
from fanfold.store.postgres_tables import VERSION
from fanfold.store.protocol import StoreFault
from fanfold.testing.store_suite import StoreSuite
from fanfold.workspace.layout import remote_name
from tests.work import PATIENCE_S
from tools.postgresql import PostgresServer

pytestmark = pytest.mark.full


class TestPostgres(StoreSuite):
    @pytest.fixture
    def address(self, server: PostgresServer) -> PostgresAddress:
        return PostgresAddress(
            url=server.url, project=f"test/{uuid4().hex}", expiry_s=self.expiry_s, patience_s=20
        )


RECIPE = """\
name: hello
steps:
  - {id: look, agent: explorer, prompt: "Find out."}
  - {id: ok, approve: "Go on?", depends_on: [look]}
  - {id: more, agent: explorer, prompt: "More: {{steps.look.output}}", depends_on: [ok]}
output: "{{steps.more.output}}"
"""


class Machine:
    """A folder and a home of its own, with the same database."""

    def __init__(self, place: Path, url: str, project: str) -> None:
        self.folder, self.home = place / "project", place / "home"
        self.folder.mkdir(parents=True)
        self.home.mkdir()
        self._env = {**os.environ, "HOME": str(self.home), "FANFOLD_STORE": url, "FANFOLD_PROJECT": project}

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            cwd=self.folder, env=self._env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


def test_a_run_is_inspected_answered_and_resumed_on_another_machine(server: PostgresServer, tmp_path: Path):
    project = f"test/{uuid4().hex}"
    one, other = (Machine(tmp_path / name, server.url, project) for name in ("one", "other"))
    (one.folder / "hello.yaml").write_text(RECIPE)
    (one.folder / "script.yaml").write_text("default: three facts\n")
    assert one("run", "hello.yaml", "--script", "script.yaml", "--yes")[0] == 3
    status, out, _ = other("inspect", "last", "--json")
    found = json.loads(out)
    assert (status, found["status"], found["steps"]["look"]["output"]) == (0, "waiting", "three facts")
    assert other("approve", "last", "ok")[0] == 0
    assert other("watch", "last")[0] == 0
    status, out, _ = one("resume", "last", "--json")
    assert (status, json.loads(out)["output"]) == (0, "three facts")
    assert one("verify", "--all")[0] == other("verify", "--all")[0] == 0
    assert "three facts" in other("query", "facts")[1]
    assert not (other.folder / ".fanfold" / "fanfold.db").exists()
    stranger = Machine(tmp_path / "stranger", server.url, f"test/{uuid4().hex}")
    assert json.loads(stranger("runs", "--json")[1]) == []


def test_tables_are_created_once_and_another_version_is_left_untouched(tmp_path: Path):
    server = PostgresServer()
    try:
        here = Machine(tmp_path / "here", server.url, "team/tests")
        status, _, err = here("runs")
        assert status != 0
        assert "error[store.no_tables]" in err
        assert "fanfold cluster init" in err
        assert "created the tables" in here("cluster", "init")[1]
        assert json.loads(here("cluster", "init", "--json")[1])["before"] == VERSION
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("UPDATE fanfold.about SET value = '99' WHERE name = 'format'")
        address = PostgresAddress(url=server.url, project="team/tests")
        for change in (address.open, address.init, address.exists):
            with pytest.raises(StoreFault) as refused:
                change()
            assert refused.value.code == "store.newer"
        with psycopg.connect(server.url) as db:
            assert db.execute("SELECT value FROM fanfold.about").fetchall() == [("99",)]
            assert db.execute("SELECT count(*) FROM fanfold.projects").fetchone() == (0,)
    finally:
        server.remove()


def test_a_database_that_refuses_a_user_says_what_to_do_and_is_not_asked_again(tmp_path: Path):
    server = PostgresServer()
    try:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        server.require_password("guarded")
        guarded = server.url.replace("fanfold@", "guarded@")
        for url, advice in (
            (guarded, "the password comes from PGPASSWORD"),
            (server.url.replace("/postgres?", "/nothing?"), "createdb"),
        ):
            refused = Machine(tmp_path / advice, url, "team/tests")("runs")
            assert refused[0] == 1
            assert advice in refused[2].partition("hint: ")[2]
    finally:
        server.remove()


@pytest.mark.parametrize("name", ["/srv/app", "./app", "../app", "~/app"])
def test_a_path_is_no_name_of_a_project(tmp_path: Path, name: str):
    status, _, err = Machine(tmp_path, "postgresql://127.0.0.1:1/none", name)("runs")
    assert status == 2
    assert "error[config.no_project]" in err


def test_tables_of_an_earlier_format_are_migrated_and_keep_their_runs(tmp_path: Path):
    server = PostgresServer()
    try:
        here = Machine(tmp_path / "here", server.url, "team/tests")
        here("cluster", "init")
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("DROP TABLE fanfold.announcements")
            db.execute("UPDATE fanfold.about SET value = '1' WHERE name = 'format'")
        assert "error[store.older]" in here("runs")[2]
        assert json.loads(here("cluster", "init", "--json")[1])["before"] == 1
        store = PostgresAddress(url=server.url, project="team/tests").open()
        store.announce("one", "{}")
        assert [one.name for one in store.announced()] == ["one"]
        store.close()
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("git@github.com:team/app.git", "github.com/team/app"),
        ("https://user:secret@Example.org:8443/team/app/", "example.org/team/app"),
        ("ssh://git@example.org:22/team/app.git", "example.org/team/app"),
        ("/srv/git/app.git", None),
        ("../app", None),
        ("file:///srv/git/app.git", None),
    ],
)
def test_the_git_remote_names_the_project_and_a_path_does_not(tmp_path: Path, url: str, name: str | None):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert remote_name(tmp_path) is None
    subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", url], check=True)
    assert remote_name(tmp_path) == name
    (tmp_path / "below").mkdir()
    assert remote_name(tmp_path / "below") == (None if name is None else f"{name}/below")
