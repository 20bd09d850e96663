"""Every example runs as its first lines say, on scripted agents, and ends as they say."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.work import PATIENCE_S
from tools import gallery
from tools.tidy import ROOT

EXAMPLES = sorted(folder.parent for folder in (ROOT / "examples").glob("*/recipe.yaml"))
STATUS = {"completed": 0, "waiting": 3, "paused": 5}


def written_commands(recipe: Path) -> list[tuple[str, str]]:
    """Each command of the first lines, and the status it leads to, where one is said."""
    found: list[tuple[str, str]] = []
    for line in recipe.read_text().splitlines():
        if line.startswith("# $ "):
            found.append((line.removeprefix("# $ "), ""))
        elif line.startswith("# ") and found:
            found[-1] = (found[-1][0], line.removeprefix("# "))
        else:
            break
    return found


def make_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with a first commit and a remote, of somebody whom git knows."""
    home = project.parent / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    monkeypatch.setenv("HOME", str(home))
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-qm", "first"],
        ["init", "-q", "--bare", str(project.parent / "remote.git")],
        ["remote", "add", "origin", str(project.parent / "remote.git")],
    ):
        subprocess.run(["git", *words], cwd=project, check=True)


@pytest.mark.full
@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_does_what_its_first_lines_say(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / folder.name
    shutil.copytree(folder, project)
    commands = written_commands(project / "recipe.yaml")
    assert commands
    if "deliver:" in (project / "recipe.yaml").read_text():
        make_repository(project, monkeypatch)
    for command, leads_to in commands:
        words = shlex.split(command)
        assert words[0] == "fanfold"
        done = subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *words[1:]],
            cwd=project, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == STATUS.get(leads_to, 0), f"$ {command}\n{done.stdout}{done.stderr}"
    last = subprocess.run(
        [sys.executable, "-m", "fanfold.cli.main", "inspect", "last"],
        cwd=project, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert commands[-1][1] in last.stdout.splitlines()[0].split(), last.stdout


def test_there_are_ten_of_them():
    assert len(EXAMPLES) >= 10


def test_the_gallery_shows_twelve_recipes_and_the_recorded_run_of_each():
    page = gallery.gallery()
    assert len(gallery.SHOWN) == 12
    for name in gallery.SHOWN:
        assert gallery.cassette_of(name).is_file()
        assert f"### {name}\n" in page


def test_no_cassette_names_a_path_of_the_machine_that_recorded_it():
    cassettes = [*(ROOT / "examples").glob("*/tests/*.yaml"), *(ROOT / "tests/cassettes").rglob("*.yaml")]
    assert len(cassettes) > 20
    assert [file.name for file in cassettes if "/tmp/" in file.read_text()] == []
