"""Receipts of applied merges, and proposals of pending ones.

A receipt records the files that a merge wrote and the files that were there before, so that the merge can be
shown and reverted. A proposal is a revision (states by hash) that waits to be applied. Its content is in the
private store, so the step workspace is not needed any more.

Rules
* Files that a merge replaces or removes are stored in the private store first, at any size. So even
  uncommitted work can be restored. Files that it writes are stored too, for diffs, unless they are very
  large.
* Only the journal writes a receipt, when the merge is applied. So there is no receipt without its merge.
* Merges are listed in the order in which they were applied, even if the clock was set back in between.
* A revert compares hashes. A path must still be as the merge left it, or already be as it was before. Several
  merges are reverted together, newest first, if each one started from the result of the previous one.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import layout as trash
from fanfold.workspace.beneath import (
    PathProblem,
    differing,
    open_folder,
    open_regular,
    open_top,
    resolve,
    spot_beneath,
    umask,
)
from fanfold.workspace.changes import Change
from fanfold.workspace.children import Child
from fanfold.workspace.layout import Layout, read_kept
from fanfold.workspace.merge import (
    Content,
    FileState,
    LayeredContent,
    MergeConflict,
    Objects,
    PathRevision,
    Revision,
    StoredContent,
    TreeContent,
    gather,
    has_room,
    merge_trees,
    revise,
    state_at,
)
from fanfold.workspace.merge_journal import Note, ancestors, manner_of

MAX_KEPT_BYTES = 4 * 1024 * 1024
"""The maximum size of a stored new file; a larger one has no patch if it was changed since."""
_ID = r"(?a)m[0-9a-f]{16}"
_PROPOSAL_ID = r"(?i)p[0-9a-z_.:#@=+-]{1,220}"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One merge. `before` and `after` of its files are states of the project tree."""

    id: str
    origin: str
    """The run of the step."""
    session: str
    merged_ns: int
    """The wall-clock time, adjusted to be later than every previous merge."""
    files: tuple[PathRevision, ...]
    modes: dict[str, int]
    """The modes of files that existed before."""
    folders: dict[str, int]
    """The earlier folders around its files, and the folders that it removed, with their modes."""
    folders_made: tuple[str, ...] = ()


class BlockedPath(msgspec.Struct, frozen=True):
    """A path that is not as a merge left it, and the receipt of the merge that changed it, if any."""

    path: str
    by: str = ""


class Reversal(msgspec.Struct, frozen=True):
    """The operations that revert merges, or the paths that block it."""

    steps: tuple[PathRevision, ...] = ()
    modes: dict[str, int] = {}
    folders_made: tuple[str, ...] = ()
    folders_gone: tuple[str, ...] = ()
    blocked: tuple[BlockedPath, ...] = ()


