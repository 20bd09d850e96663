"""Approval steps: a question that a person answers with yes, no, or one of several choices."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Traits
from fanfold.recipe.types.body import Body


class ApprovalBody(Body, frozen=True, omit_defaults=True, gc=False):
    type: ClassVar[str] = "approval"
    approve: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None

    def traits(self) -> Traits:
        return Traits(
            slot=False,
            workspace="none",
            waits="person",
            at_timeout="fail" if self.default is None else "complete",
        )
