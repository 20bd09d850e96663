"""Workspace events of a step: one struct for each `what` of a `workspace_event`.

These facts are for users, for views and for `fanfold verify`; they have no effect in the kernel. `step`,
`attempt` and `execution` identify the execution, and are filled in when the fact is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SentText
from fanfold.kernel.events import (
    NOTHING_SPENT,
    Event,
    Evidence,
    Failure,
    PauseRequested,
    Payment,
    RequestRefused,
    RunCreated,
    RunFinished,
    RunResumed,
    RunStarted,
    StepAdded,
    StepData,
    StepEvent,
    SubagentEvent,
    Usage,
    ValueDecided,
    WorkflowEvent,
)
from fanfold.kernel.state import ASKED, COMPLETED, TERMINAL, UNSUCCESSFUL, Node
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.steps.ids import session_id, settling_ids
from fanfold.store.protocol import Store
from fanfold.workspace.artifacts import Artifact

SENT = "sent"
"""The kind of session events that are texts of a person for the agent of a step."""
REQUEST_STATES = {"failed_request": "failed", "queued_request": "waits"}
"""The kinds of session events about requests to a model without a response, and the state of the request."""


class ChangedPath(Struct, frozen=True):
    """A changed path; `kind` is added, modified or deleted."""

    path: str
    kind: str


class ViolatedPath(Struct, frozen=True):
    """A change that the step was not allowed to make, and the reason."""

    path: str
    why: str


class ConflictPath(Struct, frozen=True):
    """A path with a merge conflict, and the version of each side."""

    path: str
    why: str
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None


class _Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="what"):
    step: str = ""
    attempt: int = 0
    execution: int = 0


class _Listing(_Fact, frozen=True):
    """A fact with the first rows of a list, and the total number of rows."""

    MOST: ClassVar[int] = 20

    count: int


class Snapshot(_Fact, frozen=True, tag="snapshot"):
    """A step works in its own snapshot."""

    method: str
    session_id: str


class SnapshotReopened(_Fact, frozen=True, tag="reopened"):
    """A step continues in the snapshot of its earlier execution."""

    method: str
    session_id: str


class SandboxUse(_Fact, frozen=True, tag="sandbox"):
    """Programs ran at this sandbox level, with this access at most."""

    level: str
    at: str
    writes: bool
    network: bool
    variables: tuple[str, ...]
    bound: tuple[str, ...]
    programs: tuple[str, ...]
    system: tuple[str, ...]
    private: tuple[str, ...]
    covered: tuple[str, ...] = ()


class SetupRun(_Fact, frozen=True, tag="setup"):
    """The user's setup command made ignored files for this step and others with the same lock files."""

    command: tuple[str, ...]
    ms: int


class StepPlaced(_Fact, frozen=True, tag="placed"):
    """A worker of the cluster executed the step: its name, its machine and its version of Fanfold."""

    worker: str
    machine: str
    version: str


class WatchFailure(_Fact, frozen=True, tag="unwatched"):
    """The changes of a step in the project tree cannot be detected; `why` is the error code."""

    why: str


class Violation(_Listing, frozen=True, tag="violation"):
    """A step made changes that are not allowed."""

    paths: tuple[ViolatedPath, ...]


class ViolationWarning(_Listing, frozen=True, tag="violation_warning"):
    """A change that no step was allowed to make, while several steps could have made it."""

    paths: tuple[ViolatedPath, ...]


class Conflict(_Listing, frozen=True, tag="conflict"):
    """The changes of a step have merge conflicts with changes made meanwhile."""

    paths: tuple[ConflictPath, ...]


class LeftOut(_Listing, frozen=True, tag="left_out"):
    """New files of a step that were not merged, because the project ignores them."""

    paths: tuple[str, ...]


class StoredPack(Struct, frozen=True):
    """A git pack in the store: the tree that it completes, and the blobs of its parts."""

    tree: str
    parts: tuple[str, ...]


