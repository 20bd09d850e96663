"""Every kind of agent learns its limits, and a dry run shows what agents will be sent."""

import json
from datetime import datetime

import pytest

from tests.cli.agent_world import SPEAKING, SUCCESS, AgentWorld, step, writing
from tests.e2e.world import MODELS, Provider
from tests.levels import needs_bubblewrap
from tests.provider import Reply

WRITES = "only files that match `src/**`, `*.txt`."
RECIPE = """\
name: limits
inputs: [{name: topic, default: owls}]
steps:
  - {id: list, agent: explorer, prompt: "List {{inputs.topic}}", output_schema: {type: array}}
  - {id: each, agent: worker, depends_on: [list], for_each: steps.list.output, write_set: ["{{item}}.md"],
     prompt: "Write {{item}}"}
  - {id: known, agent: worker, for_each: '["a", "b"]', write_set: ["{{item}}.md"], prompt: "Write {{item}}"}
  - {id: sum, agent: explorer, depends_on: [each], prompt: Sum up, inputs: {first: steps.list.output}}
  - {id: alone, agent: explorer, depends_on: [each], context: none, prompt: Alone}
"""


def lines(project, text):
    """The facts that an agent was told, without line breaks of another encoding."""
    text = text.replace("\\n", "\n")
    assert f"- Date: {datetime.now().astimezone():%Y-%m-%d}" in text
    assert f"- Working folder: {project}" in text
    assert "- Network: none." in text
    return text


@pytest.mark.full
@pytest.mark.parametrize("wire", MODELS)
def test_the_system_prompt_of_a_model_names_its_limits(fanfold, project, monkeypatch, wire):
    (project / "limits.yaml").write_text(
        "name: limits\nsteps: [{id: a, agent: worker, write_set: [src/**, '*.txt'], prompt: go}]\n"
    )
    with Provider(lambda asked: Reply(text="done")) as provider:
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)
        assert fanfold("run", "limits.yaml", "--yes", "--model", MODELS[wire]).status == 0
        assert WRITES in lines(project, json.dumps(provider.asked[0].body))


@needs_bubblewrap
@pytest.mark.full
@pytest.mark.parametrize("name", SUCCESS)
def test_the_prompt_of_a_program_names_its_limits(fanfold, project, tmp_path, monkeypatch, name):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    agents.install(name, writing(name))
    agents.role("coder", name)
    fanfold("run", agents.recipe(step("coder", write_set=["src/**", "*.txt"])), "--yes")
    [call] = agents.calls()
    assert WRITES in lines(project, call["stdin"] + "\n".join(call["argv"]))


@needs_bubblewrap
@pytest.mark.full
def test_the_prompt_of_an_acp_program_names_its_limits(fanfold, project, tmp_path, monkeypatch):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    backend, recorded = SPEAKING["codex-acp"]
    agents.install("codex-acp", {"says": recorded, "writes": {"a.txt": "a"}}, speaks=True)
    agents.role("coder", backend)
    fanfold("run", agents.recipe(step("coder", write_set=["src/**", "*.txt"])), "--yes")
    told = [one["prompt"] for one in agents.spoken() if "prompt" in one]
    assert WRITES in lines(project, told[0])


def test_a_dry_run_shows_the_prompts_with_holes_for_what_is_not_known(fanfold, project):
    (project / "limits.yaml").write_text(RECIPE)
    (project / "AGENTS.md").write_text("Use tabs.\n")
    (project / "script.yaml").write_text("default: ok\n")
    shown = fanfold("run", "limits.yaml", "--dry-run", "--show-prompts", "--json").json()["prompts"]
    prompts = {one["path"]: one["prompt"] for one in shown}
    assert prompts == {
        "list": "List owls",
        "each[*]": "Write {{item}}",
        "known[0]": "Write a",
        "known[1]": "Write b",
        "sum": "Sum up\n\nResult of the earlier step each:\n{{steps.each.output}}\n\nfirst:\n{{first}}",
        "alone": "Alone",
    }
    system = {one["path"]: one["system"] for one in shown}
    assert "only files that match `b.md`." in lines(project, system["known[1]"])
    assert "- Write access: none." in system["alone"]
    assert all("Use tabs." in text for text in system.values())
    assert "prompts" not in fanfold("run", "limits.yaml", "--dry-run", "--json").json()


def test_a_dry_run_prints_the_prompts(fanfold, project):
    (project / "limits.yaml").write_text(RECIPE)
    out = fanfold("run", "limits.yaml", "--dry-run", "--show-prompts").out
    assert "Prompt of known[1] (worker)\n  system\n" in out
    assert "  prompt\n    Write b\n" in out


def test_show_prompts_without_dry_run_is_refused(fanfold, project):
    (project / "limits.yaml").write_text(RECIPE)
    refused = fanfold("run", "limits.yaml", "--show-prompts", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "usage.missing_option")


@pytest.mark.full
def test_what_a_dry_run_shows_is_what_is_sent(fanfold, project, monkeypatch):
    (project / "limits.yaml").write_text(RECIPE.partition("  - {id: each")[0])
    with Provider(lambda asked: Reply(text="[]")) as provider:
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)
        flags = ("run", "limits.yaml", "--model", MODELS["messages"], "--json")
        [shown] = fanfold(*flags, "--dry-run", "--show-prompts").json()["prompts"]
        fanfold(*flags)
        body = provider.asked[0].body
    assert shown["system"] in json.dumps(body["system"]).encode().decode("unicode_escape")
    assert body["messages"][0]["content"][0]["text"].startswith(shown["prompt"])
