"""Approval steps: a question that a person answers."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import Step
from fanfold.recipe.types.approval import ApprovalBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.steps.rendering import text_of
from fanfold.runtime.steps.step_type import Job, Preparation, StepLabel, StepType


class Question(Job, frozen=True):
    """What a person is asked."""

    performed: ClassVar[bool] = False
    question: str
    show: str
    choices: tuple[str, ...]


class ApprovalSteps(StepType[ApprovalBody, Question]):
    def read(self, step: Step) -> ApprovalBody:
        return read_body(ApprovalBody, step)

    def label(self, _step: Step, _said: ApprovalBody) -> StepLabel:
        return StepLabel("approval", "waits for a person")

    def prepare(self, step: Preparation, said: ApprovalBody) -> Question:
        show = text_of(said.show, step.names) if said.show is not None else ""
        return Question(text_of(said.approve, step.names), show, said.choices)
