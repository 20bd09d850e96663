"""Function steps: a Python callable, registered by name.

A function that the running program registered is called in this process. A function in the project's files
is called in a separate process (`FunctionProcesses`), with the source as it was when the run was permitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from fanfold.kernel.plan import JSON, Step
from fanfold.language.consent import Effect
from fanfold.language.leaf_steps import FunctionBody
from fanfold.steps.function_calls import is_module_name, registered
from fanfold.steps.ids import root_of, typed_path
from fanfold.steps.run_config import RunConfig
from fanfold.steps.step_type import (
    Execution,
    Filling,
    Job,
    LeafType,
    Outcome,
    Services,
    StepLabel,
    failure,
    shown,
)
from fanfold.steps.values import TOO_LARGE_HINT

if TYPE_CHECKING:
    from fanfold.steps.function_calls import CallFailure


class FunctionJob(Job, frozen=True):
    """The job of a function step."""

    handler: str
    inputs: dict[str, JSON]


class FunctionSteps(LeafType[FunctionBody, FunctionJob]):
    """The step type of functions."""

    body = FunctionBody

    def label(self, _step: Step, said: FunctionBody) -> StepLabel:
        return StepLabel("function", said.handler)

    def effects(self, step: Step, said: FunctionBody, filling: Filling) -> Iterator[Effect]:
        job = self.prepare(filling, said)
        given = ", ".join(f"{name}={shown(value)}" for name, value in job.inputs.items())
        yield Effect(step.id, "function", "calls the Python function", f"{job.handler}({given})")

    def prepare(self, step: Filling, said: FunctionBody) -> FunctionJob:
        return FunctionJob(said.handler, step.inputs)

    def circumstances(self, frozen: RunConfig, _said: FunctionBody) -> JSON:
        return msgspec.to_builtins(frozen.sources)  # all of them: the imports of a handler are unknown

    async def perform(self, services: Services, execution: Execution[FunctionJob]) -> Outcome:
        job, begin = execution.job, services.journal.confirm
        handler = registered().get(job.handler)
        if handler is not None:
            from fanfold.steps.functions import call_here

            return Outcome(await call_here(handler, job.inputs, begin))
        if not is_module_name(job.handler) and job.handler not in services.frozen.sources.handlers:
            return _elsewhere(execution)
        reply = await services.functions.call(job.handler, job.inputs, begin)
        return Outcome(reply.output) if reply.error is None else _failed(execution, reply.error)

    def task(self, job: FunctionJob) -> str:
        return f"Call the function: {job.handler}"


def _elsewhere(execution: Execution[FunctionJob]) -> Outcome:
    """The outcome for a function that only the program which started the run has registered."""
    start, node = execution.start, execution.node
    name = execution.job.handler
    message = f'the function "{name}" is one of the program that began this run, and not here'
    hint = f'go on in that program: ff.resume("{root_of(node)}") of its project'
    told = failure(node, start, "permission", "function.elsewhere", message, hint, retryable=False)
    return Outcome(error=told, holds=True)


def _failed(execution: Execution[FunctionJob], error: CallFailure) -> Outcome:
    start, node = execution.start, execution.node
    message, hint = error.message, error.hint
    if error.kind == "permission" and error.code != "function.not_allowed":
        hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs it with the source as it is now"
    elif error.kind == "invalid_output":
        message = f"{node.path}: {message}"
        hint = TOO_LARGE_HINT if error.code == "output.too_large" else ""
    retryable = error.kind != "permission"
    return Outcome(error=failure(node, start, error.kind, error.code, message, hint, retryable))
