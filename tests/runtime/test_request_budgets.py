"""Budgets bind requests: the tree's spend is checked before each, whatever the recipe and whoever dies."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL, BackendKind, BackendSetup
from fanfold.agents.entries import paid_in
from fanfold.agents.models.connections import Connections
from fanfold.agents.models.session import ModelBackend
from fanfold.agents.providers import ANTHROPIC, PROVIDERS, Access
from fanfold.api.ownership import OwnedRun, own
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.driver import OnCommit
from fanfold.kernel.events import LimitsRaised, Usage
from fanfold.sessions.log import read_entries
from fanfold.steps.records import sessions_of
from fanfold.store.protocol import Batch
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.dying_store import claimed, opened
from tests.provider import Call, RecordedRequest, Reply, ScriptedProvider
from tests.runtime.running import TextClient
from tests.sampling import SEED, examples
from tests.work import PATIENCE_S

HERE = replace(ANTHROPIC, address="http://memory")
CHAT = "openai-chat:gpt-5"
SONNET = "anthropic:claude-sonnet-4-6"
TRIO = """
name: trio
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: b}
  - {id: c, agent: explorer, prompt: c}
"""


class Died(BaseException):
    """The process died here."""


class MortalStore(SqliteStore):
    """Dies at one of its commits, before or after what it writes is durable."""

    dies_at = 0
    after = True
    written = 0

    def write(self, batches: Sequence[Batch]) -> None:
        self.written += 1
        if self.written != self.dies_at:
            super().write(batches)
            return
        if self.after:
            super().write(batches)
        raise Died


class World:
    """A project whose models answer in this process, and what they were asked."""

    def __init__(self, folder: Path, script: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.provider = ScriptedProvider(script)
        self.store = MortalStore(claimed(folder))
        self.environment: dict[str, str] = {}
        self.on_commit: OnCommit | None = None
        self.owned: OwnedRun | None = None

    def client(self) -> TextClient:
        rows = [HERE if row is ANTHROPIC else row for row in PROVIDERS]
        here = {"openai": "http://memory/v1", "anthropic": "http://memory"}
        access = Access(providers=rows, keys=dict.fromkeys(here, "k"), addresses=here)

        def make(setup: BackendSetup) -> ModelBackend:
            connections = Connections(access, transport=self.provider.transport())
            return ModelBackend(access, model=setup.model, toolbox=setup.toolbox, connections=connections)

        keys = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": here["openai"], "ANTHROPIC_API_KEY": "k"}
        environment = {**os.environ, **keys, **self.environment}
        return TextClient(
            wire(
                self.folder,
                environment,
                store=opened(self.store),
                backends=(BackendKind(name=MODEL, make=make),),
                providers=access.providers,
            )
        )

    async def start(self, recipe: str, **options: Any) -> OwnedRun:
        """Drive a new run until it rests or dies."""
        client = self.client()
        given = Options(permission="auto", **options)
        owned = self.owned = create(client.project, client.plan_of(recipe), {}, given)
        await self._drive(owned, owned.host(on_commit=self.on_commit).start())
        return owned

    async def resume(self, root: str, raised: LimitsRaised | None = None) -> OwnedRun:
        owned = self.owned = own(self.client().project, root)
        await self._drive(owned, owned.host().resume(raised))
        return owned

    async def _drive(self, owned: OwnedRun, driven: Any) -> None:
        try:
            await asyncio.wait_for(driven, PATIENCE_S)
        except Died:
            pass
        finally:
            owned.let_go()

    def paid(self, owned: OwnedRun) -> list[Usage]:
        """What was recorded of each paid request of a run, by its transcripts."""
        return [
            usage
            for run in owned.tree.state.runs.values()
            for node in run.nodes.values()
            for attempt in range(1, node.attempt + 1)
            for session in sessions_of(self.store, node, attempt)
            for entry in read_entries(self.store, session)
            if (usage := paid_in(entry)) is not None
        ]


def play(folder: Path, script: Any, scene: Any) -> None:
    async def main() -> None:
        world = World(folder, script)
        try:
            await scene(world)
        finally:
            world.store.close()

    asyncio.run(main())


def bound_of(asked: RecordedRequest) -> int | None:
    body = asked.body
    bound: int | None = body.get("max_completion_tokens") or body.get("max_tokens")
    return bound


def listing(asked: RecordedRequest) -> tuple[Call]:
    """A call unlike those of other turns: an agent that repeats its calls is stopped."""
    return (Call("list_files", {"glob": f"*.{asked.turns}"}),)


def looping(asked: RecordedRequest) -> Reply:
    """An agent that never ends."""
    return Reply(calls=listing(asked), input_tokens=300 + 100 * asked.turns, output_tokens=100)


def test_three_looping_agents_stop_within_one_request_each_of_a_budget_in_tokens(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        paused = await world.start(TRIO, model=CHAT, budget_tokens=20_000)
        state = paused.tree.state
        assert (state.root.status, state.pausing) == ("paused", "budget")
        largest = max(usage.tokens for usage in world.paid(paused))
        assert 20_000 - 2 * largest < state.ledger.spent_tokens <= 20_000 + 3 * largest
        bounds = [bound_of(asked) for asked in world.provider.asked]
        assert all(bound is not None and bound < 20_000 for bound in bounds)
        asked = len(world.provider.asked)
        resumed = await world.resume(paused.tree.root.id, LimitsRaised(budget_tokens=24_000))
        turns = [one.turns for one in world.provider.asked[asked:]]
        assert 0 not in turns, "each conversation continues, none begins again"
        assert resumed.tree.state.ledger.spent_tokens <= 24_000 + 3 * largest

    play(tmp_path, looping, scene)


def test_a_budget_in_dollars_binds_at_the_prices_of_the_list(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        paused = await world.start(TRIO, model=SONNET, budget_micro_usd=40_000)
        ledger = paused.tree.state.ledger
        assert paused.tree.state.pausing == "budget"
        assert 30_000 < ledger.spent_micro_usd <= 40_000
        bounds = [bound_of(asked) or 0 for asked in world.provider.asked]
        assert max(bounds) < 40_000 / 15, "output costs 15 micro-dollars a token"

    play(tmp_path, looping, scene)


def test_cached_input_does_not_use_up_a_budget_in_tokens(tmp_path: Path) -> None:
    def cached(asked: RecordedRequest) -> Reply:
        done = asked.turns == 9
        return Reply(
            text="done" if done else "", calls=() if done else listing(asked),
            input_tokens=2_000, cached_tokens=1_950 if asked.turns else 0, output_tokens=10,
        )  # fmt: skip

    async def scene(world: World) -> None:
        done = await world.start(TRIO.partition("  - {id: b")[0], model=CHAT, budget_tokens=6_000)
        assert done.tree.root.status == "completed"
        usage, _ = done.tree.spent(done.tree.root)
        assert (usage.input_tokens, usage.cached_tokens) == (20_000, 9 * 1_950)
        assert done.tree.state.ledger.spent_tokens == usage.tokens == 20_000 - 9 * 1_950 + 100

    play(tmp_path, cached, scene)


def test_the_budget_of_a_sub_workflow_stops_its_agents_alone(tmp_path: Path) -> None:
    kid = "name: kid\nlimits: {budget: {tokens: 3000}}\nsteps: [{id: x, agent: explorer, prompt: loop}]\n"
    (tmp_path / ".fanfold/workflows").mkdir(parents=True)
    (tmp_path / ".fanfold/workflows/kid.yaml").write_text(kid)
    recipe = "name: top\nsteps:\n  - {id: k, workflow: kid}\n  - {id: y, agent: explorer, prompt: short}\n"

    def script(asked: RecordedRequest) -> Reply:
        return looping(asked) if "loop" in asked.prompt else Reply(text="done")

    async def scene(world: World) -> None:
        paused = await world.start(recipe, model=CHAT)
        assert paused.tree.state.pausing == "budget"
        assert paused.tree.root.nodes["y"].status == "completed"
        assert 2_000 < paused.tree.state.ledger.spent_tokens <= 4_000

    play(tmp_path, script, scene)


def test_spending_of_a_dead_process_is_listed_and_counts_after_resume(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.store.dies_at = 7
        dead = await world.start(TRIO.partition("  - {id: b")[0], model=CHAT, budget_tokens=20_000)
        recorded = world.paid(dead)
        assert len(recorded) > 1
        head = world.store.tree_heads(dead.tree.root.id)[0]
        assert head.usage.tokens == sum(usage.tokens for usage in recorded)
        resumed = await world.resume(dead.tree.root.id)
        assert resumed.tree.state.ledger.spent_tokens == sum(usage.tokens for usage in world.paid(resumed))

    play(tmp_path, looping, scene)


class RandomRecipe:
    """A recipe, what its models answer, and when its processes die, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"{SEED} {seed}")
        steps = []
        for number in range(rng.randint(1, 5)):
            after = [f"s{other}" for other in range(number) if rng.random() < 0.3]
            each = ", for_each: '[1, 2, 3]'" if rng.random() < 0.3 else ""
            steps.append(
                f"  - {{id: s{number}, agent: explorer, prompt: p{number}, depends_on: {after}{each}}}"
            )
        self.text = f"name: r{seed}\nsteps:\n" + "\n".join(steps) + "\n"
        self.concurrency = rng.randint(1, 4)
        self.budget = rng.randint(500, 20_000)
        self.model = rng.choice((CHAT, SONNET))
        self.turns = rng.randint(0, 10)
        self.sizes: list[int] = []
        self.spent_at_requests: list[tuple[int, int]] = []
        """What was spent when each request arrived, and the budget."""
        self.world: World | None = None

    def answer(self, asked: RecordedRequest) -> Reply:
        rng = self.rng
        assert self.world is not None
        assert self.world.owned is not None
        ledger = self.world.owned.tree.state.ledger
        self.spent_at_requests.append((ledger.spent_tokens, ledger.max_tokens or 0))
        read, written = rng.randint(20, 1_500), min(rng.randint(1, 800), bound_of(asked) or 800)
        cached = rng.choice((0, 0, read // 2))
        self.sizes.append(read - cached + written)
        calls = listing(asked) if asked.turns < self.turns else ()
        return Reply(
            text="" if calls else "done", calls=calls,
            input_tokens=read, output_tokens=written, cached_tokens=cached,
        )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("part", range(5))
def test_spend_stays_within_the_budget_and_one_request_per_running_agent(tmp_path: Path, part: int) -> None:
    """Random recipes with random usage, killed at random commits and resumed: 500 in `make providers`."""
    count = examples(100)
    for seed in range(part * 100, part * 100 + count // 5 if count < 100 else part * 100 + count):
        given = RandomRecipe(seed)
        play(tmp_path / f"p{seed}", given.answer, lambda world, given=given: _check(world, given))


async def _check(world: World, given: RandomRecipe) -> None:
    budget, concurrency = given.budget, given.concurrency
    given.world = world
    world.store.dies_at, world.store.after = given.rng.randint(2, 12), given.rng.random() < 0.5
    owned = await world.start(
        given.text, model=given.model, budget_tokens=budget, max_concurrency=concurrency
    )
    for _ in range(200):
        state = owned.tree.state
        paid = world.paid(owned)
        at_once = sum(sorted(given.sizes)[-concurrency:])
        assert sum(usage.tokens for usage in paid) <= budget + at_once, given.text
        if state.root.status == "completed":
            break
        if state.root.status == "paused":
            assert state.pausing == "budget"
            budget = max(budget, state.ledger.spent_tokens) + given.rng.randint(2_000, 20_000)
        raised = LimitsRaised(budget_tokens=budget) if state.root.status == "paused" else None
        world.store.dies_at = world.store.written + given.rng.randint(2, 20)
        owned = await world.resume(owned.tree.root.id, raised)
    assert all(spent < limit for spent, limit in given.spent_at_requests), given.text
    world.store.dies_at = 0
    assert owned.tree.root.status == "completed", (given.text, owned.tree.root.error)
    assert owned.tree.state.ledger.spent_tokens == sum(usage.tokens for usage in world.paid(owned))
