"""A host for scenario tests: answers commands at once and lets the test report results by hand."""

from __future__ import annotations

from collections.abc import Callable
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
from fanfold.kernel.decide import decide, next_timer
from fanfold.kernel.events import (
    CancelRequested,
    Envelope,
    Event,
    ExecutionRef,
    Failure,
    LimitsRaised,
    PauseRequested,
    RunCreated,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    Settings,
    StepAdded,
    StepEvent,
    TimerFired,
    Usage,
    ValueDecided,
    WorkflowEvent,
    log_line,
    read_line,
    type_name,
)
from fanfold.kernel.invariants import Auditor
from fanfold.kernel.plan import GroupAction, Limits, Plan, Repeat, Step, WorkflowAction
from fanfold.kernel.state import Node, State
from fanfold.kernel.transitions import comes_after, create_state, evolve, find_node, fold, mark_late
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody
from fanfold.steps.function import FunctionBody

Answer = Callable[[Evaluate], Any]


def agent(id: str, *deps: str, **more: Any) -> Step:
    """An agent step; a `write_set` makes it an isolated writer unless the mode is given."""
    if "write_set" in more:
        more.setdefault("posture", "writer")
        more.setdefault("workspace_mode", "isolated")
    return Step(id=id, action=AgentBody(prompt=id).action(), depends_on=deps, **more)


def function(id: str, *deps: str, **more: Any) -> Step:
    return Step(id=id, action=FunctionBody(handler=id).action(), depends_on=deps, **more)


def command(id: str, *deps: str, **more: Any) -> Step:
    return Step(id=id, action=CommandBody(run=("true",)).action(), depends_on=deps, **more)


def approval(id: str, *deps: str, default: str | None = None, **more: Any) -> Step:
    return Step(
        id=id, action=ApprovalBody(approve="go on?", default=default).action(), depends_on=deps, **more
    )


def group(id: str, *steps: Step, deps: tuple[str, ...] = (), **more: Any) -> Step:
    caps = {name: more.pop(name) for name in ("max_concurrency", "max_agents") if name in more}
    return Step(id=id, action=GroupAction(steps=steps, **caps), depends_on=deps, **more)


def call(id: str, workflow: str, *deps: str, **more: Any) -> Step:
    return Step(id=id, action=WorkflowAction(workflow=workflow), depends_on=deps, **more)


def repeat(until: str = "done", max_iterations: int = 2) -> Repeat:
    return Repeat(until, max_iterations)


def plan(*steps: Step, workflows: dict[str, Plan] | None = None, limits: Limits | None = None) -> Plan:
    return Plan(name="p", steps=steps, workflows=workflows or {}, limits=limits or Limits())


