"""The commit that a delivery makes: a commit of the repository, plus what a run merged, three-way.

Rules
* No byte comes from the working tree. What a merge put is in the private store; on the base it is merged as a
  change (before, after), so that what the user had not committed stays theirs.
* Made with an index of its own in the private store, which borrows the repository's objects for the moment:
  the user's index, branches and files are not touched, and no configuration, filter or hook is read.
* The same base, merges, author, time and message give the same commit, however often it is made.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.trust.repository import Repository
from fanfold.workspace.delivery.borrowed import borrow
from fanfold.workspace.files import git
from fanfold.workspace.merges.merge import merge_fully
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.revision import Revised

AT_ONCE = 400
"""Paths that one command is asked about."""
NOTHING = "0" * 40
MAX_LISTED = 50


class CommitText(Struct, frozen=True):
    """Who says what, and when (seconds since the epoch)."""

    message: str
    name: str
    email: str
    at: int


class DeliveryConflict(WorldError):
    """What was merged does not go together with the base."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(
            "deliver.conflict",
            f"what the run changed does not go together with the base: {', '.join(paths[:5])}",
            hint="commit or take back your own changes of these files, or fetch a newer base; then resume",
            details={"paths": [*paths]},
        )


class Commits:
    """Makes commits for one project."""

    def __init__(self, project: Path, repository: Repository, objects: Objects, store: Path) -> None:
        self._project = project
        self._repository = repository
        self._objects = objects
        self._store = store
        top = os.path.realpath(repository.top)
        inside = os.path.relpath(os.path.realpath(project), top)
        self._prefix = "" if inside == "." else f"{inside}/"
        """Where the project lies in the repository."""

    def compose(
        self, base: str, merges: Iterable[Sequence[Revised]], wanted: Callable[[str], bool], text: CommitText
    ) -> tuple[str, tuple[str, ...]]:
        """The commit, and the paths (of the repository) that it changes. Raises `DeliveryConflict`."""
        chosen = [[file for file in merge if wanted(file.path)] for merge in merges]
        paths = sorted({self._prefix + file.path for merge in chosen for file in merge})
        before = self._states(base, paths)
        state: dict[str, FileState | None] = {path: before.get(path) for path in paths}
        for merge in chosen:
            self._carry(state, merge)
        changed = tuple(path for path in paths if state[path] != before.get(path))
        if not changed:
            return "", ()
        with tempfile.TemporaryDirectory(dir=self._store) as folder:
            index = Path(folder) / "index"
            self._git(["read-tree", base], index=index)
            rows = (_row(path, state[path]) for path in changed)
            self._git(["update-index", "-z", "--index-info"], index=index, stdin=b"".join(rows))
            # A clone may have left out content that nobody here changes.
            tree = self._git(["write-tree", "--missing-ok"], index=index).decode().strip()
        self._check_nothing_else(base, tree, changed)
        commit = self._git(
            ["commit-tree", tree, "-p", base, "-F", "-"], text=text, stdin=text.message.encode()
        )
        return commit.decode().strip(), changed

    def _check_nothing_else(self, base: str, tree: str, changed: Sequence[str]) -> None:
        """A file where the base has a folder, or the other way, would take away what nobody merged."""
        listed = self._git(["diff-tree", "-r", "-z", "--name-only", "--no-renames", base, tree])
        others = {os.fsdecode(name) for name in listed.split(b"\0")[:-1]}.difference(changed)
        if others:
            raise DeliveryConflict(sorted(others))

    def difference(self, base: str, commit: str) -> str:
        """What the commit changes, as a patch."""
        flags = ["--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index"]
        return self._git(["diff", *flags, base, commit]).decode("utf-8", "replace")

    def list_new(self, base: str, known: Sequence[str]) -> str:
        """Commits up to one that none of the known ones has, a line for each; the newest of many."""
        words = ["log", f"--max-count={MAX_LISTED}", "--format=%h %s", "--ignore-missing", "--stdin"]
        asked = "\n".join([base, *(f"^{one}" for one in known), ""])
        return self._git(words, stdin=asked.encode()).decode("utf-8", "replace")

    def publish(self, base: str, commit: str) -> None:
        """Put what is new of a commit into the repository's own store of objects."""
        listed = self._git(["rev-list", "--objects", commit, f"^{base}"]).decode("utf-8", "replace")
        wanted = "".join(f"{line.partition(' ')[0]}\n" for line in listed.splitlines())
        said = self._git(["cat-file", "--batch"], stdin=wanted.encode())
        target = Objects(self._repository.common, self._project, published=True)
        at = 0
        while at < len(said):
            end = said.index(b"\n", at)
            oid, kind, size = said[at:end].decode().split(" ")
            at = end + 1 + int(size)
            if target.put(kind, said[end + 1 : at]) != oid:
                raise WorldError("workspace.damaged", f"object {oid} does not hold what its name says")
            at += 1

    def identity(self) -> tuple[str, str]:
        """Who commits, by the user's own configuration of git."""
        found = []
        for word in ("user.name", "user.email"):
            command = [git.program(self._project), "config", "--global", "--get", word]
            _, said = git.run(command, _user_environment(self._project, self._store), ok=(0, 1, 128))
            found.append(said.decode("utf-8", "replace").strip())
        if not all(found):
            message = "git does not know who you are, and a commit needs to say so"
            hint = 'git config --global user.name "Your Name"; git config --global user.email you@example.org'
            raise WorldError("deliver.no_identity", message, hint=hint)
        return found[0], found[1]

    def _states(self, commit: str, paths: Sequence[str]) -> dict[str, FileState]:
        found: dict[str, FileState] = {}
        for start in range(0, len(paths), AT_ONCE):
            asked = ["--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--"]
            said = self._git([*asked, *paths[start : start + AT_ONCE]])
            for record in said.split(b"\0")[:-1]:
                facts, _, name = record.partition(b"\t")
                mode, _, oid = facts.split()
                found[os.fsdecode(name)] = FileState(int(mode, 8), oid.decode())
        return found

    def _carry(self, state: dict[str, FileState | None], merge: Sequence[Revised]) -> None:
        """Put what one merge changed on top of what there is."""
        open_files: list[Revised] = []
        for file in merge:
            path = self._prefix + file.path
            if file.after is not None and not self._objects.has(file.after.oid):
                self._recover(file.path, file.after)
            if state[path] == file.before:
                state[path] = file.after
            elif state[path] != file.after:
                open_files.append(Revised(path, file.before, file.after))
        if not open_files:
            return
        for file in open_files:
            for side in (file.before, state[file.path]):
                if side is not None and not self._objects.has(side.oid):
                    self._objects.put("blob", self._git(["cat-file", "blob", side.oid]))
        open_files = [self._as_kept(file, state[file.path]) for file in open_files]
        base, ours, theirs = (
            _side(open_files, lambda file: file.before),
            _side(open_files, lambda file: state[file.path]),
            _side(open_files, lambda file: file.after),
        )
        outcome = merge_fully(base, ours, theirs, self._objects)
        if outcome.conflicts:
            raise DeliveryConflict([conflict.path for conflict in outcome.conflicts])
        for step in outcome.steps:
            state[step.path] = step.after

    def _as_kept(self, file: Revised, kept: FileState | None) -> Revised:
        """A change in the line ends that the repository keeps, where checking out had made others of them."""
        if file.before is None or file.after is None or kept is None:
            return file
        before, after, base = (self._objects.get(one.oid) for one in (file.before, file.after, kept))
        wholly = 0 < before.count(b"\r\n") == before.count(b"\n")
        if not wholly or b"\r\n" in base or b"\0" in before:
            return file
        ends = [self._objects.put("blob", one.replace(b"\r\n", b"\n")) for one in (before, after)]
        return Revised(file.path, file.before._replace(oid=ends[0]), file.after._replace(oid=ends[1]))

    def _recover(self, path: str, wanted: FileState) -> None:
        """A very large file was not kept; what is still in place by the same hash is the same content."""
        try:
            handle = os.open(self._project / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            handle = -1
        if handle >= 0:
            try:
                if self._objects.put_file(handle) == wanted.oid:
                    return
            finally:
                os.close(handle)
        message = f"what was merged into {path} is not there any more"
        raise WorldError("deliver.gone", message, hint="gc may have cleared it away")

    def _git(
        self,
        arguments: Sequence[str],
        *,
        index: Path | None = None,
        stdin: bytes = b"",
        text: CommitText | None = None,
    ) -> bytes:
        environment = git.private_environment(self._project, self._store) | borrow(self._repository)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        if text is not None:
            for role in ("AUTHOR", "COMMITTER"):
                environment[f"GIT_{role}_NAME"] = text.name
                environment[f"GIT_{role}_EMAIL"] = text.email
                environment[f"GIT_{role}_DATE"] = f"{text.at} +0000"
        return git.run([git.program(self._project), *arguments], environment, stdin=stdin)[1]


def _side(files: Sequence[Revised], of: Callable[[Revised], FileState | None]) -> Mapping[str, FileState]:
    return {file.path: state for file in files if (state := of(file)) is not None}


def _row(path: str, state: FileState | None) -> bytes:
    mode, oid = (state.mode, state.oid) if state is not None else (0, NOTHING)
    return b"%o %s\t%s\0" % (mode, oid.encode(), os.fsencode(path))


def _user_environment(project: Path, store: Path) -> dict[str, str]:
    """The user's own configuration counts, that of no tree does."""
    return git.passed_on(("HOME", "XDG_CONFIG_HOME"), project) | {"GIT_DIR": str(store), "LC_ALL": "C"}