class Merge(_Fact, frozen=True, tag="merge"):
    """The changes of a step were merged, proposed, or discarded."""

    mode: str
    proposal: str
    changes: tuple[ChangedPath, ...]
    receipt: str = ""
    """The id of the merge receipt, with which the merge is shown and reverted."""
    tree: str = ""
    """If the run has its own tree: that tree with these changes, or the tree that the step proposes."""
    base: str = ""
    """The tree that the changes were merged into or are proposed for."""
    packs: tuple[StoredPack, ...] = ()
    """What a store needs in order to have the tree if it has the base."""


class RunTreeStored(_Fact, frozen=True, tag="tree"):
    """The run has its own tree: a snapshot of the folder in which it was started."""

    tree: str
    packs: tuple[StoredPack, ...]
    """Everything that a store needs in order to have the tree, oldest first."""
    in_git: bool = False
    """Whether the folder is in a git repository, whose rules about ignored files apply."""


class ArtifactsPublished(_Fact, frozen=True, tag="artifacts"):
    """A step published artifacts."""

    files: tuple[Artifact, ...]


class Apply(_Fact, frozen=True, tag="apply"):
    """A person applied the proposal of a step."""

    proposal: str
    changes: tuple[ChangedPath, ...]
    by: str
    receipt: str = ""


class Undo(_Fact, frozen=True, tag="undo"):
    """A person reverted the merge of a step; `changes` are the effect on the project tree."""

    receipt: str
    changes: tuple[ChangedPath, ...]
    by: str


class Digest(_Fact, frozen=True, tag="digest"):
    """A separate session summarized a part of the input of a fold."""

    session_id: str
    part: int
    why: str = ""
    """Why an extract replaces the digest; empty if there is a digest."""


class Resolve(_Fact, frozen=True, tag="resolve"):
    """An agent resolved the merge conflicts of a step, or tried to."""

    session_id: str
    round: int
    role: str
    paths: tuple[str, ...]
    settled: bool
    why: str = ""


WorkspaceFact: TypeAlias = (
    Snapshot
    | SnapshotReopened
    | SandboxUse
    | SetupRun
    | StepPlaced
    | WatchFailure
    | Violation
    | ViolationWarning
    | Conflict
    | LeftOut
    | Merge
    | RunTreeStored
    | ArtifactsPublished
    | Apply
    | Undo
    | Resolve
    | Digest
)


def workspace_fact(data: Any) -> WorkspaceFact:
    """The fact in the data of a `workspace_event`, either new or read from a log."""
    fact: WorkspaceFact = msgspec.convert(data, WorkspaceFact) if isinstance(data, dict) else data
    return fact


def violation(rows: Sequence[object], *, alone: bool = True) -> Violation | ViolationWarning:
    """The violation for rows with `path` and `why`; a warning unless the step was `alone` in the project."""
    kind = Violation if alone else ViolationWarning
    return kind(count=len(rows), paths=_first(rows, ViolatedPath))


def conflict(rows: Sequence[object]) -> Conflict:
    """The conflict for rows with `path`, `why` and the version of each side."""
    return Conflict(count=len(rows), paths=_first(rows, ConflictPath))


def left_out(paths: Sequence[str]) -> LeftOut:
    """The fact for files that were not merged, because the project ignores them."""
    return LeftOut(count=len(paths), paths=tuple(paths[: _Listing.MOST]))


def _first(rows: Sequence[object], kind: type[Any]) -> tuple[Any, ...]:
    return tuple(msgspec.convert(row, kind, from_attributes=True) for row in rows[: _Listing.MOST])


# -----------------------------------------------------------------------------------------------------------
# The fields of `subagent_event`, which records the life of an agent step
#
# Fields that can be derived from the log are empty when the event is written. `completed` fills them in for
# display. Most steps are children of their run, have their own session and share the workspace.

SHARED = "shared"
DETACHED = "detached"
"""The status of a subagent that should run but has no process."""


def is_agent(node: Node) -> bool:
    """Whether a step is an agent."""
    return node.step.traits.role is not None


def is_lead(node: Node) -> bool:
    """Whether the agent of a step is a lead: a user talks to it, and it may have subagents."""
    return is_agent(node) and not node.step.traits.slot


