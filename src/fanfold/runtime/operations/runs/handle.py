"""A run that this process drives: follow it, answer it, pause it, wait for its result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar, overload

from fanfold.errors import AuthorError
from fanfold.kernel.decide import needs_people
from fanfold.kernel.events import Envelope, Raised
from fanfold.kernel.lifecycle import PENDING, RUN_TERMINAL, WAITING
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.host import OnProgress
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.arguments import checked
from fanfold.runtime.operations.runs.ownership import Owned
from fanfold.runtime.views.sessions.transcripts import Transcript, transcript_of
from fanfold.sessions.insist import insist

if TYPE_CHECKING:
    from fanfold.runtime.hosting.requests import AnswerRequest
    from fanfold.runtime.views.runs.result import Result, TypedResult

T = TypeVar("T")
API = "api"
"""Who answers, where a program does and not a person."""


class RunHandle:
    """One run this process drives, from the moment the handle is made."""

    def __init__(
        self,
        owned: Owned,
        *,
        resumed: bool = False,
        raised: Raised | None = None,
        leave_when_waiting: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.id = owned.tree.root.id
        self.tree: RunTree = owned.tree
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._followers: list[_Follower] = []
        self._host = owned.host(
            leave_when_waiting=leave_when_waiting, on_commit=self._committed, on_progress=on_progress
        )
        driving = self._host.resume(raised) if resumed else self._host.start()
        self._work = asyncio.create_task(self._drive(driving))
        self._work.add_done_callback(lambda _: self._committed([]))
        self._heard = False
        """Whether somebody was told how driving it ended."""

    async def _drive(self, driving: Coroutine[None, None, None]) -> None:
        try:
            await driving
        except BaseException:
            self._owned.let_go()
            raise
        self._owned.done()

    def _committed(self, written: list[Envelope]) -> None:
        for follower in self._followers:
            follower.hear(written)

    def when_at_rest(self, tell: Callable[[RunHandle], object]) -> None:
        """Have somebody told when the run was driven to where it rests; of one that failed nobody is."""

        def over(work: asyncio.Task[None]) -> None:
            if not work.cancelled() and work.exception() is None:
                tell(self)

        self._work.add_done_callback(over)

    @property
    def status(self) -> str:
        return run_status(self.tree.state, self.tree.root)

    @property
    def is_over(self) -> bool:
        """Whether nobody here drives the run any more."""
        return self._work.done()

    async def follow(
        self, after: int | None = None, *, until_asked: bool = False, every_s: float = 0.0
    ) -> AsyncIterator[list[Envelope]]:
        """What is recorded beyond `after`, or from now on, in pieces, until nobody here drives the run; or,
        `until_asked`, until it can only go on when a person has answered. With `every_s`, what is recorded
        within that time of a piece is part of the next one.

        As `follow` of a run that another process drives, but without reading from the store what was just
        written to it.
        """
        self.check_loop()
        follower = _Follower()
        self._followers.append(follower)
        try:
            if after is not None and (recorded := list(self._owned.project.store.tree(self.id, after))):
                after = recorded[-1].tree_seq
                yield recorded
            while True:
                over = self._work.done()
                written = [one for one in follower.take() if after is None or one.tree_seq > after]
                if written:
                    yield written
                    if every_s and not over:
                        await asyncio.wait([self._work], timeout=every_s)
                elif over or (until_asked and self._asks()):
                    return
                else:
                    await follower.heard.wait()
        finally:
            self._followers.remove(follower)

    def _asks(self) -> bool:
        """Whether nothing goes on before a person has answered, or, in an open run, asked for more."""
        state = self.tree.state
        return self.status == WAITING and (state.approvals > 0 or needs_people(state))

    @checked
    async def events(self, after: int = 0) -> AsyncIterator[Envelope]:
        """Every event of the tree in order, then live until the run stops or waits for an answer.

        `after` is the `tree_seq` of the last event that is known: `run.events(last.tree_seq)` goes on when
        the answer was given.
        """
        from fanfold.runtime.views.shown import shown

        async for written in self.follow(after, until_asked=True):
            for envelope in shown(self._owned.project.store, written):
                yield envelope

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.tree.root.plan.name}, {self.status}>"

    async def wait(self) -> RunTree:
        """Wait until the run ended, paused, or waits for people only; the tree as it is then.

        Giving up waiting (`asyncio.wait_for`) does not touch the run.
        """
        await self._over()
        return self.tree

    @overload
    async def result(self) -> Result: ...
    @overload
    async def result(self, output: type[T]) -> TypedResult[T]: ...
    async def result(self, output: type[T] | None = None) -> Result | TypedResult[T]:
        """What the run gave, when it ended or paused; or has given so far, when it waits for an answer. Its
        `status` tells which. After an answer it can be asked for again. With `output`, a type, its output is
        a value of that type.

        Giving up waiting (`asyncio.wait_for`) does not touch the run.
        """
        if output is not None:
            from fanfold.runtime.views.runs.typed_output import check_type

            check_type(output)
        async for _ in self.follow(until_asked=True):
            pass
        return self.result_now() if output is None else self.result_now(output)

    @overload
    def result_now(self) -> Result: ...
    @overload
    def result_now(self, output: type[T]) -> TypedResult[T]: ...
    def result_now(self, output: type[T] | None = None) -> Result | TypedResult[T]:
        """What the run has given so far, without waiting; raises what kept it from going on."""
        from fanfold.runtime.views.runs.result import to_result, with_type

        if self._work.cancelled():  # here, or with the event loop that it was driven in
            self._check_driven()
        elif self._work.done():
            self._heard = True
            self._work.result()
        done = to_result(self.tree)
        return done if output is None else with_type(done, output)

    @checked
    def transcript(self, step: str, *, attempt: int | None = None) -> Transcript:
        """What the agent of a step was told, said and did so far."""
        from fanfold.runtime.operations.addresses import find_run, find_speaker

        found = find_run(self._owned.project, self.id)
        return transcript_of(found.tree, find_speaker(found, step, attempt), owned=not self._work.done())

    @checked
    async def approve(
        self, step: str, *, choice: str | None = None, comment: str | None = None, edited: JSON = None
    ) -> None:
        await self._answer(step, choice or "approve", comment, edited)

    @checked
    async def reject(self, step: str, *, comment: str | None = None) -> None:
        await self._answer(step, "reject", comment)

    async def _answer(self, step: str, decision: str, comment: str | None, edited: JSON = None) -> None:
        from fanfold.runtime.operations.runs import control

        await self._has_begun()
        await control.answer(self._owned.project, self.id, step, decision, comment, edited, by=API)

    @checked
    async def answer(self, step: str, answer: JSON) -> None:
        """Answer the question of an `ask` step: in words, or with data that fits its schema."""
        from fanfold.runtime.operations.runs import control

        await self._has_begun()
        await control.reply(self._owned.project, self.id, step, control.as_answer(answer), by=API)

    async def _has_begun(self) -> None:
        """Right after `start` nothing is asked yet, only because nobody has looked what there is to do."""
        self._check_driven()
        if self.status == PENDING:
            async for _ in self.follow():
                break

    def check(self, request: AnswerRequest) -> None:
        """Whether an answer would be taken now; `AuthorError` says what is wrong with it."""
        from fanfold.runtime.hosting.requests import check_answer

        check_answer(self.tree, request)

    def post(self, request: AnswerRequest) -> None:
        """Answer from here without waiting; what is not open any more stays as it is."""
        from fanfold.runtime.hosting.requests import to_row

        self._owned.project.store.request(to_row(self.id, self.id, request, wall_clock_ms()))
        self._host.look_for_requests()

    def _check_driven(self) -> None:
        if not self._work.done():
            return
        if self.status in RUN_TERMINAL:
            raise AuthorError("run.ended", f"run {self.id} is {self.status} already")
        message = f"run {self.id} is {self.status} and nobody drives it here"
        hint = f'take it over first: ff.resume("{self.id}") of its project'
        raise AuthorError("run.not_driven", message, hint=hint)

    def check_loop(self) -> None:
        """Refuse to wait, or ask for anything, where the loop that drives the run would never be heard."""
        if self._loop is not asyncio.get_running_loop() and not self._work.done():
            hint = "use one loop for a project and its runs; threads share one with fanfold.open_sync"
            message = f"run {self.id} is driven in another event loop than this one"
            raise AuthorError("run.other_loop", message, hint=hint)

    def interrupt(self) -> None:
        """Ask for a pause and return: whoever drives the run in the foreground wants to leave."""
        self._host.pause("interrupted")

    def abort(self) -> None:
        """Stop driving at once. What was recorded is safe; what ran runs again when somebody goes on."""
        self._work.cancel()

    def leave_when_waiting(self) -> None:
        """Nobody is here to answer: end as soon as only people can go on."""
        self._host.leave_when_waiting()

    async def cancel(self) -> None:
        if self.status in RUN_TERMINAL:
            return
        self._check_driven()
        self.check_loop()
        self._host.cancel()
        await self._over()

    async def pause(self) -> None:
        self.check_loop()
        self._host.pause()
        await self._over()

    async def leave(self) -> None:
        """Let go of the run, and wait until that is done. Whoever is cancelled meanwhile hears of it
        afterwards: a run that were left in between would have an owner for ever.
        """
        await insist(self.let_go())

    def let_go(self) -> asyncio.Task[None]:
        """What still runs is paused and can be resumed by anybody, as soon as the task is over."""
        self.check_loop()
        if self.status not in RUN_TERMINAL and not self._work.done():
            self._host.pause()
        return self._work

    @property
    def is_stranded(self) -> bool:
        """Whether the loop that drove it was closed before it was over."""
        return self._loop.is_closed() and not self._work.done()

    def tell_unheard(self) -> None:
        """Have the loop say why a run could not go on, where nobody has asked for it: as for any task."""
        if self._heard or not self._work.done() or self._work.cancelled():
            return
        error = self._work.exception()
        if isinstance(error, Exception):  # an interrupt is known to whoever gave it
            message = f"run {self.id} could not go on, and nobody waited for it"
            self._loop.call_exception_handler({"message": message, "exception": error})

    async def _over(self) -> None:
        """Wait until nobody drives the run here. Who stops waiting stops nothing else."""
        self.check_loop()
        try:
            await asyncio.shield(self._work)
        finally:
            self._heard = self._work.done()


class _Follower:
    """What one follower has not taken yet."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self._batches: deque[list[Envelope]] = deque()

    def hear(self, written: list[Envelope]) -> None:
        self._batches.append(written)
        self.heard.set()

    def take(self) -> list[Envelope]:
        self.heard.clear()
        taken = [envelope for batch in self._batches for envelope in batch]
        self._batches.clear()
        return taken
