"""Replay of a cassette: the real scheduler, workspaces and merges, with recorded work.

Rules
* One execution works at a time, and the recorded order of ends decides which. The kernel then sees the same
  results in the same order as in the recorded run, and starts the same steps.
* Time is simulated. An execution takes its recorded time, and a timer fires as soon as nothing can happen
  before it. So a replay waits for nothing.
* File tools are the real ones, in the step's own workspace. All other tools, searches, commands, functions
  and deliveries answer from the recording: a replay starts no program and opens no connection.
* A step that the cassette does not know fails with `cassette.no_answer`, unless the replay may ask a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Struct, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult, ToolFailed
from fanfold.agents.backend_registry import SCRIPTED, BackendKind, BackendSetup
from fanfold.agents.entries import AgentBegin, RequestedCall, Response, ToolError, ToolResult
from fanfold.engine.driver import Host
from fanfold.engine.requests import AnswerRequest, to_row
from fanfold.kernel.decide import next_timer
from fanfold.kernel.events import NOTHING_SPENT, Failure, TimerFired
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED, FAILED, WAITING
from fanfold.kernel.transitions import find_node
from fanfold.language.cassettes import AttemptRecord, CallRecord, Cassette, bytes_of
from fanfold.language.json_text import as_text
from fanfold.sessions.supervisor import Supervisor
from fanfold.steps.agent import AgentJob
from fanfold.steps.command import CommandJob, result_of
from fanfold.steps.executor import StepExecutor, StepExecutors
from fanfold.steps.order import Job, NeededAgreement, Order, Outcome
from fanfold.steps.step_type import Execution, type_of

if TYPE_CHECKING:
    from fanfold.agents.backend import Tools
    from fanfold.agents.tools.files import FileTools
    from fanfold.engine.run_tree import RunTree

SEARCHES = frozenset(("list_files", "search_files"))
"""Tools whose results depend on files that a cassette does not hold. A replay does not carry them out."""
FILE_TOOLS = SEARCHES | {"read_file", "write_file", "edit_file", "apply_patch", "delete_file"}
"""The other ones are carried out. They are confined to the workspace of the step."""
CASSETTE = "cassette"
"""The back end of recorded agents in a replay that may also ask models."""


def order_line(path: str, attempt: int, word: str) -> str:
    """Return the line of a recorded order for the start or end of an attempt."""
    return f"{path} {word}" if attempt <= 1 else f"{path} {word}, attempt {attempt}"


class SimulatedClock:
    """A clock that stands still until it is set. It never goes back."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def advance_to(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)


class _Waiting(Struct):
    order: Order[Job]
    record: AttemptRecord | None
    position: int | None
    """The position of its recorded end; None if it did not end by itself."""
    since: int
    turn: asyncio.Future[None]


class Turnstile:
    """Holds the executions of a replay until the host lets one of them work."""

    def __init__(self, cassette: Cassette, clock: SimulatedClock) -> None:
        self.cassette = cassette
        self.clock = clock
        lines = cassette.result.order if cassette.result is not None else ()
        self._positions = {line: number for number, line in enumerate(lines)}
        self.waiting: dict[str, _Waiting] = {}
        """By session."""
        self.on_arrival: Callable[[], None] = lambda: None

    def position(self, path: str, attempt: int) -> int | None:
        """Return the position of the recorded end of an attempt."""
        found = (self._positions.get(order_line(path, attempt, word)) for word in (COMPLETED, FAILED))
        return next((position for position in found if position is not None), None)

    def was_started(self, order: Order[Job]) -> bool:
        """Whether the recorded run started this attempt."""
        return order_line(order.tree_path, order.attempt, "started") in self._positions

    async def enter(self, order: Order[Job]) -> None:
        """Wait until it is this execution's turn."""
        path, attempt = order.tree_path, order.attempt
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        record, position = self.cassette.attempt(path, attempt), self.position(path, attempt)
        self.waiting[order.session] = _Waiting(order, record, position, self.clock.now_ms(), turn)
        self.on_arrival()
        try:
            await turn
        finally:
            self.waiting.pop(order.session, None)


