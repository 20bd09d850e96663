"""A gate that asks a person."""

from __future__ import annotations

from fanfold.kernel.plan import RetryPolicy, Step
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.gates.gate import VERIFY, Gate, Judged
from fanfold.recipe.types.approval import ApprovalBody
from fanfold.text.tables.entries import Entries


class ApprovalGate(Gate[None]):
    name = "approval"
    until = 'steps.verify.output.decision == "approve"'

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> None:
        """There is nothing to say about it."""
        del verify, draft, unit

    def step(self, kept: None, phase: Judged) -> Step:
        del kept
        question = ApprovalBody(
            approve=f'Accept the result of phase "{phase.id}"?',
            show=phase.results(),
            choices=("approve", "reject"),
        )
        return Step(
            id=VERIFY, action=question.action(), depends_on=phase.steps, retry=RetryPolicy(attempts=1)
        )
