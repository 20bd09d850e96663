"""Own a run tree: acquire its lease and create the executors of its steps. Only the owner drives a run.

The lease is always released: by `done` after the run was driven until it stops, by `let_go` after a fault,
when memory may be ahead of the log.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend_registry import BackendSetup
from fanfold.api.project import ContinuedRun, Project
from fanfold.api.report import MIRROR_FILES, write_mirror
from fanfold.engine.driver import DailyCaps, Host, OnCommit, OnProgress
from fanfold.engine.requests import ContinueRequest, FactRequest, to_row
from fanfold.engine.run_tree import RunTree, wall_clock_ms
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Envelope, LimitsRaised, RunCreated, event_of
from fanfold.kernel.state import PENDING, RUN_TERMINAL, RUNNING, WAITING
from fanfold.kernel.waits import next_wait
from fanfold.process_identity import this_process
from fanfold.sessions.processes import sweep_stragglers
from fanfold.sessions.supervisor import Supervisor
from fanfold.steps import command
from fanfold.steps.executor import StepExecutor, StepExecutors
from fanfold.steps.function_calls import SETTING as FUNCTIONS
from fanfold.steps.ids import functions_id, read_traceparent, trace_id
from fanfold.steps.phases import private
from fanfold.steps.programs import Programs
from fanfold.steps.records import sessions_of
from fanfold.steps.run_config import RunConfig, from_json, is_kept_open, without_permission
from fanfold.steps.step_type import Services, UserGrants
from fanfold.steps.toolboxes import ConfinedAgents, DirectChanges, Toolboxes
from fanfold.store.database import private_folder
from fanfold.store.journal import Journal
from fanfold.store.protocol import Lease, LeaseHeld
from fanfold.workspace.seal import ProjectGrants, is_adopted, is_foreign, require_permitted

if TYPE_CHECKING:
    from fanfold.agents.permissions import Ask
    from fanfold.api.notifications import RunNotifier
    from fanfold.api.tracing import RunTracer
    from fanfold.steps.functions import FunctionProcesses
    from fanfold.steps.records import Merge, SandboxUse


Observer: TypeAlias = "RunNotifier | RunTracer"
"""Something outside the run that is derived from its log."""


class RunParts(Struct, frozen=True, kw_only=True):
    """The parts that execute the steps and sessions of a run. A replay has its own."""

    executor: Callable[[Services, str, str], StepExecutor] = StepExecutor
    supervisor: Callable[..., Supervisor] = Supervisor
    starts_programs: bool = True
    """False if no command is executed, so that none needs a sandbox."""


class OwnedRun:
    """A run tree that this process owns."""

    def __init__(self, project: Project, tree: RunTree, executors: StepExecutors, lease: Lease) -> None:
        self.project = project
        self.tree = tree
        self.executors = executors
        self._lease = lease
        self._observers: list[Observer] = []

    def host(
        self,
        *,
        leave_when_waiting: bool = True,
        on_commit: OnCommit | None = None,
        on_progress: OnProgress | None = None,
        observed: bool = True,
    ) -> Host:
        """Return the host that drives the tree. Without `observed`, nothing is sent: it is a test."""
        self._observers = observers_of(self.project, self.tree) if observed else []

        def committed(written: list[Envelope]) -> None:
            if on_commit is not None:
                on_commit(written)
            for observer in list(self._observers):
                try:
                    observer.committed(written)
                except Exception as error:  # noqa: BLE001 - what observes a run must not stop it
                    self._observers.remove(observer)
                    _warn(observer, error)

        return Host(
            self.tree,
            self.executors,
            leave_when_waiting=leave_when_waiting,
            on_commit=committed if self._observers else on_commit,
            on_progress=on_progress,
            caps=DailyCaps.of(self.project.config),
        )

    def done(self) -> Path | None:
        """Release the lease and write the report files.

        A finished run keeps its lease until they are written, or `gc` could delete their sources.
        """
        ended = self.tree.root.status in RUN_TERMINAL
        if not ended:
            self.project.store.release(self._lease)
        try:
            return write_files(self.project, self.tree)
        finally:
            if ended:
                self.project.store.release(self._lease)
            self._close_observers()

    def let_go(self) -> None:
        """Release the lease without writing files."""
        self.project.store.release(self._lease)
        self._close_observers()

    def _close_observers(self) -> None:
        observers, self._observers = self._observers, []
        for observer in observers:
            try:
                observer.close()
            except Exception as error:  # noqa: BLE001 - as above
                _warn(observer, error)


def _warn(observer: object, error: Exception) -> None:
    import logging

    name = getattr(observer, "__name__", type(observer).__name__)
    logging.getLogger("fanfold").warning("%s stopped, the run continues: %s", name, error)


def observers_of(project: Project, tree: RunTree) -> list[Observer]:
    """Return the observers that the user configured; usually there are none, and nothing is imported."""
    found: list[Observer] = []
    if any(project.config.values[f"notify.{name}"] for name in ("command", "webhook", "desktop")):
        from fanfold.api.notifications import RunNotifier

        try:
            found.append(RunNotifier(project, tree))
        except OSError as error:  # the user's folder cannot be written
            _warn(RunNotifier, error)
    if _wants_telemetry():
        from fanfold.api.tracing import RunTracer, exporters

        found += [RunTracer(project, tree, out)] if (out := exporters()) is not None else []
    return found


def write_files(project: Project, tree: RunTree, *, if_missing: bool = False) -> Path | None:
    """Write the report files of a run; None if that is not possible."""
    try:
        homes = [project.runs_folder / run.id for run in tree.state.runs.values()]
        mirrored = ((home / name).exists() for home in homes for name in MIRROR_FILES)
        if if_missing and all(mirrored):
            return None
        return write_mirror(tree, project.runs_folder)
    except OSError:
        return None  # the log is complete; the files are written again on request


def own(
    project: Project,
    root: str,
    ask: Ask | None = None,
    *,
    goes_on: bool = True,
    parts: RunParts = RunParts(),  # noqa: B008 - it is frozen
) -> OwnedRun:
    """Acquire the lease of a run tree. `ask` asks a person about actions of agents.

    Raises `LeaseHeld` while its owner lives. Raises `RunAdopted` for an unfinished adopted run that the user
    has not permitted. `goes_on=False` skips that check: no step continues, because the run is cancelled,
    paused, or only records the outcome of its changes.
    """
    lease = project.store.acquire(root)
    try:
        frozen = frozen_at_first(project, root)
        journal = Journal(project.store, root, lease)
        executor = _permitted_executor(project, frozen, journal, ask, parts)
        tree = RunTree.load(project.store, root, journal, executor.reuse, forked_from=frozen.forked_from)
        if tree.root.status not in RUN_TERMINAL:
            if goes_on:
                require_permitted(project.folder, root)
            # End processes that a dead owner left running, and finish or revert its merges.
            if not project.continuation.takes(
                project, root
            ):  # else workers of this machine may execute its steps
                live = tree.state.in_flight.values()
                sessions = [one for node in live for one in sessions_of(project.store, node, node.attempt)]
                sweep_stragglers([functions_id(tree.root.id), *sessions])
            project.isolation.recover()
    except BaseException:
        project.store.release(lease)
        raise
    return OwnedRun(project, tree, executors_of(project, executor, journal, ask), lease)


def executors_for(project: Project, journal: Journal) -> StepExecutors:
    """Return the executors of a run tree for a process that executes its steps and does not own it."""
    frozen = frozen_at_first(project, journal.root)
    own = _permitted_executor(project, frozen, journal, None, RunParts())
    return executors_of(project, own, journal, None)


def take_over(project: Project, root: str, ask: Ask | None = None) -> OwnedRun:
    """Own a run to continue it here. If another process drives it, the error has a hint for the user."""
    check_enabled(project, root)
    try:
        return own(project, root, ask)
    except LeaseHeld as held:
        pid = held.details.get("pid")
        held.hint = f"fanfold watch {root} follows it; fanfold pause {root} stops process {pid} safely"
        myself = this_process()
        if (pid, held.details.get("started")) == (myself.pid, myself.started):  # pids repeat in containers
            held.hint = "that is this very process: use the handle that it has, or pause the run first"
        raise


def supervise(
    project: Project,
    frozen: RunConfig,
    programs: Programs,
    ask: Ask | None,
    make: Callable[..., Supervisor] = Supervisor,
) -> Supervisor:
    """Return the supervisor that starts the sessions of one run, or of one child of an open run."""
    allowed = project.config.names(command.SETTING)

    def note(run: str, fact: Merge | SandboxUse) -> None:
        project.store.request(to_row(run, run, FactRequest(fact), wall_clock_ms()))

    toolboxes = Toolboxes(
        project.store,
        programs,
        frozen.permission,
        ask,
        allowed,
        project.root_tools(frozen, ask),
        lambda request: DirectChanges(request, project.isolation, project.store, note),
        ProjectGrants(project.config.home, project.folder),
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
    return make(project.backends.open(setup), places=project.session_places)


def executor_of(
    project: Project,
    frozen: RunConfig,
    programs: Programs,
    supervisor: Supervisor,
    journal: Journal,
    make: Callable[[Services, str, str], StepExecutor] = StepExecutor,
) -> StepExecutor:
    """Return the executor of the steps of one run."""
    variables = project.config.names(command.SETTING)

    def make_functions() -> FunctionProcesses:
        from fanfold.steps.functions import FunctionProcesses

        allowed = project.config.names(FUNCTIONS)
        session = functions_id(journal.root)
        return FunctionProcesses(str(project.folder), frozen.sources, session, variables, allowed)

    services = Services(
        project.store,
        supervisor,
        frozen,
        make_functions,
        programs,
        journal,
        project.isolation,
        UserGrants(project.config.switch("deliver.allow"), variables),
    )
    trace = ""  # the W3C trace context of the steps, without their span; empty if telemetry is off
    if _wants_telemetry():
        given = read_traceparent(frozen.traceparent)
        trace = f"00-{given.trace}-%s-{given.sampled:02}" if given else f"00-{trace_id(journal.root)}-%s-01"
    return make(services, str(project.folder), trace)


def _wants_telemetry() -> bool:
    if not any(name.startswith("OTEL_") for name in os.environ):
        return False  # nothing is imported
    from fanfold.api.tracing import is_on

    return is_on()


def executors_of(project: Project, own: StepExecutor, journal: Journal, ask: Ask | None) -> StepExecutors:
    """Return the executors of a run tree: the run's own, and one for each configuration of added children."""

    def make(facts: str) -> StepExecutor:
        frozen = from_json(msgspec.json.decode(project.store.blob(facts)))
        return _permitted_executor(project, frozen, journal, ask, RunParts())

    return StepExecutors(own, make)


