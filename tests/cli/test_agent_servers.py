"""MCP servers of a role, handed to an agent that is a program, in the way that it takes them."""

import json

import pytest

from tests.cli.agent_world import SPEAKING, AgentWorld, step, writing

pytestmark = pytest.mark.full

SERVERS = """
[mcp_servers.wiki]
command = "wiki-server"
args = ["--folder", "docs", "{prompt}"]
env = { LEVEL = "warn" }
env_vars = ["WIKI_PLACE"]
"""
FILE = "~/.fanfold/servers.json"


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    monkeypatch.setenv("WIKI_PLACE", "second-shelf")
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def run(fanfold, agents, role="coder"):
    return fanfold("run", agents.recipe(step(role)), "--yes", "--json").json()


def test_claude_gets_a_file_that_is_gone_afterwards_and_may_use_the_tools(agents, fanfold):
    agents.install("claude", writing("claude", tries=[FILE]))
    agents.role("coder", "claude", SERVERS + 'disabled_tools = ["drop"]\nenabled_tools = ["find"]\n')
    assert run(fanfold, agents)["status"] == "completed"
    [call] = agents.calls()
    words = call["argv"]
    assert words[words.index("--mcp-config") + 1] == f"{agents.home}/.fanfold/servers.json"
    assert "mcp__wiki__find" in words
    [wiki] = json.loads(call["tried"][FILE])["mcpServers"].values()
    assert wiki == {
        "command": "wiki-server",
        "args": ["--folder", "docs", "{prompt}"],
        "env": {"LEVEL": "warn", "WIKI_PLACE": "second-shelf"},
    }
    [home] = agents.homes()
    assert not (home / ".fanfold" / "servers.json").exists()


def test_codex_gets_settings_and_no_value_of_a_variable_stands_in_its_command_line(agents, fanfold):
    agents.install("codex", writing("codex"))
    agents.role("coder", "codex", SERVERS)
    assert run(fanfold, agents)["status"] == "completed"
    [call] = agents.calls()
    assert 'mcp_servers.wiki.command="wiki-server"' in call["argv"]
    assert 'mcp_servers.wiki.args=["--folder", "docs", "{prompt}"]' in call["argv"]
    assert 'mcp_servers.wiki.env_vars=["LEVEL", "WIKI_PLACE"]' in call["argv"]
    assert "second-shelf" not in " ".join(call["argv"])
    assert call["environment"]["WIKI_PLACE"] == "second-shelf"


def test_opencode_gets_them_with_its_configuration(agents, fanfold):
    agents.install("opencode", writing("opencode"))
    agents.role("coder", "opencode", SERVERS)
    assert run(fanfold, agents)["status"] == "completed"
    [call] = agents.calls()
    [wiki] = json.loads(call["environment"]["OPENCODE_CONFIG_CONTENT"])["mcp"].values()
    assert wiki["command"] == ["wiki-server", "--folder", "docs", "{prompt}"]


@pytest.mark.parametrize("program", ["claude-agent-acp", "gemini"])
def test_an_agent_that_speaks_the_protocol_gets_them_with_its_session(agents, fanfold, program):
    profile, says = SPEAKING[program]
    agents.install(program, {"says": says}, speaks=True)
    agents.role("coder", profile, SERVERS)
    run(fanfold, agents)
    [given] = [one["servers"] for one in agents.spoken() if "servers" in one]
    assert [(one["name"], one["command"], one["args"][0]) for one in given] == [
        ("wiki", "wiki-server", "--folder")
    ]
    assert {"name": "WIKI_PLACE", "value": "second-shelf"} in given[0]["env"]


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("gemini", "", 'write backend = "gemini-acp" into the role'),
        ("copilot", "", "use another back end"),
        ("goose", "", 'write backend = "goose-acp" into the role'),
        ("opencode", 'enabled_tools = ["find"]\n', "let the role have all tools"),
        ("codex", '[mcp_servers.far]\nurl = "https://wiki.example/mcp"\n', "network = true"),
    ],
)
def test_an_agent_that_cannot_have_its_servers_is_not_started_without_them(agents, fanfold, name, more, why):
    agents.install(name, writing(name))
    agents.role("coder", name, SERVERS + more)
    error = run(fanfold, agents)["steps"]["work"]["error"]
    assert error["code"] == "mcp.unavailable", error
    assert why in f"{error['message']} {error['hint']}"
    assert agents.calls() == []


def test_a_server_that_the_project_brought_gets_no_secret(agents, fanfold, monkeypatch):
    monkeypatch.setenv("WIKI_TOKEN", "secret-of-the-user-0123456789")
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude", SERVERS.replace("WIKI_PLACE", "WIKI_TOKEN"))
    error = run(fanfold, agents)["steps"]["work"]["error"]
    assert error["code"] == "mcp.unavailable"
    assert "[environment] allow" in error["hint"]
    assert agents.calls() == []


def test_a_program_of_a_role_finds_them_in_the_file_that_its_words_name(agents, fanfold):
    agents.install("ours", {"lines": ["done"], "tries": [FILE]})
    program = f'command = ["{agents.bin}/ours", "{{servers_file}}"]\n'
    agents.role("coder", "command", program + SERVERS)
    assert run(fanfold, agents)["status"] == "completed"
    [call] = agents.calls()
    assert "wiki" in json.loads(call["tried"][FILE])["mcpServers"]
