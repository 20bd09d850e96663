"""Answers each command of the kernel with one event, for every host.

`CommandHandler` is the same code for real, forecast and simulated runs. A `World` supplies what differs: the
values of expressions, the jobs of steps, and their outputs. `RunWorld` is the world of a real run. There,
expressions are evaluated, templates rendered and outputs combined exactly once. The event records the result,
so that it is never evaluated again.

Nothing here starts work. The answer to a `Start` passes an order to the world. The driver carries it out when
the event is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from msgspec import to_builtins
from msgspec.structs import replace

from fanfold.agents.backend import SUMMARY_CHARS
from fanfold.errors import AuthorError
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
from fanfold.kernel.decide import decide
from fanfold.kernel.events import (
    Data,
    Failure,
    RunCreated,
    RunFinished,
    RunPaused,
    StepEvent,
    SubagentEvent,
    ValueDecided,
)
from fanfold.kernel.plan import JSON, GroupAction, Output, WorkflowAction
from fanfold.kernel.progress import is_unsuccessful
from fanfold.kernel.state import (
    ASKED,
    BY_DEFAULT,
    COMPLETED,
    DEFERRED,
    FAILED,
    HELD,
    SKIPPED,
    UNSUCCESSFUL,
    Composite,
    Loop,
    Map,
    Node,
    Run,
    Scope,
    State,
    WorkflowCall,
    is_shared_writer,
)
from fanfold.language.inputs import bind_inputs
from fanfold.language.leaf_steps import AgentBody, find_body, read_body
from fanfold.language.template import UnresolvedPath
from fanfold.language.terminal import shorten
from fanfold.steps.ids import failure_value, is_interruption, new_run_id, root_of, session_id
from fanfold.steps.order import CallJob, EarlierTurn, Job, NeededAgreement, Order, Question, SettledJob, Timer
from fanfold.steps.records import Memory, child_of, home_of, is_agent, session_of, subagent_event, turn_before
from fanfold.steps.set_and_end import EndBody
from fanfold.steps.step_type import (
    UNDECIDABLE,
    Unrenderable,
    condition_holds,
    has_converged,
    items_of,
    prepare,
    sets_of,
    type_of,
    undecided,
    value_of,
)
from fanfold.steps.values import Values, check_output, last_iteration, to_value
from fanfold.store.protocol import Blobs, Claim

TASK_CHARS = 200
QUESTION_CHARS = 4_000


class World(ABC):
    """What the answers to commands depend on, besides the state of the kernel.

    By default a world stores no values and has no effects. Outputs are hashes of blobs.
    """

    @abstractmethod
    def decide(self, node: Node, what: str) -> ValueDecided:
        """The value of an expression of a step."""

    @abstractmethod
    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:
        """The job of a step that is about to start, or the event of its end if it needs no job."""

    # Starts

    def reuse(self, _order: Order[Job]) -> tuple[str | None, Failure | None]:
        """The output or failure that replaces the first execution of a step, from an earlier run."""
        return None, None

    def defer(self, _node: Node, order: Order[Job]) -> tuple[str, Order[Job]]:
        """The open wait that keeps a step from starting, or "" and the order to carry out."""
        return "", order

    def claim(self, _node: Node) -> str:
        """Claim files of the project tree for a step. Returns the step that works on them, or ""."""
        return ""

    def begin(self, _order: Order[Job]) -> str:
        """Note an order to carry out when the answer is durable; return its blob if another process does."""
        return ""

    def stop(self, _command: Stop) -> None:
        """Note an execution that is stopped when the answer is durable."""
        return

    def describe(self, _node: Node, _job: Job) -> tuple[str, str]:
        """The task of an agent step that starts, and its role if the role was picked at the start."""
        return "", ""

    def task(self, _node: Node) -> str:
        """The task of an agent step as its start recorded it; empty if it has not started."""
        return ""

    def config(self, _node: Node) -> str:
        """The configuration that a step of an open run was added with; empty for other steps."""
        return ""

    def child_inputs(self, _command: Create) -> str | None:
        """The inputs of a child run that is created."""
        return None

    # Outputs

    def settled(self, _node: Node, _start: Start, _job: SettledJob) -> tuple[str | None, Failure | None]:
        """The output of a step without work, or the failure if it does not match its declaration."""
        return None, None

    def combined(self, _node: Composite) -> tuple[str | None, Failure | None]:
        """The output of a completed group, map, loop or call, or the failure if it has none."""
        return None, None

    def default(self, _node: Node) -> str | None:
        """The output of a step that waited until its time-out."""
        return None

    def run_output(self, _run: Run) -> str | None:
        """The output of a run that finishes."""
        return None


class CommandHandler:
    """Answers the commands for one run tree."""

    def __init__(self, state: State, world: World) -> None:
        self._state = state
        self._world = world

    def answer_all(self, record: Callable[[Command, Data], None]) -> None:
        """Answer every command that is due. `record` applies each answer before the next decision."""
        while commands := decide(self._state):
            record(commands[0], self.answer(commands[0]))

    def answer(self, command: Command) -> Data:
        """The event that records the result of a command."""
        match command:
            case Evaluate(run=run, step=step, what=what):
                return self._world.decide(self._node(run, step), what)
            case Queue():
                node = self._node(command.run, command.step)
                word = "input" if node.step.after else "queued"
                if is_agent(node):
                    return subagent_event(node, word, 1, 0, node.step.description)
                return StepEvent(node.path, word)
            case Start():
                return self._start(command, self._node(command.run, command.step))
            case Create(workflow=workflow, parent_run=parent):
                inputs = self._world.child_inputs(command)
                return RunCreated(workflow=workflow, inputs=inputs, parent_run_id=parent)
            case Skip(step=step, reason=reason):
                return StepEvent(step, SKIPPED, reason=reason)
            case Retry():
                return self._retrying(command, self._node(command.run, command.step))
            case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
                self._world.stop(command)
                return StepEvent(step, "stopping", attempt, execution, reason=reason)
            case Conclude():
                return self._conclude(command, self._node(command.run, command.step))
            case Finish(status=status, error=error):
                output = self._world.run_output(self._state.runs[command.run])
                return RunFinished(status=status, error=error, output=output)
            case Pause(reason=reason):
                return RunPaused(reason)

    def _node(self, run: str, step: str) -> Node:
        return self._state.runs[run].nodes[step]

    def _start(self, command: Start, node: Node) -> Data:
        world, step, attempt, execution = self._world, command.step, command.attempt, command.execution
        job = world.prepare(self._state, node, command)
        if isinstance(job, StepEvent):
            return job
        if isinstance(job, CallJob):
            return StepEvent(step, "started", attempt, execution, child_run_id=job.child)
        order = order_for(command, node, job, world.config(node))
        if execution == 1 and attempt == 1:
            output, failed = world.reuse(order)
            if output is not None or failed is not None:
                status = COMPLETED if failed is None else FAILED
                return StepEvent(step, status, attempt, execution, output, error=failed, cached=True)
        if not job.performed:
            return self._begun(command, node, job)
        if self._state.waits:
            subject, order = world.defer(node, order)
            if subject:
                return StepEvent(step, DEFERRED, attempt, execution, reason=subject)
        holder = world.claim(node) if is_shared_writer(node) else ""
        if holder:
            return StepEvent(step, HELD, attempt, execution, summary=holder)
        stored = world.begin(order)
        started = self._begun(command, node, order.job)
        return replace(started, order=stored) if stored else started

    def _begun(self, command: Start, node: Node, job: Job) -> StepEvent | SubagentEvent:
        step, attempt, execution = command.step, command.attempt, command.execution
        if isinstance(job, SettledJob):
            output, failure = self._world.settled(node, command, job)
            if failure is not None:
                return StepEvent(step, FAILED, attempt, execution, error=failure)
            summary = shorten(job.summary, SUMMARY_CHARS)
            return StepEvent(step, COMPLETED, attempt, execution, output, summary, job.warning)
        if isinstance(job, Question):
            asked = shorten(f"{job.question}\n\n{job.show}".rstrip(), QUESTION_CHARS)
            return StepEvent(step, "waiting", attempt, execution, summary=asked)
        if isinstance(job, Timer):
            return StepEvent(step, "waiting", attempt, execution, due_at=job.due_at)
        if is_agent(node):
            task, role = self._world.describe(node, job)
            started = subagent_event(node, "started", attempt, execution, shorten(task, TASK_CHARS))
            return replace(started, role=role) if role else started
        return StepEvent(step, "started", attempt, execution)

    def _retrying(self, command: Retry, node: Node) -> Data:
        if is_agent(node):
            task = self._world.task(node)
            return subagent_event(node, "retrying", command.attempt, 0, task, retry_at=command.retry_at)
        return StepEvent(command.step, "retrying", command.attempt, retry_at=command.retry_at)

    def _conclude(self, command: Conclude, node: Node) -> Data:
        status, error, output = command.status, command.error, None
        if status == COMPLETED and isinstance(node, Composite):
            output, failure = self._world.combined(node)
            if failure is not None:
                status, error = FAILED, failure
        elif error is not None and error.code == "step.not_converged" and isinstance(node, Loop):
            output = last_iteration(node).output
        elif status == COMPLETED or command.reason == BY_DEFAULT:
            output = self._world.default(node)
        attempt, execution = command.attempt, command.execution
        if self._state.plan.open and is_agent(node) and not isinstance(node, Composite):
            task = self._world.task(node) or node.step.description
            return subagent_event(node, status, attempt, execution, task, error=error)
        return StepEvent(command.step, status, attempt, execution, output, error=error, reason=command.reason)


def order_for(start: Start, node: Node, job: Job, config: str) -> Order[Job]:
    """The order for one execution of a step."""
    continues = node.step.traits.continues is not None
    again = start.attempt > 1 and is_agent(node) and is_interruption(node.error)
    return Order(
        root=root_of(node),
        run=start.run,
        run_path=node.run.path,
        path=start.step,
        attempt=start.attempt,
        execution=start.execution,
        step=node.step,
        job=job,
        read_set=node.read_set,
        write_set=node.write_set,
        config=config,
        home=home_of(node, start.attempt),
        turns=tuple(_turns_before(node)) if continues else (),
        interrupted=session_id(start.run, start.step, start.attempt - 1) if again else "",
        agreed=node.agreed,
        in_open_run=node.run.plan.open,
    )


def _turns_before(node: Node) -> list[EarlierTurn]:
    before = turn_before(node)
    if before is None:
        return []
    proposes = before.status == COMPLETED and before.step.merge == "propose"
    turn = EarlierTurn(
        before.path,
        session=session_of(before) if before.attempt else "",
        prompt="" if before.attempt else read_body(AgentBody, before.step).prompt or "",
        proposal=home_of(before, before.attempt) if proposes else "",
    )
    return [*_turns_before(before), turn]


class Expressions(Protocol):
    """The values of the expressions of steps. The methods raise `UNDECIDABLE` errors."""

    def items(self, node: Map) -> tuple[int, str | None]:
        """The number of items of a map, and the blob of the list if it is stored."""
        ...

    def converged(self, loop: Loop) -> bool:
        """Whether a loop ends after its last iteration."""
        ...

    def admits(self, node: Node, when: str) -> bool:
        """Whether the condition of a step is true."""
        ...

    def sets(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The read-set and write-set of a step with templates in them."""
        ...


