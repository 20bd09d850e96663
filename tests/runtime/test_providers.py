"""A provider of models is one row: everything that knows providers follows from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fanfold.agents.local.weights import LocalState
from fanfold.agents.providers import ANTHROPIC, OPENAI, PROVIDERS, Access, Provider
from fanfold.agents.redaction import MARK, Redactor
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.engine.config import Config, choose_model, settings_of
from fanfold.errors import AuthorError, FanfoldError
from fanfold.sessions.processes import child_environment
from fanfold.wiring import wire
from tests.e2e.world import Provider as Server
from tests.provider import KEY, Reply
from tests.runtime.running import client
from tests.work import PATIENCE_S

ACME = Provider(
    name="acme",
    address="https://api.acme.example/v1",
    speaks="openai-chat",
    families=("acme-",),
    default_model="acme-large",
    fast_model="acme-small",
)
ROWS = (*PROVIDERS, ACME)
NOWHERE = LocalState(installed=False, pulled=False)
SECRET = "short-key"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(lambda asked: Reply(text=f"said by {asked.model}")) as running:
        yield running


def config(tmp_path: Path, user: str = "", **environment: str) -> Config:
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/config.toml").write_text(user)
    given = {"FANFOLD_HOME": str(tmp_path / "home"), **environment}
    return Config.read(tmp_path / "project", given, ROWS)


def run(folder: Path, server: Server, recipe: str, row: Provider = ACME, **options: Any) -> Result:
    here = replace(row, address=server.environment["OPENAI_BASE_URL"])
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}

    async def work() -> Result:
        rows = (*PROVIDERS, here)
        async with client(folder, {**environment, "ACME_API_KEY": KEY}, providers=rows) as opened:
            return await asyncio.wait_for(opened.run(recipe, options=Options(**options)), PATIENCE_S)

    return asyncio.run(work())


def test_its_settings_and_variables_follow_from_its_name(tmp_path: Path) -> None:
    assert {setting.key for setting in settings_of(ROWS)} >= {"models.acme_api_key", "models.acme_base_url"}
    read = config(tmp_path, ACME_API_KEY=SECRET, ACME_BASE_URL="https://acme.example")
    assert read.text("models.acme_api_key") == SECRET
    assert read.access.address(ACME) == "https://acme.example"
    assert config(tmp_path, '[models]\nacme_base_url = "https://a.example"\n').access.addresses["acme"]
    with pytest.raises(AuthorError, match="may not be set"):
        config(tmp_path, '[models]\nacme_api_key = "k"\n')


def test_its_key_makes_its_default_model_the_one_that_is_used(tmp_path: Path) -> None:
    choice = choose_model(config(tmp_path, ACME_API_KEY=SECRET), NOWHERE)
    assert (choice.model, choice.why) == ("acme:acme-large", "ACME_API_KEY is set")
    assert choice.fast_model == "acme:acme-small"
    named = config(tmp_path, ACME_API_KEY=SECRET, FANFOLD_MODEL="acme:acme-large")
    assert choose_model(named, NOWHERE).fast_model is None
    both = config(tmp_path, ACME_API_KEY=SECRET, ANTHROPIC_API_KEY="k")
    assert choose_model(both, NOWHERE).provider is ANTHROPIC, "the order is that of the table"


def test_its_models_are_understood_by_its_word_and_by_how_they_begin() -> None:
    access = Access(providers=ROWS)
    for name in ("acme:acme-large", "acme-large"):
        meant = access.understand(name)
        assert meant is not None
        assert (meant.provider.name, meant.speaks, meant.name) == ("acme", "openai-chat", "acme-large")
    assert access.understand("nobody:x") is None
    assert access.words() == ["openai", "openai-chat", "openai-responses", "anthropic", "acme"]


def test_a_server_that_speaks_like_one_may_call_its_models_anything_but_takes_no_family_away() -> None:
    access = Access(providers=ROWS, addresses={"openai": "http://127.0.0.1:9/v1"})
    meant = {name: access.understand(name) for name in ("qwen3:8b", "acme-large", "claude-x", "openai:x")}
    told = {name: (one.provider.name, one.speaks) for name, one in meant.items() if one is not None}
    assert told == {
        "qwen3:8b": ("openai", "openai-chat"),
        "acme-large": ("acme", "openai-chat"),
        "claude-x": ("anthropic", "anthropic"),
        "openai:x": ("openai", "openai-chat"),
    }
    assert OPENAI.is_at(None)


def test_missing_parts_are_named_in_the_words_of_the_source(tmp_path: Path) -> None:
    with pytest.raises(FanfoldError, match='"acme-large" needs ACME_API_KEY'):
        choose_model(config(tmp_path), NOWHERE, asked="acme-large")
    with pytest.raises(FanfoldError) as none:
        choose_model(config(tmp_path), NOWHERE)
    assert "OPENAI_API_KEY or ANTHROPIC_API_KEY or ACME_API_KEY" in none.value.hint
    with pytest.raises(FanfoldError) as unknown:
        choose_model(config(tmp_path), NOWHERE, asked="nobody:x")
    assert "anthropic, acme, openrouter" in unknown.value.hint


@pytest.mark.full
def test_a_run_asks_it(tmp_path: Path, server: Server) -> None:
    recipe = "name: r\nsteps: [{id: a, agent: explorer, prompt: go}]\n"
    assert run(tmp_path, server, recipe).output == "said by acme-large"
    assert run(tmp_path, server, recipe, model="acme:other").output == "said by other"


@pytest.mark.full
def test_summaries_use_the_provider_s_fast_model_by_default(tmp_path: Path, server: Server) -> None:
    recipe = """
name: phased
phases:
  - id: look
    kind: understand
    tasks: [{id: scan, agent: explorer, prompt: "Scan"}]
"""
    result = run(tmp_path, server, recipe)
    told = {path: step.output for path, step in result.steps.items() if path in ("look#1/scan", "look/fold")}
    assert told == {"look#1/scan": "said by acme-large", "look/fold": "said by acme-small"}
    named = run(tmp_path, server, recipe, model="acme:other")
    assert named.steps["look/fold"].output == "said by other"


@pytest.mark.full
def test_the_price_of_a_provider_is_unknown_unless_its_row_names_it(tmp_path: Path, server: Server) -> None:
    recipe = "name: r\nsteps: [{id: a, agent: explorer, prompt: go, model: 'acme:gpt-5'}]\n"
    assert run(tmp_path, server, recipe).usage.cost_usd is None
    with pytest.raises(FanfoldError) as refused:
        run(tmp_path, server, recipe, budget_micro_usd=1_000_000)
    assert refused.value.code == "budget.unpriced"
    priced = run(tmp_path, server, recipe, replace(ACME, prices="openai"), budget_micro_usd=1_000_000)
    assert priced.usage.cost_usd is not None


def test_its_key_is_kept_in_this_process(tmp_path: Path) -> None:
    wire(tmp_path, {"FANFOLD_HOME": str(tmp_path / "home")}, providers=ROWS).close()
    ours = {"PATH": "/bin", "ACME_API_KEY": SECRET}
    assert SECRET not in child_environment("s", {"ACME_API_KEY": SECRET, "X": SECRET}, ours).values()
    assert Redactor.of(ours).text(f"it is {SECRET}") == f"it is {MARK}"
