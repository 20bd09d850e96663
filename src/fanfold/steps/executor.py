"""Executes the jobs of every step type: opens the workspace, checks the output and merges the changes.

Rules
* An outcome is a value: a result, or a failure with its class. Exceptions of user code become failures.
* The host decides which executions are cancelled, and why.
* An output that does not match the step's declaration is a failure of class `invalid_output`.
* The merge result is stored beside the workspace until the end of the step is in the log (`settle`). An
  owner that resumes the run in between neither works nor merges again.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b, file_digest
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from fanfold.agents.backend import TRACE, SentText, SessionFailed, SessionRequest, subject_of
from fanfold.agents.entries import Preparing
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.errors import AuthorError, BugError, FanfoldError, WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import aside, strict
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.terminal import exception_text, shorten
from fanfold.steps.ids import is_held, is_out_of_budget, settling_ids, span_id
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import ArtifactsPublished, Merge, Resolve, conflict
from fanfold.steps.run_config import RESOLVER, RunConfig
from fanfold.steps.step_type import Execution, OnProgress, Services, add_usage, type_of
from fanfold.steps.step_workspace import StepWorkspace, refusal
from fanfold.steps.values import check_output, unfit
from fanfold.store.protocol import LeaseLost, StoreFault
from fanfold.workspace.artifacts import Artifact, ArtifactRoom, ArtifactView, PublishedNames, family

if TYPE_CHECKING:
    from fanfold.workspace.merge import MergeConflict, MergeResult
    from fanfold.workspace.receipts import Dispute

# -----------------------------------------------------------------------------------------------------------
# The content key of a step: two steps with the same key do the same work
#
# The key covers the rendered job, the frozen role with the roles of its stages, the project's instructions to
# agents, back end and model, the output schema, and the content of every file that the step may read. If any
# of these changes, the step runs again.

SKIPPED_FOLDERS = frozenset(
    (".git", ".fanfold", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache")
)
MAX_FILES = 20_000


def content_key(order: Order[Job], frozen: RunConfig, project: str) -> str | None:
    """The key of a step, or None if its read-set has too many files or cannot be read."""
    try:
        content = _content_of(project, order.read_set)
    except OSError:
        return None  # a file was removed while it was read
    if content is None:
        return None
    step, job, kind = order.step, order.job, type_of(order.step)
    facts = (
        type(job).__name__,
        msgspec.to_builtins(replace(job, artifacts=ArtifactView(job.artifacts.seen))),
        kind.circumstances(frozen, kind.read(step)),
        (msgspec.to_builtins(step.action), step.output_schema, step.outputs),
        frozen.script,
    )
    return blake2b(msgspec.json.encode((facts, content)), digest_size=16).hexdigest()


def _content_of(project: str, patterns: tuple[str, ...]) -> str | None:
    """The digest of all files and links that match, or None if there are too many."""
    digest = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(project):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, project)
            if not matches(patterns, relative):
                continue
            if os.path.islink(path):
                content = b"-> " + os.fsencode(os.readlink(path))
            else:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(handle, "rb") as opened:
                    if not stat.S_ISREG(os.fstat(handle).st_mode):
                        continue
                    content = file_digest(opened, blake2b).digest()
            count += 1
            if count > MAX_FILES:
                return None
            digest.update(relative.encode("utf-8", "surrogateescape") + b"\0")
            digest.update(content)
    return digest.hexdigest()


NO_CHANGES = "agent.no_changes"
HOST_FAULTS = (StoreFault, LeaseLost, BugError)
"""Errors that are not the step's failure: the host must stop."""


