"""`[workspace]`: ignored files that the user includes in isolated steps, or makes for them (`setup`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.engine.config import Config
from fanfold.errors import AuthorError
from fanfold.workspace import sandbox
from tests.cli.conftest import Result

Fanfold = Callable[..., Result]
RECIPE = """
name: look
steps:
  - {id: seen, shell: "cat .env.test deep/secret/key .env.other 2>&1 || true", write_set: ["*.txt"]}
"""


@pytest.fixture
def own(tmp_path: Path, project: Path) -> Path:
    file = tmp_path / "home/.fanfold/config.toml"
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def ignored(project: Path) -> Path:
    subprocess.run(["git", "init", "-q", "."], check=True)
    (project / ".gitignore").write_text(".env.*\ndeep/\n")
    (project / "deep/secret").mkdir(parents=True)
    for name in (".env.test", ".env.other", "deep/secret/key", "deep/secret/other"):
        (project / name).write_text(f"content of {name}\n")
    (project / "look.yaml").write_text(RECIPE)
    return project


@pytest.mark.full
def test_steps_see_ignored_files_when_the_user_includes_them(
    fanfold: Fanfold, ignored: Path, own: Path
) -> None:
    before = fanfold("run", "look.yaml", "--yes", "--json").json()["output"]
    assert "content of" not in str(before)
    own.write_text('[workspace]\ninclude = [".env.test", "deep/secret/key", "not/there"]\n')
    asked = fanfold("run", "look.yaml")
    assert "shows its steps the ignored files that you included: .env.test, deep/secret/key\n" in asked.err
    after = str(fanfold("run", "look.yaml", "--yes", "--json").json()["output"])
    assert "content of .env.test" in after
    assert "content of deep/secret/key" in after
    assert "content of .env.other" not in after
    own.write_text("")
    assert "content of" not in str(fanfold("run", "look.yaml", "--yes", "--json").json()["output"])


@pytest.mark.full
def test_an_included_file_is_changed_only_by_a_step_that_may_write_it(
    fanfold: Fanfold, ignored: Path, own: Path
) -> None:
    own.write_text('[workspace]\ninclude = [".env.test"]\n')
    writing = "name: w\nsteps: [{id: w, shell: 'echo new > .env.test', write_set: ['%s']}]\n"
    (ignored / "w.yaml").write_text(writing % "*.txt")
    assert fanfold("run", "w.yaml", "--yes").status == 1
    assert (ignored / ".env.test").read_text() == "content of .env.test\n"
    (ignored / "w.yaml").write_text(writing % ".env.test")
    assert fanfold("run", "w.yaml", "--yes").status == 0
    assert (ignored / ".env.test").read_text() == "new\n"


@pytest.mark.full
def test_a_link_is_never_included(fanfold: Fanfold, ignored: Path, own: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("content of outside\n")
    (ignored / ".env.test").unlink()
    (ignored / ".env.test").symlink_to(tmp_path / "outside")
    own.write_text('[workspace]\ninclude = [".env.test"]\n')
    assert "content of outside" not in str(fanfold("run", "look.yaml", "--yes", "--json").json()["output"])


def test_only_the_user_includes_files(tmp_path: Path) -> None:
    (tmp_path / ".fanfold").mkdir()
    (tmp_path / ".fanfold/config.toml").write_text('[workspace]\ninclude = [".env"]\n')
    with pytest.raises(AuthorError) as refused:
        Config.read(tmp_path, {"FANFOLD_HOME": str(tmp_path / "own")})
    assert refused.value.code == "config.not_here"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", ".git/config", "a/.GIT/x", ".fanfold/x", "a//b", "./a"]
)
def test_a_path_outside_the_project_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.toml").write_text(f'[workspace]\ninclude = ["{path}"]\n')
    with pytest.raises(AuthorError, match=r"workspace\.include"):
        Config.read(tmp_path / "project", {"FANFOLD_HOME": str(tmp_path / "own")})


# -- The setup command

USES = """
name: use
steps:
  - {id: one, shell: "cat made/dep.txt; echo 1 >> made/dep.txt; echo a > a.txt", write_set: ["a.txt"]}
  - {id: two, shell: "cat made/dep.txt node_modules/x/index.js", depends_on: [one]}
