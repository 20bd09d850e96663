"""The step types, and the tables that follow from them: all keys, and the keys that decide the type.

A type that is added here is read, checked, included in the schema for editors and explained in the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON, Output, Step, Traits, check_branch_name
from fanfold.language import keys
from fanfold.language.checks import (
    read_arguments,
    read_environment,
    read_own_variables,
    read_patterns,
    read_script,
)
from fanfold.language.draft import UNKNOWN, Draft, NamedRole, RoleFacts, find_role
from fanfold.language.json_text import misfits
from fanfold.language.keys import (
    AGENT,
    APPROVAL,
    ASK,
    COMMAND,
    DELIVER,
    END,
    FUNCTION,
    GROUP,
    MAX_DURATION_MS,
    PULL_REQUEST,
    SET,
    WAIT,
    WORKFLOW,
    YES_OR_NO,
    ObjectOf,
    StepSyntax,
    step_shape,
)
from fanfold.language.look_alikes import warn_of_braces
from fanfold.language.postures import why_read_only
from fanfold.language.references import TextPlace, Unit, read_output
from fanfold.language.step_grammar import Body, LeafGrammar, StepGrammar, WrittenStep, read_body
from fanfold.language.tables import (
    IDENTIFIER,
    Entries,
    Notes,
    Shape,
    duration_ms,
    kind_of,
    quoted,
    read_entries,
)
from fanfold.language.template import Hole, TemplateError, parse_template
from fanfold.language.tree import Mapping, Scalar, plain

Load: TypeAlias = Callable[[], StepGrammar]
"""Loads the grammar of a type on demand, because most recipes have steps of only one or two types."""


class StepTable:
    """Types by name, in the order of the reference page."""

    def __init__(self, *types: tuple[StepSyntax, Load]) -> None:
        self.grammars: dict[str, Load] = {}
        self.syntaxes: dict[str, StepSyntax] = {}
        self.deciding: dict[str, str] = {}
        """Maps a key to the type that it decides."""
        self.hinting: dict[str, str] = {}
        """The same for keys that decide only if no other key does."""
        self.shape: Shape
        """All keys of a step."""
        for syntax, load in types:
            self._put(syntax, load)
        self.shape = step_shape(self.syntaxes)

    def add(self, grammar: StepGrammar) -> None:
        """Add another type."""
        self._put(grammar.syntax, lambda: grammar)
        self.shape = step_shape(self.syntaxes)

    def _put(self, syntax: StepSyntax, load: Load) -> None:
        self.grammars[syntax.name] = load
        self.syntaxes[syntax.name] = syntax
        self.deciding |= dict.fromkeys(syntax.decided_by, syntax.name)
        self.hinting |= dict.fromkeys(syntax.hinted_by, syntax.name)


@cache
def _agent() -> StepGrammar:

    return AgentGrammar()


@cache
def _function() -> StepGrammar:

    return FunctionGrammar()


@cache
def _command() -> StepGrammar:

    return CommandGrammar()


@cache
def _workflow() -> StepGrammar:

    return WorkflowGrammar()


@cache
def _set() -> StepGrammar:

    return SetGrammar()


@cache
def _ask() -> StepGrammar:

    return AskGrammar()


@cache
def _wait() -> StepGrammar:

    return WaitGrammar()


@cache
def _deliver() -> StepGrammar:

    return DeliverGrammar()


@cache
def _end() -> StepGrammar:

    return EndGrammar()


@cache
def _approval() -> StepGrammar:

    return ApprovalGrammar()


@cache
def _group() -> StepGrammar:

    return GroupGrammar()


STEPS = StepTable(
    (keys.AGENT, _agent),
    (keys.FUNCTION, _function),
    (keys.COMMAND, _command),
    (keys.WORKFLOW, _workflow),
    (keys.SET, _set),
    (keys.ASK, _ask),
    (keys.WAIT, _wait),
    (keys.SYNTAXES_DELIVER, _deliver),
    (keys.END, _end),
    (keys.APPROVAL, _approval),
    (keys.GROUP, _group),
)


def roles_of(step: Step) -> tuple[str, ...]:
    """Return the roles that may work for a step of a plan, as it names them."""
    load = STEPS.grammars.get(step.type)
    grammar = load() if load is not None else None
    return read_body(grammar.body, step).roles() if isinstance(grammar, LeafGrammar) else ()


# -----------------------------------------------------------------------------------------------------------
# Steps that contain or call other steps: groups and workflow calls. The kernel knows these two itself.


class WorkflowGrammar(StepGrammar):
    syntax = WORKFLOW

    def check(self, step: WrittenStep) -> None:
        """Record the call; its target is compiled when this file was read."""
        if "workflow" in step.entries.nodes:
            step.unit.calls.append(step.draft)


class GroupGrammar(StepGrammar):
    syntax = GROUP

    def check(self, step: WrittenStep) -> None:
        """Check the group's output; its steps are checked separately."""
        from fanfold.language.known_values import Viewpoint, known_of_output

        draft = step.draft
        if "output" in draft.entries.nodes and draft.inner is not None:
            inside = TextPlace(draft, draft.inner, draft.inner.names)
            output = read_output(draft.entries.nodes["output"], step.unit.references, inside)
            viewpoint = Viewpoint(step.unit.inputs, draft, draft.inner)
            draft.facts.output = output
            draft.facts.gives = lambda: known_of_output(output, viewpoint)