class Drive:
    """One run tree. `values` answers expressions by tree path: a number, a bool, a Failure or sets."""

    def __init__(self, plan: Plan, *, values: dict[str, Any] | None = None, **settings: Any) -> None:
        self.values = values or {}
        self.at = 1_000
        self.epoch = 1
        self.lines: list[bytes] = []
        self.seqs: dict[str, int] = {}
        self.starts: list[str] = []
        self.stops: list[tuple[str, str]] = []
        self.auditor = Auditor()
        created = RunCreated(plan=plan, settings=Settings(**settings), epoch=1)
        self.state: State = create_state(Event("r", self.at, created))
        self._store(Event("r", self.at, created))
        self.report_run(RunStarted())

    # Reports from outside

    def report_run(self, data: WorkflowEvent, run: str = "r") -> None:
        self._append(Event(run, self.at, data))
        self._answer_all()

    def cancel(self, run: str = "r") -> None:
        self.report_run(CancelRequested(), run)

    def pause(self) -> None:
        self.report_run(PauseRequested())

    def add(self, *steps: Step) -> None:
        for step in steps:
            self.report_run(StepAdded(step=step))

    def send(self, name: str, turn: int) -> str:
        """The next turn of a child of an open run; its path."""
        turns = [self.node(name if number == 1 else f"{name}#{number}") for number in range(1, turn)]
        action = AgentBody(prompt="and now?", continue_from=turns[-1].path).action()
        self.add(Step(id=f"{name}#{turn}", action=action, after=comes_after(turns)))
        return f"{name}#{turn}"

    def report(self, path: str, status: str = "completed", **more: Any) -> None:
        """The result of the execution under way at a tree path (or of the one given)."""
        node = self.node(path)
        more.setdefault("attempt", node.attempt)
        more.setdefault("execution", node.execution)
        event = Event(node.run.id, self.at, StepEvent(node.path, status, **more))
        self._append(mark_late(self.state, event))
        self._answer_all()

    def fail(self, path: str, kind: str = "agent", **more: Any) -> None:
        self.report(path, "failed", error=Failure(kind, f"{kind}.test", "it broke", **more))

    def complete(self, *paths: str, tokens: int = 0) -> None:
        for path in paths:
            self.report(path, usage=Usage(tokens, 0, 0) if tokens else None)

    def complete_all(self) -> None:
        """Complete whatever runs, in plan order, until nothing runs any more."""
        while running := self.running():
            self.complete(running[0])

    def wake(self) -> None:
        due = next_timer(self.state)
        assert due is not None
        self.at = max(self.at, due)
        self.report_run(TimerFired())

    def resume(self, raised: LimitsRaised | None = None, continues: tuple[str, ...] = ()) -> None:
        """Resume with a new owner; `continues` names the steps whose process survived."""
        self.epoch += 1
        kept = [self.node(path) for path in continues]
        refs = tuple(ExecutionRef(node.run.id, node.path, node.attempt, node.execution) for node in kept)
        self.report_run(RunResumed(self.epoch, raised, continues=refs))

    def crash(self) -> None:
        """Forget everything but the log."""
        self.state = fold(read_line(line)[1] for line in self.lines)

    # Views

    def node(self, path: str) -> Node:
        node = find_node(self.state, path)
        assert node is not None, path
        return node

    def status(self, path: str = "") -> str:
        return self.node(path).status if path else self.state.root.status

    def statuses(self) -> dict[str, str]:
        rows = (node for run in self.state.runs.values() for node in run.nodes.values())
        return {node.run.tree_path(node.path): node.status for node in rows}

    def running(self) -> list[str]:
        live = sorted(self.state.in_flight.values(), key=lambda node: node.order)
        return [n.run.tree_path(n.path) for n in live if n.status == "running" and not n.lost]

    # Answers

    def _answer_all(self) -> None:
        while commands := decide(self.state):
            self._append(self._answer(commands[0]))
        if self.state.root.status in ("completed", "partial", "failed", "cancelled", "timed_out"):
            assert self.auditor.close(self.state) == []

    def _answer(self, command: Command) -> Event:
        run = self.state.runs[command.run]
        return Event(command.run, self.at, self._data(command, run.tree_path(getattr(command, "step", ""))))

    def _data(self, command: Command, path: str) -> WorkflowEvent | StepEvent:
        match command:
            case Evaluate(step=step, what=what):
                return self._decided(
                    step, what, self.values.get(f"{path}:{what}", self.values.get(path, True))
                )
            case Queue(step=step):
                return StepEvent(step, "queued")
            case Start(step=step, type=kind, attempt=attempt, execution=execution):
                self.starts.append(path)
                if path in self.values and isinstance(self.values[path], StepEvent):
                    given: StepEvent = self.values[path]
                    return given
                child = f"run-{path}" if kind == "workflow" else ""
                waits = self.state.runs[command.run].nodes[step].step.traits.waits
                word = "started" if waits is None else "waiting"
                return StepEvent(step, word, attempt, execution, child_run_id=child)
            case Create(workflow=workflow, parent_run=parent):
                return RunCreated(workflow=workflow, parent_run_id=parent)
            case Skip(step=step, reason=reason):
                return StepEvent(step, "skipped", reason=reason)
            case Retry(step=step, attempt=attempt, retry_at=retry_at):
                return StepEvent(step, "retrying", attempt, retry_at=retry_at)
            case Stop(step=step, attempt=attempt, execution=execution, reason=reason):
                self.stops.append((path, reason))
                return StepEvent(step, "stopping", attempt, execution, reason=reason)
            case Conclude(step=step, status=status, error=error, reason=reason):
                return StepEvent(step, status, command.attempt, command.execution, error=error, reason=reason)
            case Finish(status=status, error=error):
                return RunFinished(status=status, error=error)
            case Pause(reason=reason):
                return RunPaused(reason)

    def _decided(self, step: str, what: str, value: Any) -> ValueDecided:
        if isinstance(value, Failure):
            return ValueDecided(step=step, what=what, error=value)
        if isinstance(value, dict):
            return ValueDecided(step=step, what=what, value=True, **value)
        if isinstance(value, list):
            value = value.pop(0)
        return ValueDecided(step=step, what=what, value=value)

    def _append(self, event: Event) -> None:
        evolve(self.state, event)
        self._store(event)

    def _store(self, event: Event) -> None:
        run = self.state.runs[event.run]
        self.seqs[run.id] = self.seqs.get(run.id, 0) + 1
        parent = run.parent.id if run.parent is not None else None
        envelope = Envelope(
            run.id, self.seqs[run.id], len(self.lines) + 1, event.at, type_name(event.data), event.data,
            run.id, "r", parent, run.depth, run.path, self.epoch,
        )  # fmt: skip
        self.lines.append(log_line(envelope))
        assert self.auditor.observe(envelope, event, self.state) == []
