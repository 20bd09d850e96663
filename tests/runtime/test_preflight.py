"""Before a run exists: models that cannot be used, budgets that cannot be kept; and what a resume keeps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.providers import PROVIDERS
from fanfold.agents.providers import Provider as ModelProvider
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.errors import FanfoldError
from fanfold.steps.run_config import RunConfig
from tests.e2e.world import Provider
from tests.provider import Fault, RecordedRequest, Reply
from tests.runtime.running import HERE, client
from tests.work import PATIENCE_S

SCOUT = """\
name = "scout"
description = "Looks around"
developer_instructions = "Look."
sandbox_mode = "read-only"
"""
STEP = "name: r\nsteps: [{id: a, agent: %s, prompt: go%s}]\n"
PHASES = """\
name: phased
phases:
  - id: look
    kind: understand
    tasks: [{id: scan, agent: explorer, prompt: "Scan"}]
"""
SONNET = "anthropic:claude-sonnet-4-6"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(lambda asked: Reply(text=f"said by {asked.model}")) as running:
        yield running


class Place:
    """A project and an environment that nobody else's settings reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.providers: Sequence[ModelProvider] = PROVIDERS
        (self.folder / ".fanfold/agents").mkdir(parents=True)
        self.environment = {"HOME": str(folder / "home"), "FANFOLD_HOME": str(folder / "home/.fanfold")}

    def role(self, more: str, name: str = "scout") -> None:
        (self.folder / f".fanfold/agents/{name}.toml").write_text(SCOUT.replace("scout", name) + more)

    def run(self, recipe: str, *, options: Any = None, **environment: str) -> Result:
        async def work() -> Result:
            everything = {**self.environment, **environment}
            async with client(self.folder, everything, providers=self.providers) as opened:
                given = {"permission": "auto", **(options or {})}
                return await asyncio.wait_for(opened.run(recipe, options=Options(**given)), PATIENCE_S)

        return asyncio.run(work())

    def resume(self, run: str, **environment: str) -> Result:
        async def work() -> Result:
            async with client(self.folder, {**self.environment, **environment}) as opened:
                return await asyncio.wait_for((await opened.resume(run)).result(), PATIENCE_S)

        return asyncio.run(work())

    def refused(self, recipe: str, **given: Any) -> FanfoldError:
        """The error of a run that must not come to be."""
        with pytest.raises(FanfoldError) as error:
            self.run(recipe, **given)
        opened = client(self.folder, self.environment)
        assert opened.runs() == [], "nothing was recorded"
        opened.project.close()
        return error.value

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": os.environ["PATH"]}
        return subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            cwd=self.folder,
            env={**path, **self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def frozen(self, run: str) -> RunConfig:
        opened = client(self.folder, self.environment)
        try:
            return opened.project.view(run).frozen()
        finally:
            opened.project.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- models


def test_a_step_s_model_that_cannot_work_refuses_the_run_with_the_step_s_name(place: Place) -> None:
    error = place.refused(STEP % ("explorer", ', model: "somewhere:x"'), ANTHROPIC_API_KEY="k")
    assert (error.code, error.exit_status) == ("model.unknown_provider", 2)
    assert error.message.startswith('step "a": "somewhere:x"')
    assert "provider:name" in error.hint


def test_a_role_s_model_without_its_key_refuses_the_run_with_the_role_s_name(place: Place) -> None:
    place.role('model = "openai:gpt-5"\n')
    error = place.refused(STEP % ("scout", ""), ANTHROPIC_API_KEY="k")
    assert error.code == "model.no_key"
    assert error.message.startswith('role "scout": "openai:gpt-5" needs OPENAI_API_KEY')


def test_the_model_of_folds_is_tried_too(place: Place) -> None:
    given = {"ANTHROPIC_API_KEY": "k", "FANFOLD_WORKFLOW_MODEL": "openai:gpt-5-nano"}
    error = place.refused(PHASES, **given)
    assert error.code == "model.no_key"
    assert error.message.startswith("FANFOLD_WORKFLOW_MODEL: ")


def test_the_user_s_own_word_needs_no_telling_where_it_stands(place: Place) -> None:
    error = place.refused(STEP % ("explorer", ""), options={"model": "openai:gpt-5"}, ANTHROPIC_API_KEY="k")
    assert error.message.startswith('"openai:gpt-5" needs')


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        ('model = "openai:gpt-5"', 'stage 1 of role "scout"'),
        ('agent = "judge"\nprompt = "x"', 'role "judge"'),
    ],
)
def test_models_of_stages_are_tried_too(place: Place, stage: str, where: str) -> None:
    place.role(f"[[pipeline]]\n{stage}\n")
    place.role('model = "openai:gpt-5"\n', name="judge")
    error = place.refused(STEP % ("scout", ""), ANTHROPIC_API_KEY="k")
    assert (error.code, error.message.partition(":")[0]) == ("model.no_key", where)


