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
from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.agents.backend import SessionFailed, subject_of
from fanfold.agents.entries import Preparing
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.errors import BugError, FanfoldError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED, Node, State, is_shared_writer
from fanfold.language.json_text import strict
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.terminal import said
from fanfold.steps.ids import is_held, root_of, session_id, settling_ids, typed_path
from fanfold.steps.records import Memory, child_of, home_of
from fanfold.steps.run_config import RunConfig
from fanfold.steps.step_type import Execution, Job, Outcome, Services, Tell, failure
from fanfold.steps.step_workspace import StepWorkspace
from fanfold.steps.table import type_of
from fanfold.steps.values import check_output, unfit
from fanfold.store.protocol import LeaseLost, StoreFault
from fanfold.workspace.artifacts import Artifact, ArtifactRoom, ArtifactView, PublishedNames, family

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


def content_key(node: Node, job: Job, frozen: RunConfig, project: str) -> str | None:
    """The key of a step, or None if its read-set has too many files or cannot be read."""
    try:
        content = _content_of(project, node.read_set)
    except OSError:
        return None  # a file was removed while it was read
    if content is None:
        return None
    kind = type_of(node.step)
    step = (msgspec.to_builtins(node.step.action), node.step.output_schema, node.step.outputs)
    facts = (
        type(job).__name__,
        msgspec.to_builtins(replace(job, artifacts=ArtifactView(job.artifacts.seen))),
        kind.circumstances(frozen, kind.read(node.step)),
        step,
        frozen.script,
    )
    return blake2b(msgspec.json.encode((facts, content)), digest_size=16).hexdigest()


def _content_of(project: str, patterns: tuple[str, ...]) -> str | None:
    digest = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(project):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, project)
            if not matches(patterns, relative):
                continue
            content = _content(path)
            if content is None:
                continue
            count += 1
            if count > MAX_FILES:
                return None
            digest.update(relative.encode("utf-8", "surrogateescape") + b"\0")
            digest.update(content)
    return digest.hexdigest()


def _content(path: str) -> bytes | None:
    """The hash of a file's content, or the target of a link. None for other kinds of files."""
    if os.path.islink(path):
        return b"-> " + os.fsencode(os.readlink(path))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file_digest(opened, blake2b).digest()


NO_CHANGES = "agent.no_changes"


