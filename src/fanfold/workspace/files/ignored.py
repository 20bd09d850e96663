"""What of a project belongs to its snapshot: all that git tracks or would offer to add.

Rules
* Git itself is asked, for the project, for each submodule and each repository that lies inside; in a folder
  without git, the private store asks in its place, so `.gitignore` counts there too.
* Dependency and build folders are left out unless something in them is tracked. Their names are those that
  tools make and people do not write in; `target`, `build` and `dist` only beside the file of the tool that
  makes them, and only where there is no git to say so.
* Ignored folders are never entered.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from fanfold.workspace.files import git
from fanfold.workspace.files.manifest import Entry

DEPENDENCIES = frozenset(
    "node_modules bower_components .venv venv .tox .nox .eggs .bundle .terraform".split()
)
"""What a project needs and did not write: bound in read-only, so that its tools and tests work."""
CACHES = frozenset(
    """__pycache__ .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .gradle .next .nuxt
    .svelte-kit .turbo .parcel-cache .dart_tool .angular""".split()
)
"""What tools make and must be able to write: left out, and never a change."""
_BUILT_BY: Mapping[str, frozenset[str]] = {
    "target": frozenset({"Cargo.toml", "pom.xml", "build.sbt"}),
    "build": frozenset({"build.gradle", "build.gradle.kts", "CMakeLists.txt", "setup.py", "pyproject.toml"}),
    "dist": frozenset({"package.json", "setup.py", "pyproject.toml"}),
}
MARKS = {"pyvenv.cfg": True, "CACHEDIR.TAG": False}
"""A folder that holds one of these was made by a tool, whatever it is called; True for a dependency."""
MAX_NESTING = 8


class Belonging:
    """What git says of one project at one moment."""

    def __init__(self) -> None:
        self.tracked: set[str] = set()
        self.others: set[str] = set()
        self.folders: set[str] = set()
        self.nested: list[str] = []

    def holds(self, path: str) -> bool:
        return path in self.tracked or path in self.others


class Ignoring:
    """Asks git about a project."""

    def __init__(self, project: Path, store: Path) -> None:
        self._project = project
        self._store = store

    def has_git(self) -> bool:
        """Whether the project is, or lies in, a repository that does not ignore it."""
        if os.path.lexists(self._project / ".git"):
            return True
        ask = git.asking(["check-ignore", "-q", "."], self._project)
        code, _ = git.run(ask, git.user_environment(), ok=(0, 1, 128))
        return code == 1

    def ask(self) -> Belonging:
        """Everything git knows, submodules and inner repositories included."""
        found = Belonging()
        own = self.has_git()
        todo = [("", own, 0)]
        while todo:
            prefix, in_git, depth = todo.pop()
            for inner in self._list(prefix, in_git, found):
                if depth == MAX_NESTING or not os.path.lexists(self._project / inner / ".git"):
                    continue
                todo.append((inner + "/", True, depth + 1))
        for path in (*found.tracked, *found.others):
            _add_folders(path, found.folders)
        return found

    def _list(self, prefix: str, in_git: bool, found: Belonging) -> list[str]:
        """Add what one repository lists; the repositories inside it."""
        skipped = [f"--exclude={name}/" for name in sorted(DEPENDENCIES | CACHES)]
        others = self._command(prefix, in_git, ["ls-files", "-z", "-o", "--exclude-standard", *skipped])
        tracked = self._command(prefix, in_git, ["ls-files", "-z", "-s"]) if in_git else None
        with subprocess.Popen(
            others, env=self._environment(in_git), cwd=self._project, stdout=subprocess.PIPE
        ) as asked:
            inner: list[str] = []
            for record in git.run(tracked, self._environment(True))[1].split(b"\0")[:-1] if tracked else ():
                mode, _, name = record.partition(b"\t")
                path = prefix + os.fsdecode(name)
                found.tracked.add(path)
                if mode.startswith(b"160000"):
                    inner.append(path)
                    _add_folders(path + "/", found.folders)
            assert asked.stdout is not None
            for name in asked.stdout.read().split(b"\0")[:-1]:
                path = prefix + os.fsdecode(name)
                if path.endswith("/"):
                    inner.append(path[:-1])
                    _add_folders(path, found.folders)
                else:
                    found.others.add(path)
        return inner

    def ignored(self, paths: Iterable[str], nested: Iterable[str]) -> set[str]:
        """Which of these paths git ignores; a folder ends in a slash. `nested` are the inner repositories."""
        groups: dict[str, list[str]] = {}
        inner = sorted(nested, key=len, reverse=True)
        for path in paths:
            owner = next((one for one in inner if path.startswith(one + "/")), "")
            groups.setdefault(owner, []).append(path)
        found: set[str] = set()
        for owner, members in groups.items():
            in_git = bool(owner) or self.has_git()
            # The index only ever says that a name is not ignored after all, and reading it takes as long as
            # the project is large: so it is asked about what the patterns ignore, and about nothing else.
            doubtful = self._check(owner, in_git, members, ["--no-index"])
            if doubtful:
                found |= self._check(owner, in_git, doubtful, [])
        return found

    def is_there(self, path: str) -> bool:
        """Whether the project itself has something at a path, ignored or not."""
        return os.path.lexists(self._project / path)

    def _check(self, owner: str, in_git: bool, paths: Iterable[str], options: list[str]) -> set[str]:
        """Which of these paths in one repository `check-ignore` names."""
        prefix = owner + "/" if owner else ""
        ask = self._command(prefix, in_git, ["check-ignore", "-z", "--stdin", *options])
        names = b"\0".join(os.fsencode(path[len(prefix) :]) for path in paths)
        # 128: a path through a link, or nothing to ask. Then nothing is known to be ignored.
        _, said = git.run(ask, self._environment(in_git), stdin=names, ok=(0, 1, 128))
        return {prefix + os.fsdecode(name) for name in said.split(b"\0")[:-1]}

    def sources(self) -> dict[str, Entry | None]:
        """The files outside the tree that decide about ignoring, as they are now."""
        configured = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        files = [
            str(self._project / ".git"),
            str(self._project / ".git/index"),
            str(self._project / ".git/info/exclude"),
            str(self._project / ".git/config"),
            os.path.expanduser("~/.gitconfig"),
            f"{configured}/git/config",
            f"{configured}/git/ignore",
        ]
        return {f"/{number}": _entry(file) for number, file in enumerate(files)}

    def _command(self, prefix: str, in_git: bool, arguments: list[str]) -> list[str]:
        if in_git:
            return git.asking(arguments, self._project / prefix)
        place = ["-c", "core.bare=false", f"--git-dir={self._store}", f"--work-tree={self._project}"]
        return [git.program(), *place, *git.asking(arguments, self._project)[1:]]

    def _environment(self, in_git: bool) -> dict[str, str]:
        if in_git:
            return git.user_environment()
        return git.user_environment() | {"GIT_ATTR_NOSYSTEM": "1"}


def is_built(name: str, siblings: Iterable[str]) -> bool:
    """Whether a folder of that name, beside those files, is a build tool's.

    >>> is_built("target", ["Cargo.toml"]), is_built("target", ["notes.md"])
    (True, False)
    """
    makers = _BUILT_BY.get(name)
    return makers is not None and not makers.isdisjoint(siblings)


def _add_folders(path: str, folders: set[str]) -> None:
    at = path.rfind("/")
    while at > 0:
        folder = path[:at]
        if folder in folders:
            return
        folders.add(folder)
        at = path.rfind("/", 0, at)


def _entry(file: str) -> Entry | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    # Git rewrites nothing here without changing size or times; a folder's own times change with its files.
    return Entry(status.st_mode, 0, 0, 0, 0) if os.path.isdir(file) else Entry.of(status)
