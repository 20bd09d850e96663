"""Fanfold from Python: open a project, start recipes, follow them, get typed results.

async with fanfold.open(".") as ff:
    run = await ff.start("audit.yaml", packages=["a", "b"])
    async for event in run.events():
        ...
    result = await run.result()

`SyncClient` has the same methods for code that is not async:

with fanfold.open_sync(".") as ff:
    run = ff.start("audit.yaml", packages=["a", "b"])
    for event in run.events():
        ...
    result = run.result()
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import wraps
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from fanfold.api import history, run_handle, subagents
from fanfold.api.approvals import AnswerResult
from fanfold.api.changes import apply, diff, undo
from fanfold.api.display import RunRow, list_runs, run_row
from fanfold.api.explain import explain_run, explain_step
from fanfold.api.fork import AtTurn, ChosenAgents, at_turn, plan_fork, plan_retry, start_fork
from fanfold.api.history import find_run, inspect, inspect_step, query, read_log
from fanfold.api.ownership import OwnedRun, take_over
from fanfold.api.planning import Suitability, draft_spec, workflow_suitable
from fanfold.api.project import Project
from fanfold.api.recipes import DraftedSpec, DraftRequest
from fanfold.api.result import Result, TypedResult, check_type, promise_output
from fanfold.api.run_documents import ApplyResult, InspectDocument, InspectStepDocument, RunChanges, Undone
from fanfold.api.run_handle import API, RunHandle, all_checked
from fanfold.api.run_options import Options, check_raised
from fanfold.api.start import start
from fanfold.api.step_documents import ExplainedRun, ExplainedStep
from fanfold.api.subagents import Subagent
from fanfold.api.transcripts import Transcript, TranscriptEntry
from fanfold.errors import AuthorError, FanfoldError
from fanfold.kernel.events import Envelope, LimitsRaised
from fanfold.kernel.plan import JSON, Plan
from fanfold.language.builder import Recipe
from fanfold.language.json_text import schema_of
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.store.protocol import closed, forked
from fanfold.store.search import NO_FILTERS, Filters, Hit

T = TypeVar("T")
AnyRecipe: TypeAlias = str | os.PathLike[str] | Recipe
"""A recipe by name, by file, or built in code."""


class TaskOptions(TypedDict, total=False):
    """Options of a subagent besides its role and its task; see `Task`."""

    name: str
    timeout_ms: int
    write_set: tuple[str, ...]
    merge: subagents.Merge | None
    on_conflict: Literal["fail", "resolve"]
    shared: bool
    output_schema: JSON | type
    """A JSON Schema, or a class that has one: a pydantic model, a dataclass, a msgspec struct."""
    parent: str


class AgentsOptions(TypedDict, total=False):
    """The agents of a run that is made from another run."""

    model: str | None
    backend: str | None
    script: str | None


@all_checked
class Client:
    """An open project. Use it as an async context manager; leaving it pauses its running runs."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._runs: set[RunHandle] = set()
        """Runs that this client drives, or whose failure may not have been reported."""
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<project {self.project.folder}>"

    async def __aenter__(self) -> Self:
        self.project.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Pause the runs that this client drives, then close the project, even if the caller is cancelled.

        This can take a while: an agent may finish its turn, and a function has ten seconds to stop.
        """
        if self._process != os.getpid():
            return  # a forked process owns no runs
        runs = [run for run in self._runs if not run.is_stranded]
        for run in runs:
            run.check_loop()
        try:
            works = [run.let_go() for run in runs]
            await finish_despite_cancel(asyncio.gather(*works, return_exceptions=True))
        finally:
            self.project.close()
            for run in runs:
                run.log_unread_failure()

    # Runs, their steps, logs, transcripts and changes

    def inspect(self, run: str) -> InspectDocument:
        """Return a run with its steps and its child runs, as its log is now."""
        return inspect(self.project, run)

    def inspect_step(self, run: str, step: str) -> InspectStepDocument:
        """Return one step of a run, or a subagent of one."""
        return inspect_step(self.project, run, step)

    def explain(self, run: str, step: str | None = None) -> ExplainedRun | ExplainedStep:
        """Explain the current status of a run, or of one step."""
        return explain_run(self.project, run) if step is None else explain_step(self.project, run, step)

    def query(
        self, *words: str, run: str | None = None, most: int = 5, filters: Filters = NO_FILTERS
    ) -> list[Hit]:
        """Search outputs and errors of all runs, or of one with the runs below it; best match first."""
        return query(self.project, words, filters, run=run, most=most).hits

    def logs(self, run: str, *, tree: bool = False) -> list[Envelope]:
        """Return the recorded events of a run, or of its whole tree."""
        return list(read_log(self.project, self.project.resolve(run), whole_tree=tree))

    def transcript(self, run: str, step: str, *, attempt: int | None = None) -> Transcript:
        """Return the conversation and tool calls of a step's agent, a subagent, or a session by its id."""
        return history.transcript(self.project, run, step, attempt)

    async def follow_transcript(
        self, run: str, step: str, *, attempt: int | None = None
    ) -> AsyncIterator[TranscriptEntry]:
        """Yield the entries of a transcript from the first, then live until the step has finished."""
        found = find_run(self.project, run)
        async for entries in history.follow_transcript(self.project, found, step, attempt):
            for entry in entries:
                yield entry

    def diff(self, run: str, step: str | None = None) -> RunChanges:
        """Return the file changes of the steps of a run, each with a patch if one is available."""
        return diff(self.project, run, step)

    def runs(self, limit: int = 100) -> list[RunRow]:
        """List root runs, newest first."""
        return list_runs(self.project, limit=limit)

    # Runs that this process drives

    async def start(
        self,
        recipe: AnyRecipe,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> RunHandle:
        """Start a recipe: a name, a file, or a `Recipe`. Inputs are given by name or as a mapping."""
        return self._drive(RunHandle(self._record(recipe, inputs or {}, named, options)))

    @overload
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: None = None,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result: ...
    @overload
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T],
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> TypedResult[T]: ...
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T] | None = None,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result | TypedResult[T]:
        """Run a recipe until it finishes, pauses or only waits for people. `output` is the wanted type."""
        if output is not None:
            check_type(output)
        owned = self._record(recipe, inputs or {}, named, options, output)
        run = self._drive(RunHandle(owned, leave_when_waiting=True))
        async for _ in run.follow():
            pass  # until the run has no owner: the caller may answer or resume it at once
        return run.result_now() if output is None else run.result_now(output)

    def _record(
        self,
        recipe: AnyRecipe,
        inputs: Mapping[str, JSON],
        named: Mapping[str, JSON],
        options: Options | None,
        output: type | None = None,
    ) -> OwnedRun:
        options = options or Options()
        for name in named:
            if name in inputs:
                message = f'input "{name}" is given twice: by its name and in `inputs`'
                raise AuthorError("usage.conflict", message, hint="leave one of them out")
        plan = self.plan_of(recipe, scripted=options.script is not None)
        plan = plan if output is None else promise_output(plan, output)
        return start(self.project, plan, {**inputs, **named}, options, at_home=True)

    def plan_of(self, recipe: AnyRecipe, *, scripted: bool = False) -> Plan:
        """Return the plan of a recipe given by name, by file or as a `Recipe`; raises `FileRefused`."""
        return self.project.plan_of(recipe, scripted=scripted)

    async def resume(
        self,
        run: str,
        *,
        max_agents: int | None = None,
        max_steps: int | None = None,
        budget_tokens: int | None = None,
        budget_micro_usd: int | None = None,
        wait: bool = False,
    ) -> RunHandle:
        """Acquire and resume a run that is paused or has no owner, with higher limits if given.

        A provider that the run waits for is tried at once, unless `wait` keeps the time of the next attempt.
        """
        root = self.project.resolve(run).root_run_id
        for handle in [one for one in self._runs if one.id == root]:
            await handle.release_if_at_rest()
        wanted = LimitsRaised(max_agents, max_steps, budget_tokens, budget_micro_usd)
        raised = None
        if wanted != LimitsRaised():
            raised = check_raised(self.project, self.project.view(root), wanted)
        owned = take_over(self.project, root)
        return self._drive(RunHandle(owned, resumed=True, raised=raised, keep_waits=wait))

    def _drive(self, handle: RunHandle) -> RunHandle:
        self._runs.add(handle)
        handle.when_at_rest(self._runs.discard)  # a project may start any number of runs
        return handle

    async def fork(
        self,
        run: str,
        step: str | None = None,
        *,
        inputs: Mapping[str, JSON] | None = None,
        prompts: Mapping[str, str] | None = None,
        turn: int | None = None,
        say: str | None = None,
        yes: bool = False,
        **agents: Unpack[AgentsOptions],
    ) -> RunHandle:
        """Start a new run from another one. It reuses every result that the change does not affect.

        With `turn`, the agent of the step continues its conversation as it was after that turn; `say` is its
        next prompt. `yes` grants what the recipe declares, if the run would have to ask. The agents are those
        of the original run, unless a `model`, a `backend` or the text of a `script` is given.
        """
        found = find_run(self.project, run)
        path, at = None if step is None else found.tree_path(step), at_turn(turn, say)
        fork = plan_fork(found.tree, path, inputs or {}, prompts or {}, at, ChosenAgents(**agents))
        return self._drive(RunHandle(start_fork(self.project, fork, yes=yes)))

    async def retry(
        self, run: str, *, recipe: Recipe | None = None, yes: bool = False, **agents: Unpack[AgentsOptions]
    ) -> RunHandle:
        """Start a new run that repeats what did not succeed in another run and keeps what completed.

        The recipe is read again from its file. A recipe that was built in code is passed again, or reused as
        it was. Its agents are chosen as for a fork. `yes` grants what the recipe declares beyond the earlier
        permission.
        """
        tree = find_run(self.project, run).tree
        fork = plan_retry(self.project, tree, ChosenAgents(**agents), recipe)
        return self._drive(RunHandle(start_fork(self.project, fork, yes=yes)))

    async def apply(self, run: str, step: str, *, dry_run: bool = False) -> ApplyResult:
        """Merge the proposal of a step into the project as it is now."""
        return await apply(self.project, run, step, dry_run=dry_run)

    async def undo(self, run: str, step: str | None = None, *, dry_run: bool = False) -> Undone:
        """Revert the merges of a finished run or one of its steps, unless their files changed since."""
        return await undo(self.project, run, step, dry_run=dry_run)

    # Requests to a run, regardless of the process that drives it

    async def approve(
        self,
        run: str,
        step: str | None = None,
        *,
        choice: str | None = None,
        comment: str | None = None,
        edited: JSON = None,
    ) -> AnswerResult:
        """Approve (without `step`, the only open approval), or pick one of its choices.

        Waits until the answer is recorded. A run without an owner continues in the background.
        """
        return await run_handle.answer(self.project, run, step, choice or "approve", comment, edited, by=API)

    async def reject(self, run: str, step: str | None = None, *, comment: str | None = None) -> AnswerResult:
        """Reject an approval."""
        return await run_handle.answer(self.project, run, step, "reject", comment, by=API)

    async def answer(self, run: str, step: str, answer: JSON) -> AnswerResult:
        """Answer the question of an `ask` step: with text, or with data that fits its schema."""
        return await run_handle.reply(self.project, run, step, run_handle.as_answer(answer), by=API)

    async def pause(self, run: str) -> RunRow:
        """Pause a run and wait until it has paused; `resume` continues it."""
        return run_row(await run_handle.pause(self.project, run))

    async def cancel(self, run: str) -> RunRow:
        """Cancel a run or child run and wait until nothing of it is running."""
        return run_row(await run_handle.cancel(self.project, run))

    # Subagents

    async def spawn_agent(
        self,
        role: str,
        task: str,
        *,
        options: Options | None = None,
        key: str = "",
        **more: Unpack[TaskOptions],
    ) -> Subagent:
        """Delegate a task to a background subagent. With the same `key` it is not started again."""
        if isinstance(schema := more.get("output_schema"), type):
            more["output_schema"] = schema_of(schema)
        wanted = subagents.Task(role=role, task=task, **more)
        return await subagents.spawn(self.project, wanted, options or Options(), key=key)

    async def fork_agent(self, name: str, turn: int, say: str | None = None) -> Subagent:
        """Start a new subagent that continues the conversation of another one after a turn."""
        return await subagents.fork_subagent(self.project, name, AtTurn(turn, say))

    async def wait_agent(self, *names: str, timeout_s: float = subagents.WAIT_S) -> dict[str, list[Subagent]]:
        """Wait until the subagents finished or the time is over; return them by status.

        Without names, wait for all running subagents. If none is running, return those that finished last.
        """
        return await subagents.wait(self.project, names, timeout_s)

    async def send_input(self, name: str, text: str | None = None, *, resume: bool = False) -> Subagent:
        """Send a message to a subagent: its next turn. `resume` continues one that lost its process."""
        return await subagents.send_input(self.project, name, text, resume=resume)

    async def close_agent(self, name: str) -> Subagent:
        """Cancel a subagent that is queued or running; close any other permanently."""
        return await subagents.close(self.project, name)

    def list_agents(self) -> list[Subagent]:
        """List all subagents of the project, oldest first."""
        return subagents.list_subagents(self.project)

    # Planning

    async def plan(
        self, task: str, *, refine: str | None = None, use_model: bool = True, options: Options | None = None
    ) -> DraftedSpec:
        """Draft a recipe for a task, or change the recipe that `refine` names; nothing is run."""
        found = None if refine is None else self.project.find_recipe(refine)
        request = DraftRequest(task=task, refine=found, use_model=use_model)
        return await draft_spec(self.project, request, options or Options())

    async def workflow_suitable(self, text: str) -> Suitability:
        """Return whether a request suits a workflow of several agents, with the reason."""
        return await workflow_suitable(self.project, text)