class Receipts:
    """The receipts of one project."""

    def __init__(self, layout: Layout, objects: Objects) -> None:
        self._layout = layout
        self._objects = objects

    def prepare(
        self,
        steps: tuple[PathRevision, ...],
        revision: Revision,
        parent: int,
        contents: Mapping[str, Content],
        *,
        origin: str,
        session: str,
    ) -> Receipt:
        """Prepare the receipt of a merge, and store its new files."""
        modes: dict[str, int] = {}
        for step in steps:
            if step.before is not None:
                with suppress(FileNotFoundError, PathProblem), spot_beneath(parent, step.path) as spot:
                    status = spot.status()
                    if status is not None and stat.S_ISREG(status.st_mode):
                        modes[step.path] = stat.S_IMODE(status.st_mode)
            if step.after is not None:
                contents[step.path].keep(step.path, step.after, self._objects, MAX_KEPT_BYTES)
        around = ancestors({step.path for step in steps} | {f"{path}/." for path in revision.folders_gone})
        folders = {path: manner_of(parent, path) for path in sorted(around)}
        return Receipt(
            id=f"m{os.urandom(8).hex()}",
            origin=origin,
            session=session,
            merged_ns=self._next_ns(),
            files=steps,
            modes=modes,
            folders={path: manner[0] for path, manner in folders.items() if manner is not None},
            folders_made=revision.folders_made,
        )

    def _next_ns(self) -> int:
        """Return the time of the next merge. Called with the workspace lock held."""
        try:
            last = int(read_kept(self._layout.merged_ns))
        except (FileNotFoundError, ValueError):
            last = max((receipt.merged_ns for receipt in self.all()), default=0)
        now = max(time.time_ns(), last + 1)
        write_whole(self._layout.merged_ns, b"%d" % now)
        return now

    def note(self, receipt: Receipt) -> Note:
        """Return the note that the journal writes when the merge is applied."""
        return Note(str(self._file(receipt.id)), msgspec.json.encode(receipt))

    def undone_note(self, receipt_id: str) -> Note:
        """Return the note that the journal writes when the merge is reverted."""
        return Note(str(self._undone(receipt_id)), b"")

    def get(self, receipt_id: str) -> Receipt:
        try:
            return msgspec.json.decode(read_kept(self._file(receipt_id)), type=Receipt)
        except FileNotFoundError:
            message = "the record of what was there before this merge is gone"
            raise NotFoundError("changes.gone", message, hint="gc may have deleted it") from None
        except msgspec.DecodeError as error:
            raise WorldError("workspace.damaged", f"receipt {receipt_id} is damaged: {error}") from error

    def is_undone(self, receipt_id: str) -> bool:
        return self._undone(receipt_id).exists()

    def all(self) -> list[Receipt]:
        """Return all receipts, oldest first."""
        found = [self.get(file.stem) for file in self._layout.receipts.glob("m*.json")]
        return sorted(found, key=lambda receipt: (receipt.merged_ns, receipt.id))

    def drop(self, receipt_id: str) -> None:
        trash.throw_away(self._file(receipt_id), self._layout.trash)
        self._undone(receipt_id).unlink(missing_ok=True)

    def reverse(self, wanted: Sequence[str], parent: int) -> Reversal:
        """Return the operations that revert these merges; already reverted ones are skipped."""
        chosen = [self.get(one) for one in wanted if not self.is_undone(one)]
        chosen.sort(key=lambda receipt: (receipt.merged_ns, receipt.id), reverse=True)
        ends: dict[str, FileState | None] = {}
        targets: dict[str, FileState | None] = {}
        broken: dict[str, None] = {}
        modes: dict[str, int] = {}
        folders: dict[str, int | None] = {}
        """Maps a folder to its earlier mode; None if it did not exist."""
        for receipt in chosen:
            folders |= dict.fromkeys(receipt.folders_made, None) | receipt.folders
            for file in receipt.files:
                ends.setdefault(file.path, file.after)
                if targets.get(file.path, file.after) != file.after:
                    broken[file.path] = None
                targets[file.path] = file.before
                modes.pop(file.path, None)
                if file.path in receipt.modes:
                    modes[file.path] = receipt.modes[file.path]
        steps: list[PathRevision] = []
        for path, target in targets.items():
            now = state_at(parent, path)
            if now == target:
                continue
            if now != ends[path]:
                broken[path] = None
            steps.append(PathRevision(path, now, target))
        going = {step.path for step in steps if step.after is None}
        coming = [step.path for step in steps if step.before is None]
        broken |= dict.fromkeys(path for path in coming if not has_room(parent, path, going))
        if broken:
            ids = {receipt.id for receipt in chosen}
            others = [one for one in self.all() if one.id not in ids and not self.is_undone(one.id)]
            blocked: list[BlockedPath] = []
            for path in broken:
                left = (path, state_at(parent, path))
                by = [other.id for other in others for file in other.files if (file.path, file.after) == left]
                blocked.append(BlockedPath(path, by[-1] if by else ""))
            return Reversal(blocked=tuple(blocked))
        return Reversal(
            tuple(steps),
            modes | {folder: mode for folder, mode in folders.items() if mode is not None},
            tuple(sorted(folder for folder, mode in folders.items() if mode is not None)),
            tuple(sorted(folder for folder, mode in folders.items() if mode is None)),
        )

    def _file(self, receipt_id: str) -> Path:
        if not re.fullmatch(_ID, receipt_id):
            raise NotFoundError("changes.gone", f"there is no merge {receipt_id!r:.80}")
        return self._layout.receipts / f"{receipt_id}.json"

    def _undone(self, receipt_id: str) -> Path:
        return self._file(receipt_id).with_suffix(".undone")


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A pending merge."""

    id: str
    session: str
    base: str
    created_ms: int
    write_set: tuple[str, ...] | None
    changes: tuple[Change, ...]
    revision: Revision
    origin: str = ""
    """The purpose of its step workspace."""


class Proposals:
    """The proposals of one project."""

    def __init__(self, layout: Layout, objects: Objects) -> None:
        self._layout = layout
        self._objects = objects

    def add(
        self,
        session: str,
        base: str,
        write_set: tuple[str, ...] | None,
        changes: tuple[Change, ...],
        revision: Revision,
        origin: str = "",
    ) -> Proposal:
        """Store a revision whose content is already stored. A session has one proposal: the newest."""
        proposal = Proposal(
            id=f"p{session}",
            session=session,
            base=base,
            created_ms=time.time_ns() // 1_000_000,
            write_set=write_set,
            changes=changes,
            revision=revision,
            origin=origin,
        )
        self.note(proposal.id).unlink(missing_ok=True)  # of an earlier proposal of this session
        write_whole(self._file(proposal.id), msgspec.json.encode(proposal), durable=True)
        return proposal

    def get(self, proposal_id: str) -> Proposal:
        try:
            return msgspec.json.decode(read_kept(self._file(proposal_id)), type=Proposal)
        except FileNotFoundError:
            message = f'there is no proposal "{proposal_id}"'
            raise NotFoundError("workspace.no_proposal", message, hint="it may have been applied") from None
        except msgspec.DecodeError as error:
            message = f'proposal "{proposal_id}" is damaged: {error}'
            raise WorldError("workspace.damaged", message) from error

    def all(self) -> list[Proposal]:
        """Return all proposals, oldest first."""
        found = [self.get(file.stem) for file in self._layout.proposals.glob("p*.json")]
        return sorted(found, key=lambda proposal: (proposal.created_ms, proposal.id))

    def drop(self, proposal_id: str) -> None:
        trash.throw_away(self._file(proposal_id), self._layout.trash)
        self.note(proposal_id).unlink(missing_ok=True)

    def note(self, proposal_id: str) -> Path:
        """Return the file that records that a proposal was applied, until it is dropped."""
        return self._file(proposal_id).with_suffix(".applied")

    def _file(self, proposal_id: str) -> Path:
        if not re.fullmatch(_PROPOSAL_ID, proposal_id):
            raise NotFoundError("workspace.no_proposal", f"there is no proposal {proposal_id!r:.80}")
        return self._layout.proposals / f"{proposal_id}.json"


def keep_content(revision: Revision, before: Content, after: Content, objects: Objects) -> None:
    """Store the content of both sides of a revision."""
    for file in revision.files:
        if file.before is not None:
            before.keep(file.path, file.before, objects)
        if file.after is not None:
            after.keep(file.path, file.after, objects)


def draw_diff(revision: Revision, objects: Objects) -> str:
    """Return the revision as a patch for `git apply`; its content must be stored."""
    before = {file.path: file.before for file in revision.files if file.before is not None}
    after = {file.path: file.after for file in revision.files if file.after is not None}
    return objects.draw_trees(objects.put_tree(before), objects.put_tree(after))


# -----------------------------------------------------------------------------------------------------------
# Disputes: a workspace for resolving the conflicts of a merge
#
# It starts from the current project tree and already contains all changes of the step without conflicts. The
# conflicts are presented as files:
#
# * A text that both sides changed contains both versions and the base version, between git's conflict
#   markers.
# * For other conflicts (binary files, a deletion on one side, a file moved twice), the project's version is
#   in its place. The step's version is next to it, under a name that is removed before the result is
#   compared.
#
# Rules
# * The dispute is recorded in the folder of the step workspace, so a process that takes over finds the same
#   dispute.
# * A conflict that cannot be presented as files is refused, and the step fails as without a dispute.

OURS, BASE, THEIRS = "ours: the project now", "base: before both", "theirs: the step's change"
NOTE = "dispute.json"
_CAN = ("(contents)", "(binary)", "(modify/delete)", "(rename/rename)", "(rename/delete)")
_MARKER = rb"(?m)^(?:<<<<<<<|\|\|\|\|\|\|\||>>>>>>>)(?:[ \r].*)?$"
_FILES = (0o100644, 0o100755)


class Dispute(msgspec.Struct, frozen=True):
    """The conflicts that were presented as files; empty if the changes have no conflict after all."""

    conflicts: tuple[MergeConflict, ...] = ()
    marked: tuple[str, ...] = ()
    """Files with both versions between markers."""
    beside: dict[str, str] = {}
    """Maps a path to the file with the step's version."""


