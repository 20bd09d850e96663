"""Converts Archon's workflows: nodes with edges; prompts, commands, shell scripts, loops, approvals."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fanfold.language.convert.source import (
    NUMBER,
    UNWRITTEN,
    ConversionResult,
    ForeignFile,
    Reader,
    cel_text,
    is_refused,
    not_for_agents,
    not_for_programs,
    program_rights,
    step_id,
    unread,
)
from fanfold.language.template import in_expression, literal
from fanfold.language.tree import Mapping, Scalar, plain

# -----------------------------------------------------------------------------------------------------------
# The conditions of Archon's nodes.
#
# Rules
# * Archon compares texts: a field that is `false` is equal to `'false'`. Greater and smaller compare numbers.
# * A skipped node is not a success. Its dependents are skipped too, unless their trigger rule accepts less.
#   Here a step runs after a skipped one, so its condition must express that.
# * A skipped node returns an empty text.

_ATOM = (
    r"(?a)\$(?P<node>[A-Za-z_][\w-]*)\.(?P<first>[A-Za-z_]\w*)(?:\.(?P<second>[A-Za-z_]\w*))?"
    r"\s*(?P<sign>==|!=|<=|>=|<|>)\s*"
    rf"(?:'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<bare>-?{NUMBER}|true|false))"
)
_ONE_WILL_DO = ("none_failed_min_one_success", "one_success")
_JOINT = r"&&|\|\|"
_NUMBER = rf"(?a)-?{NUMBER}"


class _Trigger(NamedTuple):
    needs: list[str]
    conditional: bool
    rule: str
    texts: frozenset[str]
    """The fields that it declares as texts."""


class Triggers:
    """The nodes of one workflow: which can be skipped, and the resulting conditions."""

    def __init__(self, source: ForeignFile, nodes: list[Mapping], plain: set[str]) -> None:
        self._plain = plain
        self._nodes: dict[str, _Trigger] = {}
        for node in nodes:
            one = Reader(source, node, "")
            rule = one.text("trigger_rule") or "all_success"
            made = _Trigger(one.texts("depends_on"), bool(one.text("when")), rule, _texts(one))
            self._nodes[one.text("id")] = made
        self._skippable: set[str] = set()
        """The nodes that can be skipped without a failure."""
        after: dict[str, list[str]] = {}
        for name, trigger in self._nodes.items():
            for need in trigger.needs:
                after.setdefault(need, []).append(name)
        new = [name for name, trigger in self._nodes.items() if trigger.conditional]
        while new:
            name = new.pop()
            if name not in self._skippable:
                self._skippable.add(name)
                new += [later for later in after.get(name, ()) if self._is_skipped(self._nodes[later])]
        self.fields: dict[str, list[str]] = {}
        """The fields of each node that conditions use."""
        for node in nodes:
            for atom in re.finditer(_ATOM, Reader(source, node, "").text("when")):
                if field := _field(atom):
                    self.fields.setdefault(atom["node"], []).append(field)

    def is_skippable(self, step: str) -> bool:
        return any(step_id(name) == step for name in self._skippable)

    def _is_skipped(self, node: _Trigger) -> bool:
        """Return whether a node is skipped if those of its dependencies are that can be."""
        if node.rule == "all_success":
            return any(need in self._skippable for need in node.needs)
        return node.rule in _ONE_WILL_DO and all(need in self._skippable for need in node.needs)

    def condition(self, text: str, objects: set[str]) -> str | None:
        """Return a node's `when` as an expression, or None; whole `objects` cannot be compared."""
        parts: list[str] = []
        at = 0
        # Quoted text could look like an operator.
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda found: "x" * len(found[0]), text)
        for joint in [*re.finditer(_JOINT, unquoted), None]:
            atom = re.fullmatch(_ATOM, text[at : joint.start() if joint else None].strip())
            if (found := None if atom is None else self._compared(atom, objects)) is None:
                return None
            parts += [found, joint[0]] if joint else [found]
            at = joint.end() if joint else at
        joined = " ".join(parts)
        return f"({joined})" if "||" in parts else joined

    def rule(self, name: str) -> str:
        """Return the condition of a node's trigger rule on dependencies that can be skipped."""
        node = self._nodes[name]
        if not node.needs or not self._is_skipped(node):
            return ""
        doubtful = [need for need in node.needs if need in self._skippable]
        there = [f'steps.{in_expression(step_id(step))}.status != "skipped"' for step in doubtful]
        if node.rule in _ONE_WILL_DO and len(there) > 1:
            return f"({' || '.join(there)})"
        return " && ".join(there)

    def _compared(self, atom: re.Match[str], objects: set[str]) -> str | None:
        name, field = atom["node"], _field(atom)
        if name not in self._nodes or (name in self._plain if field else name in objects):
            return None
        value = next(one for one in (atom["single"], atom["double"], atom["bare"]) if one is not None)
        path = f"steps.{in_expression(step_id(name))}.output" + (f".{field}" if field else "")
        is_text = not field or field in self._nodes[name].texts
        sign = atom["sign"]
        if sign in ("==", "!="):
            found = f"{path if is_text else f'string({path})'} {sign} {cel_text(value)}"
        elif re.fullmatch(_NUMBER, value):
            found = f"double({path}) {sign} {float(value)}"
        else:
            return None
        if name not in self._skippable:
            return found
        status = f"steps.{in_expression(step_id(name))}.status"
        if sign == "!=":
            return f'({status} == "skipped" || {found})'
        return f'({status} != "skipped" && {found})'


