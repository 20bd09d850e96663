"""Set steps: values worked out from what is known, each under its name."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Traits
from fanfold.recipe.language.known_outputs import ObjectOf
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import SET
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.notes import quoted
from fanfold.text.tables.forms import IDENTIFIER
from fanfold.text.trees.tree import Scalar


class SetBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SET
    set: dict[str, str]

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none")


class SetGrammar(LeafGrammar[SetBody]):
    body = SetBody

    def read(self, step: Written) -> SetBody:
        from fanfold.recipe.checks.known_values import Viewpoint, known_of_expression

        notes, pairs = step.notes, step.entries.pairs("set")
        if "set" in step.entries.nodes and not pairs:
            notes.error("recipe.bad_value", '"set" must not be empty', step.entries.nodes["set"])
        values: dict[str, str] = {}
        for word, value in pairs:
            if not IDENTIFIER.fullmatch(word.text):
                hint = "use letters, digits, _ and -, beginning with a letter or _"
                message = f"{quoted(word.text)} cannot be the name of a value"
                notes.error("recipe.bad_value", message, word, hint)
            if isinstance(value, Scalar):
                values[word.text] = step.unit.references.expression(value, step.place, "any")
        viewpoint = Viewpoint(step.unit.inputs, step.draft, step.draft.scope)
        step.draft.facts.gives = lambda: ObjectOf(
            {name: known_of_expression(text, viewpoint.look) for name, text in values.items()}
        )
        return SetBody(values)
