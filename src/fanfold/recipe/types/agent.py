"""Agent steps: a role is given a prompt."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec.structs import replace

from fanfold.kernel.plan import Traits
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import NamedRole, find_role
from fanfold.recipe.language.known_outputs import TEXT
from fanfold.recipe.language.step_syntax import ATTEMPT_KEYS, StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.notes import Notes, quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.text.trees.tree import Mapping, Scalar

SYNTAX = StepSyntax(
    name="agent",
    decided_by=("prompt",),
    hinted_by=("agent",),
    keys=(
        Key("agent", "text", "Role, `name` or `name@version`.", default="default"),
        Key("subagent", "text", "Another word for `agent`.", alias="agent"),
        Key("role", "text", "Another word for `agent`.", alias="agent"),
        Key("prompt", "template", "The task. Without one the role's own prompt template is used."),
        Key("task", "template", "Another word for `prompt`.", alias="prompt"),
        Key("model", "text", "Model to use.", default="the role's"),
        Key("reasoning_effort", "text", "How hard the model thinks.", "the role's"),
        Key("max_turns", "integer", "Turns of the session.", "the role's", 1, 1_000),
        Key("tools", "texts", "Tools allowed; may only narrow the role's.", "the role's"),
    ),
    takes=ATTEMPT_KEYS | {"inputs"},
    workspace="own",
    writes=True,
    answers=True,
    gives=TEXT,
)


class AgentBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SYNTAX
    agent: str = "default"
    """Role name, without its version."""
    agent_version: str | None = None
    prompt: str | None = None
    """None: the role's own prompt template is used with the step's `inputs`."""
    model: str | None = None
    reasoning_effort: str | None = None
    max_turns: int | None = None
    tools: tuple[str, ...] | None = None
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
        return (self.role,)


class AgentGrammar(LeafGrammar[AgentBody]):
    body = AgentBody

    def read(self, step: Written) -> AgentBody:
        entries, unit = step.entries, step.unit
        role = _role(entries, unit)
        step.draft.facts.role = role
        _check_tools(entries, role.facts.tools, unit.notes)
        return AgentBody(
            agent=role.name,
            agent_version=role.version,
            prompt=_prompt(step, role),
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
    return find_role(unit.defaults.agent or "default", None, unit.around, unit.notes)


def _prompt(step: Written, role: NamedRole) -> str | None:
    entries, notes = step.entries, step.notes
    prompt = step.template("prompt", placing=True)
    if prompt is not None and not prompt.strip():
        notes.error("recipe.bad_value", "the prompt is empty", entries.nodes["prompt"])
    if not entries.lacks("prompt"):
        return prompt
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


def _check_tools(entries: Entries, allowed: tuple[str, ...] | None, notes: Notes) -> None:
    for item in entries.scalars("tools"):
        if allowed is not None and item.text not in allowed:
            hint = notes.did_you_mean(item.text, allowed) or "a step may only narrow the tools of its role"
            notes.error("recipe.bad_value", f"the role has no tool {quoted(item.text)}", item, hint)