def _permitted_executor(
    project: Project, frozen: RunConfig, journal: Journal, ask: Ask | None, parts: RunParts
) -> StepExecutor:
    """Return the executor of a run. If the run was adopted, its log permits nothing here."""
    if is_foreign(project.folder, journal.root):
        if frozen.skills:
            from fanfold.agents.skills import own_copies  # imported late: few runs have skills

            frozen = structs.replace(frozen, skills=own_copies(frozen.skills, project.config.home))
        frozen = without_permission(frozen)
    programs = Programs(project.isolation, unsafe=frozen.unsafe)
    supervisor = supervise(project, frozen, programs, ask, parts.supervisor)
    return executor_of(project, frozen, programs, supervisor, journal, parts.executor)


def frozen_at_first(project: Project, root: str) -> RunConfig:
    """Return the configuration in the first event of a run, before its tree is folded."""
    first = next(project.store.tree(root), None)
    data = event_of(first).data if first is not None else None
    if not isinstance(data, RunCreated) or data.frozen is None:
        return RunConfig()
    return from_json(msgspec.json.decode(project.store.blob(data.frozen)))


def check_enabled(project: Project, root: str = "") -> None:
    """Refuse to start or continue a workflow if workflows are disabled; allow chats and subagents."""
    if not project.config.switch("workflows.enabled") and not is_kept_open(root):
        origin, remedy = project.config.switched_off()
        message = f"workflows are disabled ({origin})"
        raise AuthorError("workflows.off", message, hint=f"set {remedy}", exit_status=4)


