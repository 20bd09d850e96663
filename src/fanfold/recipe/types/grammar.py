"""What the compiler does with steps of one type: how they are written, checked, and put into the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from msgspec import Struct

from fanfold.kernel.plan import Action
from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.text.notes import Notes
from fanfold.text.tables.entries import Entries
from fanfold.text.trees.tree import Scalar

B = TypeVar("B", bound=Body)


class Written(Struct, frozen=True):
    """A step as its author wrote it, and where its texts stand."""

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
        """The template of a key, its references checked; None when there is none that could be read.

        `placing`: what it names is given to an agent in full, so that it needs no summary of it.
        """
        node = self.entries.nodes.get(key)
        if not isinstance(node, Scalar):
            return None
        place = self.place
        if placing:
            place = TextPlace(place.draft, place.scope, place.names, placing=True)
        return self.unit.references.template(node, place)


class StepGrammar(ABC):
    """One type of step, as recipes write it."""

    syntax: StepSyntax

    @abstractmethod
    def check(self, step: Written) -> None:
        """Check what the step says with the keys of its type, and keep it in the draft's facts."""


class LeafGrammar(StepGrammar, Generic[B]):
    """A type whose steps do something themselves, and say so in a body."""

    body: type[B]

    def __init__(self) -> None:
        self.syntax = self.body.syntax

    def check(self, step: Written) -> None:
        step.draft.facts.body = self.read(step)

    @abstractmethod
    def read(self, step: Written) -> B:
        """What the step says. Problems are reported; what could not be read may be left out."""

    def complete(self, _draft: Draft, said: B) -> B:
        """What it says, now that its edges are known and nothing is wrong with the recipe."""
        return said

    def action(self, draft: Draft) -> Action:
        """The action of a checked step."""
        said = draft.facts.body
        assert isinstance(said, self.body)
        return self.complete(draft, said).action()