def evaluate_expression(values: Expressions, node: Node, what: str) -> ValueDecided:
    """The answer to `Evaluate`: `for_each` of a map, `until` of a loop, or the admission of a step."""
    step = node.path
    try:
        if isinstance(node, Map):
            count, items = values.items(node)
            return ValueDecided(step=step, what=what, value=count, items=items)
        if isinstance(node, Loop) and what == "until":
            return ValueDecided(step=step, what=what, value=values.converged(node))
        if node.step.when is not None and not values.admits(node, node.step.when):
            return ValueDecided(step=step, what=what, value=False)
        read_set, write_set = values.sets(node) if node.step.templated_sets else (None, None)
        return ValueDecided(step=step, what=what, value=True, read_set=read_set, write_set=write_set)
    except UNDECIDABLE as error:
        return ValueDecided(step=step, what=what, error=undecided(node, error))


def not_started(node: Node, start: Start, failure: Failure) -> StepEvent:
    """The event of a step that fails before it starts."""
    return StepEvent(node.path, FAILED, start.attempt, start.execution, error=failure)


class RunWorld(World):
    """The world of a real run: values from the log and the blob store.

    `orders` and `stops` list the work that the driver must start and stop after the next commit.
    """

    def __init__(
        self,
        memory: Memory,
        values: Values,
        blobs: Blobs,
        reuse: Callable[[Order[Job]], tuple[str | None, Failure | None]],
        claim: Callable[[Node], Claim | None],
    ) -> None:
        self._memory = memory
        self._values = values
        self._blobs = blobs
        self._reuse = reuse
        self._claim = claim
        """Claims the files of a step that works in the project tree. Returns the claim that blocks it."""
        self.deferral: Callable[[Node, Order[Job]], tuple[str, Order[Job]]] | None = None
        """Set by the driver: the open wait that keeps a step from starting."""
        self.dispatches: Callable[[Order[Job]], bool] | None = None
        """Set by the driver: whether another process executes an order."""
        self.orders: list[Order[Job]] = []
        self.stops: list[Stop] = []
        self._child_inputs: dict[str, str] = {}

    # Expressions

    def decide(self, node: Node, what: str) -> ValueDecided:
        return evaluate_expression(self, node, what)

    def items(self, node: Map) -> tuple[int, str | None]:
        items = items_of(node.step, self._values.at(node))
        return len(items), self._blobs.put(items)

    def converged(self, loop: Loop) -> bool:
        assert loop.step.repeat is not None
        if is_unsuccessful(last_iteration(loop)):
            return False  # then the gate is not evaluated
        return has_converged(loop.step.repeat, self._values.gate(loop))

    def admits(self, node: Node, when: str) -> bool:
        return condition_holds(when, self._values.at(node))

    def sets(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return sets_of(node, self._values.at(node))

    # Starts

    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:
        try:
            job = prepare(self._values, node)
        except Unrenderable as error:
            return not_started(node, start, error.failure)
        if not isinstance(job, CallJob):
            return job
        action = node.step.action
        assert isinstance(action, WorkflowAction)
        try:
            bound = bind_inputs(state.plan.workflows[action.workflow], job.inputs)
        except AuthorError as error:
            failure = Failure("agent", error.code, error.message, error.hint, retryable=False, step=node.path)
            return not_started(node, start, failure)
        child = new_run_id()
        self._child_inputs[child] = self._blobs.put(bound)
        return replace(job, child=child)

    def reuse(self, order: Order[Job]) -> tuple[str | None, Failure | None]:
        return self._reuse(order)

    def defer(self, node: Node, order: Order[Job]) -> tuple[str, Order[Job]]:
        return ("", order) if self.deferral is None else self.deferral(node, order)

    def claim(self, node: Node) -> str:
        other = self._claim(node)
        return f"run {other.run_id}, step {other.step}" if other is not None else ""

    def begin(self, order: Order[Job]) -> str:
        self.orders.append(order)
        if self.dispatches is None or not self.dispatches(order):
            return ""
        texts = self._memory.texts.get((order.run, order.path), ())
        return self._blobs.put(to_builtins(replace(order, texts=tuple(texts))))

    def stop(self, command: Stop) -> None:
        self.stops.append(command)

    def settled(self, node: Node, _start: Start, job: SettledJob) -> tuple[str | None, Failure | None]:
        failure = check_output(node.step, node.path, node.attempt, job.output)
        return (self._blobs.put(job.output) if failure is None else None), failure

    def child_inputs(self, command: Create) -> str | None:
        return self._child_inputs.pop(command.run, None)

    def describe(self, node: Node, job: Job) -> tuple[str, str]:
        kind = type_of(node.step)
        return kind.task(job), kind.who(job)

    def task(self, node: Node) -> str:
        return self._memory.tasks.get((node.run.id, node.path), "")

    def config(self, node: Node) -> str:
        return (self._memory.added.get(child_of(node)) or "") if self._memory.added else ""

    # Outputs

    def combined(self, node: Composite) -> tuple[str | None, Failure | None]:
        """The output of a composite, from its children."""
        value: JSON = None
        failure: Failure | None = None
        if isinstance(node, Map):
            value = [self._item_output(child) for child in node.children]
        elif isinstance(node, Loop):
            value = self._loop_output(node)
        elif isinstance(node, WorkflowCall):
            assert node.child is not None
            value = self._blobs.get(node.child.output) if node.child.output is not None else None
        else:
            assert isinstance(node, Scope)
            value, failure = self._scope_output(node)
        if failure is None and isinstance(node, Scope | WorkflowCall):
            # In maps and loops each instance was checked before.
            failure = check_output(node.step, node.path, node.attempt, value)
        return (self._blobs.put(value) if failure is None else None), failure

    def default(self, node: Node) -> str | None:
        kind = type_of(node.step)
        return self._blobs.put(kind.at_timeout(kind.read(node.step)))

    def _item_output(self, child: Node) -> JSON:
        if child.status in UNSUCCESSFUL:
            ended = Failure("cancelled", f"step.{child.status}", child.path, retryable=False)
            return {"error": failure_value(child.error or ended, child)}
        return self._values.output(child)

    def _loop_output(self, loop: Loop) -> JSON:
        last = last_iteration(loop)
        body = self._values.output(last) if last.status == COMPLETED else None
        if loop.step.fold is None:
            return body
        tasks = dict(body) if isinstance(body, dict) else {"tasks": {}}
        return {**tasks, "summary": self._values.output(loop.children[-1])}

    def _scope_output(self, scope: Scope) -> tuple[JSON, Failure | None]:
        action = scope.step.action
        assert isinstance(action, GroupAction)
        if action.phase:
            review = self._values.review(scope)
            judged = {} if review is None else {"review": to_value(review)}
            return {"tasks": self._values.tasks(scope), **judged}, None
        try:
            return self._rendered(action.output, scope, self._values.inside(scope, scope)), None
        except UnresolvedPath as error:
            message = f"the output of {scope.path} cannot be rendered: {error}"
            return None, Failure("agent", "template.unresolved", message, retryable=False, step=scope.path)

    def run_output(self, run: Run) -> str | None:
        if not run.scope.children:
            return None
        ended_by = run.ended_by
        if ended_by is not None:
            body = find_body(EndBody, ended_by.step)
            if body is not None and body.output is not None:
                return ended_by.output
        try:
            value = self._rendered(run.plan.output, run.scope, self._values.of_run(run))
        except UnresolvedPath:
            return None
        return self._blobs.put(value) if value is not None else None

    def _rendered(self, output: Output | None, scope: Composite, names: dict[str, JSON]) -> JSON:
        if output is not None:
            return value_of(output, names)
        return self._values.output(scope.children[-1])


def asked_event(blobs: Blobs, order: Order[Job], asked: NeededAgreement) -> StepEvent:
    """The event of a step that has prepared its work and needs an approval for it."""
    shown = blobs.put({"question": asked.question, "show": asked.show, "call": asked.call})
    summary = shorten(f"{asked.question}\n\n{asked.show}", QUESTION_CHARS)
    return StepEvent(order.path, ASKED, order.attempt, order.execution, shown, summary)