def subagent_event(
    node: Node, word: str, attempt: int, execution: int, task: str, **more: Any
) -> SubagentEvent:
    """The event with a status of one attempt of an agent step. The status `completed` becomes `finished`."""
    step = node.step
    return SubagentEvent(
        node.path,
        "finished" if word == COMPLETED else word,
        attempt,
        execution,
        parent_id=session_of(node.run.nodes[step.parent]) if step.parent else "",
        subagent_id=child_name(node.path) if node.run.plan.open else "",
        role=step.traits.role or "",
        task=task,
        depth=node.run.depth + depth_of(node) if step.parent else 0,
        workspace="" if step.workspace_mode == SHARED else step.workspace_mode,
        **more,
    )


def completed(event: SubagentEvent, run_id: str, depth: int) -> SubagentEvent:
    """The event with the fields filled in that were empty because they follow from its run."""
    session = event.session_id or session_id(run_id, event.step, max(1, event.attempt))
    return replace(
        event,
        parent_id=event.parent_id or run_id,
        subagent_id=event.subagent_id or session,
        session_id=session,
        depth=event.depth or depth + 1,
        workspace=event.workspace or SHARED,
    )


def home_of(node: Node, attempt: int) -> str:
    """The session whose workspace a step uses.

    It is the step's own session, unless the previous turn was unsuccessful. The step then continues in the
    workspace of that turn.
    """
    before = turn_before(node) if node.step.after and attempt == 1 else None
    if before is None or before.status not in UNSUCCESSFUL or node.step.workspace_mode != "isolated":
        return session_id(node.run.id, node.path, attempt)
    return home_of(before, max(1, before.attempt))


def session_of(node: Node) -> str:
    """The session of a step's latest attempt."""
    return session_id(node.run.id, node.path, max(1, node.attempt))


def depth_of(node: Node) -> int:
    """The nesting depth of an agent step: 1, unless another agent requested it."""
    depth = 1
    while node.step.parent:
        node = node.run.nodes[node.step.parent]
        depth += 1
    return depth


def child_name(path: str) -> str:
    """The name of the child of an open run whose turn a step is.

    >>> child_name("scout#2")
    'scout'
    """
    return path.partition("#")[0]


def child_of(node: Node) -> tuple[str, str]:
    """The address of the first turn of the child of an open run that a step belongs to."""
    root = node.run
    while root.call is not None and root.parent is not None:
        node, root = root.call, root.parent
    return root.id, child_name(node.path.partition("/")[0].partition("[")[0])


def turn_before(node: Node) -> Node | None:
    """The step whose conversation an agent step continues, if any."""
    before = node.step.traits.continues
    if before is None:
        return None
    above = node.parent.path if node.parent is not None else ""
    return node.run.nodes[f"{above}/{before}" if above else before]


# -----------------------------------------------------------------------------------------------------------
# The sessions that work on one attempt of a step, besides its own
#
# Agents that resolve its conflicts and agents that summarize parts for a fold have session ids derived from
# the attempt's own. Code that counts spending, ends processes or shows transcripts needs all of them.

PARTS_AT_ONCE = 4
"""The number of parts of a fold that are summarized concurrently."""


def is_fold(node: Node) -> bool:
    """Whether a step summarizes a phase."""
    settings = find_body(AgentBody, node.step)
    return settings is not None and settings.purpose == "fold"


def part_id(session: str, number: int) -> str:
    """The session that summarizes one part for a fold.

    >>> part_id("s1", 0)
    's1-d0'
    """
    return f"{session}-d{number}"


def sessions_of(store: Store, node: Node, attempt: int) -> list[str]:
    """The sessions of an attempt: its own, even without a log yet, and the other sessions with a log."""
    own = session_id(node.run.id, node.path, attempt)
    sessions = [own, *(session for session in settling_ids(own) if _has_log(store, session))]
    if is_fold(node):
        number = missing = 0
        # Parts start in order, a few at a time. A part without a log may come before parts with one.
        while missing < PARTS_AT_ONCE:
            part = part_id(own, number)
            if _has_log(store, part):
                missing = 0
                sessions.append(part)
            else:
                missing += 1
            number += 1
    return sessions


