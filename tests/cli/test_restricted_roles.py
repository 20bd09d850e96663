"""What a role's file forbids is kept: commands, guards, questions, the tree that it works in."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result

pytestmark = pytest.mark.full

RECIPE = """\
name: job
steps:
  - {id: work, agent: ROLE, prompt: Do it}
"""
GUARD = """\
hooks:
  PreToolUse:
    - matcher: "MATCHER"
      hooks:
        - {type: command, command: 'COMMAND', timeout: SECONDS}
"""
TOUCH = ["touch", "made.txt"]


def role(project: Path, keys: str, name: str = "held") -> None:
    folder = project / ".claude/agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\nname: {name}\ndescription: d\n{keys}\n---\nWork.\n")
    (project / "job.yaml").write_text(RECIPE.replace("ROLE", name))


def guard(command: str, matcher: str = "Bash") -> str:
    quoted = command.replace("'", "''")
    seconds = "1" if command.startswith("sleep") else "60"
    said = GUARD.replace("MATCHER", matcher).replace("COMMAND", quoted).replace("SECONDS", seconds)
    return f"tools: Read, Write, Edit, Bash\n{said}"


def work(fanfold: Callable[..., Result], project: Path, *calls: dict[str, Any], flags: str = "--yes") -> Any:
    """What came of a run whose agent makes these calls."""
    answer = {"steps": {"work": {"output": "done", "tool_calls": list(calls)}}}
    (project / "script.yaml").write_text(json.dumps(answer))
    return fanfold("run", "job.yaml", "--script", "script.yaml", "--json", *flags.split()).json()


def run(*argv: str) -> dict[str, Any]:
    return {"tool": "run_command", "args": {"argv": list(argv)}}


@pytest.mark.parametrize(
    ("argv", "allowed"),
    [
        (["echo", "hello"], True),
        (["echo"], True),
        (["printf", "a"], True),
        (["printf", "b"], False),
        (["printf", "a", "b"], False),
        (["touch", "made.txt"], False),
        (["sh", "-c", "echo hello"], False),
        (["echo", "hello", "&&", "touch", "made.txt"], False),
        (["echo hello"], False),
        (["./echo", "hello"], False),
        (["/bin/echo", "hello"], False),
        (["env", "echo", "hello"], False),
        (["ECHO", "hello"], False),
    ],
)
def test_only_the_commands_of_its_patterns_run(fanfold, project, argv, allowed):
    role(project, "tools: Read, Bash(echo:*), Bash(printf a)")
    found = work(fanfold, project, run(*argv))
    assert (found["status"] == "completed") == allowed, found
    if not allowed:
        error = found["steps"]["work"]["error"]
        assert (error["class"], error["code"]) == ("permission", "command_not_allowed")


GUARDS = {
    "exit 0": "",
    "cat > /dev/null; echo all is well": "",
    'echo "{}"': "",
    "echo not today >&2; exit 2": "not today",
    "exit 1": "exit status 1",
    "no-such-program-at-all": "exit status 127",
    "sleep 60": "within 1 s",
    'printf "{\\"decision\\": \\"block\\", \\"reason\\": \\"no\\"}"': "no",
    'printf "{\\"hookSpecificOutput\\": {\\"permissionDecision\\": \\"ask\\"}}"': "denied the call",
    'printf "{\\"hookSpecificOutput\\": {\\"updatedInput\\": {}}}"': "may only deny",
    'printf "{broken"': "is not valid",
}


@pytest.mark.parametrize(("command", "why"), GUARDS.items())
def test_a_guard_that_does_not_plainly_agree_denies(fanfold, project, command, why):
    role(project, guard(command))
    found = work(fanfold, project, run(*TOUCH))
    assert (found["status"] == "completed") == (why == ""), found
    assert (project / "made.txt").exists() == (why == "")
    if why:
        error = found["steps"]["work"]["error"]
        assert (error["class"], error["code"]) == ("permission", "guard_denied")
        assert why in error["message"]


def test_a_guard_sees_the_call_in_the_words_of_claude_code(fanfold, project):
    (project / ".claude/hooks").mkdir(parents=True)
    script = project / ".claude/hooks/guard.sh"
    script.write_text(
        '#!/bin/sh\ncase "$(cat)" in *\'"tool_name":"Bash"\'*\'"command":"touch \'*) exit 2;; esac\n'
    )
    role(project, guard('sh "$CLAUDE_PROJECT_DIR"/.claude/hooks/guard.sh'))
    assert work(fanfold, project, run(*TOUCH))["status"] == "failed"
    assert work(fanfold, project, run("echo", "touch"))["status"] == "completed"


@pytest.mark.parametrize(
    ("matcher", "call", "heard"),
    [
        ("Bash", {"tool": "write_file", "args": {"path": "a", "content": "x"}}, False),
        ("Edit|Write", {"tool": "write_file", "args": {"path": "a", "content": "x"}}, True),
        (
            "Edit",
            {"tool": "apply_patch", "args": {"patch": "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"}},
            True,
        ),
        ("*", {"tool": "read_file", "args": {"path": "job.yaml"}}, True),
        ("Bash.*", {"tool": "read_file", "args": {"path": "job.yaml"}}, False),
        ("bash", run("echo"), True),
    ],
)
def test_a_guard_is_heard_about_the_tools_that_it_names(fanfold, project, matcher, call, heard):
    role(project, guard("exit 2", matcher))
    assert (work(fanfold, project, call)["status"] == "failed") == heard


def test_a_guard_can_change_nothing_and_an_agent_cannot_change_its_guard(fanfold, project):
    (project / "guard.sh").write_text("exit 2\n")
    role(project, guard("touch by-guard.txt; sh guard.sh"))
    rewrite = {"tool": "write_file", "args": {"path": "guard.sh", "content": "exit 0\n"}}
    found = work(fanfold, project, rewrite, run(*TOUCH))
    assert found["steps"]["work"]["error"]["code"] == "guard_denied"
    assert not (project / "by-guard.txt").exists()
    assert (project / "guard.sh").read_text() == "exit 2\n"


def test_guards_are_asked_for_like_commands(fanfold, project):
    role(project, guard("touch x; exit 0"))
    denied = fanfold("run", "job.yaml", "--json").json()
    assert "role held has its calls of Bash judged by: touch x; exit 0" in denied["error"]["details"]["needs"]


def test_a_role_that_may_not_ask_is_denied_where_others_would_ask(fanfold, project):
    role(project, "tools: Read, Bash\npermissionMode: dontAsk")
    assert work(fanfold, project, run("echo"), flags="--permission auto")["status"] == "completed"


@pytest.mark.parametrize("keys", ["isolation: worktree", guard("exit 0")])
def test_a_role_that_works_apart_is_not_let_into_the_shared_tree(fanfold, project, keys):
    role(project, keys)
    text = (project / "job.yaml").read_text()
    (project / "job.yaml").write_text(text.replace("prompt:", "workspace_mode: shared, prompt:"))
    found = fanfold("check", "job.yaml", "--json").json()
    assert [one["code"] for one in found["diagnostics"]] == ["recipe.conflicting_keys"]
    (project / "job.yaml").write_text(text.replace("prompt:", "workspace_mode: isolated, prompt:"))
    assert fanfold("check", "job.yaml").status == 0


@pytest.mark.parametrize(
    "keys",
    ["tools: Bash(git diff:*)", "permissionMode: dontAsk", guard("exit 0")],
    ids=["commands", "mode", "hooks"],
)
def test_no_program_with_tools_of_its_own_works_for_a_role_that_is_held(fanfold, project, keys):
    role(project, f"{keys}\nbackend: command\ncommand: cat")
    found = fanfold("check", "job.yaml", "--json").json()
    assert "recipe.broken_role" in [one["code"] for one in found["diagnostics"]]
    role(project, keys)
    own = Path(os.environ["HOME"]) / ".fanfold/backends/own.toml"
    own.parent.mkdir(parents=True)
    own.write_text('program = "cat"\nprompt = "stdin"\noutput = "text"\n')
    refused = fanfold("run", "job.yaml", "--agent-backend", "own", "--yes", "--json").json()
    assert refused["error"]["code"] == "role.refused"
