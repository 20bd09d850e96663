"""What a project is like, as a planner is told: languages, size, folders, tests. Names only, never contents.

Rules
* Files are counted by their names. The only ones that are read are those that say how the project is tested
  (`recipe.own_commands`), and what they hold is not passed on, but for the command.
* Bounded: a tree that is too large is told as such.
* A project may be hostile: links are not followed, and names are shown as text.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from fanfold.recipe.own_commands import find_own_command
from fanfold.text.terminal import one_line
from fanfold.workspace.files.ignored import CACHES, DEPENDENCIES

MAX_FILES = 20_000
MAX_ENTERED = 5_000
"""Folders, at any depth."""
MAX_FOLDERS = 40
"""At the top, of those that are named."""
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
    """A project in a few words."""

    files: int
    whole: bool
    """False: there are more files than were counted."""
    languages: dict[str, int]
    """Files of each, the most first."""
    folders: tuple[str, ...]
    """The folders at the top."""
    tests: str
    """The project's own command for its tests; empty when nothing says one."""
    lint: str

    def described(self) -> str:
        """For a prompt."""
        many = f"{self.files} files" if self.whole else f"more than {self.files} files"
        spoken = ", ".join(f"{name} ({count})" for name, count in self.languages.items()) or "none known"
        return "\n".join(
            (
                f"size: {many}",
                f"languages: {spoken}",
                f"folders: {', '.join(self.folders) or 'none'}",
                f"tests: {self.tests or 'nothing says how to run them'}",
                f"lint: {self.lint or 'nothing says how to run it'}",
            )
        )


def look_at(folder: Path) -> ProjectShape:
    """The shape of the project in a folder."""
    counted: Counter[str] = Counter()
    files = 0
    whole = True
    for name in _file_names(str(folder)):
        if name is None:
            whole = False
            break
        files += 1
        language = _LANGUAGES.get(name.rpartition(".")[2].lower())
        if language is not None:
            counted[language] += 1
    usual = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    return ProjectShape(
        files=files,
        whole=whole,
        languages=dict(usual[:MAX_LANGUAGES]),
        folders=tuple(one_line(name, NAME_CHARS) for name in _folders(str(folder))[:MAX_FOLDERS]),
        tests=_own(folder, "tests"),
        lint=_own(folder, "lint"),
    )


def _own(folder: Path, gate: str) -> str:
    found = find_own_command(folder, gate)
    return "" if found is None else " ".join(found.run)


def _file_names(top: str) -> Iterator[str | None]:
    """Names of files, folder by folder; None at the end where there is more than is looked at."""
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


def _folders(top: str) -> list[str]:
    return [entry.name for entry in _entries(top) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What people wrote: hidden folders, dependencies and caches are left out."""
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
