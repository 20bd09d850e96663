"""What role files say about MCP servers is read in every spelling, or refused in clear words."""

from typing import Any

import pytest

from fanfold.agents.backend import SessionFailed
from fanfold.agents.role import Notice
from fanfold.agents.role_files import read_role
from fanfold.agents.tools.mcp_servers import Server, read_server, servers_of

OURS = {
    "TOKEN": "the-token-of-the-test",
    "OPENAI_API_KEY": "sk-provider-key-0123456789",
    "COPIED": "sk-provider-key-0123456789",
    "EMPTY": "",
}


def read(settings: dict[str, Any]) -> Server:
    server = read_server("s", settings, OURS)
    assert server is not None
    return server


@pytest.mark.parametrize(
    ("given", "servers"),
    [
        (None, {}),
        ({}, {}),
        ([], {}),
        ({"a": {"command": "x"}}, {"a": {"command": "x"}}),
        ({"a": None, "b": False}, {"a": {}, "b": {"enabled": False}}),
        ({"a": "https://a.example"}, {"a": {"url": "https://a.example"}}),
        ({"a": "npx b"}, {"a": {"command": "npx b"}}),
        ({"a": ["npx", "b"]}, {"a": {"command": ["npx", "b"]}}),
        (["github", {"a": {"command": "x"}}], {"github": {}, "a": {"command": "x"}}),
        ([{"name": "a", "type": "http", "url": "u"}], {"a": {"type": "http", "url": "u"}}),
        ("github", {"github": {}}),
        ([3, {4: 5}], {"3": {}, "4": {}}),
    ],
)  # fmt: skip
def test_every_form_of_the_servers_of_a_role_gives_settings_by_name(given, servers):
    assert servers_of(given) == servers


FRONT = """---
name: reviewer
description: Use when: the review is due
{servers}
model: sonnet
---
mcpServers: this is the text of the role
"""


@pytest.mark.parametrize(
    ("written", "servers"),
    [
        ("tools: Read", {}),
        ("mcpServers:", {}),
        ("mcpServers: [github, slack]", {"github": {}, "slack": {}}),
        ("mcpServers:\n- github\n- slack", {"github": {}, "slack": {}}),
        (
            "mcpServers:\n  - github\n  - play:\n      type: http\n      url: u\n      list: [-y, x@1]",
            {"github": {}, "play": {"type": "http", "url": "u", "list": ["-y", "x@1"]}},
        ),
        (
            "mcpServers:\n  a:\n    url: https://a.example\n\n    # why\n    env: {ON: no, AT: 2026-01-02}",
            {"a": {"url": "https://a.example", "env": {"ON": "no", "AT": "2026-01-02"}}},
        ),
        ("mcpServers: null", {}),
        ('mcpServers: {"a": {"command": "x"}}', {"a": {"command": "x"}}),
        ('mcpServers: {\n  "a": {"command": "x"}\n}', {"a": {"command": "x"}}),
        ("mcp_servers:\n\n  a: {command: x}", {"a": {"command": "x"}}),
    ],
)
def test_servers_are_read_from_the_front_matter_of_markdown(tmp_path, written, servers):
    file, notices = tmp_path / "reviewer.md", list[Notice]()
    file.write_text(FRONT.replace("{servers}", written))
    found = read_role(file, "md", notices)
    assert found is not None, notices
    assert found.role.mcp_servers == servers


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("mcpServers:\n  a: {command: x", 'needs "," or "}"'),
        ("mcpServers:\n  a: &a {command: x}\n  b: *a", "anchors"),
        ("mcpServers: " + "[" * 50_000, "levels deep"),
        ("mcpServers:\n  " + "- " * 50_000, "levels deep"),
        ("mcpServers:\n  ? [a]\n  : b", "keys must be text"),
    ],
)
def test_front_matter_that_cannot_be_read_says_why(tmp_path, written, words):
    file, notices = tmp_path / "reviewer.md", list[Notice]()
    file.write_text(FRONT.replace("{servers}", written))
    assert read_role(file, "md", notices) is None
    assert words in notices[0].message
    assert notices[0].line in (4, 5, 6)


