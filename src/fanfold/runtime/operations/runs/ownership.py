"""Owning a run tree: its lease, and what carries out its steps. Whoever owns a run may drive it.

The lease is given back however that ends: `done` after a run was driven to where it rests, `let_go` after a
fault, when memory may be ahead of the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fanfold.agents.backend_registry import BackendSetup
from fanfold.errors import AuthorError
from fanfold.kernel.events import Created, event_of
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.process_identity import this_process
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.host import Host, OnCommit, OnProgress
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.attempt_sessions import sessions_of
from fanfold.runtime.records.frozen import Frozen, from_json
from fanfold.runtime.records.ids import functions_id
from fanfold.runtime.steps.performing.performer import Performer
from fanfold.runtime.steps.performing.performers import Performers
from fanfold.runtime.steps.programs import own_variables
from fanfold.runtime.steps.programs.agent_programs import ConfinedAgents
from fanfold.runtime.steps.programs.sandboxed import Programs
from fanfold.runtime.steps.programs.toolboxes import Toolboxes
from fanfold.runtime.steps.step_type import Granted, Services
from fanfold.runtime.views.mirror import has_mirror, write_mirror
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.journal import Journal
from fanfold.store.protocol import Lease, LeaseHeld

if TYPE_CHECKING:
    from fanfold.agents.backend import SessionRequest
    from fanfold.agents.permissions import Ask
    from fanfold.runtime.handlers.pool import FunctionProcesses
    from fanfold.runtime.places.direct_changes import DirectChanges
    from fanfold.runtime.records.evidence import Merge, Sandboxed


class Owned:
    """A run tree in the hands of this process."""

    def __init__(self, project: Project, tree: RunTree, performers: Performers, lease: Lease) -> None:
        self.project = project
        self.tree = tree
        self._performers = performers
        self._lease = lease

    def host(
        self,
        *,
        leave_when_waiting: bool = True,
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
    ) -> Host:
        """What drives the tree."""
        return Host(
            self.tree,
            self._performers,
            leave_when_waiting=leave_when_waiting,
            on_commit=on_commit,
            on_progress=on_progress,
        )

    def done(self) -> Path | None:
        """Give the lease back and write the files people read."""
        self.let_go()
        return write_files(self.project, self.tree)

    def let_go(self) -> None:
        """Give the lease back without a word."""
        self.project.store.release(self._lease)


def write_files(project: Project, tree: RunTree, *, if_missing: bool = False) -> Path | None:
    """Write the files that people read about a run; None where that is not possible."""
    try:
        if if_missing and has_mirror(tree, project.runs_folder):
            return None
        return write_mirror(tree, project.runs_folder)
    except OSError:
        return None  # the log has everything; the files are made again when somebody asks


def own(project: Project, root: str, ask: Ask | None = None, *, goes_on: bool = True) -> Owned:
    """Take a run tree over; `ask` puts what agents want to do to a person.

    Raises `LeaseHeld` while its owner lives, and `RunAdopted` for what nobody here permitted, unless it is
    over or no step of it `goes_on`: it is cancelled, paused, or told what became of its changes.
    """
    from fanfold.trust.adopted import require_permitted

    lease = project.store.acquire(root)
    try:
        frozen = frozen_at_first(project, root)
        programs = Programs(project.isolation, unsafe=frozen.unsafe)
        supervisor = supervise(project, frozen, programs, ask)
        journal = Journal(project.store, root, lease)
        performer = performer_of(project, frozen, programs, supervisor, journal)
        tree = RunTree.load(project.store, root, journal, performer.reuse, forked_from=frozen.forked_from)
        if tree.root.status not in RUN_TERMINAL:
            if goes_on:
                require_permitted(project.folder, root)
            _clear_up(project, tree)
    except BaseException:
        project.store.release(lease)
        raise
    return Owned(project, tree, performers_of(project, performer, journal, ask), lease)


def take_over(project: Project, root: str, ask: Ask | None = None) -> Owned:
    """Own a run that somebody wants to go on with here, or say what to do while another process drives it."""
    check_enabled(project)
    try:
        return own(project, root, ask)
    except LeaseHeld as held:
        pid = held.details.get("pid")
        held.hint = f"fanfold watch {root} follows it; fanfold pause {root} stops process {pid} safely"
        myself = this_process()
        if (pid, held.details.get("started")) == (myself.pid, myself.started):  # containers count from 1 each
            held.hint = "that is this very process: use the handle that it has, or pause the run first"
        raise


def supervise(project: Project, frozen: Frozen, programs: Programs, ask: Ask | None) -> Supervisor:
    """Who starts the sessions of one run, or of one child of an open run."""
    allowed = project.config.names(own_variables.SETTING)

    def direct_changes(request: SessionRequest) -> DirectChanges:
        from fanfold.runtime.places.direct_changes import DirectChanges

        return DirectChanges(request, project.isolation, project.store, note)

    def note(run: str, fact: Merge | Sandboxed) -> None:
        from fanfold.runtime.hosting.requests import FactRequest, to_row

        project.store.request(to_row(run, run, FactRequest(fact), wall_clock_ms()))

    toolboxes = Toolboxes(
        project.store,
        project.memory,
        programs,
        frozen.permission,
        ask,
        allowed,
        project.root_tools(frozen, ask),
        direct_changes,
    )
    setup = BackendSetup(
        machine=project.backends.machine,
        toolbox=toolboxes.of,
        programs=ConfinedAgents(programs, toolboxes.environment_for),
        find_role=frozen.roles.get,
        instructions=frozen.instructions,
        model=frozen.model,
        default_model=frozen.default_model,
        script=frozen.script,
        script_file=frozen.script_file,
    )
    return Supervisor(
        project.backends.open(setup),
        places=project.session_places,
    )


def performer_of(
    project: Project, frozen: Frozen, programs: Programs, supervisor: Supervisor, journal: Journal
) -> Performer:
    """What carries out the steps of one run."""
    variables = project.config.names(own_variables.SETTING)

    def make_functions() -> FunctionProcesses:
        from fanfold.runtime.handlers.pool import FunctionProcesses

        return FunctionProcesses(str(project.folder), frozen.sources, functions_id(journal.root), variables)

    services = Services(
        project.store,
        supervisor,
        frozen,
        make_functions,
        programs,
        journal,
        project.isolation,
        Granted(project.config.switch("deliver.allow"), variables),
    )
    return Performer(services, str(project.folder))


def performers_of(project: Project, own: Performer, journal: Journal, ask: Ask | None) -> Performers:
    """What carries out the steps of one run, each with the facts it was added with."""

    def make(facts: str) -> Performer:
        frozen = from_json(msgspec.json.decode(project.store.blob(facts)))
        programs = Programs(project.isolation, unsafe=frozen.unsafe)
        supervisor = supervise(project, frozen, programs, ask)
        return performer_of(project, frozen, programs, supervisor, journal)

    return Performers(own, make)


def frozen_at_first(project: Project, root: str) -> Frozen:
    """What the run fixed, before its tree is folded: what carries out its steps is made from it."""
    first = next(project.store.tree(root), None)
    data = event_of(first).data if first is not None else None
    if not isinstance(data, Created) or data.frozen is None:
        return Frozen()
    return from_json(msgspec.json.decode(project.store.blob(data.frozen)))


def _clear_up(project: Project, tree: RunTree) -> None:
    """End what an owner that died left running, and finish or undo what it was merging."""
    from fanfold.sessions.stragglers import sweep_stragglers

    live = tree.state.in_flight.values()
    sessions = [one for node in live for one in sessions_of(project.store, node, node.attempt)]
    sweep_stragglers([functions_id(tree.root.id), *sessions])
    project.isolation.recover()


def check_enabled(project: Project) -> None:
    """Refuse to start anything where workflows are switched off."""
    if not project.config.switch("workflows.enabled"):
        origin = project.config.origins["workflows.enabled"]
        raise AuthorError(
            "workflows.off",
            f"workflows are switched off ({origin})",
            hint="set FANFOLD_WORKFLOWS=on",
            exit_status=4,
        )