class StepExecutor:
    """Executes steps of one run with one configuration."""

    def __init__(self, services: Services, project: str) -> None:
        self._services = services
        self._isolation = services.isolation
        self._store = services.store
        self._supervisor = services.supervisor
        self._frozen = services.frozen
        self._project = project
        self._runs = str(services.memory / "runs")
        self._keys: dict[tuple[str, str], str] = {}
        self._ended: dict[str, StepWorkspace] = {}
        """Workspaces of successful steps, by session, until the log has the end of the step."""
        self._published: dict[str, PublishedNames] = {}
        """The artifacts of each run by path, with the step that published them in this process."""
        self._closing: set[asyncio.Task[None]] = set()

    def reuse(self, node: Node, job: Job) -> tuple[str | None, Failure | None]:
        """The output or failure of an earlier run that replaces this step.

        It comes from the run that was forked, or from the cache.
        """
        path = node.run.tree_path(node.path)
        kept = self._frozen.reused.get(path), self._frozen.reused_failures.get(path)
        if any(kept) or not node.step.cache or path in self._frozen.taken_up:
            return kept
        key = content_key(node, job, self._frozen, self._project)
        if key is None:
            return None, None
        self._keys[node.run.id, node.path] = key
        cached = self._store.cached(key)
        return cached if cached and self._services.journal.blobs.adopt(cached) else None, None

    def subjects(self, node: Node, job: Job) -> list[tuple[str, str]]:
        """The back ends for an agent step, in order of preference, each with the subject of its waits."""
        said = getattr(job, "said", None)
        if not isinstance(said, AgentBody):
            return []
        role, frozen = self._services.session_role(node.step, said), self._frozen
        names = dict.fromkeys((frozen.backend_of(role), *frozen.fallback_backends(role)))
        return [(name, subject_of(self._supervisor.backends.named(name), role)) for name in names]

    def cache_key(self, node: Node) -> str | None:
        """The content key that this step had when it started. Its output is cached under this key."""
        return self._keys.pop((node.run.id, node.path), None)

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

    async def sweep(self, state: State) -> None:
        """Discard workspaces of completed steps and closed children that an earlier owner left."""
        await self._isolation.sweep(lambda found: _over(state, found))
        closed = [home_of(node, max(1, node.attempt)) for node in state.root.nodes.values() if node.closed]
        if closed:
            await self._isolation.discard(closed)

    def pause(self, session: str) -> bool:
        """End a session after its current turn. False if it does not run here."""
        return any(self._supervisor.pause(one) for one in (session, *settling_ids(session)))

    async def perform(
        self, start: Start, node: Node, job: Job, progress: Tell, account: Account = UNLIMITED
    ) -> Outcome:
        """Do the work of one execution.

        Failures of the step are part of the outcome. Only a cancellation and errors that must stop the host
        are raised.
        """
        try:
            if _needs_place(node):
                outcome = await self._in_place(start, node, job, progress, account)
            else:
                here = Execution(start, node, job, StepWorkspace(self._project, None), progress, account)
                outcome = await _checked(node, await self._work(here))
        except (StoreFault, LeaseLost, BugError):
            raise  # not the step's failure: its host must stop
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; it is the step's failure
            outcome = Outcome(error=_caught(node, start, error))
        return outcome if outcome.error is None else type_of(node.step).rescue(node, job, outcome)

    async def _in_place(
        self, start: Start, node: Node, job: Job, progress: Tell, account: Account
    ) -> Outcome:
        """Execute a step in its workspace and merge its changes while it still has its path claims."""
        session = session_id(start.run, start.step, start.attempt)
        if node.step.traits.continues is not None:
            await self._isolation.check_proposals(node)
        takes_time = self._isolation.takes_time(node)
        if takes_time:
            progress(Preparing("opens its workspace"))
        journal, home = self._services.journal, home_of(node, start.attempt)
        journal.confirm()  # a process that lost the lease must not replace the workspace of the new owner
        place = await self._isolation.open(node, session, start.execution, home, journal.epoch)
        if takes_time:
            progress(Preparing())
        room = place.artifacts = self._room(start, node, job, place, session)
        try:
            execution = Execution(start, node, job, place, progress, account)
            outcome = await self._work_and_merge(execution, session)
            if outcome.error is not None:
                journal.confirm()  # nor may it remove that workspace
                if not is_held(outcome.error):  # else the step continues with its artifacts
                    room.drop()
                await self._isolation.close(session, place, outcome.error)
        except GeneratorExit:
            self._isolation.let_go(place)  # the event loop is gone, so this cannot wait
            raise
        except BaseException:
            await self._isolation.leave(session, place)
            raise
        unsettled = ""
        if outcome.error is None and (self._isolation.rests(session, place) or room.is_open):
            self._ended[session] = place
            unsettled = session
        if not place.evidence and not unsettled:
            return outcome
        return msgspec.structs.replace(outcome, evidence=tuple(place.evidence), unsettled=unsettled)

    async def _work_and_merge(self, execution: Execution[Job], session: str) -> Outcome:
        start, node, place = execution.start, execution.node, execution.place
        try:
            outcome = _recall(place.said) or await _checked(node, await self._work(execution))
            if self._isolation.is_watched(session):
                strayed = await self._isolation.check_shared(node, session, place, self._others(node))
                if outcome.error is None and strayed is not None:
                    return Outcome(error=strayed, usage=outcome.usage)
            room, done = place.artifacts, outcome.error is None
            made = await self._collect(node, room) if done and room is not None and not room.is_empty else {}
            if done and self._isolation.comes_home(node, place):
                execution.progress(Preparing("brings its changes home"))
                outcome = await self._bring_home(execution, session, outcome)
            if outcome.error is None:
                outcome = _judge_changes(start, node, place, outcome)
            if outcome.error is None and made:
                self._services.journal.confirm()
                await self._publish(place, made)
        except (StoreFault, LeaseLost, BugError):
            raise  # not the step's failure: its host must stop
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; it is the step's failure
            return Outcome(error=_caught(node, start, error))
        finally:
            if place.child is not None or place.merged is not None:
                execution.progress(Preparing())
        return outcome

    def _room(self, start: Start, node: Node, job: Job, place: StepWorkspace, session: str) -> ArtifactRoom:
        """The folder for the artifacts of an execution. It starts empty, except for agents that continue."""
        is_new = start.execution == 1
        room = ArtifactRoom(self._runs, node.run.id, session, job.artifacts, is_new=is_new)
        if not is_new and node.step.traits.role is None and place.said is None:
            room.drop()
        return room

    async def _collect(self, node: Node, room: ArtifactRoom) -> dict[str, Artifact]:
        """The artifacts that a step will publish. Their names are reserved for the step from now on."""
        own = family(node.path)
        made = await asyncio.to_thread(room.collect, own, self._store.clean)
        names = self._published.setdefault(node.run.id, PublishedNames())
        for path in made:
            names.check(path, own)
        for path in made:
            names.add(path, own)
        return made

    async def _publish(self, place: StepWorkspace, made: dict[str, Artifact]) -> None:
        from fanfold.steps.records import ArtifactsPublished

        assert place.artifacts is not None, "it was made there"
        await asyncio.to_thread(place.artifacts.publish, made)
        blobs = self._services.journal.blobs
        files = [
            msgspec.structs.replace(one, text=blobs.put(one.text) if one.text else "")
            for one in made.values()
        ]
        place.evidence.append(ArtifactsPublished(files=tuple(files)))

    def _others(self, node: Node) -> list[tuple[str, ...]]:
        """The path sets that writers of other runs may change while a step shares the project tree."""
        if not is_shared_writer(node):
            return []
        return [claim.patterns for claim in self._store.claims_beside(self._services.journal.root)]

    async def _bring_home(self, execution: Execution[Job], session: str, outcome: Outcome) -> Outcome:
        """Merge the changes of a step. With `on_conflict: resolve` an agent resolves merge conflicts."""
        from fanfold.steps.resolving import Settling, takes

        start, node, place = execution.start, execution.node, execution.place
        if place.said is None and node.step.merge != "discard":
            self._services.journal.confirm()
            await self._isolation.remember(place, self._store.clean(_remembered(outcome)))
        merged = None
        if start.execution == 1 or not await self._isolation.is_disputed(settling_ids(session)[0]):
            self._services.journal.confirm()
            merged = await self._isolation.merge(node, place)
            if not takes(self._frozen, node, merged):
                refused = self._isolation.tell(node, place, merged)
                return outcome if refused is None else _refused(outcome, refused)
        settling = Settling(
            self._isolation, self._services, execution, type_of(node.step).task(execution.job)
        )
        refused = await settling.run(merged)
        if settling.spent is not None:
            usage = (outcome.usage or NOTHING_SPENT) + settling.spent
            outcome = msgspec.structs.replace(outcome, usage=usage)
        return outcome if refused is None else _refused(outcome, refused)

    async def _work(self, execution: Execution[Job]) -> Outcome:
        self._services.journal.confirm()
        try:
            return await type_of(execution.node.step).perform(self._services, execution)
        except SessionFailed as error:  # from a tool of a scripted agent, outside any session
            return Outcome(error=error.failure, usage=error.usage)