class StepExecutor:
    """Executes steps of one run with one configuration."""

    def __init__(self, services: Services, project: str, trace: str = "") -> None:
        self._services = services
        self._trace = trace
        """The W3C trace context of a step, with `%s` for its span; empty if telemetry is off."""
        self._isolation = services.isolation
        self._store = services.store
        self._supervisor = services.supervisor
        self._frozen = self.config = services.frozen
        self._project = project
        self._runs = str(services.memory / "runs")
        self._keys: dict[tuple[str, str], str] = {}
        self._ended: dict[str, StepWorkspace] = {}
        """Workspaces of successful steps, by session, until the log has the end of the step."""
        self._published: dict[str, PublishedNames] = {}
        """The artifacts of each run by path, with the step that published them in this process."""
        self._closing: set[asyncio.Task[None]] = set()

    def reuse(self, order: Order[Job]) -> tuple[str | None, Failure | None]:
        """The output or failure of an earlier run that replaces this step.

        It comes from the run that was forked, or from the cache.
        """
        path = order.tree_path
        kept = self._frozen.reused.get(path), self._frozen.reused_failures.get(path)
        if any(kept) or not order.step.cache or path in self._frozen.taken_up:
            return kept
        key = content_key(order, self._frozen, self._project)
        if key is None:
            return None, None
        self._keys[order.run, order.path] = key
        cached = self._store.cached(key)
        return cached if cached and self._services.journal.blobs.adopt(cached) else None, None

    def subjects(self, order: Order[Job]) -> list[tuple[str, str]]:
        """The back ends for an agent step, in order of preference, each with the subject of its waits."""
        settings = getattr(order.job, "settings", None)
        if not isinstance(settings, AgentBody):
            return []
        role, frozen = self._services.session_role(order.step, settings), self._frozen
        names = dict.fromkeys((frozen.backend_of(role), *frozen.fallback_backends(role)))
        return [(name, subject_of(self._supervisor.backends.named(name), role)) for name in names]

    def cache_key(self, run: str, path: str) -> str | None:
        """The content key that this step had when it started. Its output is cached under this key."""
        return self._keys.pop((run, path), None)

    async def aclose(self) -> None:
        """End running functions and close connections. They are opened again if needed."""
        await self._services.end_functions()
        await self._supervisor.aclose()
        await asyncio.gather(*self._closing)
        # The log lacks the end of these steps, so the next owner must find their workspaces unchanged.
        while self._ended:
            await self._isolation.leave(*self._ended.popitem())

    def settle(self, session: str) -> None:
        """Close the workspace of a session, after the log has the end of its step."""
        place = self._ended.pop(session, None)
        if place is not None:
            if place.artifacts is not None:
                place.artifacts.drop()
            self._see_to(self._isolation.close(session, place, None))

    def discard(self, homes: Sequence[str]) -> None:
        """Discard the workspaces of sessions that will not be continued."""
        self._see_to(self._isolation.discard(homes))

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def sweep(self, is_over: Callable[[list[str]], list[str]], closed: Sequence[str]) -> None:
        """Discard workspaces of completed steps and closed children that an earlier owner left.

        `is_over` selects the sessions whose step completed. `closed` are the workspaces of closed children.
        """
        await self._isolation.sweep(is_over)
        if closed:
            await self._isolation.discard(closed)

    def pause(self, session: str) -> bool:
        """End a session after its current turn. False if it does not run here."""
        return any(self._supervisor.pause(one) for one in (session, *settling_ids(session)))

    async def perform(
        self,
        order: Order[Job],
        progress: OnProgress,
        account: Account = UNLIMITED,
        texts: Callable[[], Sequence[SentText]] | None = None,
    ) -> Outcome:
        """Do the work of one execution, and merge its changes while the step still has its path claims.

        Failures of the step are part of the outcome. Only a cancellation and errors that must stop the host
        are raised.
        """
        place: StepWorkspace | None = None
        if self._trace:
            TRACE.set(self._trace % span_id("step", order.session))
        try:
            place = await self._open(order, progress)
            execution = Execution(order, place, progress, account, texts or (lambda: order.texts))
            try:
                outcome = _recall(place.stored)
                if outcome is None:
                    self._services.journal.confirm()
                    outcome = await self._work(execution)
                    if outcome.asks is not None and place.artifacts is not None:  # it continues there later
                        await self._isolation.leave(order.session, place)
                        return outcome
                    outcome = await _checked(order, outcome)
                if place.artifacts is not None:
                    outcome = await self._merge(execution, outcome)
            except HOST_FAULTS:
                raise
            except Exception as error:  # noqa: BLE001  # a handler may raise anything: the step fails
                outcome = _caught(order, error)
            return outcome if place.artifacts is None else await self._close(execution, outcome)
        except GeneratorExit:
            if place is not None:
                self._isolation.let_go(place)  # the event loop is gone, so this cannot wait
            raise
        except BaseException as error:
            if place is not None:
                await self._isolation.leave(order.session, place)
            if isinstance(error, HOST_FAULTS) or not isinstance(error, Exception):
                raise
            return _caught(order, error)

    async def _work(self, execution: Execution[Job]) -> Outcome:
        """Do the work of an execution in its open workspace. A replay answers from a recording instead."""
        return await type_of(execution.order.step).perform(self._services, execution)

    async def _open(self, order: Order[Job], progress: OnProgress) -> StepWorkspace:
        """The workspace of an execution. It has no artifacts if the step does not work with files."""
        workspace = order.step.traits.workspace
        if workspace in ("none", "claims") or (workspace == "project" and not order.write_set):
            return StepWorkspace(self._project, None)
        if order.turns:
            await self._isolation.check_proposals(order)
        takes_time = self._isolation.takes_time(order)
        if takes_time:
            progress(Preparing("opens its workspace"))
        journal = self._services.journal
        journal.confirm()  # a process that lost the lease must not replace the workspace of the new owner
        place = await self._isolation.open(order, journal.epoch, self._services.programs.set_up)
        if takes_time:
            progress(Preparing())
        is_new = order.execution == 1
        room = ArtifactRoom(self._runs, order.run, order.session, order.job.artifacts, is_new=is_new)
        if not is_new and order.step.traits.role is None and place.stored is None:
            room.drop()  # only an agent continues with the artifacts of its earlier execution
        place.artifacts = room
        return place

    async def _merge(self, execution: Execution[Job], outcome: Outcome) -> Outcome:
        """Check the changes of an execution, merge them and publish its artifacts."""
        order, place, room = execution.order, execution.place, execution.place.artifacts
        assert room is not None, "the step works with files"
        if self._isolation.is_watched(order.session):
            violation = await self._check_shared(order, place)
            if violation is not None:
                error = outcome.error
                if error is not None:  # its own failure is not retried either
                    message = f"{error.message}; {violation.message}"
                    violation = replace(error, message=message, retryable=False)
                return Outcome(error=violation, usage=outcome.usage)
        if outcome.error is not None:
            return outcome
        made: dict[str, Artifact] = {}
        if not room.is_empty:  # the names are reserved for the step from now on
            own = family(order.path)
            made = await asyncio.to_thread(room.collect, own, self._store.clean)
            names = self._published.setdefault(order.run, PublishedNames())
            for path in made:
                names.check(path, own)
            for path in made:
                names.add(path, own)
        if self._isolation.needs_merge(order, place):
            execution.progress(Preparing("merges its changes"))
            outcome = await self._merge_changes(execution, outcome)
        if outcome.error is None:
            outcome = _judge_changes(order, place, outcome)
        if outcome.error is None and made:
            self._services.journal.confirm()
            await asyncio.to_thread(room.publish, made)
            put = self._services.journal.blobs.put
            files = [replace(file, text=put(file.text) if file.text else "") for file in made.values()]
            place.evidence.append(ArtifactsPublished(files=tuple(files)))
        return outcome

    async def _close(self, execution: Execution[Job], outcome: Outcome) -> Outcome:
        """Close the workspace after a failure. After success it stays until the log has the outcome."""
        session, place, room = execution.order.session, execution.place, execution.place.artifacts
        assert room is not None, "the step works with files"
        if place.child is not None or place.merged is not None:
            execution.progress(Preparing())
        unsettled = ""
        if outcome.error is not None:
            self._services.journal.confirm()  # a process that lost the lease may not remove the workspace
            if not is_held(outcome.error):  # else the step continues with its artifacts
                room.drop()
            await self._isolation.close(session, place, outcome.error)
        elif self._isolation.rests(session, place) or room.is_open:
            self._ended[session] = place
            unsettled = session
        if not place.evidence and not unsettled:
            return outcome
        return replace(outcome, evidence=tuple(place.evidence), unsettled=unsettled)

    async def _check_shared(self, order: Order[Job], place: StepWorkspace) -> Failure | None:
        """The failure of a step that changed forbidden paths, or whose changes cannot be compared.

        It is not retried: the next attempt would start from these changes.
        """
        others: list[tuple[str, ...]] = []
        if order.is_shared_writer:
            others = [claim.patterns for claim in self._store.claims_beside(self._services.journal.root)]
        try:
            return await self._isolation.check_shared(order, place, others)
        except WorldError as error:
            return order.failure("violation", error.code, error.message, error.hint, retryable=False)

    async def _merge_changes(self, execution: Execution[Job], outcome: Outcome) -> Outcome:
        """Merge the changes of a step. With `on_conflict: resolve` an agent resolves merge conflicts."""
        order, place = execution.order, execution.place
        if place.stored is None and order.step.merge != "discard":
            self._services.journal.confirm()
            stored = msgspec.json.encode([outcome.output, outcome.summary, outcome.usage, outcome.warning])
            await self._isolation.remember(place, self._store.clean(stored))
        merged = None
        if order.execution == 1 or not await self._isolation.is_disputed(settling_ids(order.session)[0]):
            self._services.journal.confirm()
            merged = await self._isolation.merge(order, place)
        usage = outcome.usage
        if merged is not None and not can_resolve(self._frozen, order, merged):
            refused = self._isolation.record_merge(order, place, merged)
        else:
            resolution = ConflictResolution(self._services, execution, type_of(order.step).task(order.job))
            refused = await resolution.run(merged)
            usage = add_usage(usage, resolution.spent)
        return replace(outcome, usage=usage) if refused is None else Outcome(error=refused, usage=usage)