def _has_log(store: Store, session: str) -> bool:
    return next(store.log(session), None) is not None


# -----------------------------------------------------------------------------------------------------------
# Data that a host needs besides the state of the kernel, derived from the same events
#
# The kernel schedules by addresses and never sees values. `Memory` has the values: the inputs of each run,
# the items of each map, the summaries and spending of sessions. Replaying the log rebuilds it.

Address = tuple[str, str]


class FileChange(Struct):
    """A file that a step changed. `state` is merged, discarded, proposed, applied (a proposal), or undone."""

    path: str
    kind: str
    step: str
    mode: str
    proposal: str | None
    state: str


class Memory:
    """The data of a run tree that a host needs besides the state of the kernel."""

    def __init__(self) -> None:
        self.frozen: str | None = None
        self.created_at = 0
        self.held_by: Failure | None = None
        """The failure that paused the run, if it was neither a person nor a budget."""
        self.added: dict[Address, str | None] = {}
        """Blob of the configuration of each step that was added to an open run."""
        self.keys: dict[str, str] = {}
        """For an open run: the step that was added for each request key."""
        self.refusals: dict[int, Failure] = {}
        """The reason why a request was refused, by its number."""
        self.inputs: dict[str, str] = {}
        """Blob of each run's inputs."""
        self.run_started, self.run_ended = dict[str, int](), dict[str, int]()
        self.summaries, self.questions = dict[Address, str](), dict[Address, str]()
        """The summary of each step; each approval's rendered question with the details that it shows."""
        self.items: dict[Address, str] = {}
        """Blob of each map's list."""
        self.item_names: dict[Address, tuple[str, ...]] = {}
        """The names of map items, for the maps that readers have inspected."""
        self.shown: dict[Address, str] = {}
        """Blob of everything that a person sees before approving the work of a step."""
        self.changes: dict[str, list[FileChange]] = {}
        """The changes of each run's steps, in order of merging."""
        self.merged: list[tuple[str, FileChange]] = []
        """The changes of all runs of the tree, each with its run."""
        self._changes_by_step: dict[Address, list[FileChange]] = {}
        self.artifacts: dict[str, dict[str, tuple[str, Artifact]]] = {}
        """The artifacts of each run by path, with the step that published them."""
        self.receipts: dict[Address, list[str]] = {}
        """The merge receipts of each step, oldest first. Only a lead has several."""
        self.left_out: dict[Address, LeftOut] = {}
        """New files of a step that were not merged, because the project ignores them."""
        self.violations: dict[Address, Sequence[ViolatedPath]] = {}
        self.conflicts: dict[Address, Sequence[ConflictPath]] = {}
        """The conflicts that prevented the merge of a step."""
        self.settlers: dict[str, int] = {}
        """The number of agents per run that resolved conflicts or summarized parts of a fold, or tried to."""
        self.holders: dict[Address, str] = {}
        """The run and step of another process that works on the files for which a step waits or waited."""
        self.subjects: dict[Address, str] = {}
        """The subject that last interrupted each step: a provider, a usage limit, a cap."""
        self.tasks: dict[Address, str] = {}
        """The task of the session of each agent step, shortened."""
        self.usage: dict[Address, Usage] = {}
        """The usage of all attempts of a step."""
        self.texts, self.requests = dict[Address, list[SentText]](), dict[Address, dict[str, Any]]()
        """What people sent to each agent step, in order; its last request if that has no response yet."""
        self._paid: dict[tuple[str, str, int], Usage] = {}
        """The payments that the sessions of each attempt reported."""

    def observe(self, event: Event) -> None:
        """Update the data from the next event of the log."""
        data = event.data
        if isinstance(data, WorkflowEvent):
            self._observe_run(event, data)
        elif isinstance(data, Evidence):
            self._observe_evidence(event.run, data)
        elif isinstance(data, StepData):
            address = (event.run, data.step)
            self.requests.pop(address, None)
            if data.status in ("waiting", ASKED) and isinstance(data, StepEvent):
                self.questions[address] = data.summary
                if data.output is not None:
                    self.shown[address] = data.output
            elif data.status == "held":
                self.holders[address] = data.summary
            elif data.status == "interrupted" and data.error is not None and data.error.subject:
                self.subjects[address] = data.error.subject
            elif data.summary and data.status in TERMINAL:
                self.summaries[address] = data.summary
            if isinstance(data, SubagentEvent) and data.status == "started":
                self.tasks[address] = data.task
            if data.usage is not None:
                paid = self._paid.get((*address, data.attempt), NOTHING_SPENT)
                self.usage[address] = self.usage.get(address, NOTHING_SPENT) + data.usage.beyond(paid)

    def _observe_evidence(self, run: str, evidence: Evidence) -> None:
        data = evidence.data
        if evidence.type != "workspace_event":
            if isinstance(data, dict):
                self._observe_session(run, data)
            return
        fact = workspace_fact(data)
        address = (run, fact.step)
        if isinstance(fact, Merge | Apply) and fact.receipt:
            self.receipts.setdefault(address, []).append(fact.receipt)
        match fact:
            case Merge(mode=mode, proposal=proposal):
                kept = "discarded" if mode == "discard" else "merged"
                where = (fact.step, mode, proposal or None, "proposed" if proposal else kept)
                rows = [FileChange(change.path, change.kind, *where) for change in fact.changes]
                self.changes.setdefault(run, []).extend(rows)
                self.merged.extend((run, row) for row in rows)
                self._changes_by_step.setdefault(address, []).extend(rows)
            case ArtifactsPublished(files=files):
                self.artifacts.setdefault(run, {}).update({file.path: (fact.step, file) for file in files})
            case Apply() | Undo():
                for row in self.changes_of(run, fact.step):
                    row.state = "applied" if isinstance(fact, Apply) else "undone"
            case LeftOut():
                self.left_out[address] = fact
            case Violation():
                self.violations[address] = fact.paths
            case Conflict():
                self.conflicts[address] = fact.paths
            case Resolve() | Digest():
                self.settlers[run] = self.settlers.get(run, 0) + 1

    def _observe_session(self, run: str, data: dict[str, Any]) -> None:
        if data.get("kind") == SENT:
            sent = SentText(data["text"], data["by"], data.get("call", ""))
            self.texts.setdefault((run, data["step"]), []).append(sent)
        elif data.get("kind") in REQUEST_STATES:
            self.requests[run, str(data.get("step"))] = data

    def changes_of(self, run: str, step: str) -> list[FileChange]:
        """The files that one step changed, in order of merging."""
        return self._changes_by_step.get((run, step), [])

    def _observe_run(self, event: Event, data: WorkflowEvent) -> None:
        if isinstance(data, RunCreated):
            if data.inputs is not None:
                self.inputs[event.run] = data.inputs
            if data.plan is not None:
                self.frozen = data.frozen
                self.created_at = event.at
            else:
                self.run_started[event.run] = event.at
        elif isinstance(data, ValueDecided) and data.items is not None:
            self.items[event.run, data.step] = data.items
        elif isinstance(data, StepAdded):
            self.added[event.run, data.step.id] = data.frozen
            self.keys[data.key] = data.step.id
        elif isinstance(data, RequestRefused):
            self.refusals[data.request] = data.error
        elif isinstance(data, RunStarted):
            self.run_started[event.run] = event.at
        elif isinstance(data, PauseRequested):
            self.held_by = data.error
        elif isinstance(data, RunResumed):
            self.held_by = None
        elif isinstance(data, Payment):
            address, attempt = (event.run, data.step), (event.run, data.step, data.attempt)
            self.requests.pop(address, None)
            self.usage[address] = self.usage.get(address, NOTHING_SPENT) + data.usage
            self._paid[attempt] = self._paid.get(attempt, NOTHING_SPENT) + data.usage
        elif isinstance(data, RunFinished):
            self.run_ended[event.run] = event.at