"""
SETUP = "echo ran >> made/dep.txt; mkdir -p node_modules/x; cat lock > node_modules/x/index.js"


def set_up(own: Path, script: str = SETUP, more: str = "") -> None:
    own.write_text(f'[workspace]\nsetup = ["sh", "-c", "mkdir -p made; {script}"]\n{more}')


@pytest.fixture
def dependent(ignored: Path) -> Path:
    (ignored / ".gitignore").write_text("made/\nnode_modules\n.fanfold/\n")
    (ignored / "use.yaml").write_text(USES)
    (ignored / "requirements.txt").write_text("x==1\n")
    (ignored / "lock").write_text("first\n")
    (ignored / "node_modules/x").mkdir(parents=True)
    (ignored / "node_modules/x/index.js").write_text("of the project\n")
    return ignored


def facts(fanfold: Fanfold, kind: str) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in fanfold("logs", "last", "--json").out.splitlines()]
    return [row["data"] for row in rows if row["data"].get("what") == kind]


@pytest.mark.full
def test_a_setup_command_runs_once_for_its_lock_files_and_its_files_are_seen_by_isolated_steps(
    fanfold: Fanfold, dependent: Path, own: Path
) -> None:
    set_up(own)
    asked = fanfold("run", "use.yaml")
    assert "runs the setup command of your configuration for isolated steps" in asked.err
    first = fanfold("run", "use.yaml", "--yes", "--json").json()
    assert first["output"] == "ran\nfirst", "what a step changes there is its own"
    assert len(facts(fanfold, "setup")) == 1
    assert (dependent / "a.txt").exists()
    assert not (dependent / "made").exists(), "ignored files stay out of the project"
    assert (dependent / "node_modules/x/index.js").read_text() == "of the project\n"
    (dependent / "lock").write_text("second\n")  # no lock file of a package manager
    assert fanfold("run", "use.yaml", "--yes", "--json").json()["output"] == "ran\nfirst"
    assert facts(fanfold, "setup") == []
    (dependent / "requirements.txt").write_text("x==2\n")
    assert fanfold("run", "use.yaml", "--yes", "--json").json()["output"] == "ran\nsecond"
    assert len(facts(fanfold, "setup")) == 1
    assert len(list((dependent / ".fanfold/workspace/prepared").iterdir())) == 1, "the old ones are removed"


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no >&2; exit 3", "the setup command ended with status 3: no"),
        ("echo x > use.yaml", "changed files that git does not ignore: use.yaml"),
        ("rm lock", "changed files that git does not ignore: lock"),
    ],
)
def test_a_setup_command_that_fails_or_changes_other_files_fails_the_step(
    fanfold: Fanfold, dependent: Path, own: Path, script: str, said: str
) -> None:
    set_up(own, script)
    done = fanfold("run", "use.yaml", "--yes", "--json")
    assert done.status == 1
    assert said in done.json()["error"]["message"]
    assert (dependent / "use.yaml").read_text() == USES
    assert not (dependent / "made").exists()


@pytest.mark.full
@pytest.mark.parametrize("network", ["false", "true"])
def test_a_setup_command_has_network_access_only_if_the_user_says_so(
    fanfold: Fanfold, dependent: Path, own: Path, network: str
) -> None:
    (dependent / "use.yaml").write_text("name: u\nsteps: [{id: a, shell: 'cat made/dep.txt'}]\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('there')\n"
        (dependent / "connect.py").write_text(code)
        set_up(own, "python3 connect.py > made/dep.txt", f"setup_network = {network}\n")
        done = fanfold("run", "use.yaml", "--yes", "--json")
    assert (done.status == 0) is (network == "true"), done.out


@pytest.mark.full
def test_steps_that_start_together_share_one_setup(fanfold: Fanfold, dependent: Path, own: Path) -> None:
    (dependent / "many.yaml").write_text(
        "name: many\nsteps: [{id: a, for_each: [1, 2, 3, 4], shell: 'cat made/dep.txt'}]\n"
    )
    set_up(own, "sleep 1; echo ran >> made/dep.txt")
    done = fanfold("run", "many.yaml", "--yes", "--json").json()
    assert done["output"] == ["ran"] * 4
    assert len(facts(fanfold, "setup")) == 1


@pytest.mark.full
@pytest.mark.skipif(
    sandbox.abi() < sandbox.MIN_ABI, reason="needs Landlock: make test-full on Linux 6.2 or newer"
)
def test_a_setup_command_works_where_bubblewrap_is_denied(
    fanfold: Fanfold, dependent: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    set_up(own)
    assert fanfold("run", "use.yaml", "--yes", "--json").json()["output"] == "ran\nfirst"
    assert {fact["level"] for fact in facts(fanfold, "sandbox")} == {"landlock"}


@pytest.mark.full
def test_a_copied_workspace_has_the_files_of_the_setup_too(
    fanfold: Fanfold, dependent: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanfold.workspace.children._failed", {"overlay", "overlay-userns"})
    set_up(own)
    for _ in range(2):
        assert fanfold("run", "use.yaml", "--yes", "--json").json()["output"] == "ran\nfirst"


def test_only_the_user_names_a_setup_command(tmp_path: Path) -> None:
    (tmp_path / ".fanfold").mkdir()
    for line in ('setup = ["sh"]', "setup_network = true"):
        (tmp_path / ".fanfold/config.toml").write_text(f"[workspace]\n{line}\n")
        with pytest.raises(AuthorError) as refused:
            Config.read(tmp_path, {"FANFOLD_HOME": str(tmp_path / "own")})
        assert refused.value.code == "config.not_here"
