"""Approval steps: a question that a person answers with yes, no, or one of several choices."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Traits
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import APPROVAL, YES_OR_NO
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.notes import Notes, kind_of, quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.trees.tree import Scalar


class ApprovalBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = APPROVAL
    approve: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None

    def traits(self) -> Traits:
        return Traits(
            slot=False,
            workspace="none",
            waits="person",
            default=self.default,
            rejectable=not self.choices,
        )


class ApprovalGrammar(LeafGrammar[ApprovalBody]):
    body = ApprovalBody

    def read(self, step: Written) -> ApprovalBody:
        choices = tuple(item.text for item in step.entries.scalars("choices"))
        _check_choices(step.entries, choices, step.notes)
        return ApprovalBody(
            approve=_question(step),
            show=step.template("show"),
            choices=choices,
            default=step.entries.text("default"),
        )


def _question(step: Written) -> str:
    entries = step.entries
    if not entries.has("gate"):
        return step.template("approve") or ""
    return step.template("prompt") or entries.text("description") or f"Go on with {step.draft.id}?"


def _check_choices(entries: Entries, choices: tuple[str, ...], notes: Notes) -> None:
    if isinstance(entries.nodes.get("choices"), Scalar):
        message = "the choices of an approval are a list of text"
        hint = "an `ask` step takes an expression"
        notes.error("recipe.bad_type", message, entries.nodes["choices"], hint)
    elif "choices" in entries.nodes and (not choices or len(set(choices)) < len(choices) or "" in choices):
        message = "choices must be different from each other, and at least one"
        notes.error("recipe.bad_value", message, entries.nodes["choices"])
    default = entries.nodes.get("default")
    allowed = choices or YES_OR_NO
    readable = "choices" in entries.nodes or not entries.has("choices")
    if isinstance(default, Scalar) and default.text not in allowed and readable:
        hint = notes.did_you_mean(default.text, allowed) or "use one of " + ", ".join(allowed)
        notes.error("recipe.bad_value", f"{quoted(default.text)} is no choice", default, hint)
    elif default is not None and not (isinstance(default, Scalar) and isinstance(default.value, str)):
        notes.error("recipe.bad_type", f'"default" must be text, not {kind_of(default)}', default)
