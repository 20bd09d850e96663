"""Three-way merges: base, parent as it is now, revision.

Rules
* Where the parent still has what the revision started from, the revision's state is the result: no tree is
  built and time is spent on what changed. That is also what git would answer, since renames are looked for
  among changed paths only and whole folders are never taken to have moved.
* Otherwise git decides, with every path either side changed: `merge-tree` on synthetic commits in the private
  store. Clean, its result is applied; else every conflict is reported as data and nothing is.
* Both sides having done the same is no conflict.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

import msgspec

from fanfold.errors import BugError
from fanfold.workspace.files.beneath import PathProblem, spot_beneath
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.revision import Content, Revised, Revision, StoredContent, state_at
from fanfold.workspace.snapshots.changes import Change, WriteViolation


class MergeConflict(msgspec.Struct, frozen=True, order=True):
    """A path both sides changed in ways that do not go together. A side is `mode hash`, None for nothing."""

    path: str
    why: str
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None


class MergeOutcome(msgspec.Struct, frozen=True):
    """What to do to the parent: for each path what must be there now, and what comes instead."""

    steps: tuple[Revised, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    stored: frozenset[str] = frozenset()
    """Paths whose content git made: it is in the store."""


def merge_simply(revision: Revision, parent: int) -> MergeOutcome | None:
    """The outcome when the parent did not touch what the revision touches; None when git has to decide."""
    steps: list[Revised] = []
    going = {file.path for file in revision.files if file.after is None}
    for file in revision.files:
        now = state_at(parent, file.path)
        if now == file.after and (now is not None or not _occupied(parent, file.path)):
            continue  # both did the same
        if now != file.before:
            return None
        if file.after is not None and not _reachable(parent, file.path, going):
            return None
        if now is None and file.after is not None and _occupied(parent, file.path):
            return None
        steps.append(file)
    return MergeOutcome(tuple(steps))


def is_in_place(revision: Revision, parent: int) -> bool:
    """Whether everything that counts for these paths can be seen at these paths.

    A file that is gone from the parent may have moved anywhere; one that the child deleted and the parent
    changed may have moved in the child, and where to is git's guess from all there is; what stands in the way
    of a file is another path. Then the whole parent has to be looked at, else each path is merged by itself.
    """
    for file in revision.files:
        now = state_at(parent, file.path)
        if now is None:
            if file.before is not None or _occupied(parent, file.path):
                return False
            if not _reachable(parent, file.path, set()):
                return False
        elif file.after is None and now != file.before:
            return False
    return True


def has_room(parent: int, path: str, going: set[str]) -> bool:
    """Whether a file can come to a path where none is, once these others have gone."""
    return _reachable(parent, path, going) and _leaves(parent, path, going)


def _leaves(parent: int, path: str, going: set[str]) -> bool:
    """Whether whatever stands at a path goes: nothing, or a folder of files that all do."""
    try:
        with spot_beneath(parent, path) as spot:
            status = spot.status()
            if status is None:
                return True
            if not stat.S_ISDIR(status.st_mode):
                return path in going
            below = os.open(spot.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=spot.folder)
    except FileNotFoundError:
        return True
    except PathProblem:  # a file in the way, of which `_reachable` knows that it goes
        return True
    try:
        names = os.listdir(below)
    finally:
        os.close(below)
    return all(_leaves(parent, f"{path}/{name}", going) for name in names)


def _reachable(parent: int, path: str, going: set[str]) -> bool:
    """Whether every folder on the way is one, or will be made."""
    at = path.find("/")
    while at > 0:
        folder = path[:at]
        try:
            with spot_beneath(parent, folder) as spot:
                status = spot.status()
        except FileNotFoundError:
            return True
        except PathProblem:
            return False
        if status is None:
            return True
        if not stat.S_ISDIR(status.st_mode):
            return folder in going
        at = path.find("/", at + 1)
    return True


def _occupied(parent: int, path: str) -> bool:
    """Whether something stands at a path where no file is: a folder, a pipe."""
    try:
        with spot_beneath(parent, path) as spot:
            status = spot.status()
            if status is None:
                return False
            if stat.S_ISDIR(status.st_mode):
                below = os.open(spot.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=spot.folder)
                try:
                    return bool(os.listdir(below))
                finally:
                    os.close(below)
            return True
    except FileNotFoundError:
        return False
    except PathProblem:
        return True


def gather(
    revision: Revision,
    content: Content,
    ours: Mapping[str, tuple[FileState | None, FileState | None]],
    objects: Objects,
    in_base: Content,
    in_parent: Content,
) -> tuple[dict[str, FileState], dict[str, FileState], dict[str, FileState]]:
    """Base, parent and revision as three trees of what either side changed; the store has their content.

    `ours` is what the parent changed since the base, as (before, now).
    """
    base: dict[str, FileState] = {}
    mine: dict[str, FileState] = {}
    theirs: dict[str, FileState] = {}
    for path, (before, now) in ours.items():
        if before is not None:
            in_base.keep(path, before, objects)
            base[path] = theirs[path] = before
        if now is not None:
            in_parent.keep(path, now, objects)
            mine[path] = now
    for file in revision.files:
        if file.before is not None and file.path not in base:
            in_base.keep(file.path, file.before, objects)
            base[file.path] = mine[file.path] = file.before
        theirs.pop(file.path, None)
        if file.after is not None:
            content.keep(file.path, file.after, objects)
            theirs[file.path] = file.after
    return base, mine, theirs


def merge_fully(
    base: Mapping[str, FileState],
    ours: Mapping[str, FileState],
    theirs: Mapping[str, FileState],
    objects: Objects,
) -> MergeOutcome:
    """The outcome as git sees it."""
    root = objects.put_commit(objects.put_tree(base))
    sides = [objects.put_commit(objects.put_tree(side), (root,)) for side in (ours, theirs)]
    arguments = ["merge-tree", "--write-tree", "-z", "--messages", *sides]
    code, said = objects.git(arguments, ok=(0, 1))
    tree, _, rest = said.partition(b"\0")
    if code == 1:
        return MergeOutcome(conflicts=read_conflicts(rest))
    result = objects.list_tree(tree.decode())
    steps = [
        Revised(path, ours.get(path), result.get(path))
        for path in sorted(ours.keys() | result.keys())
        if ours.get(path) != result.get(path)
    ]
    return MergeOutcome(tuple(steps), stored=frozenset(step.path for step in steps))


def read_conflicts(said: bytes) -> tuple[MergeConflict, ...]:
    """Read what `merge-tree -z` says of conflicts: entries by stage, an empty field, then messages."""
    entries, _, messages = said.partition(b"\0\0")
    sides: dict[str, dict[int, str]] = {}
    for record in filter(None, entries.split(b"\0")):
        facts, _, name = record.partition(b"\t")
        mode, oid, stage = facts.decode().split()
        sides.setdefault(os.fsdecode(name), {})[int(stage)] = f"{mode} {oid}"
    why: dict[str, str] = {}
    fields = messages.split(b"\0")
    at = 0
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        paths = fields[at + 1 : at + 1 + count]
        kind = fields[at + 1 + count].decode("utf-8", "replace")
        if kind.startswith("CONFLICT"):
            for path in paths:
                why.setdefault(os.fsdecode(path), kind)
        at += 3 + count
    found = [
        MergeConflict(path, why.get(path, "CONFLICT"), by.get(1), by.get(2), by.get(3))
        for path, by in sides.items()
    ]
    found += [MergeConflict(path, kind) for path, kind in why.items() if path not in sides]
    if not found:
        raise BugError("workspace.merge", f"git reported a conflict and named none: {said[:200]!r}")
    return tuple(sorted(found, key=lambda conflict: conflict.path))


def content_of(outcome: MergeOutcome, content: Content, objects: Objects) -> Mapping[str, Content]:
    """Where each step's content is to be had."""
    stored = StoredContent(objects)
    return {step.path: stored if step.path in outcome.stored else content for step in outcome.steps}


class Merged(msgspec.Struct, frozen=True):
    """What became of a child's changes. Free of violations and conflicts, `auto` put them in place."""

    changes: tuple[Change, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    violations: tuple[WriteViolation, ...] = ()
    proposal: str = ""
    applied: tuple[str, ...] = ()
    """The paths of the parent that were written or removed."""
    receipt: str = ""
    """Of what was put, by which it can be shown and undone."""

    @property
    def ok(self) -> bool:
        return not self.conflicts and not self.violations


class Recovered(msgspec.Struct, frozen=True):
    """What opening a project found of earlier processes."""

    left: tuple[str, ...] = ()
    """Paths of a half-done merge that somebody changed since: they were left alone."""
    unmounted: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    """Sessions whose workspace is still there without a process."""
