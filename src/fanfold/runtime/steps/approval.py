"""Approval steps: a question that a person answers."""

from __future__ import annotations

import shlex

from fanfold.errors import AuthorError
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.replies import BY_DEFAULT, judge
from fanfold.recipe.language.syntaxes import YES_OR_NO
from fanfold.recipe.types.approval import ApprovalBody
from fanfold.runtime.records.ids import root_of, typed_path
from fanfold.runtime.steps.step_type import (
    LeafType,
    Outcome,
    Preparation,
    Question,
    StepLabel,
    StepReply,
    text_of,
)


class ApprovalSteps(LeafType[ApprovalBody, Question]):
    body = ApprovalBody
    waiting = "waits for approval"

    def label(self, _step: Step, _said: ApprovalBody) -> StepLabel:
        return StepLabel("approval", "waits for a person")

    def prepare(self, step: Preparation, said: ApprovalBody) -> Question:
        show = text_of(said.show, step.names) if said.show is not None else ""
        return Question(text_of(said.approve, step.names), show, said.choices, default=said.default)

    def answer(self, step: Preparation, said: ApprovalBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is not None:
            message = f"{node.path} is an approval, which takes a decision"
            raise AuthorError("approval.not_text", message, hint=_how(node, said.choices))
        if reply.decision not in (said.choices or YES_OR_NO):
            message = f"{node.path} cannot be answered with {reply.decision!r}"
            raise AuthorError("approval.bad_choice", message, hint=_how(node, said.choices))
        return Outcome(_output(reply), judge(node, reply.decision, reply.by, reply.comment))

    def at_timeout(self, said: ApprovalBody) -> JSON:
        return _output(StepReply(said.default or "", BY_DEFAULT))


def _how(node: Node, choices: tuple[str, ...]) -> str:
    command = f"fanfold approve {root_of(node)} {typed_path(node)}"
    if not choices:
        return f"it has no choices: {command}, or reject"
    return f"choose one of {', '.join(choices)}: {command} --choice {shlex.quote(choices[0])}"


def _output(reply: StepReply) -> JSON:
    return {"decision": reply.decision, "by": reply.by, "comment": reply.comment, "edited": reply.edited}