class ReplayHost(Host):
    """Drives a replay: whenever nothing happens by itself, it lets the next recorded thing happen."""

    def __init__(self, tree: RunTree, performers: StepExecutors, turns: Turnstile) -> None:
        super().__init__(tree, performers, leave_when_waiting=True)
        self._turns = turns
        self._clock = turns.clock
        self._questions = {
            path: attempts[-1]
            for path, attempts in turns.cassette.steps.items()
            if attempts and attempts[-1].question
        }
        """Steps that a person answered or left to their time limit."""
        turns.on_arrival = self._woken.set

    def _rests(self) -> bool:
        return super()._rests() and not self._open_questions()

    def _arm(self, due: int | None) -> None:
        """Set no timer: time is simulated."""

    async def _sleep(self) -> None:
        waiting, due = self._turns.waiting.values(), next_timer(self.tree.state)
        answers = [pair for pair in self._open_questions() if self._questions[pair[1]].output is not UNSET]
        answer = min(answers, default=None)
        if len(self._tasks) > len(waiting):
            await self._woken.wait()
            return
        known = [execution for execution in waiting if execution.position is not None]
        first = min(known, key=lambda one: one.position or 0, default=None)
        new = [
            execution
            for execution in waiting
            if execution.record is None or execution.record.status in (COMPLETED, FAILED)
        ]
        timers = self.tree.state.timers
        if answer is not None and (first is None or answer[0] < (first.position or 0)):
            # Answer a question as the person did
            path = answer[1]
            output = self._questions.pop(path).output
            decided: dict[str, Any] = output if isinstance(output, dict) and "decision" in output else {}
            request = AnswerRequest(
                path=path,
                decision=str(decided.get("decision", "answer")),
                by=str(decided.get("by", CASSETTE)),
                comment=decided.get("comment"),
                edited=decided.get("edited"),
                text=None if decided else as_text(output),
            )
            root = self.tree.root.id
            self.tree.store.request(to_row(root, root, request, self._clock.now_ms()))
            self.look_for_requests()
        elif first is not None:
            self._release(first, due)
        elif new:
            self._release(new[0], None)
        elif due is not None and (not waiting or (timers and timers[0][0] <= due)):
            self._fire(due)  # a time limit of a step, a wait, or the time before another attempt
        elif waiting:  # in the recorded run it was stopped, and now nothing stops it
            self._release(next(iter(waiting)), None)
        else:
            await self._woken.wait()

    def _release(self, one: _Waiting, due: int | None) -> None:
        """Let an execution work, unless a timer is due before its recorded end."""
        at = one.since + (one.record.ms if one.record is not None else 0)
        if due is not None and due <= at:
            self._fire(due)
            return
        self._clock.advance_to(at)
        self._turns.waiting.pop(one.order.session, None)
        if not one.turn.done():  # a time limit may have stopped it meanwhile
            one.turn.set_result(None)

    def _fire(self, due: int) -> None:
        self._clock.advance_to(due)
        self.post(self.tree.root.id, TimerFired())

    def _open_questions(self) -> list[tuple[int, str]]:
        """Return the open questions that ended in the recorded run: the position of the end, and the path."""
        nodes = ((path, find_node(self.tree.state, path)) for path in self._questions)
        return [
            (self._turns.position(path, max(1, node.attempt)) or 0, path)
            for path, node in nodes
            if node is not None and node.status == WAITING and node.step.traits.waits == "person"
        ]


class ReplayExecutor(StepExecutor):
    """Executes the steps of a replay: agents by `ReplaySupervisor`, everything else from the recording."""

    turns: Turnstile

    def reuse(self, order: Order[Job]) -> tuple[str | None, Failure | None]:
        record = self.turns.cassette.attempt(order.tree_path, order.attempt)
        if record is None or not record.reused:
            return None, None
        if record.fail is not None:
            return None, record.fail
        return self._services.journal.blobs.put(_output(record)), None

    async def _work(self, execution: Execution[Job]) -> Outcome:
        order = execution.order
        await self.turns.enter(order)
        if isinstance(order.job, AgentJob):
            return await super()._work(execution)
        record = self.turns.cassette.attempt(order.tree_path, order.attempt)
        if record is None and self.turns.was_started(order):
            return Outcome(asks=NeededAgreement(type_of(order.step).task(order.job), ""))
        if record is None or record.status not in (COMPLETED, FAILED):
            return Outcome(error=_no_answer(order.tree_path, order.attempt))
        if record.writes:
            from fanfold.agents.tools.files import FileTools

            read_only = order.step.posture != "writer"
            files = FileTools(execution.place.path, read_only=read_only, write_set=order.write_set)
            await _apply(record, files)
        if isinstance(order.job, CommandJob) and record.exit_code is not None:
            from fanfold.sessions.processes import ExitStatus

            ended = ExitStatus(record.exit_code, record.stdout, record.stderr)
            return result_of(cast("Order[CommandJob]", order), ended)
        if record.fail is not None:
            return Outcome(error=structs.replace(record.fail, step=order.path, attempt=order.attempt))
        return Outcome(_output(record))


