"""Workflow steps: a child run that sees the step's `inputs` and nothing else."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import JSON, Step, WorkflowAction
from fanfold.runtime.steps.step_type import Job, Preparation, StepLabel, StepType


class CallJob(Job, frozen=True):
    performed: ClassVar[bool] = False
    inputs: dict[str, JSON]


class WorkflowSteps(StepType[WorkflowAction, CallJob]):
    name = "workflow"

    def read(self, step: Step) -> WorkflowAction:
        assert isinstance(step.action, WorkflowAction)
        return step.action

    def label(self, _step: Step, said: WorkflowAction) -> StepLabel:
        return StepLabel("workflow", said.workflow)

    def prepare(self, step: Preparation, _said: WorkflowAction) -> CallJob:
        return CallJob(step.inputs)
