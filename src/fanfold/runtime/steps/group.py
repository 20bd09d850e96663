"""Groups: nothing to do but to open them; the kernel runs what is inside."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import GroupAction
from fanfold.runtime.steps.step_type import Job, Preparation, StepType


class GroupJob(Job, frozen=True):
    performed: ClassVar[bool] = False


class GroupSteps(StepType[GroupAction, GroupJob]):
    def prepare(self, _step: Preparation, _action: GroupAction) -> GroupJob:
        return GroupJob()
