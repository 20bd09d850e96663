"""Function steps: a Python callable, registered by name.

What the running program registered is called in this process; a project's own files are imported and called
in processes of their own (`handlers/pool`), from the source as it was when the run was permitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fanfold.kernel.plan import JSON, Step
from fanfold.recipe.types.function import FunctionBody
from fanfold.runtime.handlers.registration import is_module_name, registered
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.records.ids import root_of, typed_path
from fanfold.runtime.records.outputs import TOO_LARGE_HINT
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    failure,
)

if TYPE_CHECKING:
    from fanfold.runtime.handlers.frames import CallFailure


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

    def circumstances(self, frozen: Frozen, _said: FunctionBody) -> JSON:
        return msgspec.to_builtins(frozen.sources)  # what a handler imports is not known

    async def perform(self, services: Services, execution: Execution[FunctionJob]) -> Outcome:
        job, begin = execution.job, services.journal.confirm
        handler = registered().get(job.handler)
        if handler is not None:
            from fanfold.runtime.handlers.in_process import call_here

            return Outcome(await call_here(handler, job.inputs, begin))
        if not is_module_name(job.handler) and job.handler not in services.frozen.sources.handlers:
            return _elsewhere(execution)
        reply = await services.functions.call(job.handler, job.inputs, begin)
        return Outcome(reply.output) if reply.error is None else _failed(execution, reply.error)

    def task(self, job: FunctionJob) -> str:
        return f"Call the function: {job.handler}"


def _elsewhere(execution: Execution[FunctionJob]) -> Outcome:
    """No file had it when the run began: only the program that began it does, and can go on with it."""
    start, node = execution.start, execution.node
    name = execution.job.handler
    message = f'the function "{name}" is one of the program that began this run, and not here'
    hint = f'go on in that program: ff.resume("{root_of(node)}") of its project'
    told = failure(node, start, "permission", "function.elsewhere", message, hint, retryable=False)
    return Outcome(error=told, holds=True)


def _failed(execution: Execution[FunctionJob], error: CallFailure) -> Outcome:
    start, node = execution.start, execution.node
    message, hint = error.message, error.hint
    if error.kind == "permission":
        hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs it with the source as it is now"
    elif error.kind == "invalid_output":
        message = f"{node.path}: {message}"
        hint = TOO_LARGE_HINT if error.code == "output.too_large" else ""
    retryable = error.kind != "permission"
    return Outcome(error=failure(node, start, error.kind, error.code, message, hint, retryable))
