"""Conductor's workflows: agents that route to one another, groups that run together, gates, and maps.

Routes are a walk from agent to agent; a recipe is a graph. What leads forward becomes edges and conditions.
A way back over a row of agents becomes a loop; one into another loop, or over a group, is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fanfold.recipe.conversion.conditions import in_cel, to_cel
from fanfold.recipe.conversion.conductor_names import Names
from fanfold.recipe.conversion.conductor_steps import StepKinds
from fanfold.recipe.conversion.loops import FoundLoop, as_loop, looking_back, referred
from fanfold.recipe.conversion.source import Converted, ForeignFile, Reader, step_id
from fanfold.text.trees.tree import Mapping, Node, Scalar

_ENDS = ("$end", "end", "END", "")


class _Route(NamedTuple):
    to: str
    when: str
    at: Node
    unread: bool = False
    """Whether it has a condition that could not be read."""


class _Conductor:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.names = Names(source)
        self.kinds = StepKinds(source, self.names, self._lead)
        self.steps: dict[str, dict[str, Any]] = {}
        self.places: dict[str, Node] = {}
        """Where each step stands in the file, by its id."""
        self.routes: dict[str, list[_Route]] = {}
        self.members = self.names.members
        self.loops: list[FoundLoop] = []

    def convert(self) -> Converted:
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
        for loop in reversed(self.loops):  # what comes after a loop reads it, other loops too
            steps, said = as_loop(steps, loop, said)
        # Conductor takes inputs that nobody declared.
        inputs |= {name: {} for name in sorted(self.names.inputs - set(inputs))}
        if not inputs:
            del recipe["inputs"]
        recipe["steps"] = steps
        if said:
            recipe["output"] = said
        top.lose("tools", "give the steps roles with these tools")
        if head is not top:
            head.done()
        top.done()
        return Converted(recipe, self.source.lost)

    def _read(self, top: Reader) -> None:
        """Everything that is to become a step; what they are called first."""
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
            text = self.kinds.text(value.text, value)
            if any(one not in known for one in referred(text)):
                self.source.lose(word, f"output: {word.text}", "nothing leads to what it names")
            elif "\\{{" not in text:
                said[word.text] = text
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
            inner.lose("provider", "models and back ends are a matter of configuration here")
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
        if self._failure_mode(group):
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

    def _failure_mode(self, reader: Reader) -> bool:
        """Whether failures are taken for answers."""
        mode = reader.text("failure_mode")
        if mode not in ("", "fail_fast", "all_or_nothing", "continue_on_error"):
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
        step["for_each"] = in_cel(source) if source else "[]"
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
        if self._failure_mode(one):
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
                when = found or ""
            unread = bool(said) and not when
            self.routes.setdefault(name, []).append(_Route(route.text("to"), when, node, unread))
            route.done()

    def _lose_dead_ends(self) -> None:
        """Ways that lead to nobody."""
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
        """What a step says of itself or of steps after it is what the round before gave, if there is one."""
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
        """Everything that can be reached, each after what leads to it, as far as no way leads back."""
        left: list[str] = []
        entered: list[str] = []
        seen: set[str] = set()
        ways = [iter([entry])]  # one for each that was entered, and one to the first
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
        """The routes that may be taken: those behind one that always is are not."""
        routes = self.routes.get(name, [])
        last = next((at for at, one in enumerate(routes) if not one.when and not one.unread), len(routes))
        return routes[: last + 1]

    def _loops(self, order: list[str]) -> list[FoundLoop]:
        found: list[FoundLoop] = []
        for name in order:
            for route in list(self.routes.get(name, [])):
                if route.to not in order or order.index(route.to) > order.index(name):
                    continue
                inner = order[order.index(route.to) : order.index(name) + 1]
                until = self._until(name, route, inner)
                self.routes[name].remove(route)
                ids = tuple(step["id"] for one in inner for step in self._of(one))
                apart = all(one not in loop.inside for loop in found for one in ids)
                if until and apart and all(one not in self.members for one in inner):
                    # What leads back on a condition that is not known here may be left at any round.
                    found.append(FoundLoop(ids, until, 10, route.unread))
                else:
                    self.source.lose(route.at, f"{name}: the way back to {route.to}", "write it as a loop")
        return found

    def _until(self, name: str, back: _Route, inner: list[str]) -> str:
        """When a way back is not taken: another one is, or nothing led to where it begins."""
        ways = self.routes[name]
        before = [route.when for route in ways[: ways.index(back)]]
        if not all(before):
            return ""  # one before it is always taken
        leaves = any(route.when for one in inner[:-1] for route in self.routes.get(one, []))
        ends = [f'steps.{in_cel(self.steps[name]["id"])}.status == "skipped"'] if leaves else []
        ends += [f"({one})" for one in before]
        if back.when:
            ends.append(f"!({back.when})")
        return " || ".join(ends)

    def _ways(self, order: list[str]) -> dict[str, list[tuple[str, str]]]:
        """For each that is led to: from where, and on which condition."""
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


def convert(source: ForeignFile) -> Converted:
    """A workflow of Conductor as a recipe."""
    return _Conductor(source).convert()
