"""Documents that show a run on every surface, made from a folded tree and from rows of lists.

Making a document changes nothing and needs no lease, so any process can make it at any time. The surface
encodes it. Scripts rely on the shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs
from msgspec.structs import replace

from fanfold.api.approvals import (
    ApprovalDocument,
    approval_document,
    is_open,
    item_around,
    may_write,
    reason_of,
    status_of,
    stopped_at,
)
from fanfold.api.display import (
    FailureDocument,
    OwnerDocument,
    RunRow,
    RunUsage,
    StepUsage,
    dollars,
    failure_document,
    local_time,
    run_row,
    run_usage,
    step_usage,
    when,
)
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import EXIT_BUDGET, EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, EXIT_WAITING
from fanfold.kernel.admission import held_back
from fanfold.kernel.events import Failure, WaitOpened
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import (
    CANCELLED,
    COMPLETED,
    LEAF,
    PAUSED,
    RUN_TERMINAL,
    Composite,
    Node,
    Run,
    State,
    Wait,
)
from fanfold.language.terminal import one_line, shorten
from fanfold.steps.records import ChangedPath, FileChange, is_agent, session_of
from fanfold.steps.values import is_below, runs_below

# -----------------------------------------------------------------------------------------------------------
# File changes of steps


class StepChanges(Struct, frozen=True, kw_only=True):
    """The file changes of one step. `path` is relative to the requested run."""

    path: str
    item: str = ""
    """The name of the item that the step worked on; empty outside of maps."""
    state: str
    """merged, discarded, proposed, applied, undone, gone, kept or left_out.

    gone: the proposal no longer exists. left_out: the step changed only ignored files.
    """
    changes: list[ChangedPath]
    patch: str | None = None
    """The changes to the project as a patch; None if only the log is left."""
    proposal: str | None = None
    workspace: str | None = None
    """The folder with the files of a failed step."""
    why: str = ""
    left_out: list[str] = []
    """The first new files that were not merged because the project ignores them."""
    left_out_count: int = 0


class RunChanges(Struct, frozen=True):
    """The file changes of the steps of a run."""

    run_id: str
    steps: list[StepChanges]


class ApplyResult(Struct, frozen=True, kw_only=True):
    """The changes to the project by an applied proposal; for a dry run, the expected ones."""

    run_id: str
    step: str
    proposal: str
    dry_run: bool
    already: bool = False
    """Whether it was applied before."""
    changes: list[ChangedPath]


class PulledChanges(Struct, frozen=True, kw_only=True):
    """The changes to the user's folder by a pull. `tree` is the pulled tree of the run."""

    run_id: str
    tree: str
    changes: list[ChangedPath]


class UndoneStep(Struct, frozen=True, kw_only=True):
    """The reverted changes of one step. `already`: they were reverted before."""

    path: str
    changes: list[ChangedPath]
    """The changes of the step."""
    already: bool = False


class Undone(Struct, frozen=True, kw_only=True):
    """The changes to the project by reverted merges, newest first; for a dry run, the expected ones."""

    run_id: str
    dry_run: bool
    steps: list[UndoneStep]
    changes: list[ChangedPath]
    """The changes to the project: added means that a file is restored."""


def changes_below(tree: RunTree, run: Run) -> list[FileChange]:
    """Return the changes of a run and the runs below it, in order of merging, with paths in the tree."""
    runs = tree.state.runs
    merged = ((runs[owner], row) for owner, row in tree.memory.merged)
    return [replace(row, step=own.tree_path(row.step)) for own, row in merged if is_below(own, run)]


def net_changes(tree: RunTree, run: Run) -> list[FileChange]:
    """Return the total changes of a run and the runs below it to the project's files, sorted by path.

    Each file names the last step that changed it, by its path in the tree.
    """
    found: dict[str, FileChange] = {}
    for other in tree.state.runs.values():
        for row in tree.memory.changes.get(other.id, []) if is_below(other, run) else ():
            if row.state in ("merged", "applied"):
                before = found.pop(row.path, None)
                kind = _COMBINED.get((before.kind, row.kind), row.kind) if before is not None else row.kind
                if kind:
                    found[row.path] = replace(row, kind=kind, step=other.tree_path(row.step))
    return sorted(found.values(), key=lambda row: row.path)


_COMBINED = {
    ("added", "added"): "added",
    ("added", "modified"): "added",
    ("added", "deleted"): "",
    ("deleted", "added"): "modified",
}
"""The total of two changes of a file, if it is not the second one; empty if that reverts the first."""