def _output(record: AttemptRecord) -> JSON:
    return None if record.output is UNSET else record.output


async def _apply(record: AttemptRecord, files: FileTools) -> None:
    """Write the recorded files with confined tools, which refuse what the step may not write."""
    for path, content in record.writes.items():
        if content is None:
            await files.call("delete_file", {"path": path})
        else:
            files.write_data(path, bytes_of(content))


def _no_answer(path: str, attempt: int) -> Failure:
    message = f"the cassette has no answer for {path}, attempt {attempt}"
    hint = "record the run again, or use --mode live-changed to ask a model"
    return Failure("agent", "cassette.no_answer", message, hint, retryable=False, step=path, attempt=attempt)


# -----------------------------------------------------------------------------------------------------------
# Recorded agents


class ReplaySupervisor(Supervisor):
    """Runs sessions from the recording, and with their own back end those for which `asks` is true."""

    asks: Callable[[SessionRequest], bool] | None = None

    async def run_step(self, request: SessionRequest, *, backend: str, **more: Any) -> SessionResult:
        if self.asks is None or not self.asks(request):
            backend = SCRIPTED if self.asks is None else CASSETTE
        return await super().run_step(request, backend=backend, **more)


def recorded_kind(cassette: Cassette, name: str) -> BackendKind:
    """Return the row of the back end that answers from a cassette."""

    def make(setup: BackendSetup) -> CassetteBackend:
        return CassetteBackend(cassette, setup.toolbox, name)

    return BackendKind(name=name, make=make, in_stages=False)


class CassetteBackend:
    """Answers every session from a cassette."""

    def __init__(self, cassette: Cassette, toolbox: Callable[[SessionRequest], Tools], name: str) -> None:
        self.name = name
        self._cassette = cassette
        self._toolbox = toolbox

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        del progress
        attempt = self._cassette.attempt(request.step, request.attempt)
        if attempt is None or attempt.status not in (COMPLETED, FAILED):
            raise SessionFailed(_no_answer(request.step, request.attempt))
        if attempt.program:
            await record(AgentBegin(program=attempt.program), may_wait=True)
        if attempt.turns:
            # Guards and servers of a role are programs, which a replay does not start.
            role = structs.replace(request.role, guards=(), mcp_servers={}, project_servers=())
            tools = self._toolbox(structs.replace(request, role=role))
            for number, turn in enumerate(attempt.turns):
                named = {f"{number}.{index}": call for index, call in enumerate(turn.calls)}
                calls = tuple(RequestedCall(name, call.tool, call.args) for name, call in named.items())
                await record(Response(text=turn.text, tool_calls=calls), may_wait=True)
                for name, call in named.items():
                    await record(await _call(tools, name, call, is_ours=not attempt.program), may_wait=True)
        if attempt.writes:
            from fanfold.agents.tools.files import FileTools

            await _apply(attempt, FileTools.of(request))
        # Recorded answers cost nothing in a replay that buys others.
        free = attempt.usage is None or self.name == CASSETTE
        usage = NOTHING_SPENT if free or attempt.usage is None else attempt.usage.bounded()
        if attempt.fail is not None and attempt.output is UNSET:
            failure = structs.replace(attempt.fail, step=request.step, attempt=request.attempt)
            raise SessionFailed(failure, usage)
        output = _output(attempt)
        text = output if isinstance(output, str) else ""
        await record(Response(text=text, usage=usage, output=output), may_wait=True)
        return SessionResult(output=output, usage=usage)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


async def _call(tools: Tools, name: str, call: CallRecord, *, is_ours: bool) -> ToolResult:
    """Carry out a recorded call if it reads or writes a file; otherwise return its recorded result."""
    from fanfold.agents.backend import use, wrong_call

    args = call.args if isinstance(call.args, dict) else {}
    offered = any(spec.name == call.tool for spec in tools.offered())
    error = ToolError(call.error, "as recorded") if call.error else None
    result = UNSET if error is not None else None if call.result is UNSET else call.result
    if is_ours and call.tool in ("run_command", *SEARCHES) and not offered:
        error, result = ToolError("tool.unknown", "the role lacks this tool"), UNSET
    elif is_ours and call.tool in FILE_TOOLS - SEARCHES:
        problem = wrong_call(tools, call.tool, args)
        error, result = ToolError("invalid_args", problem) if problem else None, UNSET
        try:
            result = UNSET if problem else await use(tools, call.tool, args)
        except ToolFailed as failed:
            error = ToolError(failed.code, failed.message, failed.hint, failed.failure.kind)
    return ToolResult(id=name, tool=call.tool, result=result, error=error)
