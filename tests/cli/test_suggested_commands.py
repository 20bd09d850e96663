"""Whatever command a message suggests exists, with the options it is suggested with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from fanfold.cli.main import COMMANDS
from tools.tidy import ROOT

SOURCE = ROOT / "src" / "fanfold"
SUGGESTED = re.compile(r"(?<![\w/.-])fanfold ([a-z]+)((?: (?:--?[a-z][a-z-]*(?:=\S+)?|[\w@./{}…\[\]|=-]+))*)")
OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z-]*)")
NO_COMMAND = {"function", "leases"}
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
