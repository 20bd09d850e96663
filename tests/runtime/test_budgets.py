"""Budgets: what is reserved before a step starts, when a run pauses for them, and what the log says of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.api.ownership import own
from fanfold.api.result import Result, to_result
from fanfold.api.run_options import Options
from fanfold.kernel.budget import Ledger, estimate
from fanfold.kernel.events import Estimate, LimitsRaised, Usage
from fanfold.kernel.plan import Budget, Limits
from tests.e2e.world import Provider
from tests.kernel.drive import Drive, agent, call, plan
from tests.provider import Reply
from tests.runtime.running import HERE, client
from tests.work import PATIENCE_S

PAIR = """
name: pair
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: b}
"""


def drive(
    folder: Path, recipe: str, script: str, raised: LimitsRaised, **options: Any
) -> tuple[Result, Result]:
    """Run until it pauses, then go on with higher limits; both results."""

    async def work() -> tuple[Result, Result]:
        async with client(folder) as opened:
            given = Options(permission="auto", script=script, **options)
            paused = await (await opened.start(recipe, options=given)).result()
            owned = own(opened.project, paused.run_id)
            await owned.host().resume(raised)
            return paused, to_result(owned.tree)

    return asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def events(folder: Path, run: str, kind: str) -> list[dict[str, Any]]:
    opened = client(folder)
    try:
        return [envelope.data for envelope in opened.project.store.tree(run) if envelope.type == kind]
    finally:
        opened.project.close()


# Reserving


def test_a_guess_waits_while_another_runs_and_then_asks_for_what_that_one_took() -> None:
    run = Drive(plan(agent("a"), agent("b")), budget_tokens=6_000)  # each is expected to take 4,000
    assert run.running() == ["a"]
    run.complete("a", tokens=1_000)
    assert run.running() == ["b"]
    assert run.state.ledger.reserved_tokens == 1_000


def test_a_guess_alone_is_cut_to_what_is_left_so_that_money_is_never_idle() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")), budget_tokens=100)
    assert run.running() == ["a"]
    assert run.state.ledger.reserved_tokens == 100


def test_a_guess_in_a_child_run_waits_for_its_own_budget_only() -> None:
    kid = plan(agent("x"), agent("y"), limits=Limits(budget=Budget(tokens=50)))
    run = Drive(plan(agent("z"), call("c", "kid"), workflows={"kid": kid}))
    assert run.running() == ["z", "c/x"]


def test_the_run_s_own_estimates_come_before_the_general_one() -> None:
    given = {"*": Estimate(tokens=10), "worker": Estimate(tokens=70, micro_usd=9)}
    ledgers = [Ledger(1_000, 1_000)]
    assert estimate("worker", given, {}, ledgers) == (70, 9)
    assert estimate("critic", given, {}, ledgers) == (10, 1)
    assert estimate("worker", given, {"worker": [1, 500, 0]}, ledgers) == (500, 1)


def test_a_budget_below_two_agents_admits_one_at_a_time_pauses_and_resumes_when_raised(
    tmp_path: Path,
) -> None:
    script = "default: {output: x, usage: {input_tokens: 3000, output_tokens: 500}}"
    paused, done = drive(tmp_path, PAIR, script, LimitsRaised(budget_tokens=10_000), budget_tokens=6_000)
    assert paused.status == "paused"
    assert (paused.steps["a"].status, paused.steps["b"].status) == ("completed", "ready")
    assert done.status == "completed"
    held, raised = events(tmp_path, paused.run_id, "budget_event")
    assert held["what"] == "held"
    assert held["tokens"] == {"limit": 6_000, "spent": 3_500, "reserved": 0}
    assert held["waiting"] == [{"step": "b", "limit": "budget", "tokens": 3_500, "micro_usd": 0}]
    assert held["waiting_total"] == 1
    assert (raised["what"], raised["raised"]) == ("raised", {"budget_tokens": 10_000})
    assert raised["tokens"] == {"limit": 10_000, "spent": 3_500, "reserved": 3_500}


def test_a_pause_for_agents_names_that_limit_in_its_event(tmp_path: Path) -> None:
    _, done = drive(tmp_path, PAIR, "default: x", LimitsRaised(max_agents=2), max_agents=1)
    held, _ = events(tmp_path, done.run_id, "budget_event")
    assert held["agents"] == {"limit": 1, "started": 1}
    assert held["waiting"] == [{"step": "b", "limit": "max_agents"}]


def test_a_run_without_a_budget_reserves_nothing_and_says_nothing_of_it(tmp_path: Path) -> None:
    async def work() -> str:
        async with client(tmp_path) as opened:
            result = await opened.run(PAIR, options=Options(script="default: x"))
            assert result.status == "completed"
            return result.run_id

    run = asyncio.run(work())
    assert events(tmp_path, run, "budget_event") == []
    created = events(tmp_path, run, "workflow_event")[0]
    assert "estimates" not in created["settings"]


# Unknown prices


def test_dollars_alone_admit_nothing_behind_an_unknown_price() -> None:
    run = Drive(plan(agent("a"), agent("b", "a")), budget_micro_usd=1_000_000)
    run.report("a", usage=Usage(10, 5))
    assert run.status() == "paused"
    run.resume(LimitsRaised(budget_tokens=1_000))
    assert run.running() == ["b"]


def test_dollars_beside_tokens_count_what_is_known_and_the_tokens_bound_the_rest() -> None:
    steps = (agent("a"), agent("b", "a"), agent("c", "b"))
    run = Drive(plan(*steps), budget_micro_usd=1_000_000, budget_tokens=40)
    run.report("a", usage=Usage(10, 5))
    assert run.running() == ["b"]
    run.report("b", usage=Usage(10, 5, 70))
    assert run.status() == "paused"
    assert run.state.ledger.spent_micro_usd == 70


# What a run expects to spend, by its first event


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(lambda asked: Reply(text="x", input_tokens=900, output_tokens=100)) as running:
        yield running


def estimates(folder: Path, provider: Provider, recipe: str = PAIR, **options: Any) -> dict[str, Any]:
    """Run a recipe on models; what its first event says that each role will spend."""
    given = {"model": "anthropic:claude-sonnet-4-6", **options}

    async def work() -> str:
        async with client(folder, {**os.environ, **provider.environment}, providers=HERE) as opened:
            result = await asyncio.wait_for(opened.run(recipe, options=Options(**given)), PATIENCE_S)
            assert result.status == "completed", result.error
            return result.run_id

    settings = events(folder, asyncio.run(work()), "workflow_event")[0]["settings"]
    told: dict[str, Any] = settings.get("estimates", {})
    return told


@pytest.mark.full
def test_the_first_guess_is_a_number_of_tokens_at_the_price_of_the_model(
    tmp_path: Path, provider: Provider
) -> None:
    told = estimates(tmp_path, provider, budget_tokens=90_000)
    assert told == {"explorer": {"tokens": 4_000, "micro_usd": 24_000}}  # 3,000 read and 1,000 written


@pytest.mark.full
def test_forecasts_use_the_spending_of_a_role_with_the_same_model(tmp_path: Path, provider: Provider) -> None:
    estimates(tmp_path, provider)
    told = estimates(tmp_path, provider, budget_tokens=90_000)
    assert told == {"explorer": {"tokens": 1_000, "micro_usd": 4_200}}
    other = estimates(tmp_path, provider, budget_tokens=90_000, model="anthropic:claude-haiku-4-5")
    assert other["explorer"]["tokens"] == 4_000, "another model says nothing about this one"
    critic = estimates(tmp_path, provider, PAIR.replace("explorer", "critic"), budget_tokens=90_000)
    assert critic["critic"]["tokens"] == 4_000, "nor does another role"


@pytest.mark.full
def test_scripted_sessions_say_nothing_about_models(tmp_path: Path, provider: Provider) -> None:
    async def work() -> None:
        async with client(tmp_path) as opened:
            script = "default: {output: x, usage: {input_tokens: 7}}"
            await opened.run(PAIR, options=Options(script=script))

    asyncio.run(work())
    assert estimates(tmp_path, provider, budget_tokens=90_000)["explorer"]["tokens"] == 4_000


@pytest.mark.full
def test_a_role_in_stages_is_expected_to_spend_for_each(tmp_path: Path, provider: Provider) -> None:
    stage = '[[pipeline]]\nmodel = true\nprompt = "x"\n'
    folder = tmp_path / ".fanfold/agents"
    folder.mkdir(parents=True)
    head = 'name = "staged"\ndescription = "d"\nsandbox_mode = "read-only"\n'
    (folder / "staged.toml").write_text(head + stage * 2 + '[[pipeline]]\ntool = "list_files"\n')
    recipe = "name: r\nsteps: [{id: a, agent: staged, prompt: p}]\n"
    assert estimates(tmp_path, provider, recipe, budget_tokens=90_000)["staged"]["tokens"] == 8_000


@pytest.mark.full
def test_without_a_budget_nothing_is_expected(tmp_path: Path, provider: Provider) -> None:
    assert estimates(tmp_path, provider) == {}


@pytest.mark.full
def test_dollars_for_less_than_two_admit_one_after_the_other(tmp_path: Path, provider: Provider) -> None:
    estimates(tmp_path, provider, budget_micro_usd=30_000)  # two guesses of 24,000 do not fit
    opened = client(tmp_path)
    (run,) = [head.run_id for head in opened.runs()]
    opened.project.close()
    told = [(data["step"], data["status"]) for data in events(tmp_path, run, "subagent_event")]
    assert [one for one in told if one[1] in ("started", "finished")] == [
        ("a", "started"),
        ("a", "finished"),
        ("b", "started"),
        ("b", "finished"),
    ]