# -----------------------------------------------------------------------------------------------------------
# The same for code that is not async: each call waits
#
# Everything runs in one separate thread with an event loop. So a run continues between two calls, and this
# works in a notebook, which already has a running loop. Each method wraps the method of `Client` or
# `RunHandle`, so both have the same parameters by construction.

P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ends = False
        """Whether the loop accepts no new work; running work is about to be cancelled."""
        begun: Future[asyncio.AbstractEventLoop] = Future()

        def run() -> None:
            with asyncio.Runner() as runner:  # its exit ends every task, generator and thread of the loop
                begun.set_result(runner.get_loop())
                runner.get_loop().run_forever()

        self._thread = threading.Thread(target=run, name="fanfold", daemon=True)
        self._thread.start()
        self._loop = begun.result()

    @property
    def is_closed(self) -> bool:
        """Whether the loop was closed, or belongs to the parent of this forked process."""
        return self._ends or self.is_of_another_process

    @property
    def is_of_another_process(self) -> bool:
        return self._process != os.getpid()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. An interrupt cancels it."""
        try:
            done = self._begin(work)
        except FanfoldError:
            work.close()
            raise
        try:
            return done.result()
        except BaseException as error:
            done.cancel()
            if isinstance(error, CancelledError) and self._ends:
                raise closed() from None  # another thread closed the loop
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work in the loop; raises if its caller would wait forever."""
        if self.is_of_another_process:  # before the lock, which a thread may have held at the fork
            raise forked(self._process)
        with self._lock:
            if self._ends:
                raise closed()
            if threading.current_thread() is self._thread:
                message = "an async function of a run cannot wait for the project that drives the run"
                hint = "make it a plain `def`, which runs in its own thread, or open the project in it"
                raise AuthorError("project.waits_for_itself", message, hint=hint)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def walk(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous iterator, waiting for each."""

        async def step() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        while found := self.wait(step()):
            yield found[0]

    def close(self) -> None:
        """Cancel everything that is still running in the loop."""
        if self.is_of_another_process:
            return
        with self._lock:
            if not self._ends:
                self._ends = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Twin(Protocol[S_co]):
    """A synchronous wrapper around an asynchronous object `S`."""

    @property
    def loop(self) -> LoopThread: ...

    @property
    def other(self) -> S_co: ...


def _awaited(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[_Twin[S], P], T]:
    @wraps(method)
    def call(twin: _Twin[S], /, *args: P.args, **named: P.kwargs) -> T:
        async def work() -> T:
            return await method(twin.other, *args, **named)

        return twin.loop.wait(work())

    return call


def _called(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Twin[S], P], T]:
    @wraps(method)
    async def work(other: S, /, *args: P.args, **named: P.kwargs) -> T:
        return method(other, *args, **named)

    return _awaited(work)


def _driving(
    method: Callable[Concatenate[Client, P], Awaitable[RunHandle]],
) -> Callable[Concatenate[_Twin[Client], P], SyncRun]:
    begin = _awaited(method)

    @wraps(method)
    def call(twin: _Twin[Client], /, *args: P.args, **named: P.kwargs) -> SyncRun:
        return SyncRun(twin.loop, begin(twin, *args, **named))

    return call


class SyncRun:
    """A run that this process drives in the background."""

    def __init__(self, loop: LoopThread, run: RunHandle) -> None:
        self.loop = loop
        self.other = run
        self.id = run.id

    @property
    def status(self) -> str:
        return self.other.status

    def __repr__(self) -> str:
        return repr(self.other)

    def events(self, after: int = 0) -> Iterator[Envelope]:
        """Yield every event of the tree in order, then live until the run stops or waits for an answer."""
        return self.loop.walk(self.other.events(after))

    @overload
    def result(self) -> Result: ...
    @overload
    def result(self, output: type[T]) -> TypedResult[T]: ...
    def result(self, output: type[T] | None = None) -> Result | TypedResult[T]:
        """Return the result; so far, if the run waits for an answer or its project was closed."""
        if self.loop.is_closed and not self.loop.is_of_another_process:
            return self.other.result_now() if output is None else self.other.result_now(output)
        if output is None:
            return self.loop.wait(self.other.result())
        return self.loop.wait(self.other.result(output))

    approve = _awaited(RunHandle.approve)
    reject = _awaited(RunHandle.reject)
    answer = _awaited(RunHandle.answer)
    cancel = _awaited(RunHandle.cancel)
    pause = _awaited(RunHandle.pause)
    transcript = _called(RunHandle.transcript)


class SyncClient:
    """An open project for use in `with`. Leaving it pauses the runs that it drives."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self.loop = LoopThread()

        async def work() -> Client:
            return make()  # in the thread that will use it

        try:
            self.other = self.loop.wait(work())
        except BaseException:
            self.loop.close()
            raise

    def __repr__(self) -> str:
        return repr(self.other)

    def __enter__(self) -> Self:
        self.other.project.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Pause the runs that this client drives, then close the project. An interrupt closes it at once."""
        if self.loop.is_closed:
            return
        try:
            self.loop.wait(self.other.close())
        finally:
            self.loop.close()
            self.other.project.close()  # an interrupt may have come before the close started

    start = _driving(Client.start)
    run = _awaited(Client.run)
    resume = _driving(Client.resume)
    fork = _driving(Client.fork)
    retry = _driving(Client.retry)
    apply = _awaited(Client.apply)
    undo = _awaited(Client.undo)
    approve = _awaited(Client.approve)
    reject = _awaited(Client.reject)
    answer = _awaited(Client.answer)
    pause = _awaited(Client.pause)
    cancel = _awaited(Client.cancel)
    diff = _called(Client.diff)
    runs = _called(Client.runs)
    inspect = _called(Client.inspect)
    inspect_step = _called(Client.inspect_step)
    explain = _called(Client.explain)
    logs = _called(Client.logs)
    query = _called(Client.query)
    plan = _awaited(Client.plan)
    workflow_suitable = _awaited(Client.workflow_suitable)
    transcript = _called(Client.transcript)
    spawn_agent = _awaited(Client.spawn_agent)
    wait_agent = _awaited(Client.wait_agent)
    send_input = _awaited(Client.send_input)
    close_agent = _awaited(Client.close_agent)
    fork_agent = _awaited(Client.fork_agent)
    list_agents = _called(Client.list_agents)

    def follow_transcript(
        self, run: str, step: str, *, attempt: int | None = None
    ) -> Iterator[TranscriptEntry]:
        """Yield the entries of a transcript from the first, then live until the step has finished."""
        return self.loop.walk(self.other.follow_transcript(run, step, attempt=attempt))
