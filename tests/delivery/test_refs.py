"""Branches made in somebody's repository: none that git would not have made, and nothing left in the way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.workspace.delivery import Refs
from fanfold.workspace.layout import find_repository
from tests.delivery.world import World

pytestmark = pytest.mark.full


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refs(world: World) -> Refs:
    found = find_repository(world.project)
    assert found is not None
    return Refs(found)


def commit(world: World) -> str:
    return world.git("rev-parse", "HEAD").strip()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("there", ["fix", "fix/owls", "fix/owls/barn"])
def test_no_branch_is_made_where_another_is_in_its_way(world: World, there: str, packed: bool) -> None:
    world.git("branch", there)
    if packed:
        world.git("pack-refs", "--all")
    before = world.git("for-each-ref")
    assert refs(world).find("refs/heads/fix/owls") == (commit(world) if there == "fix/owls" else "")
    with pytest.raises(FileExistsError):
        refs(world).make("fix/owls", commit(world))
    assert world.git("for-each-ref") == before


@pytest.mark.parametrize("packed", [False, True])
def test_a_branch_that_stands_for_another_is_at_its_commit(world: World, packed: bool) -> None:
    world.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    if packed:
        world.git("pack-refs", "--all")
    assert refs(world).find("refs/heads/alias") == commit(world)


def test_an_empty_folder_causes_no_conflict(world: World) -> None:
    (world.project / ".git/refs/heads/fix/owls/barn/old").mkdir(parents=True)
    assert refs(world).find("refs/heads/fix/owls") == ""
    refs(world).make("fix/owls", commit(world))
    assert world.git("rev-parse", "fix/owls").strip() == commit(world)


def test_a_lock_that_our_own_process_left_is_taken_over(world: World) -> None:
    lock = world.project / ".git/refs/heads/fix/owls.lock"
    lock.parent.mkdir()
    lock.write_text(f"{commit(world)}\n")
    refs(world).make("fix/owls", commit(world))
    assert not lock.exists()
    world.git("update-ref", "refs/heads/fix/owls", commit(world))


def test_a_lock_left_beside_the_finished_branch_is_taken_away(world: World) -> None:
    world.git("branch", "fix/owls")
    lock = world.project / ".git/refs/heads/fix/owls.lock"
    lock.write_text(f"{commit(world)}\n")
    refs(world).unlock("fix/owls", "0" * 40)
    assert lock.exists()
    refs(world).unlock("fix/owls", commit(world))
    assert not lock.exists()


def test_a_lock_of_another_git_is_respected(world: World) -> None:
    lock = world.project / ".git/refs/heads/fix/owls.lock"
    lock.parent.mkdir()
    lock.touch()
    with pytest.raises(WorldError, match="locked the branch fix/owls"):
        refs(world).make("fix/owls", commit(world))
    assert [file.name for file in lock.parent.iterdir()] == ["owls.lock"]
    with pytest.raises(subprocess.CalledProcessError):
        world.git("rev-parse", "--verify", "fix/owls")
