"""Tools that a role lists, and agents that bring tools of their own: kept to the list, or not started."""

import json
from typing import Any

import pytest

from tests.cli.agent_world import SPEAKING, SUCCESS, AgentWorld, step, writing

READING = 'tools = ["read_file", "search_files"]\nsandbox_mode = "read-only"\n'


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def told(call: dict[str, Any], *flags: str) -> bool:
    words = call["argv"]
    return any(words[at : at + len(flags)] == list(flags) for at in range(len(words)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "flags"),
    [("claude", ("--tools", "Grep,Read")), ("copilot", ("--available-tools=grep,view",))],
)
def test_an_agent_that_takes_a_list_is_called_with_it(agents, fanfold, name, flags):
    agents.install(name, {"says": SUCCESS[name]})
    agents.role("reader", name, READING)
    done = fanfold("run", agents.recipe(step("reader")), "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    [call] = agents.calls()
    assert told(call, *flags)


@pytest.mark.full
def test_gemini_is_given_rules_that_deny_everything_else(agents, fanfold):
    agents.install("gemini", {"says": SUCCESS["gemini"], "reads": ["~/.fanfold/tools.toml"]})
    agents.role("reader", "gemini", READING)
    assert fanfold("run", agents.recipe(step("reader")), "--yes", "--json").json()["status"] == "completed"
    [call] = agents.calls()
    assert told(call, "--policy", f"{call['environment']['HOME']}/.fanfold/tools.toml")
    rules = call["read"]["~/.fanfold/tools.toml"]
    assert 'toolName = "*"\ndecision = "deny"\npriority = 1' in rules
    assert (
        'toolName = ["grep_search","read_file","read_many_files"]\ndecision = "allow"\npriority = 2' in rules
    )


@pytest.mark.full
def test_opencode_is_denied_everything_else_in_its_environment(agents, fanfold):
    agents.install("opencode", {"says": SUCCESS["opencode"]})
    agents.role("reader", "opencode", READING)
    assert fanfold("run", agents.recipe(step("reader")), "--yes", "--json").json()["status"] == "completed"
    [call] = agents.calls()
    permission = json.loads(call["environment"]["OPENCODE_PERMISSION"])
    assert permission == {"*": "deny", "grep": "allow", "read": "allow", "external_directory": "allow"}


@pytest.mark.full
def test_a_step_narrows_the_instructions_of_its_agent(agents, fanfold):
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    narrow = step("coder", tools=["read_file", "write_file"])
    assert fanfold("run", agents.recipe(narrow), "--yes", "--json").json()["status"] == "completed"
    [call] = agents.calls()
    assert told(call, "--tools", "Read,Write")


@pytest.mark.parametrize("name", ["codex", "goose", "qwen", "claude-acp", "codex-acp", "gemini-acp"])
def test_an_agent_that_cannot_be_kept_to_a_list_is_refused_before_anything_runs(agents, fanfold, name):
    program = next((program for program, (profile, _) in SPEAKING.items() if profile == name), name)
    agents.install(program, {"says": SUCCESS.get(name, "acp-claude.jsonl")})
    agents.role("reader", name, READING)
    refused = fanfold("run", agents.recipe(step("reader")), "--yes", "--json")
    assert refused.status == 2
    assert refused.json()["error"]["code"] == "role.refused"
    assert f'says tools, which "{name}" does not enforce' in refused.json()["error"]["message"]
    assert not agents.homes()


@pytest.mark.full
def test_a_role_that_may_run_commands_may_do_all_that_such_an_agent_does(agents, fanfold, project):
    agents.install("codex", writing("codex"))
    agents.role("coder", "codex", 'tools = ["read_file", "run_command"]\n')
    assert fanfold("run", agents.recipe(step("coder")), "--yes", "--json").json()["status"] == "completed"
    assert (project / "hello.txt").read_text() == "hello\n"


def test_an_empty_list_never_becomes_every_tool(agents, fanfold):
    agents.install("copilot", {"says": SUCCESS["copilot"]})
    agents.role("reader", "copilot", 'tools = ["query_workflow"]\nsandbox_mode = "read-only"\n')
    refused = fanfold("run", agents.recipe(step("reader")), "--yes", "--json")
    assert refused.json()["error"]["code"] == "role.refused"


@pytest.mark.full
def test_a_program_of_a_role_is_reported_at_the_line_that_names_it(agents, fanfold):
    agents.install("our-agent", {"lines": ["fine"]})
    agents.role("own", "command", READING + 'command = ["our-agent", "--only={tools}"]\n')
    assert fanfold("run", agents.recipe(step("own")), "--yes", "--json").json()["output"] == "fine"
    [call] = agents.calls()
    assert call["argv"] == ["--only=read_file,search_files"]
    agents.role("own", "command", READING + 'command = ["our-agent"]\n')
    assert fanfold("run", "work.yaml", "--yes", "--json").json()["error"]["code"] == "role.refused"