def _field(atom: re.Match[str]) -> str:
    """Return the field in `$node.output.field`, or in the short form `$node.field`."""
    return atom["second"] or "" if atom["first"] == "output" else atom["first"]


def _texts(node: Reader) -> frozenset[str]:
    schema: Any = node.value("output_format")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    pairs = fields.items() if isinstance(fields, dict) else ()
    return frozenset(key for key, one in pairs if isinstance(one, dict) and one.get("type") == "string")


# -----------------------------------------------------------------------------------------------------------
# The scripts of Archon's nodes: shell scripts, and scripts for `bun` and `uv`.
#
# In a shell script, Archon inserts the value of `$node.output` with quotes, so that it is one word. Here it
# is a variable, and quotes are added where needed. In other scripts, the value is inserted unchanged.

NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_-]*)((?:\.output(?:\.[A-Za-z_][A-Za-z0-9_]*)?)?)", re.ASCII)
"""A node's output, or one field of it; the text after it is plain text."""
_OF_BASH = (
    r"(?am)pipefail|\[\[|<<<|&>|<\(|\$'|\{\{|\$\{\w+(?:,|\^|//?|:\d)|\w=\(|\(\(|BASH_"
    r"|^\s*(?:function|declare|local -|mapfile|source|shopt)\b"
)
ARTIFACTS = "ARTIFACTS_DIR"
"""The variable of a folder that all nodes of a run share."""
_ENDINGS = {"bun": (".ts", ".js", ".mjs"), "uv": (".py",)}
_STARTS = {"bun": ["bun", "--no-env-file"], "uv": ["uv", "run"]}


def shell_step(
    text: str, variable: Callable[[str, str], tuple[str, str] | None], environment: dict[str, str]
) -> dict[str, Any]:
    """Return a step that runs a shell script; `variable` returns the name and value for a reference."""
    inputs = {name: path for name, path in environment.items() if path}
    quotes = _Quotes(text)

    def named(found: re.Match[str]) -> str:
        if (known := variable(found[1], found[2])) is None:
            return found[0]
        word, path = known
        if not path:
            return f"${word}"
        inputs[word] = path
        if not found[2]:  # an argument of the workflow: authors write the quotes themselves
            return f"${word}"
        return {"'": f"""'"${word}"'""", '"': f"${{{word}}}"}.get(quotes.around(found.start()), f'"${word}"')

    text = NAME.sub(named, text)
    if ARTIFACTS in environment:
        text = f'export {ARTIFACTS}="$FANFOLD_ARTIFACTS"\n{text}'
    rights = program_rights(text)
    if not re.search(_OF_BASH, text):
        return {"shell": text, **rights} | ({"inputs": inputs} if inputs else {})
    step: dict[str, Any] = {"run": ["bash", "-c", literal(text)], **rights}
    if inputs:
        step["env"] = {word: f"{{{{{path}}}}}" for word, path in inputs.items()}
    return step


class _Quotes:
    """The quotes around each position of a shell script."""

    def __init__(self, text: str) -> None:
        self._changes: list[tuple[int, str]] = [(0, "")]
        inside, at = "", 0
        while at < len(text):
            sign = text[at]
            if sign == "\\" and inside != "'":
                at += 2
                continue
            if sign == "#" and not inside and (at == 0 or text[at - 1] in " \t\n;"):
                at = text.find("\n", at)
                if at < 0:
                    break
                continue
            if sign in "'\"" and inside in ("", sign):
                inside = "" if inside else sign
                self._changes.append((at + 1, inside))
            at += 1

    def around(self, place: int) -> str:
        """Return the open quotes at a position."""
        return next(inside for start, inside in reversed(self._changes) if start <= place)