# -----------------------------------------------------------------------------------------------------------
# Agent steps: a role with a prompt.

_ONE_STEP_EACH = "write a step for each, with a `when`; or choose one for the run with --model"


class AgentBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = AGENT
    agent: str = "default"
    """Role name, without its version."""
    agent_version: str | None = None
    pick: str = ""
    """A template that selects one of `agents`; then `agent` is the one with the most permissions."""
    agents: tuple[str, ...] = ()
    prompt: str | None = None
    """None: the role's own prompt template is used with the step's `inputs`."""
    model: str | None = None
    reasoning_effort: str | None = None
    max_turns: int | None = None
    tools: tuple[str, ...] | None = None
    idle_timeout_ms: int | None = None
    continue_from: str | None = None
    """The agent step whose conversation continues here."""
    summaries: tuple[str, ...] = ()
    """Dependencies whose summary is passed, because the prompt does not insert them itself."""
    purpose: Literal["work", "review", "critic", "fold", "lead"] = "work"
    """`lead`: a person talks to it. It uses no slot, because it waits for steps that do."""

    @property
    def role(self) -> str:
        """The role as the step names it, with its version if there is one."""
        return self.agent if self.agent_version is None else f"{self.agent}@{self.agent_version}"

    def traits(self) -> Traits:
        return Traits(slot=self.purpose != "lead", role=self.agent, continues=self.continue_from)

    def roles(self) -> tuple[str, ...]:
        return self.agents or (self.role,)


class AgentGrammar(LeafGrammar[AgentBody]):
    body = AgentBody

    def read(self, step: WrittenStep) -> AgentBody:
        entries, unit = step.entries, step.unit
        node = entries.nodes.get("agent")
        picked = node if isinstance(node, Scalar) and "{{" in node.text else None
        listed = [find_role(one.text, one, unit.around, unit.notes) for one in entries.scalars("agents")]
        _check_listed(step, picked, listed)
        role = _role(entries, unit) if picked is None else _widest(listed)
        step.draft.facts.role = role
        for key in ("model", "reasoning_effort"):
            warn_of_braces(entries.nodes.get(key), f'"{key}"', _ONE_STEP_EACH, unit.notes)
        for one in listed or [role]:
            _check_tools(entries, one.facts, unit)
            _check_isolation(step, one)
        return AgentBody(
            agent=role.name,
            agent_version=role.version,
            pick="" if picked is None else unit.references.template(picked, step.place),
            agents=tuple(one.text for one in entries.scalars("agents")) if picked is not None else (),
            prompt=_prompt(step, role),
            idle_timeout_ms=entries.milliseconds("idle_timeout"),
            continue_from=_continued(step),
            model=entries.text("model") or unit.defaults.model,
            reasoning_effort=entries.text("reasoning_effort"),
            max_turns=entries.integer("max_turns"),
            tools=tuple(item.text for item in entries.scalars("tools")) if "tools" in entries.nodes else None,
        )

    def complete(self, draft: Draft, said: AgentBody) -> AgentBody:
        if draft.entries.text("context") == "none":
            return said
        summaries = tuple(name for name in draft.facts.depends_on if name not in draft.placed)
        return replace(said, summaries=summaries) if summaries else said