def _needs_place(node: Node) -> bool:
    """Whether a step works with files. A step in the project tree does only if it has a write-set."""
    workspace = node.step.traits.workspace
    return workspace not in ("none", "claims") and (workspace != "project" or bool(node.write_set))


async def _checked(node: Node, outcome: Outcome) -> Outcome:
    """The outcome, or a failure if the output does not match the step's declaration."""
    if outcome.error is not None or outcome.asks is not None:
        return outcome
    try:
        value = strict(outcome.output)
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        invalid: Failure | None = unfit(node, error)
    else:
        if value is not outcome.output:
            outcome = msgspec.structs.replace(outcome, output=value)
        if node.step.output_schema is None:
            invalid = check_output(node, value)
        else:
            from fanfold.language.json_text import aside  # imported late: few steps have a schema

            invalid = await aside(check_output, node, value)
    return outcome if invalid is None else Outcome(error=invalid, usage=outcome.usage)


def _refused(outcome: Outcome, refused: Failure) -> Outcome:
    return Outcome(error=refused, usage=outcome.usage)


def _remembered(outcome: Outcome) -> bytes:
    return msgspec.json.encode([outcome.output, outcome.summary, outcome.usage, outcome.warning])


def _recall(said: bytes | None) -> Outcome | None:
    """The outcome that an earlier execution stored when its work was finished."""
    if said is None:
        return None
    values = [*msgspec.json.decode(said), None][:4]  # earlier releases wrote no warning
    output, summary, usage, warning = msgspec.convert(values, tuple[JSON, str, Usage | None, Failure | None])
    return Outcome(output, None, summary, usage, warning)


