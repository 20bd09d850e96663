"""Converts CrewAI's YAML: tasks, one after the other, and their agents.

The agent of a task may be defined only in the program of the crew (`crew.py`). The program is read, never
run, for the agent and the context of each task. A task without a known agent must be written by hand.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from msgspec import Struct, structs

from fanfold.language.convert.source import (
    UNWRITTEN,
    ConversionResult,
    ForeignFile,
    Loss,
    Reader,
    slug,
    step_id,
)
from fanfold.language.tree import Mapping

_HOLE = r"(?a)(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})"
_WHY = {
    "tools": "give the step a role with these tools",
    "output_file": "have the step write it, with a write_set",
    "output_json": "write its JSON Schema as output_schema",
    "output_pydantic": "write its JSON Schema as output_schema",
    "guardrail": "repeat the step until a check passes",
    "callback": "a function step may follow",
    "markdown": "say so in the prompt",
    "max_retries": "say `retry`",
}
_AGENT_WHY = {
    "tools": "give the step a role with these tools",
    "llm": "say `model` in the step",
    "allow_delegation": "agents of a run do not delegate",
    "verbose": "every run keeps a transcript",
    "max_iter": "say `max_turns` in the step",
    "memory": "sessions have no memory of their own",
    "max_rpm": "providers are throttled by themselves",
    "allow_code_execution": "give the step a role that may run commands",
}
_CREW_WHY = {
    "process": "a manager that hands out tasks is to be written: say who does what",
    "memory": "sessions have no memory of their own",
    "planning": "say the plan in the prompts",
    "knowledge_sources": "put them in the project",
}


def convert(source: ForeignFile) -> ConversionResult:
    """Return a crew's tasks as a recipe; its agents are in `agents.yaml` next to them."""
    tree = source.tree()
    agents = _agents(source, tree)
    wired = _wired(source)
    inputs: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    tasks = tree.get("tasks")
    whole = isinstance(tasks, Mapping)
    for word, _ in tree.entries if whole else []:
        if word.text not in ("tasks", "agents"):
            source.lose(word, f"crew: {word.text}", "recipes have nothing like it")
    before: list[str] = []
    gates: list[str] = []
    """The last question for a person."""
    for word, node in (tasks if isinstance(tasks, Mapping) else tree).entries:
        if not whole and word.text == "agents" and agents:
            continue
        if not isinstance(node, Mapping):
            source.lose(word, word.text, "it is no task")
            continue
        reader = Reader(source, node, f"task {word.text}")
        known = wired.get(word.text, _Wired())
        step = _task(reader, step_id(word.text), agents, inputs, known)
        alone = reader.flag("async_execution") or known.alone
        # By default, a task gets the results of all tasks before it.
        told = _context(reader, before, known.context, alone=alone)
        step["prompt"] += "".join(f"\n\nFrom {one}:\n{{{{steps.{one}.output}}}}" for one in told)
        needed = list(dict.fromkeys([*told, *gates]))
        if needed:
            step["depends_on"] = needed
        steps.append(step)
        if reader.flag("human_input"):
            gate: dict[str, Any] = {"id": f"{step['id']}-check", "depends_on": [step["id"]]}
            steps.append(gate | {"approve": "Is this good?", "show": f"{{{{steps.{step['id']}.output}}}}"})
            gates = [gate["id"]]
        before.append(step["id"])
        for name, why in _WHY.items():
            reader.lose(name, why)
        reader.done()
    for name, one in agents.items():
        if not one.used:
            why = "no task names it; say in a prompt what it is told"
            source.lost.append(Loss(one.line, f"agent {name}", why, one.file))
    folder = source.file.replace("\\", "/").rpartition("/")[0].split("/")
    named = [one for one in folder if one not in ("", ".", "config", "src")]
    recipe: dict[str, Any] = {"name": slug(named[-1] if named else "crew")}
    if inputs:
        recipe["inputs"] = inputs
    recipe["steps"] = steps
    return ConversionResult(recipe, source.lost)


class _Wired(Struct):
    """The settings of a task in the program of a crew."""

    agent: str = ""
    managed: bool = False
    """Whether a manager decides which agent does it, and when."""
    context: tuple[str, ...] = ()
    alone: bool = False


def _wired(source: ForeignFile) -> dict[str, _Wired]:
    """Return the settings of each task in `crew.py`, by its name in the YAML file; the rest is lost."""
    above = source.file.replace("\\", "/").split("/")[-3:-2]
    for file in ("../crew.py", *(f"../{name}.py" for name in above), "crew.py"):
        data = source.beside(file)
        try:
            tree = ast.parse(data) if data is not None else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            source.lost.append(Loss(1, "crew", "it is not read: its Python is not of this version", file))
            tree = None
        if tree is not None:
            return _read_program(source, tree, file)
    return {}