async def _checked(order: Order[Job], outcome: Outcome) -> Outcome:
    """The outcome, or a failure if the output does not match the step's declaration."""
    if outcome.error is not None or outcome.asks is not None:
        return outcome
    try:
        value = strict(outcome.output)
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        invalid: Failure | None = unfit(order.path, error)
    else:
        if value is not outcome.output:
            outcome = replace(outcome, output=value)
        if order.step.output_schema is None:
            invalid = check_output(order.step, order.path, order.attempt, value)
        else:
            invalid = await aside(check_output, order.step, order.path, order.attempt, value)
    return outcome if invalid is None else Outcome(error=invalid, usage=outcome.usage)


def _recall(stored: bytes | None) -> Outcome | None:
    """The outcome that an earlier execution stored when its work was finished."""
    if stored is None:
        return None
    values = [*msgspec.json.decode(stored), None][:4]  # earlier releases wrote no warning
    output, summary, usage, warning = msgspec.convert(values, tuple[JSON, str, Usage | None, Failure | None])
    return Outcome(output, None, summary, usage, warning)


def _judge_changes(order: Order[Job], place: StepWorkspace, outcome: Outcome) -> Outcome:
    """The outcome, adjusted if an isolated writer merged and proposed no changes.

    This is a failure if the step requires changes, else a warning if the step is an agent.
    """
    step = order.step
    if step.posture != "writer" or step.workspace_mode != "isolated" or step.merge == "discard":
        return outcome
    if any(isinstance(fact, Merge) for fact in place.evidence):
        return outcome
    message = f"{order.path} changed no file"
    if outcome.warning is not None:
        message += f" ({outcome.warning.message})"
    if step.require_changes:
        hint = f"fanfold transcript {order.root} {order.typed_path} shows what it did instead"
        return Outcome(error=order.failure("agent", NO_CHANGES, message, hint), usage=outcome.usage)
    if step.traits.role is None or order.in_open_run:
        return outcome  # commands and subagents often write nothing, which is normal
    hint = "require_changes: true makes this a failure; posture: read_only is for steps that only read"
    return replace(outcome, warning=order.failure("agent", NO_CHANGES, message, hint, retryable=False))