def script_step(
    reader: Reader,
    source: ForeignFile,
    put_in: Callable[[str], str],
    environment: Callable[[str], dict[str, str]],
) -> dict[str, Any]:
    """Return a step that runs a script of `bun` or `uv`, from the workflow or from a file next to it."""
    script, runtime = reader.text("script"), reader.text("runtime")
    packages = [word for text in reader.texts("deps") for word in ("--with", text)]
    if runtime not in _STARTS:
        return _given_up(reader, "write it as a function, or as a program that `run` starts")
    start = [*_STARTS[runtime], *packages]
    if not re.fullmatch(r"[\w./-]+", script, re.ASCII):
        inline = ["-e"] if runtime == "bun" else ["python", "-c"]
        if f"${ARTIFACTS}" in script:
            return _given_up(reader, "read the folder of artifacts from the variable FANFOLD_ARTIFACTS")
        return _program([*start, *inline, put_in(script)], script, environment(script))
    for up in ("..", "../.."):
        for ending in _ENDINGS[runtime]:
            file = f"{up}/scripts/{script}{ending}"
            place = posixpath.normpath(posixpath.join(posixpath.dirname(source.file), file))
            if (data := source.beside(file)) is not None and not place.startswith(("/", "..")):
                arguments = [*start, *(["run"] if runtime == "bun" else []), place]
                text = data.decode("utf-8", "replace")
                for words, why in not_for_programs({"shell": text}):
                    reader.source.lose(reader.node, f"{reader.what}: {words} in {place}", why)
                return _program(arguments, text, environment(text))
    return _given_up(reader, f"scripts/{script} is not there; say with `run` what to start")


def _program(run: list[str], text: str, given: dict[str, str]) -> dict[str, Any]:
    """Return a step that runs a program, with the variables that its text reads and the rights it needs."""
    if ARTIFACTS in given:
        run = ["sh", "-c", f'{ARTIFACTS}="$FANFOLD_ARTIFACTS" exec "$@"', "sh", *run]
    env = {name: f"{{{{{path}}}}}" for name, path in given.items() if path}
    return {"run": run, **program_rights(text)} | ({"env": env} if env else {})


def _given_up(reader: Reader, why: str) -> dict[str, Any]:
    """Return a failing step in place of a script; the settings of the script are lost."""
    reader.lose("script", why)
    for key in ("runtime", "deps"):
        reader.lose(key, "it says how the script is started")
    return {UNWRITTEN: why}


_TIER = r"@.*|small|medium|large"
_NO_TIERS = "it is a name of Archon's configuration: say which model"
_ARGUMENTS = frozenset({"ARGUMENTS", "USER_MESSAGE"})
_VARIABLES = frozenset(
    "BASE_BRANCH CONTEXT DOCS_DIR EXTERNAL_CONTEXT INPUTS ISSUE_CONTEXT LOOP_PREV LOOP_PREV_OUTPUT"
    " LOOP_USER_INPUT REJECTION_REASON STATE_DIR WORKFLOW_ID".split()
)
"""Names that Archon itself provides; any other name belongs to a program."""
_GIVEN = frozenset(
    "BASE_BRANCH CONTEXT DOCS_DIR EXTERNAL_CONTEXT ISSUE_CONTEXT STATE_DIR WORKFLOW_ID".split()
)
"""The part of them that a user can provide instead."""
_READ = r"(?a)(?:\$\{|\benv(?:iron)?(?:\.get)?\W{1,3})"
_INPUT = r"(?a)\$INPUTS\.([A-Za-z_]\w*)"
_COMMANDS = ("../commands", "../../commands", "../commands/defaults", "../../commands/defaults")
_TOOLS = ("Read", "Glob", "Grep", "Write", "Edit", "Bash")
"""Tools of its agents that steps here can have too, with the same names."""
_EXTRAS = {
    "skills": "give the step a role with these skills",
    "mcp": "give the step a role with these tools",
    "hooks": "write into the prompt what they add, and leave out of `tools` what they deny",
    "agents": "agents of a run do not delegate: write their work as steps",
    "agent": "name a role that is known here",
    "systemPrompt": "give the step a role with these instructions",
    "sandbox": "give the step a role with this `sandbox_mode`",
}
_COMPOSED = {
    "workflow": "convert that workflow too, and say `workflow: ./FILE` and `inputs` here",
    "include": "convert that workflow too, and say `workflow: ./FILE` and `inputs` here",
    "loop_group": "write it as a group with `repeat`",
    "fan_out": "write it with `for_each`",
}
_OF_AGENTS = ("prompt", UNWRITTEN, "model", "reasoning_effort", "tools", "posture", "idle_timeout_ms")
_CONVERSING = ("prompt", "command", "loop")
_ARTIFACT = r"(?a)\$\{?(?:FANFOLD_ARTIFACTS|ARTIFACTS_DIR)\}?\"?/([\w./-]*\w)"
_WRITES = r"(?i)\b(?:writ|append|updat|edit|sav|creat|add)\w*\b|\btee\b|>\s*[\"'`]?$"
_USUAL_RULES = frozenset({"all_success", "none_failed_min_one_success", "none_failed", "all_done"})


