"""The project's own commands for tests and lint, from its configuration files.

Gates named `tests` and `lint` can use the project's command. Files are only read, and nothing is run. The
command is part of the plan, and it is shown and needs permission like any command of a recipe.

Rules
* One table is checked from top to bottom; the first matching row determines the command. Configured commands
  come before guesses from folders.
* Python programs come from the project's own virtual environment if it has one, because its dependencies are
  installed there.
* tox and nox come last: they first install dependencies, and a gate has no network.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from fanfold.language.draft import OwnCommand
from fanfold.project_files import list_beneath, read_beneath

# -----------------------------------------------------------------------------------------------------------
# The files of a project, as far as they concern tests and lint.
#
# Files of a project may be hostile. They are read beneath it, up to a size limit, with linear work. A file
# that cannot be read is ignored.

MAX_BYTES = 1024 * 1024
MAX_TEST_FILES = 50
MAX_TEST_FOLDERS = 100
MAX_TEST_DEPTH = 3
_TEST_FILE = r"test_\w*\.py|\w+_test\.py"
_TEST_FOLDERS = ("tests", "test")
_UNITTEST = r"(?m)^[ \t]*(?:import|from)[ \t]+unittest\b"
_NEEDS_PYTEST = r"(?m)(?:^|[\"'])pytest(?=[\s\"'=<>~!\[;]|$)"
_REQUIREMENTS = r"[\w-]*requirements[\w-]*\.txt|pyproject\.toml|setup\.cfg|setup\.py|Pipfile"
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
"""In the order in which make searches for its file."""


class ProjectFiles:
    """The files in one project's folder, and in the usual sub-folders for tests."""

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
        """Return a file's text; empty if it is missing, too large or not text."""
        if "/" not in name and name not in self.names:
            return ""
        try:
            return read_beneath(self._folder, self._folder / name, MAX_BYTES).decode("utf-8-sig", "replace")
        except OSError:
            return ""

    # Python

    def program(self, name: str) -> str:
        """Return a program of the project's own virtual environment if it has one, else the name for PATH."""
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
        """Return whether pyproject.toml has `[tool.<tool>]`."""
        tools = self.pyproject.get("tool")
        return isinstance(tools, dict) and tool in tools

    def with_section(self, section: str, *names: str) -> str:
        """Return the first of these files with a section whose header starts like this."""
        return next((name for name in names if f"\n{section}" in f"\n{self.text(name)}"), "")

    @cached_property
    def needs_pytest(self) -> str:
        """Return the file that lists pytest as a dependency."""
        named = sorted(name for name in self.names if re.fullmatch(_REQUIREMENTS, name))
        return next((name for name in named if re.search(_NEEDS_PYTEST, self.text(name))), "")

    @cached_property
    def test_files(self) -> list[str]:
        """Python files with tests: in the project's folder, in its test folders and in packages."""
        found: list[str] = []
        for folder in self._test_folders():
            inside = self.names if not folder else self.listed(folder)
            beneath = f"{folder}/" if folder else ""
            found += [f"{beneath}{name}" for name in sorted(inside) if re.fullmatch(_TEST_FILE, name)]
            if len(found) >= MAX_TEST_FILES:
                break
        return found[:MAX_TEST_FILES]

    def is_unittest(self, path: str) -> bool:
        return re.search(_UNITTEST, self.text(path)) is not None

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
        """The content of package.json."""
        try:
            package = json.loads(self.text("package.json") or "{}")
        except (ValueError, RecursionError):
            return {}
        return package if isinstance(package, dict) else {}

    def script(self, name: str) -> str:
        """Return a script of package.json."""
        scripts = self.package.get("scripts")
        script = scripts.get(name) if isinstance(scripts, dict) else None
        return script.strip() if isinstance(script, str) else ""

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
        """The targets of the makefile."""
        found: set[str] = set()
        for line in self.text(self.makefile).splitlines() if self.makefile else ():
            head, colon, rest = line.partition(":")
            if colon and not line[0].isspace() and not re.search(r"[=#]", head) and rest[:1] != "=":
                found.update(head.split())
        return frozenset(found)


Found: TypeAlias = tuple[Sequence[str], str] | None
"""A command and the file that defines it."""
Rule: TypeAlias = Callable[[ProjectFiles], Found]


def find_own_command(folder: Path, gate: str) -> OwnCommand | None:
    """Return the project's own command for a gate, `tests` or `lint`."""
    files = ProjectFiles(folder)
    for ask in RULES[gate]:
        if (found := ask(files)) is not None:
            return OwnCommand(tuple(found[0]), found[1])
    return None


# Tests


