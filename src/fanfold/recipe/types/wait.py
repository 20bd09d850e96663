"""Wait steps: nothing but time passes."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Traits
from fanfold.recipe.language.keys import MAX_DURATION_MS
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import WAIT
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.tables.durations import duration_ms
from fanfold.text.trees.tree import Scalar


class WaitBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = WAIT
    delay_ms: int = 0
    until: str = ""
    """An expression instead of a duration."""

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", waits="timer")


class WaitGrammar(LeafGrammar[WaitBody]):
    body = WaitBody

    def read(self, step: Written) -> WaitBody:
        node = step.entries.nodes.get("wait")
        if not isinstance(node, Scalar):
            return WaitBody()
        if step.entries.has("timeout"):
            message = '"timeout" means nothing on a wait step'
            hint = "the time it waits is all the time it has"
            step.notes.error("recipe.conflicting_keys", message, step.entries.keys["timeout"], hint)
        delay_ms = duration_ms(node.value)
        if delay_ms is None:
            return WaitBody(until=step.unit.references.expression(node, step.place, "moment"))
        if not 0 <= delay_ms <= MAX_DURATION_MS:
            message = f'"wait" is {node.text}; it must be from 0s to {MAX_DURATION_MS // 3_600_000}h'
            step.notes.error("recipe.limit", message, node)
        return WaitBody(delay_ms)