@pytest.mark.full
def test_a_role_whose_stages_all_name_their_model_needs_no_other(place: Place, provider: Provider) -> None:
    place.role(f'model = "openai:gpt-5"\n[[pipeline]]\nmodel = "{SONNET}"\n')
    given = {name: value for name, value in provider.environment.items() if name.startswith("ANTHROPIC")}
    assert place.run(STEP % ("scout", ""), **given).output == "said by claude-sonnet-4-6"


def test_weights_that_are_not_here_refuse_the_run(place: Place, tmp_path: Path) -> None:
    error = place.refused(STEP % ("explorer", ', model: "local:smollm2"'), ANTHROPIC_API_KEY="k")
    assert error.code in ("local.not_pulled", "local.not_installed")
    error = place.refused(STEP % ("explorer", ', model: "local:/x/y.gguf"'), ANTHROPIC_API_KEY="k")
    assert error.code == "model.not_here"


def test_a_model_deep_in_a_sub_workflow_is_named_by_its_path(place: Place) -> None:
    kid = STEP.replace("name: r", "name: kid") % ("explorer", ', model: "openai:gpt-5"')
    (place.folder / "kid.yaml").write_text(kid)
    error = place.refused("name: r\nsteps: [{id: c, workflow: ./kid.yaml}]\n", ANTHROPIC_API_KEY="k")
    assert error.message.startswith('step "c/a": ')


@pytest.mark.full
def test_steps_that_all_name_their_model_need_no_default(place: Place, provider: Provider) -> None:
    url = provider.environment["OPENAI_BASE_URL"]
    given = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "test-key"}
    assert place.refused(STEP % ("explorer", ""), **given).code == "model.unnamed"
    named = place.run(STEP % ("explorer", ', model: "openai:qwen"'), **given)
    assert named.output == "said by qwen"


def test_scripted_agents_are_not_asked_about_models(place: Place) -> None:
    recipe = STEP % ("explorer", ', model: "somewhere:x"')
    assert place.run(recipe, options={"script": "default: fine", "budget_micro_usd": 5}).output == "fine"


@pytest.mark.full
def test_a_fallback_that_cannot_work_is_left_out_and_the_run_continues(
    place: Place, provider: Provider
) -> None:
    names = '"nowhere:x", "local:smollm2", "openai:gpt-5", "anthropic:claude-haiku-4-5"'
    place.role(f'model = "{SONNET}"\nfallback_models = [{names}]\n')
    given = {name: value for name, value in provider.environment.items() if name.startswith("ANTHROPIC")}
    done = place.run(STEP % ("scout", ""), **given)
    assert done.output == "said by claude-sonnet-4-6"
    assert place.frozen(done.run_id).roles["scout"].fallback_models == ("anthropic:claude-haiku-4-5",)


@pytest.mark.full
def test_a_fallback_that_works_is_used_when_the_model_does_not(place: Place) -> None:
    def answer(asked: RecordedRequest) -> Reply | Fault:
        return Reply(text="stood in") if asked.model == "gpt-5" else Fault("unknown_model")

    place.role(f'model = "{SONNET}"\nfallback_models = ["openai-chat:gpt-5"]\n')
    with Provider(answer) as running:
        assert place.run(STEP % ("scout", ""), **running.environment).output == "stood in"


@pytest.mark.full
def test_a_dry_run_warns_of_named_models_that_cannot_work(place: Place) -> None:
    place.role(f'model = "{SONNET}"\nfallback_models = ["nowhere:x"]\n')
    recipe = place.folder / "r.yaml"
    recipe.write_text(STEP % ("scout", ""))
    bare = place.cli("run", "r.yaml", "--dry-run", "--json")
    assert json.loads(bare.stdout)["would_run"] is False
    assert "ANTHROPIC_API_KEY" in json.loads(bare.stdout)["warnings"][0]
    with_key = json.loads(place.cli("run", "r.yaml", "--dry-run", "--json", ANTHROPIC_API_KEY="k").stdout)
    assert with_key["would_run"] is True
    assert with_key["warnings"] == [
        'fallback nowhere:x will not be used: "nowhere:x" names an unknown provider'
    ]
    recipe.write_text(STEP % ("explorer", ""))
    unnamed = json.loads(place.cli("run", "r.yaml", "--dry-run", "--json").stdout)
    assert (unnamed["would_run"], unnamed["warnings"]) == (True, [])


# -- later


CHAIN = """
name: r
steps:
  - {id: a, agent: explorer, prompt: one}
  - {id: b, agent: explorer, prompt: two, depends_on: [a]}
"""


@pytest.mark.full
def test_a_resumed_run_keeps_the_model_it_began_with_and_says_when_its_key_is_gone(
    place: Place, provider: Provider
) -> None:
    began = {**provider.environment, "FANFOLD_MODEL": SONNET}
    paused = place.run(CHAIN, options={"max_agents": 1}, **began)
    assert (paused.status, place.frozen(paused.run_id).default_model) == ("paused", SONNET)
    more = ("resume", paused.run_id, "--max-agents", "9")
    held = place.cli(*more, FANFOLD_MODEL="local:smollm2")
    assert held.returncode == 3
    assert '"claude-sonnet-4-6" needs ANTHROPIC_API_KEY, which is not set' in held.stderr
    done = place.cli(
        "resume", paused.run_id, **{**provider.environment, "FANFOLD_MODEL": "openai-chat:gpt-5"}
    )
    assert (done.returncode, done.stdout) == (0, "said by claude-sonnet-4-6\n")


