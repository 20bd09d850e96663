"""Disputes: a workspace in which somebody settles what a merge could not.

It starts from the parent as it is now and already holds everything of the step that goes together with that.
What is left is laid out for whoever settles it:

* A text that both sides changed holds both versions and the one before them, between git's markers.
* Of anything else (bytes, something deleted on one side, something moved twice) the parent's version is in
  its place and the step's beside it, under a name that is taken away again before the result is compared.

Rules
* What is laid out is remembered in the child's folder: a process that takes over finds the same dispute.
* A dispute that cannot be laid out in this manner is refused, and the step fails as it would have anyway.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

import msgspec

from fanfold.errors import WorldError
from fanfold.workspace.files.beneath import (
    PathProblem,
    open_folder,
    open_regular,
    open_top,
    resolve,
    spot_beneath,
)
from fanfold.workspace.files.copies import umask
from fanfold.workspace.files.manifest import OpenLayers, differing
from fanfold.workspace.merges.merge import MergeConflict, gather, read_conflicts
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.revision import (
    LayeredContent,
    Revision,
    StoredContent,
    TreeContent,
    revise,
    state_at,
)
from fanfold.workspace.snapshots.bases import Base
from fanfold.workspace.snapshots.children import Child

OURS, BASE, THEIRS = "ours: the project now", "base: before both", "theirs: the step's change"
NOTE = "dispute.json"
_CAN = ("(contents)", "(binary)", "(modify/delete)", "(rename/rename)", "(rename/delete)")
_MARKER = re.compile(rb"^(?:<<<<<<<|\|\|\|\|\|\|\||>>>>>>>)(?:[ \r].*)?$", re.MULTILINE)
_FILES = (0o100644, 0o100755)


class Dispute(msgspec.Struct, frozen=True):
    """What was laid out: empty when the changes go together after all."""

    conflicts: tuple[MergeConflict, ...] = ()
    marked: tuple[str, ...] = ()
    """Files that hold both versions between markers."""
    beside: dict[str, str] = {}
    """Path to the file that holds the step's version of it."""


def can_be_settled(conflicts: tuple[MergeConflict, ...]) -> bool:
    """Whether somebody who edits files can settle all of these."""
    return all(conflict.why.removeprefix("CONFLICT ") in _CAN for conflict in conflicts)


def lay_out(source: Child, child: Child, objects: Objects) -> Dispute:
    """Put what `source` changed into `child`, which was just made of the parent as it is now."""
    theirs, place = open_top(source.path), open_top(child.path)
    try:
        return _lay_out(source, child, objects, theirs, place)
    finally:
        os.close(theirs)
        os.close(place)


def _lay_out(source: Child, child: Child, objects: Objects, theirs: int, place: int) -> Dispute:
    with source.base.opened() as base, child.base.opened() as now:
        revision = revise(source.changes(), base, theirs)
        ours = _moved(source.base, child.base, revision, base, now)
        known, current = LayeredContent(base), LayeredContent(now)
        sides = gather(revision, TreeContent(theirs), ours, objects, known, current)
        conflicts, result, labels = _merge(*sides, objects)
        if not conflicts:
            return Dispute()
        if not can_be_settled(conflicts):
            raise WorldError("workspace.conflict", "the conflict cannot be laid out as files")
        _put_the_rest(place, sides[1], result, {conflict.path for conflict in conflicts}, objects)
        for folder in sorted(revision.folders_gone, reverse=True):
            _remove_folder(place, folder)
        for folder in revision.folders_made:
            os.close(_make_folder(place, folder))
        return _put_disputed(place, conflicts, result, labels, objects)


def clear(child: Child, dispute: Dispute) -> None:
    """Take away what was put beside."""
    top = open_top(child.path)
    try:
        for name in dispute.beside.values():
            with suppress(FileNotFoundError, PathProblem, IsADirectoryError), spot_beneath(top, name) as spot:
                os.unlink(spot.name, dir_fd=spot.folder)
    finally:
        os.close(top)


def unsettled(child: Child, dispute: Dispute, objects: Objects) -> list[str]:
    """The files in which markers are left that neither side had."""
    found: list[str] = []
    for conflict in dispute.conflicts:
        if conflict.path not in dispute.marked:
            continue
        had: set[bytes] = set()
        for side in (conflict.ours, conflict.theirs):
            if side is not None:
                had.update(_MARKER.findall(objects.get(side.rpartition(" ")[2])))
        try:
            with resolve(str(child.path), conflict.path, follow_last=False) as spot:
                handle = open_regular(spot, conflict.path)
        except PathProblem:
            continue  # deleted, or no file any more: that settles it too
        with os.fdopen(handle, "rb") as opened:
            text = opened.read()
        if set(_MARKER.findall(text)) - had:
            found.append(conflict.path)
    return found


def _moved(
    before: Base, after: Base, revision: Revision, base: OpenLayers, now: OpenLayers
) -> dict[str, tuple[FileState | None, FileState | None]]:
    """What differs between two bases, and what the revision touches."""
    paths = {file.path for file in revision.files} | differing(before.manifest, after.manifest)
    paths |= before.manifest.files.keys() - after.manifest.files.keys()
    found = {path: (state_at(base.at(path), path), state_at(now.at(path), path)) for path in paths}
    return {path: states for path, states in found.items() if states[0] != states[1]}


