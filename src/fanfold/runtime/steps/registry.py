"""The step types there are, by the word recipes use for them.

A type's work is imported when the first step of that type is looked at: most runs have steps of one type or
two, and who only looks at a run needs no event loop, no sandbox and no processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import Step
from fanfold.recipe.expressions.expression_error import ExpressionError
from fanfold.recipe.types.grammar import StepGrammar
from fanfold.recipe.types.table import STEPS
from fanfold.runtime.records.values import Values
from fanfold.runtime.steps.step_type import (
    Job,
    Outcome,
    Preparation,
    StepLabel,
    StepReply,
    StepType,
    value_of,
)
from fanfold.text.template import UnresolvedPath
from fanfold.workspace.artifacts import NOTHING_SEEN

AnyType = StepType[Any, Any]


@cache
def _agent() -> AnyType:
    from fanfold.runtime.steps.agent import AgentSteps

    return AgentSteps()


@cache
def _function() -> AnyType:
    from fanfold.runtime.steps.function import FunctionSteps

    return FunctionSteps()


@cache
def _command() -> AnyType:
    from fanfold.runtime.steps.command import CommandSteps

    return CommandSteps()


@cache
def _workflow() -> AnyType:
    from fanfold.runtime.steps.structure import WorkflowSteps

    return WorkflowSteps()


@cache
def _set() -> AnyType:
    from fanfold.runtime.steps.set import SetSteps

    return SetSteps()


@cache
def _ask() -> AnyType:
    from fanfold.runtime.steps.ask import AskSteps

    return AskSteps()


@cache
def _wait() -> AnyType:
    from fanfold.runtime.steps.wait import WaitSteps

    return WaitSteps()


@cache
def _deliver() -> AnyType:
    from fanfold.runtime.steps.deliver import DeliverSteps

    return DeliverSteps()


@cache
def _end() -> AnyType:
    from fanfold.runtime.steps.end import EndSteps

    return EndSteps()


@cache
def _approval() -> AnyType:
    from fanfold.runtime.steps.approval import ApprovalSteps

    return ApprovalSteps()


@cache
def _group() -> AnyType:
    from fanfold.runtime.steps.structure import GroupSteps

    return GroupSteps()


STEP_TYPES: dict[str, Callable[[], AnyType]] = {
    "agent": _agent,
    "function": _function,
    "command": _command,
    "workflow": _workflow,
    "set": _set,
    "ask": _ask,
    "wait": _wait,
    "deliver": _deliver,
    "end": _end,
    "approval": _approval,
    "group": _group,
}


def register(kind: AnyType, grammar: StepGrammar) -> None:
    """Make one more type known: to the host, and to the compiler of recipes."""
    STEP_TYPES[kind.name] = lambda: kind
    STEPS.add(grammar)


class Unrenderable(Exception):
    """A step's templates do not resolve; `failure` is what the step fails with."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def type_of(step: Step) -> AnyType:
    load = STEP_TYPES.get(step.type)
    if load is None:
        message = f"step {step.id} is of type {step.type}, which is not known here"
        raise WorldError("step.unknown_type", message, hint="the run was made by another version of Fanfold")
    return load()


def label_of(step: Step) -> StepLabel:
    """How a step is shown: as what kind of thing, and who or what does it."""
    kind = type_of(step)
    return kind.label(step, kind.read(step))


def declare(step: Step) -> str:
    """What a step needs permission for, in words that follow its id; empty when it only reads."""
    kind = type_of(step)
    return kind.declare(step, kind.read(step))


def answer(values: Values, node: Node, reply: StepReply) -> Outcome:
    """What a person's reply makes of a step that waits; `AuthorError` when it is no answer to it."""
    kind = type_of(node.step)
    return kind.answer(Preparation(values, node, values.at(node), {}), kind.read(node.step), reply)


def preparation(values: Values, node: Node) -> Preparation:
    """What a step sees when it starts; raises `UnresolvedPath`."""
    names = values.at(node)
    inputs = {key: value_of(value, names) for key, value in node.step.inputs.items()}
    return Preparation(values, node, names, inputs)


def prepare(values: Values, node: Node) -> Job:
    """The job of a step that is about to start; raises `Unrenderable`."""
    step = node.step
    try:
        kind = type_of(step)
        job: Job = kind.prepare(preparation(values, node), kind.read(step))
        seen = values.artifacts(node) if job.performed else NOTHING_SEEN
        return job if seen is NOTHING_SEEN else replace(job, artifacts=seen)
    except (UnresolvedPath, ExpressionError) as error:
        code = "expression.failed" if isinstance(error, ExpressionError) else "template.unresolved"
        message = f"{node.path} cannot start: {error}"
        raise Unrenderable(Failure("agent", code, message, retryable=False, step=node.path)) from None
