"""What the compiler does with steps of one type: how they are written, checked, and put into the plan."""

from __future__ import annotations

from typing import Generic, TypeVar

from fanfold.kernel.plan import Action
from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.types.body import Body

B = TypeVar("B", bound=Body)


class StepGrammar:
    """One type of step, as recipes write it."""

    syntax: StepSyntax

    def check(self, draft: Draft, unit: Unit, place: TextPlace) -> None:
        """Check what the step says with the keys of its type, and keep it in the draft's facts."""
        raise NotImplementedError


class LeafGrammar(StepGrammar, Generic[B]):
    """A type whose steps do something themselves, and say so in a body."""

    body: type[B]

    def __init__(self) -> None:
        self.syntax = self.body.syntax

    def check(self, draft: Draft, unit: Unit, place: TextPlace) -> None:
        draft.facts.body = self.read(draft, unit, place)

    def read(self, draft: Draft, unit: Unit, place: TextPlace) -> B:
        """What the step says. Problems are reported; what could not be read may be left out."""
        raise NotImplementedError

    def complete(self, _draft: Draft, said: B) -> B:
        """What it says, now that its edges are known and nothing is wrong with the recipe."""
        return said

    def action(self, draft: Draft) -> Action:
        """The action of a checked step."""
        said = draft.facts.body
        assert isinstance(said, self.body)
        return self.complete(draft, said).action()