@pytest.mark.parametrize(
    ("settings", "argv"),
    [
        ({"command": "npx", "args": ["-y", "some-server", 8080]}, ("npx", "-y", "some-server", "8080")),
        ({"type": "stdio", "command": "npx", "args": "-y 'some server'"}, ("npx", "-y", "some server")),
        ({"command": "npx -y some-server"}, ("npx", "-y", "some-server")),
        ({"type": "local", "command": ["npx", "-y"]}, ("npx", "-y")),
        ({"command": "x", "args": ["--token=${TOKEN}"]}, ("x", "--token=the-token-of-the-test")),
        ({"command": "x", "args": ["${NOT_SET:-otherwise}", "$TOKEN"]}, ("x", "otherwise", "$TOKEN")),
        ({"command": "x", "args": [], "cwd": "."}, ("x",)),
    ],
)
def test_a_program_is_read_in_every_spelling(settings, argv):
    assert read(settings).argv == argv


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        ({"env": {"A": "b", "PORT": 1, "ON": True}}, {"A": "b", "PORT": "1", "ON": "true"}),
        ({"env": ["A=b=c"]}, {"A": "b=c"}),
        ({"environment": {"A": "${TOKEN}"}}, {"A": "the-token-of-the-test"}),
        ({"env_vars": ["EMPTY", "NOT_SET", {"name": "TOKEN"}]}, {"TOKEN": "the-token-of-the-test"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_a_program_gets_what_the_role_gives_and_the_variables_it_names(settings, environment):
    assert read({"command": "x", **settings}).environment == environment


@pytest.mark.parametrize(
    ("settings", "url", "headers"),
    [
        ({"url": "https://a.example/mcp"}, "https://a.example/mcp", {}),
        ({"type": "streamable-http", "url": "http://localhost:1/mcp"}, "http://localhost:1/mcp", {}),
        ({"httpUrl": "http://[::1]:1/mcp"}, "http://[::1]:1/mcp", {}),
        (
            {"url": "https://a.example", "headers": {"X-Key": "${TOKEN}"}, "http_headers": {"X-Other": 3}},
            "https://a.example",
            {"X-Key": "the-token-of-the-test", "X-Other": "3"},
        ),
        (
            {"url": "https://a.example", "bearer_token_env_var": "TOKEN", "env_http_headers": {"X": "TOKEN"}},
            "https://a.example",
            {"X": "the-token-of-the-test", "Authorization": "Bearer the-token-of-the-test"},
        ),
    ],
)
def test_an_address_is_read_in_every_spelling(settings, url, headers):
    server = read(settings)
    assert (server.url, server.headers, server.sse) == (url, headers, False)


def test_the_older_form_of_http_is_recognised():
    assert read({"type": "sse", "url": "https://a.example/sse"}).sse


def test_times_and_chosen_tools_are_read():
    server = read(
        {"command": "x", "startup_timeout_ms": 2500, "tool_timeout_sec": 7, "enabled_tools": ["a", "b"],
         "disabled_tools": ["b"], "unknown": object()}
    )  # fmt: skip
    assert (server.startup_timeout_s, server.tool_timeout_s) == (2.5, 7)
    assert [tool for tool in "abc" if server.has_use_for(tool)] == ["a"]
    assert read({"command": "x"}).startup_timeout_s == 10
    assert read({"command": "x", "tool_timeout_sec": 10**5}).tool_timeout_s == 3600
    assert read({"command": "x", "tool_timeout_sec": "1.5", "enabled": "true"}).tool_timeout_s == 1.5


@pytest.mark.parametrize(
    "settings", [{"enabled": False}, {"enabled": "false"}, {"disabled": True, "command": "x"}]
)
def test_a_server_that_is_switched_off_is_left_out(settings):
    assert read_server("s", settings, OURS) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "only its name"),
        ({"type": "ws", "url": "wss://a.example"}, '"ws" is no type'),
        ({"type": "stdio"}, "no command"),
        ({"command": ""}, "no command"),
        ({"command": {"a": 1}}, "no command"),
        ({"command": "x", "args": {"a": 1}}, "no command"),
        ({"command": "x 'y"}, "cannot be split"),
        ({"command": "x", "args": [["y"]]}, '"args" must be text'),
        ({"command": "x", "cwd": "elsewhere"}, '"cwd" is not supported'),
        ({"command": "x", "env": 3}, '"env" must be a map'),
        ({"command": "x", "env": {"A": "${NOT_SET}"}}, "variable NOT_SET is not set"),
        ({"command": "x", "tool_timeout_sec": 0}, '"tool_timeout_sec" must be a number'),
        ({"command": "x", "tool_timeout_sec": float("nan")}, '"tool_timeout_sec" must be a number'),
        ({"command": "x", "startup_timeout_sec": True}, '"startup_timeout_sec" must be a number'),
        ({"command": "x", "env_vars": ["OPENAI_API_KEY"]}, "OPENAI_API_KEY is not handed"),
        ({"command": "x", "env_vars": ["ANTHROPIC_API_KEY"]}, "ANTHROPIC_API_KEY is not handed"),
        ({"command": "x", "env": {"OPENAI_API_KEY": "another"}}, "OPENAI_API_KEY is not handed"),
        ({"command": "x", "args": ["${OPENAI_API_KEY:-none}"]}, "OPENAI_API_KEY is not handed"),
        ({"command": "x", "env": {"A": "${COPIED}"}}, "key of a model provider"),
        ({"command": "x", "env_vars": ["COPIED"]}, "key of a model provider"),
        ({"url": "https://a.example", "bearer_token_env_var": "OPENAI_API_KEY"}, "not handed"),
        ({"url": "https://a.example", "bearer_token_env_var": "NOT_SET"}, "NOT_SET is not set"),
        ({"url": "https://a.example", "env_http_headers": {"X": "COPIED"}}, "key of a model provider"),
        ({"url": "https://a.example", "headers": {"X": "a\r\nY: b"}}, "cannot be sent as a header"),
        ({"url": "https://a.example", "headers": {"X Y": "a"}}, "cannot be sent as a header"),
        ({"url": ""}, "no http or https address"),
        ({"url": "file:///etc/passwd"}, "no http or https address"),
        ({"url": "https://a.example:many"}, "no address"),
        ({"url": "https://user:word@a.example"}, "user name"),
        ({"url": "http://a.example/mcp"}, "plain http"),
        ({"url": "http://localhost.example/mcp"}, "plain http"),
    ],
)
def test_unusable_variables_are_refused_by_name_without_values(settings, words):
    with pytest.raises(SessionFailed) as failed:
        read(settings)
    failure = failed.value.failure
    assert (failure.kind, failure.code, failure.retryable) == ("tool", "mcp.unavailable", False)
    assert failure.message.startswith('the MCP server "s" cannot be used: ')
    assert words in failure.message
    assert failure.hint
    assert not any(value in failure.message for value in OURS.values() if value)


def test_secrets_that_a_server_repeats_are_not_shown():
    server = read({"url": "https://a.example?key=a-secret-query", "bearer_token_env_var": "TOKEN"})
    said = "no the-token-of-the-test, no key=a-secret-query"
    assert server.without_secrets(said) == "no [redacted], no [redacted]"