def can_be_settled(conflicts: tuple[MergeConflict, ...]) -> bool:
    """Return whether all conflicts can be resolved by editing files."""
    return all(conflict.why.removeprefix("CONFLICT ") in _CAN for conflict in conflicts)


def lay_out(source: Child, child: Child, objects: Objects) -> Dispute:
    """Merge the changes of `source` into `child`, a new workspace of the current project tree."""
    with (
        Closing(open_top(source.path)) as theirs,
        Closing(open_top(child.path)) as place,
        source.base.opened() as base,
        child.base.opened() as now,
    ):
        revision = revise(source.changes(), base, theirs)
        before, after = source.base.manifest, child.base.manifest
        paths = {file.path for file in revision.files} | differing(before, after)
        paths |= before.files.keys() - after.files.keys()
        states = {path: (state_at(base.at(path), path), state_at(now.at(path), path)) for path in paths}
        ours = {path: pair for path, pair in states.items() if pair[0] != pair[1]}
        known, current = LayeredContent(base), LayeredContent(now)
        sides = gather(revision, TreeContent(theirs), ours, objects, known, current)
        conflicts, merged, labels = merge_trees(*sides, objects, "-c", "merge.conflictStyle=diff3")
        if not conflicts:
            return Dispute()
        if not can_be_settled(conflicts):
            raise WorldError("workspace.conflict", "the conflict cannot be presented as files")
        result = objects.list_tree(merged)
        own, disputed = sides[1], {conflict.path for conflict in conflicts}
        changed = {path for path in own.keys() | result.keys() if own.get(path) != result.get(path)}
        # Deletions first: a deleted file may block the path of a new one.
        for path in sorted(changed - disputed, key=lambda path: (path in result, path)):
            _put(place, path, result.get(path), objects)
        for folder in sorted(revision.folders_gone, reverse=True):  # if they are empty
            with suppress(OSError, PathProblem), spot_beneath(place, folder) as spot:
                os.rmdir(spot.name, dir_fd=spot.folder)
        for folder in revision.folders_made:
            os.close(_make_folder(place, folder))
        return _put_disputed(place, conflicts, result, labels, objects)


