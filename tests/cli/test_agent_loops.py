"""Agents that are programs and repeat their calls without progress are ended, with what they cost."""

import json

import pytest

from tests.cli.agent_world import SPEAKING, AgentWorld, step
from tests.levels import needs_bubblewrap

pytestmark = [needs_bubblewrap, pytest.mark.full]


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def failed(fanfold, agents):
    done = fanfold("run", agents.recipe(step("coder", posture="read_only")), "--yes", "--json").json()
    error = done["steps"]["work"]["error"]
    assert (done["status"], error["code"]) == ("failed", "agent.loop"), error
    return error


def test_a_program_that_repeats_its_calls_is_ended(agents, fanfold):
    lines = []
    for turn in range(30):
        use = {"type": "tool_use", "id": f"call{turn}", "name": "Read", "input": {"file_path": "a.txt"}}
        lines.append({"type": "assistant", "message": {"id": f"msg{turn}", "content": [use]}})
        result = {"type": "tool_result", "tool_use_id": f"call{turn}", "content": "a"}
        lines.append({"type": "user", "message": {"content": [result]}})
    agents.install("claude", {"lines": [json.dumps(line) for line in lines], "then": "hang"})
    agents.role("coder", "claude")
    error = failed(fanfold, agents)
    assert "Read" in error["message"]
    assert "max_turns" not in error["hint"]
    told = fanfold("transcript", "last", "work", "--json").json()
    assert [entry["kind"] for entry in told["entries"]].count("tool_result") == 10


def test_a_program_that_speaks_the_protocol_and_repeats_its_calls_is_ended(agents, fanfold):
    profile, recorded = SPEAKING["claude-agent-acp"]
    agents.install("claude-agent-acp", {"says": recorded, "then": "hang"}, speaks=True)
    agents.role("coder", profile)
    lines = (agents.bin / recorded).read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] in ("initialized", "session", "stop")]
    for turn in range(30):
        call = {"toolCallId": f"call{turn}", "title": "Read", "kind": "read", "rawInput": {"path": "a.txt"}}
        begun = {**call, "status": "pending", "sessionUpdate": "tool_call"}
        over = {**call, "status": "completed", "rawOutput": "a", "sessionUpdate": "tool_call_update"}
        kept[-1:-1] = [json.dumps({"kind": "update", "u": one}) for one in (begun, over)]
    (agents.bin / recorded).write_text("\n".join(kept) + "\n")
    failed(fanfold, agents)
