"""Converts Conductor's workflows: agents that route to one another, parallel groups, gates, and maps.

Routes are a walk from agent to agent; a recipe is a graph. Forward routes become edges and conditions. A
route back over consecutive agents becomes a loop. A route into another loop, or over a group, is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from fanfold.language.convert.source import (
    UNWRITTEN,
    ConversionResult,
    ForeignFile,
    FoundLoop,
    Reader,
    as_loop,
    is_refused,
    is_whole,
    looking_back,
    not_for_agents,
    not_for_programs,
    program_rights,
    referred,
    rewrite,
    step_id,
    to_cel,
    to_value,
    unread,
)
from fanfold.language.template import in_expression
from fanfold.language.tree import Mapping, Node, Scalar

_TEMPLATES = ("run", "env", "approve", "ask", "show", "message", "inputs", "model", "output")
"""Keys of a step with templates, besides the prompt."""
_DEFAULT = r"(?a)\s*\|\s*default\((?:''|\"\")\)"
_ALONE = r"\{\{[^{}]*\}\}"
_ENDS = ("$end", "end", "END", "")


class _Route(NamedTuple):
    to: str
    when: str
    at: Node


class ConductorWorkflow:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.names = Names(source)
        self.kinds = StepKinds(source, self.names, self._lead)
        self.steps: dict[str, dict[str, Any]] = {}
        self.places: dict[str, Node] = {}
        """The position of each step in the file, by its id."""
        self.routes: dict[str, list[_Route]] = {}
        self.members = self.names.members
        self.loops: list[FoundLoop] = []
        self.rounds = 10
        """Maximum rounds of a loop: the limit of the workflow, or Conductor's default."""

    def convert(self) -> ConversionResult:
        top = Reader(self.source, self.source.tree(), "workflow")
        head_node = top.map("workflow")
        head = Reader(self.source, head_node, "workflow") if head_node is not None else top
        recipe = head.heading()
        inputs: dict[str, Any] = {}
        recipe["inputs"] = inputs
        for one in (head, top):
            if (given := one.map("input")) is not None:
                inputs |= self._inputs(given)
        self._head(head, recipe)
        self.kinds.equipped = self.kinds.equipped or bool(top.value("tools"))
        self._read(top)
        steps = self._connected(head.text("entry_point"))
        declared = top.map("output")
        output = {} if declared is None else self._output(declared, steps)
        for loop in reversed(self.loops):  # steps after a loop read it, and so do other loops
            steps, output = as_loop(steps, loop, output)
        # Conductor accepts undeclared inputs.
        inputs |= {name: {} for name in sorted(self.names.inputs - set(inputs))}
        if not inputs:
            del recipe["inputs"]
        for step in _all_steps(steps):
            if isinstance(step.get("prompt"), str) and not is_whole(step["prompt"]):
                step[UNWRITTEN] = step.pop("prompt")
            elif not all(map(is_whole, _texts_of(step, _TEMPLATES))):
                step.setdefault(UNWRITTEN, "what no template here can express")
        recipe["steps"] = steps
        if output:
            recipe["output"] = output
        top.lose("tools", "give the steps roles with these tools")
        if head is not top:
            head.done()
        top.done()
        return ConversionResult(recipe, self.source.lost)

    def _read(self, top: Reader) -> None:
        """Read everything that becomes a step, their names first."""
        for node in top.objects("agents"):
            self.names.learn(node)
        for node in top.objects("for_each"):
            self.names.maps.add(Reader(self.source, node, "").text("name"))
        for group in top.objects("parallel"):
            self._parallel(Reader(self.source, group, "parallel"))
        for node in top.objects("agents"):
            agent = Reader(self.source, node, "agent")
            name = agent.text("name")
            agent.what = f"agent {name}"
            step = self.steps.setdefault(name, {})
            step |= {"id": step_id(name), **step}
            self.places[step["id"]] = agent.node
            if agent.text("description"):
                step["description"] = agent.text("description")
            self.kinds.write(agent, step, name)
            self._read_routes(agent, name)
            agent.done()
        for node in top.objects("for_each"):
            self._map(Reader(self.source, node, "for_each"))

    def _output(self, output: Mapping, steps: list[dict[str, Any]]) -> dict[str, str]:
        texts: dict[str, str] = {}
        known = {step["id"] for step in steps}
        for word, value in output.entries:
            if not isinstance(value, Scalar):
                self.source.lose(word, f"output: {word.text}", "it is no text")
                continue
            text = value.text
            if re.search(_DEFAULT, text) and text.count("{{") == 1 and re.fullmatch(_ALONE, text.strip()):
                why = "it is null if no value was given"
                self.source.lose_inside(value, re.findall(_DEFAULT, text)[0], f"output: {word.text}", why)
                text = re.sub(_DEFAULT, "", text)
            text = self.kinds.text(text, value)
            if any(reference not in known for reference in referred(text)):
                self.source.lose(word, f"output: {word.text}", "nothing leads to what it names")
            else:
                texts[word.text] = text if is_whole(text) else f"{{{{{UNWRITTEN}}}}}"
        return texts

    def _head(self, head: Reader, recipe: dict[str, Any]) -> None:
        limits, runtime = head.map("limits"), head.map("runtime")
        if limits is not None:
            inner = Reader(self.source, limits, "limits")
            if (seconds := inner.whole("timeout_seconds")) is not None and seconds > 0:
                recipe["limits"] = {"timeout": f"{seconds}s"}
            if (most := inner.bounded("max_iterations", 1, 500, "500 agents at most")) is not None:
                self.rounds = min(50, most)
                recipe.setdefault("limits", {})["max_agents"] = most
            dollars = inner.value("budget_usd")
            if type(dollars) in (int, float) and dollars > 0:
                recipe.setdefault("limits", {})["budget"] = {"usd": dollars}
            elif dollars is not None:
                inner.lose("budget_usd", "it is no amount")
            inner.lose("budget_mode", "a run pauses when the next step would not fit")
            inner.done()
        if runtime is not None:
            inner = Reader(self.source, runtime, "runtime")
            if model := inner.text("default_model"):
                recipe["defaults"] = {"model": self.kinds.text(model, inner.get("default_model") or runtime)}
            self.kinds.effort = inner.text("default_reasoning_effort")
            self.kinds.turns = inner.whole("max_agent_iterations")
            self.kinds.session = inner.value("max_session_seconds")
            inner.lose("provider", "models and back ends are a matter of configuration here")
            self.kinds.equipped = bool(inner.value("mcp_servers"))
            inner.lose("mcp_servers", "give the steps a role with these servers")
            self.kinds.share(inner)
            inner.done()
        self.kinds.share(head)
        head.lose("version", "versions of recipes are whole numbers")
        head.lose("hooks", "a step at the end may report what a hook reported")
        if head.map("metadata") is not None:
            recipe["metadata"] = head.value("metadata")
        for key in ("context", "context_mode"):
            head.lose(key, "agents see what their prompts refer to, and summaries of what they depend on")

    def _inputs(self, given: Mapping) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for word, node in given.entries:
            one: dict[str, Any] = {}
            if isinstance(node, Mapping):
                reader = Reader(self.source, node, f"input {word.text}")
                for key in ("type", "required", "default", "description"):
                    if reader.get(key) is not None:
                        one[key] = reader.value(key)
                if "default" in one:
                    one.pop("required", None)
                else:
                    one.setdefault("required", True)  # Conductor's default; a recipe's is false
                reader.done()
            elif not (isinstance(node, Scalar) and node.value is None):
                self.source.lose(word, f"input {word.text}", "it is no object")
            inputs[word.text] = one
        return inputs

    def _parallel(self, group: Reader) -> None:
        name = group.text("name")
        group.what = f"parallel {name}"
        self.members[name] = group.texts("agents")
        self._read_routes(group, name)
        group.get("description")
        if self._takes_failures(group):
            for member in self.members[name]:
                self.steps.setdefault(member, {})["on_failure"] = "inline"
        group.done()

    def _takes_failures(self, reader: Reader) -> bool:
        """Return whether failures are treated as answers."""
        mode = reader.text("failure_mode")
        if mode == "continue_on_error":
            why = "the outputs contain errors of failed steps; the original omits them, and needs one success"
            reader.lose("failure_mode", why)
        elif mode not in ("", "fail_fast", "all_or_nothing"):
            reader.lose("failure_mode", "say `on_failure` in the steps")
        return mode == "continue_on_error"

    def _lead(self, name: str, to: str, when: str, at: Node) -> None:
        self.routes.setdefault(name, []).append(_Route(to, when, at))

    def _map(self, one: Reader) -> None:
        name = one.text("name")
        one.what = f"for_each {name}"
        step: dict[str, Any] = {"id": step_id(name)}
        self.places[step["id"]] = one.node
        source = self.names.path(one.text("source"))
        step["for_each"] = in_expression(source) if source else unread(one.text("source"))
        if source is None:
            one.lose("source", "what it runs over is not known here")
        self.kinds.item = step["as"] = one.text("as") or "item"
        if (agent := one.inner("agent")) is not None:
            agent.get("name")
            self.kinds.write(agent, step, name)
            agent.done()
        self.kinds.item = ""
        if (most := one.bounded("max_concurrent", 1, 16, "16 at once at most")) is not None:
            step["max_concurrency"] = most
        if self._takes_failures(one):
            step["on_failure"] = "inline"
        if one.text("key_by"):
            step["key"] = one.text("key_by")
        one.taken |= {"type", "description"}
        self.steps[name] = step
        self._read_routes(one, name)
        one.done()

    def _read_routes(self, reader: Reader, name: str) -> None:
        for node in reader.objects("routes"):
            route = Reader(self.source, node, f"{reader.what}: route")
            condition, when = route.text("when") or route.text("condition"), ""
            if condition:
                if (found := to_cel(condition, lambda path: self.names.path(path, name))) is None:
                    key = "when" if route.node.key("when") else "condition"
                    route.lose(key, f"could not be read: {condition}")
                when = found or unread(condition)
            self._lead(name, route.text("to"), when, node)
            route.done()

    # From routes to edges

    def _connected(self, entry: str) -> list[dict[str, Any]]:
        order = self._order(entry)
        for name, routes in self.routes.items():
            for route in routes:
                if route.to not in self.steps and route.to not in self.members and route.to not in _ENDS:
                    self.source.lose(route.at, f"{name}: route", f"there is no {route.to!r:.80} to lead to")
        self.loops = self._loops(order)
        for name, ways in self._ways(order).items():
            self._enter(name, ways)
        steps = [step for name in order for step in self._of(name)]
        for name in [*self.steps]:
            if name not in order and not any(name in members for members in self.members.values()):
                place = self.places.get(self.steps[name].get("id", ""), 1)
                self.source.lose(place, f"agent {name}", "nothing leads to it")
        ids = [step["id"] for step in steps]
        for place, step in enumerate(steps):
            self._look_back(step, ids[place:])
        return steps

    def _look_back(self, step: dict[str, Any], later: list[str]) -> None:
        """Replace references of a step to itself or later steps by the previous round, if there is one."""
        inside = next((loop.inside for loop in self.loops if step["id"] in loop.inside), ())

        def lost(what: str) -> None:
            self.source.lose(self.places[step["id"]], what, "it names a step that comes later")

        for key in [*step]:
            if key not in ("id", "depends_on", "when"):
                step[key] = looking_back(step[key], later, inside, lost)

    def _of(self, name: str) -> list[dict[str, Any]]:
        return [
            self.steps[one]
            for one in self.members.get(name, [name])
            if one in self.steps and "id" in self.steps[one]
        ]

    def _order(self, entry: str) -> list[str]:
        """Return everything that is reachable, in order of the routes, as far as there is no route back."""
        left: list[str] = []
        entered: list[str] = []
        seen: set[str] = set()
        ways = [iter([entry])]  # one for each entered step, and one to the first
        while ways:
            if (name := next(ways[-1], None)) is None:
                ways.pop()
                left += [entered.pop()] if entered else []
            elif name not in seen and (name in self.steps or name in self.members):
                seen.add(name)
                entered.append(name)
                ways.append(iter([route.to for route in reversed(self._open_routes(name))]))
        return left[::-1]

    def _open_routes(self, name: str) -> list[_Route]:
        """Return the routes that can be taken, up to the first unconditional one."""
        routes = self.routes.get(name, [])
        last = next((at for at, one in enumerate(routes) if not one.when), len(routes))
        return routes[: last + 1]

    def _loops(self, order: list[str]) -> list[FoundLoop]:
        backs: dict[str, list[tuple[str, _Route, str]]] = {}
        """By where it leads: each way back, from where, and when it is not taken."""
        behind: dict[int, list[_Route]] = {}
        """By way back: the routes that are taken only if it is not."""
        for name in order:
            for route in list(self.routes.get(name, [])):
                if route.to in order and order.index(route.to) <= order.index(name):
                    inner = order[order.index(route.to) : order.index(name) + 1]
                    until = self._until(name, route, inner)
                    behind[id(route)] = self.routes[name][self.routes[name].index(route) + 1 :]
                    self.routes[name].remove(route)
                    backs.setdefault(route.to, []).append((name, route, until))
        found: list[FoundLoop] = []
        for to, ways in backs.items():
            inner = order[order.index(to) : max(order.index(name) for name, _, _ in ways) + 1]
            ids = tuple(step["id"] for member in inner for step in self._of(member))
            apart = all(member not in loop.inside for loop in found for member in ids)
            conditions = [until for _, _, until in ways]
            if all(conditions) and apart and all(member not in self.members for member in inner):
                several = " && ".join(f"({condition})" for condition in conditions)
                found.append(FoundLoop(ids, several if len(ways) > 1 else conditions[0], self.rounds))
                for name, route, _ in ways:
                    if name != inner[-1]:  # following steps of the loop are skipped when this route is taken
                        for n, one in enumerate(self.routes[name]):
                            if route.when and one in behind[id(route)]:
                                when = f"!({route.when})" + (f" && ({one.when})" if one.when else "")
                                self.routes[name][n] = one._replace(when=when)
                continue
            for name, route, _ in ways:
                self.source.lose(route.at, f"{name}: the way back to {to}", "write it as a loop")
                for step in self._of(name):
                    others = f"\n\n{step[UNWRITTEN]}" if UNWRITTEN in step else ""
                    step[UNWRITTEN] = f"the way back to {to}, as a loop{others}"
        return found

    def _until(self, name: str, back: _Route, inner: list[str]) -> str:
        """Return when a route back is not taken: another one is, or its start was not reached."""
        ways = self.routes[name]
        before = [route.when for route in ways[: ways.index(back)]]
        if not all(before):
            return ""  # an earlier route is always taken
        leaves = any(route.when for one in inner[:-1] for route in self.routes.get(one, []))
        ends = [f'steps.{in_expression(self.steps[name]["id"])}.status == "skipped"'] if leaves else []
        ends += [f"({condition})" for condition in before]
        if back.when:
            ends.append(f"!({back.when})")
        return " || ".join(ends)

    def _ways(self, order: list[str]) -> dict[str, list[tuple[str, str]]]:
        """Return the sources and conditions of each target."""
        ways: dict[str, list[tuple[str, str]]] = {}
        for other in order:
            earlier: list[str] = []
            for route in self._open_routes(other):
                parts = [f"!({condition})" for condition in earlier] + (
                    [f"({route.when})"] if route.when else []
                )
                ways.setdefault(route.to, []).append((other, " && ".join(parts)))
                if route.when:
                    earlier.append(route.when)
        return ways

    def _enter(self, name: str, ways: list[tuple[str, str]]) -> None:
        needed = [step["id"] for other, _ in ways for step in self._of(other)]
        conditions = []
        for other, when in ways:
            ids = [in_expression(step["id"]) for step in self._of(other)]
            lived = " && ".join(f'steps.{member}.status != "skipped"' for member in ids)
            conditions.append(f"({lived} && {when})" if when else f"({lived})")
        for step in self._of(name):
            step["depends_on"] = list(dict.fromkeys(needed))
            step["when"] = " || ".join(conditions)