# -----------------------------------------------------------------------------------------------------------
# Waits for providers, usage limits and the user's daily caps

MAX_MESSAGE_CHARS = 200
WORDS = {"outage": "is not available", "limit": "is at its usage limit", "daily_cap": "are at the daily cap"}


class WaitDocument(Struct, frozen=True):
    """One subject that cannot be used: why, since when, and when it is tried again."""

    subject: str
    reason: str
    """`outage`, `limit` or `daily_cap`."""
    since: str | None
    until: str | None
    """The time of the next attempt."""
    count: int
    """Number of failed attempts."""
    steps: int
    """How many steps wait for the subject."""
    probing: str
    """The step that is trying the subject now; empty if none."""
    message: str
    text: str
    """The whole wait in one sentence."""


def wait_documents(state: State) -> list[WaitDocument]:
    """Return the open waits of a run tree."""
    return [
        WaitDocument(
            wait.subject,
            wait.reason,
            when(wait.since),
            when(wait.until),
            wait.count,
            len(wait.nodes),
            "" if wait.probe is None else wait.probe.run.tree_path(wait.probe.path),
            "" if wait.error is None else wait.error.message,
            wait_text(wait),
        )
        for wait in state.waits.values()
    ]


def wait_text(wait: Wait | WaitOpened) -> str:
    """Describe a wait in one line: subject, reason, next attempt, failed attempts."""
    error, reason = wait.error, wait.reason
    failed = f" ({wait.count} attempts failed)" if wait.count > 1 else ""
    why = f": {one_line(error.message, MAX_MESSAGE_CHARS)}" if error is not None and error.message else ""
    word = WORDS.get(reason, reason)
    if reason == "outage" and error is not None and error.kind == "rate_limit":
        word = "limits the rate of requests"
    return f"{wait.subject} {word}; next attempt at {local_time(wait.until)}{failed}{why}"


SHOWN_CHARS = 60
"""Length of an output in a `repr`."""


class StepResult(Struct, frozen=True, omit_defaults=True):
    """One step instance. `reason`, `approval` and `warning` are omitted if empty."""

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
    """The question that is open now."""
    warning: FailureDocument | None = None
    """A problem that did not prevent an output."""

    def __repr__(self) -> str:
        return f"<{self.type} step, {_outcome_text(self)}>"


class InspectStepDocument(StepResult, frozen=True, kw_only=True):
    """One step with all its details. `path` is its path in its run."""

    run_id: str
    path: str
    item: str
    """The name of the item that the step works on; empty outside of maps."""
    holds: list[str]
    """The steps, items or rounds directly inside it."""
    role: str | None
    task: str
    """The prompt of its agent, shortened."""
    session_id: str | None
    """The session of its latest attempt: `fanfold transcript` shows it."""
    read_set: list[str]
    write_set: list[str]
    changes: list[FileChange]


class RunDocument(Struct, frozen=True, kw_only=True):
    """The result of a run so far. `steps` are its own steps, groups and instances by path."""

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
    waits: list[WaitDocument] = []
    """Waits for providers, usage limits and caps. Only on the root run."""
    report: str | UnsetType = UNSET
    """The executive report, at most 4,000 characters of Markdown; only on the requested run."""

    def __repr__(self) -> str:
        return f"<run {self.run_id} of {self.recipe}@{self.version}, {_outcome_text(self)}>"


def _outcome_text(shown: StepResult | RunDocument) -> str:
    """Return status, error and output for a `repr`."""
    output = f" {shorten(repr(shown.output), SHOWN_CHARS)}" if shown.output is not None else ""
    return f"{shown.status}{f' [{shown.error.code}]' if shown.error is not None else ''}{output}"


class LimitUse(Struct, frozen=True):
    """How much of a limit is used."""

    used: int
    of: int


class BudgetDocument(Struct, frozen=True):
    tokens: int | None
    micro_usd: int | None


class StateDocument(Struct, frozen=True):
    """The state of the scheduler for a run tree."""

    owner: OwnerDocument | None
    epoch: int
    events: int
    slots: LimitUse
    agents: LimitUse
    steps: LimitUse
    budget: BudgetDocument
    pausing: str
    approvals: int
    retries_waiting: int
    held_back: list[str]
    late_results: int
    active_ms: int


