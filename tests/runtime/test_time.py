"""Time in a run: what the wall clock does changes nothing, and what was lived before a kill counts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fanfold.api.ownership import OwnedRun, own
from fanfold.api.project import Project
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.events import Envelope
from fanfold.language.compile import compile_recipe
from fanfold.store.protocol import LeaseHeld
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.dying_store import claimed, opened
from tests.runtime.running import client
from tests.work import PATIENCE_S

HOUR_S = 3_600
RETRIED = """
name: retried
limits: {timeout: 10m}
steps:
  - id: again
    agent: explorer
    prompt: a
    retry: {attempts: 2, backoff: 20ms, on: [transport]}
  - {id: late, agent: explorer, prompt: b, timeout: 200ms, depends_on: [again], on_failure: inline}
  - {id: last, agent: explorer, prompt: c, depends_on: [late]}
"""
SCRIPT = """
default: ok
steps:
  again: [{fail: {class: transport, message: gone}}, fine]
  late: {output: never, delay_ms: 3600000}
"""


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S], ids=["back", "forward"])
@pytest.mark.parametrize("when", ["again", "late"])
def test_a_clock_that_is_set_neither_stops_nor_ends_a_run(
    when: str, step_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, 0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)

    async def work() -> tuple[Result, list[Envelope]]:
        nonlocal ahead
        found: list[Envelope] = []
        async with client(tmp_path) as opened_project:
            run = await opened_project.start(RETRIED, options=Options(permission="auto", script=SCRIPT))
            async for event in run.events():
                found.append(event)
                if event.type == "subagent_event" and event.data["step"] == when:
                    ahead = step_s
            return await run.result(), found

    result, events = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    statuses = {name: step.status for name, step in result.steps.items()}
    assert statuses == {"again": "completed", "late": "timed_out", "last": "completed"}
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[-1].at - events[0].at < 20_000


LONG = """
name: long
limits: {{timeout: {run}}}
steps: [{{id: hang, agent: explorer, prompt: a, timeout: {step}}}]
"""
HANGING = "default: {output: never, delay_ms: 3600000}"
EXPIRY_S = 0.6


@pytest.mark.full
@pytest.mark.parametrize(("run", "step"), [("6s", "5m"), ("5m", "6s")], ids=["limit", "deadline"])
def test_run_time_before_a_kill_counts(run: str, step: str, tmp_path: Path) -> None:
    async def live_and_die(folder: Path) -> str:
        store = SqliteStore(claimed(folder), expiry_s=EXPIRY_S)
        project = wire(folder, store=opened(store))
        plan = compile_recipe(
            LONG.format(run=run, step=step).encode(), "r.yaml", project.compile_context()
        ).plan
        assert plan is not None
        owned = create(project, plan, {}, Options(script=HANGING))
        driving = asyncio.create_task(owned.host().start())
        await asyncio.sleep(2)  # it lives, and nothing happens
        driving.cancel()
        await asyncio.wait([driving])
        store.close()  # nothing was given back, as after a kill
        return owned.tree.root.id

    async def take_over(folder: Path, root: str) -> int:
        store = SqliteStore(folder / ".fanfold", expiry_s=EXPIRY_S)
        project = wire(folder, store=opened(store))
        owned = await until_free(project, root)
        await owned.host().resume()
        (resumed_at,) = (event.at for event in project.store.tree(root) if "alive_at" in event.data)
        owned.done()
        project.close()
        status = "timed_out" if run == "6s" else "failed"
        assert owned.tree.root.status == status
        assert owned.tree.root.nodes["hang"].status in ("timed_out", "cancelled")
        state = owned.tree.state
        return state.clock - (state.now - resumed_at)

    async def until_free(project: Project, root: str) -> OwnedRun:
        while True:
            try:
                return own(project, root)
            except LeaseHeld:
                await asyncio.sleep(0.05)

    root = asyncio.run(live_and_die(tmp_path))
    lived_ms = asyncio.run(asyncio.wait_for(take_over(tmp_path, root), PATIENCE_S))
    assert lived_ms > 500, "the two seconds before the kill count, but for what nobody vouched for any more"