def _texts_of(value: Any, keys: Collection[str] = ()) -> Iterator[str]:
    """Yield every text in a value; for an object with `keys`, only their texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts_of(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if not keys or key in keys:
                yield from _texts_of(one)


def _all_steps(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        yield from _all_steps(step.get("steps", []))


# -----------------------------------------------------------------------------------------------------------
# Names in Conductor's texts, converted to the names of recipes.
#
# An agent without a declared output returns `output.result`, which is its text. A script returns `stdout`,
# `stderr` and `exit_code`, or its printed JSON if other fields are used. The used fields of a step determine
# its output, so all names are collected before the first text is converted.

OF_PROGRAMS = ("exit_code", "stdout", "stderr")
VALUE = "value"
"""The name of the single value of a `set` step."""
_OF_CONDUCTOR = ("context", "workflow")
"""Names whose values Conductor itself provides."""
_CHOSEN = ("choice", "selected", "decision")
_WORD = r"(?a)(?<![\w.'\"])[A-Za-z_]\w*(?![\w'\"])"


class Names:
    """The agents, groups and maps of one workflow."""

    def __init__(self, source: ForeignFile) -> None:
        self._source = source
        self.kinds: dict[str, str] = {}
        self.declares: set[str] = set()
        self.single: set[str] = set()
        """`set` steps of one value."""
        self.members: dict[str, list[str]] = {}
        """The agents of each parallel group."""
        self.maps: set[str] = set()
        self.inputs: set[str] = set()
        self._fields: dict[str, list[str]] = {}

    def learn(self, node: Mapping) -> None:
        """Record an agent."""
        reader = Reader(self._source, node, "")
        name = reader.text("name")
        self.kinds[name] = reader.text("type") or "agent"
        if reader.get("output") is not None:
            self.declares.add(name)
        if self.kinds[name] == "set" and reader.get("values") is None:
            self.single.add(name)
        asked = rf"(?<![\w.]){re.escape(name)}\.output\.([A-Za-z_]\w*)"
        found = re.findall(asked, self._source.text, re.ASCII)
        for route in reader.objects("routes"):
            when = Reader(self._source, route, "").text("when")
            found += re.findall(r"(?<![\w.])output\.([A-Za-z_]\w*)", when, re.ASCII)
            if "{{" not in when:  # fields of the agent's own output have no name before them
                found += [word for word in re.findall(_WORD, when) if word in OF_PROGRAMS]
                found += re.findall(r"(?<![\w.])([A-Za-z_]\w*)\s*(?:[=!<>]=|[<>])", when, re.ASCII)
        self._fields[name] = [field for field in dict.fromkeys(found) if field not in ("output", *self.kinds)]

    def fields(self, name: str) -> list[str]:
        """Return the used fields of a step without declared output fields."""
        return [] if name in self.declares else self._fields.get(name, [])

    def prints_json(self, name: str) -> bool:
        """Return whether a script's fields are those of its printed JSON."""
        return name in self.declares or any(field not in OF_PROGRAMS for field in self.fields(name))

    def is_text(self, name: str) -> bool:
        """Return whether an agent returns only text."""
        return name not in self.declares and all(field == "result" for field in self.fields(name))

    def path(self, path: str, own: str = "", item: str = "") -> str | None:
        """Return a name of Conductor as ours; None if there is no counterpart."""
        words = path.split(".")
        first, rest = words[0].partition("[")[0], ".".join(words[1:])
        if path.startswith("workflow.input."):
            self.inputs.add(words[2].partition("[")[0])
            return f"inputs.{path.removeprefix('workflow.input.')}"
        if item and first == item:
            return path
        if path == "_index":
            return "index"
        if first in self.members and len(words) > 2 and words[1] == "outputs":
            return self._of_step(words[2], ".".join(words[3:]))
        if first in self.maps and rest.startswith("outputs"):
            return f"steps.{step_id(first)}.{rest.replace('outputs', 'output', 1)}"
        if first in self.kinds:
            asked = rest if rest.startswith("output") else f"output.{rest}" if rest else "output"
            return self._of_step(first, asked.removeprefix("output").removeprefix("."), chosen=rest)
        if own and first == "output":
            return self._of_step(own, rest) if "[" not in words[0] else None
        if first in _OF_CONDUCTOR:
            return None
        if own in self.kinds:  # a bare name is a field of the routing agent
            return self._of_step(own, path)
        return None

    def _of_step(self, name: str, field: str, chosen: str = "") -> str | None:
        """Return a field of a step's output, or all of it."""
        whole, kind = f"steps.{step_id(name)}.output", self.kinds.get(name, "agent")
        if kind == "human_gate" and (chosen in _CHOSEN or field in _CHOSEN):
            return f"{whole}.decision"
        if kind == "set" and name in self.single:
            return f"{whole}.{VALUE}" + (f".{field}" if field else "")
        if kind in ("wait", "terminate") and field:
            return None
        if kind == "script" and self.prints_json(name) and field in OF_PROGRAMS:
            return None
        if kind == "agent" and field == "result" and self.is_text(name):
            return whole
        return f"{whole}.{field}" if field else whole


