"""Ask steps: a question that a person answers in words or data."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import JSON, Traits
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import ASK
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.json_schema import misfits
from fanfold.text.notes import quoted
from fanfold.text.trees.tree import Scalar, plain

BY_TIMEOUT = "default"
"""The trait says no more than that there is a default; what it is stands in the body."""


class AskBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = ASK
    ask: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    choose_from: str = ""
    """An expression instead of choices."""
    default: JSON = None
    has_default: bool = False

    def traits(self) -> Traits:
        default = BY_TIMEOUT if self.has_default else None
        return Traits(slot=False, workspace="none", waits="person", default=default)


class AskGrammar(LeafGrammar[AskBody]):
    body = AskBody

    def read(self, step: Written) -> AskBody:
        entries, node = step.entries, step.entries.nodes.get("choices")
        choices = tuple(item.text for item in entries.scalars("choices"))
        if node is not None and not isinstance(node, Scalar):
            check_choices(step, choices)
        if entries.has("choices") and entries.has("output_schema"):
            message = "a question has choices or an output_schema, not both"
            step.notes.error("recipe.conflicting_keys", message, entries.keys["choices"])
        _check_default(step, choices)
        computed = node if isinstance(node, Scalar) else None
        return AskBody(
            ask=step.template("ask") or "",
            show=step.template("show"),
            choices=choices,
            choose_from=""
            if computed is None
            else step.unit.references.expression(computed, step.place, "list"),
            default=plain(entries.nodes["default"]) if "default" in entries.nodes else None,
            has_default=entries.has("default"),
        )


def check_choices(step: Written, choices: tuple[str, ...]) -> None:
    """Choices are there, and can be told apart."""
    if not choices or len(set(choices)) < len(choices) or "" in choices:
        message = "choices must be different from each other, and at least one"
        step.notes.error("recipe.bad_value", message, step.entries.nodes["choices"])


def _check_default(step: Written, choices: tuple[str, ...]) -> None:
    node, notes = step.entries.nodes.get("default"), step.notes
    if node is None:
        return
    value, schema = plain(node), step.draft.facts.output_schema
    if schema is not None:
        if problem := misfits(schema, value):
            notes.error("recipe.bad_value", f"the default does not fit the output_schema: {problem}", node)
    elif choices and value not in choices:
        shown = node.text if isinstance(node, Scalar) else "this"
        hint = notes.did_you_mean(shown, choices) or "use one of " + ", ".join(choices)
        notes.error("recipe.bad_value", f"{quoted(shown)} is no choice", node, hint)
    elif not step.entries.has("choices") and not isinstance(value, str):
        hint = "an answer is text where there is no output_schema"
        notes.error("recipe.bad_type", '"default" must be text', node, hint)
