"""Groups: nothing to do but to open them; the kernel runs what is inside."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import GroupAction, Step
from fanfold.runtime.steps.step_type import Job, Preparation, StepLabel, StepType


class GroupJob(Job, frozen=True):
    performed: ClassVar[bool] = False


class GroupSteps(StepType[GroupAction, GroupJob]):
    name = "group"

    def read(self, step: Step) -> GroupAction:
        assert isinstance(step.action, GroupAction)
        return step.action

    def label(self, step: Step, said: GroupAction) -> StepLabel:
        return StepLabel("group", (said.goal or said.phase_kind) if said.phase else step.description)

    def prepare(self, _step: Preparation, _said: GroupAction) -> GroupJob:
        return GroupJob()
