"""Approval steps: a question that a person answers."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import ApprovalAction
from fanfold.runtime.steps.rendering import text_of
from fanfold.runtime.steps.step_type import Job, Preparation, StepType


class Question(Job, frozen=True):
    """What a person is asked."""

    performed: ClassVar[bool] = False
    question: str
    show: str
    choices: tuple[str, ...]


class ApprovalSteps(StepType[ApprovalAction, Question]):
    def prepare(self, step: Preparation, action: ApprovalAction) -> Question:
        show = text_of(action.show, step.names) if action.show is not None else ""
        return Question(text_of(action.approve, step.names), show, action.choices)
