"""Carries out jobs: agents through the supervisor, functions in this process, commands as processes.

Rules
* An outcome is a value: a result, or a failure with its class. Exceptions of user code become failures.
* Being cancelled means: end everything this job started, and only then raise. Who cancelled and why is
  the host's business.
* An output that does not keep the step's promise is a failure of class `invalid_output`.
* What was merged is remembered beside the workspace until the end of the step is in the log (`settle`):
  whoever takes over in between neither works nor merges again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.roles.role import Role
from fanfold.errors import BugError, FanfoldError, WorldError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Node, State
from fanfold.kernel.plan import JSON, AgentAction, CommandAction
from fanfold.runtime.places.isolation import Isolation, Place
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.records.ids import session_id, settling_ids
from fanfold.runtime.records.memory import add
from fanfold.runtime.records.outputs import check_output, strict, unfit
from fanfold.runtime.records.values import shorten
from fanfold.runtime.steps import threads
from fanfold.runtime.steps.cache import content_key
from fanfold.runtime.steps.jobs import AgentJob, CommandJob, FunctionJob, Job
from fanfold.runtime.steps.programs import Programs
from fanfold.runtime.steps.resolving import Execution, Settling, takes
from fanfold.sessions.log import read_entries
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import Batch, Lease, LeaseLost, Store, StoreFault
from fanfold.text.template import parse_template, render

SUMMARY_CHARS = 600


Tell = Callable[[Mapping[str, Any]], None]


class Outcome(Struct, frozen=True):
    """How an execution ended: `output` when `error` is None."""

    output: JSON = None
    error: Failure | None = None
    summary: str = ""
    usage: Usage | None = None
    carry: tuple[Batch, ...] = ()
    """The end of the session's own log, to be written in the transaction that ends the step."""
    evidence: tuple[dict[str, Any], ...] = ()
    """What happened to the workspace, for the log."""
    unsettled: str = ""
    """The session whose workspace stays until the log has this outcome; then it must be settled."""


