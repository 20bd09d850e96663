"""The step types of recipes: their table, and the settings of each leaf type.

The keys of a type are in `keys`. How its steps are checked and executed is one class in the `steps` package,
which is passed in with `StepTable.load`. A type that is added to the table is read, checked, included in the
schema for editors and explained in the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from fanfold.errors import BugError
from fanfold.kernel.plan import PLAIN, Action, LeafAction, Step, Traits
from fanfold.language import keys
from fanfold.language.checks import Unit
from fanfold.language.draft import Draft, DraftScope
from fanfold.language.keys import REPEAT, StepSyntax, step_shape
from fanfold.language.references import TextPlace
from fanfold.language.tables import (
    Entries,
    Key,
    Notes,
    Shape,
    listed,
    quoted,
    read_entries,
    read_inner,
    with_article,
)
from fanfold.language.template import TemplateError, in_expression, parse_path
from fanfold.language.tree import Node, Scalar

# -----------------------------------------------------------------------------------------------------------
# The body of a leaf step: the settings of its type, typed here and plain JSON in the plan.
#
# The kernel stores bodies without reading them. Code that knows a type reads its body with `read_body`. All
# other code uses the traits, which are next to the body in the plan.


class Body(Struct, frozen=True, omit_defaults=True, gc=False):
    """The settings of one step; `syntax` is their notation in recipes."""

    syntax: ClassVar[StepSyntax]

    def traits(self) -> Traits:
        """Return how a step with these settings is scheduled."""
        workspace = self.syntax.workspace
        return PLAIN if workspace == PLAIN.workspace else Traits(workspace=workspace)

    def roles(self) -> tuple[str, ...]:
        """Return the roles that may work for it; they are frozen with the run."""
        return ()

    def action(self) -> LeafAction:
        """Return the action of a step with these settings."""
        # Converted to JSON, so that a new plan equals one that was read.
        return LeafAction(self.syntax.name, msgspec.json.decode(msgspec.json.encode(self)), self.traits())


B = TypeVar("B", bound=Body)


def read_body(shape: type[B], step: Step) -> B:
    """Return the settings of a step of this type."""
    action = step.action
    assert isinstance(action, LeafAction) and action.type == shape.syntax.name
    return msgspec.convert(action.body, shape)


def find_body(shape: type[B], step: Step) -> B | None:
    """Return the settings of a step; None if it has another type."""
    return read_body(shape, step) if step.type == shape.syntax.name else None


class WrittenStep(Struct, frozen=True):
    """A step as its author wrote it, and the place of its texts."""

    draft: Draft
    unit: Unit
    place: TextPlace

    @property
    def entries(self) -> Entries:
        return self.draft.entries

    @property
    def notes(self) -> Notes:
        """Where problems are reported."""
        return self.unit.notes

    def template(self, key: str, *, placing: bool = False) -> str | None:
        """Return the template of a key with checked references; None if it is missing or invalid.

        `placing`: the named values are inserted completely for an agent, which then needs no summary of them.
        """
        node = self.entries.nodes.get(key)
        if not isinstance(node, Scalar):
            return None
        place = self.place
        if placing:
            place = TextPlace(place.draft, place.scope, place.names, placing=True)
        return self.unit.references.template(node, place)


class StepGrammar(ABC):
    """One type of step in recipes."""

    syntax: StepSyntax

    @abstractmethod
    def check(self, step: WrittenStep) -> None:
        """Check the keys of the step's type, and store the result in the draft's facts."""


class LeafGrammar(StepGrammar, Generic[B]):
    """A type whose steps do the work themselves, with settings in a body."""

    body: type[B]

    @property
    def syntax(self) -> StepSyntax:  # type: ignore[override]  # it never changes
        return self.body.syntax

    def check(self, step: WrittenStep) -> None:
        step.draft.facts.body = self.from_recipe(step)

    @abstractmethod
    def from_recipe(self, step: WrittenStep) -> B:
        """Return the settings of the step; problems are reported, and invalid parts may be missing."""

    def complete(self, _draft: Draft, settings: B) -> B:
        """Return the final settings, when the edges are known and the recipe has no errors."""
        return settings

    def action(self, draft: Draft) -> Action:
        """Return the action of a checked step."""
        settings = draft.facts.body
        assert isinstance(settings, self.body)
        return self.complete(draft, settings).action()


# -----------------------------------------------------------------------------------------------------------
# The table of step types.

Load: TypeAlias = Callable[[], StepGrammar]
"""Loads a step type on demand, because most recipes have steps of only one or two types."""


class StepTable:
    """Types by name, in the order of the reference page."""

    def __init__(self, *types: StepSyntax) -> None:
        self.grammars: dict[str, Load] = {}
        self.syntaxes: dict[str, StepSyntax] = {}
        self.deciding: dict[str, str] = {}
        """Maps a key to the type that it decides."""
        self.hinting: dict[str, str] = {}
        """The same for keys that decide only if no other key does."""
        self.shape: Shape
        """All keys of a step."""
        self._put(types)

    def load(self, grammars: Mapping[str, Load]) -> None:
        """Set how the types of the table are loaded."""
        self.grammars.update(grammars)

    def add(self, grammar: StepGrammar) -> None:
        """Add another type."""
        self.grammars[grammar.syntax.name] = lambda: grammar
        self._put([grammar.syntax])

    def grammar(self, name: str) -> StepGrammar:
        """Return the type with this name."""
        if (load := self.grammars.get(name)) is None:
            raise BugError("step.not_loaded", f"the step type {name} was not passed to the compiler")
        return load()

    def _put(self, types: Iterable[StepSyntax]) -> None:
        for syntax in types:
            self.syntaxes[syntax.name] = syntax
            self.deciding |= dict.fromkeys(syntax.decided_by, syntax.name)
            self.hinting |= dict.fromkeys(syntax.hinted_by, syntax.name)
        self.shape = step_shape(self.syntaxes)


STEPS = StepTable(
    keys.AGENT, keys.FUNCTION, keys.COMMAND, keys.WORKFLOW, keys.SET, keys.ASK, keys.WAIT,
    keys.SYNTAXES_DELIVER, keys.END, keys.APPROVAL, keys.GROUP,
)  # fmt: skip


def roles_of(step: Step) -> tuple[str, ...]:
    """Return the roles that may work for a step of a plan, as it names them."""
    grammar = STEPS.grammar(step.type) if step.type in STEPS.grammars else None
    return read_body(grammar.body, step).roles() if isinstance(grammar, LeafGrammar) else ()


# -----------------------------------------------------------------------------------------------------------
# Agent steps: a role with a prompt.


class AgentBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.AGENT
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
    may_ask: bool = False
    """Whether the agent can ask a person a question."""
    skills: tuple[str, ...] = ()
    """Skills of the agent besides those of its role."""
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


# -----------------------------------------------------------------------------------------------------------
# Approval steps: a question that a person answers with yes, no, or one of several choices.


class ApprovalBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.APPROVAL
    approve: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None

    def traits(self) -> Traits:
        return Traits(
            slot=False, workspace="none", waits="person", default=self.default, rejectable=not self.choices
        )


# -----------------------------------------------------------------------------------------------------------
# Command steps: a program and its arguments, or a script for the shell.


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.COMMAND
    run: tuple[str, ...] = ()
    """Argument templates; one argument stays one argument. Empty if there is a script instead."""
    shell: str = ""
    """A script instead of arguments. The step's inputs are its variables."""
    env: dict[str, str] = field(default_factory=dict)
    env_vars: tuple[str, ...] = ()
    network: bool = False