class ArchonWorkflow:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.ids: set[str] = set()
        self.plain: set[str] = set()
        """Nodes that return text, whatever fields are used."""
        self.asks = False
        self.unclear = False
        """Whether the texts of the node use names without a counterpart in recipes."""
        self.items = ""
        """The list over which the node is mapped."""
        self.each = ""
        """The input of the children that gets the item."""
        self.gate: dict[str, Any] = {}
        """The command that can end the loop of the node."""
        self.current = ""
        self.tolerant: dict[str, tuple[str, Reader]] = {}
        """Nodes that run after a failure of a dependency, and their rules."""
        self.named_inputs: set[str] = set()
        self.given: set[str] = set()
        """Variables of Archon that became inputs."""
        self.objects: set[str] = set()
        self.triggers = Triggers(source, [], self.plain)
        self.read: dict[str, list[str]] = {}
        """The fields of each node that texts use."""
        for found in NAME.finditer(source.text):
            if field := found[2].removeprefix(".output").removeprefix("."):
                self.read.setdefault(found[1], []).append(field)

    def convert(self) -> ConversionResult:
        top = Reader(self.source, self.source.tree(), "workflow")
        recipe = top.heading()
        nodes = top.objects("nodes")
        groups = [one for node in nodes if isinstance(one := node.get("loop_group"), Mapping)]
        inner = [one for group in groups for one in Reader(self.source, group, "").objects("nodes")]
        everything = [*nodes, *inner]
        names = {id(node): Reader(self.source, node, "").text("id") for node in everything}
        self.ids = set(names.values())
        plain_keys = ("loop", "approval", "cancel")
        self.plain = {
            names[id(node)] for node in everything if any(node.get(key) is not None for key in plain_keys)
        }
        self.triggers = Triggers(self.source, everything, self.plain)
        shaped = {names[id(node)] for node in everything if node.get("output_format")}
        self.objects = shaped | {one for one in self.ids if self._asked(one)}
        steps = [self._node(node) for node in nodes]
        self._tolerate(steps)
        self._continue(nodes, steps)
        self._separate(everything, steps)
        if top.text("model") and not re.fullmatch(_TIER, top.text("model")):
            recipe["defaults"] = {"model": top.text("model")}
        else:
            top.lose("model", _NO_TIERS)
        for name in ("provider", "interactive", "modelReasoningEffort", "webSearchMode", "tags"):
            top.lose(name, "who works, and how, is a matter of roles and configuration here")
        top.done()
        for name in sorted(self.named_inputs):
            recipe.setdefault("inputs", {})[name] = {"required": True}
        for name in sorted(self.given):
            about = {"required": True, "description": f"The value of ${name}, which Archon gives itself."}
            recipe.setdefault("inputs", {})[name.lower()] = about
        if self.asks:
            recipe["inputs"] = recipe.get("inputs", {}) | {
                "arguments": {"required": True, "description": "What the workflow is called with."}
            }
        recipe["steps"] = steps
        return ConversionResult(recipe, self.source.lost)

    def _node(self, node: Mapping) -> dict[str, Any]:
        reader = Reader(self.source, node, "")
        name = reader.text("id")
        self.current, self.unclear, self.gate = name, False, {}
        reader.what = f"node {name}"
        step: dict[str, Any] = {"id": step_id(name)}
        if needed := [step_id(text) for text in reader.texts("depends_on")]:
            step["depends_on"] = needed
        self._conditions(reader, step, name)
        self._work(reader, step)
        self._model(reader, step)
        asked = self._asked(name)
        if reader.value("output_format") is not None:
            step["output_schema"] = reader.value("output_format")
        elif asked:  # Archon parses JSON if fields are used
            step["output_schema"] = {"type": "object", "properties": {field: {} for field in asked}}
        if (timeout := reader.whole("timeout")) is not None:
            step["timeout_ms"] = timeout
        self._retry(reader, step)
        reader.value("context")  # `_continue` reads it
        self._tools(reader, step)
        for key, why in _EXTRAS.items():
            if reader.get(key) is not None:
                step[UNWRITTEN] = why
            reader.lose(key, why)
        for words, why in (*not_for_agents(step.get("prompt", "")), *not_for_programs(step)):
            self.source.lose(node, f"node {name}: {words}", why)
        if (idle := reader.whole("idle_timeout")) is not None and idle > 0 and "prompt" in step:
            step["idle_timeout_ms"] = idle
        else:
            reader.lose("idle_timeout", "only agents are held to give signs of life")
        if "prompt" in step and (self.unclear or is_refused(step["prompt"])):
            step[UNWRITTEN] = step.pop("prompt")
        reader.done()
        if self.gate:  # a group of the agent and of the command
            work = {"id": f"{step['id']}-work"} | {key: step.pop(key) for key in _OF_AGENTS if key in step}
            step |= {"steps": [work, self.gate], "output": f"{{{{steps.{work['id']}.output}}}}"}
            self.gate = {}
        return step

    @staticmethod
    def _retry(reader: Reader, step: dict[str, Any]) -> None:
        if (retry := reader.inner("retry")) is not None:
            times = retry.bounded("max_attempts", 0, 9, "10 tries at most")
            step["retry"] = {"attempts": (1 if times is None else times) + 1}
            retry.done()

    def _model(self, reader: Reader, step: dict[str, Any]) -> None:
        for key, ours in (("model", "model"), ("effort", "reasoning_effort")):
            if key == "model" and re.fullmatch(_TIER, reader.text(key)):
                reader.lose(key, _NO_TIERS)
            elif reader.text(key) and "prompt" in step:
                step[ours] = reader.text(key)
            else:
                reader.lose(key, "it says how a model works, and none does here")

    def _tools(self, reader: Reader, step: dict[str, Any]) -> None:
        """Limit a node to the tools that it had; tools that do not exist here are left out."""
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
                self.source.lose_inside(allowed or reader.node, word, what, "it works without that tool")
        step["tools"] = [word for word in named if word in _TOOLS and word not in taken]
        if not {"Write", "Edit", "Bash"} & {*step["tools"]}:
            step["posture"] = "read_only"  # nodes that only read run side by side

    def _asked(self, name: str) -> list[str]:
        """Return the fields of a node that others use."""
        if name in self.plain:
            return []
        return list(dict.fromkeys([*self.read.get(name, ()), *self.triggers.fields.get(name, ())]))

    def _conditions(self, reader: Reader, step: dict[str, Any], name: str) -> None:
        when = reader.text("when")
        if (own := self.triggers.condition(when, self.objects) if when else "") is None:
            reader.lose("when", f"the condition could not be read: {when}")
            own = unread(when)
        if both := " && ".join(filter(None, (self.triggers.rule(name), own))):
            step["when"] = both
        rule = reader.text("trigger_rule")
        if rule in ("all_done", "one_success"):
            self.tolerant[name] = (rule, reader)
        elif rule and rule not in _USUAL_RULES:
            reader.lose("trigger_rule", "steps run when those before them ended well")

    def _tolerate(self, steps: list[dict[str, Any]]) -> None:
        """Accept failures of a step if all its dependents also run after a failure."""
        strict = {dep for step in steps if step["id"] not in map(step_id, self.tolerant)
                  for dep in step.get("depends_on", [])}  # fmt: skip
        by_id = {step["id"]: step for step in steps}
        for name, (rule, reader) in self.tolerant.items():
            step = by_id.get(step_id(name))
            needed = [] if step is None else [dep for dep in step.get("depends_on", []) if dep in by_id]
            if step is None or strict & set(needed):
                reader.lose("trigger_rule", "steps before it that may fail need `on_failure: inline`")
                if step is not None:
                    step[UNWRITTEN] = f"it runs after steps that failed ({rule}); others after them do not"
                continue
            for one in needed:
                by_id[one]["on_failure"] = "inline"
                if "depends_on" in by_id[one]:
                    reader.lose("trigger_rule", "it runs after a failure of these steps, not of earlier ones")
            if rule == "one_success" and needed:
                done = " || ".join(f'steps.{in_expression(one)}.status == "completed"' for one in needed)
                step["when"] = f"({done}) && ({step['when']})" if "when" in step else done

    def _continue(self, nodes: list[Mapping], steps: list[dict[str, Any]]) -> None:
        """Convert the conversations that nodes of a sequence continue, unless their `context` is `fresh`.

        A node alone in its layer continues the last conversation of a node alone in its layer.
        """
        last: tuple[Reader, dict[str, Any]] | None = None
        for layer in _layers(steps):
            for number in layer:
                step = steps[number]
                reader = Reader(self.source, nodes[number], f"node {step['id']}")
                context = reader.value("context")
                named = context.get("resume") if isinstance(context, dict) else None
                if not (isinstance(named, str) or context in (None, "fresh", "shared")):
                    reader.lose("context", "it is `fresh`, `shared` or `{resume: NODE}`")
                if not any(reader.get(kind) is not None for kind in _CONVERSING):
                    continue
                wanted = None if named is None else step_id(str(named))
                before = next(((reader, one) for one in steps if one["id"] == wanted), None)
                if named is None and len(layer) == 1 and context != "fresh" and not _is_fresh(reader):
                    before = last
                    if last is not None and last[0].text("provider") != reader.text("provider"):
                        before = None
                if named is not None or before is not None:
                    self._continue_one(reader, step, None if before is None else before[1])
                last = (reader, step)
            last = last if len(layer) == 1 else None

    def _continue_one(self, reader: Reader, step: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Let a step continue the conversation of a step before it, or give it the last reply of that."""
        plain = all(one is not None and {"prompt", UNWRITTEN} & set(one) for one in (step, before))
        single = all(one is not None and not {"repeat", "steps"} & set(one) for one in (step, before))
        if before is not None and plain and single and self._runs_after(reader, step, before):
            step["continue"] = before["id"]
            return
        if before is None:
            why = "continue the conversation of a node before it with `continue`"
            step.setdefault(UNWRITTEN, step.pop("prompt", why))
        else:
            why = f"the conversation of {before['id']} ends there: the step gets its last reply"
            reply = f"{{{{steps.{before['id']}.output}}}}"
            if reply not in step.get("prompt", reply):
                step["prompt"] += f"\n\nThe conversation before this ended with: {reply}"
        self.source.lose(reader.node, f"{reader.what}: context", why)

    def _runs_after(self, reader: Reader, step: dict[str, Any], before: dict[str, Any]) -> bool:
        """Return whether a step only runs if a step before it was not skipped."""
        if not self.triggers.is_skippable(before["id"]):
            return True
        return before["id"] in step.get("depends_on", ()) and not reader.text("trigger_rule")

    def _separate(self, nodes: list[Mapping], steps: list[dict[str, Any]]) -> None:
        """Refuse the steps that change an artifact of another step: each one publishes files of its own."""
        places = {step_id(Reader(self.source, node, "").text("id")): node for node in nodes}
        owners: dict[str, str] = {}
        for step in _every(steps):
            text = "\n".join(str(step.get(key, "")) for key in ("prompt", UNWRITTEN, "shell"))
            text = "\n".join([text, *map(str, step.get("run", ()))])
            for name in dict.fromkeys(_written(text)):
                if owners.setdefault(name, step["id"]) != step["id"] and step["id"] in places:
                    why = f"{owners[name]} publishes this artifact, and only that step may change it"
                    self.source.lose(places[step["id"]], f"node {step['id']}: {name}", why)
                    step.setdefault(UNWRITTEN, step.pop("prompt", why))

    def _approval(self, reader: Reader, approval: Reader, step: dict[str, Any]) -> None:
        captured = approval.flag("capture_response")
        step["ask" if captured else "approve"] = self._text(approval.text("message") or "Continue?", reader)
        before = [f"{{{{steps.{dep}.output}}}}" for dep in step.get("depends_on", ())]
        if before:  # people see the outputs of the nodes before it
            step["show"] = "\n\n".join(before)
        if approval.get("on_reject") is not None:
            approval.lose("on_reject", "a no fails the step; with choices it may lead elsewhere")
            step[UNWRITTEN] = "what follows a no"
        approval.done()

    def _work(self, reader: Reader, step: dict[str, Any]) -> None:
        loop, approval = reader.inner("loop"), reader.inner("approval")
        composed = next((key for key in _COMPOSED if reader.get(key) is not None), None)
        if (group := reader.inner("loop_group") if composed == "loop_group" else None) is not None:
            self._loop_group(group, step)
        elif composed in ("workflow", "include") and reader.text(composed):
            self._called(reader, step, composed)
        elif composed is not None:
            step[UNWRITTEN] = _COMPOSED[composed]
            for key, why in _COMPOSED.items():
                reader.lose(key, why)
        elif reader.get("bash") is not None:
            step |= self._shell(reader.text("bash"))
        elif reader.get("script") is not None:
            step |= script_step(reader, self.source, lambda text: self._text(text, reader), self._environment)
        elif loop is not None:
            self._loop(loop, step)
        elif approval is not None:
            self._approval(reader, approval, step)
        elif reader.get("cancel") is not None:
            step |= {"end": "failed", "message": self._text(reader.text("cancel"), reader)}
        elif reader.get("command") is not None:
            step |= self._command(reader)
        else:
            step["prompt"] = self._text(reader.text("prompt"), reader) or "Continue."

    def _loop_group(self, group: Reader, step: dict[str, Any]) -> None:
        """Convert nodes that repeat until the last one returns a word, or until a command succeeds."""
        name = step["id"]
        nodes = group.objects("nodes")
        inner = [self._node(node) for node in nodes]
        self._continue(nodes, inner)
        self.current = name
        until, command = group.text("until"), group.text("until_bash")
        if command:
            last = [inner[-1]["id"]] if inner else []
            gate = {"id": f"{name}-gate", "depends_on": last, **self._shell(command)}
            inner.append({**gate, "outputs": ["exit_code"]})
            condition = f"steps.{in_expression(gate['id'])}.output.exit_code == 0"
        else:
            condition = f"output.matches({_signal_pattern(until or 'DONE')})"
        step["steps"] = inner
        self._rounds(group, step, condition, "group")

    def _rounds(self, loop: Reader, step: dict[str, Any], until: str, what: str) -> None:
        """Convert the settings that a loop and a group of nodes share."""
        most = loop.bounded("max_iterations", 1, 50, "from 1 to 50 rounds")
        step["repeat"] = {"until": until, "max_iterations": most or 10}
        for key in ("interactive", "gate_message"):
            loop.lose(key, f"put an `ask` step into the {what}")
        if not loop.flag("fresh_context"):
            loop.lose("fresh_context", "every round starts anew, and {{feedback}} is the last reply")
        loop.done()

    def _called(self, reader: Reader, step: dict[str, Any], key: str) -> None:
        """Convert a call of another workflow, which must be converted too; until then `check` refuses it."""
        name = reader.text(key)
        step["workflow"] = f"./{name.removesuffix('.yaml')}.yaml"
        apart = "; its artifacts and conversations are its own here" if key == "include" else ""
        reader.lose(key, f"convert {name} too, to {step['workflow']}{apart}")
        given: dict[str, Any] = {}
        for one in ("inputs", "with"):
            values = reader.map(one)
            for word, value in values.entries if values is not None else ():
                text = self._text(value.text, reader) if isinstance(value, Scalar) else plain(value)
                given[word.text] = text
        arguments = reader.text("input") or reader.text("arguments")
        self._fan_out(reader, step)
        if "for_each" in step:
            if arguments and arguments.strip() != self.items:
                reader.lose("input", "each child is given its item")
            given[self.each or "arguments"] = "item"
        elif arguments:
            given["arguments"] = self._text(arguments, reader)
        elif not given:
            given["arguments"] = "inputs.arguments"
            self.asks = True
        step["inputs"] = given

    def _fan_out(self, reader: Reader, step: dict[str, Any]) -> None:
        if (fan := reader.inner("fan_out")) is None:
            return
        items = fan.text("items").strip()
        path = self._path(items) if items.startswith("$") else None
        listed = re.fullmatch(r"\[.*\]", items, re.DOTALL)
        if path is None and listed is None:
            reader.lose("fan_out", "write the list as `for_each`")
            step[UNWRITTEN] = f"for each of {items or 'a list'}"
            return
        self.items = items
        step["for_each"] = items if path is None else f"json({in_expression(path)})"
        if (most := fan.whole("max_parallel")) is not None:
            step["max_concurrency"] = max(1, min(16, most))
        self.each = fan.text("as")
        if fan.text("join") in ("", "all_done"):  # a failed item is an error in the list
            step["on_failure"] = "inline"
        elif fan.text("join") != "all_success":
            fan.lose("join", "a failed item fails the step; `on_failure: inline` tolerates it")
        fan.done()

    def _command(self, reader: Reader) -> dict[str, Any]:
        name = reader.text("command")
        files = (self.source.beside(f"{folder}/{name}.md") for folder in _COMMANDS)
        if (found := next((file for file in files if file is not None), None)) is None:
            reader.lose("command", f"commands/{name}.md is not there; put its text into the prompt")
            return {UNWRITTEN: f"the prompt of the command {name}"}
        text = found.decode("utf-8", "replace")
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
        return {"prompt": self._text(text, reader)}

    def _loop(self, loop: Reader, step: dict[str, Any]) -> None:
        step["prompt"] = self._text(loop.text("prompt"), loop) or "Continue."
        if not loop.flag("fresh_context"):
            step["prompt"] += "\n\nYour reply in the round before: {{feedback}}"
        until = f"output.matches({_signal_pattern(loop.text('until') or 'DONE')})"
        if loop.text("until_bash"):
            name = step["id"]
            self.gate = {"id": f"{name}-gate", "depends_on": [f"{name}-work"]}
            self.gate |= self._shell(loop.text("until_bash")) | {"outputs": ["exit_code"]}
            ended = f"steps.{in_expression(self.gate['id'])}.output.exit_code == 0"
            own = f"steps.{in_expression(f'{name}-work')}.{until}"
            until = f"{ended} || {own}" if loop.text("until") else ended
        if loop.flag("interactive") or loop.text("gate_message"):
            step[UNWRITTEN] = "the question to a person in each round, as an `ask` step in a group"
        self._rounds(loop, step, until, "loop")

    def _shell(self, text: str) -> dict[str, Any]:
        return shell_step(re.sub(_INPUT, r"$INPUTS_\1", text), self._variable, self._environment(text))

    def _environment(self, text: str) -> dict[str, str]:
        """Return the variables of Archon that a program reads by name, and their paths; "" for artifacts."""
        names = sorted(_ARGUMENTS | _GIVEN | {ARTIFACTS})
        read = [name for name in names if re.search(_READ + name + r"\b", text)]
        return {name: self._path(f"${name}") or "" for name in read}

    def _variable(self, name: str, rest: str) -> tuple[str, str] | None:
        """Return the variable of a name in a shell script and its value, unless it is always set."""
        if name == ARTIFACTS:
            return "FANFOLD_ARTIFACTS", ""
        if name.startswith("INPUTS_") and not rest:
            given = name.removeprefix("INPUTS_")
            self.named_inputs.add(given)
            return name, f"inputs.{given}"
        if (path := self._path(f"${name}{rest}")) is None:
            return None
        return (name if name in _ARGUMENTS else re.sub(r"\W", "_", f"{name}{rest}")), path

    def _text(self, text: str, reader: Reader) -> str:
        lost: set[str] = set()

        def hole(found: re.Match[str]) -> str:
            path, name = self._path(f"${found[1]}{found[2]}"), f"${found[1]}"
            if path is not None:
                return f"{{{{{path}}}}}"
            if found[1] == ARTIFACTS:
                return f"$FANFOLD_ARTIFACTS{found[2]}"
            if found[1] in _VARIABLES and name not in lost:
                lost.add(name)
                self.unclear = True
                why = "recipes have no such variable"
                self.source.lose_inside(reader.node, name, f"{reader.what}: {name}", why)
            return found[0]

        def given(found: re.Match[str]) -> str:
            self.named_inputs.add(found[1])
            return f"{{{{inputs.{found[1]}}}}}"

        return NAME.sub(hole, re.sub(_INPUT, given, literal(text)))

    def _path(self, name: str) -> str | None:
        """Return `$node.output.field` and `$ARGUMENTS` in our names."""
        word, _, rest = name.removeprefix("$").partition(".")
        if word in _ARGUMENTS:
            self.asks = True
            return "inputs.arguments"
        if word in _GIVEN and not rest:
            self.given.add(word)
            return f"inputs.{word.lower()}"
        if (
            word in self.ids
            and word != self.current  # its own output does not exist yet
            and rest.split(".")[0] == "output"
            and (rest == "output" or word not in self.plain)
        ):
            return f"steps.{step_id(word)}.{rest}"
        return None


def _is_fresh(reader: Reader) -> bool:
    """Return whether each round of a loop starts a new conversation."""
    loop = reader.get("loop")
    return isinstance(loop, Mapping) and Reader(reader.source, loop, "").flag("fresh_context")


def _layers(steps: list[dict[str, Any]]) -> list[list[int]]:
    """Return the steps by layer: a layer depends on earlier layers only. Steps of a cycle are left out."""
    numbers = {step["id"]: number for number, step in enumerate(steps)}
    needs = [{numbers[dep] for dep in step.get("depends_on", ()) if dep in numbers} for step in steps]
    done: set[int] = set()
    layers: list[list[int]] = []
    while layer := [at for at, needed in enumerate(needs) if at not in done and needed <= done]:
        layers.append(layer)
        done |= set(layer)
    return layers


def _every(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        yield from _every(step.get("steps", []))


def _written(text: str) -> list[str]:
    """Return the artifacts that a text asks to write, or that a script writes."""
    return [
        found[1]
        for line in text.splitlines()
        for found in re.finditer(_ARTIFACT, line)
        if re.search(_WRITES, line[: found.start()])
    ]


def _signal_pattern(signal: str) -> str:
    """Return the pattern for a deliberate word in a reply: in tags, on a separate line, or at the end."""
    word = re.sub(r"([^\w\s])", r"\\\1", signal)
    return cel_text(rf">\s*{word}\s*</|(?:^|\n)\s*{word}\s*(?:\n|$)|{word}[\s.,;:!?]*$")