# -----------------------------------------------------------------------------------------------------------
# Continue a run in another process: a background process here, which outlives the one that started it

LOG = "detached.log"
LOOK_S = 60.0
"""How often a server checks waiting runs that have no owner: their process may have died."""

_started: set[int] = set()
"""Processes that this process started and has not waited for yet."""


def _lives(pid: int) -> bool:
    """Whether a child process lives; one that has ended is removed from the process table."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != pid
    except ChildProcessError:
        return False


class Background:
    """A process that was started to continue a run."""

    def __init__(self, root: str, pid: int, log: Path) -> None:
        self.root = root
        self.pid = pid
        self._log = log

    def lives(self) -> bool:
        return _lives(self.pid)

    def ended_at_once(self) -> WorldError:
        """Return the error for a process that ended before it became the owner of the run."""
        return WorldError(
            "run.not_taken_over",
            f"the request is kept, but the process that was to continue run {self.root} ended at once",
            hint=f"{self._log} has the reason; fanfold resume {self.root} continues",
        )


class DetachedProcesses:
    """Continues each run in a process of its own on this machine, in its own session.

    `command` makes the command that resumes a run. Its output goes to a file next to the report of the run,
    because it has no terminal.
    """

    by_workers = False

    def __init__(self, command: Callable[[str, LimitsRaised | None], Sequence[str]]) -> None:
        self._command = command

    def takes(self, _project: Project, _root: str) -> bool:
        return False

    def continue_run(
        self, project: Project, root: str, raised: LimitsRaised | None, *, keep_waits: bool
    ) -> ContinuedRun:
        _started.intersection_update([pid for pid in _started if _lives(pid)])
        log = private_folder(project.runs_folder / root) / LOG
        with open(log, "ab", opener=private) as opened:
            process = subprocess.Popen(
                [*self._command(root, raised), *(["--wait"] if keep_waits else [])],
                cwd=project.folder,
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # This process does not wait for it. Once this process ends, init adopts the child.
        process.returncode = 0
        _started.add(process.pid)
        return Background(root, process.pid, log)


class WaitingForWorker:
    """A run that a worker of the cluster will continue."""

    def __init__(self, root: str) -> None:
        self.root = root

    def lives(self) -> bool:
        return True

    def ended_at_once(self) -> WorldError:
        hint = "start a worker of this project"
        return WorldError("run.no_worker", f"no worker drives run {self.root}", hint=hint)


class WorkerContinuation:
    """Leaves each run to the workers of the cluster. They learn of it from the store.

    A run in a shared database works in the folder where it was started, unless it has a tree of its own.
    `at_home` continues such a run: of a program or a chat, or with a deliver step.
    """

    by_workers = True

    def __init__(self, at_home: DetachedProcesses) -> None:
        self._at_home = at_home

    def takes(self, project: Project, root: str) -> bool:
        return not project.store.is_remote or bool(frozen_at_first(project, root).tree)

    def continue_run(
        self, project: Project, root: str, raised: LimitsRaised | None, *, keep_waits: bool
    ) -> ContinuedRun:
        if not self.takes(project, root):
            return self._at_home.continue_run(project, root, raised, keep_waits=keep_waits)
        project.store.request(to_row(root, root, ContinueRequest(raised, keep_waits), wall_clock_ms()))
        return WaitingForWorker(root)


def run_in_background(owned: OwnedRun) -> ContinuedRun:
    """Release a run that this process owns, and have another process continue it."""
    owned.let_go()
    return continue_detached(owned.project, owned.tree.root.id)


def resume_detached(
    project: Project, root: str, raised: LimitsRaised | None = None, *, keep_waits: bool = False
) -> ContinuedRun:
    """Have another process continue a run; refused while a process drives it."""
    check_enabled(project, root)
    if project.has_owner(root):
        take_over(project, root).let_go()  # raises the error with its hint
    return continue_detached(project, root, raised, keep_waits=keep_waits)


def continue_detached(
    project: Project, root: str, raised: LimitsRaised | None = None, *, keep_waits: bool = True
) -> ContinuedRun:
    """Have another process continue a run, if the user permitted it."""
    require_permitted(project.folder, root)
    return project.continuation.continue_run(project, root, raised, keep_waits=keep_waits)


def abandoned(project: Project) -> list[str]:
    """List the pending and running runs that have no owner.

    Runs that wait for people or are paused are not listed. Adopted runs are listed only after the user
    permitted them.
    """
    heads = project.heads(PENDING, RUNNING)
    roots = [head.run_id for head in heads if not project.has_owner(head.run_id)]
    return [root for root in roots if not is_adopted(project.folder, root)]


def continue_abandoned(project: Project) -> list[ContinuedRun]:
    """Continue each abandoned run in the background."""
    return [continue_detached(project, root) for root in abandoned(project)]


def continue_due(project: Project) -> float:
    """Continue in the background each run without an owner whose wait for a provider has ended.

    Its other steps may have been running when its owner died. Return after how many seconds to check again.
    """
    next_s = LOOK_S
    for head in project.heads(WAITING, RUNNING):
        if project.has_owner(head.run_id) or is_adopted(project.folder, head.run_id):
            continue
        state = project.view(head.run_id).state
        due = next_wait(state) if state.deferred else None
        left_s = LOOK_S if due is None else (due - wall_clock_ms()) / 1_000
        if left_s <= 0:
            continue_detached(project, head.run_id)
        else:
            next_s = min(next_s, left_s)
    return next_s
