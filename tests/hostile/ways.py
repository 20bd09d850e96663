"""How every command is called by tests that walk all of them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.hostile.test_state import ARGUMENTS

MORE = {
    "spawn": ["explorer", "look", "--script", "script.yaml", "--wait"],
    "check": [],
    "smoke": ["--dry-run"],
    "models": [],
    "wait": ["--timeout", "0"],
    "transcript": ["last", "a"],
}
WITHOUT = ("runs", "list", "agents", "ps", "doctor", "gc", "init", "schema", "state", "completion", "verify")
LASTING = ("serve", "mcp", "worker", "chat")
"""What does not end by itself."""
VARIANTS = {
    "run": [
        ["one.yaml", "--script", "script.yaml", "--yes"],
        ["writes.yaml", "--script", "writes.script.yaml", "--yes"],
        ["runs"],
        ["runs", "--yes"],
        ["runs", "--dry-run"],
        ["asks"],
        ["linked.yaml"],
        ["handled.yaml"],
    ],
    "state": [["show"], ["remove", "--yes"]],
    "schema": [["--install"]],
    "check": [["--fix"], ["linked.yaml"], ["handled.yaml"]],
    "show": [["runs"], ["linked.yaml"]],
    "agents": [["scout"]],
    "gc": [["--dry-run"]],
    "verify": [["--all"]],
}
"""Further ways to call them, in the hostile clone."""


def ways(name: str, further: Mapping[str, list[list[str]]]) -> list[list[str]]:
    """How a command is called: as usual, and in these further ways. One that is new here gets `last`."""
    usual = MORE.get(name, ARGUMENTS.get(name, [] if name in WITHOUT else ["last"]))
    return [[name, *rest] for rest in (usual, *further.get(name, []))]