class InspectDocument(RunDocument, frozen=True, kw_only=True):
    """A run, its place in the tree, and its child runs. `owner` is the owner of the whole tree."""

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
    """When its clock stopped, if it is paused."""
    state: StateDocument | UnsetType = UNSET


def run_document(tree: RunTree, run: Run | None = None, only: Collection[str] | None = None) -> RunDocument:
    """Return the document of a run. `only` selects steps by their path in the tree."""
    run = run or tree.root
    usage, agents = tree.spent(run)
    shown = {path: node for path, node in run.nodes.items() if only is None or run.tree_path(path) in only}
    return RunDocument(
        run_id=run.id,
        recipe=run.plan.name,
        version=run.plan.version,
        status=run_status(tree.state, run),
        output=tree.blobs.get(run.output) if run.output is not None else None,
        error=_run_failure(tree, run),
        steps={path: step_document(tree, node) for path, node in shown.items()},
        usage=run_usage(usage, agents),
        changes=changes_below(tree, run),
        children=[child.id for child in run.children],
        waits=wait_documents(tree.state) if run is tree.root else [],
    )


def inspect_document(tree: RunTree, run: Run, only: Collection[str] | None = None) -> InspectDocument:
    """Return the document of a run with its place in the tree and the runs below it."""
    row = structs.asdict(run_row(tree.head(run), stopped_at=stopped_at(tree)))
    return InspectDocument(
        **row | structs.asdict(run_document(tree, run, only)),
        inputs=tree.values.inputs(run),
        runs=[inspect_document(tree, child, only) for child in run.children],
    )


def steps_by_tree_path(run: InspectDocument) -> dict[str, StepResult]:
    """Return the steps of a run and of the runs below it, by their path in the whole tree."""
    prefix = f"{run.execution_path}/" if run.execution_path else ""
    found = {f"{prefix}{path}": step for path, step in run.steps.items()}
    for child in run.runs:
        found |= steps_by_tree_path(child)
    return found


def step_document(tree: RunTree, node: Node) -> StepResult:
    """Return the result of one step instance."""
    usage = tree.usage_of(node)
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
    """Return the document of a step with its prompt, its read and write sets, and its changes."""
    return InspectStepDocument(
        **structs.asdict(step_document(tree, node)),
        run_id=node.run.id,
        path=node.path,
        item=item_around(tree, node),
        holds=[one.path for one in node.children] if isinstance(node, Composite) else [],
        role=node.step.traits.role,
        task=tree.memory.tasks.get((node.run.id, node.path), ""),
        session_id=session_of(node) if node.attempt and is_agent(node) else None,
        read_set=list(node.read_set),
        write_set=may_write(node.step, node.write_set),
        changes=tree.memory.changes_of(node.run.id, node.path),
    )


def state_document(tree: RunTree, owner: OwnerDocument | None) -> StateDocument:
    """Return the state of the scheduler for a tree."""
    state = tree.state
    return StateDocument(
        owner=owner,
        epoch=state.epoch,
        events=tree.tree_seq,
        slots=LimitUse(state.live, state.slots),
        agents=LimitUse(state.agents, state.max_agents),
        steps=LimitUse(state.instances, state.max_steps),
        budget=BudgetDocument(state.ledger.max_tokens, state.ledger.max_micro_usd),
        pausing=state.pausing,
        approvals=state.approvals,
        retries_waiting=state.backoffs,
        held_back=held_back(state),
        late_results=state.late,
        active_ms=state.clock,
    )


# Facts for several documents


