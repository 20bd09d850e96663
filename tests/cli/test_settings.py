"""Settings: what they lift, what is not shown of them, and those that nothing here can meet."""

import json

import pytest

from fanfold.api.run_options import Options
from fanfold.api.start import start_consent
from fanfold.wiring import wire

FAN = """\
name: fan
steps:
  - {id: each, for_each: "[1, 2]", max_concurrency: 20, agent: explorer, prompt: "{{item}}"}
"""


def test_with_workers_configured_a_run_is_recorded_and_waits_for_one(project, fanfold, monkeypatch):
    (project / "a.yaml").write_text("name: a\nsteps: [{id: a, set: {x: 1}}]\n")
    monkeypatch.setenv("FANFOLD_TEMPORAL", "127.0.0.1:1")
    assert fanfold("run", "a.yaml", "--detach").status == 0
    (row,) = fanfold("runs", "--json").json()
    assert row["status"] == "pending"
    monkeypatch.delenv("FANFOLD_TEMPORAL")
    assert fanfold("resume", row["run_id"]).status == 0  # without workers it runs here


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://me:verysecret@host/db", "config.bad_store"),
        ("mysql://host/db", "config.bad_store"),
        ("postgresql:///db?host=/nowhere/here", "store.unreachable"),
    ],
)
def test_a_shared_database_that_cannot_be_used_is_refused_with_the_reason(
    project, fanfold, monkeypatch, url, code
):
    pytest.importorskip("psycopg", reason='needs psycopg: pip install "fanfold[cluster]"')
    monkeypatch.setenv("FANFOLD_STORE", url)
    monkeypatch.setenv("FANFOLD_PROJECT", "team/tests")
    monkeypatch.setenv("FANFOLD_PATIENCE_S", "1")
    refused = fanfold("runs")
    assert f"error[{code}]" in refused.err
    assert "verysecret" not in refused.err


def test_a_shared_database_needs_a_name_of_the_project_which_is_never_a_path(project, fanfold, monkeypatch):
    monkeypatch.setenv("FANFOLD_STORE", "postgresql://host/db")
    refused = fanfold("runs")
    assert "error[config.no_project]" in refused.err
    assert "FANFOLD_PROJECT" in refused.err


def test_a_checkout_cannot_choose_the_database(project, fanfold):
    (project / ".fanfold").mkdir(exist_ok=True)
    (project / ".fanfold" / "config.toml").write_text(
        '[store]\nurl = "postgresql://host/db"\n[cluster]\nproject = "other"\n'
    )
    told = fanfold("runs", "--json")
    assert "store.url" in told.err + told.out
    assert "cluster.project" in told.err + told.out


