"""Converts Conductor's workflows: agents that route to one another, parallel groups, gates, and maps.

Routes are a walk from agent to agent; a recipe is a graph. Forward routes become edges and conditions. A
route back over consecutive agents becomes a loop. A route into another loop, or over a group, is lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from fanfold.language.convert.conductor_steps import Names, StepKinds
from fanfold.language.convert.source import (
    UNWRITTEN,
    ConversionResult,
    ForeignFile,
    FoundLoop,
    Reader,
    as_loop,
    in_cel,
    is_whole,
    looking_back,
    referred,
    step_id,
    to_cel,
    unread,
)
from fanfold.language.tree import Mapping, Node, Scalar

_SAID = ("run", "env", "approve", "ask", "show", "message", "inputs", "model", "output")
"""Keys of a step with templates, besides the prompt."""
_DEFAULT = r"(?a)\s*\|\s*default\((?:''|\"\")\)"
_ALONE = r"\{\{[^{}]*\}\}"
_ENDS = ("$end", "end", "END", "")


class _Route(NamedTuple):
    to: str
    when: str
    at: Node


class _Conductor:
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
            given = one.map("input")
            if given is not None:
                inputs |= self._inputs(given)
        self._head(head, recipe)
        self._read(top)
        steps = self._connected(head.text("entry_point"))
        output = top.map("output")
        said = {} if output is None else self._output(output, steps)
        for loop in reversed(self.loops):  # steps after a loop read it, and so do other loops
            steps, said = as_loop(steps, loop, said)
        # Conductor accepts undeclared inputs.
        inputs |= {name: {} for name in sorted(self.names.inputs - set(inputs))}
        if not inputs:
            del recipe["inputs"]
        for step in _all_steps(steps):
            if isinstance(step.get("prompt"), str) and not is_whole(step["prompt"]):
                step[UNWRITTEN] = step.pop("prompt")
            elif not all(map(is_whole, _texts_of(step, _SAID))):
                step.setdefault(UNWRITTEN, "what no template here can say")
        recipe["steps"] = steps
        if said:
            recipe["output"] = said
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
            self._agent(Reader(self.source, node, "agent"))
        for node in top.objects("for_each"):
            self._map(Reader(self.source, node, "for_each"))

    def _output(self, output: Mapping, steps: list[dict[str, Any]]) -> dict[str, str]:
        said: dict[str, str] = {}
        known = {step["id"] for step in steps}
        for word, value in output.entries:
            if not isinstance(value, Scalar):
                self.source.lose(word, f"output: {word.text}", "it is no text")
                continue
            text = value.text
            if re.search(_DEFAULT, text) and text.count("{{") == 1 and re.fullmatch(_ALONE, text.strip()):
                why = "it is null where nothing was given"
                self.source.lose_inside(value, re.findall(_DEFAULT, text)[0], f"output: {word.text}", why)
                text = re.sub(_DEFAULT, "", text)
            text = self.kinds.text(text, value)
            if any(one not in known for one in referred(text)):
                self.source.lose(word, f"output: {word.text}", "nothing leads to what it names")
            else:
                said[word.text] = text if is_whole(text) else f"{{{{{UNWRITTEN}}}}}"
        return said

    def _head(self, head: Reader, recipe: dict[str, Any]) -> None:
        limits, runtime = head.map("limits"), head.map("runtime")
        if limits is not None:
            inner = Reader(self.source, limits, "limits")
            seconds = inner.whole("timeout_seconds")
            if seconds is not None and seconds > 0:
                recipe["limits"] = {"timeout": f"{seconds}s"}
            most = inner.whole("max_iterations")
            if most is not None:
                self.rounds = max(1, min(50, most))
                recipe.setdefault("limits", {})["max_agents"] = min(500, max(1, most))
                if not 1 <= most <= 500:
                    inner.lose("max_iterations", "500 agents at most")
            dollars = inner.value("budget_usd")
            if type(dollars) in (int, float) and dollars > 0:
                recipe.setdefault("limits", {})["budget"] = {"usd": dollars}
            elif dollars is not None:
                inner.lose("budget_usd", "it is no amount")
            inner.lose("budget_mode", "a run pauses when the next step would not fit")
            inner.done()
        if runtime is not None:
            inner = Reader(self.source, runtime, "runtime")
            if inner.text("default_model"):
                said = self.kinds.text(inner.text("default_model"), inner.get("default_model") or runtime)
                recipe["defaults"] = {"model": said}
            self.kinds.effort = inner.text("default_reasoning_effort")
            self.kinds.turns = inner.whole("max_agent_iterations")
            inner.lose("provider", "models and back ends are a matter of configuration here")
            inner.lose("mcp_servers", "give the steps a role with these servers")
            inner.done()
        head.lose("version", "versions of recipes are whole numbers")
        head.lose("hooks", "a step at the end may say what a hook said")
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

    def _agent(self, agent: Reader) -> None:
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

    def _takes_failures(self, reader: Reader) -> bool:
        """Return whether failures are treated as answers."""
        mode = reader.text("failure_mode")
        if mode == "continue_on_error":
            reader.lose(
                "failure_mode", "the outputs hold the error text of what failed; there it is left out"
            )
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
        step["for_each"] = in_cel(source) if source else unread(one.text("source"))
        if source is None:
            one.lose("source", "what it runs over is not known here")
        self.kinds.item = step["as"] = one.text("as") or "item"
        agent = one.inner("agent")
        if agent is not None:
            agent.get("name")
            self.kinds.write(agent, step, name)
            agent.done()
        self.kinds.item = ""
        most = one.whole("max_concurrent")
        if most is not None:
            step["max_concurrency"] = max(1, min(16, most))
            if step["max_concurrency"] != most:
                one.lose("max_concurrent", "16 at once at most")
        if self._takes_failures(one):
            step["on_failure"] = "inline"
        if one.text("key_by"):
            step["key"] = one.text("key_by")
        one.pass_over("type", "description")
        self.steps[name] = step
        self._read_routes(one, name)
        one.done()

    def _read_routes(self, reader: Reader, name: str) -> None:
        for node in reader.objects("routes"):
            route = Reader(self.source, node, f"{reader.what}: route")
            said, when = route.text("when") or route.text("condition"), ""
            if said:
                found = to_cel(said, lambda path: self.names.path(path, name))
                if found is None:
                    route.lose(
                        "when" if route.node.key("when") else "condition", f"could not be read: {said}"
                    )
                when = found or unread(said)
            self.routes.setdefault(name, []).append(_Route(route.text("to"), when, node))
            route.done()

    def _lose_dead_ends(self) -> None:
        """Report routes to unknown agents."""
        for name, routes in self.routes.items():
            for route in routes:
                if route.to not in self.steps and route.to not in self.members and route.to not in _ENDS:
                    self.source.lose(route.at, f"{name}: route", f"there is no {route.to!r:.80} to lead to")

    # From routes to edges

    def _connected(self, entry: str) -> list[dict[str, Any]]:
        order = self._order(entry)
        self._lose_dead_ends()
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
            name = next(ways[-1], None)
            if name is None:
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
        behind: dict[int, list[_Route]] = {}
        """By way back: the routes that are taken only if it is not."""
        """By where it leads: each way back, from where, and when it is not taken."""
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
            ids = tuple(step["id"] for one in inner for step in self._of(one))
            apart = all(one not in loop.inside for loop in found for one in ids)
            if all(until for _, _, until in ways) and apart and all(one not in self.members for one in inner):
                conditions = [until for _, _, until in ways]
                joined = (
                    conditions[0] if len(conditions) == 1 else " && ".join(f"({one})" for one in conditions)
                )
                found.append(FoundLoop(ids, joined, self.rounds))
                for name, route, _ in ways:
                    if name != inner[-1]:  # following steps of the loop are skipped when this route is taken
                        self.routes[name] = [
                            _unless(route.when, one) if one in behind[id(route)] else one
                            for one in self.routes[name]
                        ]
                continue
            for name, route, _ in ways:
                self.source.lose(route.at, f"{name}: the way back to {to}", "write it as a loop")
                for step in self._of(name):
                    said = f"\n\n{step[UNWRITTEN]}" if UNWRITTEN in step else ""
                    step[UNWRITTEN] = f"the way back to {to}, as a loop{said}"
        return found

    def _until(self, name: str, back: _Route, inner: list[str]) -> str:
        """Return when a route back is not taken: another one is, or its start was not reached."""
        ways = self.routes[name]
        before = [route.when for route in ways[: ways.index(back)]]
        if not all(before):
            return ""  # an earlier route is always taken
        leaves = any(route.when for one in inner[:-1] for route in self.routes.get(one, []))
        ends = [f'steps.{in_cel(self.steps[name]["id"])}.status == "skipped"'] if leaves else []
        ends += [f"({one})" for one in before]
        if back.when:
            ends.append(f"!({back.when})")
        return " || ".join(ends)

    def _ways(self, order: list[str]) -> dict[str, list[tuple[str, str]]]:
        """Return the sources and conditions of each target."""
        ways: dict[str, list[tuple[str, str]]] = {}
        for other in order:
            earlier: list[str] = []
            for route in self._open_routes(other):
                when = " && ".join(
                    [*(f"!({one})" for one in earlier), *([f"({route.when})"] if route.when else [])]
                )
                ways.setdefault(route.to, []).append((other, when))
                if route.when:
                    earlier.append(route.when)
        return ways

    def _enter(self, name: str, ways: list[tuple[str, str]]) -> None:
        needed = [step["id"] for other, _ in ways for step in self._of(other)]
        conditions = []
        for other, when in ways:
            lived = " && ".join(f'steps.{in_cel(step["id"])}.status != "skipped"' for step in self._of(other))
            conditions.append(f"({lived} && {when})" if when else f"({lived})")
        for step in self._of(name):
            step["depends_on"] = list(dict.fromkeys(needed))
            step["when"] = " || ".join(conditions)


def _unless(condition: str, route: _Route) -> _Route:
    when = f"!({condition})" + (f" && ({route.when})" if route.when else "")
    return route._replace(when=when if condition else route.when)


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


def convert(source: ForeignFile) -> ConversionResult:
    """Return a workflow of Conductor as a recipe."""
    return _Conductor(source).convert()
