"""Function steps: a Python callable, registered by name."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Traits
from fanfold.recipe.types.body import Body


class FunctionBody(Body, frozen=True, omit_defaults=True, gc=False):
    type: ClassVar[str] = "function"
    handler: str

    def traits(self) -> Traits:
        return Traits(workspace="project")
