"""The kinds of steps that Conductor has, each as the step of a recipe that does the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fanfold.recipe.conversion.conditions import in_cel, to_value
from fanfold.recipe.conversion.conductor_names import OF_PROGRAMS, VALUE, Names
from fanfold.recipe.conversion.source import STAND_IN, ForeignFile, Reader, rewrite
from fanfold.text.trees.tree import Mapping, Node, Scalar

_DURATION = re.compile(r"\d+(?:ms|s|m|h)?", re.ASCII)
_VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*(?::-(?P<given>[^}]*))?\}", re.ASCII)
_OF_SCHEMAS = {
    "pattern": "pattern", "minimum": "minimum", "maximum": "maximum", "min_length": "minLength",
    "max_length": "maxLength", "min_items": "minItems", "max_items": "maxItems", "minLength": "minLength",
    "maxLength": "maxLength", "minItems": "minItems", "maxItems": "maxItems",
}  # fmt: skip


class StepKinds:
    """Makes the body of a step of what its agent says."""

    def __init__(
        self, source: ForeignFile, names: Names, lead: Callable[[str, str, str, Node], None]
    ) -> None:
        self._source = source
        self._names = names
        self._lead = lead
        """Where an option of a gate leads: from whom, to whom, when, and where that stands."""
        self.item = ""

    def write(self, agent: Reader, step: dict[str, Any], name: str) -> None:
        """What the agent does, as keys of the step."""
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
        """A text with their names replaced by ours, and variables of the environment by their defaults."""

        def variable(found: re.Match[str]) -> str:
            why = "the environment is not read; its default stands there"
            if found["given"] is None:
                why = "the environment is not read; write what it holds"
            self._source.lose_inside(at, found[0], found[0], why)
            return found[0] if found["given"] is None else found["given"]

        return rewrite(
            _VARIABLE.sub(variable, text),
            self._path,
            lambda what: self._source.lose_inside(at, what, what, "templates name values, and no more"),
        )

    def _path(self, path: str) -> str | None:
        return self._names.path(path, item=self.item)

    def _texts(self, texts: Mapping, what: str) -> dict[str, str]:
        """A map of texts, with our names in them."""
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
        step["prompt"] = "\n\n".join(filter(None, (system.strip(), prompt))) or "Go on."
        if agent.text("model"):
            step["model"] = self.text(agent.text("model"), agent.get("model") or agent.node)
        output = agent.map("output")
        if output is not None:
            step["output_schema"] = self._object(output)
        elif not self._names.is_text(name):
            step["output_schema"] = _asked(self._names.fields(name))
        reasoning = agent.inner("reasoning")
        if reasoning is not None:
            if reasoning.text("effort"):
                step["reasoning_effort"] = reasoning.text("effort")
            reasoning.done()
        turns = agent.whole("max_agent_iterations")
        if turns is not None:
            step["max_turns"] = turns
        for key in ("max_session_seconds", "timeout_seconds"):
            self._timeout(agent, step, key)
        self._retry(agent, step)
        if agent.text("output_mode") not in ("", "raw", "envelope"):
            agent.lose("output_mode", "say `output_schema` in the step")
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
        """The schema of an object whose fields are described one by one."""
        schema: dict[str, Any] = {"type": "object", "required": [], "properties": {}}
        for word, node in fields.entries:
            schema["properties"][word.text], needed = self._field(word, node)
            if needed:
                schema["required"].append(word.text)
        return schema

    def _field(self, word: Scalar, node: Node) -> tuple[dict[str, Any], bool]:
        """The schema of one field, and whether it must be there."""
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
        script.lose("stdin", "give it as an `env` variable, or write it to a file before")
        script.lose("working_dir", "commands run at the top of the project; `shell` may `cd`")
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
            step["set"][key] = found or "null"
        kind = one.text("output_type")
        if kind not in ("", "auto", "string"):
            one.lose("output_type", "an expression says itself what it gives")

    def _wait(self, one: Reader, step: dict[str, Any]) -> None:
        said = one.text("duration").strip()
        step["wait"] = said if _DURATION.fullmatch(said) else "1s"
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
        """A step that fails in the place of one that has no counterpart, so that nothing is made up."""
        why = f"{kind} steps are to be written anew"
        if kind == "workflow":
            why = "convert that workflow too, and say `workflow: ./FILE` and `inputs` here"
        agent.lose("type", why)
        step["shell"] = STAND_IN
        if self._names.fields(name):
            step["output_schema"] = _asked(self._names.fields(name))


def _asked(fields: list[str]) -> dict[str, Any]:
    """The schema of an object of which nothing is known but what others ask for."""
    return {"type": "object", "required": list(fields), "properties": {one: {} for one in fields}}
