"""Archon's workflows: nodes with edges; prompts, commands, shell scripts, loops, approvals."""

from __future__ import annotations

import re
from typing import Any

from fanfold.recipe.conversion.archon_conditions import Triggers
from fanfold.recipe.conversion.archon_programs import NAME, script_step, shell_step
from fanfold.recipe.conversion.conditions import cel_text
from fanfold.recipe.conversion.source import STAND_IN, Converted, ForeignFile, Reader, step_id
from fanfold.text.trees.tree import Mapping

_ARGUMENTS = frozenset({"ARGUMENTS", "USER_MESSAGE"})
_ARTIFACTS = "ARTIFACTS_DIR"
_VARIABLES = frozenset(
    "BASE_BRANCH CONTEXT DOCS_DIR EXTERNAL_CONTEXT INPUTS ISSUE_CONTEXT LOOP_PREV LOOP_PREV_OUTPUT"
    " LOOP_USER_INPUT REJECTION_REASON STATE_DIR WORKFLOW_ID".split()
)
"""What Archon itself puts in; any other name is one of a program."""
_COMMANDS = ("../commands", "../../commands", "../commands/defaults", "../../commands/defaults")
_TOOLS = ("Read", "Glob", "Grep", "Write", "Edit", "Bash")
"""The tools of its agents that steps here can have too, by the same names."""
_COMPOSED = {
    "workflow": "convert that workflow too, and say `workflow: ./FILE` and `inputs` here",
    "include": "convert that workflow too, and say `workflow: ./FILE` and `inputs` here",
    "loop_group": "write it as a group with `repeat`",
    "fan_out": "write it with `for_each`",
}
_USUAL_RULES = frozenset({"all_success", "none_failed_min_one_success", "none_failed", "all_done"})


