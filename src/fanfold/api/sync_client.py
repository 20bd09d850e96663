"""Fanfold from Python code that is not async: the same methods as `Client`, but each call waits.

    with fanfold.open_sync(".") as ff:
        run = ff.start("audit.yaml", packages=["a", "b"])
        for event in run.events():
            ...
        result = run.result()

Everything runs in one separate thread with an event loop. So a run continues between two calls, and this
works in a notebook, which already has a running loop. Each method wraps the method of `Client` or
`RunHandle`, so both have the same parameters by construction.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from fanfold.api.client import AnyRecipe, Client
from fanfold.api.permission import Options
from fanfold.api.result import Result, TypedResult
from fanfold.api.run_handle import RunHandle
from fanfold.api.transcripts import TranscriptEntry
from fanfold.errors import AuthorError, FanfoldError
from fanfold.kernel.events import Envelope
from fanfold.kernel.plan import JSON
from fanfold.store.protocol import closed, forked

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ends = False
        """Whether the loop accepts no new work; running work is about to be cancelled."""
        self._runner = asyncio.Runner()
        self._thread = threading.Thread(target=self._run, name="fanfold", daemon=True)
        begun: Future[asyncio.AbstractEventLoop] = Future()
        self._begun = begun
        self._thread.start()
        self._loop = begun.result()

    def _run(self) -> None:
        with self._runner as runner:  # its exit ends every task, generator and thread of the loop
            loop = runner.get_loop()
            self._begun.set_result(loop)
            loop.run_forever()

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
        if self.is_of_another_process:  # before the lock, which a thread may have held at the fork
            raise forked(self._process)
        with self._lock:
            if (refusal := self._refusal()) is not None:
                raise refusal
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _refusal(self) -> FanfoldError | None:
        """Return the error if a caller would wait forever."""
        if self._ends:
            return closed()
        if threading.current_thread() is self._thread:
            message = "an async function of a run cannot wait for the project that drives the run"
            hint = "make it a plain `def`, which runs in a thread of its own, or open the project in it"
            return AuthorError("project.waits_for_itself", message, hint=hint)
        return None

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
    def call(twin: _Twin[S], /, *args: P.args, **named: P.kwargs) -> T:
        async def work() -> T:
            return method(twin.other, *args, **named)

        return twin.loop.wait(work())

    return call


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

    @overload
    def run(
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
    def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T],
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> TypedResult[T]: ...
    def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T] | None = None,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result | TypedResult[T]:
        """Run a recipe until it finishes, pauses, or waits only for people; return its result."""
        if output is None:
            return self.loop.wait(self.other.run(recipe, inputs=inputs, options=options, **named))
        return self.loop.wait(self.other.run(recipe, output=output, inputs=inputs, options=options, **named))

    def follow_transcript(
        self, run: str, step: str, *, attempt: int | None = None
    ) -> Iterator[TranscriptEntry]:
        """Yield the entries of a transcript from the first, then live until the step has finished."""
        return self.loop.walk(self.other.follow_transcript(run, step, attempt=attempt))