_DURATION = r"(?a)\d+(?:ms|s|m|h)?|\d+\.\d{1,3}"
_VARIABLE = r"(?a)\$\{[A-Za-z_]\w*(?::-(?P<given>[^}]*))?\}"
_OF_SCHEMAS = {
    one: re.sub("_(.)", lambda found: found[1].upper(), one)
    for one in "pattern minimum maximum min_length max_length min_items max_items".split()
} | {one: one for one in "minLength maxLength minItems maxItems".split()}
_REFUSED = {
    "stdin": "give it as an `env` variable, or write it to a file before",
    "working_dir": "steps work at the top of the project; `shell` may `cd`",
    "validator": "repeat the step until a check passes",
    "dialog": "say `may_ask: true`, or put an `ask` step before it",
    "session_key": "say `continue: STEP` to continue a conversation",
    "instructions": "write them into the prompts",
    "skills": "give the step a role with these skills",
    "plugins": "give the step a role with what they add",
}
"""Settings that change what a step does and must be written by hand; a workflow has some for all agents."""


class StepKinds:
    """Creates the body of a step from its agent."""

    def __init__(
        self, source: ForeignFile, names: Names, lead: Callable[[str, str, str, Node], None]
    ) -> None:
        self._source = source
        self._names = names
        self._lead = lead
        """Adds the route of a gate's option: source, target, condition and position."""
        self.item = self.effort = ""
        self.turns: int | None = None
        self.session: Any = None
        """The workflow's defaults for agents: reasoning effort, and turns and seconds of a session."""
        self.equipped = False
        """Whether agents have tools of the workflow unless they name none."""
        self.shared: frozenset[str] = frozenset()
        """Keys of `_REFUSED` that the workflow sets for all agents."""

    def share(self, workflow: Reader) -> None:
        self.shared |= {key for key in _REFUSED if workflow.value(key)}
        for key in self.shared:
            workflow.lose(key, _REFUSED[key])

    def _refuse(self, agent: Reader, step: dict[str, Any]) -> None:
        shared = {"script": self.shared & {"working_dir"}, "": self.shared, "agent": self.shared}
        for key, why in _REFUSED.items():
            if (own := agent.value(key)) not in (None, []):
                agent.lose(key, why)
            if own != [] and (own is not None or key in shared.get(agent.text("type"), ())):
                step[UNWRITTEN] = f"{key}: {why}"

    def write(self, agent: Reader, step: dict[str, Any], name: str) -> None:
        """Write the agent's work as keys of the step."""
        self._refuse(agent, step)
        match agent.text("type"):
            case "" | "agent":
                self._prompted(agent, step, name)
            case "human_gate":
                self._gate(agent, step, name)
            case "script":
                self._script(agent, step, name)
            case "set":
                self._set(agent, step)
            case "wait":
                text = agent.text("duration").strip()
                step["wait"] = text if re.fullmatch(_DURATION, text) else unread(text)
                if step["wait"] != text:
                    agent.lose("duration", "say how long: `90s`, or an expression that gives the instant")
                elif not text[-1].isalpha():
                    step["wait"] = f"{text}s" if text.isdecimal() else f"{float(text) * 1_000:.0f}ms"
                if agent.text("reason"):
                    step.setdefault("description", agent.text("reason"))
            case "terminate":
                self._end(agent, step)
            case kind:
                self._stand_in(agent, step, name, kind)

    def text(self, text: str, at: Node) -> str:
        """Return a text with our names, and with the defaults of environment variables."""

        def variable(found: re.Match[str]) -> str:
            why = "the environment is not read; the default was used"
            if found["given"] is None:
                why = "the environment is not read; write its value"
            self._source.lose_inside(at, found[0], found[0], why)
            return found[0] if found["given"] is None else found["given"]

        return rewrite(
            re.sub(_VARIABLE, variable, text),
            self._path,
            lambda what: self._source.lose_inside(at, what, what, "templates name values, and no more"),
            lambda what: self._source.lose_inside(at, what, what, "the whole list stands there, as JSON"),
        )

    def _path(self, path: str) -> str | None:
        return self._names.path(path, item=self.item)

    def _texts(self, texts: Mapping, what: str) -> dict[str, str]:
        """Return a map of texts with our names."""
        found: dict[str, str] = {}
        for word, value in texts.entries:
            if isinstance(value, Scalar):
                found[word.text] = self.text(value.text, value)
            else:
                self._source.lose(word, f"{what}: {word.text}", "it is no text")
        return found

    def _prompted(self, agent: Reader, step: dict[str, Any], name: str) -> None:
        system, prompt = (
            self.text(agent.text(key), agent.get(key) or agent.node) for key in ("system_prompt", "prompt")
        )
        text = "\n\n".join(filter(None, (system.strip(), prompt))) or "Continue."
        step["prompt" if is_whole(text) and not is_refused(text) else UNWRITTEN] = text
        for words, why in not_for_agents(text):
            self._source.lose(agent.get("prompt") or agent.node, f"{agent.what}: {words}", why)
        if agent.text("model"):
            step["model"] = self.text(agent.text("model"), agent.get("model") or agent.node)
        if (output := agent.map("output")) is not None:
            step["output_schema"] = self._object(output)
        elif not self._names.is_text(name):
            step["output_schema"] = _asked(self._names.fields(name))
        self._settings(agent, step, text)
        if agent.get("max_session_seconds") is None and type(self.session) in (int, float):
            step["timeout_ms"] = int(self.session * 1000)
        for key in ("max_session_seconds", "timeout_seconds"):
            self._timeout(agent, step, key)
        self._retry(agent, step)
        if agent.text("output_mode") not in ("", "raw", "envelope"):
            agent.lose("output_mode", "say `output_schema` in the step")
        if agent.value("tools") == []:
            step |= {"tools": [], "posture": "read_only"}  # agents without tools run side by side
        elif self.equipped or agent.value("tools"):
            agent.lose("tools", "give the step a role with these tools")
            step.setdefault(UNWRITTEN, "a role with its tools")
        agent.lose("input", "what a prompt refers to is what an agent sees")

    def _settings(self, agent: Reader, step: dict[str, Any], text: str) -> None:
        effort = self.effort
        if (reasoning := agent.inner("reasoning")) is not None:
            effort = reasoning.text("effort") or effort
            reasoning.done()
        own = agent.whole("max_agent_iterations")
        settings = {"reasoning_effort": effort or None, "max_turns": self.turns if own is None else own}
        step |= {key: value for key, value in settings.items() if value is not None}
        for key in ("model", "reasoning_effort"):
            if "{{" in step.get(key, ""):
                why = "a step has one model and effort: write a step for each, with a `when`"
                self._source.lose(agent.node, f"{agent.what}: {key}: {step.pop(key)}", why)
                step.pop("prompt", None)
                step[UNWRITTEN] = text

    def _timeout(self, agent: Reader, step: dict[str, Any], key: str) -> None:
        value = agent.value(key)
        if type(value) in (int, float) and value > 0:
            step["timeout_ms"] = min(step.get("timeout_ms", value * 1000), int(value * 1000))
        elif value is not None:
            agent.lose(key, "it is not a number of seconds")

    def _retry(self, agent: Reader, step: dict[str, Any]) -> None:
        if (inner := agent.inner("retry")) is None:
            return
        step["retry"] = {"attempts": inner.bounded("max_attempts", 1, 10, "10 tries at most") or 1}
        pause = inner.value("delay_seconds")
        if type(pause) in (int, float) and pause >= 0:
            step["retry"]["backoff_ms"] = int(pause * 1000)
        elif pause is not None:
            inner.lose("delay_seconds", "it is not a number of seconds")
        if inner.text("backoff") not in ("", "exponential"):
            inner.lose("backoff", "the pause doubles with each try")
        inner.lose("retry_on", "say `on`, with the classes of errors that recipes have")
        inner.done()

    def _object(self, fields: Mapping) -> dict[str, Any]:
        """Return the schema of an object whose fields are described one by one."""
        schema: dict[str, Any] = {"type": "object", "required": [], "properties": {}}
        for word, node in fields.entries:
            schema["properties"][word.text], needed = self._field(word, node)
            if needed:
                schema["required"].append(word.text)
        return schema

    def _field(self, word: Scalar, node: Node) -> tuple[dict[str, Any], bool]:
        """Return the schema of one field, and whether it is required."""
        if not isinstance(node, Mapping):
            self._source.lose(word, f"output {word.text}", "it is no object")
            return {}, True
        reader = Reader(self._source, node, f"output {word.text}")
        schema = {key: reader.value(key) for key in ("type", "description", "enum")}
        schema |= {
            ours: reader.value(key) for key, ours in _OF_SCHEMAS.items() if reader.get(key) is not None
        }
        properties, items = reader.map("properties"), reader.get("items")
        if properties is not None:
            inner = self._object(properties)
            schema["properties"], schema["required"] = inner["properties"], inner["required"] or None
        if items is not None:
            schema["items"], _ = self._field(word, items)
        if reader.flag("nullable") and isinstance(schema["type"], str):
            schema["type"] = [schema["type"], "null"]
            if schema["enum"] is not None:
                schema["enum"] = [*schema["enum"], None]
        needed = reader.get("required") is None or reader.flag("required")
        reader.done()
        return {key: value for key, value in schema.items() if value is not None}, needed

    def _gate(self, gate: Reader, step: dict[str, Any], name: str) -> None:
        choices: list[str] = []
        for option in gate.objects("options"):
            inner = Reader(self._source, option, f"agent {name}: option")
            word = inner.text("value") or inner.text("name") or inner.text("label")
            choices.append(word)
            if inner.text("route"):
                decided = f'steps.{in_expression(step["id"])}.output.decision == "{word}"'
                self._lead(name, inner.text("route"), decided, option)
            inner.taken |= {"label", "description", "name"}
            inner.lose("prompt_for", "an `ask` step takes words")
            inner.done()
        asked = gate.text("prompt") or gate.text("description") or "Continue?"
        step["approve"] = self.text(asked, gate.get("prompt") or gate.node)
        if choices:
            step["choices"] = choices

    def _script(self, script: Reader, step: dict[str, Any], name: str) -> None:
        arguments = [script.text("command"), *script.texts("args")]
        step["run"] = [self.text(argument, script.get("args") or script.node) for argument in arguments]
        step |= program_rights(" ".join(arguments)) | step
        if (env := script.map("env")) is not None:
            step["env"] = self._texts(env, f"{script.what}: env")
        for words, why in not_for_programs(step):
            self._source.lose(script.node, f"{script.what}: {words}", why)
        if (output := script.map("output")) is not None:
            step["output_schema"] = self._object(output)
        elif self._names.prints_json(name):
            fields = [field for field in self._names.fields(name) if field not in OF_PROGRAMS]
            step["output_schema"] = _asked(fields)
        else:
            step["outputs"] = list(OF_PROGRAMS)
        self._timeout(script, step, "timeout")
        self._timeout(script, step, "timeout_seconds")
        script.lose("input", "what its arguments refer to is what it sees")

    def _set(self, one: Reader, step: dict[str, Any]) -> None:
        step["set"] = {}
        values = one.map("values")
        pairs = [(word.text, value) for word, value in values.entries] if values is not None else []
        if values is None:
            pairs = [(VALUE, one.get("value") or one.node)]
        for key, value in pairs:
            text = value.text if isinstance(value, Scalar) else None
            if (found := None if text is None else to_value(text, self._path)) is None:
                self._source.lose(value, f"{one.what}: {key}", f"write it as an expression: {text or key}")
            step["set"][key] = found or unread(text or key)
        kind = one.text("output_type")
        if kind not in ("", "auto", "string"):
            one.lose("output_type", "an expression says itself what it gives")

    def _end(self, one: Reader, step: dict[str, Any]) -> None:
        status = one.text("status")
        step["end"] = "failed" if status == "failed" else "completed"
        if status not in ("", "success", "failed"):
            one.lose("status", "a run is `completed` or `failed`")
        if one.text("reason"):
            step["message"] = self.text(one.text("reason"), one.get("reason") or one.node)
        if (output := one.map("output_template")) is not None:
            step["output"] = self._texts(output, f"{one.what}: output_template")

    def _stand_in(self, agent: Reader, step: dict[str, Any], name: str, kind: str) -> None:
        """Write a failing step in place of one without a counterpart, so that nothing is invented."""
        why = f"{kind} steps must be written again"
        if file := agent.text("workflow") if kind == "workflow" else "":
            step["workflow"] = file if file.startswith(("./", "../")) else f"./{file}"
            agent.lose("workflow", f"convert {file} too, to {step['workflow']}")
            if (given := agent.map("input_mapping")) is not None:
                step["inputs"] = self._texts(given, f"{agent.what}: input_mapping")
            return
        agent.lose("type", why)
        step[UNWRITTEN] = why
        if self._names.fields(name):
            step["output_schema"] = _asked(self._names.fields(name))


def _asked(fields: list[str]) -> dict[str, Any]:
    """Return the schema of an object of which only the used fields are known."""
    return {"type": "object", "required": list(fields), "properties": {field: {} for field in fields}}
