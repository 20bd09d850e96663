"""The project's own commands for its tests and its lint, told by the files that say so.

Gates named `tests` and `lint` may leave the command to the project. Files are read, and nothing is run: what
was found is part of the plan, shown and asked for like any command that a recipe names itself.

Rules
* One table, asked from top to bottom; the first row whose files say so gives the command. What a project
  configures for itself stands before what could only be guessed from its folders.
* Programs of Python are taken from the project's own virtual environment where it has one, since that is
  where what it needs is installed.
* tox and nox come last: they install what they need first, and a gate has no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from fanfold.recipe.own_files import ProjectFiles
from fanfold.recipe.surroundings import OwnCommand

Found: TypeAlias = tuple[Sequence[str], str] | None
"""A command and the file that says so."""
Rule: TypeAlias = Callable[[ProjectFiles], Found]


def find_own_command(folder: Path, gate: str) -> OwnCommand | None:
    """The project's own command for a gate, `tests` or `lint`."""
    files = ProjectFiles(folder)
    for ask in RULES[gate]:
        found = ask(files)
        if found is not None:
            return OwnCommand(tuple(found[0]), found[1])
    return None


# Tests


def _pytest_by(files: ProjectFiles, name: str) -> Found:
    return ((files.python, "-m", "pytest", "-q"), name) if name else None


def _configured_pytest(files: ProjectFiles) -> Found:
    if files.configures("pytest"):
        return _pytest_by(files, "pyproject.toml")
    whole = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "conftest.py")
    named = next((name for name in whole if name in files.names), "")
    named = named or files.with_section("[pytest]", "tox.ini")
    return _pytest_by(files, named or files.with_section("[tool:pytest]", "setup.cfg"))


def _pytest(files: ProjectFiles) -> Found:
    for folder in ("tests", "test"):
        if folder in files.names and "conftest.py" in files.listed(folder):
            return _pytest_by(files, f"{folder}/conftest.py")
    plain = next((path for path in files.test_files if not files.is_unittest(path)), "")
    return _pytest_by(files, files.needs_pytest or plain)


def _django(files: ProjectFiles) -> Found:
    told = "django" in files.text("manage.py")
    return ((files.python, "manage.py", "test"), "manage.py") if told else None


def _unittest(files: ProjectFiles) -> Found:
    if not files.test_files:
        return None
    first = files.test_files[0]
    # The search begins at the outermost package, and where the first file stands if that is in none: it goes
    # down into packages only.
    start = folder = first.rpartition("/")[0]
    while folder and files.is_package(folder):
        start, folder = folder, folder.rpartition("/")[0]
    where = ("-s", start) if start else ()
    top = ("-t", folder or ".") if start and files.is_package(start) else ()
    return (files.python, "-m", "unittest", "discover", *where, *top, *_pattern(files.test_files)), first


def _pattern(paths: Sequence[str]) -> tuple[str, ...]:
    """What files of tests are called, where that is not `test*.py`: others are not looked into, and nothing
    found would pass."""
    usual = [path.rpartition("/")[2].startswith("test") for path in paths]
    if all(usual):
        return ()
    return ("-p", "*test*.py" if any(usual) else "*_test.py")


def _script(name: str) -> Rule:
    def ask(files: ProjectFiles) -> Found:
        said = files.script(name)
        if not said or "no test specified" in said:
            return None
        # `bun test` is a test runner of its own, whatever the script says.
        plain = name == "test" and files.package_manager != "bun"
        return (files.package_manager, *(() if plain else ("run",)), name), "package.json"

    return ask


def _named(name: str, *command: str) -> Rule:
    return lambda files: (command, name) if name in files.names else None


def _make(target: str) -> Rule:
    return lambda files: (("make", target), files.makefile) if target in files.targets else None


def _tox(files: ProjectFiles) -> Found:
    named = "pyproject.toml" if files.configures("tox") else ""
    named = named or ("tox.toml" if "tox.toml" in files.names else "")
    named = named or files.with_section("[tox", "tox.ini") or files.with_section("[testenv", "tox.ini")
    named = named or files.with_section("[tox:tox]", "setup.cfg")
    return ((files.program("tox"),), named) if named else None


def _nox(files: ProjectFiles) -> Found:
    return ((files.program("nox"),), "noxfile.py") if "noxfile.py" in files.names else None


# Lint


def _ruff(files: ProjectFiles) -> Found:
    named = next((name for name in ("ruff.toml", ".ruff.toml") if name in files.names), "")
    named = named or ("pyproject.toml" if files.configures("ruff") else "")
    return ((files.program("ruff"), "check", "."), named) if named else None


def _eslint(files: ProjectFiles) -> Found:
    named = next(
        (name for name in sorted(files.names) if name.startswith((".eslintrc", "eslint.config."))), ""
    )
    named = named or ("package.json" if "eslintConfig" in files.package else "")
    if not named:
        return None
    if "eslint" in files.listed("node_modules/.bin"):
        return ("node_modules/.bin/eslint", "."), named
    # Without --offline it asks for minutes who is not there: a gate has no network.
    return ("npx", "--no-install", "--offline", "eslint", "."), named


def _flake8(files: ProjectFiles) -> Found:
    named = files.with_section("[flake8]", ".flake8", "setup.cfg", "tox.ini")
    return ((files.program("flake8"),), named) if named else None


def _mypy(files: ProjectFiles) -> Found:
    named = "pyproject.toml" if files.configures("mypy") else ""
    named = named or files.with_section("[mypy", "mypy.ini", ".mypy.ini", "setup.cfg")
    return ((files.program("mypy"), "."), named) if named else None


RULES: dict[str, tuple[Rule, ...]] = {
    "tests": (
        _configured_pytest, _script("test"), _named("Cargo.toml", "cargo", "test"),
        _named("go.mod", "go", "test", "./..."), _make("test"), _django, _pytest, _unittest, _make("check"),
        _tox, _nox,
    ),
    "lint": (
        _ruff, _script("lint"), _eslint, _flake8, _mypy, _named("Cargo.toml", "cargo", "clippy"),
        _named("go.mod", "go", "vet", "./..."), _make("lint"),
    ),
}  # fmt: skip