def indented(value: JSON) -> str:
    """Return an output for people: text unchanged, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def exit_status(tree: RunTree) -> int:
    """Return the exit status for the current status of a run."""
    status = run_status(tree.state, tree.root)
    if status in RUN_TERMINAL:
        return {COMPLETED: EXIT_OK, CANCELLED: EXIT_CANCELLED}.get(status, EXIT_FAILED)
    return EXIT_BUDGET if status == PAUSED and tree.state.pausing == "budget" else EXIT_WAITING


def waiting_proposals(tree: RunTree, run: Run | None = None) -> dict[str, int]:
    """Tree path to number of changed files for each step with an open proposal, in the tree or in one run."""
    runs = tree.state.runs.values() if run is None else [run]
    rows = ((other, row) for other in runs for row in tree.memory.changes.get(other.id, []))
    return Counter(other.tree_path(row.step) for other, row in rows if row.state == "proposed")


def how_to_retry(tree: RunTree) -> str:
    """Return the command that retries a run that did not succeed; empty if there is none."""
    root = tree.root
    over = root.status in RUN_TERMINAL and root.status != COMPLETED and not root.plan.open
    return f"fanfold retry {root.id}" if over else ""


PAUSED_BECAUSE = "the run is paused: "
PAUSES = {"requested": "a person asked for it", "interrupted": "its process was interrupted"}
"""The reasons of a pause that has no cause in the run itself."""


def run_error(tree: RunTree, run: Run) -> Failure | None:
    """Return why a run did not complete, or why it is paused."""
    if run.error is None and run is tree.root and (pausing := tree.state.pausing):
        held = tree.memory.held_by
        if held is not None:
            return replace(held, message=PAUSED_BECAUSE + held.message)
        if pausing != "budget":
            why = PAUSES.get(pausing, pausing)
            return Failure("cancelled", "run.paused", PAUSED_BECAUSE + why)
        return Failure("budget", "run.paused", PAUSED_BECAUSE + _limit_text(tree.state))
    return run.error


def _limit_text(state: State) -> str:
    """Describe the limits that a run reached; of a budget with the amount spent."""
    limits = {limit for _, _, limit in state.starved} | ({"max_steps"} if state.oversize else set())
    text, ledger = f"{', '.join(sorted(limits)) or 'budget'} reached", state.ledger
    if limits - {"budget"}:
        return text
    if ledger.unknowable:
        return "the price of its spending is unknown, so a budget in dollars cannot be enforced"
    if ledger.max_micro_usd is not None:
        spent, most = ledger.spent_micro_usd / 1_000_000, ledger.max_micro_usd / 1_000_000
        text += f", ${spent:.2f} of ${most:.2f} spent"
    if ledger.max_tokens is not None:
        text += f", {ledger.spent_tokens:,} of {ledger.max_tokens:,} tokens spent"
    return text


def _run_failure(tree: RunTree, run: Run) -> FailureDocument | None:
    error = run_error(tree, run)
    return failure_document(error, run.nodes.get(error.step) if error is not None else None)


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
    """Yield the published files of one run, without the runs below it."""
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
    """Yield the published files of a run and the runs below it."""
    for one in runs_below(run):
        yield from artifacts_of(tree, one)


# -----------------------------------------------------------------------------------------------------------
# The head of a run: status, progress, cost


class SpendCap(Struct, frozen=True):
    """The budget of the whole tree; null without a limit."""

    usd: float | None
    tokens: int | None


class Breadcrumb(Struct, frozen=True):
    """A run above; `path` is the step there that called the next one."""

    run_id: str
    recipe: str
    path: str


class RunHeadDocument(RunRow, frozen=True, kw_only=True):
    """`seq` is the last folded event, `reach` the last recorded one. They differ for an earlier state."""

    description: str
    seq: int
    reach: int
    at: int
    """When the last folded event was recorded, in milliseconds."""
    counts: dict[str, int]
    """Number of leaf steps in each status, in this run and the runs below it."""
    cap: SpendCap
    breadcrumbs: list[Breadcrumb]
    pausing: str
    waits: list[WaitDocument]
    """Waits for providers, usage limits and caps."""
    growing: bool
    """Whether steps may still be added."""


def run_head(tree: RunTree, run: Run, *, reach: int | None = None) -> RunHeadDocument:
    """Return the head of a run from its folded tree."""
    row = replace(run_row(tree.head(run), stopped_at=stopped_at(tree)), error=_run_failure(tree, run))
    ledger = tree.state.ledger
    above, inner = [], run
    while inner.parent is not None and inner.call is not None:
        above.append(Breadcrumb(inner.parent.id, inner.parent.plan.name, inner.call.path))
        inner = inner.parent
    leaves = (node for one in runs_below(run) for node in one.nodes.values() if node.kind == LEAF)
    return RunHeadDocument(
        **structs.asdict(row),
        description=run.plan.description,
        seq=tree.tree_seq,
        reach=tree.tree_seq if reach is None else reach,
        at=tree.state.now,
        counts=dict(Counter(status_of(tree, node) for node in leaves)),
        cap=SpendCap(dollars(ledger.max_micro_usd), ledger.max_tokens),
        breadcrumbs=above[::-1],
        pausing=tree.state.pausing,
        waits=wait_documents(tree.state),
        growing=run.growing,
    )