def _role(entries: Entries, unit: Unit) -> NamedRole:
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        return find_role(node.text, node, unit.around, unit.notes)
    return find_role(unit.defaults.agent or "default", None, unit.around, unit.notes, entries.head())


def _check_isolation(step: WrittenStep, role: NamedRole) -> None:
    """Refuse the shared workspace for an isolated role that can write."""
    entries, notes = step.entries, step.notes
    if not role.facts.isolated:
        return
    mode = entries.text("workspace_mode") or step.unit.defaults.workspace_mode
    if mode == "shared" and not why_read_only(step.draft, role.facts, role.name):
        at = entries.nodes.get("workspace_mode") or entries.head()
        message = (
            f"role {quoted(role.name)} (isolation, hooks) works in a tree of its own, not in the shared one"
        )
        hint = "say `workspace_mode: isolated` for this step"
        notes.error("recipe.conflicting_keys", message, at, hint)


def _check_listed(step: WrittenStep, picked: Scalar | None, listed: list[NamedRole]) -> None:
    """Check that a template has the list of its possible roles, and the list has a template."""
    entries, notes = step.entries, step.notes
    if picked is not None and not listed and not entries.has("agents"):
        hint = "list them: agents: [explorer, worker]"
        notes.error(
            "recipe.missing_key", "a role that is a template needs the roles it may give", picked, hint
        )
    elif entries.has("agents") and picked is None:
        message = '"agents" belongs to a template in "agent", which is not here'
        notes.error("recipe.conflicting_keys", message, entries.keys["agents"])
    elif "agents" in entries.nodes and not listed:
        notes.error("recipe.bad_value", '"agents" must not be empty', entries.nodes["agents"])


def _widest(listed: list[NamedRole]) -> NamedRole:
    """Return the role with the most permissions, which determines the step's claims and cost."""
    writers = [one for one in listed if not one.facts.read_only]
    return (writers or listed or [NamedRole("default", None, UNKNOWN, known=False)])[0]


def _continued(step: WrittenStep) -> str | None:
    """Return the step whose conversation continues here; the edge to it counts as written."""
    node, draft, notes = step.entries.nodes.get("continue"), step.draft, step.notes
    if not isinstance(node, Scalar):
        return None
    target = draft.scope.by_id.get(node.text)
    problem = hint = ""
    if target is None:
        hint = notes.did_you_mean(node.text, draft.scope.by_id.keys() - {draft.id})
        message = f"step {quoted(draft.id)} continues {quoted(node.text)}, which does not exist here"
        notes.error("recipe.unknown_step", message, node, hint)
    elif target.type != "agent":
        problem = f"{quoted(node.text)} is no agent step, and has no conversation"
    elif any(target.entries.has(key) or step.entries.has(key) for key in ("for_each", "repeat")):
        problem = "a conversation goes on from one step to one step, not from or into a map or a loop"
    elif _meant(target.entries, step.unit) != _meant(step.entries, step.unit):
        problem = f"{quoted(node.text)} has another role, and a conversation belongs to one"
        named = target.entries.text("agent")
        hint = f"write agent: {named}" if named and not step.entries.has("agent") else ""
    elif draft is target:
        problem = "a step cannot go on with its own conversation"
    if problem:
        notes.error("recipe.conflicting_keys", problem, node, hint)
    elif target is not None:
        target.used = True
        draft.written.setdefault(target.id, node)
        draft.placed.add(target.id)
    return node.text


