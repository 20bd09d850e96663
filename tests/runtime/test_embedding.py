"""Fanfold inside of somebody else's program: its tasks are cancelled, its loops and threads come and go, it
forks, and what it has closed it uses again.
"""

import asyncio
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import fanfold
from fanfold.api.client import LoopThread
from tests.work import PATIENCE_S

TWO = fanfold.Recipe(
    name="two",
    steps=[
        {"id": "think", "agent": "explorer", "prompt": "x"},
        {"id": "say", "agent": "explorer", "prompt": "y {{steps.think.output}}"},
    ],
)
pytestmark = pytest.mark.usefixtures("project")
QUICK = fanfold.Options(script="default: OK from {{step}}")
ENDLESS = fanfold.Options(
    script="steps: {think: {output: ok, delay_ms: 1000}, say: {output: ok, delay_ms: 3600000}}"
)
ALLOWED = fanfold.Options(permission="auto")


def calling(handler: str) -> fanfold.Recipe:
    return fanfold.Recipe(name="calls", steps=[{"id": "call", "handler": handler}])


def statuses() -> list[str]:
    with fanfold.open_sync(".") as ff:
        return [run.status for run in ff.runs()]


@pytest.fixture
def leases() -> Callable[[], list[str]]:
    """Threads that keep leases alive, without those of tests before this one."""
    earlier = threading.enumerate()
    return lambda: [
        thread.name
        for thread in threading.enumerate()
        if thread.name == "fanfold leases" and thread not in earlier
    ]


async def until_running(task: "asyncio.Task[fanfold.Result]") -> None:
    async with asyncio.timeout(PATIENCE_S), fanfold.open(".") as ff:
        while not ff.runs() or ff.runs()[0].status != "running":
            assert not task.done()
            await asyncio.sleep(0.01)


@pytest.mark.full
def test_a_task_that_is_cancelled_again_and_again_still_leaves_its_run_paused_and_free(
    leases: Callable[[], list[str]],
) -> None:
    async def work() -> None:
        task = asyncio.create_task(fanfold.run(TWO, options=ENDLESS))
        await until_running(task)
        while not task.done():  # as a server does whose client has gone
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            task.result()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    assert statuses() == ["paused"]
    assert leases() == []
    with fanfold.open_sync(".") as ff:
        assert ff.cancel("last").status == "cancelled"  # so somebody could take it over


@pytest.mark.full
def test_a_service_that_drives_many_runs_keeps_no_finished_ones() -> None:
    async def work() -> None:
        async with fanfold.open(".") as ff:
            run = await ff.start(TWO, options=QUICK)
            assert (await run.result()).ok
            gone = weakref.ref(run)
            del run
            await asyncio.sleep(0)
            gc.collect()
            assert gone() is None

    asyncio.run(work())


@pytest.mark.full
def test_an_interrupt_in_a_notebook_pauses_the_run_as_it_does_in_a_script(project: Path) -> None:
    (project / "cell.py").write_text(
        "import asyncio, fanfold\n"
        "STEPS = [{'id': 'a', 'agent': 'explorer', 'prompt': 'x'},\n"
        "    {'id': 'b', 'agent': 'explorer', 'prompt': '{{steps.a.output}}'}]\n"
        "RECIPE = fanfold.Recipe(name='r', steps=STEPS)\n"
        "async def cell():\n"
        "    script = 'steps: {a: {output: ok, delay_ms: 1000}, b: {output: ok, delay_ms: 3600000}}'\n"
        "    options = fanfold.Options(script=script)\n"
        "    fanfold.run_sync(RECIPE, options=options)\n"
        "loop = asyncio.new_event_loop()\n"  # asyncio.run would have a handler of its own
        "try:\n"
        "    loop.run_until_complete(cell())\n"
        "except KeyboardInterrupt:\n"
        "    with fanfold.open_sync('.') as ff:\n"
        "        print(ff.runs()[0].status)\n"
        "finally:\n"
        "    loop.close()\n"
    )
    process = subprocess.Popen([sys.executable, "cell.py"], stdout=subprocess.PIPE, text=True)
    with fanfold.open_sync(".") as ff:
        while not ff.runs() or ff.runs()[0].status != "running":
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert told == "paused\n"


