"""The grammar of one step type: how the compiler reads, checks and plans its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from fanfold.kernel.plan import PLAIN, Action, LeafAction, Step, Traits
from fanfold.language.draft import Draft
from fanfold.language.keys import StepSyntax
from fanfold.language.references import TextPlace, Unit
from fanfold.language.tables import Entries, Notes
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

    def __init__(self) -> None:
        self.syntax = self.body.syntax

    def check(self, step: WrittenStep) -> None:
        step.draft.facts.body = self.read(step)

    @abstractmethod
    def read(self, step: WrittenStep) -> B:
        """Return the settings of the step; problems are reported, and invalid parts may be missing."""

    def complete(self, _draft: Draft, said: B) -> B:
        """Return the final settings, when the edges are known and the recipe has no errors."""
        return said

    def action(self, draft: Draft) -> Action:
        """Return the action of a checked step."""
        said = draft.facts.body
        assert isinstance(said, self.body)
        return self.complete(draft, said).action()
