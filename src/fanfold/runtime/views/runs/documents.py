"""A run as every surface shows it: documents made from a folded tree, and from the rows of lists.

A view never changes anything and needs no lease, so it can be made by any process at any time. Whoever shows
one encodes it; the shapes are what scripts rely on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from fanfold.errors import EXIT_BUDGET, EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, EXIT_WAITING
from fanfold.kernel.events import Failure
from fanfold.kernel.holding import held_back
from fanfold.kernel.lifecycle import CANCELLED, COMPLETED, PAUSED, RUN_TERMINAL
from fanfold.kernel.nodes import Composite, Node, Run
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.records.memory import FileChange
from fanfold.runtime.records.subagents import is_agent, session_of
from fanfold.runtime.views.approvals import ApprovalDocument, approval_document, is_open
from fanfold.runtime.views.items import item_around
from fanfold.runtime.views.runs.rows import (
    FailureDocument,
    OwnerDocument,
    RunUsage,
    StepUsage,
    failure_document,
    run_row,
    run_usage,
    step_usage,
)
from fanfold.runtime.views.standing import may_write, reason_of, status_of, stopped_at
from fanfold.runtime.views.times import when
from fanfold.text.excerpts import shorten

SHOWN_CHARS = 60
"""Of an output, where a document is shown in one line."""


class StepResult(Struct, frozen=True, omit_defaults=True):
    """One step instance. `reason`, `approval` and `warning` only where there is one."""

    status: str
    type: str
    output: JSON
    error: FailureDocument | None
    attempts: int
    started_at: str | None
    ended_at: str | None
    usage: StepUsage | None
    reason: str = ""
    approval: ApprovalDocument | None = None
    """What a person is asked now."""
    warning: FailureDocument | None = None
    """What went wrong without keeping the step from an output."""

    def __repr__(self) -> str:
        told = f" {shorten(repr(self.output), SHOWN_CHARS)}" if self.output is not None else ""
        why = f" [{self.error.code}]" if self.error is not None else ""
        return f"<{self.type} step, {self.status}{why}{told}>"


class InspectStepDocument(StepResult, frozen=True, kw_only=True):
    """One step with everything that is known about it. `path` is its path in its run."""

    run_id: str
    path: str
    item: str
    """What the item is called that it works on; empty outside of maps."""
    holds: list[str]
    """The steps, items or rounds right inside of it."""
    role: str | None
    task: str
    """What its agent was asked, shortened."""
    session_id: str | None
    """Of its latest attempt: `fanfold transcript` shows it."""
    read_set: list[str]
    write_set: list[str]
    changes: list[FileChange]


class RunDocument(Struct, frozen=True):
    """What a run gave, or has given so far. `steps` are its own steps, groups and instances by path."""

    run_id: str
    recipe: str
    version: int
    status: str
    output: JSON
    error: FailureDocument | None
    steps: dict[str, StepResult]
    usage: RunUsage
    changes: list[FileChange]
    children: list[str]

    def __repr__(self) -> str:
        told = f" {shorten(repr(self.output), SHOWN_CHARS)}" if self.output is not None else ""
        why = f" [{self.error.code}]" if self.error is not None else ""
        return f"<run {self.run_id} of {self.recipe}@{self.version}, {self.status}{why}{told}>"


class Used(Struct, frozen=True):
    """How much of a limit is used."""

    used: int
    of: int


class BudgetDocument(Struct, frozen=True):
    tokens: int | None
    micro_usd: int | None


class StateDocument(Struct, frozen=True):
    """What the scheduler holds about a run tree."""

    owner: OwnerDocument | None
    epoch: int
    events: int
    slots: Used
    agents: Used
    steps: Used
    budget: BudgetDocument
    pausing: str
    approvals: int
    retries_waiting: int
    held_back: list[str]
    late_results: int
    active_ms: int


class InspectDocument(RunDocument, frozen=True):
    """A run, where it stands in its tree, and its child runs. `owner` is that of the whole tree."""

    root_run_id: str
    parent_run_id: str | None
    nesting_depth: int
    execution_path: str
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    forked_from: str | None
    inputs: dict[str, JSON]
    runs: list[InspectDocument]
    owner: OwnerDocument | UnsetType | None = UNSET
    stopped_at: str | None = None
    """When its time stopped, where it is paused."""
    state: StateDocument | UnsetType = UNSET


def run_document(tree: RunTree, run: Run | None = None, only: Collection[str] | None = None) -> RunDocument:
    """A run as its tree is now; of its steps `only` those, by their path in the tree, where that is given."""
    run = run or tree.root
    usage, agents = tree.spent(run)
    error = run_error(tree, run)
    return RunDocument(
        run_id=run.id,
        recipe=run.plan.name,
        version=run.plan.version,
        status=run_status(tree.state, run),
        output=tree.blobs.get(run.output) if run.output is not None else None,
        error=failure_document(error, run.nodes.get(error.step) if error is not None else None),
        steps={
            path: step_document(tree, node)
            for path, node in run.nodes.items()
            if only is None or run.tree_path(path) in only
        },
        usage=run_usage(usage, agents),
        changes=tree.memory.changes.get(run.id, []),
        children=[other.id for other in tree.state.runs.values() if other.parent is run],
    )


def inspect_document(tree: RunTree, run: Run, only: Collection[str] | None = None) -> InspectDocument:
    """The same with its place in the tree, and the runs below it."""
    row = structs.asdict(run_row(tree.head(run), stopped_at=stopped_at(tree)))
    return InspectDocument(
        **row | structs.asdict(run_document(tree, run, only)),
        inputs=tree.values.inputs(run),
        runs=[
            inspect_document(tree, other, only) for other in tree.state.runs.values() if other.parent is run
        ],
    )


def steps_by_tree_path(run: InspectDocument) -> dict[str, StepResult]:
    """The steps of a run and of the runs below it, by where they stand in the whole tree."""
    prefix = f"{run.execution_path}/" if run.execution_path else ""
    found = {f"{prefix}{path}": step for path, step in run.steps.items()}
    for child in run.runs:
        found |= steps_by_tree_path(child)
    return found


def step_document(tree: RunTree, node: Node) -> StepResult:
    """One step instance as its tree is now."""
    usage = tree.memory.usage.get((node.run.id, node.path))
    return StepResult(
        status=status_of(tree, node),
        type=node.step.type,
        output=tree.blobs.get(node.output) if node.output is not None else None,
        error=failure_document(node.error, node) if node.status != COMPLETED else None,
        warning=failure_document(node.error, node) if node.status == COMPLETED else None,
        attempts=node.attempt,
        started_at=when(node.started_at),
        ended_at=when(node.ended_at),
        usage=step_usage(usage) if usage is not None else None,
        reason=reason_of(tree, node),
        approval=approval_document(tree, node) if is_open(node) else None,
    )


def inspect_step_document(tree: RunTree, node: Node) -> InspectStepDocument:
    """The same with what it was asked, may touch and changed."""
    address = (node.run.id, node.path)
    return InspectStepDocument(
        **structs.asdict(step_document(tree, node)),
        run_id=node.run.id,
        path=node.path,
        item=item_around(tree, node),
        holds=[one.path for one in node.children] if isinstance(node, Composite) else [],
        role=node.step.traits.role,
        task=tree.memory.tasks.get(address, ""),
        session_id=session_of(node) if node.attempt and is_agent(node) else None,
        read_set=list(node.read_set),
        write_set=may_write(node.step, node.write_set),
        changes=[row for row in tree.memory.changes.get(node.run.id, []) if row.step == node.path],
    )


def state_document(tree: RunTree, owner: OwnerDocument | None) -> StateDocument:
    """What the scheduler holds about a tree."""
    state = tree.state
    return StateDocument(
        owner=owner,
        epoch=state.epoch,
        events=tree.tree_seq,
        slots=Used(state.live, state.slots),
        agents=Used(state.agents, state.max_agents),
        steps=Used(state.instances, state.max_steps),
        budget=BudgetDocument(state.ledger.max_tokens, state.ledger.max_micro_usd),
        pausing=state.pausing,
        approvals=state.approvals,
        retries_waiting=state.backoffs,
        held_back=held_back(state),
        late_results=state.late,
        active_ms=state.clock,
    )


# Facts that several views need


def indented(value: JSON) -> str:
    """An output as a person reads it: text as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def exit_status(tree: RunTree) -> int:
    """The exit status that says how a run stands."""
    status = run_status(tree.state, tree.root)
    if status == COMPLETED:
        return EXIT_OK
    if status == CANCELLED:
        return EXIT_CANCELLED
    if status in RUN_TERMINAL:
        return EXIT_FAILED
    if status == PAUSED and tree.state.pausing == "budget":
        return EXIT_BUDGET
    return EXIT_WAITING


