"""`[workspace] include`: ignored files that the user makes available to isolated steps."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.engine.config import Config
from fanfold.errors import AuthorError
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
