"""Approval steps: a question that a person answers."""

from __future__ import annotations

import shlex

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.state import BY_DEFAULT, Node, judge
from fanfold.language.keys import YES_OR_NO
from fanfold.language.leaf_steps import ApprovalBody, WrittenStep
from fanfold.language.tables import kind_of, quoted
from fanfold.language.tree import Scalar
from fanfold.steps.ids import root_of, typed_path
from fanfold.steps.order import Outcome, Question
from fanfold.steps.step_type import LeafType, Preparation, StepLabel, StepReply, text_of


class ApprovalSteps(LeafType[ApprovalBody, Question]):
    """The step type of approvals."""

    body = ApprovalBody
    waiting = "waits for approval"

    def from_recipe(self, step: WrittenStep) -> ApprovalBody:
        entries = step.entries
        choices = tuple(item.text for item in entries.scalars("choices"))
        notes = step.notes
        if isinstance(entries.nodes.get("choices"), Scalar):
            message = "the choices of an approval are a list of text"
            hint = "an `ask` step takes an expression"
            notes.error("recipe.bad_type", message, entries.nodes["choices"], hint)
        elif "choices" in entries.nodes and (
            not choices or len(set(choices)) < len(choices) or "" in choices
        ):
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
        if entries.has("gate"):
            question = step.template("prompt") or entries.text("description")
            question = question or f"Continue with {step.draft.id}?"
        else:
            question = step.template("approve") or ""
        return ApprovalBody(question, step.template("show"), choices, entries.text("default"))

    def label(self, _step: Step, _settings: ApprovalBody) -> StepLabel:
        return StepLabel("approval", "a person approves")

    def prepare(self, step: Preparation, settings: ApprovalBody) -> Question:
        show = text_of(settings.show, step.names) if settings.show is not None else ""
        return Question(
            text_of(settings.approve, step.names), show, settings.choices, default=settings.default
        )

    def answer(self, step: Preparation, settings: ApprovalBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is not None:
            message = f"{node.path} is an approval, which takes a decision"
            raise AuthorError("approval.not_text", message, hint=_how(node, settings.choices))
        if reply.decision not in (settings.choices or YES_OR_NO):
            message = f"{node.path} cannot be answered with {reply.decision!r}"
            raise AuthorError("approval.bad_choice", message, hint=_how(node, settings.choices))
        return Outcome(_output(reply), judge(node, reply.decision, reply.by, reply.comment))

    def at_timeout(self, settings: ApprovalBody) -> JSON:
        return _output(StepReply(settings.default or "", BY_DEFAULT))


def _how(node: Node, choices: tuple[str, ...]) -> str:
    command = f"fanfold approve {root_of(node)} {typed_path(node)}"
    if not choices:
        return f"it has no choices: {command}, or reject"
    return f"choose one of {', '.join(choices)}: {command} --choice {shlex.quote(choices[0])}"


def _output(reply: StepReply) -> JSON:
    return {"decision": reply.decision, "by": reply.by, "comment": reply.comment, "edited": reply.edited}
