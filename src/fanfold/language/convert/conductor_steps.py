"""The kinds of steps in Conductor, each converted to an equivalent step of a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fanfold.language.convert.source import (
    UNWRITTEN,
    ForeignFile,
    Reader,
    delivers,
    in_cel,
    is_whole,
    not_for_agents,
    not_for_programs,
    program_rights,
    rewrite,
    step_id,
    to_value,
    unread,
)
from fanfold.language.tree import Mapping, Node, Scalar

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
        """Agents with declared output fields."""
        self.single: set[str] = set()
        """`set` steps of one value."""
        self.members: dict[str, list[str]] = {}
        """The agents of each parallel group."""
        self.maps: set[str] = set()
        self.inputs: set[str] = set()
        """Inputs that are used."""
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
        self._fields[name] = [one for one in dict.fromkeys(found) if one not in ("output", *self.kinds)]

    def fields(self, name: str) -> list[str]:
        """Return the used fields of a step without declared output fields."""
        return [] if name in self.declares else self._fields.get(name, [])

    def prints_json(self, name: str) -> bool:
        """Return whether a script's fields are those of its printed JSON."""
        return name in self.declares or any(one not in OF_PROGRAMS for one in self.fields(name))

    def is_text(self, name: str) -> bool:
        """Return whether an agent returns only text."""
        return name not in self.declares and all(one == "result" for one in self.fields(name))

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


_DURATION = r"(?a)\d+(?:ms|s|m|h)?"
_VARIABLE = r"(?a)\$\{[A-Za-z_]\w*(?::-(?P<given>[^}]*))?\}"
_OF_SCHEMAS = {
    "pattern": "pattern", "minimum": "minimum", "maximum": "maximum", "min_length": "minLength",
    "max_length": "maxLength", "min_items": "minItems", "max_items": "maxItems", "minLength": "minLength",
    "maxLength": "maxLength", "minItems": "minItems", "maxItems": "maxItems",
}  # fmt: skip


_REFUSED = {
    "stdin": "give it as an `env` variable, or write it to a file before",
    "working_dir": "steps work at the top of the project; `shell` may `cd`",
    "validator": "repeat the step until a check passes",
    "dialog": "say `may_ask: true`, or put an `ask` step before it",
    "session_key": "say `continue: STEP` to go on with a conversation",
}
"""Settings that change a step's behavior and must be written by hand."""


