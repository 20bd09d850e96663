"""Deliveries from repositories of every shape: a commit of what was merged, or a clear word why not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.delivery.world import RECIPE, SCRIPT, World

pytestmark = pytest.mark.full


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.allow()
    return made


def ask(world: World, *words: str) -> str:
    done = subprocess.run(words, env=world.environment, capture_output=True, text=True, check=True)
    return done.stdout


def add_elsewhere(world: World) -> None:
    """Somebody else pushes to main."""
    other = world.folder / "other"
    ask(world, "git", "clone", "-q", "-b", "main", str(world.remote), str(other))
    (other / "theirs.txt").write_text("theirs\n")
    ask(world, "git", "-C", str(other), "add", "-A")
    ask(world, "git", "-C", str(other), "commit", "-qm", "theirs")
    ask(world, "git", "-C", str(other), "push", "-q", "origin", "main")


def clone_anew(world: World, *how: str) -> None:
    """The project as a clone of another kind."""
    kept = {name: (world.project / name).read_text() for name in ("d.yaml", "s.yaml", "f.txt")}
    shutil.rmtree(world.project)
    words = ("git", "clone", "-q", *how, "-b", "main", f"file://{world.remote}", str(world.project))
    ask(world, *words)
    for name, text in kept.items():
        (world.project / name).write_text(text)


def test_a_colon_in_the_path_of_the_project_separates_nothing(world: World) -> None:
    moved = world.folder / 'pro:"ject'
    world.project.rename(moved)
    world.project = moved
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check_delivered_once()


def test_a_shallow_clone_delivers_also_when_the_remote_has_moved_on(world: World) -> None:
    for number in range(3):
        world.git("commit", "-q", "--allow-empty", "-m", f"{number}")
    world.git("push", "-q", "origin", "main")
    clone_anew(world, "--depth", "1")
    add_elsewhere(world)
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert world.git("log", "--format=%s", "main..fix/owls").splitlines() == ["Fix owls"]
    assert "refs/heads/fix/owls" in world.git("ls-remote", "origin")


def test_a_partial_clone_without_unchanged_files_delivers(world: World) -> None:
    world.git("--git-dir", str(world.remote), "config", "uploadpack.allowFilter", "true")
    clone_anew(world, "--filter=blob:none")
    add_elsewhere(world)
    world.git("fetch", "-q", "origin")  # theirs.txt is known by name alone
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert "theirs.txt" in world.git("ls-tree", "--name-only", "fix/owls").split()


def test_only_files_that_the_run_deleted_are_deleted(world: World) -> None:
    """The user has a folder where the base has a file, and has not committed that."""
    (world.project / "f.txt").unlink()
    (world.project / "f.txt").mkdir()
    (world.project / "d.yaml").write_text(RECIPE.replace('"*.txt"', '"**"'))
    (world.project / "s.yaml").write_text(SCRIPT.replace('"f.txt"', '"f.txt/inner"'))
    done = world.run()
    assert done.returncode == 3, done.stderr
    assert "[deliver.conflict]" in done.stderr
    assert "does not go together with the base: f.txt" in done.stderr


@pytest.mark.parametrize("text", ["", "  ", "a\\0b"])
@pytest.mark.parametrize("key", ["message", "title"])
def test_a_message_and_a_title_are_text_before_anything_is_done(world: World, key: str, text: str) -> None:
    was = {"message": 'message: "Fix owls\\n\\nAll of them."', "title": "title: Fix owls"}[key]
    assert was in RECIPE
    (world.project / "d.yaml").write_text(RECIPE.replace(was, f'{key}: "{{{{steps.more.output}}}}"'))
    (world.project / "s.yaml").write_text(SCRIPT.replace("more: {output: done", f'more: {{output: "{text}"'))
    done = world.run()
    assert done.returncode == 3, done.stderr
    assert "[deliver.bad_text]" in done.stderr
    assert world.git("for-each-ref", "refs/heads").count("\n") == 1


def test_a_pull_request_of_another_fork_is_not_ours(world: World) -> None:
    theirs: dict[str, object] = {"head": "fix/owls", "base": "main", "state": "OPEN", "headRefOid": "1" * 40}
    theirs |= {"url": "https://example.org/pr/9", "isCrossRepository": True}
    (world.gh / "requests.json").write_text(json.dumps([theirs]))
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert len(world.requests()) == 2
    assert "https://example.org/pr/2" in done.stdout


def test_objects_written_to_the_repository_can_be_read_by_git(world: World) -> None:
    before = {*(world.project / ".git/objects").rglob("*")}
    done = world.run()
    assert done.returncode == 0, done.stderr
    new = [file for file in {*(world.project / ".git/objects").rglob("*")} - before if file.is_file()]
    assert new
    assert {oct(file.stat().st_mode & 0o777) for file in new} == {"0o444"}


def test_the_question_shows_what_else_is_pushed_and_no_text_of_others_passes_for_its_own(
    world: World,
) -> None:
    (world.folder / "home/.fanfold/config.toml").unlink()  # so that somebody is asked
    world.git("commit", "-q", "--allow-empty", "-m", "private work")
    recipe = RECIPE.replace(", base: main", "").replace("They were broken.", "x\\n  harmless.txt")
    (world.project / "d.yaml").write_text(recipe)
    (world.project / "s.yaml").write_text(SCRIPT.replace('"g.txt"', '"g\\n  also.txt"'))
    world.run()
    shown = world.document()["steps"]["pr"]["approval"]["show"]
    assert "commits of yours that are not known to be there:\n  | " in shown
    assert " private work\n" in shown
    assert " first\n" not in shown
    assert "  into the default branch\n  | x\n  |   harmless.txt\n" in shown
    assert "  'g\\n  also.txt'\n" in shown


def test_a_file_whose_line_ends_checking_out_changes_is_delivered_with_those_that_are_kept(
    world: World,
) -> None:
    (world.project / ".gitattributes").write_text("*.txt text eol=crlf\n")
    (world.project / "f.txt").write_bytes(b"a\r\nb\r\nc\r\nd\r\ne\r\n")
    world.git("add", ".gitattributes", "f.txt")
    world.git("commit", "-qm", "ends")
    world.git("push", "-q", "origin", "main")
    script = SCRIPT.replace("a\\nB\\nc\\nd\\ne\\nmine\\n", "a\\r\\nB\\r\\nc\\r\\nd\\r\\ne\\r\\n")
    assert script != SCRIPT
    (world.project / "s.yaml").write_text(script)
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert world.git("cat-file", "-s", "fix/owls:f.txt") == f"{len('aBcde') * 2}\n"
    assert world.git("diff", "--numstat", "main", "fix/owls", "--", "f.txt").split() == ["1", "1", "f.txt"]


@pytest.mark.parametrize("where", ["here", "in another work tree"])
def test_a_branch_that_was_checked_out_since_it_was_shown_is_left_alone(world: World, where: str) -> None:
    (world.folder / "home/.fanfold/config.toml").unlink()  # so that somebody is asked
    assert world.run().returncode == 3
    world.git("worktree", "add", "-q", "--detach", str(world.folder / "beside"))
    tree = world.project if where == "here" else world.folder / "beside"
    ask(world, "git", "-C", str(tree), "symbolic-ref", "HEAD", "refs/heads/fix/owls")  # as --orphan does
    world.fanfold("approve", "last", "pr")
    world.fanfold("watch", "last")
    assert world.document()["status"] == "paused"
    assert world.git("for-each-ref", "refs/heads").count("\n") == 1
    ask(world, "git", "-C", str(tree), "symbolic-ref", "HEAD", "refs/heads/main")
    done = world.fanfold("resume", "last")
    assert done.returncode == 0, done.stderr
    assert len(world.requests()) == 1
