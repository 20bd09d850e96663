"""What a checkout calls a file may be a link, a pipe or a device: it is read inside the project, or never."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.project_files import LedOut, NotAFile, list_beneath, read_beneath
from tests.hostile.test_state import World

pytestmark = pytest.mark.full

ROLE = 'name = "{name}"\ndescription = "d"\ndeveloper_instructions = "CANARY"\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    (tmp_path / "private").mkdir()
    (tmp_path / "private/scout.toml").write_text(ROLE.format(name="scout"))
    (tmp_path / "private/secret.yaml").write_text("name: secret\ndescription: CANARY\nsteps: [CANARY]\n")
    return made


def roles_behind_a_link(world: World) -> None:
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold/agents").symlink_to(world.top / "private")


def role_behind_a_link(world: World) -> None:
    (world.project / ".fanfold/agents").mkdir(parents=True)
    (world.project / ".fanfold/agents/scout.toml").symlink_to(world.top / "private/scout.toml")


def roles_of_codex_behind_a_link(world: World) -> None:
    (world.project / ".codex").symlink_to(world.top)
    os.rename(world.top / "private", world.top / "agents")


def role_that_never_ends(world: World) -> None:
    (world.project / ".fanfold/agents").mkdir(parents=True)
    os.mkfifo(world.project / ".fanfold/agents/scout.toml")


@pytest.mark.parametrize(
    "plant", [roles_behind_a_link, role_behind_a_link, roles_of_codex_behind_a_link, role_that_never_ends]
)
def test_roles_are_not_read_from_outside(world: World, plant: Callable[[World], None]):
    plant(world)
    shown = world.fanfold("agents", "--json")
    assert "CANARY" not in shown.stdout
    assert '"scout"' not in shown.stdout.replace('"role":"scout"', "").replace('"role": "scout"', "")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_a_configuration_that_is_no_file_is_refused_in_words(world: World, kind: str):
    file = world.project / ".fanfold/config.toml"
    file.parent.mkdir()
    if kind == "link":
        file.symlink_to(world.top / "private/scout.toml")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    refused = world.run()
    assert refused.returncode == 2
    assert "error[config.unreadable]" in refused.stderr
    assert "CANARY" not in refused.stderr


def test_recipes_are_not_found_behind_links(world: World):
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold/workflows").symlink_to(world.top / "private")
    assert "CANARY" not in world.fanfold("list", "--json").stdout


def test_a_sub_workflow_is_not_read_from_outside_the_project(world: World):
    for ref in ("../private/secret.yaml", "./linked.yaml", str(world.top / "private/secret.yaml")):
        if ref == "./linked.yaml":
            (world.project / "linked.yaml").symlink_to(world.top / "private/secret.yaml")
        recipe = f"name: a\nsteps:\n  - {{id: w, workflow: {ref}, inputs: {{}}}}\n"
        (world.project / "a.yaml").write_text(recipe)
        said = world.fanfold("check", "a.yaml")
        assert said.returncode == 2
        assert "CANARY" not in said.stdout + said.stderr, ref


@pytest.mark.parametrize("name", [".gitignore", "recipe.schema.json", "config.toml", "agents", "workflows"])
def test_nothing_is_written_through_a_link_that_leads_nowhere_yet(world: World, name: str):
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold" / name).symlink_to(world.top / "private/newly")
    for words in (["init"], ["schema", "--install"], ["run", "one.yaml", "--script", "script.yaml", "--yes"]):
        world.fanfold(*words)
        assert not (world.top / "private/newly").exists(), words


def test_links_that_stay_inside_are_followed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("text")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("b/file")
    assert read_beneath(tmp_path, tmp_path / "c", 10) == b"text"
    assert read_beneath(tmp_path, tmp_path / "c", 2) == b"te"
    assert list_beneath(tmp_path, tmp_path / "b") == ["file"]
    (tmp_path / "d").symlink_to(tmp_path / "b/../c")  # what is above a link is above where it leads
    (tmp_path / "e").symlink_to(f"../{tmp_path.name}/c")
    assert read_beneath(tmp_path, tmp_path / "d", 10) == read_beneath(tmp_path, tmp_path / "e", 10) == b"text"
    (tmp_path / "f").symlink_to("f")
    with pytest.raises(LedOut):
        read_beneath(tmp_path, tmp_path / "f", 10)
    with pytest.raises(NotAFile):
        read_beneath(tmp_path, tmp_path / "a", 10)
    (tmp_path / "out").symlink_to("/etc/passwd")
    with pytest.raises(LedOut):
        read_beneath(tmp_path, tmp_path / "out", 10)


WRITES = {
    "export": ["export", "last", "-o"],
    "convert": ["convert", "theirs.yaml", "--from", "protoagent", "-o"],
}


@pytest.mark.parametrize("command", WRITES)
def test_files_named_by_the_user_are_written_where_named(tmp_path: Path, command: str):
    """A file of that name may be there already, put there to be written through."""
    world = World(tmp_path)
    (world.project / "theirs.yaml").write_text("name: a\nsteps: [{id: a, subagent: explorer, prompt: p}]\n")
    assert world.run().returncode == 0
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "profile").write_text("mine")
    (world.project / "to-file").symlink_to(outside / "profile")
    (world.project / "to-nothing").symlink_to(outside / "new")
    (world.project / "to-folder").symlink_to(outside / "folder")
    os.mkfifo(world.project / "pipe")
    for name in ("to-file", "to-nothing", "to-folder/new", "pipe"):
        world.fanfold(*WRITES[command], name)
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == ["folder", "profile"]
    assert (outside / "profile").read_text() == "mine"
    for name in ("plain", str(outside / "folder/asked-for")):
        done = world.fanfold(*WRITES[command], name)
        assert done.returncode == 0, done.stderr
        assert (world.project / name).stat().st_size > 10


def test_a_run_is_imported_through_no_link_out_of_the_project(tmp_path: Path):
    world = World(tmp_path)
    (tmp_path / "secret.html").write_text("CANARY")
    (world.project / "run.html").symlink_to(tmp_path / "secret.html")
    refused = world.fanfold("import", "run.html")
    assert refused.returncode == 2, refused.stderr
    assert "leads out of the project" in refused.stderr
    assert "[archive.not_one]" in world.fanfold("import", "../secret.html").stderr
