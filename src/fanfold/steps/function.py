"""Function steps: a Python callable, registered by name.

A function that the running program registered is called in this process. A function in the project's files
is called in a separate process (`FunctionProcesses`), with the source as it was when the run was permitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from fanfold.kernel.plan import JSON, Step
from fanfold.language import keys
from fanfold.language.consent import Effect
from fanfold.language.keys import StepSyntax
from fanfold.language.leaf_steps import Body, WrittenStep
from fanfold.language.tables import quoted
from fanfold.language.tree import Scalar
from fanfold.steps.function_calls import is_module_name, registered
from fanfold.steps.order import Job, Outcome
from fanfold.steps.run_config import RunConfig
from fanfold.steps.step_type import Execution, Filling, LeafType, Services, StepLabel, shown
from fanfold.steps.values import TOO_LARGE_HINT


class FunctionBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.FUNCTION
    handler: str


class FunctionJob(Job, frozen=True):
    """The job of a function step."""

    handler: str
    inputs: dict[str, JSON]


class FunctionSteps(LeafType[FunctionBody, FunctionJob]):
    """The step type of functions."""

    body = FunctionBody
    job = FunctionJob

    def from_recipe(self, step: WrittenStep) -> FunctionBody:
        unit, node = step.unit, step.entries.nodes.get("handler")
        if isinstance(node, Scalar) and not unit.around.is_handler(node.text):
            hint = unit.notes.did_you_mean(node.text, list(unit.around.handler_names()))
            message = f"there is no handler {quoted(node.text)}"
            hint = hint or "register it with @fanfold.function, or name it package.module:callable"
            unit.notes.error("recipe.unknown_handler", message, node, hint)
        return FunctionBody(handler=step.entries.text("handler") or "")

    def label(self, _step: Step, settings: FunctionBody) -> StepLabel:
        return StepLabel("function", settings.handler)

    def effects(self, step: Step, settings: FunctionBody, filling: Filling) -> Iterator[Effect]:
        job = self.prepare(filling, settings)
        given = ", ".join(f"{name}={shown(value)}" for name, value in job.inputs.items())
        yield Effect(step.id, "function", "calls the Python function", f"{job.handler}({given})")

    def prepare(self, step: Filling, settings: FunctionBody) -> FunctionJob:
        return FunctionJob(settings.handler, step.inputs)

    def circumstances(self, frozen: RunConfig, _settings: FunctionBody) -> JSON:
        return msgspec.to_builtins(frozen.sources)  # all of them: the imports of a handler are unknown

    async def perform(self, services: Services, execution: Execution[FunctionJob]) -> Outcome:
        order, job, begin = execution.order, execution.job, services.journal.confirm
        handler = registered().get(job.handler)
        if handler is not None:
            from fanfold.steps.functions import call_here

            return Outcome(await call_here(handler, job.inputs, begin))
        if not is_module_name(job.handler) and job.handler not in services.frozen.sources.handlers:
            # only the program which started the run has registered it
            message = f'the function "{job.handler}" belongs to the program that started this run'
            hint = f'continue in that program: ff.resume("{order.root}") of its project'
            failure = order.failure("permission", "function.elsewhere", message, hint, retryable=False)
            return Outcome(error=failure, holds=True)
        reply = await services.functions.call(job.handler, job.inputs, begin)
        error = reply.error
        if error is None:
            return Outcome(reply.output)
        message, hint = error.message, error.hint
        if error.kind == "permission" and error.code != "function.not_allowed":
            hint = f"fanfold fork {order.root} --from {order.typed_path} runs it with the source as it is now"
        elif error.kind == "invalid_output":
            message = f"{order.path}: {message}"
            hint = TOO_LARGE_HINT if error.code == "output.too_large" else ""
        return Outcome(error=order.failure(error.kind, error.code, message, hint, error.kind != "permission"))

    def task(self, job: FunctionJob) -> str:
        return f"Call the function: {job.handler}"
