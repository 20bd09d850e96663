"""Command steps: a program and its arguments."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import field

from fanfold.kernel.plan import Traits
from fanfold.recipe.types.body import Body


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    type: ClassVar[str] = "command"
    run: tuple[str, ...] = ()
    """Argument templates; one argument stays one argument. Empty for a `tests` or `lint` gate that
    leaves the choice of command to the host."""
    env: dict[str, str] = field(default_factory=dict)
    network: bool = False
    gate: Literal["command", "tests", "lint"] | None = None

    def traits(self) -> Traits:
        return Traits(workspace="scratch")