def test_an_async_function_that_waits_for_its_own_project_is_refused_without_a_hang() -> None:
    with fanfold.open_sync(".") as ff:

        @fanfold.function
        async def looks_around() -> int:
            return len(ff.runs())

        @fanfold.function
        def looks_around_in_a_thread() -> int:
            return len(ff.runs())

        error = ff.run(calling("looks_around"), options=ALLOWED).error
        assert error is not None
        assert error.code == "project.waits_for_itself"
        assert ff.run(calling("looks_around_in_a_thread"), options=ALLOWED).output == 2


def test_a_run_is_not_waited_for_in_another_loop_than_the_one_that_drives_it() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    ff = fanfold.open(".")
    try:
        run = first.run_until_complete(ff.start(TWO, options=QUICK))
        for wish in (run.result, run.wait, run.pause, run.cancel, ff.close):
            with pytest.raises(fanfold.AuthorError) as refused:
                second.run_until_complete(wish())
            assert refused.value.code == "run.other_loop"
        first.run_until_complete(run.result())
        assert second.run_until_complete(run.result()).ok  # nothing is left to wait for
    finally:
        first.run_until_complete(ff.close())
        first.close()
        second.close()


def in_a_fork(work, *args) -> object:
    """What a call says in a fork of this process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        try:
            sender.send(work(*args))
        except fanfold.FanfoldError as error:
            sender.send(error)

    process = context.Process(target=child)
    process.start()
    try:
        assert receiver.poll(PATIENCE_S), "it hangs"
        return receiver.recv()
    finally:
        process.kill()
        process.join()


@pytest.mark.full
def test_functions_run_in_a_fork_of_a_program_that_has_run_some() -> None:
    @fanfold.function
    def here() -> int:
        return os.getpid()

    def work() -> tuple[object, int]:
        return fanfold.run_sync(calling("here"), options=ALLOWED).output, os.getpid()

    assert len(set(work())) == 1
    told = in_a_fork(work)
    assert isinstance(told, tuple)
    assert len(set(told)) == 1
    assert told != work()


@pytest.mark.full
def test_a_project_that_was_open_at_a_fork_stays_with_the_process_that_opened_it() -> None:
    async def in_a_loop(ff: fanfold.Client) -> object:
        try:
            return await ff.run(TWO, options=QUICK)
        finally:
            await ff.close()

    with fanfold.open_sync(".") as ff:
        assert ff.run(TWO, options=QUICK).ok

        def leave() -> str:
            ff.close()
            return "left"

        for work in (ff.runs, ff.other.runs, lambda: asyncio.run(in_a_loop(ff.other))):
            told = in_a_fork(work)
            assert isinstance(told, fanfold.AuthorError), told
            assert told.code == "project.forked"
        assert in_a_fork(leave) == "left"
        assert ff.run(TWO, options=QUICK).ok


@pytest.mark.full
def test_results_are_there_after_the_project_was_left_and_nothing_else_is() -> None:
    with fanfold.open_sync(".") as ff:
        run, asleep = ff.start(TWO, options=QUICK), ff.start(TWO, options=ENDLESS)
        run.result()
    assert run.result().output == "OK from say"
    assert asleep.result().status == asleep.status == "paused"
    for wish in (ff.runs, ff.__enter__, run.cancel, lambda: ff.run(TWO), lambda: list(run.events())):
        with pytest.raises(fanfold.AuthorError) as refused:
            wish()
        assert refused.value.code == "project.closed"
    ff.close()  # once more does no harm


def test_a_loop_finds_a_closed_project_closed_whether_it_was_used_or_not() -> None:
    async def work(*, used: bool) -> None:
        async with fanfold.open(".") as ff:
            if used:
                await ff.run(TWO, options=QUICK)
        with pytest.raises(fanfold.AuthorError) as refused:
            await ff.run(TWO, options=QUICK)
        assert refused.value.code == "project.closed"
        with pytest.raises(fanfold.AuthorError):
            ff.runs()
        with pytest.raises(fanfold.AuthorError):
            await ff.__aenter__()

    asyncio.run(work(used=False))
    asyncio.run(work(used=True))
    assert statuses() == ["completed"]


def test_a_run_that_cannot_continue_is_reported_without_a_request(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(*, asked: bool) -> None:
        async with fanfold.open(".") as ff:
            run = await ff.start(TWO, options=ENDLESS)
            await anext(run.events())
            shutil.rmtree(project / ".fanfold")
            async for _ in run.events(1_000):
                pass  # it ends when nobody drives the run any more
            if asked:
                with pytest.raises(fanfold.WorldError):
                    await run.result()

    asyncio.run(work(asked=True))
    assert not caplog.records
    asyncio.run(work(asked=False))
    (record,) = caplog.records
    assert "could not continue, and no caller waited for it" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], fanfold.WorldError)


def test_a_program_that_edits_a_result_changes_neither_the_run_nor_later_results() -> None:
    @fanfold.function
    def listed(items: list[int]) -> list[int]:
        return items

    recipe = fanfold.Recipe(
        name="lists",
        steps=[
            {"id": "first", "handler": "listed", "inputs": {"items": {"literal": [1, 2]}}},
            {"id": "ok", "approve": "Go?", "depends_on": ["first"]},
            {
                "id": "last",
                "handler": "listed",
                "inputs": {"items": "steps.first.output"},
                "depends_on": ["ok"],
            },
        ],
    )
    with fanfold.open_sync(".") as ff:
        run = ff.start(recipe, options=ALLOWED)
        run.result().steps["first"].output.append(3)
        run.approve("ok")
        run.result().output.append(4)
        assert run.result().output == [1, 2]


def test_a_program_may_go_to_another_folder_and_its_project_stays_where_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    workflows = project / ".fanfold" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "two.yaml").write_text(TWO.to_yaml())
    with fanfold.open_sync(".") as ff:
        monkeypatch.chdir(elsewhere)
        assert ff.run("two", options=QUICK).ok
        assert [run.recipe for run in ff.runs()] == ["two"]
    assert list(elsewhere.iterdir()) == []


def test_a_run_that_waits_for_people_can_be_gone_on_with_as_soon_as_its_result_is_there() -> None:
    asks = fanfold.Recipe(name="asks", steps=[{"id": "ok", "approve": "Go?"}])

    async def work() -> fanfold.Result:
        async with fanfold.open(".") as ff:
            run = await ff.resume((await ff.run(asks)).run_id)
            await run.approve("ok")
            return await run.result()

    assert asyncio.run(work()).ok


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12: make test-all")
def test_a_loop_may_begin_its_tasks_at_once() -> None:
    @fanfold.function
    async def at_once() -> int:
        return 1

    asks = fanfold.Recipe(
        name="asks",
        steps=[{"id": "call", "handler": "at_once"}, {"id": "ok", "approve": "Go?", "depends_on": ["call"]}],
    )

    async def work() -> fanfold.Result:
        eager = getattr(asyncio, "eager_task_factory")  # noqa: B009  # type checkers take an older Python
        asyncio.get_running_loop().set_task_factory(eager)
        return await fanfold.run(asks, options=ALLOWED)

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE_S)).status == "waiting"


def test_a_run_that_reached_a_limit_continues_with_a_higher_one() -> None:
    with fanfold.open_sync(".") as ff:
        held = ff.run(TWO, options=fanfold.Options(script="default: ok", max_agents=1))
        assert held.status == "paused"
        for wrong in ({"max_agents": 1}, {"max_agents": "2"}, {"budget_tokens": -1}):
            with pytest.raises(fanfold.AuthorError):
                ff.resume(held.run_id, **wrong)
        assert ff.resume(held.run_id, max_agents=2).result().ok


def test_a_run_can_be_resumed_as_soon_as_it_says_that_it_paused() -> None:
    """Its owner still closes sessions and connections then, and releases the lease after that."""

    async def work() -> fanfold.Result:
        async with fanfold.open(".") as ff:
            run = await ff.start(TWO, options=fanfold.Options(script="default: ok", max_agents=1))
            async for _ in run.follow():
                if run.status == "paused":
                    break
            assert not run.is_over, "else this test shows nothing"
            return await (await ff.resume(run.id, max_agents=2)).result()

    assert asyncio.run(work()).ok


@pytest.mark.full
def test_a_process_without_a_function_waits_for_the_program_that_has_it(project: Path) -> None:
    @fanfold.function
    def only_in_this_program() -> str:
        return "from here"

    recipe = fanfold.Recipe(
        name="asks",
        steps=[
            {"id": "ok", "approve": "Go?"},
            {"id": "call", "handler": "only_in_this_program", "depends_on": ["ok"]},
        ],
    )
    with fanfold.open_sync(".") as ff:
        waiting = ff.run(recipe, options=ALLOWED)
        assert ff.approve(waiting.run_id).detached  # a process that knows nothing of this one
        while (seen := ff.explain(waiting.run_id)).status != "paused":
            assert seen.status in ("waiting", "running"), seen
        assert "only_in_this_program" in seen.message
        assert "belongs to the program that started this run" in seen.message
        ff.pause(waiting.run_id)  # returns when the other has let go of it
        assert ff.resume(waiting.run_id).result().output == "from here"


def test_a_step_that_is_looked_at_too_early_is_not_taken_for_one_that_does_not_exist() -> None:
    async def work() -> None:
        async with fanfold.open(".") as ff:
            run = await ff.start(TWO, options=QUICK)
            with pytest.raises(fanfold.NotFoundError, match="has not begun"):
                run.transcript("think")
            await run.result()
            assert run.transcript("think").turns == 1

    asyncio.run(work())


def test_a_project_that_is_interrupted_while_it_is_closed_gives_its_runs_back(
    leases: Callable[[], list[str]],
) -> None:
    async def work() -> None:
        ff = fanfold.open(".")
        run = await ff.start(TWO, options=ENDLESS)
        await anext(run.events())
        closing = asyncio.create_task(ff.close())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as at the end of a loop
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(fanfold.AuthorError) as left:
            run.result_now()
        assert left.value.code == "run.not_driven"  # and not that it could not give its lease back

    asyncio.run(work())
    assert leases() == []
    with fanfold.open_sync(".") as ff:
        assert ff.cancel("last").status == "cancelled"


@pytest.mark.full
def test_a_loop_that_was_closed_too_early_keeps_no_project_open(project: Path) -> None:
    (project / "early.py").write_text(
        "import asyncio, threading, fanfold\n"
        "recipe = fanfold.Recipe(name='r', steps=[{'id': 'a', 'agent': 'explorer', 'prompt': 'x'}])\n"
        "options = fanfold.Options(script='default: {output: ok, delay_ms: 3600000}')\n"
        "loop = asyncio.new_event_loop()\n"
        "ff = fanfold.open('.')\n"
        "run = loop.run_until_complete(ff.start(recipe, options=options))\n"
        "loop.close()\n"  # of whose tasks asyncio itself complains
        "asyncio.run(ff.close())\n"
        "print([thread.name for thread in threading.enumerate()])\n"
    )
    early = [sys.executable, "early.py"]
    told = subprocess.run(early, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert told.stdout == "['MainThread']\n"


def test_a_waiting_thread_gets_an_error_when_another_closes_the_project() -> None:
    loop = LoopThread()
    waits = threading.Event()
    told: list[BaseException] = []

    async def forever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.wait(forever())
        except fanfold.AuthorError as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(PATIENCE_S)
    loop.close()
    thread.join(PATIENCE_S)
    assert [getattr(error, "code", "") for error in told] == ["project.closed"]


@pytest.mark.full
def test_a_client_without_a_with_block_is_closed_by_name() -> None:
    before = threading.active_count()
    ff = fanfold.open_sync(".")
    run = ff.start(TWO, options=ENDLESS)
    next(run.events())
    ff.close()
    assert run.status == "paused"
    assert threading.active_count() == before