class _Archon:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.ids: set[str] = set()
        self.plain: set[str] = set()
        """Nodes that give words, whatever is asked of them."""
        self.asks = False
        self.objects: set[str] = set()
        """Nodes that give objects."""
        self.triggers = Triggers(source, [], self.plain)
        self.read: dict[str, list[str]] = {}
        """The fields of each node that texts name."""
        for found in NAME.finditer(source.text):
            if field := found[2].removeprefix(".output").removeprefix("."):
                self.read.setdefault(found[1], []).append(field)

    def convert(self) -> Converted:
        top = Reader(self.source, self.source.tree(), "workflow")
        recipe = top.heading()
        nodes = top.objects("nodes")
        self.ids = {Reader(self.source, node, "").text("id") for node in nodes}
        self.plain = {
            Reader(self.source, node, "").text("id")
            for node in nodes
            if any(node.get(key) is not None for key in ("loop", "approval", "cancel"))
        }
        self.triggers = Triggers(self.source, nodes, self.plain)
        shaped = {Reader(self.source, node, "").text("id") for node in nodes if node.get("output_format")}
        self.objects = shaped | {one for one in self.ids if self._asked(one)}
        steps = [self._node(node) for node in nodes]
        if top.text("model"):
            recipe["defaults"] = {"model": top.text("model")}
        for name in ("provider", "interactive", "modelReasoningEffort", "webSearchMode", "tags"):
            top.lose(name, "who works, and how, is a matter of roles and configuration here")
        top.done()
        if self.asks:
            recipe["inputs"] = {
                "arguments": {"required": True, "description": "What the workflow is called with."}
            }
        recipe["steps"] = steps
        return Converted(recipe, self.source.lost)

    def _node(self, node: Mapping) -> dict[str, Any]:
        reader = Reader(self.source, node, "")
        name = reader.text("id")
        reader.what = f"node {name}"
        step: dict[str, Any] = {"id": step_id(name)}
        needed = [step_id(one) for one in reader.texts("depends_on")]
        if needed:
            step["depends_on"] = needed
        self._conditions(reader, step, name)
        self._work(reader, step)
        self._model(reader, step)
        asked = self._asked(name)
        if reader.value("output_format") is not None:
            step["output_schema"] = reader.value("output_format")
        elif asked:  # Archon reads JSON where fields are asked for
            properties: dict[str, Any] = {one: {} for one in asked}
            step["output_schema"] = {"type": "object", "properties": properties}
        timeout = reader.whole("timeout")
        if timeout is not None:
            step["timeout_ms"] = timeout
        self._retry(reader, step)
        if reader.text("context") not in ("", "fresh"):
            reader.lose("context", "say `continue: STEP` to go on with a conversation")
        self._tools(reader, step)
        for key in ("skills", "mcp", "hooks", "agents"):
            reader.lose(key, "give the step a role with these tools")
        idle = reader.whole("idle_timeout")
        if idle is not None and idle > 0 and "prompt" in step:
            step["idle_timeout_ms"] = idle
        else:
            reader.lose("idle_timeout", "only agents are held to give signs of life")
        reader.done()
        return step

    def _model(self, reader: Reader, step: dict[str, Any]) -> None:
        for key, ours in (("model", "model"), ("effort", "reasoning_effort")):
            if reader.text(key) and "prompt" in step:
                step[ours] = reader.text(key)
            else:
                reader.lose(key, "it says how a model works, and none does here")

    def _tools(self, reader: Reader, step: dict[str, Any]) -> None:
        """A node never gets more tools than it had: what cannot be given here it does without."""
        allowed, denied = reader.get("allowed_tools"), reader.texts("denied_tools")
        if "prompt" not in step:
            for key in ("allowed_tools", "denied_tools"):
                reader.lose(key, "it says what a model may use, and none works here")
            return
        taken = {word.partition("(")[0].strip() for word in denied} & set(_TOOLS)
        if allowed is None and not taken:
            return
        named = list(_TOOLS) if allowed is None else reader.texts("allowed_tools")
        for word in named:
            if word not in _TOOLS:
                what = f"{reader.what}: allowed_tools: {word}"
                self.source.lose_inside(allowed or reader.node, word, what, "it does without that tool")
        step["tools"] = [word for word in named if word in _TOOLS and word not in taken]

    def _retry(self, reader: Reader, step: dict[str, Any]) -> None:
        inner = reader.inner("retry")
        if inner is None:
            return
        times = inner.whole("max_attempts")
        step["retry"] = {"attempts": min(10, max(1, (1 if times is None else times) + 1))}
        if times is not None and not 0 <= times < 10:
            inner.lose("max_attempts", "10 tries at most")
        inner.done()

    def _asked(self, name: str) -> list[str]:
        """The fields that others ask of what a node gives."""
        if name in self.plain:
            return []
        return list(dict.fromkeys([*self.read.get(name, ()), *self.triggers.fields.get(name, ())]))

    def _conditions(self, reader: Reader, step: dict[str, Any], name: str) -> None:
        said = reader.text("when")
        own = self.triggers.condition(said, self.objects) if said else ""
        if own is None:
            reader.lose("when", f"the condition could not be read: {said}")
        if both := " && ".join(filter(None, (self.triggers.rule(name), own))):
            step["when"] = both
        rule = reader.text("trigger_rule")
        if rule in ("all_done", "one_success"):
            reader.lose("trigger_rule", "steps before it that may fail need `on_failure: inline`")
        elif rule and rule not in _USUAL_RULES:
            reader.lose("trigger_rule", "steps run when those before them ended well")

    def _work(self, reader: Reader, step: dict[str, Any]) -> None:
        loop, approval = reader.inner("loop"), reader.inner("approval")
        composed = next((key for key in _COMPOSED if reader.get(key) is not None), None)
        if composed is not None:
            step["shell"] = STAND_IN
            for key, why in _COMPOSED.items():
                reader.lose(key, why)
        elif reader.get("bash") is not None:
            step |= shell_step(reader.text("bash"), self._variable)
        elif reader.get("script") is not None:
            step |= script_step(reader, self.source, lambda text: self._text(text, reader))
        elif loop is not None:
            self._loop(loop, step)
        elif approval is not None:
            captured = approval.flag("capture_response")
            step["ask" if captured else "approve"] = self._text(approval.text("message") or "Go on?", reader)
            approval.lose("on_reject", "a no fails the step; with choices it may lead elsewhere")
            approval.done()
        elif reader.get("cancel") is not None:
            step |= {"end": "failed", "message": self._text(reader.text("cancel"), reader)}
        elif reader.get("command") is not None:
            step |= {"prompt": self._command(reader)}
        else:
            step["prompt"] = self._text(reader.text("prompt"), reader) or "Go on."

    def _command(self, reader: Reader) -> str:
        name = reader.text("command")
        files = (self.source.beside(f"{folder}/{name}.md") for folder in _COMMANDS)
        found = next((one for one in files if one is not None), None)
        if found is None:
            reader.lose("command", f"commands/{name}.md is not there; put its text into the prompt")
            return f"Carry out the command {name}." + (" {{inputs.arguments}}" if self._asking() else "")
        text = found.decode("utf-8", "replace")
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
        return self._text(text, reader)

    def _asking(self) -> bool:
        self.asks = True
        return True

    def _loop(self, loop: Reader, step: dict[str, Any]) -> None:
        step["prompt"] = self._text(loop.text("prompt"), loop) or "Go on."
        until, most = loop.text("until") or "DONE", loop.whole("max_iterations")
        step["repeat"] = {
            "until": f"output.matches({_said(until)})",
            "max_iterations": 10 if most is None else max(1, min(50, most)),
        }
        if most is not None and not 1 <= most <= 50:
            loop.lose("max_iterations", "from 1 to 50 rounds")
        loop.lose("until_bash", "make a group of it, with a command as its gate")
        for name in ("interactive", "gate_message"):
            loop.lose(name, "put an `ask` step into the loop")
        if loop.get("fresh_context") is not None and not loop.flag("fresh_context"):
            loop.lose(
                "fresh_context", "every round begins anew and is told what the last one said: {{feedback}}"
            )
        loop.done()

    def _variable(self, name: str, rest: str) -> tuple[str, str] | None:
        """What a name in a shell script is called there, and what it stands for, unless it is set anyway."""
        if name == _ARTIFACTS:
            return "FANFOLD_ARTIFACTS", ""
        path = self._path(f"${name}{rest}")
        if path is None:
            return None
        return (name if name in _ARGUMENTS else re.sub(r"\W", "_", f"{name}{rest}")), path

    def _text(self, text: str, reader: Reader) -> str:
        told: set[str] = set()

        def hole(found: re.Match[str]) -> str:
            path = self._path(f"${found[1]}{found[2]}")
            if path is None and found[1] == _ARTIFACTS:
                return f"artifacts{found[2]}"
            if path is None:
                if found[1] in _VARIABLES and found[1] not in told:
                    told.add(found[1])
                    what = f"{reader.what}: ${found[1]}"
                    self.source.lose_inside(
                        reader.node, f"${found[1]}", what, "recipes have no such variable"
                    )
                return found[0]
            return f"{{{{{path}}}}}"

        return NAME.sub(hole, text.replace("{{", "\\{{"))

    def _path(self, name: str) -> str | None:
        """`$node.output.field` and `$ARGUMENTS` in our names."""
        word, _, rest = name.removeprefix("$").partition(".")
        if word in _ARGUMENTS:
            self.asks = True
            return "inputs.arguments"
        if (
            word in self.ids
            and rest.split(".")[0] == "output"
            and (rest == "output" or word not in self.plain)
        ):
            return f"steps.{step_id(word)}.{rest}"
        return None


def _said(signal: str) -> str:
    """The pattern of an answer that says a word in earnest: in tags, on a line of its own, or at its end."""
    word = re.sub(r"([^\w\s])", r"\\\1", signal)
    pattern = rf">\s*{word}\s*</|(?:^|\n)\s*{word}\s*(?:\n|$)|{word}[\s.,;:!?]*$"
    return cel_text(pattern)


def convert(source: ForeignFile) -> Converted:
    """A workflow of Archon as a recipe."""
    return _Archon(source).convert()
