"""Function steps: a Python callable, registered by name, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fanfold.kernel.plan import JSON, Step
from fanfold.recipe.types.function import FunctionBody
from fanfold.runtime.handlers import threads
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
)


class FunctionJob(Job, frozen=True):
    handler: str
    inputs: dict[str, JSON]


class FunctionSteps(LeafType[FunctionBody, FunctionJob]):
    body = FunctionBody

    def label(self, _step: Step, said: FunctionBody) -> StepLabel:
        return StepLabel("function", said.handler)

    def declare(self, _step: Step, said: FunctionBody) -> str:
        return f"calls the Python function {said.handler}"

    def prepare(self, step: Preparation, said: FunctionBody) -> FunctionJob:
        return FunctionJob(said.handler, step.inputs)

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
