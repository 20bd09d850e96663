"""Settings: what they lift, what is not shown of them, and those that nothing here can meet."""

import json

import pytest

FAN = """\
name: fan
steps:
  - {id: each, for_each: "[1, 2]", max_concurrency: 20, agent: explorer, prompt: "{{item}}"}
"""


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FANFOLD_STORE", "postgresql://me:pass@host/db"), ("FANFOLD_TEMPORAL", "host:7233")],
)
def test_more_than_one_machine_is_refused_and_not_passed_over(project, fanfold, monkeypatch, variable, value):
    (project / "a.yaml").write_text("name: a\nsteps: [{id: a, set: {x: 1}}]\n")
    monkeypatch.setenv(variable, value)
    refused = fanfold("run", "a.yaml")
    assert refused.status == 2
    assert "error[config.unsupported]" in refused.err
    assert variable in refused.err
    monkeypatch.delenv(variable)
    assert fanfold("runs", "--json").json() == []


def test_the_password_of_an_address_is_not_shown(fanfold, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:verysecret@host.example:99/v1?key=verysecret")
    told = fanfold("doctor", "--json")
    assert "verysecret" not in told.out
    shown = {one["key"]: one["value"] for one in json.loads(told.out)["config"]}
    assert "https://host.example:99/v1" in shown.values()


def test_what_lifts_the_limit_of_a_run_lifts_that_of_its_steps(project, fanfold, tmp_path, monkeypatch):
    (project / "fan.yaml").write_text(FAN)
    refused = fanfold("check", "fan.yaml")
    assert refused.status == 2
    home = tmp_path / "own"
    home.mkdir()
    (home / "config.toml").write_text("[ceilings]\nconcurrency = 32\n")
    monkeypatch.setenv("FANFOLD_HOME", str(home))
    assert fanfold("check", "fan.yaml").status == 0


def test_a_tool_that_nobody_has_is_refused(project, fanfold):
    (project / "a.yaml").write_text(
        "name: a\nsteps:\n  - {id: a, agent: explorer, prompt: x, tools: [raed_file]}\n"
        "  - {id: b, agent: worker, prompt: x, tools: [Read, mcp__notes__find]}\n"
    )
    refused = fanfold("check", "a.yaml")
    assert refused.status == 2
    assert 'there is no tool "raed_file"' in refused.err
    assert 'did you mean "read_file"?' in refused.err
    assert "1 error" in refused.out
