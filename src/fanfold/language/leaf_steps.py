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
from fanfold.language.draft import Draft
from fanfold.language.keys import StepSyntax, step_shape
from fanfold.language.references import TextPlace
from fanfold.language.tables import Entries, Notes, Shape
from fanfold.language.tree import Scalar

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
        load = self.grammars.get(name)
        if load is None:
            raise BugError("step.not_loaded", f"the step type {name} was not passed to the compiler")
        return load()

    def _put(self, types: Iterable[StepSyntax]) -> None:
        for syntax in types:
            self.syntaxes[syntax.name] = syntax
            self.deciding |= dict.fromkeys(syntax.decided_by, syntax.name)
            self.hinting |= dict.fromkeys(syntax.hinted_by, syntax.name)
        self.shape = step_shape(self.syntaxes)


STEPS = StepTable(
    keys.AGENT,
    keys.FUNCTION,
    keys.COMMAND,
    keys.WORKFLOW,
    keys.SET,
    keys.ASK,
    keys.WAIT,
    keys.SYNTAXES_DELIVER,
    keys.END,
    keys.APPROVAL,
    keys.GROUP,
)


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
            slot=False,
            workspace="none",
            waits="person",
            default=self.default,
            rejectable=not self.choices,
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