@pytest.mark.full
def test_the_password_of_an_address_is_not_shown(fanfold, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:verysecret@host.example:99/v1?key=verysecret")
    told = fanfold("doctor", "--json")
    assert "verysecret" not in told.out
    shown = {one["key"]: one["value"] for one in json.loads(told.out)["config"]}
    assert "https://host.example:99/v1" in shown.values()


def test_a_raised_limit_of_a_run_raises_that_of_its_steps(project, fanfold, tmp_path, monkeypatch):
    (project / "fan.yaml").write_text(FAN)
    refused = fanfold("check", "fan.yaml")
    assert refused.status == 2
    home = tmp_path / "own"
    home.mkdir()
    (home / "config.toml").write_text("[workflows]\nmax_concurrent = 32\n")
    monkeypatch.setenv("FANFOLD_HOME", str(home))
    assert fanfold("check", "fan.yaml").status == 0


@pytest.mark.parametrize(
    ("name", "value"), [("FANFOLD_HOME", "own"), ("FANFOLD_HOME", "~nobody-here/own"), ("HOME", ".")]
)
def test_a_folder_of_one_s_own_that_is_another_one_everywhere_is_refused(fanfold, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    for words in (["runs"], ["list", "--project", "."], ["state", "show"], ["doctor"]):
        refused = fanfold(*words)
        assert refused.status == 2
        assert f"error[config.bad_value]: {name} is {value!r}, but must be the absolute path" in refused.err


@pytest.mark.full
def test_doctor_warns_of_a_folder_of_one_s_own_that_agents_may_write(fanfold, project, monkeypatch):
    def told() -> list[str]:
        return [
            one["message"] for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "home"
        ]

    assert told() == []
    monkeypatch.setenv("FANFOLD_HOME", str(project / "own"))
    (message,) = told()
    assert "is in the project, where agents may write" in message
    monkeypatch.setenv("FANFOLD_HOME", str(project / ".fanfold"))
    assert told() == []


def test_an_unknown_tool_is_refused(project, fanfold):
    (project / "a.yaml").write_text(
        "name: a\nsteps:\n  - {id: a, agent: explorer, prompt: x, tools: [raed_file]}\n"
        "  - {id: b, agent: worker, prompt: x, tools: [Read, mcp__notes__find]}\n"
    )
    refused = fanfold("check", "a.yaml")
    assert refused.status == 2
    assert 'there is no tool "raed_file"' in refused.err
    assert 'did you mean "read_file"?' in refused.err
    assert "1 error" in refused.out


LARGE = """\
name: large
limits: {max_agents: 200, max_concurrency: 8, timeout: 2h}
steps:
  - {id: look, agent: explorer, prompt: Look}
"""
CAPS = {"MAX_AGENTS": "10", "MAX_CONCURRENT": "2", "TIMEOUT_MS": "60000"}


@pytest.mark.parametrize("prefix", ["FANFOLD", "AGENT"])
def test_limits_of_the_user_are_caps_for_every_recipe_and_each_surface_says_so_once(
    project, fanfold, monkeypatch, prefix
):
    (project / "large.yaml").write_text(LARGE)
    (project / "script.yaml").write_text("default: ok\n")
    for name, value in CAPS.items():
        monkeypatch.setenv(f"{prefix}_WORKFLOW_{name}", value)
    line = f"max_agents is 10, your cap ({prefix}_WORKFLOW_MAX_AGENTS), not 200 as large says"
    seen = fanfold("run", "large.yaml", "--script", "script.yaml", "--dry-run", "--json").json()
    assert [one for one in seen["warnings"] if "max_agents" in one] == [line]
    wired = wire(project)
    question = start_consent(wired, wired.plan_of("large.yaml"), {}, Options()).request
    assert question.totals.count(line) == 1
    done = fanfold("run", "large.yaml", "--script", "script.yaml", "--yes")
    assert done.err.count(line) == 1
    state = fanfold("inspect", "last", "--state", "--json").json()["state"]
    assert (state["agents"]["of"], state["slots"]["of"]) == (10, 2)


def test_a_flag_wins_over_the_cap_of_the_user(project, fanfold, monkeypatch):
    (project / "large.yaml").write_text(LARGE)
    (project / "script.yaml").write_text("default: ok\n")
    monkeypatch.setenv("FANFOLD_WORKFLOW_MAX_AGENTS", "10")
    done = fanfold("run", "large.yaml", "--script", "script.yaml", "--yes", "--max-agents", "300")
    assert "your cap" not in done.err
    assert fanfold("inspect", "last", "--state", "--json").json()["state"]["agents"]["of"] == 300


def test_a_recipe_may_raise_what_the_user_did_not_set(project, fanfold):
    (project / "large.yaml").write_text(LARGE)
    (project / "script.yaml").write_text("default: ok\n")
    (project / ".fanfold").mkdir()
    (project / ".fanfold/config.toml").write_text("[workflows]\nmax_agents = 5\n")  # no word of the user's
    assert fanfold("run", "large.yaml", "--script", "script.yaml", "--yes").status == 0
    assert fanfold("inspect", "last", "--state", "--json").json()["state"]["agents"]["of"] == 200


def test_the_file_of_the_user_goes_beyond_the_range_and_is_a_cap(project, fanfold, tmp_path, monkeypatch):
    home = tmp_path / "own"
    home.mkdir()
    (home / "config.toml").write_text("[workflows]\nmax_agents = 700\n")
    monkeypatch.setenv("FANFOLD_HOME", str(home))
    (project / "script.yaml").write_text("default: ok\n")
    (project / "fits.yaml").write_text(LARGE.replace("200", "650"))
    assert fanfold("run", "fits.yaml", "--script", "script.yaml", "--yes").status == 0
    assert fanfold("inspect", "last", "--state", "--json").json()["state"]["agents"]["of"] == 650
    (project / "beyond.yaml").write_text(LARGE.replace("200", "701"))
    assert "from 1 to 700" in fanfold("check", "beyond.yaml").err


def test_a_map_with_more_slots_than_its_run_is_a_warning(project, fanfold):
    text = FAN.replace("max_concurrency: 20", "max_concurrency: 6")
    (project / "fan.yaml").write_text(text)
    told = fanfold("check", "fan.yaml", "--json")
    assert told.status == 0
    messages = [one["message"] for one in told.json()["diagnostics"] if one["code"] == "recipe.unused_key"]
    assert messages == ['"max_concurrency" of "each" is 6, but the run has 4']
    (project / "fan.yaml").write_text(text.replace("steps:", "max_concurrency: 6\nsteps:"))
    assert fanfold("check", "fan.yaml", "--json").json()["diagnostics"] == []
