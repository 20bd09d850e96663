"""Steps that exist for others: groups, which the kernel opens, and workflows, which become child runs."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import GroupAction, Step, WorkflowAction
from fanfold.runtime.steps.step_type import CallJob, Job, Preparation, StepLabel, StepType


class GroupJob(Job, frozen=True):
    """Nothing: the kernel runs what is inside."""

    performed: ClassVar[bool] = False


class GroupSteps(StepType[GroupAction, GroupJob]):
    name = "group"

    def read(self, step: Step) -> GroupAction:
        assert isinstance(step.action, GroupAction)
        return step.action

    def label(self, step: Step, said: GroupAction) -> StepLabel:
        return StepLabel("group", (said.goal or said.phase_kind) if said.phase else step.description)

    def prepare(self, step: Preparation, said: GroupAction) -> GroupJob:
        del step, said
        return GroupJob()


class WorkflowSteps(StepType[WorkflowAction, CallJob]):
    name = "workflow"

    def read(self, step: Step) -> WorkflowAction:
        assert isinstance(step.action, WorkflowAction)
        return step.action

    def label(self, _step: Step, said: WorkflowAction) -> StepLabel:
        return StepLabel("workflow", said.workflow)

    def prepare(self, step: Preparation, said: WorkflowAction) -> CallJob:
        del said
        return CallJob(step.inputs)