def _meant(entries: Entries, unit: Unit) -> RoleFacts | str:
    """Return the role that a step names, under any of its names; a template is returned as text."""
    named = entries.text("agent") or unit.defaults.agent or "default"
    name, _, version = named.partition("@")
    return unit.around.roles.find(name, version or None) or named


class _FromFile(Scalar):
    """Text from another file: its problems are shown where the file is named."""

    __slots__ = ()

    def span(self, i: int, j: int) -> tuple[int, int]:
        del i, j
        return self.start, self.end


def _read_prompt(step: WrittenStep) -> str | None:
    """Return the template in the file of `prompt_file`, with checked references."""
    node, notes = step.entries.nodes.get("prompt_file"), step.notes
    if not isinstance(node, Scalar):
        return None
    ref = node.text if "/" in node.text else f"./{node.text}"
    try:
        text = step.unit.around.library.find(ref, step.unit.source.file).data.decode()
    except FanfoldError as error:
        notes.error("recipe.bad_value", f"the prompt cannot be read: {error.message}", node, error.hint)
        return None
    except UnicodeDecodeError:
        notes.error("recipe.encoding", f"{quoted(node.text)} is not UTF-8", node)
        return None
    if not text.strip():
        notes.error("recipe.bad_value", f"{quoted(node.text)} is empty", node)
    place = TextPlace(step.place.draft, step.place.scope, step.place.names, placing=True)
    written = _FromFile(text, text, node.start, node.end, "", "")
    return step.unit.references.template(written, place)


def _prompt(step: WrittenStep, role: NamedRole) -> str | None:
    entries, notes = step.entries, step.notes
    prompt = step.template("prompt", placing=True)
    if prompt is not None and not prompt.strip():
        notes.error("recipe.bad_value", "the prompt is empty", entries.nodes["prompt"])
    if not entries.lacks("prompt"):
        return prompt
    if not entries.lacks("prompt_file"):
        return _read_prompt(step)
    if role.facts.prompt_template:
        _check_prompt_template(step.draft, role.name, role.facts.prompt_template, notes)
    elif entries.lacks("inputs") and role.known:
        message = f"step {quoted(step.draft.id)} has neither {quoted('prompt')} nor {quoted('inputs')}"
        hint = f"role {quoted(role.name)} has no prompt template of its own"
        notes.error("recipe.missing_key", message, entries.head(), hint)
    return None


def _check_prompt_template(draft: Draft, role: str, text: str, notes: Notes) -> None:
    """Check that the inputs of a step include all values of the role's own template."""
    given = draft.entries.nodes.get("inputs")
    known = [key.text for key, _ in given.entries] if isinstance(given, Mapping) else []
    whose = f"the prompt template of role {quoted(role)}"
    try:
        paths = [part.path for part in parse_template(text) if isinstance(part, Hole)]
    except TemplateError as error:
        notes.error("recipe.bad_template", f"{whose} cannot be used: {error.message}", draft.entries.head())
        return
    for path in paths:
        if path.root != "inputs":
            message = f"{whose} asks for {quoted(path.text)}, and may ask for inputs alone"
            notes.error("recipe.bad_template", message, draft.entries.head())
        elif path.parts[0] not in known:
            message = f"{whose} asks for {quoted(path.text)}, which step {quoted(draft.id)} does not give"
            hint = notes.did_you_mean(str(path.parts[0]), known) or "write it in the step's inputs"
            notes.error("recipe.bad_template", message, draft.entries.head(), hint)


def _check_tools(entries: Entries, role: RoleFacts, unit: Unit) -> None:
    allowed, around, notes = role.tools, unit.around, unit.notes
    for item in entries.scalars("tools"):
        if allowed is None and role.backend is None and not around.is_tool(item.text):
            names = around.tool_names()
            near = notes.did_you_mean(item.text, names)
            hint = near or f"there are {', '.join(names)}"
            notes.error("recipe.bad_value", f"there is no tool {quoted(item.text)}", item, hint)
        if allowed is not None and item.text not in allowed:
            hint = notes.did_you_mean(item.text, allowed) or "a step may only narrow the tools of its role"
            notes.error("recipe.bad_value", f"the role has no tool {quoted(item.text)}", item, hint)


