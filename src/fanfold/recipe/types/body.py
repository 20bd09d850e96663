"""The body of a leaf step: what a step of one type says of its own, typed here and plain JSON in the plan.

The kernel carries bodies without looking inside. Who knows a type reads its body with `read_body`; everybody
else decides by the traits, which stand beside the body in the plan.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec
from msgspec import Struct

from fanfold.kernel.plan import PLAIN, LeafAction, Step, Traits
from fanfold.recipe.language.step_syntax import StepSyntax


class Body(Struct, frozen=True, omit_defaults=True, gc=False):
    """What one step says; `syntax` is how recipes say it."""

    syntax: ClassVar[StepSyntax]

    def traits(self) -> Traits:
        """How a step that says this is scheduled."""
        workspace = self.syntax.workspace
        return PLAIN if workspace == PLAIN.workspace else Traits(workspace=workspace)

    def roles(self) -> tuple[str, ...]:
        """The roles that may come to work for it; they are frozen with the run."""
        return ()

    def action(self) -> LeafAction:
        """The action of a step that says this."""
        # By way of JSON, so that a plan that was just compiled equals one that was read.
        return LeafAction(self.syntax.name, msgspec.json.decode(msgspec.json.encode(self)), self.traits())


B = TypeVar("B", bound=Body)


def read_body(shape: type[B], step: Step) -> B:
    """What a step of this type says."""
    action = step.action
    assert isinstance(action, LeafAction) and action.type == shape.syntax.name
    return msgspec.convert(action.body, shape)


def find_body(shape: type[B], step: Step) -> B | None:
    """The same for a step that may be of another type."""
    return read_body(shape, step) if step.type == shape.syntax.name else None
