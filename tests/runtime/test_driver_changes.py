"""The driver of a run may change while other processes execute its steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path

from fanfold import function
from fanfold.agents.spending import Account
from fanfold.api.archives import verify
from fanfold.api.ownership import OwnedRun, executors_for, own
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import start
from fanfold.kernel.events import RunResumed, event_of
from fanfold.kernel.state import CANCELLED, COMPLETED
from fanfold.steps.executor import StepExecutors
from fanfold.steps.order import Job, Order, Outcome
from fanfold.store.journal import Journal
from fanfold.wiring import wire
from tests.runtime.running import TextClient
from tests.work import PATIENCE_S

RECIPE = """
name: handed-over
output: "{{steps.after.output.n}}"
steps:
  - {id: slow, handler: wait_for_the_test, inputs: {n: 1}}
  - {id: after, handler: add_one, inputs: {n: "{{steps.slow.output.n}}"}}
"""
CALLS: list[str] = []
BEGUN, GO = threading.Event(), threading.Event()


@function
def wait_for_the_test(n: int) -> dict[str, int]:
    CALLS.append("slow")
    BEGUN.set()
    assert GO.wait(PATIENCE_S)
    return {"n": n}


@function
def add_one(n: str) -> dict[str, int]:
    CALLS.append("after")
    return {"n": int(n) + 1}


class Elsewhere:
    """Executes orders with executors that outlive the driver, as workers do."""

    driver = "second"

    def __init__(self, jobs: dict[str, asyncio.Task[Outcome]], workers: StepExecutors) -> None:
        self._jobs, self._workers = jobs, workers
        self._is_detached = False

    def takes(self, _order: Order[Job]) -> bool:
        return True

    async def perform(self, order: Order[Job], account: Account) -> Outcome:
        id = f"{order.path}/{order.attempt}.{order.execution}"
        if id not in self._jobs:
            work = self._workers.perform(order, lambda _news: None, account, lambda: ())
            self._jobs[id] = asyncio.create_task(work)
        try:
            return await asyncio.shield(self._jobs[id])
        except asyncio.CancelledError:
            if not self._is_detached:
                self._jobs[id].cancel()
                await asyncio.wait([self._jobs[id]])
            raise

    def pause(self, _session: str) -> bool:
        return False

    def detach(self) -> None:
        self._is_detached = True


class TwoDrivers:
    """A run whose first driver ends while the step `slow` is executed elsewhere."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.jobs: dict[str, asyncio.Task[Outcome]] = {}
        self.root = ""

    async def leave_first(self) -> None:
        CALLS.clear()
        BEGUN.clear()
        GO.clear()
        project = self.project
        plan = TextClient(project).plan_of(RECIPE)
        owned = start(project, plan, {}, Options(permission="auto"))
        self.root = owned.tree.root.id
        self.workers = executors_for(project, Journal(project.store, self.root))
        owned.executors.remote = Elsewhere(self.jobs, self.workers)
        driving = asyncio.create_task(owned.host().start())
        assert await asyncio.to_thread(BEGUN.wait, PATIENCE_S)
        driving.cancel()
        await asyncio.wait([driving])
        owned.let_go()

    def second(self, *, dispatches: bool = True) -> OwnedRun:
        owned = own(self.project, self.root)
        if dispatches:
            owned.executors.remote = Elsewhere(self.jobs, self.workers)
        return owned

    def continued(self) -> list[str]:
        events = [event_of(one).data for one in self.project.store.tree(self.root)]
        (resumed,) = [data for data in events if isinstance(data, RunResumed)]
        return [f"{one.step}/{one.attempt}.{one.execution}" for one in resumed.continues]


def on_two_drivers(folder: Path, work: Callable[[TwoDrivers], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        with closing(wire(folder)) as project:
            drivers = TwoDrivers(project)
            async with asyncio.timeout(PATIENCE_S):
                await drivers.leave_first()
                await work(drivers)
                await drivers.workers.aclose()
            assert verify(project.store, drivers.root).violations == []

    asyncio.run(run())


def test_a_step_that_another_process_executes_continues_under_the_next_driver(tmp_path: Path):
    async def work(drivers: TwoDrivers) -> None:
        owned = drivers.second()
        driving = asyncio.create_task(owned.host().resume())
        GO.set()
        await driving
        owned.done()
        tree = owned.tree
        assert (tree.root.status, CALLS) == (COMPLETED, ["slow", "after"])
        assert tree.root.nodes["slow"].execution == 1
        assert drivers.continued() == ["slow/1.1"]

    on_two_drivers(tmp_path, work)


def test_an_execution_that_continues_can_be_cancelled_by_the_next_driver(tmp_path: Path):
    async def work(drivers: TwoDrivers) -> None:
        owned = drivers.second()
        host = owned.host()
        driving = asyncio.create_task(host.resume())
        host.cancel()
        GO.set()  # a function of this program cannot be stopped: its step ends when it does
        await driving
        owned.done()
        assert (owned.tree.root.status, CALLS) == (CANCELLED, ["slow"])

    on_two_drivers(tmp_path, work)


def test_a_driver_that_executes_everything_itself_starts_the_step_again(tmp_path: Path):
    async def work(drivers: TwoDrivers) -> None:
        GO.set()
        owned = drivers.second(dispatches=False)
        await owned.host().resume()
        owned.done()
        assert owned.tree.root.status == COMPLETED
        assert owned.tree.root.nodes["slow"].execution == 2
        assert drivers.continued() == []
        await asyncio.gather(*drivers.jobs.values())

    on_two_drivers(tmp_path, work)