def _merge(
    base: dict[str, FileState], ours: dict[str, FileState], theirs: dict[str, FileState], objects: Objects
) -> tuple[tuple[MergeConflict, ...], dict[str, FileState], tuple[str, str, str]]:
    """Conflicts, what git leaves in the tree, and the names by which markers call the three sides."""
    root = objects.put_commit(objects.put_tree(base))
    sides = [objects.put_commit(objects.put_tree(side), (root,)) for side in (ours, theirs)]
    arguments = ["-c", "merge.conflictStyle=diff3", "merge-tree", "--write-tree", "-z", "--messages", *sides]
    code, said = objects.git(arguments, ok=(0, 1))
    tree, _, rest = said.partition(b"\0")
    conflicts = read_conflicts(rest) if code == 1 else ()
    return conflicts, objects.list_tree(tree.decode()), (sides[0], root, sides[1])


def _put_the_rest(
    place: int, ours: dict[str, FileState], result: dict[str, FileState], disputed: set[str], objects: Objects
) -> None:
    """What goes together with the parent as it is."""
    changed = [path for path in ours.keys() | result.keys() if ours.get(path) != result.get(path)]
    # Deletions first: what is gone may be in the way of what comes.
    for path in sorted(set(changed) - disputed, key=lambda path: (path in result, path)):
        _put(place, path, result.get(path), objects)


def _put_disputed(
    place: int,
    conflicts: tuple[MergeConflict, ...],
    result: dict[str, FileState],
    labels: tuple[str, str, str],
    objects: Objects,
) -> Dispute:
    marked: list[str] = []
    beside: dict[str, str] = {}
    for conflict in conflicts:
        ours, theirs = _state(conflict.ours), _state(conflict.theirs)
        left = result.get(conflict.path)
        texts = ours is not None and theirs is not None and ours.mode in _FILES and theirs.mode in _FILES
        if texts and left is not None and left.oid not in (ours and ours.oid, theirs and theirs.oid):
            data = _relabel(objects.get(left.oid), labels)
            _put(place, conflict.path, FileState(left.mode, objects.put("blob", data)), objects)
            marked.append(conflict.path)
        elif theirs is not None:
            name = _free_name(place, f"{conflict.path}.theirs")
            # A link is shown as the text it holds: laid as one it could lead anywhere.
            mode = theirs.mode if theirs.mode in _FILES else _FILES[0]
            _put(place, name, FileState(mode, theirs.oid), objects)
            beside[conflict.path] = name
    return Dispute(conflicts, tuple(marked), beside)


def _relabel(data: bytes, labels: tuple[str, str, str]) -> bytes:
    """The same with markers that say what is what; git names commits of ours that nobody knows."""
    ours, base, theirs = (label.encode() for label in labels)
    data = re.sub(rb"^<<<<<<< " + ours, b"<<<<<<< " + OURS.encode(), data, flags=re.MULTILINE)
    data = re.sub(rb"^>>>>>>> " + theirs, b">>>>>>> " + THEIRS.encode(), data, flags=re.MULTILINE)
    short = rb"^\|{7} (?P<name>[0-9a-f]{4,40})"

    def named(found: re.Match[bytes]) -> bytes:
        return b"||||||| " + BASE.encode() if base.startswith(found["name"]) else found[0]

    return re.sub(short, named, data, flags=re.MULTILINE)


def _state(side: str | None) -> FileState | None:
    if side is None:
        return None
    mode, _, oid = side.partition(" ")
    return FileState(int(mode, 8), oid)


def _free_name(place: int, wanted: str) -> str:
    name, number = wanted, 1
    while _is_taken(place, name):
        number += 1
        name = f"{wanted}{number}"
    return name


def _is_taken(place: int, path: str) -> bool:
    try:
        with spot_beneath(place, path) as spot:
            return spot.status() is not None
    except FileNotFoundError:
        return False


def _put(place: int, path: str, state: FileState | None, objects: Objects) -> None:
    """Have this state at a path of the child, or nothing."""
    folder, _, name = path.rpartition("/")
    if state is None:
        with suppress(FileNotFoundError, PathProblem), spot_beneath(place, path) as spot:
            os.unlink(spot.name, dir_fd=spot.folder)
        return
    handle = _make_folder(place, folder)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)
        StoredContent(objects).stage(path, state, handle, name)
        if state.mode in _FILES:
            wanted = 0o777 if state.mode & 0o111 else 0o666
            os.chmod(name, wanted & ~umask(), dir_fd=handle)
    finally:
        os.close(handle)


def _remove_folder(place: int, path: str) -> None:
    """Remove a folder of the child if it is empty by now."""
    with suppress(OSError, PathProblem), spot_beneath(place, path) as spot:
        os.rmdir(spot.name, dir_fd=spot.folder)


def _make_folder(place: int, path: str) -> int:
    """A handle of a folder of the child, made where it is missing."""
    names = path.split("/") if path else []
    for depth in range(1, len(names) + 1):
        above = open_folder(place, "/".join(names[: depth - 1]))
        try:
            with suppress(FileExistsError):
                os.mkdir(names[depth - 1], dir_fd=above)
        finally:
            os.close(above)
    return open_folder(place, path)
