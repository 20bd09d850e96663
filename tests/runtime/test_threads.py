"""Functions that block run side by side, and nothing they do reaches the event loop."""

import asyncio
import sys
import threading
from functools import partial

import pytest

from fanfold.steps.functions import Threads
from tests.work import PATIENCE_S


def test_as_many_functions_block_at_once_as_were_started() -> None:
    barrier = threading.Barrier(40, timeout=PATIENCE_S)

    async def meet() -> list[object]:
        threads = Threads()
        return await asyncio.gather(*(threads.run(barrier.wait) for _ in range(40)))

    assert sorted(map(int, map(str, asyncio.run(meet())))) == list(range(40))


def test_threads_are_used_again() -> None:
    async def names() -> set[object]:
        threads = Threads()
        return {await threads.run(lambda: threading.current_thread().ident) for _ in range(20)}

    # A thread may still be on its way back to the queue when the next call comes.
    assert len(asyncio.run(names())) <= 3


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration("x")])
def test_exceptions_that_would_end_a_loop_are_ordinary_errors(raised: BaseException) -> None:
    def handler() -> None:
        raise raised

    with pytest.raises(RuntimeError, match=type(raised).__name__):
        asyncio.run(Threads().run(handler))


def test_an_error_keeps_its_type() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Threads().run(lambda: 1 // 0))


def test_a_cancelled_function_counts_until_its_end_and_delays_no_other_step() -> None:
    began, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    async def leave() -> object:
        threads = Threads()
        running = asyncio.create_task(threads.run(stuck))
        await threads.run(partial(began.wait, PATIENCE_S))
        running.cancel()
        other = await threads.run(lambda: "next")
        assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return other

    assert asyncio.run(leave()) == "next"


def test_idle_threads_keep_nothing_alive() -> None:
    class Large:
        pass

    large = Large()

    async def use() -> None:
        threads = Threads()
        await threads.run(partial(id, large))
        await threads.run(lambda: None)
        await threads.run(lambda: None)

    asyncio.run(use())
    assert sys.getrefcount(large) <= 3
