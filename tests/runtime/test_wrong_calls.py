"""Tools called wrongly: the call fails and the session hears of it; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.entries import Response, ToolResult
from fanfold.agents.tool_names import SPECS
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.wiring import wire
from tests.runtime.running import run

pytestmark = pytest.mark.full

SHAPES: tuple[object, ...] = (None, True, -1, 2**62, 0.5, "", [], [[]], [None], {}, {"a": 1})
GOOD: dict[str, dict[str, Any]] = {
    "read_file": {"path": "a.txt"},
    "list_files": {},
    "search_files": {"pattern": "a"},
    "write_file": {"path": "a.txt", "content": "a"},
    "edit_file": {"path": "a.txt", "old": "a", "new": "b"},
    "apply_patch": {"patch": "x"},
    "delete_file": {"path": "a.txt"},
    "run_command": {"argv": ["true"]},
    "read_output": {"output": "x"},
    "fetch_url": {"url": "http://127.0.0.1:9"},
    "query_workflow": {"query": "x"},
}
NASTY = ("\0", "a\0b", "../../x", "/", "~", "a" * 300, "x/" * 3_000, "\u202e", "\ue000")


def wrong_arguments(tool: str) -> Iterator[dict[str, Any]]:
    """Every way in which the types of a call can be wrong."""
    schema = next(spec.schema for spec in SPECS if spec.name == tool)
    good = GOOD[tool]
    yield {**good, "nobody_knows": 1}
    for name in schema["required"]:
        yield {key: value for key, value in good.items() if key != name}
    for name, said in schema["properties"].items():
        for shape in SHAPES:
            if not fits(said, shape):
                yield {**good, name: shape}


def fits(said: dict[str, Any], shape: object) -> bool:
    match said["type"]:
        case "string":
            return isinstance(shape, str)
        case "boolean":
            return isinstance(shape, bool)
        case "integer":
            whole = isinstance(shape, int) and not isinstance(shape, bool)
            return whole and said["minimum"] <= shape <= said["maximum"]
        case _:
            return isinstance(shape, list) and bool(shape) and all(isinstance(one, str) for one in shape)


def test_there_is_a_good_call_of_every_tool() -> None:
    assert set(GOOD) == {spec.name for spec in SPECS}


def test_a_call_with_wrong_arguments_fails_and_the_session_continues(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    tools = [tool for tool in GOOD if tool != "fetch_url"]  # offered with a network alone
    calls = [{"tool": tool, "args": args} for tool in tools for args in wrong_arguments(tool)]
    script = {"steps": {"a": {"output": "went on", "tool_calls": calls}}}
    recipe = 'name: wrong\nsteps: [{id: a, agent: worker, prompt: a, write_set: ["**"]}]'
    result = run(tmp_path, recipe, json.dumps(script))
    assert (result.status, result.output) == ("completed", "went on"), result.error
    project = wire(tmp_path)
    entries = list(read_entries(project.store, session_id(result.run_id, "a", 1)))
    project.close()
    answers = [entry for entry in entries if isinstance(entry, ToolResult)]
    assert len(answers) == len(calls) > 100
    assert {answer.error.code for answer in answers if answer.error is not None} == {"invalid_args"}
    assert all(answer.error is not None for answer in answers)
    assert any(isinstance(entry, Response) for entry in entries)
    assert (tmp_path / "a.txt").read_text() == "a"


@pytest.mark.parametrize("tool", [tool for tool, args in GOOD.items() if args and tool != "fetch_url"])
def test_a_call_with_values_that_no_system_takes_is_at_most_a_failure_of_its_step(
    tool: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a")
    calls = [
        {**GOOD[tool], name: [nasty] if isinstance(value, list) else nasty}
        for name, value in GOOD[tool].items()
        for nasty in NASTY
    ]
    script = {
        "steps": {
            f"s{n}": {"output": "ok", "tool_calls": [{"tool": tool, "args": args}]}
            for n, args in enumerate(calls)
        }
    }
    steps = "".join(
        f'  - {{id: s{n}, agent: worker, prompt: a, write_set: ["**"], merge: discard, on_failure: inline}}\n'
        for n in range(len(calls))
    )
    result = run(tmp_path, f"name: nasty\nsteps:\n{steps}", json.dumps(script))
    errors = [step.error for step in result.steps.values() if step.error is not None]
    assert {error.kind for error in errors} <= {"tool", "permission", "violation"}, errors
    assert "tool.crashed" not in {error.code for error in errors}, errors