def _caught(order: Order[Job], error: Exception) -> Outcome:
    """The failure of a step whose work raised an exception."""
    if isinstance(error, SessionFailed):  # from a tool of a scripted agent, outside any session
        return Outcome(error=error.failure, usage=error.usage)
    if not isinstance(error, FanfoldError):
        return Outcome(error=order.failure("agent", "step.exception", exception_text(error)))
    if error.code.startswith("artifact."):
        failure = order.failure("violation", error.code, error.message, error.hint, retryable=False)
        return Outcome(error=failure)
    return Outcome(error=order.failure("agent", error.code, error.message, error.hint))


# -----------------------------------------------------------------------------------------------------------
# `on_conflict: resolve`: an agent resolves merge conflicts of a step in a separate workspace
#
# The workspace starts from the current project tree and contains all changes of the step without conflicts.
# The conflicts are in files (see `workspace.receipts`). The result of the agent is compared with the step's
# write-set and merged by the same rules as any change.
#
# Rules
# * The agent is a normal session with its own log. Its id is derived from the step's session, so that it
#   continues after a crash. Its tree path is `<step>/resolve`, which scripts use. The first round is
#   attempt 1, the second is attempt 2.
# * There is a second round only if the project tree changed again meanwhile. If the agent fails or leaves
#   markers, the conflict is not resolved: the step fails with class `conflict`, as without an agent.
# * The spending of the agent counts as spending of the step.

