"""Whatever command a message suggests exists, with its options, and says everything that it needs.

`test_working_hints.py` and `test_executed_hints.py` carry such commands out where they are suggested.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click
import pytest

from fanfold.cli.main import COMMANDS
from tools.tidy import ROOT

SOURCE = ROOT / "src" / "fanfold"
SUGGESTED = re.compile(r"(?<![\w/.-])fanfold ([a-z]+)((?: (?:--?[a-z][a-z-]*(?:=\S+)?|[\w@./{}…\[\]|=-]+))*)")
OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z-]*)")
NO_COMMAND = {"function", "leases", "look", "act"}
"""Names of threads."""
COMMON = {"--json", "--project", "--no-color", "--help"}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module but its docstrings, with `X` for what is put in."""
    module = ast.parse(file.read_text("utf-8"))
    said: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            said |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(part) for part in parts)
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.lineno, node.value


def suggestions() -> Iterator[tuple[str, str, str]]:
    """Where a command is suggested, which, and with what after it."""
    for file in sorted(SOURCE.rglob("*.py")):
        for line, text in texts(file):
            for found in SUGGESTED.finditer(text):
                yield f"{file.relative_to(SOURCE)}:{line}", found[1], found[2]


FOUND = [one for one in suggestions() if one[1] not in NO_COMMAND]


def test_there_are_many():
    assert len(FOUND) > 60


LITERAL = {"research-and-brief", "last", "bash", "zsh", "fish"}
"""Words that are not put in and still say what is meant."""
NO_SUGGESTION = {"runtime/operations/system/init.py run", "runtime/steps/phases/folding.py query"}
"""Texts about a command, for people who know it."""
PLACEHOLDER = re.compile(r"(?<![\w-])[A-Z]{2,}(?![\w-])")


@pytest.mark.parametrize(("where", "name", "rest"), FOUND, ids=[f"{w} {n}" for w, n, _ in FOUND])
def test_a_suggested_command_has_all_that_it_needs_and_nothing_to_fill_in(where: str, name: str, rest: str):
    if f"{where.partition(':')[0]} {name}" in NO_SUGGESTION:
        return
    command = getattr(import_module(COMMANDS[name]), f"{name}_command")
    needed = [one for one in command.params if isinstance(one, click.Argument) and one.required]
    given = list(takewhile(lambda word: "X" in word or word in LITERAL, rest.split()))
    assert len(given) >= len(needed) or "--help" in rest, (
        f"{where}: {name}{rest} lacks {needed[len(given) :]}"
    )
    assert not PLACEHOLDER.search(rest.replace("X", "")), f"{where}: {name}{rest}"


@pytest.mark.parametrize(("where", "name", "rest"), FOUND, ids=[f"{w} {n}" for w, n, _ in FOUND])
def test_a_suggested_command_exists_with_its_options(where: str, name: str, rest: str):
    assert name in COMMANDS, where
    command = getattr(import_module(COMMANDS[name]), f"{name}_command")
    known = {
        opt
        for one in command.params
        if isinstance(one, click.Option)
        for opt in (*one.opts, *one.secondary_opts)
    }
    assert set(OPTION.findall(rest)) <= known | COMMON, where
