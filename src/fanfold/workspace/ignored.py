"""Decides which files belong to a snapshot: all that git tracks or would offer to add.

Rules
* Git runs in the private store and never in a work tree, so it obeys no configuration of a repository (see
  `git`). The project's own index lists the tracked files. Its `info/exclude` and every `.gitignore` define
  the ignored ones.
* Inner repositories and submodules are treated as normal files: their `.gitignore` applies, and their `.git`
  is not read.
* Dependency and build folders are left out unless they contain tracked files. Dependency folders have names
  that only tools use. `target`, `build` and `dist` count only next to a file of the tool that creates them,
  and only without git.
* Ignored folders are never entered, except for files that the user's own configuration includes
  (`[workspace] include`). Those belong to the snapshot although git ignores them.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from zlib import crc32

from fanfold.errors import WorldError
from fanfold.kernel.claims import is_protected
from fanfold.project_files import write_whole
from fanfold.workspace import git
from fanfold.workspace.beneath import FileEntry
from fanfold.workspace.layout import Repository, find_repository, has_long_hashes, make_folder, open_kept

DEPENDENCIES = frozenset(
    "node_modules bower_components .venv venv .tox .nox .eggs .bundle .terraform".split()
)
"""Dependencies of a project: mounted read-only, so that its tools and tests work."""
CACHES = frozenset(
    """__pycache__ .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .gradle .next .nuxt
    .svelte-kit .turbo .parcel-cache .dart_tool .angular""".split()
)
"""Caches that tools must be able to write: left out, and never a change."""
_BUILT_BY: Mapping[str, frozenset[str]] = {
    "target": frozenset({"Cargo.toml", "pom.xml", "build.sbt"}),
    "build": frozenset({"build.gradle", "build.gradle.kts", "CMakeLists.txt", "setup.py", "pyproject.toml"}),
    "dist": frozenset({"package.json", "setup.py", "pyproject.toml"}),
}
BUILT = frozenset(_BUILT_BY)
MAKERS = frozenset().union(*_BUILT_BY.values())
"""Files that show that such a folder next to them belongs to a build tool."""
MARKS = {"pyvenv.cfg": True, "CACHEDIR.TAG": False}
"""Marker files: a folder with one of these was created by a tool; True for a dependency."""
PATTERNS = ".gitignore"
MAX_NESTING = 8
_LONG_HASHES = b"""\
[core]
\trepositoryformatversion = 1
\tbare = true
[extensions]
\tobjectformat = sha256
"""
MAX_EXCLUDE_BYTES = 1024 * 1024


class GitView:
    """Git's list of the files of one project at one moment."""

    def __init__(self) -> None:
        self.tracked: set[str] = set()
        self.others: set[str] = set()
        self.folders: set[str] = set()
        self.nested: list[str] = []

    def holds(self, path: str) -> bool:
        return path in self.tracked or path in self.others


