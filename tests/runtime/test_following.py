"""Following a run: every event once and in order, from any number on, soon after it was recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.api.history import follow, follow_log, until
from fanfold.api.run_handle import RunHandle, answer, cancel, pause
from fanfold.api.run_options import Options
from fanfold.errors import AuthorError
from fanfold.kernel.events import Envelope
from fanfold.store import protocol
from fanfold.wiring import wire
from tests.runtime.running import client
from tests.work import PATIENCE_S, patience

CHAIN = "name: chain\nsteps:\n" + "".join(
    f"  - {{id: s{i}, agent: explorer, prompt: x{f', depends_on: [s{i - 1}]' if i else ''}}}\n"
    for i in range(8)
)
SLOW = Options(script="default: {output: ok, delay_ms: 40}")
GATED = "name: gated\nsteps: [{id: ok, approve: 'Good?'}]\n"


@pytest.fixture
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not told of a commit learns of it after an hour: too late for any test."""
    monkeypatch.setattr(protocol, "RECHECK_S", 3_600)


async def collected(handle: RunHandle, folder: Path, after: int = 0) -> list[Envelope]:
    """What somebody with a connection of their own to the store gets."""
    other = wire(folder)
    found: list[Envelope] = []
    try:
        async for written in follow(other, handle.id, after):
            found += written
    finally:
        other.close()
    return found


@pytest.mark.usefixtures("nobody_looks_again")
def test_followers_get_every_event_once_and_in_order(tmp_path: Path) -> None:
    async def work() -> tuple[list[list[Envelope]], list[Envelope], int]:
        async with client(tmp_path) as opened:
            handle = await opened.start(CHAIN, options=SLOW)
            others = [asyncio.create_task(collected(handle, tmp_path)) for _ in range(3)]
            own = [envelope async for envelope in handle.events()]
            return await asyncio.gather(*others), own, handle.tree.tree_seq

    with patience():
        followed, own, last = asyncio.run(work())
    assert [envelope.tree_seq for envelope in own] == list(range(1, last + 1))
    for got in followed:
        assert [(one.tree_seq, one.log, one.type) for one in got] == [
            (one.tree_seq, one.log, one.type) for one in own
        ]


def test_one_may_begin_at_any_number_and_misses_nothing(tmp_path: Path) -> None:
    async def work() -> tuple[list[int], list[int], int]:
        async with client(tmp_path) as opened:
            handle = await opened.start(CHAIN, options=SLOW)
            other = asyncio.create_task(collected(handle, tmp_path, after=5))
            own = [envelope.tree_seq async for written in handle.follow(3) for envelope in written]
            return [envelope.tree_seq for envelope in await other], own, handle.tree.tree_seq

    followed, own, last = asyncio.run(work())
    assert followed == list(range(6, last + 1))
    assert own == list(range(4, last + 1))


@pytest.mark.full
def test_the_log_of_a_child_run_is_followed_alone(tmp_path: Path) -> None:
    inner = "name: inner\nsteps: [{id: in, agent: explorer, prompt: x}]\n"
    (tmp_path / ".fanfold" / "workflows").mkdir(parents=True)
    (tmp_path / ".fanfold" / "workflows" / "inner.yaml").write_text(inner)
    recipe = "name: outer\nsteps: [{id: child, workflow: inner}]\n"

    async def work() -> list[list[Envelope]]:
        async with client(tmp_path) as opened:
            result = await opened.run(recipe, options=SLOW)
            head = opened.project.resolve(result.children[0])
            alone = [one async for written in follow_log(opened.project, head) for one in written]
            tree = follow_log(opened.project, head, whole_tree=True)
            return [alone, [one async for written in tree for one in written]]

    alone, whole = asyncio.run(work())
    assert [envelope.seq for envelope in alone] == list(range(1, len(alone) + 1))
    assert {envelope.log for envelope in alone} < {envelope.log for envelope in whole}


@pytest.mark.usefixtures("nobody_looks_again")
def test_a_request_to_a_run_is_done_when_the_operation_returns(tmp_path: Path) -> None:
    async def work() -> list[str]:
        other = wire(tmp_path)
        async with client(tmp_path) as opened:
            first = await opened.start(GATED, options=SLOW)
            await until(other, first.id, lambda: first.status == "waiting" or None, 10)
            done = await answer(other, first.id, "ok", "approve")
            assert not done.detached
            second = await opened.start(GATED, options=SLOW)
            third = await opened.start(GATED, options=SLOW)
            heads = [await pause(other, second.id), await cancel(other, third.id)]
            statuses = [(await first.result()).status, *(head.status for head in heads)]
        other.close()
        return statuses

    with patience():
        assert asyncio.run(work()) == ["completed", "paused", "cancelled"]


@pytest.mark.usefixtures("nobody_looks_again")
def test_waiting_gives_up_in_time(tmp_path: Path) -> None:
    async def work() -> object:
        async with client(tmp_path) as opened:
            handle = await opened.start(GATED, options=SLOW)
            never: list[bool] = []
            return await until(opened.project, handle.id, lambda: True if never else None, 0.2)

    with patience():
        assert asyncio.run(work()) is None


@pytest.mark.parametrize("wish", ["pause", "cancel"])
def test_a_wish_that_comes_before_the_first_event_is_not_lost(tmp_path: Path, wish: str) -> None:
    async def work() -> str:
        async with client(tmp_path) as opened:
            handle = await opened.start(GATED, options=SLOW)
            await asyncio.wait_for(getattr(handle, wish)(), PATIENCE_S)
            return handle.status

    assert asyncio.run(work()) == {"pause": "paused", "cancel": "cancelled"}[wish]


def test_a_handle_says_when_it_drives_nothing_any_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as opened:
            handle = await opened.start(GATED, options=SLOW)
            await handle.pause()
            with pytest.raises(AuthorError) as refused:
                await handle.approve("ok")
            assert refused.value.code == "run.not_driven"

    asyncio.run(work())