# -----------------------------------------------------------------------------------------------------------
# Survey: reads every step of a scope, its name and its type.
#
# Rules
# * The key that defines the step's work (`prompt`, `run`, `steps` …) decides its type. Two such keys, or
#   another `type`, are a conflict.
# * A key that has no meaning for the type is a conflict at that key and not silently ignored. An author who
#   writes `retry` on a group expects an effect.
# * A step with an unknown type keeps everything else, so that its other problems are found too.

Highs: TypeAlias = Mapping[str, int]
RESERVED_NAMES = frozenset({"inputs", "steps", "index", "iteration", "feedback", "digest", "output"})
"""Names that already have a meaning and cannot name an item."""

EXPRESSION_WORDS = frozenset(
    "true false null in bool bytes double dyn int list map null_type string type uint".split()
)
"""Names that expressions cannot declare. Other reserved words of CEL, such as `package`, still work in
templates, and an expression that uses one reports it."""


def survey_steps(
    nodes: Iterable[Node], scope: DraftScope, notes: Notes, prefix: str, highs: Highs, *, narrowed: bool
) -> None:
    """Read the steps of one scope, and of the groups inside it; `highs` are the maximum limits."""
    for node in nodes:
        if (entries := read_entries(node, STEPS.shape, notes, highs)) is not None:
            draft = new_draft(entries, scope, notes, prefix)
            draft.narrowed = narrowed
            entries = draft.entries
            draft.syntax = _type_of(draft, notes)
            survey_map(draft, notes)
            # Refuse `max_concurrency` on a single step, which runs one attempt at a time.
            single = all(map(entries.lacks, ("for_each", "repeat", "steps", "workflow")))
            if single and entries.has("max_concurrency"):
                message = '"max_concurrency" belongs to a map, a group or a loop'
                hint = "for the whole recipe, write it at the top"
                notes.error("recipe.conflicting_keys", message, entries.keys["max_concurrency"], hint)
            draft.repeat = read_inner(entries, "repeat", REPEAT, notes)
            if entries.has("on_exhausted") and (draft.repeat is None or draft.repeat.has("on_exhausted")):
                message = '"on_exhausted" needs "repeat", which this step does not have'
                if draft.repeat is not None:
                    message = '"on_exhausted" is given twice, inside "repeat" and beside it'
                notes.error("recipe.conflicting_keys", message, entries.keys["on_exhausted"])
            for item in entries.scalars("depends_on"):
                draft.written.setdefault(item.text, item)
            if "steps" in entries.nodes:
                survey_body(draft, entries.items("steps"), notes, highs)


