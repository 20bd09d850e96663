"""Trees of files as git packs, so that a machine without a checkout can work on them.

A tree is a commit in a private object store. A pack contains a tree, or only what differs from a tree that
the other side has. Workers, drivers and users exchange packs through the store of the project.

Rules
* A tree is complete here only if its pack was unpacked to the end. A mark records that.
* Packs come from other machines. Every tree is checked before a file of it is used: plain names, no files of
  git or Fanfold, no links that lead out, nothing but files and links. Hashes are checked at each reading.
* A merge of trees needs no folder. It gives the same result as a merge of a step workspace.
* A folder of a tree belongs to Fanfold alone. It moves from one tree to another by the files that differ.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from fanfold.errors import WorldError
from fanfold.kernel.claims import landing, plain_name
from fanfold.project_files import Closing, write_whole
from fanfold.workspace.beneath import PathProblem, names_of, open_top, spot_beneath
from fanfold.workspace.changes import Change, TreeLook, violations
from fanfold.workspace.layout import OWN_FOLDER, make_folder, read_kept
from fanfold.workspace.merge import (
    LINK,
    FileState,
    MergeOutcome,
    MergeResult,
    Objects,
    PathRevision,
    Revision,
    StoredContent,
    merge_fully,
)
from fanfold.workspace.merge_journal import ancestors
from fanfold.workspace.project_tree import outside_write_set

PART_BYTES = 1024 * 1024
"""The size of the rows in which a pack is stored."""
MAX_PACK_BYTES = 1024**3
MAX_FILES = 1_000_000
MAX_KNOWN = 8
_MODES = (0o100644, 0o100755, LINK)


class TreeObjects(Objects):
    """A private object store for whole trees."""

    def __init__(self, folder: Path, project: Path) -> None:
        super().__init__(folder, project)
        self._known: dict[str, dict[str, FileState]] = {}

    def prepare(self) -> None:
        super().prepare()
        make_folder(self._folder / "complete")

    def put_files(self, files: Mapping[str, FileState], parent: str = "") -> str:
        """Store a tree of files whose content is stored, and return its name."""
        commit = self.put_commit(self.put_tree(files), (parent,) if parent else ())
        self._complete(commit, dict(files))
        return commit

    def is_complete(self, tree: str) -> bool:
        """Whether a tree with all its content is here."""
        return self.has(tree) and self._mark(tree).exists()

    def files(self, tree: str) -> dict[str, FileState]:
        """The files of a tree, checked. Treat them as read-only."""
        known = self._known.get(tree)
        if known is None:
            known = self.list_tree(tree)
            self._check(known)
            self._remember(tree, known)
        return known

    def pack(self, tree: str, base: str = "") -> bytes:
        """A tree as a pack, without the content that `base` has."""
        command = ["pack-objects", "-q", "--revs", "--thin", "--stdout", "--threads=1"]
        wanted = f"{tree}\n^{base}\n" if base else f"{tree}\n"
        return self.git(command, stdin=wanted.encode())[1]

    def unpack(self, tree: str, pack: bytes) -> None:
        """Store the content of a pack. Raises `workspace.bad_pack` unless it completes the tree."""
        command = ["-c", "core.fsync=none", "unpack-objects", "-q", "--strict"]
        try:
            self.git(command, stdin=pack)
            files = self.files(tree)  # raises if the pack does not contain the tree
        except WorldError as error:
            raise WorldError("workspace.bad_pack", f"the pack was refused: {error.message}") from error
        self._complete(tree, files)

    def write_index(self, tree: str, file: Path) -> None:
        """Write an index that lists the files of a tree."""
        self.git(["read-tree", tree], GIT_INDEX_FILE=str(file))

    def _mark(self, tree: str) -> Path:
        return self._folder / "complete" / tree

    def _complete(self, tree: str, files: dict[str, FileState]) -> None:
        write_whole(self._mark(tree), b"")
        self._remember(tree, files)

    def _remember(self, tree: str, files: dict[str, FileState]) -> None:
        self._known[tree] = files
        while len(self._known) > MAX_KNOWN:
            self._known.pop(next(iter(self._known)))

    def _check(self, files: Mapping[str, FileState]) -> None:
        """Raise `workspace.bad_tree` if a tree has files that must not be written to a disk."""
        if len(files) > MAX_FILES:
            raise WorldError("workspace.bad_tree", f"a tree has {len(files)} files, over {MAX_FILES}")
        for path, state in files.items():
            why = self.problem(path, state, files)
            if why:
                raise WorldError("workspace.bad_tree", f'a tree contains "{path}": {why}')

    def problem(self, path: str, state: FileState, files: Mapping[str, FileState]) -> str:
        """Why a file of a tree must not be written to a disk; empty if it may."""
        try:
            plain = "/".join(names_of(path)) == path and not path.startswith("/")
        except PathProblem:
            plain = False
        if not plain:
            return "not a path of a file"
        if any(plain_name(name) in (".git", OWN_FOLDER) for name in path.split("/")):
            return "a file of git or Fanfold"
        if state.mode not in _MODES:
            return "neither a file nor a link"
        if state.mode == LINK and self.leads_out(path, state, files):
            return "a link that leads out"
        return ""

    def leads_out(self, path: str, state: FileState, files: Mapping[str, FileState]) -> bool:
        """Whether a link of a tree ends outside of it."""
        return landing(path, self.target(state), self.look(files).link_at) is None

    def look(self, files: Mapping[str, FileState]) -> TreeLook:
        """The view of a tree for checks of its changes."""

        def link_at(path: str) -> str | None:
            there = files.get(path)
            return self.target(there) if there is not None and there.mode == LINK else None

        def exists(path: str) -> bool:
            return path in files or any(file.startswith(f"{path}/") for file in files)

        return TreeLook(link_at, exists)

    def target(self, state: FileState) -> str:
        return os.fsdecode(self.get(state.oid))


def parts_of(pack: bytes) -> list[bytes]:
    """A pack as the rows in which it is stored."""
    return [pack[at : at + PART_BYTES] for at in range(0, len(pack), PART_BYTES)]


# -----------------------------------------------------------------------------------------------------------
# Merges of trees


def changes_between(
    objects: TreeObjects, base: Mapping[str, FileState], files: Mapping[str, FileState]
) -> tuple[tuple[Change, ...], Revision]:
    """The differences between two trees, as the changes of a step and as a revision."""
    changes: list[Change] = []
    rows: list[PathRevision] = []
    for path in sorted(base.keys() | files.keys()):
        before, after = base.get(path), files.get(path)
        if before == after:
            continue
        kind: Literal["added", "deleted", "modified"] = (
            "added" if before is None else "deleted" if after is None else "modified"
        )
        shown = before if after is None else after
        assert shown is not None, "one side has the file"
        is_link = shown.mode == LINK
        modes = after.mode if after is not None else 0, before.mode if before is not None else 0
        target = objects.target(shown) if is_link else ""
        changes.append(Change(path, kind, "link" if is_link else "file", *modes, target))
        rows.append(PathRevision(path, before, after))
    gone = ancestors({*base}) - ancestors({*files}) if any(row.after is None for row in rows) else set()
    return tuple(changes), Revision(tuple(rows), folders_gone=tuple(sorted(gone)))


def merge_trees(
    objects: TreeObjects, base: str, ours: str, theirs: str, write_set: Sequence[str]
) -> tuple[MergeResult, str]:
    """Merge the tree of a step into the tree of its run; return the result and the tree of the run then."""
    before, now, after = objects.files(base), objects.files(ours), objects.files(theirs)
    changes, revision = changes_between(objects, before, after)
    bad = tuple(violations(changes, write_set, objects.look(after)))
    if bad or not changes:
        return MergeResult(changes, violations=bad), ours
    outcome = _merge_simply(revision, now) or _merge_fully(objects, before, now, after)
    conflicts = outcome.conflicts + outside_write_set(outcome, write_set)
    if conflicts:
        return MergeResult(changes, conflicts), ours
    result = apply_revision(now, Revision(outcome.steps))
    applied = tuple(step.path for step in outcome.steps)
    return MergeResult(changes, applied=applied), objects.put_files(result, ours)


def _merge_simply(revision: Revision, now: Mapping[str, FileState]) -> MergeOutcome | None:
    """The outcome if the run changed none of these paths since; None if git must merge."""
    steps = [row for row in revision.files if now.get(row.path) != row.after]
    if any(now.get(row.path) != row.before for row in steps):
        return None
    added = [row.path for row in steps if row.before is None]
    if added:
        gone = {row.path for row in steps if row.after is None}
        folders = ancestors(now.keys() - gone)
        if not folders.isdisjoint(added) or not ancestors({*added}).isdisjoint(now.keys() - gone):
            return None
    return MergeOutcome(tuple(steps))


def _merge_fully(
    objects: TreeObjects,
    base: Mapping[str, FileState],
    ours: Mapping[str, FileState],
    theirs: Mapping[str, FileState],
) -> MergeOutcome:
    names = base.keys() | ours.keys() | theirs.keys()
    paths = [path for path in names if not base.get(path) == ours.get(path) == theirs.get(path)]
    before, mine, other = (
        {path: side[path] for path in paths if path in side} for side in (base, ours, theirs)
    )
    return merge_fully(before, mine, other, objects)


# -----------------------------------------------------------------------------------------------------------
# Folders of trees


class TreeFolder:
    """A folder with the files of one tree."""

    def __init__(self, folder: Path, objects: TreeObjects, *, in_git: bool) -> None:
        self.folder = folder
        self._objects = objects
        self._in_git = in_git
        self._own = folder / OWN_FOLDER
        self._note = self._own / "tree"

    @contextmanager
    def at(self, tree: str) -> Iterator[None]:
        """Hold the folder at a tree: its files are those of the tree, and no other process moves it."""
        make_folder(self._own)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with Closing(os.open(self._own / "tree.lock", flags, 0o600)) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._move(tree)
            yield

    def forget(self) -> None:
        """Note that another program changed the files: the next tree is written whole."""
        write_whole(self._note, b"")

    def _move(self, tree: str) -> None:
        try:
            now = read_kept(self._note).decode()
        except FileNotFoundError:
            now = ""
        if now == tree:
            return
        is_known = bool(now) and self._objects.is_complete(now)
        write_whole(self._note, b"")  # until the files are written, the state of the folder is unknown
        before = self._objects.files(now) if is_known else {}
        after = self._objects.files(tree)
        if not is_known:
            with Closing(open_top(self.folder)) as top:
                _clear(top)
        write_files(self.folder, before, after, self._objects)
        if self._in_git:
            repository = self.folder / ".git"
            for name in ("", "objects", "refs"):
                make_folder(repository / name)
            write_whole(repository / "HEAD", b"ref: refs/heads/none\n")
            self._objects.write_index(tree, repository / "index")
        write_whole(self._note, tree.encode())


def apply_revision(files: Mapping[str, FileState], revision: Revision) -> dict[str, FileState]:
    """The files of a tree after a revision."""
    result = dict(files)
    for file in revision.files:
        if file.after is None:
            result.pop(file.path, None)
        else:
            result[file.path] = file.after
    return result


def write_files(
    folder: Path, before: Mapping[str, FileState], after: Mapping[str, FileState], objects: TreeObjects
) -> None:
    """Change a folder from one tree to another."""
    with Closing(open_top(folder)) as top:
        for path in before:
            if path not in after:
                _remove(top, path)
        stored = StoredContent(objects)
        for path, state in after.items():
            if before.get(path) != state:
                names = path.split("/")
                for count in range(1, len(names)):
                    with spot_beneath(top, "/".join(names[:count])) as spot, suppress(FileExistsError):
                        os.mkdir(spot.name, 0o755, dir_fd=spot.folder)
                with spot_beneath(top, path) as spot:
                    with suppress(FileNotFoundError):
                        os.unlink(spot.name, dir_fd=spot.folder)
                    stored.stage(path, state, spot.folder, spot.name)
                    if state.mode != LINK:
                        os.chmod(spot.name, state.mode & 0o777, dir_fd=spot.folder)


def _clear(top: int) -> None:
    """Remove everything from a folder, except for the files of git and Fanfold."""
    for name in os.listdir(top):
        if name not in (OWN_FOLDER, ".git"):
            _remove_all(top, name)


def _remove_all(folder: int, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with Closing(os.open(name, flags, dir_fd=folder)) as below:
        for inner in os.listdir(below):
            _remove_all(below, inner)
    os.rmdir(name, dir_fd=folder)


def _remove(top: int, path: str) -> None:
    """Remove a file, and the folders that are empty without it."""
    with suppress(FileNotFoundError, PathProblem), spot_beneath(top, path) as spot:
        os.unlink(spot.name, dir_fd=spot.folder)
    folder = path.rpartition("/")[0]
    while folder:
        try:
            with spot_beneath(top, folder) as spot:
                os.rmdir(spot.name, dir_fd=spot.folder)
        except (OSError, PathProblem):
            return
        folder = folder.rpartition("/")[0]