def _program(
    *command: str, names: Sequence[str] = (), tool: str = "", sections: Sequence[Sequence[str]] = ()
) -> Rule:
    """Return the rule for a program that a file of the project configures.

    The file is one of `names`, pyproject.toml with `[tool.<tool>]`, or a file with a section: the header of
    the section, and the files that can have it.
    """

    def ask(files: ProjectFiles) -> Found:
        name = next((name for name in names if name in files.names), "")
        if not name and tool and files.configures(tool):
            name = "pyproject.toml"
        name = name or next(filter(None, (files.with_section(*section) for section in sections)), "")
        return (_installed(files, command), name) if name else None

    return ask


def _installed(files: ProjectFiles, command: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the program of the project's own virtual environment if it has one."""
    program, *arguments = command
    return (files.python if program == "python" else files.program(program), *arguments)


PYTEST = ("python", "-m", "pytest", "-q")


def _pytest(files: ProjectFiles) -> Found:
    for folder in ("tests", "test"):
        if folder in files.names and "conftest.py" in files.listed(folder):
            return _installed(files, PYTEST), f"{folder}/conftest.py"
    plain = (path for path in files.test_files if not files.is_unittest(path))
    name = files.needs_pytest or next(plain, "")
    return (_installed(files, PYTEST), name) if name else None


def _django(files: ProjectFiles) -> Found:
    is_django = "django" in files.text("manage.py")
    return ((files.python, "manage.py", "test"), "manage.py") if is_django else None


def _unittest(files: ProjectFiles) -> Found:
    if not files.test_files:
        return None
    first = files.test_files[0]
    # The search starts at the outermost package, or in the first file's folder if that is not a package,
    # because it enters only packages.
    start = folder = first.rpartition("/")[0]
    while folder and files.is_package(folder):
        start, folder = folder, folder.rpartition("/")[0]
    where = ("-s", start) if start else ()
    top = ("-t", folder or ".") if start and files.is_package(start) else ()
    return (files.python, "-m", "unittest", "discover", *where, *top, *_pattern(files.test_files)), first


def _pattern(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the option for names of test files other than `test*.py`.

    Otherwise those would not be found, and an empty run would pass.
    """
    usual = [path.rpartition("/")[2].startswith("test") for path in paths]
    if all(usual):
        return ()
    return ("-p", "*test*.py" if any(usual) else "*_test.py")


def _script(name: str) -> Rule:
    def ask(files: ProjectFiles) -> Found:
        if not (script := files.script(name)) or "no test specified" in script:
            return None
        # `bun test` is its own test runner, whatever the script contains.
        plain = name == "test" and files.package_manager != "bun"
        return (files.package_manager, *(() if plain else ("run",)), name), "package.json"

    return ask


def _named(name: str, *command: str) -> Rule:
    return lambda files: (command, name) if name in files.names else None


def _make(target: str) -> Rule:
    return lambda files: (("make", target), files.makefile) if target in files.targets else None


def _eslint(files: ProjectFiles) -> Found:
    named = next(
        (name for name in sorted(files.names) if name.startswith((".eslintrc", "eslint.config."))), ""
    )
    named = named or ("package.json" if "eslintConfig" in files.package else "")
    if not named:
        return None
    if "eslint" in files.listed("node_modules/.bin"):
        return ("node_modules/.bin/eslint", "."), named
    # Without --offline it waits minutes for the registry: a gate has no network.
    return ("npx", "--no-install", "--offline", "eslint", "."), named


RULES: dict[str, tuple[Rule, ...]] = {
    "tests": (
        _program(
            *PYTEST,
            names=("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "conftest.py"),
            tool="pytest",
            sections=(("[pytest]", "tox.ini"), ("[tool:pytest]", "setup.cfg")),
        ),
        _script("test"),
        _named("Cargo.toml", "cargo", "test"),
        _named("go.mod", "go", "test", "./..."),
        _make("test"),
        _django,
        _pytest,
        _unittest,
        _make("check"),
        _program(
            "tox",
            names=("tox.toml",),
            tool="tox",
            sections=(("[tox", "tox.ini"), ("[testenv", "tox.ini"), ("[tox:tox]", "setup.cfg")),
        ),
        _program("nox", names=("noxfile.py",)),
    ),
    "lint": (
        _program("ruff", "check", ".", names=("ruff.toml", ".ruff.toml"), tool="ruff"),
        _script("lint"),
        _eslint,
        _program("flake8", sections=(("[flake8]", ".flake8", "setup.cfg", "tox.ini"),)),
        _program("mypy", ".", tool="mypy", sections=(("[mypy", "mypy.ini", ".mypy.ini", "setup.cfg"),)),
        _named("Cargo.toml", "cargo", "clippy"),
        _named("go.mod", "go", "vet", "./..."),
        _make("lint"),
    ),
}