def new_draft(entries: Entries, scope: DraftScope, notes: Notes, prefix: str) -> Draft:
    """Name a step and add it to its scope; duplicate names are reported at the later one."""
    node = entries.nodes.get("id")
    step_id = node.text if isinstance(node, Scalar) else ""
    draft = Draft(step_id, entries, scope, prefix + step_id)
    scope.drafts.append(draft)
    if isinstance(node, Scalar):
        spelled = in_expression(step_id)
        if (other := scope.by_expression_name.get(spelled)) is None:
            scope.by_id[step_id] = draft
            scope.by_expression_name[spelled] = draft
        elif other.id == step_id:
            notes.error("recipe.duplicate_id", f"there is already a step {quoted(step_id)} here", node)
        else:
            message = f"{quoted(step_id)} and {quoted(other.id)} are the same name in expressions"
            notes.error("recipe.duplicate_id", message, node, "expressions write _ for -; choose another id")
            scope.by_id[step_id] = draft
    return draft


def survey_map(draft: Draft, notes: Notes) -> None:
    """Read `for_each`, `as` and `max_items` of a step or a phase."""
    entries = draft.entries
    if not entries.lacks("for_each"):
        name = entries.text("as") or "item"
        if name in RESERVED_NAMES or name in EXPRESSION_WORDS or "-" in name:
            message = f"an item cannot be named {quoted(name)}"
            hint = "use letters, digits and _" if "-" in name else "the name is reserved"
            notes.error("recipe.bad_value", message, entries.nodes["as"], hint)
        draft.item_name = name
        # Check that `key` is a path that starts with the item.
        node = entries.nodes.get("key")
        if isinstance(node, Scalar) and key_path(entries).partition(".")[0].partition("[")[0] != name:
            hint = f"write {name}, or a field of it such as {name}.name"
            notes.error("recipe.bad_value", f"{quoted(node.text)} is not a path in the item", node, hint)
        return
    for name in ("as", "key", "max_items"):
        if entries.has(name):
            message = f"{quoted(name)} needs {quoted('for_each')}, which this step does not have"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])


def key_path(entries: Entries) -> str:
    """Return the path in `key`, with or without braces; empty if it is not a path."""
    text = (entries.text("key") or "").strip()
    text = text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") else text
    try:
        return parse_path(text).text if text else ""
    except TemplateError:
        return ""


