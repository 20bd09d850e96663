"""Who works for a role: the back end that it names, else the run's; known and usable before a run begins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import Progress, Record, SessionRequest, SessionResult
from fanfold.agents.backend_registry import BackendKind, BackendSetup, Machine
from fanfold.agents.entries import Response
from fanfold.api.client import Client
from fanfold.api.display import RunRow
from fanfold.api.ownership import own
from fanfold.api.result import Result, to_result
from fanfold.api.run_options import Options
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import LimitsRaised
from fanfold.language.diagnostics import FileRefused
from fanfold.wiring import BACKENDS, wire
from tests.runtime.running import client
from tests.runtime.test_preflight import Place
from tests.work import PATIENCE_S

TWO = """
name: two
steps:
  - {id: ask, agent: parrot, prompt: hello}
  - {id: tell, agent: explorer, prompt: "{{steps.ask.output}}", depends_on: [ask]}
"""


class Parrot:
    """Says what it is told."""

    name = "parrot"

    def __init__(self, setup: BackendSetup) -> None:
        self.setup = setup

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        said = f"{request.role.name} says {request.prompt}"
        await record(Response(text=said, output=said))
        return SessionResult(output=said)

    async def aclose(self) -> None:
        """Nothing is held."""


def gone(_: Machine, _command: Sequence[str]) -> None:
    raise WorldError("parrot.gone", "the parrot flew away", hint="open the cage")


THERE_ARE = (
    "there are acp, claude, claude-acp, codex, codex-acp, command, copilot, copilot-acp, gemini, gemini-acp,"
    " goose, goose-acp, local, model, opencode, opencode-acp, qwen, qwen-acp, scripted"
)
PARROT = BackendKind(name="parrot", make=Parrot)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.role('backend = "parrot"\n', "parrot")
    return made


def run(place: Place, recipe: str, *kinds: BackendKind, **options: Any) -> Result:
    (place.folder / "r.yaml").write_text(recipe)

    async def work() -> Result:
        project = wire(place.folder, place.environment, backends=(*BACKENDS, *kinds))
        async with Client(project) as opened:
            given = Options(**{"permission": "auto", **options})
            return await asyncio.wait_for(opened.run(place.folder / "r.yaml", options=given), PATIENCE_S)

    return asyncio.run(work())


def refused(place: Place, recipe: str, *kinds: BackendKind, **options: Any) -> FanfoldError:
    """The error of a run that must not come to be."""
    before = runs(place)
    with pytest.raises(FanfoldError) as caught:
        run(place, recipe, *kinds, **options)
    assert runs(place) == before, "nothing was recorded"
    return caught.value


def runs(place: Place) -> list[RunRow]:
    opened = client(place.folder, place.environment)
    try:
        return opened.runs()
    finally:
        opened.project.close()


def said(place: Place, *arguments: str) -> tuple[int, Mapping[str, Any]]:
    done = place.cli(*arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def test_a_role_s_own_back_end_works_for_it_and_the_run_s_for_the_others(place: Place) -> None:
    result = run(place, TWO, PARROT, backend="parrot")
    assert result.output == "explorer says parrot says hello"
    error = refused(place, TWO, PARROT)  # the other role needs a model, and there is none
    assert error.code == "provider.none"


@pytest.mark.full
def test_a_script_answers_for_every_role_whatever_it_names(place: Place) -> None:
    assert run(place, TWO, script="default: scripted").output == "scripted"
    (place.folder / "s.yaml").write_text("default: scripted\n")
    assert place.cli("run", "r.yaml", "--script", "s.yaml").stdout == "scripted\n"
    error = refused(place, TWO, PARROT, script="default: x", backend="parrot")
    assert error.code == "usage.conflicting_options"


@pytest.mark.full
def test_an_unknown_back_end_is_found_by_check_at_the_step_with_those_there_are(place: Place) -> None:
    (place.folder / "r.yaml").write_text(TWO)
    status, document = said(place, "check", "r.yaml")
    assert status == 2
    (diagnostic,) = document["diagnostics"]
    assert diagnostic["code"] == "recipe.unknown_backend"
    assert diagnostic["range"]["start"] == {"line": 4, "column": 22}
    assert diagnostic["message"] == 'role "parrot": there is no agent back end "parrot"'
    assert diagnostic["help"] == THERE_ARE
    with pytest.raises(FileRefused):
        run(place, TWO)


def test_an_unusable_agent_gives_its_reason_before_the_run(place: Place) -> None:
    away = BackendKind(name="parrot", make=Parrot, check=gone)
    wired = wire(place.folder, place.environment, backends=(*BACKENDS, away))
    (place.folder / "r.yaml").write_text(TWO)
    with pytest.raises(FileRefused, match='role "parrot": the parrot flew away'):
        wired.plan_of(place.folder / "r.yaml")
    plain = TWO.replace("agent: parrot, ", "")
    error = refused(place, plain, away, backend="parrot")
    assert (error.code, error.message) == ("parrot.gone", "the parrot flew away")


@pytest.mark.full
@pytest.mark.parametrize("name", ["parrot", "nope"])
def test_the_flag_is_refused_with_those_there_are(place: Place, name: str) -> None:
    (place.folder / "r.yaml").write_text(TWO.replace("parrot", "explorer"))
    status, document = said(place, "run", "r.yaml", "--agent-backend", name)
    assert (status, document["error"]["code"]) == (2, "backend.unknown")
    assert document["error"]["hint"] == THERE_ARE
    status, document = said(place, "run", "r.yaml", "--agent-backend", name, "--dry-run")
    assert (status, document["would_run"]) == (0, False)
    assert document["warnings"] == [f'would be refused: there is no agent back end "{name}"']


def test_a_role_missing_in_the_recipe_is_refused_before_the_run(place: Place) -> None:
    place.role('backend = "nowhere"\n', "default")
    error = refused(place, "name: r\nsteps: [{id: a, prompt: go}]\n")
    assert (error.code, error.message) == (
        "backend.unknown",
        'role "default": there is no agent back end "nowhere"',
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('command = "some-agent --quiet"\n', "there is no program 'some-agent'"),
        ('backend = "acp"\ncommand = ["some-agent"]\n', "there is no program 'some-agent'"),
        ('backend = "command"\n', "there is no program to run"),
    ],
)
def test_a_role_whose_program_is_not_there_is_found_by_check_and_not_run(
    place: Place, line: str, says: str
) -> None:
    place.role(line, "program")
    recipe = "name: r\nsteps: [{id: a, agent: program, prompt: go}]\n"
    (place.folder / "r.yaml").write_text(recipe)
    status, document = said(place, "check", "r.yaml")
    assert status == 2
    assert document["diagnostics"][0]["message"] == f'role "program": {says}'
    with pytest.raises(FileRefused, match=says):
        run(place, recipe)


@pytest.mark.full
def test_a_program_named_by_its_place_is_looked_for_when_it_starts(place: Place) -> None:
    place.role('command = "./some-agent --quiet"\n', "program")  # a step before may have made it
    result = run(place, "name: r\nsteps: [{id: a, agent: program, prompt: go}]\n")
    error = result.steps["a"].error
    assert error is not None
    assert "some-agent" in error.message


def test_scripted_agents_without_a_script_are_refused(place: Place) -> None:
    error = refused(place, "name: r\nsteps: [{id: a, prompt: go}]\n", backend="scripted")
    assert isinstance(error, AuthorError)
    assert (error.code, error.hint) == ("backend.no_script", "give one: --script FILE")


def test_the_local_back_end_says_what_is_missing(place: Place) -> None:
    error = refused(place, "name: r\nsteps: [{id: a, prompt: go}]\n", backend="local")
    assert error.code in ("local.not_installed", "local.not_pulled")


def test_a_resumed_run_needs_no_flag(place: Place) -> None:
    paused = run(place, TWO, PARROT, backend="parrot", max_agents=1)
    assert paused.status == "paused"

    async def work() -> Result:
        project = wire(place.folder, place.environment, backends=(*BACKENDS, PARROT))
        owned = own(project, paused.run_id)
        await owned.host().resume(LimitsRaised(max_agents=9))
        owned.done()
        project.close()
        return to_result(owned.tree)

    assert asyncio.run(work()).output == "explorer says parrot says hello"


def test_a_pipeline_runs_its_stages_on_the_role_s_back_end(place: Place) -> None:
    stages = '[[pipeline]]\nmodel = true\nprompt = "one {{prompt}}"\n[[pipeline]]\nmodel = true\n'
    place.role('backend = "parrot"\n' + stages + 'prompt = "two {{previous}}"\n', "staged")
    result = run(place, "name: r\nsteps: [{id: a, agent: staged, prompt: go}]\n", PARROT)
    assert result.output == "staged says two staged says one go"