MAX_TASK_CHARS = 20_000


def can_resolve(frozen: RunConfig, order: Order[Job], merged: MergeResult) -> bool:
    """Whether an agent is to resolve these conflicts."""
    from fanfold.workspace.receipts import can_be_settled

    wanted = order.step.on_conflict == "resolve" and RESOLVER in frozen.roles
    return wanted and bool(merged.conflicts) and can_be_settled(merged.conflicts)


class ConflictResolution:
    """The rounds in which the conflicts of one execution are resolved."""

    def __init__(self, services: Services, execution: Execution[Job], task: str) -> None:
        self._isolation = services.isolation
        self._services = services
        self._execution = execution
        self._task = shorten(task, MAX_TASK_CHARS)
        self.spent: Usage | None = None
        """The usage of the agents so far."""

    async def run(self, merged: MergeResult | None) -> Failure | None:
        """Resolve the conflicts and merge the result. Returns the failure of the step, if any.

        `merged` is None if an earlier execution has already started to resolve them.
        """
        order = self._execution.order
        place = source = self._execution.place
        for number, name in enumerate(settling_ids(order.session), 1):
            try:
                where, dispute = await self._isolation.open_dispute(name, source, order.execution)
            except WorldError as error:  # the conflict is unresolved
                failure = self._isolation.record_merge(order, place, merged) if merged is not None else None
                failure = failure or refusal(order, "conflict", [])
                return replace(failure, message=f"{failure.message}; {error.message}")
            place.rounds.append(where)
            if dispute.conflicts:
                place.evidence.append(conflict(dispute.conflicts))
                failure = await self._settle(name, number, where, dispute)
                if failure is not None:
                    return failure
                source = where
            merged = await self._isolation.merge(order, source)
            if not merged.conflicts:
                break
        assert merged is not None, "there is at least one round"
        return self._isolation.record_merge(order, place, merged)

    async def _settle(self, name: str, number: int, where: StepWorkspace, dispute: Dispute) -> Failure | None:
        """Run one round. Returns the failure if the agent did not resolve the conflicts."""
        order, frozen = self._execution.order, self._services.frozen
        request = SessionRequest(
            session_id=name,
            run_id=order.run,
            step=f"{order.tree_path}/resolve",
            attempt=number,
            execution=order.execution,
            role=frozen.resolver_role(order.step),
            prompt=prompt_for(self._task, dispute, order.write_set),
            workspace=where.path,
            write_set=order.write_set,
            account=self._execution.account,
        )
        failure: Failure | None = None
        try:
            result = await self._services.supervisor.run_step(
                request,
                backend=frozen.backend_of(request.role),
                on_progress=self._execution.progress,
                journal=self._services.journal,
                durable=True,  # the changes of the agent are merged next
            )
            self.spent = add_usage(self.spent, result.usage)
        except SessionFailed as error:
            failure = error.failure
            self.spent = add_usage(self.spent, error.usage)
        except AuthorError as error:  # no model is configured
            failure = Failure("agent", error.code, error.message, error.hint, step=request.step)
        why = ""
        if failure is not None:
            # A paused agent, or one without budget or provider, continues with the run.
            is_agent = order.step.traits.role is not None
            paused = failure.code == "session.paused" or is_out_of_budget(failure)
            if paused or (is_agent and is_held(failure)):
                return failure
            why = failure.message
        elif left := await self._isolation.unsettled(where, dispute):
            why = f"markers are left in {', '.join(left[:5])}"
        paths = [row.path for row in dispute.conflicts]
        fact = Resolve(
            session_id=name,
            round=number,
            role=request.role.name,
            paths=tuple(paths),
            settled=not why,
            why=why,
        )
        self._execution.place.evidence.append(fact)
        return refusal(order, "conflict", paths, f"the agent did not settle it: {why}") if why else None


