"""The real smoke: three small scenarios on whatever provider is configured, each proved from its log.

A run that completes proves little: an agent may have said anything. So every scenario says what must stand
in the log, and is not ok without it. What a model answers is up to the model; only that it answered, in
which order, knowing what, and what came of it, is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from msgspec import UNSET, Struct

from fanfold.agents.entries import ToolCall, ToolResult
from fanfold.runtime.operations.system.smoke import ONE_BY_ONE, Ran, agent_events, live_at_once, order_of
from fanfold.runtime.records.memory import FileChange

FOLDER = "fanfold-smoke"
"""Stands in the recipes for the folder that the writers get; no such folder was there before."""
NOTE = f"{FOLDER}/note.txt"
ANSWER = f"{FOLDER}/answer.txt"
NO_TOOLS = "this model is offered none"
MAX_SHOWN_CHARS = 200

MICRO_PARALLEL = """
name: smoke-micro-parallel
limits: {timeout: 3m}
steps:
  - {id: left, agent: explorer, max_turns: 4, prompt: "Answer with the single word: left"}
  - {id: right, agent: explorer, max_turns: 4, prompt: "Answer with the single word: right"}
output: {left: steps.left.output, right: steps.right.output}
"""
DEPENDENCY = """
name: smoke-dependency
limits: {timeout: 3m}
steps:
  - {id: first, agent: explorer, max_turns: 4, prompt: "Name one colour, in one word."}
  - {id: second, agent: explorer, max_turns: 4, depends_on: [first], prompt: "Repeat it, in one word."}
"""
# Nothing but their write sets keeps the writers apart. The command writes what an agent said, so that a
# controlled write is shown also with a model that cannot use tools.
WRITER_CONTROLLED = f"""
name: smoke-writer-controlled
limits: {{timeout: 3m}}
steps:
  - id: first
    agent: worker
    max_turns: 8
    write_set: ["{FOLDER}/*.txt"]
    prompt: "Write the file {NOTE} with the single line: one. It is new. Then say done."
  - id: second
    agent: worker
    max_turns: 8
    write_set: ["{NOTE}"]
    prompt: "Write the file {NOTE} anew, with two lines: one, two. Then say done."
  - id: keep
    depends_on: [first, second]
    write_set: ["{ANSWER}"]
    env: {{SAID: "{{{{steps.second.output}}}}"}}
    run: [sh, -c, 'mkdir -p {FOLDER} && printf "%s\\n" "$SAID" > {ANSWER}']
"""


class Shown(Struct, frozen=True):
    """What a scenario's log shows, and what it should and does not."""

    evidence: dict[str, Any]
    missing: list[str]


class Left(Struct, frozen=True):
    """What a real run left behind: its log, the writers' files, and what its agents were given."""

    ran: Ran
    changes: Sequence[FileChange]
    """As the run's result lists them."""
    files: dict[str, str]
    """What the project holds of the writers' folder, by path as in the recipe."""
    offers_tools: bool


def micro_parallel(left: Left) -> Shown:
    """Both readers were live at one moment, and both answered."""
    ran = left.ran
    most = live_at_once(ran)
    missing = [] if most == 2 else ["the readers were not live at one moment"]
    missing += [f"{step} gave no answer" for step in ("left", "right") if not _said(ran, step)]
    answers = {step: _said(ran, step)[:MAX_SHOWN_CHARS] for step in ("left", "right")}
    return Shown({"live_at_once": most, "answers": answers}, missing)


def dependency(left: Left) -> Shown:
    """The second began when the first had ended, and was told what it said."""
    ran = left.ran
    order, said, prompt = order_of(ran), _said(ran, "first"), ran.prompt("second")
    # A first attempt that failed is started again: that is no disorder.
    one_by_one = [moment for moment, _ in groupby(order)] == ONE_BY_ONE
    missing = [] if one_by_one else ["the second agent did not begin after the first had ended"]
    if not said:
        missing.append("first gave no answer")
    elif said[:MAX_SHOWN_CHARS] not in prompt:  # a long answer is cut before it is handed on
        missing.append("the second agent was not told what the first had said")
    if not _said(ran, "second"):
        missing.append("second gave no answer")
    return Shown({"order": order, "first_said": said[:MAX_SHOWN_CHARS], "second_was_asked": prompt}, missing)


def writer_controlled(left: Left) -> Shown:
    """Writers with overlapping sets worked one by one, isolated, and what was written is in the project."""
    ran = left.ran
    order = order_of(ran)
    places = {data["step"]: data["workspace"] for data in agent_events(ran) if data["status"] == "started"}
    merged = {(row.step, row.path) for row in left.changes if row.state == "merged"}
    evidence: dict[str, Any] = {
        "order": order,
        "workspaces": places,
        "merged": [f"{step}: {path}" for step, path in sorted(merged)],
        "files": {path: text[:MAX_SHOWN_CHARS] for path, text in left.files.items()},
    }
    one_by_one = live_at_once(ran) == 1 and {"first finished", "second finished"} <= set(order)
    missing = [] if one_by_one else ["the writers did not work one after the other"]
    if places != {"first": "isolated", "second": "isolated"}:
        missing.append("the writers did not work isolated")
    said = _said(ran, "second")
    if ("keep", ANSWER) not in merged or not said or left.files.get(ANSWER, "").strip() != said:
        missing.append(f"the command did not write the agent's answer to {ANSWER}")
    if not left.offers_tools:
        missing.append("no agent wrote anything: the model is offered no tools")
        return Shown({**evidence, "tools": NO_TOOLS}, missing)
    calls = {step: _tool_calls(ran, step) for step in ("first", "second")}
    for step, tools in calls.items():
        if not tools:
            missing.append(f"{step} called no tool that writes")
        elif (step, NOTE) not in merged:
            missing.append(f"nothing that {step} wrote to {NOTE} was merged")
    if not left.files.get(NOTE, "").strip():
        missing.append(f"{NOTE} is not in the project")
    return Shown({**evidence, "tools": calls}, missing)


def _said(ran: Ran, step: str) -> str:
    output = ran.outputs.get(step)
    return output.strip() if isinstance(output, str) else ""


def _tool_calls(ran: Ran, step: str) -> list[str]:
    """The tools that may change files which an agent called and which did what was asked.

    Only calls that may change something are recorded before they begin.
    """
    entries = ran.sessions.get(step, [])
    results = (entry for entry in entries if isinstance(entry, ToolResult))
    fine = {entry.id for entry in results if entry.result is not UNSET and entry.result is not None}
    return [entry.tool for entry in entries if isinstance(entry, ToolCall) and entry.id in fine]


SCENARIOS: dict[str, tuple[str, Callable[[Left], Shown]]] = {
    "micro_parallel": (MICRO_PARALLEL, micro_parallel),
    "dependency": (DEPENDENCY, dependency),
    "writer_controlled": (WRITER_CONTROLLED, writer_controlled),
}
"""By name: the recipe, and what its log must show."""
