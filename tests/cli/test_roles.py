"""`fanfold agents NAME`: all that a role says, and why one cannot be had."""

import json

FULL = """\
name = "full"
description = "d"
developer_instructions = "i"
max_turns = 7
model_reasoning_effort = "high"
fallback_models = ["openai:gpt-5"]
network = true
tools = ["read_file", "red_file", "Task"]
[mcp_servers.docs]
command = "serve"
env = { TOKEN = "not-to-be-shown" }
"""


def test_everything_that_a_role_sets_is_shown(fanfold, project):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    (folder / "full.toml").write_text(FULL)
    document = fanfold("agents", "full", "--json").json()
    assert (document["max_turns"], document["network"], document["mcp_servers"]) == (7, True, ["docs"])
    assert (document["model_reasoning_effort"], document["fallback_models"]) == ("high", ["openai:gpt-5"])
    assert [notice["severity"] for notice in document["notices"]] == ["warning", "warning"]
    shown = fanfold("agents", "full")
    lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()[1:] if line.strip()}
    assert (lines["max_turns"], lines["network"], lines["mcp_servers"]) == (["7"], ["True"], ["docs"])
    assert (lines["model_reasoning_effort"], lines["fallback_models"]) == (["high"], ["openai:gpt-5"])
    assert all("warning: " in line for line in shown.err.splitlines() if "Task" in line or "red_file" in line)
    assert "Task" in shown.err
    assert "not-to-be-shown" not in shown.out + shown.err + json.dumps(document)


def test_keys_that_a_role_does_not_set_are_omitted(fanfold):
    shown = fanfold("agents", "worker").out
    assert not any(key in shown for key in ("max_turns", "network", "mcp_servers", "fallback_models"))


def test_a_role_whose_file_was_refused_says_why_whatever_the_file_is_called(fanfold, project):
    folder = project / ".codex/agents"
    folder.mkdir(parents=True)
    (folder / "some-file.toml").write_text('name = "rev"\ndescription = "d"\n')
    refused = fanfold("agents", "rev", "--json")
    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (2, "role.invalid")
    assert "some-file.toml:1: the instructions are missing" in error["message"]


def test_a_version_whose_file_was_refused_says_why(fanfold, project):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    good = 'name = "rev"\nversion = 1\ndescription = "d"\ndeveloper_instructions = "i"\n'
    (folder / "rev1.toml").write_text(good)
    (folder / "rev2.toml").write_text(good.replace("1", "2") + "max_turns = 0\n")
    assert fanfold("agents", "rev").status == 0
    assert "rev2.toml:5: " in fanfold("agents", "rev@2").err


def test_roles_are_listed_by_version_too(fanfold, project):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    for name, version in (("old", 1), ("new", 2), ("newer", 2)):
        text = f'name = "{name}"\nversion = {version}\ndescription = "d"\ndeveloper_instructions = "i"\n'
        (folder / f"{name}.toml").write_text(text)
    assert [role["name"] for role in fanfold("agents", "@2", "--json").json()["roles"]] == ["new", "newer"]
    assert "old" in fanfold("agents", "@v1").out
    missing = fanfold("agents", "@3")
    assert missing.status == 6
    assert "no role here has the version 3" in missing.err
