"""What a guard of a role's file says about a call, and which calls it is asked about."""

from typing import NamedTuple

import pytest

from fanfold.agents.role import CallGuard
from fanfold.agents.tool_names import allows, read_pattern
from fanfold.agents.tools.toolbox import is_guarded, why_denied


class Ended(NamedTuple):
    exit_code: int
    stdout: str = ""
    stderr: str = ""


@pytest.mark.parametrize(
    "said",
    [
        "", "fine by me", "{}", '{"decision": "approve"}', '{"continue": true, "decision": null}',
        '{"hookSpecificOutput": {"permissionDecision": "allow"}}',
        '{"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}}',
    ],
)  # fmt: skip
def test_plain_agreement_lets_a_call_through(said: str) -> None:
    assert why_denied(Ended(0, said)) == ""


@pytest.mark.parametrize(
    "said",
    [
        '{"decision": "block"}',
        '\ufeff{"decision": "block"}',
        '{"decision": "block", "hookSpecificOutput": {"permissionDecision": "allow"}}',
        '{"decision": "block", "hookSpecificOutput": {"permissionDecision": null}}',
        '{"decision": "approve", "hookSpecificOutput": {"permissionDecision": "ask"}}',
        '{"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "deny"}}}',
        '{"hookSpecificOutput": {"decision": {"behavior": "allow", "updatedInput": {}}}}',
        '{"hookSpecificOutput": {"decision": "deny"}}',
        '{"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "ls"}}}',
        '{"permissionDecision": "deny"}',
        '{"hookSpecificOutput": []}',
        '{"continue": "false"}',
        '{"continue": 0}',
        '{"decision": ["approve"]}',
        '{"decision": "approve"',
    ],
)
def test_every_other_answer_denies(said: str) -> None:
    assert why_denied(Ended(0, said)) != ""


def test_the_reason_of_a_permission_decision_is_reported() -> None:
    said = '{"hookSpecificOutput": {"decision": {"behavior": "deny", "message": "not on Fridays"}}}'
    assert why_denied(Ended(0, said)) == "not on Fridays"


@pytest.mark.parametrize(
    ("matcher", "tool", "asked"),
    [
        ("", "read_file", True),
        ("Bash", "run_command", True),
        ("bash|Write", "delete_file", True),
        ("Edit", "apply_patch", True),
        ("Read", "write_file", False),
        ("mcp__.*", "mcp__wiki__find", True),
        ("mcp__*", "mcp__wiki__find", True),
        ("mcp__wiki.find", "mcp__wiki__find", False),
    ],
)
def test_a_guard_is_asked_about_the_tools_that_it_names(matcher: str, tool: str, asked: bool) -> None:
    assert is_guarded(CallGuard(matcher, "true"), tool) is asked


@pytest.mark.parametrize(
    ("pattern", "argv", "allowed"),
    [
        ("scripts/*.sh", ["scripts/a.sh"], True),
        ("scripts/*.sh", ["scripts/../evil.sh"], False),
        ("./scripts/*", ["./scripts/../evil", "now"], False),
        ("../tools/*", ["../tools/lint"], True),
        ("python *.py", ["python", "a.py"], True),
        ("python *.py", ["python", "-cimport os #.py"], False),
        ("git * status", ["git", "-c", "core.fsmonitor=evil", "status"], False),
        ("git * main", ["git", "push", "-u", "main"], True),
        ("git * main", ["git", "main"], False),
        ("git log:*", ["git", "log", "--", "../a"], True),
        ("git log:*", ["git", "log"], True),
        ("make test", ["make", "test\n"], False),
        ("cat a[1]?", ["cat", "a1x"], False),
    ],
)
def test_a_star_stands_for_what_it_seems_to(pattern: str, argv: list[str], allowed: bool) -> None:
    words = read_pattern(pattern)
    assert isinstance(words, tuple)
    assert allows(words, argv) is allowed


def judge_long_patterns() -> tuple[bool, bool]:
    """Tried one way after the other these would take years; `bench/bounds.py` says how long they may take."""
    allowed = allows(("a", "*") * 20 + ("b",), ["a"] * 400)
    return allowed, is_guarded(CallGuard("*a" * 30 + "b", "true"), "mcp__" + "a" * 60)


def test_patterns_full_of_stars_are_judged() -> None:
    assert judge_long_patterns() == (False, False)