# -----------------------------------------------------------------------------------------------------------
# Approval steps: a question that a person answers with yes, no, or one of several choices.


class ApprovalBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = APPROVAL
    approve: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None

    def traits(self) -> Traits:
        return Traits(
            slot=False,
            workspace="none",
            waits="person",
            default=self.default,
            rejectable=not self.choices,
        )


class ApprovalGrammar(LeafGrammar[ApprovalBody]):
    body = ApprovalBody

    def read(self, step: WrittenStep) -> ApprovalBody:
        choices = tuple(item.text for item in step.entries.scalars("choices"))
        _check_choices(step.entries, choices, step.notes)
        return ApprovalBody(
            approve=_question(step),
            show=step.template("show"),
            choices=choices,
            default=step.entries.text("default"),
        )


def _question(step: WrittenStep) -> str:
    entries = step.entries
    if not entries.has("gate"):
        return step.template("approve") or ""
    return step.template("prompt") or entries.text("description") or f"Go on with {step.draft.id}?"


def _check_choices(entries: Entries, choices: tuple[str, ...], notes: Notes) -> None:
    if isinstance(entries.nodes.get("choices"), Scalar):
        message = "the choices of an approval are a list of text"
        hint = "an `ask` step takes an expression"
        notes.error("recipe.bad_type", message, entries.nodes["choices"], hint)
    elif "choices" in entries.nodes and (not choices or len(set(choices)) < len(choices) or "" in choices):
        message = "choices must be different from each other, and at least one"
        notes.error("recipe.bad_value", message, entries.nodes["choices"])
    default = entries.nodes.get("default")
    allowed = choices or YES_OR_NO
    readable = "choices" in entries.nodes or not entries.has("choices")
    if isinstance(default, Scalar) and default.text not in allowed and readable:
        hint = notes.did_you_mean(default.text, allowed) or "use one of " + ", ".join(allowed)
        notes.error("recipe.bad_value", f"{quoted(default.text)} is no choice", default, hint)
    elif default is not None and not (isinstance(default, Scalar) and isinstance(default.value, str)):
        notes.error("recipe.bad_type", f'"default" must be text, not {kind_of(default)}', default)


# -----------------------------------------------------------------------------------------------------------
# Ask steps: a question that a person answers with text or data.

BY_TIMEOUT = "default"
"""The trait only means that there is a default; its value is in the body."""


class AskBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = ASK
    ask: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    choose_from: str = ""
    """An expression instead of choices."""
    default: JSON = None
    has_default: bool = False

    def traits(self) -> Traits:
        default = BY_TIMEOUT if self.has_default else None
        return Traits(slot=False, workspace="none", waits="person", default=default)


class AskGrammar(LeafGrammar[AskBody]):
    body = AskBody

    def read(self, step: WrittenStep) -> AskBody:
        entries, node = step.entries, step.entries.nodes.get("choices")
        choices = tuple(item.text for item in entries.scalars("choices"))
        if node is not None and not isinstance(node, Scalar):
            check_choices(step, choices)
        if entries.has("choices") and entries.has("output_schema"):
            message = "a question has choices or an output_schema, not both"
            step.notes.error("recipe.conflicting_keys", message, entries.keys["choices"])
        _check_default(step, choices)
        computed = node if isinstance(node, Scalar) else None
        return AskBody(
            ask=step.template("ask") or "",
            show=step.template("show"),
            choices=choices,
            choose_from=""
            if computed is None
            else step.unit.references.expression(computed, step.place, "list"),
            default=plain(entries.nodes["default"]) if "default" in entries.nodes else None,
            has_default=entries.has("default"),
        )


def check_choices(step: WrittenStep, choices: tuple[str, ...]) -> None:
    """Check that there are choices, and that they differ."""
    if not choices or len(set(choices)) < len(choices) or "" in choices:
        message = "choices must be different from each other, and at least one"
        step.notes.error("recipe.bad_value", message, step.entries.nodes["choices"])