class StepKinds:
    """Creates the body of a step from its agent."""

    def __init__(
        self, source: ForeignFile, names: Names, lead: Callable[[str, str, str, Node], None]
    ) -> None:
        self._source = source
        self._names = names
        self._lead = lead
        """Adds the route of a gate's option: source, target, condition and position."""
        self.item = ""
        self.effort = ""
        self.turns: int | None = None
        """The workflow's defaults for agents: reasoning effort, and turns of a session."""

    def write(self, agent: Reader, step: dict[str, Any], name: str) -> None:
        """Write the agent's work as keys of the step."""
        for key, why in _REFUSED.items():
            if agent.get(key) is not None:
                agent.lose(key, why)
                step[UNWRITTEN] = f"{key}: {why}"
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
                self._wait(agent, step)
            case "terminate":
                self._end(agent, step)
            case kind:
                self._stand_in(agent, step, name, kind)

    def text(self, text: str, at: Node) -> str:
        """Return a text with our names, and with the defaults of environment variables."""

        def variable(found: re.Match[str]) -> str:
            why = "the environment is not read; its default stands there"
            if found["given"] is None:
                why = "the environment is not read; write what it holds"
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
        said = "\n\n".join(filter(None, (system.strip(), prompt))) or "Go on."
        step["prompt" if is_whole(said) and not delivers(said) else UNWRITTEN] = said
        for words, why in not_for_agents(said):
            self._source.lose(agent.get("prompt") or agent.node, f"{agent.what}: {words}", why)
        if agent.text("model"):
            step["model"] = self.text(agent.text("model"), agent.get("model") or agent.node)
        output = agent.map("output")
        if output is not None:
            step["output_schema"] = self._object(output)
        elif not self._names.is_text(name):
            step["output_schema"] = _asked(self._names.fields(name))
        if self.effort:
            step["reasoning_effort"] = self.effort
        reasoning = agent.inner("reasoning")
        if reasoning is not None:
            if reasoning.text("effort"):
                step["reasoning_effort"] = reasoning.text("effort")
            reasoning.done()
        own = agent.whole("max_agent_iterations")
        turns = self.turns if own is None else own
        if turns is not None:
            step["max_turns"] = turns
        for key in ("max_session_seconds", "timeout_seconds"):
            self._timeout(agent, step, key)
        self._retry(agent, step)
        if agent.text("output_mode") not in ("", "raw", "envelope"):
            agent.lose("output_mode", "say `output_schema` in the step")
        if agent.value("tools") == []:
            step["tools"] = []
        else:
            agent.lose("tools", "give the step a role with these tools")
        agent.lose("input", "what a prompt refers to is what an agent sees")

    def _timeout(self, agent: Reader, step: dict[str, Any], key: str) -> None:
        value = agent.value(key)
        if type(value) in (int, float) and value > 0:
            step["timeout_ms"] = min(step.get("timeout_ms", value * 1000), int(value * 1000))
        elif value is not None:
            agent.lose(key, "it is no number of seconds")

    def _retry(self, agent: Reader, step: dict[str, Any]) -> None:
        inner = agent.inner("retry")
        if inner is None:
            return
        tries = inner.whole("max_attempts")
        step["retry"] = {"attempts": min(10, max(1, tries if tries is not None else 1))}
        if tries is not None and not 1 <= tries <= 10:
            inner.lose("max_attempts", "10 tries at most")
        pause = inner.value("delay_seconds")
        if type(pause) in (int, float) and pause >= 0:
            step["retry"]["backoff_ms"] = int(pause * 1000)
        elif pause is not None:
            inner.lose("delay_seconds", "it is no number of seconds")
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
                decided = f'steps.{in_cel(step["id"])}.output.decision == "{word}"'
                self._lead(name, inner.text("route"), decided, option)
            inner.pass_over("label", "description", "name")
            inner.lose("prompt_for", "an `ask` step takes words")
            inner.done()
        asked = gate.text("prompt") or gate.text("description") or "Go on?"
        step["approve"] = self.text(asked, gate.get("prompt") or gate.node)
        if choices:
            step["choices"] = choices

    def _script(self, script: Reader, step: dict[str, Any], name: str) -> None:
        arguments = [script.text("command"), *script.texts("args")]
        step["run"] = [self.text(one, script.get("args") or script.node) for one in arguments]
        step |= program_rights(" ".join(arguments)) | step
        for words, why in not_for_programs(step):
            self._source.lose(script.node, f"{script.what}: {words}", why)
        env = script.map("env")
        if env is not None:
            step["env"] = self._texts(env, f"{script.what}: env")
        output = script.map("output")
        if output is not None:
            step["output_schema"] = self._object(output)
        elif self._names.prints_json(name):
            step["output_schema"] = _asked(self._names.fields(name))
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
            said = value.text if isinstance(value, Scalar) else None
            found = None if said is None else to_value(said, self._path)
            if found is None:
                self._source.lose(value, f"{one.what}: {key}", f"write it as an expression: {said or key}")
            step["set"][key] = found or unread(said or key)
        kind = one.text("output_type")
        if kind not in ("", "auto", "string"):
            one.lose("output_type", "an expression says itself what it gives")

    def _wait(self, one: Reader, step: dict[str, Any]) -> None:
        said = one.text("duration").strip()
        step["wait"] = said if re.fullmatch(_DURATION, said) else unread(said)
        if step["wait"] != said:
            one.lose("duration", "say how long: `90s`, or an expression that gives the instant")
        elif said.isdecimal():
            step["wait"] = f"{said}s"
        if one.text("reason"):
            step.setdefault("description", one.text("reason"))

    def _end(self, one: Reader, step: dict[str, Any]) -> None:
        status = one.text("status")
        step["end"] = "failed" if status == "failed" else "completed"
        if status not in ("", "success", "failed"):
            one.lose("status", "a run is `completed` or `failed`")
        if one.text("reason"):
            step["message"] = self.text(one.text("reason"), one.get("reason") or one.node)
        output = one.map("output_template")
        if output is not None:
            step["output"] = self._texts(output, f"{one.what}: output_template")

    def _stand_in(self, agent: Reader, step: dict[str, Any], name: str, kind: str) -> None:
        """Write a failing step in place of one without a counterpart, so that nothing is invented."""
        why = f"{kind} steps are to be written anew"
        file = agent.text("workflow") if kind == "workflow" else ""
        if file:
            step["workflow"] = file if file.startswith(("./", "../")) else f"./{file}"
            agent.lose("workflow", f"convert {file} too, to {step['workflow']}")
            given = agent.map("input_mapping")
            if given is not None:
                step["inputs"] = self._texts(given, f"{agent.what}: input_mapping")
            return
        agent.lose("type", why)
        step[UNWRITTEN] = why
        if self._names.fields(name):
            step["output_schema"] = _asked(self._names.fields(name))


def _asked(fields: list[str]) -> dict[str, Any]:
    """Return the schema of an object of which only the used fields are known."""
    return {"type": "object", "required": list(fields), "properties": {one: {} for one in fields}}
