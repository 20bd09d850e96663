"""House rules that no off-the-shelf linter knows, as functions from a file to its findings.

`tests/test_tidy.py` applies them to every file of the repository, and proves on a bad snippet that each
of them can fail. A rule looks at one file and says nothing about files it does not govern.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from tools import set_order

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 800
MAX_TEST_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MIN_FILE_LINES = 60
MAX_FOLDERS = 2
SHORT_FILES = {
    "src/fanfold/__main__.py": "the entry of python -m fanfold",
    "src/fanfold/steps/function_worker.py": "the program of a process of its own",
}
"""Modules that may be short, and why."""

BANNED_IN_KERNEL = {
    "__import__": "imports are static",
    "breakpoint": "no debugger left behind",
    "compile": "plans are data",
    "delattr": "state changes are written out",
    "eval": "plans are data",
    "exec": "plans are data",
    "exit": "only a surface ends the process",
    "globals": "the kernel has no hidden state",
    "hash": "differs between processes for text",
    "id": "differs between processes",
    "input": "the kernel reads events, nothing else",
    "locals": "state has names",
    "open": "the kernel touches no files",
    "print": "the kernel returns commands, nothing else",
    "quit": "only a surface ends the process",
    "setattr": "state changes are written out",
    "vars": "state has names",
}
KERNEL_LIBRARIES = frozenset({"fanfold", "msgspec"})

VAGUE_NAMES = frozenset(
    {"common", "core", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)

# One letter of each word is in brackets, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")
REGISTRY_HOSTS = re.compile(
    r"\b(?:py[p]i\.org|python[h]osted\.org|npm[j]s\.(?:org|com)|deb[i]an\.org|crat[e]s\.io|dock[e]r\.io|ghc[r]\.io)\b"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:wo[r]k|ro[o]t|ho[m]e|Us[e]rs)/[\w.]")
OF_REAL_PROGRAMS = ("tests/real_agents/", "tests/local/", "tests/agents/stand_in.py")
"""Tests of programs and models with time-outs of their own, and a program that cannot import anything."""
_SECONDS = r"(?:[5-9]|[1-9]\d|[12]\d\d)(?:\.\d+)?\b(?!_)"
IMPATIENT = re.compile(
    rf"(?:\btimeout=|wait_for\(.*, |asyncio\.timeout\(|\.wait\(|monotonic\(\) \+ ){_SECONDS}"
)
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[^\]]*\])?"
    r"|pyright:\s*ignore(?:\[[^\]]*\])?"
    r"|noqa(?::\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?"
    r"|pragma:\s*no\s+(?:cover|branch))(?P<why>.*)"
)
REASON = re.compile(r"[A-Za-z]{2,}\W+[A-Za-z]{2,}")


@dataclass(frozen=True)
class Source:
    """A text file: its path from the root of the repository, with slashes, and what it holds."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_kernel(self) -> bool:
        return self.is_python and self.path.startswith("src/fanfold/kernel/")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


Rule: TypeAlias = Callable[[Source], Iterator[Finding]]
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    """Have `check` applied to every file."""
    RULES.append(check)
    return check