def _read_program(source: ForeignFile, program: ast.Module, file: str) -> dict[str, _Wired]:
    names: dict[str, str] = {}
    """By method: the name in the YAML file of the agent or task that it creates."""
    made: dict[str, dict[str, ast.expr]] = {}
    managed = any(isinstance(one, ast.Attribute) and one.attr == "hierarchical" for one in ast.walk(program))
    for method in ast.walk(program):
        if not isinstance(method, ast.FunctionDef):
            continue
        calls = [
            one for one in ast.walk(method) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
        ]
        for call in calls:
            if not isinstance(call.func, ast.Name) or call.func.id not in ("Agent", "Task", "Crew"):
                continue
            given = {one.arg: one.value for one in call.keywords if one.arg is not None}
            config = given.get("config")
            key = config.slice if isinstance(config, ast.Subscript) else None
            names[method.name] = str(key.value) if isinstance(key, ast.Constant) else method.name
            if call.func.id == "Task":
                made[names[method.name]] = given
            for word, why in {**_WHY, **_AGENT_WHY, **_CREW_WHY}.items():
                plain = (
                    word == "process" and "hierarchical" not in ast.dump(given[word])
                    if word in given
                    else True
                )
                if not plain and word != "verbose":
                    source.lost.append(Loss(given[word].lineno, f"{method.name}: {word}", why, file))
    return {
        task: _Wired(
            agent=next((names.get(one, one) for one in _methods(given.get("agent"))), ""),
            managed=managed,
            context=tuple(names.get(one, one) for one in _methods(given.get("context"))),
            alone=isinstance(found := given.get("async_execution"), ast.Constant) and found.value is True,
        )
        for task, given in made.items()
    }


def _methods(value: ast.expr | None) -> list[str]:
    """Return the methods of the crew that an expression calls: `self.name()`."""
    found = [] if value is None else [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    return [one.func.attr for one in found if isinstance(one.func, ast.Attribute)]


def _context(reader: Reader, before: list[str], wired: tuple[str, ...], *, alone: bool) -> list[str]:
    """Return the tasks whose results a task gets."""
    named = [step_id(one) for one in reader.texts("context") or wired]
    for missing in (one for one in named if one not in before):
        reader.lose("context", f"there is no task {missing} before it")
    if named:
        return [one for one in named if one in before]
    return [] if alone else list(before)


class _Agent(Struct):
    """The instructions of an agent, and their position."""

    told: str
    file: str
    line: int
    used: bool = False


def _agents(source: ForeignFile, top: Mapping) -> dict[str, _Agent]:
    """Return the agents of a crew, by name."""
    own = top.get("agents")
    if own is not None and not isinstance(own, Mapping):
        source.lose(own, "crew: agents", "it is no object")
    data = None if isinstance(own, Mapping) else source.beside("agents.yaml")
    if data is not None:
        other = ForeignFile(data, "agents.yaml", lambda _: None)
        found = _told(other, other.tree(), other.file)
        source.lost += [structs.replace(one, file=other.file) for one in other.lost]
        return found
    return _told(source, own, "") if isinstance(own, Mapping) else {}


def _told(source: ForeignFile, agents: Mapping, beside: str) -> dict[str, _Agent]:
    told: dict[str, _Agent] = {}
    for word, node in agents.entries:
        if not isinstance(node, Mapping):
            source.lose(word, f"agent {word.text}", "it is no object")
            continue
        reader = Reader(source, node, f"agent {word.text}")
        role, goal, story = (" ".join(reader.text(key).split()) for key in ("role", "goal", "backstory"))
        lines = (f"You are {role}." if role else "", f"Your goal: {goal}" if goal else "", story)
        words = "\n".join(filter(None, lines))
        told[word.text] = _Agent(words, beside, source.line(word))
        for name, why in _AGENT_WHY.items():
            reader.lose(name, why)
        reader.done()
    return told


def _task(
    reader: Reader, name: str, agents: dict[str, _Agent], inputs: dict[str, Any], wired: _Wired
) -> dict[str, Any]:
    who, parts = reader.text("agent") or wired.agent, []
    if who and who not in agents:
        reader.lose("agent", f"nothing here says who {who} is; a role of that name would do")
    elif who:
        parts.append(agents[who].told)
        agents[who].used = True
    parts.append(reader.text("description").strip())
    if reader.text("expected_output"):
        parts.append(f"What is expected: {reader.text('expected_output').strip()}")
    reader.get("name")

    def hole(found: re.Match[str]) -> str:
        inputs[found[1]] = {"required": True}
        return f"{{{{inputs.{found[1]}}}}}"

    text = "\n\n".join(part for part in parts if part).replace("{{", "\\{{")
    step = {"id": name, "agent": "default", "prompt": re.sub(_HOLE, hole, text) or "Go on."}
    if wired.managed:
        step[UNWRITTEN] = "a manager hands out the tasks: say who does what"
    elif agents and not who:
        reader.source.lose(reader.node, reader.what, "who does it is not said; name its agent")
        step[UNWRITTEN] = "who does it"
    return step
