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
from fanfold.language.template import literal
from fanfold.language.tree import Mapping

ANY_CREW = "../*.py"
"""The only program with the configuration of tasks above the folder of the file."""
_HOLE = r"(?a)(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})"
_WHY = {
    "tools": "give the step a role with these tools",
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
_SAME_HERE = {
    "verbose": "",
    "allow_delegation": "False",
    "memory": "False",
    "tools": "[]",
    "cache": "True",
    "process": "Process.sequential",
    "planning": "False",
    "inject_date": "True",
}
"""Settings that change nothing: `verbose`, and of the others the value that applies here anyway."""
_DECIDES = frozenset(
    "tools knowledge_sources output_json output_pydantic guardrail callback description condition memory"
    " long_term_memory planning".split()
)
"""Settings without which a task or an agent would do something else."""
_READ = frozenset("config agent agents tasks context async_execution human_input output_file".split())
_FLAGS = frozenset({"async_execution", "human_input"})
_CREW_WHY = {
    "description": "write it into the prompt",
    "condition": "write it as `when`",
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
    unknown = _TaskSettings(absent=bool(wired), equipped=frozenset({""} if wired is None else ()))
    wired = wired or {}
    inputs: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    tasks = tree.get("tasks")
    whole = isinstance(tasks, Mapping)
    for word, _ in tree.entries if whole else []:
        if word.text not in ("tasks", "agents"):
            source.lose(word, f"crew: {word.text}", "recipes have no counterpart")
    before: list[str] = []
    gates: list[str] = []
    """The last question for a person."""
    order = {name: place for place, name in enumerate(wired)}
    entries = (tasks if isinstance(tasks, Mapping) else tree).entries
    for word, node in sorted(entries, key=lambda entry: order.get(entry[0].text, len(order))):
        if not whole and word.text == "agents" and agents:
            continue
        if not isinstance(node, Mapping):
            source.lose(word, word.text, "it is no task")
            continue
        reader = Reader(source, node, f"task {word.text}")
        known = wired.pop(word.text, unknown)
        step = _task(reader, step_id(word.text), agents, inputs, known)
        alone = reader.flag("async_execution") or known.alone
        # By default, a task gets the results of all tasks before it.
        sources = _context(reader, before, known.context, alone=alone)
        step["prompt"] += "".join(f"\n\nFrom {one}:\n{{{{steps.{one}.output}}}}" for one in sources)
        if needed := list(dict.fromkeys([*sources, *gates])):
            step["depends_on"] = needed
        steps.append(step)
        if reader.flag("human_input") or known.asks:
            gate: dict[str, Any] = {"id": f"{step['id']}-check", "depends_on": [step["id"]]}
            steps.append(gate | {"approve": "Is this good?", "show": f"{{{{steps.{step['id']}.output}}}}"})
            gates = [gate["id"]]
        before.append(step["id"])
        for name, why in _WHY.items():
            if name in _DECIDES and reader.get(name) is not None:
                step.setdefault(UNWRITTEN, why)
            reader.lose(name, why)
        reader.done()
    _lose_unused(source, wired, agents)
    folder = source.file.replace("\\", "/").rpartition("/")[0].split("/")
    named = [part for part in folder if part not in ("", ".", "config", "src")]
    recipe: dict[str, Any] = {"name": slug(named[-1] if named else "crew")}
    if inputs:
        recipe["inputs"] = inputs
    recipe["steps"] = steps
    return ConversionResult(recipe, source.lost)


def _lose_unused(source: ForeignFile, wired: dict[str, _TaskSettings], agents: dict[str, _Agent]) -> None:
    why = "the program of the crew defines it, outside this file"
    source.lost += [Loss(1, f"task {name}", why) for name in wired]
    why = "no task names it; write its instructions into a prompt"
    unused = [(name, one) for name, one in agents.items() if not one.used]
    source.lost += [Loss(one.line, f"agent {name}", why, one.file) for name, one in unused]


class _TaskSettings(Struct):
    """The settings of a task in the program of a crew."""

    agent: str = ""
    managed: bool = False
    """Whether a manager decides which agent does it, and when."""
    context: tuple[str, ...] = ()
    alone: bool = False
    absent: bool = False
    """Whether the program does not create it."""
    asks: bool = False
    """Whether a person judges its result."""
    equipped: frozenset[str] = frozenset()
    file: str = ""
    """The file into which it writes its result."""


def _wired(source: ForeignFile) -> dict[str, _TaskSettings] | None:
    """Return the settings of each task in `crew.py`, by its name in the YAML file, in their order.

    The rest is lost. None if the program was not found.
    """
    above = source.file.replace("\\", "/").split("/")[-3:-2]
    for file in ("../crew.py", *(f"../{name}.py" for name in above), ANY_CREW, "crew.py"):
        data = source.beside(file)
        try:
            tree = ast.parse(data) if data is not None else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            source.lost.append(Loss(1, "crew", "it is not read: its Python is not of this version", file))
            tree = None
        if tree is not None:
            return _read_program(source, tree, file)
    if source.file.replace("\\", "/").split("/")[-2:-1] != ["config"]:
        return {}
    why = "it was not found: its tools, models and contexts are unknown"
    source.lost.append(Loss(1, "the program of the crew", why))
    return None


class _Program:
    """The program of a crew as far as it was read; everything else in it is lost."""

    def __init__(self, source: ForeignFile, file: str) -> None:
        self._source, self._file = source, file
        self.names: dict[str, str] = {}
        """By method: the name in the YAML file of the agent or task that it creates."""
        self.made: dict[str, dict[str, ast.expr]] = {}
        self.listed: list[str] = []
        """The methods of the tasks in their order, if it is not the order of the methods."""
        self.equipped: set[str] = set()
        """The agents and tasks with settings in Python that no step here has; "" for all."""
        self._crews = 0

    def _lose(self, at: ast.expr, what: str, why: str) -> None:
        self._source.lost.append(Loss(at.lineno, what, why, self._file))

    def read(self, method: ast.FunctionDef) -> None:
        for call in ast.walk(method):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Agent", "Task", "Crew"):
                self._read_call(method, call, ast.unparse(call.func))
        for hook in map(ast.unparse, method.decorator_list):
            if hook.partition("(")[0] not in ("agent", "task", "crew", "property"):
                self._lose(method.decorator_list[0], f"{method.name}: @{hook}", "Python is not run")
                self.equipped |= {""} if "kickoff" in hook else set()

    def _read_call(self, method: ast.FunctionDef, call: ast.Call, kind: str) -> None:
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        keys = re.findall(r"_config\[['\"](\w+)['\"]\]", ast.unparse(method))
        name = self.names[method.name] = keys[0] if keys else method.name
        if kind == "Task":
            self.made[name] = given
        self._crews += kind == "Crew"
        if kind == "Crew" and self._crews > 1:
            why = "a program runs several crews: write the tasks of each as a recipe of its own"
            self._lose(call, f"{method.name}: Crew {self._crews}", why)
            self.equipped.add("")
        if "config" in given and not isinstance(given["config"], ast.Subscript):
            self._lose(given["config"], f"{method.name}: config", "Python changes it")
            self.equipped.add(name)
        if "tasks" in given and ast.unparse(given["tasks"]) != "self.tasks":
            self.listed = _methods(given["tasks"])
        for keyword in call.keywords:
            if keyword.arg is None:
                what = f"{method.name}: **{ast.unparse(keyword.value)}"
                self._lose(keyword.value, what, "Python computes these settings")
                self.equipped.add("" if kind == "Crew" else name)
        for word, value in given.items():
            computed = word in _FLAGS and not isinstance(value, ast.Constant)
            if not computed and (word in _READ or _SAME_HERE.get(word, "?") in ("", ast.unparse(value))):
                continue
            if computed:
                self._lose(value, f"{method.name}: {word}", "Python computes it")
                self.equipped.add(name)
                continue
            why = {**_WHY, **_AGENT_WHY, **_CREW_WHY}.get(word, "recipes have no counterpart")
            self._lose(value, f"{method.name}: {word}", why)
            if word in _DECIDES:
                self.equipped.add("" if kind == "Crew" else name)


def _read_program(source: ForeignFile, program: ast.Module, file: str) -> dict[str, _TaskSettings]:
    read = _Program(source, file)
    managed = any(
        isinstance(node, ast.Attribute) and node.attr == "hierarchical" for node in ast.walk(program)
    )
    for method in ast.walk(program):
        if isinstance(method, ast.FunctionDef):
            read.read(method)
    names, made = read.names, read.made
    listed = [names.get(method, method) for method in read.listed] or [*made]
    found: dict[str, _TaskSettings] = {}
    for task in (name for name in listed if name in made):
        given = made[task]
        output = given.get("output_file")
        found[task] = _TaskSettings(
            agent=next((names.get(method, method) for method in _methods(given.get("agent"))), ""),
            managed=managed,
            equipped=frozenset(read.equipped),
            context=tuple(names.get(method, method) for method in _methods(given.get("context"))),
            alone=_is_true(given.get("async_execution")),
            asks=_is_true(given.get("human_input")),
            file="" if output is None else str(getattr(output, "value", "{computed}")),
        )
    return found


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _methods(value: ast.expr | None) -> list[str]:
    """Return the methods of the crew that an expression calls: `self.name()`."""
    found = [] if value is None else [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return [call.func.attr for call in found if isinstance(call.func, ast.Attribute)]


def _context(reader: Reader, before: list[str], wired: tuple[str, ...], *, alone: bool) -> list[str]:
    """Return the tasks whose results a task gets."""
    named = [step_id(title) for title in reader.texts("context") or wired]
    for missing in (title for title in named if title not in before):
        reader.lose("context", f"there is no task {missing} before it")
    if named:
        return [title for title in named if title in before]
    return [] if alone else list(before)


class _Agent(Struct):
    """The instructions of an agent, and their position."""

    prompt: str
    file: str
    line: int
    used: bool = False
    equipped: bool = False
    """Whether it has tools of its own."""


def _agents(source: ForeignFile, top: Mapping) -> dict[str, _Agent]:
    """Return the agents of a crew, by name."""
    if (own := top.get("agents")) is not None and not isinstance(own, Mapping):
        source.lose(own, "crew: agents", "it is no object")
    if (data := None if isinstance(own, Mapping) else source.beside("agents.yaml")) is not None:
        other = ForeignFile(data, "agents.yaml", lambda _: None)
        found = _read_agents(other, other.tree(), other.file)
        source.lost += [structs.replace(loss, file=other.file) for loss in other.lost]
        return found
    return _read_agents(source, own, "") if isinstance(own, Mapping) else {}


def _read_agents(source: ForeignFile, agents: Mapping, beside: str) -> dict[str, _Agent]:
    found: dict[str, _Agent] = {}
    for word, node in agents.entries:
        if not isinstance(node, Mapping):
            source.lose(word, f"agent {word.text}", "it is no object")
            continue
        reader = Reader(source, node, f"agent {word.text}")
        role, goal, story = (" ".join(reader.text(key).split()) for key in ("role", "goal", "backstory"))
        lines = (f"You are {role}." if role else "", f"Your goal: {goal}" if goal else "", story)
        words = "\n".join(filter(None, lines))
        found[word.text] = _Agent(words, beside, source.line(word), equipped=bool(reader.value("tools")))
        for name, why in _AGENT_WHY.items():
            reader.lose(name, why)
        reader.done()
    return found


def _task(
    reader: Reader, name: str, agents: dict[str, _Agent], inputs: dict[str, Any], wired: _TaskSettings
) -> dict[str, Any]:
    who, parts = reader.text("agent") or wired.agent, []
    if who and who not in agents:
        reader.lose("agent", f"nothing here says who {who} is; a role of that name would do")
    elif who:
        parts.append(agents[who].prompt)
        agents[who].used = True
    parts.append(reader.text("description").strip())
    if reader.text("expected_output"):
        parts.append(f"What is expected: {reader.text('expected_output').strip()}")
    reader.get("name")
    if file := reader.text("output_file") or wired.file:
        parts.append(f"Also write the complete result to the file {file}.")

    def hole(found: re.Match[str]) -> str:
        inputs[found[1]] = {"required": True}
        return f"{{{{inputs.{found[1]}}}}}"

    text = literal("\n\n".join(filter(None, parts)))
    step: dict[str, Any] = {
        "id": name,
        "agent": "default",
        "prompt": re.sub(_HOLE, hole, text) or "Continue.",
    }
    if file:
        step["write_set"] = [file]
    if why := _unwritten(reader, name, agents, wired, who):
        step[UNWRITTEN] = why
    elif file.startswith("/") or "{" in file or ".." in file:
        step[UNWRITTEN] = f"the file into which it writes: {file}"
    return step


def _unwritten(reader: Reader, name: str, agents: dict[str, _Agent], wired: _TaskSettings, who: str) -> str:
    """Return what is not known about a task; empty if everything is."""
    if wired.managed:
        return "a manager assigns the tasks: name the agent of each"
    if reader.texts("tools") or wired.equipped & {who, name, ""} or (who in agents and agents[who].equipped):
        return "a role with its tools and its knowledge"
    if wired.absent:
        reader.source.lose(reader.node, reader.what, "the program of the crew does not run it")
        return "the program of the crew does not run it"
    if who not in agents and (who or agents):
        if not who:
            reader.source.lose(reader.node, reader.what, "it names no agent; write one")
        return "who does it"
    return ""
