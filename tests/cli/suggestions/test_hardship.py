"""What is suggested when the world fails (damaged stores, full disks, providers), carried out as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.cli.suggestions.following import Fanfold, Follow, commands
from tests.cli.suggestions.places import filled, suggested
from tests.e2e.world import Provider
from tests.kill.test_containers import can_unshare
from tests.provider import Fault, RecordedRequest, Reply
from tools.postgresql import PostgresServer, program

RECIPE = """\
name: r
steps:
  - {id: a, agent: explorer, prompt: a, retry: {attempts: 1}}
  - {id: b, agent: explorer, prompt: b, depends_on: [a], retry: {attempts: 1}}
"""


@pytest.fixture
def done(fanfold: Fanfold, project: Path) -> Path:
    """The database of a project that ran once."""
    (project / "r.yaml").write_text(RECIPE)
    (project / "s.yaml").write_text("default: ok\n")
    assert fanfold("run", "r.yaml", "--script", "s.yaml").status == 0
    return project / ".fanfold" / "fanfold.db"


@pytest.mark.parametrize("damage", ["pages", "all of it"])
def test_a_damaged_database_can_be_moved_away_as_suggested(fanfold: Fanfold, done: Path, damage: str) -> None:
    content = done.read_bytes()
    kept = content[:4096] if damage == "pages" else b""
    done.write_bytes(kept + b"\x5a" * (len(content) - len(kept)))
    for words in (
        ["runs"],
        ["inspect", "last"],
        ["run", "r.yaml", "--script", "s.yaml"],
        ["verify", "--all"],
    ):
        refused = fanfold(*words)
        assert (refused.status, "store.corrupt" in refused.err) == (1, True), refused
        assert "move" in refused.err
        assert "away" in refused.err
    done.rename(done.with_suffix(".damaged"))
    again = fanfold("run", "r.yaml", "--script", "s.yaml")
    assert again.status == 0, again
    assert len(fanfold("runs", "--json").json()) == 1, "a new one was begun"


@pytest.mark.parametrize("data", ['{"kind": 7}', '{"kind": "finished", "status": "completed"}', "[]"])
@suggested("engine/run_tree.py: fanfold verify")
def test_the_suggested_command_reports_edits_of_a_store(
    fanfold: Fanfold, follow: Follow, done: Path, data: str
) -> None:
    db = apsw.Connection(str(done))
    db.execute("UPDATE events SET data = CAST(? AS BLOB) WHERE seq = 2", (data,))
    db.close()
    for words in (["inspect", "last"], ["resume", "last"], ["explain", "last", "a"]):
        refused = fanfold(*words)
        assert (refused.status, "store.corrupt" in refused.err) == (1, True), refused
        assert follow(refused) == ["verify"]
    assert "broken" in fanfold("verify", "last").out


# -- disks


@pytest.mark.full
@pytest.mark.skipif(
    not can_unshare(), reason="needs namespaces and mounts: make test-full on a Linux that allows them"
)
@suggested("store/database.py: free some space", "store/database.py: check the disk")
def test_a_project_on_a_full_disk_continues_as_suggested(
    follow: Follow, tmp_path: Path, project: Path
) -> None:
    """A real disk of a few megabytes, full but for a little; then there is space again."""
    files = tmp_path / "project.files"
    files.mkdir()
    (files / "r.yaml").write_text(RECIPE)
    (files / "s.yaml").write_text("default: ok")
    run = f"{sys.executable} -m fanfold.cli.main"
    script = f"""
