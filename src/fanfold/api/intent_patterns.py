"""Decide by text patterns alone whether a request suits a workflow: no model, no clock, no project.

A workflow suits work in several phases, or over many parts. For everything else one agent is better and
cheaper. So a request only suits a workflow if a pattern matches.

Rules
* There is one table (`templates/intents.toml`), read from top to bottom. The first matching row decides, and
  gives the reason.
* Rows for one thing come before rows for many: "fix all errors in this file" is one file.
* Only an explicit request for several agents or a workflow comes before that.
* Rows match how requests are phrased, not their subjects. They are tested with requests that were labelled
  before any row was written (`tests/planning`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.api.display import RunUsage
from fanfold.language.project_commands import find_own_command
from fanfold.language.terminal import one_line
from fanfold.workspace.ignored import CACHES, DEPENDENCIES

MAX_CHARS = 4_000
"""Limit for the examined text: the beginning of a request shows its intent."""

Kind: TypeAlias = Literal["audit", "migrate", "research", "review", "build", "general"]


class IntentPattern(Struct, frozen=True):
    """One pattern: what a match means, and why."""

    name: str
    suitable: bool
    reason: str
    pattern: str


class Suitability(Struct, frozen=True):
    """Whether a request suits a workflow of several agents."""

    suitable: bool
    reason: str
    by: Literal["model", "patterns"]
    pattern: str = ""
    """The name of the row that decided, if patterns answered."""
    note: str = ""
    """Why the model was not asked, or gave no answer."""
    usage: RunUsage | None = None
    """The usage of the model's answer."""


class _Table(Struct, frozen=True):
    polite: str
    patterns: list[IntentPattern]
    kinds: dict[Kind, str]


@cache
def _table() -> _Table:
    """Return the patterns of `templates/intents.toml`, in which the names of parts are replaced."""
    given = tomllib.loads((Path(__file__).parent / "templates" / "intents.toml").read_text("utf-8"))
    parts = {f"<{name}>": "".join(texts) for name, texts in given["parts"].items()}

    def expression(texts: Iterable[str]) -> str:
        text = "".join(texts)
        for name, part in parts.items():
            text = text.replace(name, part)
        return text

    rows = [IntentPattern(**row | {"pattern": expression(row["pattern"])}) for row in given["patterns"]]
    kinds = {kind: expression(texts) for kind, texts in given["kinds"].items()}
    return _Table(expression(given["polite"]), rows, kinds)


def patterns() -> list[IntentPattern]:
    """Return the table, from top to bottom."""
    return _table().patterns


def judge(request: str) -> Suitability:
    """Return whether a request suits a workflow, and the row of the table that decided.

    >>> judge("Audit this function").pattern
    'one place'
    >>> judge("Migrate all 500 tests to pytest").suitable
    True
    """
    text = re.sub(_table().polite, "", _even(request)).lower()
    for row in patterns():
        if _compiled(row.pattern).search(text):
            return Suitability(row.suitable, row.reason, "patterns", row.name)
    reason = "the request mentions no parts or phases"
    return Suitability(False, reason, "patterns", "no sign")


def kind_of(request: str) -> Kind:
    """Return the kind of work: it selects the template of a plan without a model."""
    text = _even(request).lower()
    for kind, pattern in _table().kinds.items():
        if _compiled(pattern).search(text):
            return kind
    return "general"


def _even(request: str) -> str:
    """Return the request as one line, with plain apostrophes."""
    return " ".join(request[:MAX_CHARS].replace("\u2019", "'").split())


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# -----------------------------------------------------------------------------------------------------------
# The shape of a project for the planner: languages, size, folders, tests. Names only, never contents
#
# Rules
# * Files are counted by their names. Only files that may define the test command are read
#   (`language.project_commands`). Only the command is passed on.
# * The search is bounded: a tree that is too large is reported as such.
# * A project may be hostile: links are not followed, and names are shown as text.

MAX_FILES = 20_000
MAX_ENTERED = 5_000
"""Maximum of visited folders, at any depth."""
MAX_FOLDERS = 40
"""Maximum of named top-level folders."""
MAX_LANGUAGES = 8
NAME_CHARS = 60

_LANGUAGES = {
    "py": "Python", "js": "JavaScript", "jsx": "JavaScript", "mjs": "JavaScript", "ts": "TypeScript",
    "tsx": "TypeScript", "rs": "Rust", "go": "Go", "java": "Java", "kt": "Kotlin", "c": "C", "h": "C",
    "cpp": "C++", "cc": "C++", "hpp": "C++", "cs": "C#", "rb": "Ruby", "php": "PHP", "swift": "Swift",
    "scala": "Scala", "sh": "Shell", "sql": "SQL", "vue": "Vue", "svelte": "Svelte", "ex": "Elixir",
    "md": "Markdown", "rst": "reStructuredText", "html": "HTML", "css": "CSS",
}  # fmt: skip


class ProjectShape(Struct, frozen=True):
    """A short description of a project."""

    files: int
    whole: bool
    """False: there are more files than were counted."""
    languages: dict[str, int]
    """Number of files per language, most frequent first."""
    folders: tuple[str, ...]
    """The top-level folders."""
    tests: str
    """The project's own test command; empty if none is known."""
    lint: str

    def described(self) -> str:
        """Return the description for a prompt."""
        many = f"{self.files} files" if self.whole else f"more than {self.files} files"
        spoken = ", ".join(f"{name} ({count})" for name, count in self.languages.items()) or "none known"
        lines = (
            f"size: {many}",
            f"languages: {spoken}",
            f"folders: {', '.join(self.folders) or 'none'}",
            f"tests: {self.tests or 'nothing says how to run them'}",
            f"lint: {self.lint or 'nothing says how to run it'}",
        )
        return "\n".join(lines)


def look_at(folder: Path) -> ProjectShape:
    """Return the shape of the project in a folder."""
    names = list(_file_names(str(folder)))
    known = [name for name in names if name is not None]
    languages = (_LANGUAGES.get(name.rpartition(".")[2].lower()) for name in known)
    counted = Counter(language for language in languages if language is not None)
    folders = [entry.name for entry in _entries(str(folder)) if entry.is_dir(follow_symlinks=False)]
    usual = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    return ProjectShape(
        files=len(known),
        whole=len(known) == len(names),
        languages=dict(usual[:MAX_LANGUAGES]),
        folders=tuple(one_line(name, NAME_CHARS) for name in folders[:MAX_FOLDERS]),
        tests=_own(folder, "tests"),
        lint=_own(folder, "lint"),
    )


def _own(folder: Path, gate: str) -> str:
    found = find_own_command(folder, gate)
    return "" if found is None else " ".join(found.run)


def _file_names(top: str) -> Iterator[str | None]:
    """Yield names of files, folder by folder; None at the end if the limit was reached."""
    waiting, seen, entered = [top], 0, 0
    while waiting:
        entered += 1
        if entered > MAX_ENTERED:
            yield None
            return
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                seen += 1
                yield entry.name if seen <= MAX_FILES else None
                if seen > MAX_FILES:
                    return


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden folders, dependencies and caches."""
    try:
        with os.scandir(folder) as listing:
            found = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        entry
        for entry in found
        if not entry.name.startswith(".") and entry.name not in DEPENDENCIES and entry.name not in CACHES
    ]
