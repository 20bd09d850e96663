"""Models of Claude Code's role files: Anthropic's where that is configured, else the run's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.agents.providers import PROVIDERS
from fanfold.agents.role_files import CLAUDE_MODELS
from fanfold.api.result import Result
from fanfold.wiring import wire
from tests.e2e.world import Provider
from tests.provider import Reply
from tests.runtime.running import client
from tests.work import PATIENCE_S

RECIPE = "name: r\nsteps: [{id: a, agent: rev, prompt: go}]\n"


def project(folder: Path, model: str) -> Path:
    agents = folder / "project/.claude/agents"
    agents.mkdir(parents=True)
    (folder / "project/.fanfold").mkdir()
    text = f"---\nname: rev\ndescription: d\nmodel: {model}\ntools: Read\n---\nReview.\n"
    (agents / "rev.md").write_text(text)
    return folder / "project"


def nobody_s(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder / "home"), "FANFOLD_HOME": str(folder / "home/.fanfold")}


def test_the_words_name_models_that_there_are() -> None:
    from pydantic_ai.models import KnownModelName

    used = {model for row in PROVIDERS for model in (row.default, row.fast)}
    assert used | set(CLAUDE_MODELS.values()) <= set(KnownModelName.__value__.__args__)


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("sonnet", CLAUDE_MODELS["sonnet"]),
        ("Opus", CLAUDE_MODELS["opus"]),
        ("haiku", CLAUDE_MODELS["haiku"]),
        ("sonnet[1m]", CLAUDE_MODELS["sonnet"]),
        ("claude-opus-4-5-20251101", "anthropic:claude-opus-4-5-20251101"),
        ("inherit", None),
        ("default", None),
        ("", None),
        ("openai:gpt-5", "openai:gpt-5"),
    ],
)
def test_a_claude_role_names_its_model(tmp_path: Path, model: str, meant: str | None) -> None:
    folder = project(tmp_path, model)
    roles = wire(folder, {**nobody_s(tmp_path), "ANTHROPIC_API_KEY": "k"}).roles
    role = roles.find("rev")
    assert role is not None
    assert (role.model, roles.notices) == (meant, ())


@pytest.mark.parametrize("model", ["sonnet", "claude-opus-4-5"])
def test_without_anthropic_the_run_s_model_is_used_and_reported(tmp_path: Path, model: str) -> None:
    roles = wire(project(tmp_path, model), {**nobody_s(tmp_path), "OPENAI_API_KEY": "k"}).roles
    role, (notice,) = roles.find("rev"), roles.notices
    assert role is not None
    assert role.model is None
    assert (notice.code, notice.severity, notice.line) == ("role.model", "warning", 4)
    assert "ANTHROPIC_API_KEY" in notice.message


@pytest.mark.full
@pytest.mark.parametrize(("family", "said"), [("ANTHROPIC", "claude-sonnet-4-6"), ("OPENAI", "qwen")])
def test_a_run_asks_the_server_that_has_the_model(tmp_path: Path, family: str, said: str) -> None:
    folder = project(tmp_path, "sonnet")

    async def work(environment: dict[str, str]) -> Result:
        async with client(folder, environment) as opened:
            return await asyncio.wait_for(opened.run(RECIPE), PATIENCE_S)

    with Provider(lambda asked: Reply(text=f"said by {asked.model}")) as running:
        given = {name: value for name, value in running.environment.items() if name.startswith(family)}
        default = {"FANFOLD_MODEL": "openai-chat:qwen"} if family == "OPENAI" else {}
        assert asyncio.run(work({**nobody_s(tmp_path), **given, **default})).output == f"said by {said}"