def _check_default(step: WrittenStep, choices: tuple[str, ...]) -> None:
    node, notes = step.entries.nodes.get("default"), step.notes
    if node is None:
        return
    value, schema = plain(node), step.draft.facts.output_schema
    if schema is not None:
        if problem := misfits(schema, value):
            notes.error("recipe.bad_value", f"the default does not fit the output_schema: {problem}", node)
    elif choices and value not in choices:
        shown = node.text if isinstance(node, Scalar) else "this"
        hint = notes.did_you_mean(shown, choices) or "use one of " + ", ".join(choices)
        notes.error("recipe.bad_value", f"{quoted(shown)} is no choice", node, hint)
    elif not step.entries.has("choices") and not isinstance(value, str):
        hint = "an answer is text where there is no output_schema"
        notes.error("recipe.bad_type", '"default" must be text', node, hint)


# -----------------------------------------------------------------------------------------------------------
# Command steps: a program and its arguments, or a script for the shell.


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = COMMAND
    run: tuple[str, ...] = ()
    """Argument templates; one argument stays one argument. Empty if there is a script instead."""
    shell: str = ""
    """A script instead of arguments. The step's inputs are its variables."""
    env: dict[str, str] = field(default_factory=dict)
    env_vars: tuple[str, ...] = ()
    network: bool = False


class CommandGrammar(LeafGrammar[CommandBody]):
    body = CommandBody

    def read(self, step: WrittenStep) -> CommandBody:
        entries, references, place = step.entries, step.unit.references, step.place
        return CommandBody(
            run=read_arguments(entries, references, place) if "run" in entries.nodes else (),
            shell=read_script(entries, references.notes),
            env=read_environment(entries, references, place),
            env_vars=read_own_variables(entries, references.notes),
            network=entries.flag("network"),
        )


# -----------------------------------------------------------------------------------------------------------
# Deliver steps: the merged changes of the run, as a commit on a separate branch, pushed, as a pull request.


class PullRequestWish(Struct, frozen=True, omit_defaults=True, gc=False):
    title: str
    body: str = ""
    base: str = ""
    draft: bool = False


class DeliverBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.SYNTAXES_DELIVER
    branch: str
    message: str
    push: bool = False
    pull_request: PullRequestWish | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="claims")


class DeliverGrammar(LeafGrammar[DeliverBody]):
    body = DeliverBody

    def read(self, step: WrittenStep) -> DeliverBody:
        node, notes, draft = step.entries.nodes.get("deliver"), step.notes, step.draft
        entries = read_entries(node, DELIVER, notes) if node is not None else None
        if entries is None:
            return DeliverBody("", "")
        if draft.narrowed:
            message = "a deliver step changes a repository, and what is around it only reads"
            notes.error("recipe.conflicting_keys", message, step.entries.keys["deliver"])
        patterns, templated = read_patterns(
            entries.scalars("paths"), draft, step.unit.references, writes=False
        )
        draft.facts.write_set = patterns
        draft.facts.templated_sets |= templated
        wanted, branch = entries.nodes.get("pull_request"), entries.nodes.get("branch")
        if wanted is not None and entries.has("push") and not entries.flag("push"):
            message = "a pull request needs its branch on the server, and `push: false` keeps it here"
            notes.error("recipe.conflicting_keys", message, entries.keys["push"], 'leave "push" out')
        if isinstance(branch, Scalar) and "{{" not in branch.text and (why := check_branch_name(branch.text)):
            notes.error("recipe.bad_value", why, branch)
        inner = read_entries(wanted, PULL_REQUEST, notes) if wanted is not None else None
        return DeliverBody(
            branch=_text(step, entries, "branch"),
            message=_text(step, entries, "message"),
            push=entries.flag("push"),
            pull_request=None if inner is None else _pull_request(step, inner),
        )


def _pull_request(step: WrittenStep, entries: Entries) -> PullRequestWish:
    title, body, base = (_text(step, entries, key) for key in ("title", "body", "base"))
    return PullRequestWish(title, body, base, entries.flag("draft"))


