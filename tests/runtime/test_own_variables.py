"""Commands that ask for variables of the user's environment: only those that the user's own file lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fanfold.cli.main import main

SECRET = "s3cr3t-value-of-the-user"
RECIPE = """\
name: calls
steps:
  - id: call
    shell: 'printf "%s" "$DEPLOY_HOST" | wc -c; echo "$DEPLOY_HOST"'
    env_vars: [DEPLOY_HOST]
  - id: other
    depends_on: call
    shell: 'echo "[${DEPLOY_HOST-none}]"'
output: {call: steps.call.output, other: steps.other.output}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    monkeypatch.setenv("DEPLOY_HOST", SECRET)
    return folder


def allow(project: Path, *names: str) -> None:
    file = project.parent / "home/.fanfold/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[environment]\nallow = {json.dumps(names)}\n")


def test_a_variable_that_the_user_did_not_list_is_not_handed_over_whatever_yes_says(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "r.yaml", "--yes"]) == 4
    said = capsys.readouterr().err
    assert "[variable.not_allowed]" in said
    assert 'allow = ["DEPLOY_HOST"]' in said
    assert main(["run", "r.yaml", "--dry-run"]) == 0
    assert "would be refused: step call: DEPLOY_HOST" in capsys.readouterr().out


def test_the_projects_own_file_cannot_list_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".fanfold").mkdir()
    (project / ".fanfold/config.toml").write_text('[environment]\nallow = ["DEPLOY_HOST"]\n')
    assert main(["run", "r.yaml", "--yes"]) == 2
    assert '"environment.allow" may not be set in this file' in capsys.readouterr().err


@pytest.mark.full
def test_a_listed_variable_reaches_its_command_alone_and_is_masked_everywhere(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(project, "DEPLOY_HOST")
    assert main(["run", "r.yaml"]) == 4  # nobody can be asked here
    assert "with your variable DEPLOY_HOST" in capsys.readouterr().err
    assert main(["run", "r.yaml", "--yes", "--json"]) == 0
    said = capsys.readouterr().out
    output = json.loads(said)["output"]
    assert output["call"].split() == [str(len(SECRET)), "[redacted]"]
    assert output["other"] == "[none]"
    assert SECRET not in said
    kept = [file.read_bytes() for file in (project / ".fanfold").rglob("*") if file.is_file()]
    assert not any(SECRET.encode() in data for data in kept)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("DEPLOY_HOST", "", "variable.not_set"), ("DEPLOY_TOKEN", "short", "variable.too_short")],
)
def test_variables_that_cannot_be_passed_or_masked_are_refused_before_the_run(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    code: str,
) -> None:
    allow(project, name)
    monkeypatch.setenv(name, value)
    (project / "r.yaml").write_text(RECIPE.replace("[DEPLOY_HOST]", f"[{name}]"))
    assert main(["run", "r.yaml", "--yes"]) == 4
    assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.full
def test_a_key_of_a_provider_reaches_a_command_when_the_user_listed_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(project, "OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    step = "{id: a, shell: 'printf %s \"$OPENAI_API_KEY\" | wc -c', env_vars: [OPENAI_API_KEY]}"
    (project / "r.yaml").write_text(f"name: k\nsteps:\n  - {step}\n")
    assert main(["run", "r.yaml", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"].strip() == str(len(SECRET))
