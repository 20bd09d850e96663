"""CrewAI's YAML: tasks, one after the other, and the agents that do them."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, structs

from fanfold.recipe.conversion.source import Converted, ForeignFile, Lost, Reader, slug, step_id
from fanfold.text.trees.tree import Mapping

_HOLE = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})", re.ASCII)
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


def convert(source: ForeignFile) -> Converted:
    """A crew's tasks as a recipe; its agents stand beside them in `agents.yaml`."""
    tree = source.tree()
    agents = _agents(source, tree)
    inputs: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    tasks = tree.get("tasks")
    whole = isinstance(tasks, Mapping)
    for word, _ in tree.entries if whole else []:
        if word.text not in ("tasks", "agents"):
            source.lose(word, f"crew: {word.text}", "recipes have nothing like it")
    before: list[str] = []
    gates: list[str] = []
    """The last question that was put to a person."""
    for word, node in (tasks if isinstance(tasks, Mapping) else tree).entries:
        if not whole and word.text == "agents" and agents:
            continue
        if not isinstance(node, Mapping):
            source.lose(word, word.text, "it is no task")
            continue
        reader = Reader(source, node, f"task {word.text}")
        step = _task(reader, step_id(word.text), agents, inputs)
        alone = reader.flag("async_execution")
        # A task that does not say otherwise is given what all before it gave.
        told = _context(reader, before, alone=alone)
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
            source.lost.append(Lost(one.line, f"agent {name}", why, one.file))
    folder = source.file.replace("\\", "/").rpartition("/")[0].split("/")
    named = [one for one in folder if one not in ("", ".", "config", "src")]
    recipe: dict[str, Any] = {"name": slug(named[-1] if named else "crew")}
    if inputs:
        recipe["inputs"] = inputs
    recipe["steps"] = steps
    return Converted(recipe, source.lost)


def _context(reader: Reader, before: list[str], *, alone: bool) -> list[str]:
    """The tasks whose results a task is given."""
    named = [step_id(one) for one in reader.texts("context")]
    for missing in (one for one in named if one not in before):
        reader.lose("context", f"there is no task {missing} before it")
    if named:
        return [one for one in named if one in before]
    return [] if alone else list(before)


class _Agent(Struct):
    """What an agent is told about itself, and where that stands."""

    told: str
    file: str
    line: int
    used: bool = False


def _agents(source: ForeignFile, top: Mapping) -> dict[str, _Agent]:
    """The agents of a crew, by name."""
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


def _task(reader: Reader, name: str, agents: dict[str, _Agent], inputs: dict[str, Any]) -> dict[str, Any]:
    who, parts = reader.text("agent"), []
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
    return {"id": name, "agent": "default", "prompt": _HOLE.sub(hole, text) or "Go on."}
