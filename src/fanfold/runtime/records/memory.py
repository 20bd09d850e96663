"""What a host must know besides the kernel's state; derived from the same events, in the same way.

The kernel schedules by addresses and never sees values. Here is where the values are: the inputs of
each run, the items of each map, what sessions said and spent. Folding the log again rebuilds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fanfold.kernel.events import (
    NOTHING_SPENT,
    Added,
    Created,
    Decided,
    Event,
    Evidence,
    Failure,
    Finished,
    PauseRequested,
    Refused,
    Resumed,
    Started,
    StepEvent,
    SubagentEvent,
    Usage,
    WorkflowEvent,
)
from fanfold.kernel.lifecycle import ASKED

if TYPE_CHECKING:
    from fanfold.runtime.records.evidence import ConflictPath, LeftOut, ViolatedPath
    from fanfold.workspace.artifacts import Artifact

Address = tuple[str, str]


class FileChange(Struct):
    """A file that a step changed. `state`: merged, discarded, proposed, applied (a proposal), or undone."""

    path: str
    kind: str
    step: str
    mode: str
    proposal: str | None
    state: str


class Memory:
    def __init__(self) -> None:
        self.frozen: str | None = None
        self.created_at = 0
        self.held_by: Failure | None = None
        """What made the run pause, when it was neither a person nor a budget."""
        self.added: dict[Address, str | None] = {}
        """Blob of what was fixed for each step that was added to an open run."""
        self.keys: dict[str, str] = {}
        """Who asked for steps of an open run, to the step that was added for it."""
        self.refusals: dict[int, Failure] = {}
        """Why a request was not acted on, by its number."""
        self.inputs: dict[str, str] = {}
        """Blob of each run's inputs."""
        self.run_started: dict[str, int] = {}
        self.run_ended: dict[str, int] = {}
        self.items: dict[Address, str] = {}
        """Blob of each map's list."""
        self.item_names: dict[Address, tuple[str, ...]] = {}
        """What readers call the items of each map that they looked at."""
        self.summaries: dict[Address, str] = {}
        self.questions: dict[Address, str] = {}
        """What was asked by each approval, with its templates filled in, and what it shows below."""
        self.shown: dict[Address, str] = {}
        """Blob of all that a person is shown who has to agree to the work of a step."""
        self.changes: dict[str, list[FileChange]] = {}
        """What each run's steps changed in the workspace, in order of merging."""
        self.artifacts: dict[str, dict[str, tuple[str, Artifact]]] = {}
        """What each run's steps published, by path, with the step that did."""
        self.receipts: dict[Address, list[str]] = {}
        """Of what was put into the project for each step, oldest first: one merge, but for a lead."""
        self.left_out: dict[Address, LeftOut] = {}
        """New files of a step that stayed behind because the project ignores them."""
        self.violations: dict[Address, Sequence[ViolatedPath]] = {}
        self.conflicts: dict[Address, Sequence[ConflictPath]] = {}
        """Why what a step changed could not be merged."""
        self.settlers: dict[str, int] = {}
        """Agents that settled conflicts of each run's steps or summed up parts for a fold, or tried to."""
        self.holders: dict[Address, str] = {}
        """Which run and step of another process works on the files that a step waits for, or waited for."""
        self.tasks: dict[Address, str] = {}
        """What the session of each agent step was asked, shortened."""
        self.usage: dict[Address, Usage] = {}
        """What all attempts of a step spent."""

    def observe(self, event: Event) -> None:
        data = event.data
        if isinstance(data, WorkflowEvent):
            self._observe_run(event, data)
        elif isinstance(data, Evidence):
            if data.type == "workspace_event":
                self._observe_workspace(event.run, data.data)
        elif isinstance(data, StepEvent | SubagentEvent):
            address = (event.run, data.step)
            if data.status in ("waiting", ASKED) and isinstance(data, StepEvent):
                self.questions[address] = data.summary
                if data.output is not None:
                    self.shown[address] = data.output
            elif data.status == "held":
                self.holders[address] = data.summary
            elif data.summary:
                self.summaries[address] = data.summary
            if isinstance(data, SubagentEvent) and data.status == "started":
                self.tasks[address] = data.task
            if data.usage is not None:
                self.usage[address] = self.usage.get(address, NOTHING_SPENT) + data.usage

    def _observe_workspace(self, run: str, data: Any) -> None:
        from fanfold.runtime.records.evidence import (  # most runs have no facts
            Apply,
            Conflict,
            Digest,
            LeftOut,
            Merge,
            Published,
            Resolve,
            Undo,
            Violation,
            workspace_fact,
        )

        fact = workspace_fact(data)
        address = (run, fact.step)
        if isinstance(fact, Merge | Apply) and fact.receipt:
            self.receipts.setdefault(address, []).append(fact.receipt)
        match fact:
            case Merge(mode=mode, proposal=proposal):
                kept = "discarded" if mode == "discard" else "merged"
                where = (fact.step, mode, proposal or None, "proposed" if proposal else kept)
                rows = (FileChange(change.path, change.kind, *where) for change in fact.changes)
                self.changes.setdefault(run, []).extend(rows)
            case Published(files=files):
                self.artifacts.setdefault(run, {}).update({one.path: (fact.step, one) for one in files})
            case Apply():
                self._mark(run, fact.step, "applied")
            case Undo():
                self._mark(run, fact.step, "undone")
            case LeftOut():
                self.left_out[address] = fact
            case Violation():
                self.violations[address] = fact.paths
            case Conflict():
                self.conflicts[address] = fact.paths
            case Resolve() | Digest():
                self.settlers[run] = self.settlers.get(run, 0) + 1

    def _mark(self, run: str, step: str, state: str) -> None:
        """What became of the changes of a step."""
        for row in self.changes.get(run, []):
            if row.step == step:
                row.state = state

    def _observe_run(self, event: Event, data: WorkflowEvent) -> None:
        if isinstance(data, Created):
            if data.inputs is not None:
                self.inputs[event.run] = data.inputs
            if data.plan is not None:
                self.frozen = data.frozen
                self.created_at = event.at
            else:
                self.run_started[event.run] = event.at
        elif isinstance(data, Decided) and data.items is not None:
            self.items[event.run, data.step] = data.items
        elif isinstance(data, Added):
            self.added[event.run, data.step.id] = data.frozen
            self.keys[data.key] = data.step.id
        elif isinstance(data, Refused):
            self.refusals[data.request] = data.error
        elif isinstance(data, Started):
            self.run_started[event.run] = event.at
        elif isinstance(data, PauseRequested):
            self.held_by = data.error
        elif isinstance(data, Resumed):
            self.held_by = None
        elif isinstance(data, Finished):
            self.run_ended[event.run] = event.at
