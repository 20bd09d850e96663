"""Turns each command of the kernel into one event, for the embedded host.

Expressions are evaluated, templates rendered and outputs combined here, exactly once. The event records the
result, so that it is never evaluated again. Nothing here starts work: a `Start` returns its event and adds
its job to `jobs`. The driver runs the job when the event is durable.
"""

from __future__ import annotations

from collections.abc import Callable

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
from fanfold.kernel.events import Data, Failure, RunCreated, RunFinished, RunPaused, StepEvent, ValueDecided
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
from fanfold.language.step_grammar import find_body
from fanfold.language.template import UnresolvedPath
from fanfold.language.terminal import shorten
from fanfold.steps.decisions import UNDECIDABLE, condition_holds, has_converged, items_of, sets_of, undecided
from fanfold.steps.ids import failure_value, new_run_id
from fanfold.steps.records import Memory, is_agent, subagent_event
from fanfold.steps.step_type import CallJob, Job, NeededAgreement, Question, SettledJob, Timer, value_of
from fanfold.steps.table import Unrenderable, prepare, type_of
from fanfold.steps.values import Values, check_output, last_iteration
from fanfold.store.protocol import Claim
from fanfold.store.sealing import Blobs

TASK_CHARS = 200
QUESTION_CHARS = 4_000


