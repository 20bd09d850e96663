"""How the simulated host answers each command: rendered, evaluated and folded like a real one."""

from __future__ import annotations

from typing import Any

from fanfold.kernel.commands import (
    Command,
    Conclude,
    Create,
    Evaluate,
    Finish,
    Pause,
    Queue,
    Retry,
    Skip,
    Start,
    Stop,
)
from fanfold.kernel.events import Created, Data, Decided, Failure, Finished, Paused, StepEvent, SubagentEvent
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import LEAF, Composite, Loop, Node, State, is_shared_writer
from fanfold.kernel.replies import BY_DEFAULT
from fanfold.recipe.types.approval import ApprovalBody
from fanfold.recipe.types.body import read_body
from fanfold.testing.values import NOWHERE, fill_sets
from fanfold.testing.world import SimulatedWorld

_EXPRESSION_FAILED = Failure("agent", "expression.failed", "the expression cannot be evaluated")
_NOT_RENDERED = Failure("agent", "template.unresolved", "the prompt cannot be rendered", retryable=False)


def answer(world: SimulatedWorld, state: State, command: Command) -> Data:
    """The one event that answers a command."""
    match command:
        case Evaluate():
            return _evaluate(world, state, command)
        case Queue():
            return _queue(_node(state, command))
        case Start():
            return _start(world, state, command)
        case Create():
            return _create(world, state, command)
        case Skip(step=step, reason=reason):
            return StepEvent(step, "skipped", reason=reason)
        case Retry():
            return _retry(state, command)
        case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
            return StepEvent(step, "stopping", attempt, execution, reason=reason)
        case Conclude():
            return _conclude(world, state, command)
        case Finish():
            return _finish(world, state, command)
        case Pause(reason=reason):
            return Paused(reason)


def _node(state: State, command: Evaluate | Queue | Start | Retry | Conclude) -> Node:
    return state.runs[command.run].nodes[command.step]


def _evaluate(world: SimulatedWorld, state: State, command: Evaluate) -> Data:
    node = _node(state, command)
    step = node.step
    decided = Decided(step=node.path, what=command.what)
    if command.what == "for_each":
        assert step.for_each is not None
        return _decided_items(world, decided, step.for_each)
    if command.what == "until":
        assert isinstance(node, Loop) and step.repeat is not None
        return _with(decided, value=_until(world, step.repeat.until, node.iteration))
    if step.when == "error":
        return _with(decided, error=_EXPRESSION_FAILED)
    passed = step.when != "false" and not (step.when == "coin" and world.rng.random() < 0.5)
    if not (step.templated_sets and node.kind == LEAF):
        return _with(decided, value=passed)
    reads, writes = fill_sets(node, step.read_set), fill_sets(node, step.write_set)
    return _with(decided, value=passed, read_set=reads, write_set=writes)


def _decided_items(world: SimulatedWorld, decided: Decided, expression: str) -> Data:
    if expression == "error":
        return _with(decided, error=_EXPRESSION_FAILED)
    count = int(expression.removeprefix("items:"))
    return _with(decided, value=count, items=world.values.put(["items", count], NOWHERE))


def _until(world: SimulatedWorld, expression: str, iteration: int) -> bool:
    if expression == "coin":
        return world.rng.random() < 0.5
    return expression.startswith("from:") and iteration >= int(expression[5:])


def _with(decided: Decided, **values: Any) -> Decided:
    from msgspec.structs import replace

    return replace(decided, **values)


def _queue(node: Node) -> Data:
    word = "input" if node.step.after else "queued"
    shape = SubagentEvent if node.step.traits.role is not None else StepEvent
    return shape(node.path, word)


def _start(world: SimulatedWorld, state: State, command: Start) -> Data:
    node = _node(state, command)
    path, attempt, execution = node.path, command.attempt, command.execution
    if execution == 1 and command.type != "group" and world.faults.hits("unrendered"):
        return StepEvent(path, "failed", attempt, execution, error=_NOT_RENDERED)
    if node.step.traits.waits is not None:
        world.values.see(node)
        timer = node.step.traits.waits == "timer"
        due_at = world.now + world.rng.choice((0, 40, 400)) if timer else 0
        return StepEvent(path, "waiting", attempt, execution, due_at=due_at)
    if command.type == "group":
        return StepEvent(path, "started", attempt, execution)
    if command.type in ("set", "end"):
        output = world.values.result(node, attempt, world.values.see(node))
        return StepEvent(path, "completed", attempt, execution, output=output)
    if command.type == "workflow":
        return StepEvent(path, "started", attempt, execution, child_run_id=f"r{len(state.runs)}")
    if is_shared_writer(node) and world.faults.hits("held by another run"):
        return StepEvent(path, "held", attempt, execution, summary="another run")
    seen = world.values.see(node)
    if execution == 1 and node.step.cache and world.rng.random() < 0.5:
        world.reached["cached"] += 1
        output = world.values.result(node, attempt, seen)
        return StepEvent(path, "completed", attempt, execution, output=output, cached=True)
    role = node.step.traits.role
    if role is None:
        return StepEvent(path, "started", attempt, execution)
    session = f"s{world.events}"
    return SubagentEvent(
        path, "started", attempt, execution, parent_id=command.run, subagent_id=session, session_id=session,
        role=role, task=path, depth=1,
    )  # fmt: skip


def _create(world: SimulatedWorld, state: State, command: Create) -> Data:
    call = state.runs[command.parent_run].nodes[command.step]
    inputs = world.values.inputs_of_child(call)
    return Created(workflow=command.workflow, inputs=inputs, parent_run_id=command.parent_run)


def _retry(state: State, command: Retry) -> Data:
    node = _node(state, command)
    shape = SubagentEvent if node.step.traits.role is not None else StepEvent
    return shape(command.step, "retrying", node.attempt, node.execution, retry_at=command.retry_at)


def _conclude(world: SimulatedWorld, state: State, command: Conclude) -> Data:
    node = _node(state, command)
    output = None
    if isinstance(node, Composite):
        converged = not (command.error is not None and command.error.code == "step.not_converged")
        if command.status == COMPLETED or not converged:
            output = world.values.folded(node)
    elif command.reason == BY_DEFAULT:
        world.reached["approval default"] += 1
        output = world.values.put({"decision": read_body(ApprovalBody, node.step).default}, NOWHERE)
    status, attempt, execution = command.status, command.attempt, command.execution
    return StepEvent(
        command.step, status, attempt, execution, output, error=command.error, reason=command.reason
    )


def _finish(world: SimulatedWorld, state: State, command: Finish) -> Data:
    run = state.runs[command.run]
    output = world.values.run_output(run, run.plan) if run.scope.entered else None
    return Finished(status=command.status, output=output, error=command.error)
