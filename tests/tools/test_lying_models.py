"""Models that call tools with whatever comes to them: every answer is short, is data, and changes nothing."""

import json
import math
from typing import Any

import pytest

from fanfold.api.tool_registry import MAX_ARGS_BYTES, TOOLS

MAX_ANSWER_CHARS = 40_000


def nested(levels: int) -> object:
    value: object = {}
    for _ in range(levels):
        value = {"a": [value]}
    return value


WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 2**200, 1e308, math.nan, math.inf,
    "", " ", "\0", "a\0b", "\x1b[2J\x07", "\u202e", "\ud800", "x" * 100_000, "x" * MAX_ARGS_BYTES,
    "../../etc/passwd", "-rf", "--help", "{{inputs.topic}}", "last", "hand", "*", "a/b#2[0]",
    "$(touch owned)",
    [], [None], [[]], ["\0"], ["\ud800"], {}, {"a": 1}, {"\0": "\0"}, nested(50), nested(400),
)  # fmt: skip
RIGHT: dict[str, dict[str, Any]] = {
    "plan_workflow": {"task": "Audit all packages", "use_model": False},
    "run_workflow": {"name": "read-two", "inputs": {"topic": "owls"}},
    "workflow_status": {},
    "query_workflow": {"query": "owls"},
    "save_workflow": {"name": "one", "recipe": "name: one\nsteps: [{id: a, agent: explorer, prompt: Go}]\n"},
    "task": {"role": "explorer", "task": "look"},
    "task_batch": {"tasks": [{"role": "explorer", "task": "look"}]},
    "spawn_agent": {"role": "explorer", "task": "look"},
    "wait_agent": {"timeout_s": 0},
    "send_input": {"agent": "nobody", "text": "more"},
    "close_agent": {"agent": "nobody"},
    "list_agents": {},
}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_tool_answers_bad_arguments_briefly_with_data_and_starts_nothing(tool, call, project):
    before = sorted((project / ".fanfold/workflows").iterdir())
    for field in tool.takes.__struct_fields__:
        for wrong in WRONG:
            if field == "timeout_s" and wrong == 1e308:
                continue  # as long as it likes to wait
            args = {**RIGHT[tool.name], field: wrong}
            answer = call(tool.name, args, permission="read_only")
            said = json.dumps(answer, ensure_ascii=False, allow_nan=False)
            said.encode()
            assert len(said) < MAX_ANSWER_CHARS, (field, repr(wrong)[:80])
            assert answer["ok"] or answer["error"]["code"] != "internal", (field, repr(wrong)[:80], answer)
    assert not (project / "owned").exists()
    assert sorted((project / ".fanfold/workflows").iterdir()) == before
    assert not (project / ".fanfold/subagents").exists()


@pytest.mark.parametrize("name", ["\0", "a\0b", "../x", "", "x" * 1_000, "\x1b[2J", "a/b", "x@0"])
def test_an_invalid_name_saves_no_recipe(name, call, project):
    before = sorted((project / ".fanfold/workflows").iterdir())
    refused = call("save_workflow", {**RIGHT["save_workflow"], "name": name})
    assert refused["error"]["code"] == "invalid_args"
    assert sorted((project / ".fanfold/workflows").iterdir()) == before


def test_a_call_with_too_much_data_gets_an_error(call):
    refused = call("task", {"role": "explorer", "task": "x" * MAX_ARGS_BYTES})
    assert refused["error"]["code"] == "limit_exceeded"