mount -t tmpfs -o size=8m none {project} && cp {files}/* {project}/ && cd {project} || exit 99
head -c 8372224 /dev/zero > filler
{run} run r.yaml --script s.yaml --yes > {tmp_path}/first 2>&1; echo $? >> {tmp_path}/first
rm filler
{run} runs --json > {tmp_path}/runs 2>&1
{run} run r.yaml --script s.yaml --yes > {tmp_path}/second 2>&1; echo $? >> {tmp_path}/second
"""
    namespaces = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = subprocess.run([*namespaces, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "first").read_text()
    assert first.endswith("\n1\n"), first
    assert "store.full" in first or "store.io" in first, first
    assert "completed" not in (tmp_path / "runs").read_text(), "nothing was recorded"
    assert (tmp_path / "second").read_text().endswith("\n0\n"), (tmp_path / "second").read_text()
    for place in ("free some space", "check the disk"):
        assert follow(filled(f"store/database.py: {place}"), may=(0,)) == ["runs"]


# -- providers


class Sick:
    """A provider that refuses until it is well."""

    def __init__(self) -> None:
        self.fault: Fault | None = None

    def __call__(self, asked: RecordedRequest) -> Reply | Fault:
        if self.fault is not None and (self.fault.kind != "unknown_model" or "gtp" in asked.model):
            return self.fault
        return Reply(text=f"{asked.model} did it")


@pytest.fixture
def sick() -> Sick:
    return Sick()


@pytest.fixture
def provider(sick: Sick, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    (project / "r.yaml").write_text(RECIPE)
    with Provider(sick) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FANFOLD_MODEL", "openai-chat:gpt-5")
        yield running


@pytest.mark.full
def test_a_run_continues_after_its_wrong_key_is_corrected(
    fanfold: Fanfold, follow: Follow, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    paused = fanfold("run", "r.yaml", "--yes")
    assert (paused.status, "check OPENAI_API_KEY" in paused.err) == (3, True)
    monkeypatch.setenv("OPENAI_API_KEY", provider.environment["OPENAI_API_KEY"])
    assert follow(paused, may=(0,)) == ["resume"]


@pytest.mark.full
def test_a_run_continues_after_its_empty_account_is_topped_up(
    fanfold: Fanfold, follow: Follow, provider: Provider, sick: Sick
) -> None:
    sick.fault = Fault("quota")
    paused = fanfold("run", "r.yaml", "--yes")
    assert (paused.status, "then resume the run" in paused.err) == (3, True)
    sick.fault = None
    assert follow(paused, may=(0,)) == ["resume"]
    assert provider.asked


@pytest.mark.full
def test_a_model_that_does_not_exist_is_corrected_and_what_failed_runs_again(
    fanfold: Fanfold, provider: Provider, sick: Sick, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick.fault = Fault("unknown_model")
    monkeypatch.setenv("FANFOLD_MODEL", "openai-chat:gtp-5")
    failed = fanfold("run", "r.yaml", "--yes")
    assert (failed.status, "model.unknown" in failed.err) == (1, True), failed
    assert "choose another one with --model" in failed.err
    (retry,) = commands(failed.err)
    again = fanfold(*retry, "--model", "openai-chat:gpt-5")
    assert again.status == 0, again
    assert provider.asked[-1].model == "gpt-5"


@pytest.mark.full
def test_a_provider_that_could_not_be_reached_is_there_again_and_what_failed_runs_again(
    fanfold: Fanfold, follow: Follow, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    Path("r.yaml").write_text(f"{Path('r.yaml').read_text()}limits: {{outage: 0}}\n")
    paused = fanfold("run", "r.yaml", "--yes")
    assert (paused.status, "cannot be reached" in paused.err) == (3, True), paused
    monkeypatch.setenv("OPENAI_BASE_URL", provider.environment["OPENAI_BASE_URL"])
    assert follow(paused, may=(0,)) == ["resume"]


@pytest.mark.full
@pytest.mark.skipif(program("initdb") is None, reason="needs PostgreSQL: tools/install-postgresql")
@suggested("store/postgres_tables.py: fanfold cluster init")
def test_a_database_without_tables_is_set_up_as_suggested(
    fanfold: Fanfold, project: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PostgresServer()
    try:
        monkeypatch.setenv("FANFOLD_STORE", server.url)
        monkeypatch.setenv("FANFOLD_PROJECT", "team/tests")
        refused = fanfold("runs")
        assert "error[store.no_tables]" in refused.err
        assert follow(refused, may=(0,)) == ["cluster"]
        assert fanfold("runs").status == 0
    finally:
        server.remove()
