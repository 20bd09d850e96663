"""A command finds its project from where the user stands, and nowhere that somebody else could choose."""

import os
from pathlib import Path

import pytest

from fanfold.workspace.layout import find_project

RECIPE = "name: read\nsteps:\n  - {id: a, run: [cat, notes/a.txt]}\n"


def found(start: Path, home: Path) -> Path:
    return find_project(start, home=home, own_folder=home / ".fanfold")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "work" / "shop" / "src").mkdir(parents=True)
    return tmp_path / "home"


def test_the_nearest_folder_with_state_wins_up_to_the_top_of_the_repository(home: Path):
    shop = home / "work" / "shop"
    (home / "work" / ".fanfold").mkdir()
    (shop / ".git").mkdir()
    assert found(shop / "src", home) == shop, "the top of the repository, not what lies above it"
    (shop / ".fanfold").mkdir()
    assert found(shop / "src", home) == shop
    (shop / "src" / ".fanfold").mkdir()
    assert found(shop / "src", home) == shop / "src"


def test_outside_a_repository_the_home_folder_is_never_a_project(home: Path):
    (home / ".fanfold").mkdir()
    (home.parent / ".fanfold").mkdir()
    start = home / "work" / "shop" / "src"
    assert found(start, home) == start
    assert found(home, home) == home
    (home / "work" / ".fanfold").mkdir()
    assert found(start, home) == home / "work"


def test_the_user_s_own_folder_is_no_project(home: Path):
    start = home / "work" / "shop"
    (home / "work" / ".fanfold").mkdir()
    assert find_project(start, home=home, own_folder=home / "work" / ".fanfold") == start


def test_a_link_or_a_folder_of_another_owner_is_skipped(home: Path, tmp_path: Path):
    shop = home / "work" / "shop"
    (tmp_path / "elsewhere").mkdir()
    (shop / ".fanfold").symlink_to(tmp_path / "elsewhere")
    assert found(shop / "src", home) == shop / "src"
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test-full")
    for name in (".git", ".fanfold"):
        (home / "work" / name).mkdir()
        os.chown(home / "work" / name, 65534, 65534)
    assert found(shop / "src", home) == shop / "src"


@pytest.mark.full
def test_a_command_in_a_sub_folder_says_which_project_it_works_on(fanfold, project, monkeypatch):
    (project / "read.yaml").write_text(RECIPE)
    (project / "notes").mkdir()
    (project / "notes" / "a.txt").write_text("hello\n")
    (project / ".fanfold").mkdir(exist_ok=True)
    monkeypatch.chdir(project / "notes")
    ran = fanfold("run", "../read.yaml", "--yes")
    assert (ran.status, ran.out) == (0, "hello\n"), "paths in a recipe are those of the project"
    assert f"project {project}" in ran.err
    assert [run["recipe"] for run in fanfold("runs", "--json").json()] == ["read"]
    assert not (project / "notes" / ".fanfold").exists()


def test_paths_of_the_project_are_shown_relative_to_a_sub_folder(fanfold, project, monkeypatch):
    (project / ".fanfold").mkdir()
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "answers.yaml").write_text("default: fine\n")
    (project / "deep").mkdir()
    monkeypatch.chdir(project / "deep")
    assert 'did you mean the file "../one.yaml"?' in fanfold("run", "one").err
    wrong = fanfold("run", "../one.yaml", "--script", "answers.yaml")
    assert (wrong.status, "hint: from here it is ../answers.yaml\n" in wrong.err) == (2, True)
    nothing = fanfold("check", ".")
    assert (nothing.status, "hint: fanfold check checks those of the project\n" in nothing.err) == (6, True)
    assert fanfold("check").status == 0
    assert fanfold("run", "../one.yaml", "--script", "../answers.yaml").status == 0
