"""Agent steps: a role is given a prompt."""

# Annotations are no texts here: every run reads such a body, and would compile each of them for it.
from typing import ClassVar, Literal

from msgspec.structs import replace

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import Traits
from fanfold.recipe.checks.look_alikes import warn_of_braces
from fanfold.recipe.checks.postures import why_read_only
from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import UNKNOWN, NamedRole, find_role
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import AGENT
from fanfold.recipe.surroundings import RoleFacts
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.notes import Notes, quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.text.trees.tree import Mapping, Scalar

_ONE_STEP_EACH = "write a step for each, with a `when`; or choose one for the run with --model"


class AgentBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = AGENT
    agent: str = "default"
    """Role name, without its version."""
    agent_version: str | None = None
    pick: str = ""
    """A template that gives the role, one of `agents`; then `agent` is the one of them that may do most."""
    agents: tuple[str, ...] = ()
    prompt: str | None = None
    """None: the role's own prompt template is used with the step's `inputs`."""
    model: str | None = None
    reasoning_effort: str | None = None
    max_turns: int | None = None
    tools: tuple[str, ...] | None = None
    idle_timeout_ms: int | None = None
    continue_from: str | None = None
    """The agent step whose conversation goes on here."""
    summaries: tuple[str, ...] = ()
    """Dependencies whose summary is handed over because the prompt does not place them itself."""
    purpose: Literal["work", "review", "critic", "fold", "lead"] = "work"
    """`lead`: a person talks to it. It takes no slot, for it waits for those that do."""

    @property
    def role(self) -> str:
        """The role as the step names it: with its version, if it asks for one."""
        return self.agent if self.agent_version is None else f"{self.agent}@{self.agent_version}"

    def traits(self) -> Traits:
        return Traits(slot=self.purpose != "lead", role=self.agent, continues=self.continue_from)

    def roles(self) -> tuple[str, ...]:
        return self.agents or (self.role,)


class AgentGrammar(LeafGrammar[AgentBody]):
    body = AgentBody

    def read(self, step: Written) -> AgentBody:
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
        summaries = tuple(name for name in draft.facts.depends_on if name not in draft.placed)
        return replace(said, summaries=summaries) if summaries else said


def _role(entries: Entries, unit: Unit) -> NamedRole:
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        return find_role(node.text, node, unit.around, unit.notes)
    return find_role(unit.defaults.agent or "default", None, unit.around, unit.notes, entries.head())


def _check_isolation(step: Written, role: NamedRole) -> None:
    """A role that says so never writes in the project itself."""
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


def _check_listed(step: Written, picked: Scalar | None, listed: list[NamedRole]) -> None:
    """A template needs the roles that it may give, and they need a template."""
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
    """The one that may do most: what a step claims and may cost is judged by it."""
    writers = [one for one in listed if not one.facts.read_only]
    return (writers or listed or [NamedRole("default", None, UNKNOWN, known=False)])[0]


def _continued(step: Written) -> str | None:
    """The step whose conversation goes on here; the edge to it is as good as written."""
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
    """The role that a step names, under whichever of its names; a template stands for itself."""
    named = entries.text("agent") or unit.defaults.agent or "default"
    name, _, version = named.partition("@")
    return unit.around.roles.find(name, version or None) or named


class _FromFile(Scalar):
    """Text that stands in another file: whatever is wrong in it is shown where the file is named."""

    __slots__ = ()

    def span(self, i: int, j: int) -> tuple[int, int]:
        del i, j
        return self.start, self.end


def _read_prompt(step: Written) -> str | None:
    """The template in the file that `prompt_file` names, its references checked."""
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


def _prompt(step: Written, role: NamedRole) -> str | None:
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
    """What a role's own template asks for must be among the inputs of the step."""
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
