"""The table of step types, by the name that recipes use, for the compiler and for the host.

A new type is one module in this package, its keys in `language.keys`, and one row in `STEP_TYPES`. The module
of a type is imported with the first step of that type. Most runs have steps of one or two types.
Code that only reads runs needs no event loop, no sandbox and no processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import GroupAction, Step, WorkflowAction
from fanfold.kernel.state import Node
from fanfold.language import keys
from fanfold.language.consent import Effect
from fanfold.language.leaf_steps import STEPS, WrittenStep
from fanfold.language.references import TextPlace, read_output
from fanfold.language.template import ExpressionError, UnresolvedPath
from fanfold.steps.order import CallJob, GroupJob, Job, Order, Outcome
from fanfold.steps.step_type import (
    Filling,
    LeafType,
    Preparation,
    StepLabel,
    StepReply,
    StepType,
    value_of,
)
from fanfold.steps.values import Values
from fanfold.workspace.artifacts import NOTHING_SEEN

AnyType = StepType[Any, Any]


@cache
def _load(module: str, name: str) -> AnyType:
    kind: AnyType = getattr(import_module(f"fanfold.steps.{module}"), name)()
    return kind


class Unrenderable(Exception):
    """A step's templates cannot be rendered; `failure` is the failure of the step."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def type_of(step: Step) -> AnyType:
    """The type of a step. Raises `step.unknown_type` for a type of another version."""
    load = STEP_TYPES.get(step.type)
    if load is None:
        message = f"step {step.id} is of type {step.type}, which is not known here"
        raise WorldError("step.unknown_type", message, hint="the run was made by another version of Fanfold")
    return load()


def label_of(step: Step) -> StepLabel:
    """How a step is shown: its kind, and its agent or program."""
    kind = type_of(step)
    return kind.label(step, kind.read(step))


def effects_of(step: Step, filling: Filling) -> list[Effect]:
    """The effects of a step beyond reading, derived from the job that is executed; empty if it only reads."""
    kind = type_of(step)
    return list(kind.effects(step, kind.read(step), filling))


def answer(values: Values, node: Node, reply: StepReply) -> Outcome:
    """The outcome of a waiting step after a person's reply. Raises `AuthorError` if it is invalid."""
    kind = type_of(node.step)
    step = Preparation(names=values.at(node), inputs={}, values=values, node=node)
    return kind.answer(step, kind.read(node.step), reply)


def preparation(values: Values, node: Node) -> Preparation:
    """The names and inputs of a step that is about to start. Raises `UnresolvedPath`."""
    names = values.at(node)
    inputs = {key: value_of(value, names) for key, value in node.step.inputs.items()}
    return Preparation(names=names, inputs=inputs, values=values, node=node)


def prepare(values: Values, node: Node) -> Job:
    """The job of a step that is about to start. Raises `Unrenderable`."""
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


class _Header(Struct):
    step: Step


def decode_order(encoded: bytes) -> Order[Job]:
    """The order that `msgspec.json.encode` encoded. The type of its step decides how its job is decoded."""
    generic: Any = Order
    kind = type_of(msgspec.json.decode(encoded, type=_Header).step)
    order: Order[Job] = msgspec.json.decode(encoded, type=generic[kind.job])
    return order


# -----------------------------------------------------------------------------------------------------------
# Steps that contain other steps: groups, which the kernel runs, and workflows, which become child runs


class GroupSteps(StepType[GroupAction, GroupJob]):
    """The step type of groups."""

    syntax = keys.GROUP

    def check(self, step: WrittenStep) -> None:
        """Check the group's output; its steps are checked separately."""
        from fanfold.language.known_values import Viewpoint, known_of_output

        draft = step.draft
        if "output" in draft.entries.nodes and draft.inner is not None:
            inside = TextPlace(draft, draft.inner, draft.inner.names)
            output = read_output(draft.entries.nodes["output"], step.unit.references, inside)
            viewpoint = Viewpoint(step.unit.inputs, draft, draft.inner)
            draft.facts.output = output
            draft.facts.gives = lambda: known_of_output(output, viewpoint)

    def read(self, step: Step) -> GroupAction:
        assert isinstance(step.action, GroupAction)
        return step.action

    def label(self, step: Step, settings: GroupAction) -> StepLabel:
        return StepLabel(
            "group", (settings.goal or settings.phase_kind) if settings.phase else step.description
        )

    def prepare(self, step: Preparation, settings: GroupAction) -> GroupJob:
        del step, settings
        return GroupJob()


class WorkflowSteps(StepType[WorkflowAction, CallJob]):
    """The step type of child workflows."""

    syntax = keys.WORKFLOW

    def check(self, step: WrittenStep) -> None:
        """Record the call; its target is compiled when this file was read."""
        if "workflow" in step.entries.nodes:
            step.unit.calls.append(step.draft)

    def read(self, step: Step) -> WorkflowAction:
        assert isinstance(step.action, WorkflowAction)
        return step.action

    def label(self, _step: Step, settings: WorkflowAction) -> StepLabel:
        return StepLabel("workflow", settings.workflow)

    def prepare(self, step: Preparation, settings: WorkflowAction) -> CallJob:
        del settings
        return CallJob(step.inputs)


STEP_TYPES: dict[str, Callable[[], AnyType]] = {
    "agent": partial(_load, "agent", "AgentSteps"),
    "function": partial(_load, "function", "FunctionSteps"),
    "command": partial(_load, "command", "CommandSteps"),
    "workflow": partial(_load, "table", "WorkflowSteps"),
    "set": partial(_load, "set_and_end", "SetSteps"),
    "ask": partial(_load, "ask", "AskSteps"),
    "wait": partial(_load, "wait", "WaitSteps"),
    "deliver": partial(_load, "deliver", "DeliverSteps"),
    "end": partial(_load, "set_and_end", "EndSteps"),
    "approval": partial(_load, "approval", "ApprovalSteps"),
    "group": partial(_load, "table", "GroupSteps"),
}
STEPS.load(STEP_TYPES)  # the compiler of recipes gets the types from here


def register(kind: LeafType[Any, Any]) -> None:
    """Register a step type for the host and for the compiler of recipes."""
    STEP_TYPES[kind.name] = lambda: kind
    STEPS.add(kind)
