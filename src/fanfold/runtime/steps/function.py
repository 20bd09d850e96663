"""Function steps: a Python callable, registered by name, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, FunctionAction
from fanfold.runtime.steps import threads
from fanfold.runtime.steps.step_type import Execution, Job, Outcome, Preparation, Services, StepType


class FunctionJob(Job, frozen=True):
    handler: str
    inputs: dict[str, JSON]


class FunctionSteps(StepType[FunctionAction, FunctionJob]):
    def prepare(self, step: Preparation, action: FunctionAction) -> FunctionJob:
        return FunctionJob(action.handler, step.inputs)

    def needs_place(self, node: Node) -> bool:
        return bool(node.write_set)

    async def perform(self, services: Services, execution: Execution[FunctionJob]) -> Outcome:
        job = execution.job
        handler = services.find_handler(job.handler)
        if inspect.iscoroutinefunction(handler):
            return Outcome(await handler(**job.inputs))
        # A thread cannot be ended from outside: a cancelled function's result is thrown away.
        result = await threads.shared.run(partial(_call, services, handler, job.inputs))
        return Outcome(await result if inspect.isawaitable(result) else result)

    def task(self, job: FunctionJob) -> str:
        return f"Call the function: {job.handler}"


def _call(services: Services, handler: Callable[..., Any], inputs: dict[str, JSON]) -> object:
    """In a thread: the way there took time, so the lease is looked at again."""
    services.journal.confirm()
    return handler(**inputs)