class Performer:
    def __init__(
        self,
        store: Store,
        supervisor: Supervisor,
        frozen: Frozen,
        project: str,
        find_handler: Callable[[str], Callable[..., Any]],
        isolation: Isolation,
        programs: Programs,
    ) -> None:
        self._isolation = isolation
        self._programs = programs
        self._store = store
        self._supervisor = supervisor
        self._frozen = frozen
        self._project = project
        self._find_handler = find_handler
        self._keys: dict[tuple[str, str], str] = {}
        self._ended: dict[str, Place] = {}
        """Where steps worked that have ended well, until the log says so."""
        self._closing: set[asyncio.Task[None]] = set()
        self.lease: Lease | None = None
        """The lease of the tree whose jobs are performed; it guards the sessions' logs too."""

    @property
    def backends(self) -> Collection[str]:
        """Names of the back ends there are."""
        return self._supervisor.backends

    def reuse(self, node: Node, job: Job) -> str | None:
        """The output of an earlier run that may stand in for this step: a fork's, or a cached one."""
        kept = self._frozen.reused.get(node.run.tree_path(node.path))
        if kept is not None or not node.step.cache:
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
        await self._supervisor.aclose()
        await asyncio.gather(*self._closing)
        while self._ended:  # the log does not have their end; whoever takes over finds them as they are
            self._isolation.leave(*self._ended.popitem())

    def settle(self, session: str) -> None:
        """The log has the end of a step: nobody needs the workspace of its session any more."""
        task = asyncio.create_task(self._isolation.close(session, self._ended.pop(session), None))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def sweep(self, state: State) -> None:
        """Throw away what an earlier owner could not: workspaces of steps whose end the log has."""
        await self._isolation.sweep(lambda found: _over(state, found))

    def pause(self, session: str) -> bool:
        """Let a session end with its turn; False when it does not run here."""
        return any(self._supervisor.pause(one) for one in (session, *settling_ids(session)))

    def spent(self, session: str) -> Usage | None:
        """What a session that gave no result has spent, by what it and those settling its conflicts wrote."""
        total: Usage | None = None
        for one in (session, *settling_ids(session)):
            for entry in read_entries(self._store, one):
                said = entry.get("usage")
                if entry.get("kind") == "response" and isinstance(said, dict):
                    total = add(total, msgspec.convert(said, Usage, strict=False))
        return total

    async def perform(self, start: Start, node: Node, job: Job, progress: Tell) -> Outcome:
        """Do the work of one execution. Raises only `CancelledError`."""
        try:
            if isinstance(job, FunctionJob) and not node.write_set:
                return _checked(node, Outcome(await self._function(job)))
            return await self._in_place(start, node, job, progress)
        except (StoreFault, LeaseLost, BugError):
            raise  # not the step's failure: its host must stop
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; it is the step's failure
            return Outcome(error=_caught(node, start, error))

    async def _in_place(self, start: Start, node: Node, job: Job, progress: Tell) -> Outcome:
        """Work in the step's own place, then bring home what changed while the step still holds its sets."""
        session = session_id(start.run, start.step, start.attempt)
        place = await self._isolation.open(node, session, start.execution)
        try:
            outcome = await self._work_and_merge(Execution(start, node, job, place, progress), session)
            if outcome.error is not None:
                await self._isolation.close(session, place, outcome.error)
        except BaseException:
            self._isolation.leave(session, place)
            raise
        unsettled = ""
        if outcome.error is None and self._isolation.rests(session, place):
            self._ended[session] = place
            unsettled = session
        return msgspec.structs.replace(outcome, evidence=tuple(place.evidence), unsettled=unsettled)

    async def _work_and_merge(self, execution: Execution, session: str) -> Outcome:
        start, node, _, place, _ = execution
        try:
            outcome = _recall(place.said) or _checked(node, await self._work(execution))
            strayed = await self._isolation.check_shared(node, session, place)
            if outcome.error is None and strayed is not None:
                return Outcome(error=strayed, usage=outcome.usage, carry=outcome.carry)
            if outcome.error is None and self._isolation.comes_home(node, place):
                outcome = await self._bring_home(execution, session, outcome)
        except (StoreFault, LeaseLost, BugError):
            raise  # not the step's failure: its host must stop
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; it is the step's failure
            return Outcome(error=_caught(node, start, error))
        return outcome

    async def _bring_home(self, execution: Execution, session: str, outcome: Outcome) -> Outcome:
        """Merge what was changed; with `on_conflict: resolve` an agent settles what cannot be merged."""
        start, node, _, place, _ = execution
        if place.said is None and node.step.merge != "discard":
            await self._isolation.remember(place, self._store.clean(_remembered(outcome)))
        merged = None
        if start.execution == 1 or not await self._isolation.is_disputed(settling_ids(session)[0]):
            merged = await self._isolation.merge(node, place)
            if not takes(self._frozen, node, merged):
                refused = self._isolation.tell(node, place, merged)
                return outcome if refused is None else _refused(outcome, refused)
        settling = Settling(self._isolation, self._supervisor, self._frozen, self.lease, execution)
        refused = await settling.run(merged)
        usage = outcome.usage if settling.spent is None else add(outcome.usage, settling.spent)
        outcome = msgspec.structs.replace(outcome, usage=usage)
        return outcome if refused is None else _refused(outcome, refused)

    async def _work(self, execution: Execution) -> Outcome:
        start, node, job, place, progress = execution
        try:
            if isinstance(job, AgentJob):
                self._check_place(start, node, place)
                return await self._agent(start, node, job, progress, place)
            if isinstance(job, FunctionJob):
                return Outcome(await self._function(job))
            assert isinstance(job, CommandJob)
            return await self._command(start, node, job, place)
        except SessionFailed as error:  # a tool of a script, outside any session
            return Outcome(error=error.failure, usage=error.usage)

    def _check_place(self, start: Start, node: Node, place: Place) -> None:
        """A session that changed files goes on only where these changes are."""
        if start.execution == 1 or place.child is None or not place.is_new:
            return
        session = session_id(start.run, start.step, start.attempt)
        if any(entry.get("kind") == "tool_call" for entry in read_entries(self._store, session)):
            message = f"the workspace of {node.path} is gone, and with it what its agent had changed"
            hint = "fanfold fork runs the step again from the start"
            raise WorldError("workspace.lost", message, hint=hint)

    async def _agent(self, start: Start, node: Node, job: AgentJob, progress: Tell, place: Place) -> Outcome:
        action = node.step.action
        assert isinstance(action, AgentAction)
        role = self._frozen.role_of(action)
        session = session_id(start.run, start.step, start.attempt)
        request = SessionRequest(
            session_id=session,
            run_id=start.run,
            step=node.run.tree_path(node.path),
            attempt=start.attempt,
            execution=start.execution,
            role=role.name,
            instructions=role.instructions,
            prompt=_asked(role, action, job),
            model=self._frozen.model_of(action),
            fallback_models=role.fallback_models,
            reasoning_effort=action.reasoning_effort or role.reasoning_effort,
            max_turns=action.max_turns or role.max_turns,
            tools=_narrowed(action.tools, role.tools),
            output_schema=node.step.output_schema,
            outputs=node.step.outputs,
            workspace=place.path,
            # Whatever was planned: a step never gets more than the role it really runs with.
            read_only=node.step.posture == "read_only" or role.read_only,
            write_set=node.write_set,
            network=role.network,
            mcp_servers=role.mcp_servers,
            pipeline=role.pipeline,
        )
        carry: list[Batch] = []
        # In a snapshot the answer is durable before the merge begins: what is merged is not asked for again.
        held = carry if place.child is None else None
        try:
            result = await self._supervisor.run_step(
                request, backend=self._frozen.backend, on_progress=progress, lease=self.lease, carry=held
            )
        except SessionFailed as error:
            return Outcome(error=error.failure, usage=error.usage, carry=tuple(carry))
        summary = result.summary or shorten(_as_text(result.output), SUMMARY_CHARS)
        return Outcome(result.output, None, summary, result.usage, tuple(carry))

    async def _function(self, job: FunctionJob) -> object:
        handler = self._find_handler(job.handler)
        if inspect.iscoroutinefunction(handler):
            return await handler(**job.inputs)
        # A thread cannot be ended from outside: a cancelled function's result is thrown away.
        result = await threads.shared.run(partial(handler, **job.inputs))
        return await result if inspect.isawaitable(result) else result

    async def _command(self, start: Start, node: Node, job: CommandJob, place: Place) -> Outcome:
        if not job.argv:
            gate = node.step.action.gate if isinstance(node.step.action, CommandAction) else ""
            hint = "write `run:` in the gate"
            text = f"the {gate} gate names no command"
            return Outcome(error=_failure(node, start, "agent", "gate.no_command", text, hint))
        try:
            ended = await self._programs.run(
                job.argv,
                place,
                session_id=session_id(start.run, start.step, start.attempt),
                # In a snapshot it may write what it likes, since nothing undeclared comes home.
                read_only=place.child is None and node.step.posture == "read_only",
                network=job.network,
                environment=job.env,
            )
        except FileNotFoundError:
            text = f"there is no program {job.argv[0]!r}"
            return Outcome(error=_failure(node, start, "agent", "command.not_found", text, retryable=False))
        parts = {"exit_code": ended.exit_code, "stdout": ended.stdout, "stderr": ended.stderr}
        if node.step.outputs:
            return Outcome({name: parts[name] for name in node.step.outputs if name in parts})
        output = ended.stdout.removesuffix("\n")
        if ended.exit_code != 0:
            said = shorten((ended.stderr or ended.stdout).strip(), SUMMARY_CHARS)
            text = f"{job.argv[0]} ended with status {ended.exit_code}: {said}"
            return Outcome(error=_failure(node, start, "agent", "command.failed", text))
        value: JSON = output
        if node.step.output_schema is not None:  # then the output is a value, not text
            try:
                value = msgspec.json.decode(output)
            except msgspec.DecodeError as error:
                text = f"{job.argv[0]} did not print one JSON value: {error}"
                return Outcome(error=_failure(node, start, "invalid_output", "output.not_json", text))
        return Outcome(value, None, shorten(output, SUMMARY_CHARS))


