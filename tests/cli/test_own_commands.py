"""Gates that leave their command to the project: what is found where, shown, asked for, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.recipe.own_commands import find_own_command

UNIT = "import unittest\n"
FOUND = [
    ("tests", {"pytest.ini": ""}, "python3 -m pytest -q"),
    ("tests", {"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python3 -m pytest -q"),
    ("tests", {"setup.cfg": "[tool:pytest]\n"}, "python3 -m pytest -q"),
    ("tests", {"tox.ini": "[pytest]\n"}, "python3 -m pytest -q"),
    ("tests", {"tests/test_a.py": "def test(): pass\n"}, "python3 -m pytest -q"),
    ("tests", {"tests/test_a.py": UNIT}, "python3 -m unittest discover -s tests"),
    (
        "tests",
        {"tests/test_a.py": UNIT, "tests/__init__.py": ""},
        "python3 -m unittest discover -s tests -t .",
    ),
    ("tests", {"test_a.py": UNIT}, "python3 -m unittest discover"),
    ("tests", {"package.json": {"scripts": {"test": "jest"}}}, "npm test"),
    ("tests", {"package.json": {"scripts": {"test": "jest"}}, "yarn.lock": ""}, "yarn test"),
    ("tests", {"package.json": {"scripts": {"test": "jest"}}, "pnpm-lock.yaml": ""}, "pnpm test"),
    ("tests", {"package.json": {"scripts": {"test": 'echo "Error: no test specified" && exit 1'}}}, ""),
    ("tests", {"Cargo.toml": ""}, "cargo test"),
    ("tests", {"go.mod": ""}, "go test ./..."),
    ("tests", {"Makefile": "all:\n\ntest: all\n\tcc\n"}, "make test"),
    ("tests", {"Makefile": "test := 1\ntested:\n"}, ""),
    ("tests", {"tox.ini": "[tox]\n"}, "tox"),
    ("tests", {"noxfile.py": ""}, "nox"),
    ("tests", {"README.md": "run the tests"}, ""),
    ("lint", {"pyproject.toml": "[tool.ruff]\n"}, "ruff check ."),
    ("lint", {"ruff.toml": ""}, "ruff check ."),
    ("lint", {"package.json": {"scripts": {"lint": "eslint ."}}}, "npm run lint"),
    ("lint", {"eslint.config.mjs": ""}, "npx --no-install eslint ."),
    ("lint", {"mypy.ini": "[mypy]\n"}, "mypy ."),
    ("lint", {"Makefile": "lint:\n"}, "make lint"),
    ("lint", {"pyproject.toml": "[tool.black]\n"}, ""),
    ("lint", {"pyproject.toml": "not = = toml"}, ""),
    ("tests", {"package.json": "[" * 100_000}, ""),
    ("tests", {"package.json": {"scripts": ["test"]}}, ""),
]


@pytest.mark.parametrize(("gate", "files", "command"), FOUND)
def test_the_files_of_a_project_say_its_command(
    tmp_path: Path, gate: str, files: dict[str, Any], command: str
):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    found = find_own_command(tmp_path, gate)
    assert ("" if found is None else " ".join(found.run)) == command
    assert found is None or found.file in files


def test_files_that_lead_out_of_the_project_say_nothing(tmp_path: Path):
    (tmp_path / "outside.ini").write_text("[mypy]\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "mypy.ini").symlink_to(tmp_path / "outside.ini")
    assert find_own_command(project, "lint") is None


RECIPE = """\
name: gated
phases:
  - {id: fix, tasks: [{id: t, agent: explorer, prompt: x}], verify: {gate: tests}}
"""


def test_a_gate_for_which_nothing_is_found_is_refused(fanfold, project: Path):
    (project / "gated.yaml").write_text(RECIPE)
    for command in (["check", "gated.yaml"], ["run", "gated.yaml", "--yes"]):
        done = fanfold(*command)
        assert done.status == 2
        assert "nothing in this project says how to run its tests" in done.out + done.err
    assert fanfold("runs", "--json").json() == []


def test_what_is_found_is_shown_and_asked_for(fanfold, project: Path):
    (project / "gated.yaml").write_text(RECIPE)
    (project / "test_a.py").write_text(UNIT)
    shown = "python3 -m unittest discover"
    assert fanfold("check", "gated.yaml").status == 0
    assert shown in fanfold("show", "gated.yaml").out
    assert shown in fanfold("run", "gated.yaml", "--dry-run").out
    (project / "script.yaml").write_text("default: done\n")
    refused = fanfold("run", "gated.yaml", "--script", "script.yaml")
    assert refused.status == 4
    assert shown in refused.err