def sources(root: Path = ROOT) -> Iterator[Source]:
    """Every text file that is tracked or about to be."""
    listing = subprocess.run(
        # The owner of a checkout made by someone else is not what these rules are about.
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in sorted(set(filter(None, listing.split("\0")))):
        file = root / name
        if file.is_symlink() or not file.is_file():  # deleted but not yet committed
            continue
        data = file.read_bytes()
        if b"\0" not in data:
            yield Source(name, data.decode("utf-8"))


@rule
def file_length(source: Source) -> Iterator[Finding]:
    limit = MAX_TEST_FILE_LINES if source.is_test else MAX_FILE_LINES
    count = source.text.count("\n")
    if source.is_python and count > limit:
        yield Finding(source.path, limit + 1, f"{count} lines, at most {limit}: split the file")


@rule
def short_file(source: Source) -> Iterator[Finding]:
    """A module that is read together with another belongs into it."""
    path = PurePosixPath(source.path)
    if not source.is_python or not source.path.startswith("src/fanfold/") or path.name == "__init__.py":
        return
    count = source.text.count("\n")
    if count < MIN_FILE_LINES and source.path not in SHORT_FILES:
        yield Finding(source.path, 1, f"{count} lines, at least {MIN_FILE_LINES}: merge it with its reader")
    if len(path.parts) > MAX_FOLDERS + 3:
        yield Finding(source.path, 1, f"more than {MAX_FOLDERS} folders below the package: move it up")


@rule
def function_length(source: Source) -> Iterator[Finding]:
    if not source.is_python or source.is_test:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > MAX_FUNCTION_LINES:
                message = f"{node.name}() has {count} lines, at most {MAX_FUNCTION_LINES}: split it"
                yield Finding(source.path, node.lineno, message)


@rule
def module_docstring(source: Source) -> Iterator[Finding]:
    if source.is_python and not source.is_test and ast.get_docstring(source.tree) is None:
        yield Finding(source.path, 1, "no docstring: say in a sentence what this module is for")


@rule
def vague_name(source: Source) -> Iterator[Finding]:
    if not source.is_python:
        return
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if part in VAGUE_NAMES:
            yield Finding(source.path, 1, f'"{part}" names no behaviour: what is inside?')


@rule
def unexplained_silence(source: Source) -> Iterator[Finding]:
    """A silenced checker is a decision, and a decision has a reason."""
    if not source.is_python:
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        silenced = SILENCED.search(token.string)
        if silenced and not REASON.search(silenced["why"]):
            yield Finding(source.path, token.start[0], f'"{token.string}" does not say why')


@rule
def kernel_builtins(source: Source) -> Iterator[Finding]:
    if source.is_kernel:
        yield from _banned_names(source, source.tree, frozenset())


def _banned_names(source: Source, scope: ast.AST, shadowed: frozenset[str]) -> Iterator[Finding]:
    """Uses of banned builtins under `scope`, except where a parameter or variable took their name."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
            yield from _banned_names(source, node, shadowed | _bound_in(node))
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            reason = BANNED_IN_KERNEL.get(node.id)
            if reason and node.id not in shadowed:
                yield Finding(source.path, node.lineno, f"{node.id}() in the kernel: {reason}")
        yield from _banned_names(source, node, shadowed)


def _bound_in(function: ast.AST) -> frozenset[str]:
    stores = (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    arguments = (n.arg for n in ast.walk(function) if isinstance(n, ast.arg))
    return frozenset([*stores, *arguments])


@rule
def kernel_async(source: Source) -> Iterator[Finding]:
    if not source.is_kernel:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield Finding(source.path, node.lineno, "async in the kernel: hosts wait, the kernel decides")


@rule
def kernel_libraries(source: Source) -> Iterator[Finding]:
    """The import contracts forbid parts of the standard library; this forbids everyone else's."""
    if not source.is_kernel:
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case _:
                continue
        for module in modules:
            package = module.partition(".")[0]
            if package not in sys.stdlib_module_names | KERNEL_LIBRARIES:
                yield Finding(source.path, node.lineno, f"the kernel may not import {package}")


@rule
def kernel_set_order(source: Source) -> Iterator[Finding]:
    if not source.is_kernel:
        return
    for line, what in set_order.walks_over_sets(source.tree, _kernel_declarations()):
        yield Finding(source.path, line, f"{what}, whose order differs between processes: sort it")


@cache
def _kernel_declarations() -> set_order.Declarations:
    modules = sorted((ROOT / "src/fanfold/kernel").rglob("*.py"))
    return set_order.declarations(ast.parse(module.read_text("utf-8")) for module in modules)


@rule
def unfinished(source: Source) -> Iterator[Finding]:
    yield from _matches(source, UNFINISHED, "do it, or write an issue")


@rule
def registry_host(source: Source) -> Iterator[Finding]:
    yield from _matches(source, REGISTRY_HOSTS, "name packages, not the host they come from")


@rule
def machine_path(source: Source) -> Iterator[Finding]:
    yield from _matches(source, MACHINE_PATHS, "a path of one machine means nothing on another")


def _matches(source: Source, pattern: re.Pattern[str], advice: str) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        for match in pattern.finditer(line):
            yield Finding(source.path, number, f'"{match[0]}": {advice}')


@rule
def impatience(source: Source) -> Iterator[Finding]:
    """What a test waits for comes late on a busy machine; only what is meant to run out may be short."""
    if source.is_python and source.is_test and not source.path.startswith(OF_REAL_PROGRAMS):
        yield from _matches(source, IMPATIENT, "wait for PATIENCE_S of tests/work.py")


@rule
def final_newline(source: Source) -> Iterator[Finding]:
    if source.text and not source.text.endswith("\n"):
        yield Finding(source.path, source.text.count("\n") + 1, "no newline at the end of the file")