def prompt_for(task: str, dispute: Dispute, write_set: tuple[str, ...]) -> str:
    """The prompt for the agent: the step's task, the files with conflicts, and the meaning of markers."""
    from fanfold.workspace.receipts import BASE, OURS, THEIRS

    lines = [
        "A change could not be merged, because the same files were changed meanwhile. Settle it.",
        "",
        "The change was made for this task:",
        task,
        "",
        "This workspace is the project as it is now, with all of the change that goes together with it.",
        "These files are left:",
        *(f"- {conflict.path}: {_describe(conflict, dispute)}" for conflict in dispute.conflicts),
        "",
    ]
    if dispute.marked:
        lines += [
            "Between markers stand three versions:",
            f'- after "<<<<<<< {OURS}": what the project has now;',
            f'- after "||||||| {BASE}": what both sides began with;',
            f'- after "=======", up to ">>>>>>> {THEIRS}": what the change wants.',
            "",
        ]
    lines += [
        "Edit each file so that it keeps what both sides meant. No marker may be left. Change nothing else.",
        f"You may write: {', '.join(write_set)}",
    ]
    return "\n".join(lines)


def _describe(conflict: MergeConflict, dispute: Dispute) -> str:
    if conflict.path in dispute.marked:
        return "changed on both sides; it holds both versions between markers"
    beside = dispute.beside.get(conflict.path)
    where = f"; the change's version is in {beside}, which is removed afterwards" if beside else ""
    if conflict.ours is None and conflict.theirs is None:
        return "moved to different places by the two sides"
    if conflict.theirs is None:
        return "the change deletes or moves it, but the project changed it; the project's version was kept"
    if conflict.ours is None:
        return f"the project deleted or moved it, but the change needs it{where}"
    return f"changed on both sides and not text; the project's version was kept{where}"


# -----------------------------------------------------------------------------------------------------------
# The executors of a run: one for all steps of a recipe, one per step configuration in an open run
#
# A step configuration is a role, a back end, a script and a permission. Children with the same configuration
# share connections. Other children share only the workspaces of the project.


class RemoteExecution(Protocol):
    """Executes orders in other processes, which outlive the driver of the run."""

    driver: str
    """The name of this driver, for the log."""

    def takes(self, order: Order[Job]) -> bool:
        """Whether another process executes an order."""
        ...

    async def perform(self, order: Order[Job], account: Account) -> Outcome:
        """Have an order executed, or await it if an earlier driver did so. Cancelling this stops it."""
        ...

    def pause(self, session: str) -> bool:
        """End a session after its current turn. False if it does not run there."""
        ...

    def detach(self) -> None:
        """Leave all executions running from now on: this driver ends, and the next one awaits them."""
        ...


class StepExecutors:
    """The executors of one run. `make` creates the executor for a configuration, given its blob hash."""

    def __init__(self, own: StepExecutor, make: Callable[[str], StepExecutor]) -> None:
        self._own = own
        self._make = make
        self._made: dict[str, StepExecutor] = {}

    remote: RemoteExecution | None = None
    """Executes orders in other processes. None: this process executes all of them."""

    async def perform(
        self,
        order: Order[Job],
        progress: OnProgress,
        account: Account,
        texts: Callable[[], Sequence[SentText]] | None = None,
    ) -> Outcome:
        """Do the work of one execution; see `StepExecutor.perform`."""
        if self.remote is not None and self.remote.takes(order):
            return await self.remote.perform(order, account)
        return await self.of(order).perform(order, progress, account, texts)

    def of(self, order: Order[Job]) -> StepExecutor:
        """The executor for an order."""
        config = order.config
        if not config:
            return self._own
        if config not in self._made:
            self._made[config] = self._make(config)
        return self._made[config]

    @property
    def _all(self) -> Sequence[StepExecutor]:
        return [self._own, *self._made.values()]

    def pause(self, session: str) -> bool:
        """End a session after its current turn. False if it does not run."""
        if self.remote is not None and self.remote.pause(session):
            return True
        return any(performer.pause(session) for performer in self._all)

    def settle(self, session: str) -> None:
        """Close the workspace of a session, after the log has the end of its step."""
        for performer in self._all:
            performer.settle(session)

    def discard(self, homes: Sequence[str]) -> None:
        """Discard the workspaces of a child that was closed."""
        self._own.discard(homes)

    async def sweep(self, is_over: Callable[[list[str]], list[str]], closed: Sequence[str]) -> None:
        """Discard the workspaces that an earlier owner left; see `StepExecutor.sweep`."""
        await self._own.sweep(is_over, closed)

    async def aclose(self) -> None:
        """Close all executors when the host of the tree ends."""
        for performer in self._all:
            await performer.aclose()
