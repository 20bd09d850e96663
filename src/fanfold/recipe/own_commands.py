"""The project's own commands for its tests and its lint, told by the files that say so.

Gates named `tests` and `lint` may leave the command to the project. Files are read, and nothing is run: what
was found is part of the plan, shown and asked for like any command that a recipe names itself.

Rules
* One table, asked from top to bottom; the first row whose files say so gives the command. What a project
  configures for itself stands before what could only be guessed from its folders.
* Files of a project may be hostile: they are read beneath it, up to a size, and what cannot be read says
  nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fanfold.recipe.surroundings import OwnCommand
from fanfold.trust.project_files import list_beneath, read_beneath

MAX_BYTES = 1024 * 1024
MAX_TEST_FILES = 50
_TEST_FILE = re.compile(r"test_\w*\.py|\w+_test\.py")
_UNITTEST = re.compile(r"^\s*(?:import|from)\s+unittest\b", re.MULTILINE)
_TARGET = r"^{0}(?:\s+[\w-]+)*\s*:(?!=)"
Found = tuple[Sequence[str], str] | None
"""A command and the file that says so."""


class ProjectFiles:
    """What the files of one project say about how it is tested."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.listed("."))

    def listed(self, folder: str) -> list[str]:
        try:
            return list_beneath(self._folder, self._folder / folder)
        except OSError:
            return []

    def text(self, name: str) -> str:
        """A file's text; nothing when it is not there, too large or no text."""
        if "/" not in name and name not in self.names:
            return ""
        try:
            return read_beneath(self._folder, self._folder / name, MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.text("pyproject.toml"))
        except (tomllib.TOMLDecodeError, RecursionError):
            return {}

    def configures(self, tool: str) -> bool:
        """Whether pyproject.toml has `[tool.<tool>]`."""
        tools = self.pyproject.get("tool")
        return isinstance(tools, dict) and tool in tools

    @cached_property
    def scripts(self) -> dict[str, Any]:
        """The scripts of package.json."""
        try:
            package = json.loads(self.text("package.json") or "{}")
        except (ValueError, RecursionError):
            return {}
        scripts = package.get("scripts") if isinstance(package, dict) else None
        return scripts if isinstance(scripts, dict) else {}

    @property
    def package_manager(self) -> str:
        if "pnpm-lock.yaml" in self.names:
            return "pnpm"
        return "yarn" if "yarn.lock" in self.names else "npm"

    @cached_property
    def test_files(self) -> list[str]:
        """Python files with tests, in the project's folder and in the usual ones below it."""
        below = [f"{folder}/{name}" for folder in ("tests", "test") for name in self.listed(folder)]
        found = [path for path in (*sorted(self.names), *sorted(below)) if _is_test_file(path)]
        return found[:MAX_TEST_FILES]


def _is_test_file(path: str) -> bool:
    return _TEST_FILE.fullmatch(path.rpartition("/")[2]) is not None


def find_own_command(folder: Path, gate: str) -> OwnCommand | None:
    """The project's own command for a gate, `tests` or `lint`."""
    files = ProjectFiles(folder)
    for ask in RULES[gate]:
        found = ask(files)
        if found is not None:
            return OwnCommand(tuple(found[0]), found[1])
    return None


# Tests


def _pytest(files: ProjectFiles) -> Found:
    command = ("python3", "-m", "pytest", "-q")
    if files.configures("pytest"):
        return command, "pyproject.toml"
    for name, section in (("pytest.ini", ""), ("tox.ini", "[pytest]"), ("setup.cfg", "[tool:pytest]")):
        if name in files.names and section in files.text(name):
            return command, name
    if "conftest.py" in files.names:
        return command, "conftest.py"
    plain = [path for path in files.test_files if not _UNITTEST.search(files.text(path))]
    return (command, plain[0]) if plain else None


def _unittest(files: ProjectFiles) -> Found:
    if not files.test_files:
        return None
    folder = files.test_files[0].rpartition("/")[0]
    where = ("-s", folder) if folder else ()
    # Unless the folder is a package, its tests are found only when it is where the search begins.
    top = ("-t", ".") if folder and "__init__.py" in files.listed(folder) else ()
    return ("python3", "-m", "unittest", "discover", *where, *top), files.test_files[0]


def _script(name: str) -> Callable[[ProjectFiles], Found]:
    def ask(files: ProjectFiles) -> Found:
        said = files.scripts.get(name)
        if not isinstance(said, str) or "no test specified" in said:
            return None
        run = (files.package_manager, name) if name == "test" else (files.package_manager, "run", name)
        return run, "package.json"

    return ask


def _named(name: str, *command: str) -> Callable[[ProjectFiles], Found]:
    return lambda files: (command, name) if name in files.names else None


def _make(target: str) -> Callable[[ProjectFiles], Found]:
    def ask(files: ProjectFiles) -> Found:
        for name in ("GNUmakefile", "makefile", "Makefile"):
            if re.search(_TARGET.format(re.escape(target)), files.text(name), re.MULTILINE):
                return ("make", target), name
        return None

    return ask


# Lint


def _ruff(files: ProjectFiles) -> Found:
    command = ("ruff", "check", ".")
    named = next((name for name in ("ruff.toml", ".ruff.toml") if name in files.names), "")
    return (command, named or "pyproject.toml") if named or files.configures("ruff") else None


def _eslint(files: ProjectFiles) -> Found:
    for name in sorted(files.names):
        if name.startswith((".eslintrc", "eslint.config.")):
            return ("npx", "--no-install", "eslint", "."), name
    return None


def _mypy(files: ProjectFiles) -> Found:
    if files.configures("mypy"):
        return ("mypy", "."), "pyproject.toml"
    for name, section in (("mypy.ini", "[mypy]"), (".mypy.ini", "[mypy]"), ("setup.cfg", "[mypy]")):
        if section in files.text(name):
            return ("mypy", "."), name
    return None


RULES: dict[str, tuple[Callable[[ProjectFiles], Found], ...]] = {
    "tests": (
        _pytest, _unittest, _script("test"), _named("Cargo.toml", "cargo", "test"),
        _named("go.mod", "go", "test", "./..."), _make("test"), _named("tox.ini", "tox"),
        _named("noxfile.py", "nox"),
    ),
    "lint": (
        _ruff, _script("lint"), _eslint, _mypy, _named("Cargo.toml", "cargo", "clippy"),
        _named("go.mod", "go", "vet", "./..."), _make("lint"),
    ),
}  # fmt: skip
