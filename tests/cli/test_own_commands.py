"""Gates that leave their command to the project: what is found where, shown, asked for, or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold.language.project_commands import MAX_BYTES, find_own_command
from tests.work import PATIENCE_S, patience

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
    ("lint", {"eslint.config.mjs": ""}, "npx --no-install --offline eslint ."),
    ("lint", {"mypy.ini": "[mypy]\n"}, "mypy ."),
    ("lint", {"Makefile": "lint:\n"}, "make lint"),
    ("lint", {"pyproject.toml": "[tool.black]\n"}, ""),
    ("lint", {"pyproject.toml": "not = = toml"}, ""),
    ("tests", {"package.json": "[" * 100_000}, ""),
    ("tests", {"package.json": {"scripts": ["test"]}}, ""),
    ("tests", {"tests/unit/test_a.py": "def test(): pass\n"}, "python3 -m pytest -q"),
    ("tests", {"src/a/__init__.py": "", "src/a/tests/test_a.py": "def test(): 0\n"}, "python3 -m pytest -q"),
    ("tests", {"tests/conftest.py": "", "tests/test_a.py": UNIT}, "python3 -m pytest -q"),
    ("tests", {"requirements-dev.txt": "ruff\npytest>=8\n", "test_a.py": UNIT}, "python3 -m pytest -q"),
    ("tests", {"requirements.txt": "pytest-of-mine\n", "test_a.py": UNIT}, "python3 -m unittest discover"),
    ("tests", {"package.json": {"scripts": {"test": "jest"}}, "tests/test_a.py": ""}, "npm test"),
    ("tests", {"Cargo.toml": "", "tests/test_a.py": ""}, "cargo test"),
    ("tests", {"package.json": {"scripts": {"test": "x"}, "packageManager": "pnpm@9.1.0"}}, "pnpm test"),
    ("tests", {"package.json": {"scripts": {"test": "x"}}, "bun.lock": ""}, "bun run test"),
    ("tests", {"package.json": {"scripts": {"test": " "}}}, ""),
    ("tests", {"package.json": '\ufeff{"scripts": {"test": "jest"}}'}, "npm test"),
    ("tests", {"Makefile": "lint test: all\n\tcc\n"}, "make test"),
    ("tests", {"Makefile": ".PHONY: test\ntest ?= a:b\n# test: no\n"}, ""),
    ("tests", {"GNUmakefile": "all:\n", "Makefile": "test:\n"}, ""),
    ("tests", {"Makefile": "check:\n"}, "make check"),
    ("tests", {"manage.py": "import django\n", "shop/tests.py": UNIT}, "python3 manage.py test"),
    ("tests", {"tox.ini": "[flake8]\n"}, ""),
    ("tests", {"pyproject.toml": "[tool.tox]\n"}, "tox"),
    ("tests", {"packages/a/pytest.ini": "", "packages/b/package.json": {"scripts": {"test": "x"}}}, ""),
    ("tests", {".venv/bin/python": "", "pytest.ini": ""}, ".venv/bin/python -m pytest -q"),
    ("lint", {"venv/bin/ruff": "", "ruff.toml": ""}, "venv/bin/ruff check ."),
    ("lint", {"package.json": {"eslintConfig": {}}}, "npx --no-install --offline eslint ."),
    (
        "lint",
        {"eslint.config.js": "", "node_modules/.bin/eslint": ""},
        "node_modules/.bin/eslint .",
    ),
    ("lint", {"setup.cfg": "[metadata]\n[flake8]\n"}, "flake8"),
    ("lint", {"setup.cfg": "[metadata]\n[mypy-a.*]\n"}, "mypy ."),
]


@pytest.mark.parametrize(("gate", "files", "command"), FOUND)
def test_the_files_of_a_project_say_its_command(
    tmp_path: Path, gate: str, files: dict[str, Any], command: str
):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    found = find_own_command(tmp_path, gate)
    assert ("" if found is None else " ".join(found.run)) == command
    assert found is None or found.file in files


LAYOUTS = [
    ["test_a.py"],
    ["a_test.py"],
    ["a_test.py", "test_b.py"],
    ["tests/test_a.py"],
    ["tests/a_test.py", "tests/__init__.py"],
    ["tests/unit/test_a.py"],
    ["tests/unit/test_a.py", "tests/__init__.py", "tests/unit/__init__.py"],
    ["shop/__init__.py", "shop/tests/__init__.py", "shop/tests/test_a.py"],
    ["shop/__init__.py", "shop/tests/test_a.py"],
    ["src/shop/__init__.py", "src/shop/tests/__init__.py", "src/shop/tests/test_a.py"],
]


@pytest.mark.full
@pytest.mark.parametrize("names", LAYOUTS, ids=" ".join)
def test_the_detected_unittest_command_finds_tests_in_any_folder(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else UNIT)
    failing = f"{UNIT}class Wrong(unittest.TestCase):\n    def test(self): self.fail('seen')\n"
    (tmp_path / next(name for name in names if "test_" in name or "_test" in name)).write_text(failing)
    found = find_own_command(tmp_path, "tests")
    assert found is not None
    command = [sys.executable, *found.run[1:]]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "AssertionError: seen" in done.stderr


@pytest.mark.parametrize("text", ["test\n", "test ", "a b ", "test:=", "\\\n"])
def test_no_file_is_read_without_end(tmp_path: Path, text: str):
    for name in ("Makefile", "pyproject.toml", "package.json", "setup.cfg", "test_a.py"):
        (tmp_path / name).write_text(text * (MAX_BYTES // len(text)))
    with patience():
        find_own_command(tmp_path, "tests")
        find_own_command(tmp_path, "lint")


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
        assert "this project does not define how to run its tests" in done.out + done.err
    assert fanfold("runs", "--json").json() == []


def test_the_detected_command_is_shown_and_needs_permission(fanfold, project: Path):
    (project / "gated.yaml").write_text(RECIPE)
    (project / "tests").mkdir()
    (project / "tests" / "of_owls_test.py").write_text(UNIT)
    shown = "python3 -m unittest discover -s tests -p"
    assert fanfold("check", "gated.yaml").status == 0
    for told in (fanfold("show", "gated.yaml").out, fanfold("run", "gated.yaml", "--dry-run").out):
        assert shown in told
        assert "the project's own tests, by tests/of_owls_test.py:" in told
    (project / "script.yaml").write_text("default: done\n")
    refused = fanfold("run", "gated.yaml", "--script", "script.yaml")
    assert refused.status == 4
    assert shown in refused.err