def waiting_proposals(tree: RunTree, run: Run | None = None) -> dict[str, int]:
    """Tree path to the number of changed files, for each step whose proposal waits; of the tree, or a run."""
    waiting: dict[str, int] = {}
    for other in tree.state.runs.values() if run is None else [run]:
        for row in tree.memory.changes.get(other.id, []):
            if row.state == "proposed":
                path = other.tree_path(row.step)
                waiting[path] = waiting.get(path, 0) + 1
    return waiting


def how_to_retry(tree: RunTree) -> str:
    """The command that runs again what did not succeed in a run that is over; empty where there is none."""
    root = tree.root
    over = root.status in RUN_TERMINAL and root.status != COMPLETED and not root.plan.open
    return f"fanfold retry {root.id}" if over else ""


def run_error(tree: RunTree, run: Run) -> Failure | None:
    """Why a run did not complete, or what holds it."""
    if run.error is None and run is tree.root and tree.state.pausing:
        held = tree.memory.held_by
        if held is not None:
            return structs.replace(held, message=f"the run is paused: {held.message}")
        return Failure("budget" if tree.state.pausing == "budget" else "cancelled", "run.paused", _held(tree))
    return run.error


def _held(tree: RunTree) -> str:
    if tree.state.pausing != "budget":
        return f"the run is paused ({tree.state.pausing})"
    limits = sorted(
        {limit for _, _, limit in tree.state.starved} | ({"max_steps"} if tree.state.oversize else set())
    )
    if "budget" in limits and tree.state.ledger.unknowable:
        return "the run is paused: what it spent has no known price, so a budget in dollars cannot be kept"
    return f"the run is paused: {', '.join(limits) or 'budget'} reached"


class PublishedFile(Struct, frozen=True, kw_only=True):
    """`name` is its path below the run's `artifacts/`, `path` that from the project's folder."""

    run_id: str
    step: str
    """The step that published it last, by its path in its run."""
    name: str
    path: str
    size: int
    sha256: str


class ArtifactList(Struct, frozen=True):
    items: list[PublishedFile]


def artifacts_of(tree: RunTree, run: Run) -> Iterator[PublishedFile]:
    """What was published in one run; a run below it has a folder of its own."""
    for step, one in tree.memory.artifacts.get(run.id, {}).values():
        yield PublishedFile(
            run_id=run.id,
            step=step,
            name=one.path,
            path=f".fanfold/runs/{run.id}/artifacts/{one.path}",
            size=one.size,
            sha256=one.sha256,
        )


def artifacts_below(tree: RunTree, run: Run) -> Iterator[PublishedFile]:
    """What was published in a run and in those below it."""
    yield from artifacts_of(tree, run)
    for child in run.children:
        yield from artifacts_below(tree, child)
