"""Conductor's workflows: agents that route to one another, groups that run together, gates, and maps.

Routes are a walk from agent to agent; a recipe is a graph. What leads forward becomes edges and conditions.
One way back, over a row of agents, becomes a loop; any other way back is lost.
"""

from __future__ import annotations

from typing import Any

from fanfold.recipe.conversion.conditions import in_cel, to_cel
from fanfold.recipe.conversion.loops import as_loop
from fanfold.recipe.conversion.source import Converted, ForeignFile, Reader, rewrite, slug, step_id
from fanfold.text.trees.tree import Mapping, Node, Scalar

_ENDS = ("$end", "end", "END", "")
_CHOSEN = ("choice", "selected", "decision")


class _Route:
    def __init__(self, to: str, when: str, at: Node) -> None:
        self.to = to
        self.when = when
        self.at = at


class _Conductor:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.steps: dict[str, dict[str, Any]] = {}
        self.routes: dict[str, list[_Route]] = {}
        self.members: dict[str, list[str]] = {}
        """The agents of each parallel group."""
        self.gates: set[str] = set()
        self.maps: set[str] = set()
        self.item = ""

    def convert(self) -> Converted:
        top = Reader(self.source, self.source.tree(), "workflow")
        head_node = top.map("workflow")
        head = Reader(self.source, head_node, "workflow") if head_node is not None else top
        recipe: dict[str, Any] = {"name": slug(head.text("name"))}
        if head.text("description"):
            recipe["description"] = " ".join(head.text("description").split())[:500]
        for one in (head, top):
            given = one.map("input")
            if given is not None:
                recipe["inputs"] = self._inputs(given)
        self._head(head, recipe)
        for group in top.objects("parallel"):
            self._parallel(Reader(self.source, group, "parallel"))
        for node in top.objects("agents"):
            self._note_kind(node)
        for node in top.objects("for_each"):
            self.maps.add(Reader(self.source, node, "").text("name"))
        for node in top.objects("agents"):
            self._agent(Reader(self.source, node, "agent"))
        for node in top.objects("for_each"):
            self._map(Reader(self.source, node, "for_each"))
        entry = head.text("entry_point")
        recipe["steps"] = self._connected(entry)
        output = top.map("output")
        if output is not None and (said := self._output(output)):
            recipe["output"] = said
        top.lose("tools", "give the steps roles with these tools")
        if head is not top:
            head.done()
        top.done()
        return Converted(recipe, self.source.lost)

    def _output(self, output: Mapping) -> dict[str, str]:
        said: dict[str, str] = {}
        for word, value in output.entries:
            if not isinstance(value, Scalar):
                self.source.lose(word, f"output: {word.text}", "it is no text")
                continue
            text = self._text(value.text, value)
            if "\\{{" not in text:
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
            inner.done()
        if runtime is not None:
            inner = Reader(self.source, runtime, "runtime")
            if inner.text("default_model"):
                recipe["defaults"] = {"model": inner.text("default_model")}
            inner.lose("provider", "models and back ends are a matter of configuration here")
            inner.done()
        head.lose("version", "versions of recipes are whole numbers")
        head.lose("hooks", "a step at the end may say what a hook said")
        mode = head.text("context_mode") or head.text("context")
        if mode and mode != "minimal":
            at = "context_mode" if head.node.key("context_mode") is not None else "context"
            head.lose(at, "agents see what their prompts refer to, and summaries of what they depend on")

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

    def _note_kind(self, node: Mapping) -> None:
        reader = Reader(self.source, node, "")
        if reader.text("type") == "human_gate":
            self.gates.add(reader.text("name"))

    def _agent(self, agent: Reader) -> None:
        name = agent.text("name")
        agent.what = f"agent {name}"
        step = self.steps.setdefault(name, {})
        step |= {"id": step_id(name), **step}
        if agent.text("description"):
            step["description"] = agent.text("description")
        if agent.text("type") == "human_gate":
            self._gate(agent, step, name)
        else:
            self._prompted(agent, step)
        self._read_routes(agent, name)
        agent.done()

    def _prompted(self, agent: Reader, step: dict[str, Any]) -> None:
        kind = agent.text("type")
        if kind not in ("", "agent"):
            agent.lose("type", f"{kind} steps are to be written anew")
        prompt = agent.get("prompt")
        parts = [agent.text("system_prompt").strip(), agent.text("prompt")]
        step["prompt"] = self._text(
            "\n\n".join(part for part in parts if part) or "Go on.", prompt or agent.node
        )
        if agent.text("model"):
            step["model"] = agent.text("model")
        output = agent.map("output")
        if output is not None:
            properties = {word.text: self._schema(word, value) for word, value in output.entries}
            step["output_schema"] = {"type": "object", "required": list(properties), "properties": properties}
        agent.lose("tools", "give the step a role with these tools")
        agent.lose("input", "what a prompt refers to is what an agent sees")

    def _schema(self, word: Scalar, node: Node) -> dict[str, Any]:
        """The schema of one field that an agent gives."""
        if not isinstance(node, Mapping):
            self.source.lose(word, f"output {word.text}", "it is no object")
            return {}
        reader = Reader(self.source, node, f"output {word.text}")
        said = {key: reader.value(key) for key in ("type", "description", "items", "enum", "properties")}
        reader.done()
        return {key: value for key, value in said.items() if value is not None}

    def _failure_mode(self, reader: Reader) -> bool:
        """Whether failures are taken for answers."""
        mode = reader.text("failure_mode")
        if mode not in ("", "fail_fast", "all_or_nothing", "continue_on_error"):
            reader.lose("failure_mode", "say `on_failure` in the steps")
        return mode == "continue_on_error"

    def _gate(self, gate: Reader, step: dict[str, Any], name: str) -> None:
        choices: list[str] = []
        for option in gate.objects("options"):
            inner = Reader(self.source, option, f"agent {name}: option")
            word = inner.text("value") or inner.text("name") or inner.text("label")
            choices.append(word)
            if inner.text("route"):
                self.routes.setdefault(name, []).append(
                    _Route(
                        inner.text("route"), f'steps.{in_cel(step["id"])}.output.decision == "{word}"', option
                    )
                )
            inner.pass_over("label", "description", "name")
            inner.lose("prompt_for", "an `ask` step takes words")
            inner.done()
        asked = gate.text("prompt") or gate.text("description") or "Go on?"
        step["approve"] = self._text(asked, gate.node)
        if choices:
            step["choices"] = choices

    def _map(self, one: Reader) -> None:
        name = one.text("name")
        one.what = f"for_each {name}"
        step: dict[str, Any] = {"id": step_id(name)}
        source = self._path(one.text("source"))
        step["for_each"] = in_cel(source) if source else "[]"
        if source is None:
            one.lose("source", "what it runs over is not known here")
        self.item = one.text("as") or "item"
        step["as"] = self.item
        agent = one.map("agent")
        if agent is not None:
            inner = Reader(self.source, agent, f"{one.what}: agent")
            inner.get("name")
            self._prompted(inner, step)
            inner.done()
        self.item = ""
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
                found = to_cel(said, lambda path: self._path(path, name))
                if found is None:
                    route.lose(
                        "when" if route.node.key("when") else "condition", f"could not be read: {said}"
                    )
                when = found or ""
            self.routes.setdefault(name, []).append(_Route(route.text("to"), when, node))
            route.done()

    def _lose_dead_ends(self) -> None:
        """Ways that lead to nobody."""
        for name, routes in self.routes.items():
            for route in routes:
                if route.to not in self.steps and route.to not in self.members and route.to not in _ENDS:
                    self.source.lose(route.at, f"{name}: route", f"there is no {route.to!r:.80} to lead to")

    # Names

    def _path(self, path: str, own: str = "") -> str | None:
        words = path.split(".")
        first, rest = words[0].partition("[")[0], ".".join(words[1:])
        if path.startswith("workflow.input."):
            return f"inputs.{path.removeprefix('workflow.input.')}"
        if self.item and first == self.item:
            return path
        if path == "_index":
            return "index"
        if first in self.members and len(words) > 2 and words[1] == "outputs":
            return ".".join([f"steps.{step_id(words[2])}.output", *words[3:]])
        if first in self.gates and rest in _CHOSEN:
            return f"steps.{step_id(first)}.output.decision"
        if first in self.maps and rest.startswith("outputs"):
            return f"steps.{step_id(first)}.{rest.replace('outputs', 'output', 1)}"
        if first in self.steps or first in self.maps:
            known = rest if rest.startswith("output") else f"output.{rest}" if rest else "output"
            return f"steps.{step_id(first)}.{known}"
        if own and first == "output":
            return f"steps.{step_id(own)}.{path}"
        if own and own in self.steps:  # a bare name is a field of the agent that routes
            return f"steps.{step_id(own)}.output.{path}"
        return None

    def _text(self, text: str, at: Node) -> str:
        return rewrite(
            text, self._path, lambda what: self.source.lose(at, what, "templates name values, and no more")
        )

    # From routes to edges

    def _connected(self, entry: str) -> list[dict[str, Any]]:
        order = self._order(entry)
        self._lose_dead_ends()
        loops = self._loops(order)
        for name in order:
            self._enter(name, order)
        steps = [step for name in order for step in self._of(name)]
        for name in [*self.steps]:
            if name not in order and not any(name in members for members in self.members.values()):
                self.source.lose(1, f"agent {name}", "nothing leads to it")
        for first, last, until, most in loops:
            steps = as_loop(steps, first, last, until, most)
        return steps

    def _of(self, name: str) -> list[dict[str, Any]]:
        return [
            self.steps[one]
            for one in self.members.get(name, [name])
            if one in self.steps and "id" in self.steps[one]
        ]

    def _order(self, entry: str) -> list[str]:
        """Everything that can be reached, each after what leads to it, as far as no way leads back."""
        order: list[str] = []
        open_names: list[str] = []

        def visit(name: str) -> None:
            if name in order or name in open_names or (name not in self.steps and name not in self.members):
                return
            open_names.append(name)
            for route in reversed(self.routes.get(name, [])):
                visit(route.to)
            open_names.remove(name)
            order.insert(0, name)

        visit(entry)
        return order

    def _loops(self, order: list[str]) -> list[tuple[str, str, str, int]]:
        found: list[tuple[str, str, str, int]] = []
        for name in order:
            for route in list(self.routes.get(name, [])):
                if route.to in order and order.index(route.to) <= order.index(name):
                    self.routes[name].remove(route)
                    inner = order[order.index(route.to) : order.index(name) + 1]
                    if route.when and not found and all(one not in self.members for one in inner):
                        found.append(
                            (self.steps[route.to]["id"], self.steps[name]["id"], f"!({route.when})", 10)
                        )
                    else:
                        self.source.lose(
                            route.at, f"{name}: the way back to {route.to}", "write it as a loop"
                        )
        return found

    def _enter(self, name: str, order: list[str]) -> None:
        ways: list[tuple[str, str]] = []
        for other in order:
            earlier: list[str] = []
            for route in self.routes.get(other, []):
                when = " && ".join(
                    [*(f"!({one})" for one in earlier), *([f"({route.when})"] if route.when else [])]
                )
                if route.to == name:
                    ways.append((other, when))
                if route.when:
                    earlier.append(route.when)
                else:
                    break
        if not ways:
            return
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