def _text(step: WrittenStep, entries: Entries, key: str) -> str:
    node = entries.nodes.get(key)
    return step.unit.references.template(node, step.place) if isinstance(node, Scalar) else ""


# -----------------------------------------------------------------------------------------------------------
# End steps: the run finishes when one of them is reached.

Ending = Literal["completed", "failed"]


class EndBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = END
    end: Ending = "completed"
    message: str = ""
    output: Output | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", ends=self.end)


class EndGrammar(LeafGrammar[EndBody]):
    body = EndBody

    def read(self, step: WrittenStep) -> EndBody:
        output = step.entries.nodes.get("output")
        return EndBody(
            end="failed" if step.entries.text("end") == "failed" else "completed",
            message=step.template("message") or "",
            output=None if output is None else read_output(output, step.unit.references, step.place),
        )


# -----------------------------------------------------------------------------------------------------------
# Function steps: a Python callable, registered by name.


class FunctionBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = FUNCTION
    handler: str


class FunctionGrammar(LeafGrammar[FunctionBody]):
    body = FunctionBody

    def read(self, step: WrittenStep) -> FunctionBody:
        unit, node = step.unit, step.entries.nodes.get("handler")
        if isinstance(node, Scalar) and not unit.around.is_handler(node.text):
            hint = unit.notes.did_you_mean(node.text, list(unit.around.handler_names()))
            message = f"there is no handler {quoted(node.text)}"
            hint = hint or "register it with @fanfold.function, or name it package.module:callable"
            unit.notes.error("recipe.unknown_handler", message, node, hint)
        return FunctionBody(handler=step.entries.text("handler") or "")


# -----------------------------------------------------------------------------------------------------------
# Set steps: computed values, each under its name.


class SetBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SET
    set: dict[str, str]

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none")


class SetGrammar(LeafGrammar[SetBody]):
    body = SetBody

    def read(self, step: WrittenStep) -> SetBody:
        from fanfold.language.known_values import Viewpoint, known_of_expression

        notes, pairs = step.notes, step.entries.pairs("set")
        if "set" in step.entries.nodes and not pairs:
            notes.error("recipe.bad_value", '"set" must not be empty', step.entries.nodes["set"])
        values: dict[str, str] = {}
        for word, value in pairs:
            if not IDENTIFIER.fullmatch(word.text):
                hint = "use letters, digits, _ and -, beginning with a letter or _"
                message = f"{quoted(word.text)} cannot be the name of a value"
                notes.error("recipe.bad_value", message, word, hint)
            if isinstance(value, Scalar):
                values[word.text] = step.unit.references.expression(value, step.place, "any")
        viewpoint = Viewpoint(step.unit.inputs, step.draft, step.draft.scope)
        step.draft.facts.gives = lambda: ObjectOf(
            {name: known_of_expression(text, viewpoint.look) for name, text in values.items()}
        )
        return SetBody(values)


# -----------------------------------------------------------------------------------------------------------
# Wait steps: only time passes.


class WaitBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = WAIT
    delay_ms: int = 0
    until: str = ""
    """An expression instead of a duration."""

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", waits="timer")


class WaitGrammar(LeafGrammar[WaitBody]):
    body = WaitBody

    def read(self, step: WrittenStep) -> WaitBody:
        node = step.entries.nodes.get("wait")
        if not isinstance(node, Scalar):
            return WaitBody()
        if step.entries.has("timeout"):
            message = '"timeout" means nothing on a wait step'
            hint = "the time it waits is all the time it has"
            step.notes.error("recipe.conflicting_keys", message, step.entries.keys["timeout"], hint)
        delay_ms = duration_ms(node.value)
        if delay_ms is None:
            return WaitBody(until=step.unit.references.expression(node, step.place, "moment"))
        if not 0 <= delay_ms <= MAX_DURATION_MS:
            message = f'"wait" is {node.text}; it must be from 0s to {MAX_DURATION_MS // 3_600_000}h'
            step.notes.error("recipe.limit", message, node)
        return WaitBody(delay_ms)
