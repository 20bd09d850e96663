"""A run that only reads is asked about too, when it will probably take much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.api.run_options import Options
from fanfold.errors import AuthorError, WorldError
from tests.e2e.world import Provider
from tests.provider import Reply
from tests.runtime.running import HERE, client
from tests.runtime.test_preflight import SONNET, Place

LISTED = """\
name: listed
inputs: [{name: files, type: array, required: true}]
steps: [{id: per, agent: explorer, for_each: inputs.files, prompt: "Look at {{item}}"}]
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(lambda asked: Reply(text="seen")) as running:
        yield running


@pytest.mark.full
def test_more_than_twenty_agents_need_a_permission_and_are_denied_without_a_user(
    place: Place, provider: Provider
) -> None:
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    (place.folder / "listed.yaml").write_text(LISTED)
    files = [f"files=[{','.join(str(n) for n in range(count))}]" for count in (20, 21)]
    assert place.cli("run", "listed.yaml", "-i", files[0], **given).returncode == 0
    assert len(provider.asked) == 20
    denied = place.cli("run", "listed.yaml", "-i", files[1], **given)
    assert denied.returncode == 4
    assert "listed will probably start 21 agents (more than 20" in denied.stderr.replace(
        "needs permission: ", ""
    )
    assert f"to permit it: fanfold run listed.yaml -i '{files[1]}' --yes" in denied.stderr
    assert len(provider.asked) == 20
    for allowed in (["--yes"], ["--permission", "auto"]):
        assert place.cli("run", "listed.yaml", "-i", files[1], *allowed, **given).returncode == 0
    assert (
        place.cli("run", "listed.yaml", "-i", files[1], **given, FANFOLD_ASK_ABOVE_AGENTS="21").returncode
        == 0
    )


@pytest.mark.full
def test_scripted_agents_cost_nothing_and_need_no_question(place: Place) -> None:
    (place.folder / "listed.yaml").write_text(LISTED)
    (place.folder / "s.yaml").write_text("default: ok\n")
    files = f"files=[{','.join(str(n) for n in range(40))}]"
    assert place.cli("run", "listed.yaml", "-i", files, "--script", "s.yaml").returncode == 0


def start(folder: Path, options: Options, **environment: str) -> str:
    """Try to start five agents of a model with a price; why that was not permitted, or empty."""
    given = {"ANTHROPIC_API_KEY": "x", "FANFOLD_MODEL": SONNET, "FANFOLD_HOME": str(folder / "home")}

    async def work() -> str:
        async with client(folder, given | environment, providers=HERE) as opened:
            try:
                run = await opened.start(LISTED, inputs={"files": [1, 2, 3, 4, 5]}, options=options)
            except WorldError as error:
                return error.message if error.code == "permission_denied" else ""
            await run.cancel()
            return ""

    return asyncio.run(work())


def test_costs_above_the_user_s_limit_need_a_permission(tmp_path: Path) -> None:
    assert start(tmp_path, Options()) == ""
    told = start(tmp_path, Options(), FANFOLD_ASK_ABOVE_CENTS="10")
    assert "will probably cost $0.12 (more than $0.10, permission.ask_above_cents)" in told
    assert start(tmp_path, Options(budget_micro_usd=90_000), FANFOLD_ASK_ABOVE_CENTS="10") == ""
    assert start(tmp_path, Options(permission="auto"), FANFOLD_ASK_ABOVE_CENTS="10") == ""


def test_a_project_has_no_say_in_it(tmp_path: Path) -> None:
    (tmp_path / ".fanfold").mkdir()
    (tmp_path / ".fanfold/config.toml").write_text("[permission]\nask_above_agents = 1000\n")
    with pytest.raises(AuthorError) as refused:
        start(tmp_path, Options())
    assert refused.value.code.startswith("config.")