def survey_body(
    draft: Draft, nodes: list[Node], notes: Notes, highs: Highs, extra: frozenset[str] = frozenset()
) -> None:
    """Read the steps inside a group or phase."""
    draft.inner = DraftScope(draft, draft.scope, draft.names() | extra, draft.items())
    narrowed = draft.narrowed or draft.entries.text("posture") == "read_only"
    key = "tasks" if draft.phase else "steps"
    if not nodes and key in draft.entries.nodes:
        notes.error("recipe.bad_value", f"{quoted(key)} must not be empty", draft.entries.nodes[key])
    survey_steps(nodes, draft.inner, notes, draft.path + "/", highs, narrowed=narrowed)


def _type_of(draft: Draft, notes: Notes) -> StepSyntax | None:
    entries = draft.entries
    deciding = [name for name in entries.keys if name in STEPS.deciding]
    if "gate" in deciding:  # then the prompt is the question for a person
        deciding = [name for name in deciding if name != "prompt"]
    if (type_name := entries.text("type")) is not None:
        syntax = STEPS.syntaxes[type_name]
        foreign = _refuse_foreign_keys(entries, {type_name}, notes)
        # A weaker key is enough in place of the deciding one.
        if not (foreign or syntax.hinted_by) and all(map(entries.lacks, syntax.decided_by)):
            needed = listed([quoted(name) for name in syntax.decided_by], "or")
            message = f"{with_article(type_name)} step needs {needed}"
            notes.error("recipe.missing_key", message, entries.head())
        return syntax
    if not deciding and entries.mapping.get("to_be_written") is not None:
        return None  # already refused
    if not deciding:
        hinted = next((STEPS.hinting[name] for name in entries.keys if name in STEPS.hinting), None)
        if hinted is not None:
            _refuse_foreign_keys(entries, {hinted}, notes)
            return STEPS.syntaxes[hinted]
        if entries.lacks("type") and not any(name in entries.meant for name in STEPS.deciding):
            message = (
                f"step {quoted(draft.id)} has no key that determines its type"
                if draft.id
                else "the step does nothing"
            )
            hint = f"give it one of {listed(list(STEPS.deciding), 'or')}"
            notes.error("recipe.missing_key", message, entries.head(), hint)
        return None
    first, *others = deciding
    for name in others:
        if STEPS.deciding[name] == STEPS.deciding[first]:
            one, other = (quoted(entries.keys[key].text) for key in (first, name))
            message = f"a step has {one} or {other}, not both"
            notes.error("recipe.conflicting_keys", message, entries.keys[name], "keep one of them")
            continue
        message = f"{_makes(entries, name)}, {quoted(entries.keys[first].text)} "
        message += f"{with_article(STEPS.deciding[first])} step"
        notes.error("recipe.conflicting_keys", message, entries.keys[name], "make two steps of it")
    # Keys of either type are accepted, or one mistake would be reported many times.
    _refuse_foreign_keys(entries, {STEPS.deciding[name] for name in deciding}, notes)
    return STEPS.syntaxes[STEPS.deciding[first]]


def _makes(entries: Entries, name: str) -> str:
    return f"{quoted(entries.keys[name].text)} makes it {with_article(STEPS.deciding[name])} step"


def _refuse_foreign_keys(entries: Entries, types: set[str], notes: Notes) -> bool:
    """Report keys that none of the types has; return whether one of them decides a type."""
    decided_otherwise = False
    for name, word in entries.keys.items():
        key = entries.shape.keys[name]
        if not key.only or not types.isdisjoint(key.only):
            continue
        the_type = with_article(min(types))
        if name in STEPS.deciding:
            decided_otherwise = True
            message = f"{_makes(entries, name)}, but it is {the_type} step"
        else:
            message = f"{quoted(word.text)} is not allowed on {the_type} step"
        notes.error("recipe.conflicting_keys", message, word, _where_instead(name, key, types))
    return decided_otherwise


def _where_instead(name: str, key: Key, types: set[str]) -> str:
    if name == "retry":
        return f"only {listed(key.only)} steps have attempts to retry"
    return next((hint for kind in sorted(types) if (hint := STEPS.syntaxes[kind].instead.get(name))), "")