def clear(child: Child, dispute: Dispute) -> None:
    """Remove the files with the step's versions."""
    with Closing(open_top(child.path)) as top:
        for name in dispute.beside.values():
            with suppress(FileNotFoundError, PathProblem, IsADirectoryError), spot_beneath(top, name) as spot:
                os.unlink(spot.name, dir_fd=spot.folder)


def unsettled(child: Child, dispute: Dispute, objects: Objects) -> list[str]:
    """Return the files that still contain conflict markers that neither side had."""
    found: list[str] = []
    for conflict in dispute.conflicts:
        if conflict.path not in dispute.marked:
            continue
        had: set[bytes] = set()
        for side in (conflict.ours, conflict.theirs):
            if side is not None:
                had.update(re.findall(_MARKER, objects.get(side.rpartition(" ")[2])))
        try:
            with resolve(str(child.path), conflict.path, follow_last=False) as spot:
                handle = open_regular(spot, conflict.path)
        except PathProblem:
            continue  # deleted, or not a file any more: this also resolves it
        with os.fdopen(handle, "rb") as opened:
            text = opened.read()
        if set(re.findall(_MARKER, text)) - had:
            found.append(conflict.path)
    return found


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
            name, number = f"{conflict.path}.theirs", 1
            while _is_taken(place, name):
                number += 1
                name = f"{conflict.path}.theirs{number}"
            # A link is written as a text file: a real link could lead anywhere.
            mode = theirs.mode if theirs.mode in _FILES else _FILES[0]
            _put(place, name, FileState(mode, theirs.oid), objects)
            beside[conflict.path] = name
    return Dispute(conflicts, tuple(marked), beside)


def _relabel(data: bytes, labels: tuple[str, str, str]) -> bytes:
    """Replace git's labels of internal commits by readable ones."""
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


def _is_taken(place: int, path: str) -> bool:
    try:
        with spot_beneath(place, path) as spot:
            return spot.status() is not None
    except FileNotFoundError:
        return False


def _put(place: int, path: str, state: FileState | None, objects: Objects) -> None:
    """Write this state to a path of the workspace, or delete the file."""
    folder, _, name = path.rpartition("/")
    if state is None:
        with suppress(FileNotFoundError, PathProblem), spot_beneath(place, path) as spot:
            os.unlink(spot.name, dir_fd=spot.folder)
        return
    with Closing(_make_folder(place, folder)) as handle:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)
        StoredContent(objects).stage(path, state, handle, name)
        if state.mode in _FILES:
            wanted = 0o777 if state.mode & 0o111 else 0o666
            os.chmod(name, wanted & ~umask(), dir_fd=handle)


def _make_folder(place: int, path: str) -> int:
    """Open a folder of the workspace; create it if it is missing."""
    names = path.split("/") if path else []
    for depth in range(1, len(names) + 1):
        with Closing(open_folder(place, "/".join(names[: depth - 1]))) as above, suppress(FileExistsError):
            os.mkdir(names[depth - 1], dir_fd=above)
    return open_folder(place, path)
