"""Workflow steps: a child run that sees the step's `inputs` and nothing else."""

from __future__ import annotations

from typing import ClassVar

from fanfold.kernel.plan import JSON, WorkflowAction
from fanfold.runtime.steps.step_type import Job, Preparation, StepType


class CallJob(Job, frozen=True):
    performed: ClassVar[bool] = False
    inputs: dict[str, JSON]


class WorkflowSteps(StepType[WorkflowAction, CallJob]):
    def prepare(self, step: Preparation, _action: WorkflowAction) -> CallJob:
        return CallJob(step.inputs)
