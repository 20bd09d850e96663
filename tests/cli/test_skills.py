"""Skills: folders with a SKILL.md that roles and steps name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fanfold.agents.skills import check_skills, own_copies, skill_roots, take_skills
from tests.cli.conftest import Result
from tests.e2e.world import Provider
from tests.levels import needs_bubblewrap
from tests.provider import Call, RecordedRequest, Reply

Fanfold = Callable[..., Result]
TEXT = """---
name: {name}
description: >
  How to release
  with {whose} tools
allowed-tools: Bash(*)
---
Run it."""
STEP = "name: x\nsteps: [{id: a, agent: explorer, prompt: p, skills: [%s]}]\n"


def write(folder: Path, name: str, whose: str) -> Path:
    skill = folder / name
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(TEXT.format(name=name, whose=whose))
    (skill / "scripts/run.sh").write_text("#!/bin/sh\necho ran as $0\ntouch /should-not-be-there\n")
    (skill / "scripts/run.sh").chmod(0o755)
    return skill


@pytest.fixture
def home(tmp_path: Path, project: Path) -> Path:
    (tmp_path / "home").mkdir(exist_ok=True)
    return tmp_path / "home"


class Model:
    """A model that makes the given calls, one in each turn, and then answers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.asked: list[RecordedRequest] = []

    def __call__(self, asked: RecordedRequest) -> Reply:
        self.asked.append(asked)
        turns = sum(bool(message.calls) for message in asked.messages)
        return Reply(calls=(self.calls[turns],)) if turns < len(self.calls) else Reply(text="done")

    def results(self) -> str:
        return "\n".join(text for message in self.asked[-1].messages for _, text in message.results)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def provider(model: Model, monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[Provider]:
    with Provider(model) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FANFOLD_MODEL", "openai-chat:gpt-5")
        yield running


def run(fanfold: Fanfold, project: Path, step: str) -> Any:
    (project / "x.yaml").write_text(f"name: x\nsteps: [{{id: work, prompt: Go, {step}}}]\n")
    return fanfold("run", "x.yaml", "--yes", "--permission", "auto", "--json").json()


@pytest.mark.full
@pytest.mark.parametrize("place", [".fanfold/skills", ".codex/skills", ".agents/skills", ".claude/skills"])
@pytest.mark.parametrize("whose", ["project", "user"])
def test_a_skill_is_found_listed_in_the_prompt_and_read_on_demand(
    fanfold: Fanfold, project: Path, home: Path, provider: Provider, model: Model, place: str, whose: str
) -> None:
    write((project if whose == "project" else home) / place, "release", whose)
    model.calls = [
        Call("read_skill", {"skill": "release"}, id="a"),
        Call("read_skill", {"skill": "release", "path": "scripts/run.sh"}, id="b"),
        Call("read_skill", {"skill": "release", "path": "../../../etc/passwd"}, id="c"),
        Call("read_skill", {"skill": "other"}, id="d"),
    ]
    assert run(fanfold, project, "agent: explorer, skills: [release]")["output"] == "done"
    first = str(model.asked[0].body)
    assert f"release (of the {whose}" in first
    assert f"How to release with {whose} tools" in first
    assert "Run it." not in first, "its text is read on demand"
    found = model.results()
    assert "Run it." in found
    assert "echo ran" in found
    assert "has no file ../../../etc/passwd" in found
    assert "there is no such skill" in found


@pytest.mark.full
@needs_bubblewrap
def test_a_script_of_a_skill_runs_in_the_sandbox_of_its_step(
    fanfold: Fanfold, project: Path, home: Path, provider: Provider, model: Model
) -> None:
    write(home / ".claude/skills", "release", "user")
    model.calls = [Call("read_skill", {"skill": "release"}, id="a")]
    assert run(fanfold, project, "agent: worker, skills: [release], write_set: ['*.txt']")["output"] == "done"
    [copy] = (home / ".fanfold/skill-copies").glob("*/release")
    model.calls = [Call("run_command", {"argv": [str(copy / "scripts/run.sh")]}, id="a")]
    model.asked.clear()
    assert run(fanfold, project, "agent: worker, skills: [release], write_set: ['*.txt']")["output"] == "done"
    assert "ran as" in model.results()
    assert "Read-only file system" in model.results()
    assert not Path("/should-not-be-there").exists()
    model.asked.clear()
    run(fanfold, project, "agent: worker, write_set: ['*.txt']")
    assert "ran as" not in model.results(), "an agent without the skill does not see it"


@pytest.mark.full
def test_a_skill_of_the_project_widens_nothing(
    fanfold: Fanfold, project: Path, home: Path, provider: Provider, model: Model
) -> None:
    write(project / ".claude/skills", "release", "project")
    run(fanfold, project, "agent: explorer, skills: [release], tools: [read_file]")
    names = {name for tool in model.asked[0].tools for name in [tool]}
    assert "run_command" not in str(names)
    assert "write_file" not in str(names)


@pytest.mark.full
def test_a_role_names_skills_and_the_run_keeps_them_as_they_were(
    fanfold: Fanfold, project: Path, home: Path, provider: Provider, model: Model
) -> None:
    skill = write(home / ".codex/skills", "release", "user")
    roles = project / ".claude/agents"
    roles.mkdir(parents=True)
    head = "---\nname: releaser\ndescription: Releases\nskills: release, missing\n---\nRelease."
    (roles / "releaser.md").write_text(head)
    model.calls = [Call("read_skill", {"skill": "release"}, id="a")]
    assert run(fanfold, project, "agent: releaser")["output"] == "done"
    assert "Run it." in model.results()
    (skill / "SKILL.md").write_text("changed")
    assert any("Run it." in file.read_text() for file in (home / ".fanfold/skill-copies").rglob("SKILL.md"))
    warned = fanfold("run", "x.yaml", "--dry-run", "--json").json()
    assert any('"missing"' in warning for warning in warned["warnings"])
    assert warned["would_run"] is True


def test_a_missing_skill_of_a_step_is_refused_before_anything_is_spent(
    fanfold: Fanfold, project: Path, home: Path
) -> None:
    write(project / ".claude/skills", "release", "project")
    (project / "x.yaml").write_text(STEP % "relase")
    refused = fanfold("run", "x.yaml", "--yes", "--model", "local:smollm2")
    assert "skill.not_found" in refused.err
    assert 'did you mean "release"?' in refused.err
    assert fanfold("run", "x.yaml", "--dry-run", "--json").json()["would_run"] is False
    assert not (home / ".fanfold/skill-copies").exists()
    (project / ".claude/skills/linked").mkdir()
    (project / ".claude/skills/linked/SKILL.md").symlink_to("/etc/passwd")
    (project / "x.yaml").write_text(STEP % "linked")
    refused = fanfold("run", "x.yaml", "--yes", "--model", "local:smollm2")
    assert "its folder has no readable SKILL.md; links are not followed" in refused.err
    (project / "x.yaml").write_text(STEP % "'../x'")
    assert "is not the name of a skill" in fanfold("check", "x.yaml").err


def test_a_dry_run_shows_the_skills_in_prompts_and_copies_none(
    fanfold: Fanfold, project: Path, home: Path
) -> None:
    skill = write(project / ".claude/skills", "release", "project")
    (project / "x.yaml").write_text(STEP % "release")
    shown = fanfold("run", "x.yaml", "--dry-run", "--show-prompts", "--json").json()
    [prompt] = shown["prompts"]
    assert f"- release (of the project, files in {skill})" in prompt["system"]
    assert not (home / ".fanfold/skill-copies").exists()


def test_links_of_a_skill_are_left_out_and_large_ones_refused(
    fanfold: Fanfold, project: Path, home: Path, tmp_path: Path
) -> None:
    from fanfold.agents.skills import MAX_FILE_BYTES, skill_roots, take_skills
    from fanfold.errors import WorldError

    skill = write(project / ".claude/skills", "release", "project")
    (tmp_path / "secret").write_text("secret")
    (skill / "link").symlink_to(tmp_path / "secret")
    (skill / "folder").symlink_to(tmp_path)
    roots = skill_roots(project, home, home / ".fanfold")
    taken = take_skills(["release"], roots, home / ".fanfold")["release"]
    assert sorted(os.listdir(taken.folder)) == ["SKILL.md", "scripts"]
    linked = project / ".claude/skills/linked"
    linked.symlink_to(tmp_path)
    assert take_skills(["linked"], roots, home / ".fanfold") == {}
    (skill / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(WorldError, match="too large"):
        take_skills(["release"], roots, home / ".fanfold")


# Skills that came with a repository, or with the log of another user


def test_names_behind_a_link_that_leads_out_are_not_listed(project, fanfold, tmp_path):
    (tmp_path / "outside/private-name").mkdir(parents=True)
    (project / ".claude").mkdir()
    (project / ".claude/skills").symlink_to(tmp_path / "outside")
    (project / "x.yaml").write_text(STEP % "none-such")
    done = fanfold("run", "x.yaml", "--yes", "--json")
    assert done.json()["error"]["code"] == "skill.not_found"
    assert "private-name" not in done.out


def test_a_file_name_that_is_not_text_is_copied_like_any_other(tmp_path):
    skill = write(tmp_path / "project/.claude/skills", "odd", "odd")
    Path(os.fsdecode(bytes(skill) + b"/\xff.txt")).write_text("x")
    roots = skill_roots(tmp_path / "project", tmp_path / "home", tmp_path / "home/.fanfold")
    (taken,) = take_skills(["odd"], roots, tmp_path / "home/.fanfold").values()
    assert b"\xff.txt" in os.listdir(os.fsencode(taken.folder))


def test_a_skill_of_the_project_that_shadows_one_of_the_user_s_is_named(tmp_path):
    roots = skill_roots(tmp_path / "project", tmp_path / "home", tmp_path / "home/.fanfold")
    write(tmp_path / "home/.claude/skills", "notes", "my")
    assert check_skills(["notes"], ["notes"], roots) == []
    write(tmp_path / "project/.claude/skills", "notes", "its")
    assert check_skills(["notes"], [], roots) == ['the skill "notes" is the project\'s, which shadows yours']


def test_the_log_of_another_user_does_not_choose_the_folder_of_a_skill(tmp_path):
    home = tmp_path / "home/.fanfold"
    write(tmp_path / "home/.claude/skills", "notes", "my")
    taken = take_skills(["notes"], skill_roots(tmp_path / "project", tmp_path / "home", home), home)
    copy = Path(taken["notes"].folder)
    (home / "skill-copies/link").symlink_to(tmp_path)
    for folder in (
        "/etc",
        str(copy / ".."),
        str(copy / "../.."),
        str(copy / "scripts"),
        f"{home}/skill-copies/link/x",
    ):
        assert own_copies({"notes": structs.replace(taken["notes"], folder=folder)}, home) == {}, folder
    assert own_copies(taken, home)["notes"].brought
