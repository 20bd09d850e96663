"""The tools that a role lists are all that the model of a real agent is offered."""

import json

import pytest

from tests.real_agents.test_real_agents import WANTED, pytestmark
from tests.real_agents.world import RealWorld, task

__all__ = ["pytestmark"]

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
