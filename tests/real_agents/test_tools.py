"""What a real agent is offered: the tools that its role lists alone, and the skills that its step names."""

import json
import shutil

import pytest

from tests.real_agents.test_real_agents import WANTED, pytestmark
from tests.real_agents.world import RealWorld, task
from tools.tidy import ROOT

__all__ = ["pytestmark"]

SKILL = ROOT / "integrations" / "claude-plugin" / "skills" / "fanfold" / "SKILL.md"
OFFERED = {
    "claude": {"Grep", "Read"},
    "copilot": {"grep", "view"},
    "gemini": {"grep_search", "read_file"},
    "opencode": {"grep", "read"},
    "opencode-acp": {"grep", "read"},
}


@pytest.mark.parametrize("name", [name for name in OFFERED if name in WANTED])
def test_the_model_of_an_agent_is_offered_the_tools_of_its_role_alone(world: RealWorld, name: str):
    world.role("reader", name, 'tools = ["read_file", "search_files"]\nsandbox_mode = "read-only"\n')
    asked = world.signs / "asked.jsonl"
    before = len(asked.read_text().splitlines()) if asked.exists() else 0
    step = {"id": "work", "agent": "reader", "prompt": task(say="I looked.")}
    done = world.fanfold("run", world.recipe(step), "--yes")
    assert done["status"] == "completed", json.dumps(done["steps"])
    offers = [{*json.loads(line)["tools"]} for line in asked.read_text().splitlines()[before:]]
    assert max(offers, key=len) == OFFERED[name]


@pytest.mark.parametrize("name", WANTED)
def test_an_agent_writes_a_recipe_by_the_skill_of_this_repository(world: RealWorld, name: str):
    """The skill reaches the agent in its sandbox, and what it shows passes `check`."""
    shutil.copytree(SKILL.parent, world.project / ".claude" / "skills" / "fanfold")
    world.role("coder", name)
    copies = world.outside.home / ".fanfold" / "skill-copies"
    first_recipe = "awk '/^```/ {if (p) exit; p = /yaml/; next} p'"
    act = {"run": f"{first_recipe} {copies}/*/fanfold/SKILL.md > port.yaml"}
    step = {"id": "work", "agent": "coder", "skills": ["fanfold"], "write_set": ["*.yaml"]}
    done = world.fanfold("run", world.recipe({**step, "prompt": task(act, say="I wrote it.")}), "--yes")
    assert done["status"] == "completed", json.dumps(done["steps"])
    assert (world.project / "port.yaml").read_text() in SKILL.read_text()
    assert world.fanfold("check", "port.yaml")["ok"]


@pytest.mark.parametrize("name", WANTED)
def test_an_agent_works_where_bubblewrap_is_denied(
    world: RealWorld, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Landlock, a filter of system calls and the connector confine it."""
    programs = world.project.parent / "denied"
    programs.mkdir()
    (programs / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    (programs / "bwrap").chmod(0o755)
    given = world.environment()
    monkeypatch.setattr(world, "environment", lambda: {**given, "PATH": f"{programs}:{given['PATH']}"})
    [level] = [one["message"] for one in world.fanfold("doctor")["checks"] if one["name"] == "sandbox"]
    assert level.startswith("Landlock"), level
    world.role("coder", name)
    prompt = task({"write": "hello.txt", "text": "hello"}, say="I wrote it.")
    step = {"id": "work", "agent": "coder", "prompt": prompt, "write_set": ["*.txt"]}
    done = world.fanfold("run", world.recipe(step), "--yes")
    assert done["status"] == "completed", json.dumps(done["steps"])
    assert (world.project / "hello.txt").read_text() == "hello\n"