class Ignoring:
    """Asks git about the files of a project."""

    def __init__(self, project: Path, store: Path, include: Iterable[str] = ()) -> None:
        self._project = project
        self._store = store
        self._include = frozenset(include)

    def has_git(self) -> bool:
        """Return whether the project is, or is inside, a repository that does not ignore it."""
        return self._repository() is not None

    def _repository(self) -> Repository | None:
        found = find_repository(self._project)
        if found is None:
            return None
        with suppress(OSError):  # no file is tracked yet
            if not stat.S_ISREG(os.lstat(found.index_file).st_mode):  # it would block git, or is a link
                message = f"{found.index_file} is no regular file"
                raise WorldError(
                    "workspace.not_a_file", message, hint="remove it; git reset creates it again"
                )
        patterns = _read(found.exclude_file)
        own = self._asked_in(found) / "info" / "exclude"
        if patterns != _read(own):
            write_whole(own, patterns)
        if found.top == self._project:
            return found
        ask = self._command(found, "", ["check-ignore", "-q", "--no-index", "."])
        code, _ = self._ask(ask, found, ok=(0, 1, 128))
        return found if code == 1 else None

    def _asked_in(self, repository: Repository | None) -> Path:
        """Return a store in which git reads the index right: the private one is only for SHA-1."""
        if repository is None or not has_long_hashes(repository):
            return self._store
        store = self._store / "sha256"
        if not (store / "HEAD").exists():
            for folder in ("", "objects", "refs", "info"):
                make_folder(store / folder)
            write_whole(store / "config", _LONG_HASHES)
            write_whole(store / "HEAD", b"ref: refs/heads/none\n")
        return store

    def ask(self) -> GitView:
        """Return all files that belong to the project, including those of inner repositories."""
        found = GitView()
        repository = self._repository()
        todo = [("", 0)]
        while todo:
            prefix, depth = todo.pop()
            inner = self._list(prefix, None if prefix else repository, found)
            if depth < MAX_NESTING:
                repositories = [one for one in inner if os.path.lexists(self._project / one / ".git")]
                todo += [(f"{one}/", depth + 1) for one in repositories]
        found.others |= {path for path in self._include if _is_plain(self._project, path)}
        for path in (*found.tracked, *found.others):
            _add_folders(path, found.folders)
        return found

    def _list(self, prefix: str, repository: Repository | None, found: GitView) -> list[str]:
        """Add the files of one tree; return the repositories inside it."""
        skipped = [f"--exclude={name}/" for name in sorted(DEPENDENCIES | CACHES)]
        others = self._command(repository, prefix, ["ls-files", "-z", "-o", "--exclude-standard", *skipped])
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL  # warnings name unreadable files
        environment = self._environment(repository)
        with subprocess.Popen(
            others, env=environment, cwd=self._project, stdout=pipe, stderr=quiet
        ) as listing:
            inner = self._tracked(repository, prefix, found)
            output, _ = git.hear(listing, self._find_obstacle(repository), git.ASKING_CPU_S)
            for name in output.split(b"\0")[:-1]:
                path = prefix + os.fsdecode(name)
                if path.endswith("/"):
                    inner.append(path[:-1])
                    _add_folders(path, found.folders)
                else:
                    found.others.add(path)
        return inner

    def _tracked(self, repository: Repository | None, prefix: str, found: GitView) -> list[str]:
        """Add the files of the index; return the submodules among them."""
        if repository is None:
            return []
        ask = self._command(repository, prefix, ["ls-files", "-z", "-s"])
        code, output = self._ask(ask, repository, ok=(0, 128))
        # A split or sparse index does not list all tracked files. Git does not report the first case.
        if code or any(repository.folder.glob("sharedindex.*")):
            message = f"the index of {repository.top} cannot be read by itself"
            hint = "git update-index --no-split-index; git sparse-checkout reapply --no-sparse-index"
            raise WorldError("workspace.partial_index", message, hint=hint)
        inner: list[str] = []
        for record in output.split(b"\0")[:-1]:
            mode, _, name = record.partition(b"\t")
            path = prefix + os.fsdecode(name)
            found.tracked.add(path)
            if mode.startswith(b"160000"):
                inner.append(path)
                _add_folders(path + "/", found.folders)
        return inner

    def ignored(self, paths: Iterable[str], nested: Iterable[str]) -> set[str]:
        """Return the ignored paths; a folder ends in a slash. `nested` are the inner repositories."""
        groups: dict[str, list[str]] = {}
        inner = sorted(nested, key=len, reverse=True)
        for path in paths:
            owner = next((one for one in inner if path.startswith(one + "/")), "")
            groups.setdefault(owner, []).append(path)
        found: set[str] = set()
        for owner, members in groups.items():
            repository = None if owner else self._repository()
            # The index can only show that a path is not ignored after all, and reading it is slow for large
            # projects. So only paths that the patterns ignore are looked up in it.
            doubtful = self._check(owner, repository, members, ["--no-index"])
            if doubtful:
                found |= self._check(owner, repository, doubtful, []) if repository else doubtful
        if self._include:
            folders: set[str] = set()
            for path in self._include:
                _add_folders(path, folders)
            found -= {*self._include, *(f"{folder}/" for folder in folders)}
        return found

    def is_there(self, path: str) -> bool:
        """Return whether a path exists in the project, ignored or not."""
        return os.path.lexists(self._project / path)

    def _check(
        self, owner: str, repository: Repository | None, paths: Iterable[str], options: list[str]
    ) -> set[str]:
        """Return the paths in one tree that `check-ignore` reports."""
        prefix = owner + "/" if owner else ""
        ask = self._command(repository, prefix, ["check-ignore", "-z", "--stdin", *options])
        names = b"\0".join(os.fsencode(path[len(prefix) :]) for path in paths)
        # 128: a path through a link, or an empty query. Then no path is known to be ignored.
        _, output = self._ask(ask, repository, stdin=names, ok=(0, 1, 128))
        return {prefix + os.fsdecode(name) for name in output.split(b"\0")[:-1]}

    def sources(self) -> dict[str, FileEntry | None]:
        """Return the current entries of files outside the tree that define ignore rules."""
        configured = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        repository = find_repository(self._project)
        own = (repository.index_file, repository.exclude_file) if repository else ()
        top = repository.top if repository else self._project
        around = [folder for folder in self._project.parents if folder == top or top in folder.parents]
        files = [self._project / ".git", *own, *(folder / ".gitignore" for folder in around)]
        files += [Path(os.path.expanduser("~/.gitconfig"))]
        files += [Path(configured, "git", name) for name in ("config", "ignore")]
        included = crc32("\n".join(sorted(self._include)).encode("utf-8", "surrogateescape"))
        rules: dict[str, FileEntry | None] = {"/include": FileEntry(included, 0, 0, 0, 0)}
        for number, file in enumerate(files):
            try:
                status = os.stat(file)
            except OSError:
                rules[f"/{number}"] = None
                continue
            # Git always changes size or times when it rewrites these files. The times of a folder change with
            # its files, so they are ignored.
            folder = stat.S_ISDIR(status.st_mode)
            rules[f"/{number}"] = FileEntry(status.st_mode, 0, 0, 0, 0) if folder else FileEntry.of(status)
        return rules

    def _command(self, repository: Repository | None, prefix: str, arguments: list[str]) -> list[str]:
        folder = self._project / prefix
        return git.asking(arguments, self._project, folder, repository.top if repository else folder)

    def _ask(
        self, ask: list[str], repository: Repository | None, ok: tuple[int, ...], stdin: bytes = b""
    ) -> tuple[int, bytes]:
        blocked_by = self._find_obstacle(repository)
        environment = self._environment(repository)
        return git.run(ask, environment, stdin=stdin, ok=ok, blocked_by=blocked_by, cpu_s=git.ASKING_CPU_S)

    def _find_obstacle(self, repository: Repository | None) -> git.FindObstacle:
        return partial(_find_pipe, repository.top if repository else self._project)

    def _environment(self, repository: Repository | None) -> dict[str, str]:
        index = repository.index_file if repository else None
        return git.asking_environment(self._project, self._asked_in(repository), index)


