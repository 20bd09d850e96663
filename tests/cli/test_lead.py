"""The lead of a chat changes files and runs commands itself: under the user's permission, call by call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Result
from tools.screen import Screen

pytestmark = pytest.mark.full

Shell = Callable[..., Result]


def write(project: Path, *calls: dict[str, Any], **more: Any) -> None:
    """A script in which the lead makes these calls, and others do what `more` says."""
    steps = {"lead": {"output": "Done.", "tool_calls": list(calls)}, **more}
    (project / "script.yaml").write_text(yaml.safe_dump({"steps": steps}))


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def say(shell: Shell, permission: str) -> dict[str, Any]:
    asked = shell("chat", "Do it.", "--script", "script.yaml", "--permission", permission, "--json")
    return dict(json.loads(asked.out))


def results(shell: Shell) -> list[dict[str, Any]]:
    told = shell("transcript", "last", "lead", "--json").json()
    return [entry for entry in told["entries"] if entry["kind"] == "tool_result"]


def test_changes_of_the_lead_are_merged_per_call_visible_and_undone(shell: Shell, project: Path) -> None:
    (project / "a.txt").write_text("one\n")
    write(
        project,
        call("edit_file", path="a.txt", old="one", new="two"),
        call("run_command", argv=["sh", "-c", "cat a.txt > b.txt; cat a.txt"]),
        call("task", role="explorer", name="scout", task="Read a.txt."),
        call("read_file", path="b.txt"),
        scout={"output": "seen", "tool_calls": [call("read_file", path="a.txt")]},
    )
    assert say(shell, "auto")["status"] == "completed"
    edited, ran, _, read = results(shell)
    assert (ran["result"]["stdout"], ran["result"]["changed"]) == ("two\n", ["b.txt"])
    assert ("error" in edited, read["result"]["text"]) == (False, "two\n")
    seen = shell("transcript", "last", "scout", "--json").json()["entries"]
    assert "two" in json.dumps(seen), "a subagent of the same turn works on what the lead left"
    assert [row["path"] for row in shell("inspect", "last", "--json").json()["changes"]] == ["a.txt", "b.txt"]
    logged = [json.loads(line) for line in shell("logs", "last", "--json").out.splitlines()]
    assert [one["data"]["what"] for one in logged if one["type"] == "workspace_event"] == [
        "merge",
        "merge",
        "sandbox",
    ]
    assert "+two" in shell("diff", "last", "lead").out
    assert shell("verify", "last").status == 0
    assert shell("undo", "last", "lead").status == 0
    assert ((project / "a.txt").read_text(), (project / "b.txt").exists()) == ("one\n", False)
    assert shell("verify", "last").status == 0
    assert not [one for one in (project / ".fanfold/subagents").iterdir() if one.is_dir()]


@pytest.mark.parametrize("permission", ["read_only", "ask"])
def test_without_leave_nothing_is_changed(shell: Shell, project: Path, permission: str) -> None:
    for one in (call("write_file", path="a.txt", content="x"), call("run_command", argv=["touch", "a.txt"])):
        write(project, one)
        answer = say(shell, permission)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "permission_denied")
    assert not (project / "a.txt").exists()


@pytest.mark.parametrize("path", [".fanfold/config.toml", ".git/config", "../out.txt", ".claude/agents/x.md"])
def test_protected_files_are_protected_from_the_lead_too(shell: Shell, project: Path, path: str) -> None:
    (project / ".git").mkdir()
    for one in (
        call("write_file", path=path, content="x"),
        call("run_command", argv=["sh", "-c", f"mkdir -p $(dirname {path}); echo x > {path}"]),
    ):
        write(project, one)
        assert say(shell, "auto")["status"] in ("failed", "completed")
        assert not (project / path).exists()


def test_under_ask_a_person_sees_the_very_difference_and_decides(project: Path) -> None:
    (project / "a.txt").write_text("one\n")
    write(
        project,
        call("run_command", argv=["sh", "-c", "echo three >> a.txt"]),
        call("edit_file", path="a.txt", old="one", new="two"),
    )
    screen = Screen(100, 40, project, "chat", "--script", "script.yaml", PROMPT_TOOLKIT_NO_CPR="1")
    try:
        screen.until("leaves\n>")
        screen.type("Do it.\r")
        screen.until("lead wants to run:", "echo three >> a.txt", "allow it? [y/N]")
        screen.type("y\r")
        screen.until("lead wants to write:", "edit_file a.txt", "-one", "+two")
        assert (project / "a.txt").read_text() == "one\nthree\n"
        screen.type("y\r")
        screen.until("Done.")
        assert (project / "a.txt").read_text() == "two\nthree\n"
    finally:
        screen.close()