def _narrowed(asked: tuple[str, ...] | None, allowed: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The tools a step asks for, as far as its role has them; None is every tool."""
    if asked is None or allowed is None:
        return allowed if asked is None else asked
    return tuple(name for name in asked if name in allowed)


def _asked(role: Role, action: AgentAction, job: AgentJob) -> str:
    """The step's prompt; a step that has none of its own is told what its role says, about its inputs."""
    if action.prompt is not None or role.prompt_template is None:
        return job.prompt
    own = render(parse_template(role.prompt_template), {"inputs": job.inputs})
    return "\n\n".join(part for part in (own, job.prompt) if part)


def _checked(node: Node, outcome: Outcome) -> Outcome:
    """An output that does not keep the step's promise is a failure."""
    if outcome.error is not None:
        return outcome
    try:
        value = strict(outcome.output)
    except ValueError as error:
        invalid: Failure | None = unfit(node, error)
    else:
        outcome = msgspec.structs.replace(outcome, output=value)
        invalid = check_output(node, value)
    return outcome if invalid is None else Outcome(error=invalid, usage=outcome.usage, carry=outcome.carry)


def _refused(outcome: Outcome, refused: Failure) -> Outcome:
    return Outcome(error=refused, usage=outcome.usage, carry=outcome.carry)


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
                over += [one for one in (session, *settling_ids(session)) if one in left]
    return over


def _caught(node: Node, start: Start, error: Exception) -> Failure:
    if isinstance(error, FanfoldError):
        return _failure(node, start, "agent", error.code, error.message, error.hint)
    return _failure(node, start, "agent", "step.exception", f"{type(error).__name__}: {error}")


def _failure(
    node: Node, start: Start, kind: str, code: str, message: str, hint: str = "", retryable: bool = True
) -> Failure:
    return Failure(kind, code, message, hint, retryable, node.path, start.attempt)


def _as_text(value: JSON) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
