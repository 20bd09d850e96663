"""Function steps: a Python callable, registered by name."""

from __future__ import annotations

from typing import ClassVar

from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import FUNCTION
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.notes import quoted
from fanfold.text.trees.tree import Scalar


class FunctionBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = FUNCTION
    handler: str


class FunctionGrammar(LeafGrammar[FunctionBody]):
    body = FunctionBody

    def read(self, step: Written) -> FunctionBody:
        unit, node = step.unit, step.entries.nodes.get("handler")
        if isinstance(node, Scalar) and not unit.around.is_handler(node.text):
            hint = unit.notes.did_you_mean(node.text, list(unit.around.handler_names()))
            message = f"there is no handler {quoted(node.text)}"
            hint = hint or "register it with @fanfold.function, or name it package.module:callable"
            unit.notes.error("recipe.unknown_handler", message, node, hint)
        return FunctionBody(handler=step.entries.text("handler") or "")
