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


@pytest.mark.parametrize(
    ("name", "value"), [("FANFOLD_HOME", "own"), ("FANFOLD_HOME", "~nobody-here/own"), ("HOME", ".")]
)
def test_a_folder_of_one_s_own_that_is_another_one_everywhere_is_refused(fanfold, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    for words in (["runs"], ["list", "--project", "."], ["state", "show"], ["doctor"]):
        refused = fanfold(*words)
        assert refused.status == 2
        assert f"error[config.bad_value]: {name} is {value!r}, but must be the absolute path" in refused.err


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