@pytest.mark.full
def test_a_run_whose_key_is_gone_can_be_cancelled(place: Place, provider: Provider) -> None:
    began = {**provider.environment, "FANFOLD_MODEL": SONNET}
    paused = place.run(CHAIN, options={"max_agents": 1}, **began)
    assert place.cli("cancel", paused.run_id).stdout == f"run {paused.run_id} is cancelled\n"


@pytest.mark.full
def test_a_fork_needs_the_models_of_what_it_runs_again_only(place: Place, provider: Provider) -> None:
    recipe = """
name: r
steps:
  - {id: a, agent: explorer, prompt: one}
  - {id: b, run: [echo, "{{steps.a.output}}"], depends_on: [a]}
"""
    done = place.run(recipe, **{**provider.environment, "FANFOLD_MODEL": SONNET})
    again = place.cli("fork", done.run_id, "--from", "b", "--yes")
    assert (again.returncode, again.stdout) == (0, "said by claude-sonnet-4-6\n"), again.stderr
    refused = place.cli("fork", done.run_id, "--from", "a", "--yes", OPENAI_API_KEY="k")
    assert refused.returncode == 2
    assert f'error[model.no_key]: "{SONNET}" needs ANTHROPIC_API_KEY' in refused.stderr


# -- budgets in dollars


@pytest.mark.parametrize(
    ("recipe", "where"),
    [
        (STEP % ("explorer", ', model: "openai:homemade"'), 'step "a"'),
        (STEP % ("scout", ""), 'role "scout"'),
    ],
)
def test_dollars_are_refused_where_a_price_is_unknown(place: Place, recipe: str, where: str) -> None:
    place.role('model = "openai:homemade"\n')
    error = place.refused(recipe, options={"budget_micro_usd": 1_000_000}, OPENAI_API_KEY="k")
    assert (error.code, error.exit_status) == ("budget.unpriced", 5)
    assert '"openai:homemade"' in error.message
    assert where in error.message
    assert "--budget-tokens" in error.hint


@pytest.mark.full
@pytest.mark.parametrize("model", ["openai:gpt-5", SONNET])
def test_a_server_of_one_s_own_has_no_known_prices_whatever_it_calls_its_models(
    place: Place, provider: Provider, model: str
) -> None:
    recipe, dollars = STEP % ("explorer", f', model: "{model}"'), {"budget_micro_usd": 1_000_000}
    assert place.refused(recipe, options=dollars, **provider.environment).code == "budget.unpriced"
    both = {**dollars, "budget_tokens": 100_000}
    done = place.run(recipe, options=both, **provider.environment)
    assert (done.status, done.usage.cost_usd) == ("completed", None)
    assert place.run(recipe, options={"budget_tokens": 100_000}, **provider.environment).status == "completed"


@pytest.mark.full
def test_dollars_are_fine_where_prices_are_known(place: Place, provider: Provider) -> None:
    place.providers = HERE
    recipe = STEP % ("explorer", f', model: "{SONNET}"')
    done = place.run(recipe, options={"budget_micro_usd": 1_000_000}, **provider.environment)
    assert done.status == "completed"
    assert (done.usage.cost_usd or 0) > 0


def test_the_dollars_of_a_sub_workflow_are_looked_at_too(place: Place) -> None:
    kid = "name: kid\nlimits: {budget: {usd: 1}}\nsteps: [{id: x, agent: explorer, prompt: p}]\n"
    (place.folder / "kid.yaml").write_text(kid)
    recipe = "name: r\nsteps: [{id: c, workflow: ./kid.yaml}]\n"
    error = place.refused(recipe, options={"model": "openai:homemade"}, OPENAI_API_KEY="k")
    assert error.code == "budget.unpriced"
    assert 'of "kid"' in error.message


@pytest.mark.full
def test_an_unpriced_answer_of_a_priced_model_stops_a_run_that_has_dollars_only(place: Place) -> None:
    place.providers = HERE
    recipe = f"""
name: r
defaults: {{model: "{SONNET}"}}
steps:
  - {{id: a, agent: explorer, prompt: one}}
  - {{id: b, agent: explorer, prompt: two, depends_on: [a]}}
"""
    with Provider(lambda asked: Reply(text="x", input_tokens=0, output_tokens=0)) as running:
        done = place.run(recipe, options={"budget_micro_usd": 1_000_000}, **running.environment)
        assert done.status == "paused"
        assert done.error is not None
        assert "is unknown" in done.error.message
        both = {"budget_micro_usd": 1_000_000, "budget_tokens": 9_000}
        assert place.run(recipe, options=both, **running.environment).status == "completed"
