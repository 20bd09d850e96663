"""Carries out jobs of every step type: in the right place, with the output checked and the changes merged.

Rules
* An outcome is a value: a result, or a failure with its class. Exceptions of user code become failures.
* Who cancels an execution and why is the host's business.
* An output that does not keep the step's promise is a failure of class `invalid_output`.
* What was merged is remembered beside the workspace until the end of the step is in the log (`settle`):
  whoever takes over in between neither works nor merges again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from fanfold.agents.backend import SessionFailed
from fanfold.agents.entries import Preparing, paid_in
from fanfold.errors import BugError, FanfoldError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Node, State, is_shared_writer
from fanfold.kernel.plan import JSON
from fanfold.runtime.places.place import Place
from fanfold.runtime.records.attempt_sessions import sessions_of
from fanfold.runtime.records.ids import session_id, settling_ids
from fanfold.runtime.records.outputs import check_output, unfit
from fanfold.runtime.records.subagents import home_of
from fanfold.runtime.steps.performing.cache import content_key
from fanfold.runtime.steps.registry import type_of
from fanfold.runtime.steps.step_type import Execution, Job, Outcome, Services, Tell, failure
from fanfold.sessions.log import read_entries
from fanfold.store.protocol import LeaseLost, StoreFault
from fanfold.text.json_value import strict
from fanfold.text.raised import said
from fanfold.workspace.artifacts import Artifact, ArtifactRoom, PublishedNames, family


class Performer:
    def __init__(self, services: Services, project: str) -> None:
        self._services = services
        self._isolation = services.isolation
        self._store = services.store
        self._supervisor = services.supervisor
        self._frozen = services.frozen
        self._project = project
        self._runs = str(services.memory / "runs")
        self._keys: dict[tuple[str, str], str] = {}
        self._ended: dict[str, Place] = {}
        """Where steps worked that have ended well, until the log says so."""
        self._published: dict[str, PublishedNames] = {}
        """Artifacts of runs by path, with the step that published them while this process drives."""
        self._closing: set[asyncio.Task[None]] = set()

    def reuse(self, node: Node, job: Job) -> str | Failure | None:
        """What an earlier run left that may stand in for this step: a fork's output or tolerated failure, or
        a cached output.
        """
        path = node.run.tree_path(node.path)
        kept = self._frozen.reused.get(path) or self._frozen.reused_failures.get(path)
        if kept is not None or not node.step.cache or path in self._frozen.taken_up:
            return kept
        key = content_key(node, job, self._frozen, self._project)
        if key is None:
            return None
        self._keys[node.run.id, node.path] = key
        return self._store.cached(key)

    def cache_key(self, node: Node) -> str | None:
        """The key this step had when it started; its output is remembered under it."""
        return self._keys.pop((node.run.id, node.path), None)

    async def aclose(self) -> None:
        """The tree's host leaves: end what still runs and close connections. Both are made anew if needed."""
        await self._services.end_functions()
        await self._supervisor.aclose()
        await asyncio.gather(*self._closing)
        while self._ended:  # the log does not have their end; whoever takes over finds them as they are
            await self._isolation.leave(*self._ended.popitem())

    def settle(self, session: str) -> None:
        """The log has the end of a step: nobody needs the workspace of its session any more."""
        place = self._ended.pop(session, None)
        if place is not None:
            if place.artifacts is not None:
                place.artifacts.drop()
            self._see_to(self._isolation.close(session, place, None))

    def discard(self, homes: Sequence[str]) -> None:
        """Throw away the workspaces of sessions that nobody will go on with."""
        self._see_to(self._isolation.discard(homes))

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def sweep(self, state: State) -> None:
        """Throw away what an earlier owner could not: workspaces of steps whose end the log has."""
        await self._isolation.sweep(lambda found: _over(state, found))
        closed = [home_of(node, max(1, node.attempt)) for node in state.root.nodes.values() if node.closed]
        if closed:
            await self._isolation.discard(closed)

    def pause(self, session: str) -> bool:
        """Let a session end with its turn; False when it does not run here."""
        return any(self._supervisor.pause(one) for one in (session, *settling_ids(session)))

    def spent(self, node: Node, attempt: int) -> Usage | None:
        """What an attempt that gave no result has spent, by what its sessions wrote."""
        spent = [
            usage
            for one in sessions_of(self._store, node, attempt)
            for entry in read_entries(self._store, one)
            if (usage := paid_in(entry)) is not None
        ]
        return sum(spent, NOTHING_SPENT) if spent else None

    async def perform(self, start: Start, node: Node, job: Job, progress: Tell) -> Outcome:
        """Do the work of one execution. Raises only `CancelledError`."""
        try:
            if _needs_place(node):
                outcome = await self._in_place(start, node, job, progress)
            else:
                here = Execution(start, node, job, Place(self._project, None), progress)
                outcome = _checked(node, await self._work(here))
        except (StoreFault, LeaseLost, BugError):
            raise  # not the step's failure: its host must stop
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; it is the step's failure
            outcome = Outcome(error=_caught(node, start, error))
        return outcome if outcome.error is None else type_of(node.step).rescue(node, job, outcome)

    async def _in_place(self, start: Start, node: Node, job: Job, progress: Tell) -> Outcome:
        """Work in the step's own place, then bring home what changed while the step still holds its sets."""
        session = session_id(start.run, start.step, start.attempt)
        if node.step.traits.continues is not None:
            await self._isolation.check_proposals(node)
        takes_time = self._isolation.takes_time(node)
        if takes_time:
            progress(Preparing("opens its workspace"))
        journal, home = self._services.journal, home_of(node, start.attempt)
        journal.confirm()  # what another process works in by now is not ours to replace
        place = await self._isolation.open(node, session, start.execution, home, journal.epoch)
        if takes_time:
            progress(Preparing())
        room = place.artifacts = self._room(start, node, job, place, session)
        try:
            outcome = await self._work_and_merge(Execution(start, node, job, place, progress), session)
            if outcome.error is not None:
                journal.confirm()  # nor to clear away
                room.drop()
                await self._isolation.close(session, place, outcome.error)
        except GeneratorExit:
            self._isolation.let_go(place)  # there is no loop any more to wait in
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
            outcome = _recall(place.said) or _checked(node, await self._work(execution))
            if self._isolation.is_watched(session):
                strayed = await self._isolation.check_shared(node, session, place, self._others(node))
                if outcome.error is None and strayed is not None:
                    return Outcome(error=strayed, usage=outcome.usage)
            room, done = place.artifacts, outcome.error is None
            made = await self._collect(node, room) if done and room is not None and not room.is_empty else {}
            if done and self._isolation.comes_home(node, place):
                execution.progress(Preparing("brings its changes home"))
                outcome = await self._bring_home(execution, session, outcome)
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

    def _room(self, start: Start, node: Node, job: Job, place: Place, session: str) -> ArtifactRoom:
        """Where an execution makes its artifacts. An agent goes on with what it made; others begin anew."""
        is_new = start.execution == 1
        room = ArtifactRoom(self._runs, node.run.id, session, job.artifacts, is_new=is_new)
        if not is_new and node.step.traits.role is None and place.said is None:
            room.drop()
        return room

    async def _collect(self, node: Node, room: ArtifactRoom) -> dict[str, Artifact]:
        """What a step that has done its work wants to publish, its names kept for it from now on."""
        own = family(node.path)
        made = await asyncio.to_thread(room.collect, own, self._store.clean)
        names = self._published.setdefault(node.run.id, PublishedNames())
        for path in made:
            names.check(path, own)
        for path in made:
            names.add(path, own)
        return made

    async def _publish(self, place: Place, made: dict[str, Artifact]) -> None:
        from fanfold.runtime.records.evidence import Published

        assert place.artifacts is not None, "it was made there"
        await asyncio.to_thread(place.artifacts.publish, made)
        blobs = self._services.journal.blobs
        files = [
            msgspec.structs.replace(one, text=blobs.put(one.text) if one.text else "")
            for one in made.values()
        ]
        place.evidence.append(Published(files=tuple(files)))

    def _others(self, node: Node) -> list[tuple[str, ...]]:
        """What writers of other runs may have changed in the project while a step shared it."""
        if not is_shared_writer(node):
            return []
        return [claim.patterns for claim in self._store.claims_beside(self._services.journal.root)]

    async def _bring_home(self, execution: Execution[Job], session: str, outcome: Outcome) -> Outcome:
        """Merge what was changed; with `on_conflict: resolve` an agent settles what cannot be merged."""
        from fanfold.runtime.steps.performing.resolving import Settling, takes

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
        except SessionFailed as error:  # a tool of a script, outside any session
            return Outcome(error=error.failure, usage=error.usage)