class CommandHandler:
    """Turns the commands for one run tree into events.

    `jobs` and `stops` list the work that the driver must start and stop after the next commit.
    """

    def __init__(
        self,
        state: State,
        memory: Memory,
        values: Values,
        blobs: Blobs,
        reuse: Callable[[Node, Job], tuple[str | None, Failure | None]],
        claim: Callable[[Node], Claim | None],
    ) -> None:
        self._state = state
        self._memory = memory
        self._values = values
        self._blobs = blobs
        self._reuse = reuse
        """Returns the output or failure of an earlier run for a step. Called only when a step starts."""
        self._claim = claim
        """Claims the files of a step that works in the project tree. Returns the claim that blocks it."""
        self.defer: Callable[[Node, Job], tuple[str, Job]] = lambda _node, job: ("", job)
        """Returns the open wait that keeps a step from starting, or "" and the job to start."""
        self.jobs: list[tuple[Start, Job]] = []
        self.stops: list[Stop] = []
        self._child_inputs: dict[str, str] = {}

    def answer(self, command: Command) -> Data:
        """The event that records the result of a command."""
        match command:
            case Evaluate():
                return self._evaluate(command, self._node(command.run, command.step))
            case Queue():
                return self._queue(command, self._node(command.run, command.step))
            case Start():
                return self._start(command, self._node(command.run, command.step))
            case Create():
                inputs = self._child_inputs.pop(command.run, None)
                parent = command.parent_run
                return RunCreated(workflow=command.workflow, inputs=inputs, parent_run_id=parent)
            case Skip(step=step, reason=reason):
                return StepEvent(step, SKIPPED, reason=reason)
            case Retry():
                return self._retrying(command, self._node(command.run, command.step))
            case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
                self.stops.append(command)
                return StepEvent(step, "stopping", attempt, execution, reason=reason)
            case Conclude():
                return self._conclude(command, self._node(command.run, command.step))
            case Finish(status=status, error=error):
                output = self._run_output(self._state.runs[command.run])
                return RunFinished(status=status, error=error, output=output)
            case Pause(reason=reason):
                return RunPaused(reason)

    def _node(self, run: str, step: str) -> Node:
        return self._state.runs[run].nodes[step]

    # Expressions

    def _evaluate(self, command: Evaluate, node: Node) -> ValueDecided:
        step, what = command.step, command.what
        try:
            if isinstance(node, Map):
                items = items_of(node.step, self._values.at(node))
                return ValueDecided(step=step, what=what, value=len(items), items=self._blobs.put(items))
            if isinstance(node, Loop) and what == "until":
                assert node.step.repeat is not None
                failed = is_unsuccessful(last_iteration(node))  # then the gate is not evaluated
                passed = not failed and has_converged(node.step.repeat, self._values.gate(node))
                return ValueDecided(step=step, what=what, value=passed)
            return self._admission(node, step)
        except UNDECIDABLE as error:
            return ValueDecided(step=step, what=what, error=undecided(node, error))

    def _admission(self, node: Node, step: str) -> ValueDecided:
        names = self._values.at(node)
        if node.step.when is not None and not condition_holds(node.step.when, names):
            return ValueDecided(step=step, what="admission", value=False)
        read_set = write_set = None
        if node.step.templated_sets:
            read_set, write_set = sets_of(node, names)
        return ValueDecided(step=step, what="admission", value=True, read_set=read_set, write_set=write_set)

    # Starts and ends

    def _queue(self, command: Queue, node: Node) -> Data:
        word = "input" if node.step.after else "queued"
        if is_agent(node):
            return subagent_event(node, word, 1, 0, node.step.description)
        return StepEvent(command.step, word)

    def _start(self, command: Start, node: Node) -> Data:
        try:
            job = prepare(self._values, node)
            if isinstance(job, CallJob):
                return self._start_child(command, node, job)
        except Unrenderable as error:
            return StepEvent(command.step, FAILED, command.attempt, command.execution, error=error.failure)
        if command.execution == 1 and command.attempt == 1:
            output, failed = self._reuse(node, job)
            if output is not None or failed is not None:
                status = COMPLETED if failed is None else FAILED
                return StepEvent(
                    command.step,
                    status,
                    command.attempt,
                    command.execution,
                    output,
                    error=failed,
                    cached=True,
                )
        if job.performed and self._state.waits:
            subject, job = self.defer(node, job)
            if subject:
                return StepEvent(command.step, DEFERRED, command.attempt, command.execution, reason=subject)
        if job.performed:
            in_the_way = self._claim(node) if is_shared_writer(node) else None
            if in_the_way is not None:
                holder = f"run {in_the_way.run_id}, step {in_the_way.step}"
                return StepEvent(command.step, HELD, command.attempt, command.execution, summary=holder)
            self.jobs.append((command, job))
        return self._begun(command, node, job)

    def _begun(self, command: Start, node: Node, job: Job) -> Data:
        step, attempt, execution = command.step, command.attempt, command.execution
        if isinstance(job, SettledJob):
            failure = check_output(node, job.output)
            if failure is not None:
                return StepEvent(step, FAILED, attempt, execution, error=failure)
            output = self._blobs.put(job.output)
            summary = shorten(job.summary, SUMMARY_CHARS)
            return StepEvent(step, COMPLETED, attempt, execution, output, summary, job.warning)
        if isinstance(job, Question):
            asked = shorten(f"{job.question}\n\n{job.show}".rstrip(), QUESTION_CHARS)
            return StepEvent(step, "waiting", attempt, execution, summary=asked)
        if isinstance(job, Timer):
            return StepEvent(step, "waiting", attempt, execution, due_at=job.due_at)
        if is_agent(node):
            task = shorten(type_of(node.step).task(job), TASK_CHARS)
            begun, who = (
                subagent_event(node, "started", attempt, execution, task),
                type_of(node.step).who(job),
            )
            return replace(begun, role=who) if who else begun
        return StepEvent(step, "started", attempt, execution)

    def _start_child(self, command: Start, node: Node, job: CallJob) -> StepEvent:
        action = node.step.action
        assert isinstance(action, WorkflowAction)
        try:
            bound = bind_inputs(self._state.plan.workflows[action.workflow], job.inputs)
        except AuthorError as error:
            failure = Failure("agent", error.code, error.message, error.hint, retryable=False, step=node.path)
            raise Unrenderable(failure) from None
        child = new_run_id()
        self._child_inputs[child] = self._blobs.put(bound)
        return StepEvent(command.step, "started", command.attempt, command.execution, child_run_id=child)

    def _retrying(self, command: Retry, node: Node) -> Data:
        if is_agent(node):
            task = self._memory.tasks.get((command.run, command.step), "")
            return subagent_event(node, "retrying", command.attempt, 0, task, retry_at=command.retry_at)
        return StepEvent(command.step, "retrying", command.attempt, retry_at=command.retry_at)

    def _conclude(self, command: Conclude, node: Node) -> Data:
        status, error, output = command.status, command.error, None
        if status == COMPLETED:
            value, failure = self._folded(node)
            if failure is None and isinstance(node, Scope | WorkflowCall):
                failure = check_output(node, value)  # in maps and loops each instance was checked before
            if failure is not None and isinstance(node, Composite):
                status, error = FAILED, failure
            else:
                output = self._blobs.put(value)
        elif error is not None and error.code == "step.not_converged" and isinstance(node, Loop):
            output = last_iteration(node).output
        elif command.reason == BY_DEFAULT:
            output = self._blobs.put(_at_timeout(node))
        if self._state.plan.open and is_agent(node) and not isinstance(node, Composite):
            task = self._memory.tasks.get((command.run, command.step), node.step.description)
            return subagent_event(node, status, command.attempt, command.execution, task, error=error)
        return StepEvent(
            command.step,
            status,
            command.attempt,
            command.execution,
            output,
            error=error,
            reason=command.reason,
        )

    def _folded(self, node: Node) -> tuple[JSON, Failure | None]:
        """The output of a composite, from its children, or the default of a step that timed out."""
        if isinstance(node, Map):
            return [self._item_output(child) for child in node.children], None
        if isinstance(node, Loop):
            return self._loop_output(node), None
        if isinstance(node, WorkflowCall):
            child = node.child
            assert child is not None
            return (self._blobs.get(child.output) if child.output is not None else None), None
        if isinstance(node, Scope):
            return self._scope_output(node)
        return _at_timeout(node), None

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
        told = dict(body) if isinstance(body, dict) else {"tasks": {}}
        return {**told, "summary": self._values.output(loop.children[-1])}

    def _scope_output(self, scope: Scope) -> tuple[JSON, Failure | None]:
        action = scope.step.action
        assert isinstance(action, GroupAction)
        if action.phase:
            from fanfold.steps.values import to_value

            review = self._values.review(scope)
            told = {} if review is None else {"review": to_value(review)}
            return {"tasks": self._values.tasks(scope), **told}, None
        try:
            return self._rendered(action.output, scope, self._values.inside(scope, scope)), None
        except UnresolvedPath as error:
            message = f"the output of {scope.path} cannot be rendered: {error}"
            return None, Failure("agent", "template.unresolved", message, retryable=False, step=scope.path)

    def _run_output(self, run: Run) -> str | None:
        if not run.scope.children:
            return None
        ended_by = run.ended_by
        if ended_by is not None:
            from fanfold.language.leaf_steps import EndBody

            said = find_body(EndBody, ended_by.step)
            if said is not None and said.output is not None:
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


def asked_event(blobs: Blobs, start: Start, asked: NeededAgreement) -> StepEvent:
    """The event of a step that has prepared its work and needs an approval for it."""
    shown = blobs.put({"question": asked.question, "show": asked.show})
    summary = shorten(f"{asked.question}\n\n{asked.show}", QUESTION_CHARS)
    return StepEvent(start.step, ASKED, start.attempt, start.execution, shown, summary)


def _at_timeout(node: Node) -> JSON:
    """The output of a step that waited until its time-out."""
    kind = type_of(node.step)
    return kind.at_timeout(kind.read(node.step))
