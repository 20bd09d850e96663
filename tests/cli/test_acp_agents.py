"""Agents that speak the Agent Client Protocol work like any other: merged, permission answered, resumed."""

import time

import pytest

from tests.cli.agent_world import SPEAKING, AgentWorld, step
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def run(fanfold, recipe, *flags):
    return fanfold("run", recipe, "--yes", "--json", *flags).json()


@pytest.mark.parametrize("program", SPEAKING)
def test_an_agent_changes_files_and_they_are_merged(agents, fanfold, project, program):
    name, says = SPEAKING[program]
    agents.install(program, {"says": says, "writes": {"hello.txt": "hello\n"}}, speaks=True)
    agents.role("coder", name)
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert done["status"] == "completed", done["steps"]
    assert done["output"].endswith("I wrote hello.txt.")
    assert (project / "hello.txt").read_text() == "hello\n"
    kept = agents.spoken()
    assert not any(kept[0]["offered"].get("fs", {}).values())
    assert {one["permission"]["outcome"] for one in kept if "permission" in one} <= {"selected"}
    assert any(one.get("cwd") == str(project) for one in kept)
    told = fanfold("transcript", "last", "work", "--json").json()
    assert [entry["kind"] for entry in told["entries"]].count("tool_result") == 1


def test_a_read_only_agent_is_refused_a_change_and_continues(agents, fanfold):
    agents.install("opencode", {"says": "acp-opencode.jsonl"}, speaks=True)
    agents.role("reader", "opencode-acp", 'sandbox_mode = "read-only"')
    done = run(fanfold, agents.recipe(step("reader")))
    assert done["status"] == "completed", done["steps"]
    answers = [one["permission"] for one in agents.spoken() if "permission" in one]
    assert answers == [{"outcome": "selected", "optionId": "reject"}]


def test_lines_that_are_no_messages_reach_no_terminal_and_do_no_harm(agents, fanfold):
    agents.install("codex-acp", {"says": "acp-codex.jsonl", "then": "garbage"}, speaks=True)
    agents.role("coder", "codex-acp")
    done = fanfold("run", agents.recipe(step("coder")), "--yes")
    assert done.status == 0
    assert "not a message" not in done.err
    assert "\x1b[31m" not in done.err


def test_a_conversation_is_loaded_by_the_next_turn_and_what_is_old_is_not_heard_again(agents, fanfold):
    agents.install("codex-acp", {"says": "acp-codex.jsonl"}, speaks=True)
    agents.role("coder", "codex-acp")
    name = fanfold("spawn", "coder", "Write hello.txt", "--yes", "--json").json()["id"]
    fanfold("wait", name)
    assert fanfold("send", name, "And now?").status == 0
    waited = fanfold("wait", name, "--json")
    assert waited.status == 0
    kept = agents.spoken()
    assert [one["loaded"] for one in kept if "loaded" in one] == ["01a1e26c-8465-7063-aef1-91c4f7b7658e"]
    assert [one["prompt"] for one in kept if "prompt" in one][-1] == "And now?"
    assert "something old" not in waited.out


def test_an_agent_without_its_conversation_starts_anew_and_reports_it(agents, fanfold):
    says = {"says": "acp-codex.jsonl"}
    agents.install("codex-acp", says, {**says, "forgets": True}, speaks=True)
    agents.role("coder", "codex-acp")
    name = fanfold("spawn", "coder", "Write hello.txt", "--yes", "--json").json()["id"]
    fanfold("wait", name)
    assert fanfold("send", name, "And now?").status == 0
    assert fanfold("wait", name).status == 0
    told = fanfold("transcript", "last", f"{name}#2", "--json").json()
    last = [one["prompt"] for one in agents.spoken() if "prompt" in one][-1]
    assert "You received:\nWrite hello.txt" in last
    assert last.endswith("And now?")
    begun = [entry for entry in told["entries"] if entry["kind"] == "agent"]
    assert begun[-1]["text"].startswith("Codex over ACP does not know the conversation any more")


def test_cancelling_a_run_cancels_in_the_agent_before_ending_it(agents, fanfold, background):
    agents.install("codex-acp", {"says": "acp-codex.jsonl", "then": "hang"}, speaks=True)
    agents.role("coder", "codex-acp")
    process = background("run", agents.recipe(step("coder")), "--yes", "--json")
    deadline = time.monotonic() + PATIENCE_S
    while not any("prompt" in one for one in agents.spoken()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert fanfold("cancel", "last").status == 0
    assert process.wait() == 7
    assert {"cancelled": True} in agents.spoken()


TALKER = """
import json, os, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def tell(text):
    said = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    say(method="session/update", params={"sessionId": "s1", "update": said})

for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked.get("method")
    case = os.environ["CASE"]
    if method == "initialize":
        say(id=999, result={})
        say(id="x", error="nobody asked")
        if case == "greets-oddly":
            say(id=number, result={"protocolVersion": "one", "agentCapabilities": []})
        elif case == "refuses-oddly":
            say(id=number, error="no")
        else:
            say(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
    elif method == "session/new":
        say(id=number, result={} if case == "names-nothing" else {"sessionId": "s1"})
    elif method == "session/prompt":
        if case == "asks-oddly":
            options = [{"optionId": "a", "kind": "perhaps", "name": "?"}, {"name": "x"}, 7]
            call = {"toolCallId": "t1", "kind": "edit"}
            say(id="p", method="session/request_permission", params={"toolCall": call, "options": options})
            sys.stdin.readline()
        if case == "tells-oddly":
            call = {"sessionUpdate": "tool_call", "toolCallId": {}, "rawInput": [[]]}
            for update in (None, 1, [], {}, call):
                say(method="session/update", params={"sessionId": "s1", "update": update})
            say(method="session/update")
            say(method=5)
        tell("fine")
        say(id=number, result={"stopReason": "because" if case == "stops-oddly" else "end_turn"})
        tell("late")
"""


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("greets-oddly", "agent.failed"),
        ("refuses-oddly", "agent.failed"),
        ("names-nothing", "agent.failed"),
        ("asks-oddly", "agent.denied"),
        ("tells-oddly", ""),
        ("stops-oddly", "agent.failed"),
    ],
)
def test_a_program_that_violates_the_protocol_fails_and_breaks_no_other(agents, fanfold, case, code):
    (agents.bin / "talker").write_text(
        f"#!/usr/bin/env python3\nimport os; os.environ['CASE'] = {case!r}\n{TALKER}"
    )
    (agents.bin / "talker").chmod(0o755)
    agents.role("odd", "acp", 'command = ["talker"]\n')
    done = fanfold("run", agents.recipe(step("odd")), "--yes", "--json").json()
    ended = done["steps"]["work"]
    assert (ended["error"] or {}).get("code", "") == code, ended["error"]
    assert code or ended["output"] == "fine", "what comes behind the end is nobody's"


def test_a_program_without_a_greeting_is_ended_and_the_waited_time_is_true(agents, fanfold):
    (agents.bin / "talker").write_text("#!/bin/sh\nexec sleep 600\n")
    (agents.bin / "talker").chmod(0o755)
    agents.profile("mute", 'program = "talker"\nacp = true\nidle_s = 2\n')
    agents.role("talker", "mute")
    error = fanfold("run", agents.recipe(step("talker")), "--yes", "--json").json()["steps"]["work"]["error"]
    assert (error["class"], error["code"]) == ("timeout", "agent.silent")
    assert "mute wrote nothing for 2 s" in error["message"]