def _needs_place(node: Node) -> bool:
    """Whether the work of a step touches files; code of this process does when it says so."""
    workspace = node.step.traits.workspace
    return workspace not in ("none", "claims") and (workspace != "project" or bool(node.write_set))


def _checked(node: Node, outcome: Outcome) -> Outcome:
    """An output that does not keep the step's promise is a failure."""
    if outcome.error is not None or outcome.asks is not None:
        return outcome
    try:
        value = strict(outcome.output)
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        invalid: Failure | None = unfit(node, error)
    else:
        if value is not outcome.output:
            outcome = msgspec.structs.replace(outcome, output=value)
        invalid = check_output(node, value)
    return outcome if invalid is None else Outcome(error=invalid, usage=outcome.usage)


def _refused(outcome: Outcome, refused: Failure) -> Outcome:
    return Outcome(error=refused, usage=outcome.usage)


def _remembered(outcome: Outcome) -> bytes:
    return msgspec.json.encode([outcome.output, outcome.summary, outcome.usage])


def _recall(said: bytes | None) -> Outcome | None:
    """What an earlier execution said when it had done its work."""
    if said is None:
        return None
    output, summary, usage = msgspec.json.decode(said, type=tuple[JSON, str, Usage | None])
    return Outcome(output, None, summary, usage)


def _over(state: State, found: list[str]) -> list[str]:
    """Those of these sessions whose step completed."""
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
