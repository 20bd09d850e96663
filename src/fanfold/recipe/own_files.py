"""What the files of a project say about how it is tested and linted.

Files of a project may be hostile: they are read beneath it, up to a size, with work that grows with that size
alone, and what cannot be read says nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from fanfold.trust.project_files import list_beneath, read_beneath

MAX_BYTES = 1024 * 1024
MAX_TEST_FILES = 50
MAX_TEST_FOLDERS = 100
MAX_TEST_DEPTH = 3
_TEST_FILE = re.compile(r"test_\w*\.py|\w+_test\.py")
_TEST_FOLDERS = ("tests", "test")
_UNITTEST = re.compile(r"^[ \t]*(?:import|from)[ \t]+unittest\b", re.MULTILINE)
_NEEDS_PYTEST = re.compile(r"(?:^|[\"'])pytest(?=[\s\"'=<>~!\[;]|$)", re.MULTILINE)
_REQUIREMENTS = re.compile(r"[\w-]*requirements[\w-]*\.txt|pyproject\.toml|setup\.cfg|setup\.py|Pipfile")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
"""In the order in which make looks for its one."""


class ProjectFiles:
    """The files in one project's folder, and in the few below it that tests usually stand in."""

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
            return read_beneath(self._folder, self._folder / name, MAX_BYTES).decode("utf-8-sig", "replace")
        except OSError:
            return ""

    # Python

    def program(self, name: str) -> str:
        """A program of the project's own virtual environment if it has one, else whatever PATH finds."""
        for environment in (".venv", "venv"):
            if environment in self.names and name in self.listed(f"{environment}/bin"):
                return f"{environment}/bin/{name}"
        return name

    @cached_property
    def python(self) -> str:
        own = self.program("python")
        return own if "/" in own else "python3"

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

    def with_section(self, section: str, *names: str) -> str:
        """The first of these files that has a section whose head begins so."""
        return next((name for name in names if f"\n{section}" in f"\n{self.text(name)}"), "")

    @cached_property
    def needs_pytest(self) -> str:
        """The file that names pytest among what the project needs."""
        named = sorted(name for name in self.names if _REQUIREMENTS.fullmatch(name))
        return next((name for name in named if _NEEDS_PYTEST.search(self.text(name))), "")

    @cached_property
    def test_files(self) -> list[str]:
        """Python files with tests: in the project's folder, in its folders of tests, in those of packages."""
        found: list[str] = []
        for folder in self._test_folders():
            inside = self.names if not folder else self.listed(folder)
            beneath = f"{folder}/" if folder else ""
            found += [f"{beneath}{name}" for name in sorted(inside) if _TEST_FILE.fullmatch(name)]
            if len(found) >= MAX_TEST_FILES:
                break
        return found[:MAX_TEST_FILES]

    def is_unittest(self, path: str) -> bool:
        return _UNITTEST.search(self.text(path)) is not None

    def is_package(self, folder: str) -> bool:
        return "__init__.py" in self.listed(folder)

    def _test_folders(self) -> Iterator[str]:
        yield ""
        left = MAX_TEST_FOLDERS
        waiting = [(folder, 1) for folder in _TEST_FOLDERS if folder in self.names]
        inside = [*sorted(self.names), *(f"src/{name}" for name in self.listed("src"))]
        packages = [name for name in inside if "." not in name and name not in _TEST_FOLDERS]
        for package in packages[:MAX_TEST_FOLDERS]:
            listed = self.listed(package)
            if "__init__.py" in listed:
                waiting += [(f"{package}/{folder}", 1) for folder in _TEST_FOLDERS if folder in listed]
        while waiting and left:
            folder, depth = waiting.pop(0)
            yield folder
            left -= 1
            if depth < MAX_TEST_DEPTH:
                names = [name for name in self.listed(folder) if "." not in name and name != "__pycache__"]
                waiting += [(f"{folder}/{name}", depth + 1) for name in names]

    # Others

    @cached_property
    def package(self) -> dict[str, Any]:
        """What package.json says."""
        try:
            package = json.loads(self.text("package.json") or "{}")
        except (ValueError, RecursionError):
            return {}
        return package if isinstance(package, dict) else {}

    def script(self, name: str) -> str:
        """A script of package.json."""
        scripts = self.package.get("scripts")
        said = scripts.get(name) if isinstance(scripts, dict) else None
        return said.strip() if isinstance(said, str) else ""

    @property
    def package_manager(self) -> str:
        named = str(self.package.get("packageManager") or "").partition("@")[0]
        if named in ("npm", "pnpm", "yarn", "bun"):
            return named
        locks = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
        return next((manager for lock, manager in locks.items() if lock in self.names), "npm")

    @cached_property
    def makefile(self) -> str:
        """The file that make reads."""
        return next((name for name in MAKEFILES if name in self.names), "")

    @cached_property
    def targets(self) -> frozenset[str]:
        """What can be made."""
        found: set[str] = set()
        for line in self.text(self.makefile).splitlines() if self.makefile else ():
            head, colon, rest = line.partition(":")
            if colon and not line[0].isspace() and not re.search(r"[=#]", head) and rest[:1] != "=":
                found.update(head.split())
        return frozenset(found)