def _is_plain(project: Path, path: str) -> bool:
    """Return whether a path is a regular file, with no link on the way."""
    names = path.split("/")
    try:
        modes = [os.lstat(project / "/".join(names[: count + 1])).st_mode for count in range(len(names))]
    except OSError:
        return False
    return stat.S_ISREG(modes[-1]) and all(map(stat.S_ISDIR, modes[:-1]))


def _find_pipe(top: Path) -> Path | None:
    """Return a `.gitignore` that would block git, such as a pipe; programs and archives can create one."""
    for here, _, names in os.walk(top):
        if PATTERNS in names:
            file = Path(here, PATTERNS)
            kind = os.lstat(file).st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):  # git follows no link here
                return file
    return None


def is_built(name: str, siblings: Iterable[str]) -> bool:
    """Return whether a folder of that name, next to those files, belongs to a build tool.

    >>> is_built("target", ["Cargo.toml"]), is_built("target", ["notes.md"])
    (True, False)
    """
    makers = _BUILT_BY.get(name)
    return makers is not None and not makers.isdisjoint(siblings)


def dependency_of(project: Path, path: str) -> str:
    """Return the dependency folder that contains a path, by its name or marker file, or ""."""
    names = path.split("/")
    for count, name in enumerate(names, 1):
        folder = "/".join(names[:count])
        marks = (mark for mark, depends in MARKS.items() if depends)
        if name in DEPENDENCIES or any(os.path.lexists(project / folder / mark) for mark in marks):
            return folder
    return ""


def own_environment(project: Path) -> str:
    """Return the environment in the project that this process runs from; empty if it runs from elsewhere."""
    prefix = Path(sys.prefix)
    return str(prefix.relative_to(project)) if prefix.is_relative_to(project) and prefix != project else ""


def may_change_dependency(project: Path, folder: str, write_set: Iterable[str]) -> bool:
    """Return whether a write-set names a dependency folder that this process does not run from."""
    named = {pattern.partition("*")[0].rstrip("/") for pattern in write_set}
    return folder in named and folder != own_environment(project) and not is_protected(folder)


def _add_folders(path: str, folders: set[str]) -> None:
    at = path.rfind("/")
    while at > 0:
        folder = path[:at]
        if folder in folders:
            return
        folders.add(folder)
        at = path.rfind("/", 0, at)


def _read(file: Path) -> bytes:
    """Read a small file without following a link; empty if there is none."""
    try:
        with open_kept(file) as opened:
            return opened.read(MAX_EXCLUDE_BYTES)
    except OSError:
        return b""
