"""Caps per day: one ledger for all processes of a user, and a run that waits for the next day."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fanfold.api.overview import NEEDS, show_home
from fanfold.api.ownership import own
from fanfold.engine.config import Config
from fanfold.engine.driver import EVERY_AGENT, FILE, DailyCaps
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Usage
from tests.provider import RecordedRequest, Reply
from tests.runtime.test_request_budgets import CHAT, TRIO, World, looping, play
from tests.work import PATIENCE_S

NOON = datetime(2026, 11, 18, 12, 0).astimezone()


def test_spending_of_all_processes_is_one_sum_and_each_day_starts_at_zero(tmp_path: Path) -> None:
    def spend(_: int) -> None:
        caps = DailyCaps(tmp_path, 1_000, None, lambda: NOON)
        for _ in range(20):
            caps.add(Usage(5, 5, 7))

    with ThreadPoolExecutor(4) as several:
        list(several.map(spend, range(4)))
    day = DailyCaps(tmp_path, 1_000, 1_000_000, lambda: NOON).today()
    assert (day.spent_tokens, day.spent_micro_usd) == (800, 560)
    tomorrow = DailyCaps(tmp_path, 1_000, None, lambda: NOON + timedelta(days=1)).today()
    assert tomorrow.spent_tokens == 0


def test_a_cap_includes_what_was_spent_today_before_it_was_set(tmp_path: Path) -> None:
    DailyCaps(tmp_path, None, None, lambda: NOON).add(Usage(400, 100, 7))
    day = DailyCaps(tmp_path, 1_000, None, lambda: NOON).today()
    assert (day.spent_tokens, day.left()) == (500, (500, None))


def test_a_ledger_that_cannot_be_written_stops_requests_only_under_a_cap(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    DailyCaps(tmp_path, None, None).add(Usage(400, 100, 7))
    with pytest.raises(WorldError, match="cannot be read or written"):
        DailyCaps(tmp_path, 1_000, None).add(Usage(400, 100, 7))


@pytest.mark.parametrize(
    ("tokens", "micro_usd", "spent"),
    [
        (100, None, "150 of 100 tokens"),
        (200, None, "150 of 200 tokens"),  # the next request does not fit
        (None, 5_000_000, "$4.9000 of $5.00"),
        (200, 5_000_000, "150 of 200 tokens and $4.9000 of $5.00"),
    ],
)
def test_a_cap_that_admits_nothing_more_names_what_was_spent_and_until_when(
    tmp_path: Path, tokens: int | None, micro_usd: int | None, spent: str
) -> None:
    caps = DailyCaps(tmp_path, tokens, micro_usd, lambda: NOON)
    caps.add(Usage(150, 0, 4_900_000))
    caps.today()
    failure = caps.used_up()
    assert f": {spent} spent today" in failure.message
    assert failure.until == round(datetime(2026, 11, 19).astimezone().timestamp() * 1_000)


def test_caps_are_the_user_s_own_and_amounts_one_can_spend(tmp_path: Path) -> None:
    (tmp_path / ".fanfold").mkdir()
    home = {"FANFOLD_HOME": str(tmp_path / "home")}
    (tmp_path / ".fanfold/config.toml").write_text("[budget]\nusd_per_day = 5\n")
    with pytest.raises(AuthorError, match="may not be set"):
        Config.read(tmp_path, home)
    (tmp_path / ".fanfold/config.toml").unlink()
    assert not DailyCaps.of(Config.read(tmp_path, home)).today().limited
    read = Config.read(tmp_path, {**home, "FANFOLD_USD_PER_DAY": "2.5"})
    assert DailyCaps.of(read).today().max_micro_usd == 2_500_000
    for bad in ("0", "-1", "many", "nan"):
        with pytest.raises(AuthorError, match="dollars"):
            Config.read(tmp_path, {**home, "FANFOLD_USD_PER_DAY": bad})


@pytest.mark.full
def test_a_run_waits_for_the_next_day_and_continues_when_the_cap_is_raised(tmp_path: Path) -> None:
    def script(asked: RecordedRequest) -> Reply:
        return Reply(text="done", output_tokens=200) if asked.turns == 12 else looping(asked)

    async def scene(world: World) -> None:
        world.environment = {"FANFOLD_TOKENS_PER_DAY": "5000"}
        waits = asyncio.Event()
        world.on_commit = lambda _: waits.set() if world.store.heads()[0].status == "waiting" else None
        driving = asyncio.create_task(world.start(TRIO.partition("  - {id: b")[0], model=CHAT))
        await asyncio.wait_for(waits.wait(), PATIENCE_S)
        driving.cancel()
        with suppress(asyncio.CancelledError):
            await driving
        root = world.store.heads()[0].run_id
        asked = len(world.provider.asked)
        waiting = own(world.client().project, root, goes_on=False)
        wait = waiting.tree.state.waits[EVERY_AGENT]
        assert wait.reason == "daily_cap"
        midnight, now = datetime.fromtimestamp(wait.until / 1_000).astimezone(), datetime.now().astimezone()
        assert (midnight.hour, midnight.minute, midnight > now) == (0, 0, True)
        [need] = show_home(world.client().project).needs
        assert (need.kind, need.state, "next attempt at" in need.message) == (
            "delayed",
            NEEDS["delayed"],
            True,
        )
        spent = waiting.tree.state.ledger.spent_tokens
        assert 4_000 < spent <= 5_000
        waiting.let_go()
        world.environment = {"FANFOLD_TOKENS_PER_DAY": "500000"}
        done = await world.resume(root)
        assert done.tree.root.status == "completed", done.tree.root.error
        assert world.provider.asked[asked].turns > 0, "the conversation continues"

    play(tmp_path, script, scene)


def test_a_cap_in_dollars_alone_refuses_a_model_whose_price_is_not_known(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.environment = {"FANFOLD_USD_PER_DAY": "5"}
        failed = await world.start(TRIO.partition("  - {id: b")[0], model=CHAT)
        error = failed.tree.root.nodes["a"].error
        assert error is not None
        assert (failed.tree.root.status, error.code) == ("failed", "budget.unpriced")
        assert world.provider.asked == []

    play(tmp_path, looping, scene)