def _judge_changes(start: Start, node: Node, place: StepWorkspace, outcome: Outcome) -> Outcome:
    """The outcome, adjusted if an isolated writer merged and proposed no changes.

    This is a failure if the step requires changes, else a warning if the step is an agent.
    """
    step = node.step
    if step.posture != "writer" or step.workspace_mode != "isolated" or step.merge == "discard":
        return outcome
    from fanfold.steps.records import Merge

    if any(isinstance(fact, Merge) for fact in place.evidence):
        return outcome
    message = f"{node.path} changed no file"
    if outcome.warning is not None:
        message += f" ({outcome.warning.message})"
    if step.require_changes:
        hint = f"fanfold transcript {root_of(node)} {typed_path(node)} shows what it did instead"
        return Outcome(error=failure(node, start, "agent", NO_CHANGES, message, hint), usage=outcome.usage)
    if step.traits.role is None or node.run.plan.open:
        return outcome  # commands and subagents often write nothing, which is normal
    hint = "require_changes: true makes this a failure; posture: read_only is for steps that only read"
    return msgspec.structs.replace(
        outcome, warning=failure(node, start, "agent", NO_CHANGES, message, hint, retryable=False)
    )


def _over(state: State, found: list[str]) -> list[str]:
    """The sessions among `found` whose step completed."""
    if not found:
        return []
    left = set(found)
    over: list[str] = []
    for run in state.runs.values():
        for node in run.nodes.values():
            if node.status == COMPLETED and node.step.workspace_mode == "isolated":
                session = session_id(run.id, node.path, node.attempt)
                homes = (home_of(node, node.attempt), session, *settling_ids(session))
                over += [one for one in dict.fromkeys(homes) if one in left]
    return over


def _caught(node: Node, start: Start, error: Exception) -> Failure:
    if isinstance(error, FanfoldError) and error.code.startswith("artifact."):
        return failure(node, start, "violation", error.code, error.message, error.hint, retryable=False)
    if isinstance(error, FanfoldError):
        return failure(node, start, "agent", error.code, error.message, error.hint)
    return failure(node, start, "agent", "step.exception", said(error))


# -----------------------------------------------------------------------------------------------------------
# The executors of a run: one for all steps of a recipe, one per step configuration in an open run
#
# A step configuration is a role, a back end, a script and a permission. Children with the same configuration
# share connections. Other children share only the workspaces of the project.


class StepExecutors:
    """The executors of one run. `make` creates the executor for a configuration, given its blob hash."""

    def __init__(self, own: StepExecutor, make: Callable[[str], StepExecutor]) -> None:
        self._own = own
        self._make = make
        self._made: dict[str, StepExecutor] = {}

    def of(self, node: Node, memory: Memory) -> StepExecutor:
        """The executor of a step."""
        facts = memory.added.get(child_of(node)) if memory.added else None
        if facts is None:
            return self._own
        if facts not in self._made:
            self._made[facts] = self._make(facts)
        return self._made[facts]

    @property
    def _all(self) -> Sequence[StepExecutor]:
        return [self._own, *self._made.values()]

    def pause(self, session: str) -> bool:
        """End a session after its current turn. False if it does not run here."""
        return any(performer.pause(session) for performer in self._all)

    def settle(self, session: str) -> None:
        """Close the workspace of a session, after the log has the end of its step."""
        for performer in self._all:
            performer.settle(session)

    def discard(self, homes: Sequence[str]) -> None:
        """Discard the workspaces of a child that was closed."""
        self._own.discard(homes)

    async def sweep(self, state: State) -> None:
        """Discard the workspaces that an earlier owner left."""
        await self._own.sweep(state)

    async def aclose(self) -> None:
        """Close all executors when the host of the tree ends."""
        for performer in self._all:
            await performer.aclose()
