"""A workflow of another system that is converted: nothing is read but what lies below its own folder."""

from pathlib import Path

import pytest

from fanfold.api.authoring import convert_file
from fanfold.wiring import wire

SECRET = "the-secret-of-the-user"
ARCHON = "name: x\ndescription: x\nnodes:\n  - id: a\n    command: {}\n"
CREW = "a:\n  description: x\n  expected_output: y\n  agent: z\n"
NAMES = [
    ("a folder above", "../../home/secret"),
    ("the folder of commands and out of it", "../../../home/secret"),
    ("an absolute path", "{home}/secret"),
    ("a link in the folder of commands", "linked"),
    ("a folder that is a link", "folder/secret"),
]


def place(tmp_path: Path) -> tuple[Path, Path]:
    """A workflow that was unpacked somewhere, and the user's home beside it."""
    home, flows = tmp_path / "home", tmp_path / "unpacked" / "workflows"
    for folder in (home, flows, flows.parent / "commands"):
        folder.mkdir(parents=True)
    for name in ("secret.md", "agents.yaml"):
        (home / name).write_text(f"z:\n  role: {SECRET}\n  goal: {SECRET}\n  backstory: {SECRET}\n")
    return home, flows


def converted(tmp_path: Path, home: Path, file: Path, system: str, monkeypatch: pytest.MonkeyPatch) -> str:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FANFOLD_HOME", str(home / ".fanfold"))
    opened = wire(project)
    try:
        return convert_file(opened, file, system).text
    finally:
        opened.close()


@pytest.mark.parametrize("name", [row[1] for row in NAMES], ids=[row[0] for row in NAMES])
def test_a_command_of_archon_is_not_read_elsewhere(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, flows = place(tmp_path)
    (flows.parent / "commands" / "linked.md").symlink_to(home / "secret.md")
    (flows.parent / "commands" / "folder").symlink_to(home)
    (flows / "x.yaml").write_text(ARCHON.format(name.format(home=home)))
    assert SECRET not in converted(tmp_path, home, flows / "x.yaml", "archon", monkeypatch)


def test_a_folder_of_commands_that_is_a_link_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, flows = place(tmp_path)
    (flows.parent / "commands").rmdir()
    (flows.parent / "commands").symlink_to(home)
    (flows / "x.yaml").write_text(ARCHON.format("secret"))
    assert SECRET not in converted(tmp_path, home, flows / "x.yaml", "archon", monkeypatch)


def test_a_command_below_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, flows = place(tmp_path)
    (flows.parent / "commands" / "plan.md").write_text("Plan it well.\n")
    (flows / "x.yaml").write_text(ARCHON.format("plan"))
    assert "Plan it well." in converted(tmp_path, home, flows / "x.yaml", "archon", monkeypatch)


def test_agents_of_a_crew_are_not_read_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, flows = place(tmp_path)
    (flows / "agents.yaml").symlink_to(home / "agents.yaml")
    (flows / "tasks.yaml").write_text(CREW)
    assert SECRET not in converted(tmp_path, home, flows / "tasks.yaml", "crewai", monkeypatch)
