"""What is kept of merges beside the files: receipts of those that were made, proposals of those that wait.

A receipt says what a merge put into the parent and what had been there, so that it can be shown and undone. A
proposal is a revision (states by hash) that waits for somebody to apply it, with nothing needed but the
private store: its content is there, so the child can go.

Rules
* What a merge replaces or removes is in the private store before it is touched, whatever its size: also work
  that nobody had committed has a way back. What it puts is there too, for diffs, unless it is very large.
* A receipt is written by the journal when the merge is done, and by nobody else: none without its merge.
* Merges are told in the order in which they were made, also when the clock was set back in between.
* Undoing goes by hash. A path must still be as the merge left it, or be as it was before already; several
  merges are undone together, newest first, if each found what the one before it had left.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files import trash
from fanfold.workspace.files.beneath import PathProblem, spot_beneath
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.merges.journal import Note, ancestors
from fanfold.workspace.merges.merge import has_room
from fanfold.workspace.merges.objects import FileState, Objects
from fanfold.workspace.merges.revision import Content, Revised, Revision, state_at
from fanfold.workspace.merges.staging import manner_of
from fanfold.workspace.snapshots.changes import Change

MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Of a file that a merge puts: a larger one has no patch when it was changed since."""
_ID = re.compile(r"m[0-9a-f]{16}", re.ASCII)
_PROPOSAL_ID = re.compile(r"p[0-9a-z_.:#@=+-]{1,220}", re.IGNORECASE)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One merge. `before` and `after` of its files are those of the parent."""

    id: str
    origin: str
    """The run whose step it was."""
    session: str
    merged_ns: int
    """When, by the wall clock; later than every merge before it in any case."""
    files: tuple[Revised, ...]
    modes: dict[str, int]
    """Of files that were there before."""
    folders: dict[str, int]
    """The folders that were there before around its files, and those that it removed, with their modes."""
    folders_made: tuple[str, ...] = ()


class Blocked(msgspec.Struct, frozen=True):
    """A path that is not as a merge left it; `by` is the receipt of a later merge that did it, if one did."""

    path: str
    by: str = ""


class Reversal(msgspec.Struct, frozen=True):
    """What undoing merges does to the parent, or what is in the way."""

    steps: tuple[Revised, ...] = ()
    modes: dict[str, int] = {}
    folders_made: tuple[str, ...] = ()
    folders_gone: tuple[str, ...] = ()
    blocked: tuple[Blocked, ...] = ()


class Receipts:
    """The receipts of one project."""

    def __init__(self, layout: Layout, objects: Objects) -> None:
        self._layout = layout
        self._objects = objects

    def prepare(
        self,
        steps: tuple[Revised, ...],
        revision: Revision,
        parent: int,
        contents: Mapping[str, Content],
        *,
        origin: str,
        session: str,
    ) -> Receipt:
        """Say what will have been done; the store has what is replaced, and is given what comes instead."""
        modes: dict[str, int] = {}
        for step in steps:
            mode = _mode_at(parent, step.path) if step.before is not None else None
            if mode is not None:
                modes[step.path] = mode
            if step.after is not None:
                contents[step.path].keep(step.path, step.after, self._objects, MAX_KEPT_BYTES)
        return Receipt(
            id=f"m{os.urandom(8).hex()}",
            origin=origin,
            session=session,
            merged_ns=self._next_ns(),
            files=steps,
            modes=modes,
            folders=_folders_at(parent, {step.path for step in steps}, revision),
            folders_made=revision.folders_made,
        )

    def _next_ns(self) -> int:
        """The time of the next merge. Called with the workspace lock held."""
        try:
            last = int(read_kept(self._layout.merged_ns))
        except (FileNotFoundError, ValueError):
            last = max((receipt.merged_ns for receipt in self.all()), default=0)
        now = max(time.time_ns(), last + 1)
        write_whole(self._layout.merged_ns, b"%d" % now)
        return now

    def note(self, receipt: Receipt) -> Note:
        """What the journal writes when the merge is done."""
        return Note(str(self._file(receipt.id)), msgspec.json.encode(receipt))

    def undone_note(self, receipt_id: str) -> Note:
        """What the journal writes when the merge was undone."""
        return Note(str(self._undone(receipt_id)), b"")

    def get(self, receipt_id: str) -> Receipt:
        try:
            return msgspec.json.decode(read_kept(self._file(receipt_id)), type=Receipt)
        except FileNotFoundError:
            message = "nobody knows any more what was there before this merge"
            raise NotFoundError("changes.gone", message, hint="gc may have cleared it away") from None
        except msgspec.DecodeError as error:
            raise WorldError("workspace.damaged", f"receipt {receipt_id} is damaged: {error}") from error

    def is_undone(self, receipt_id: str) -> bool:
        return self._undone(receipt_id).exists()

    def all(self) -> list[Receipt]:
        """Every receipt, oldest first."""
        found = [self.get(file.stem) for file in self._layout.receipts.glob("m*.json")]
        return sorted(found, key=lambda receipt: (receipt.merged_ns, receipt.id))

    def drop(self, receipt_id: str) -> None:
        trash.throw_away(self._file(receipt_id), self._layout.trash)
        self._undone(receipt_id).unlink(missing_ok=True)

    def reverse(self, wanted: Sequence[str], parent: int) -> Reversal:
        """What undoing these merges takes, of those that are not undone yet."""
        chosen = [self.get(one) for one in wanted if not self.is_undone(one)]
        chosen.sort(key=lambda receipt: (receipt.merged_ns, receipt.id), reverse=True)
        ends: dict[str, FileState | None] = {}
        targets: dict[str, FileState | None] = {}
        broken: dict[str, None] = {}
        modes: dict[str, int] = {}
        folders: dict[str, int | None] = {}
        """To the mode of one that was there; None for one that was not."""
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
        steps: list[Revised] = []
        for path, target in targets.items():
            now = state_at(parent, path)
            if now == target:
                continue
            if now != ends[path]:
                broken[path] = None
            steps.append(Revised(path, now, target))
        going = {step.path for step in steps if step.after is None}
        coming = [step.path for step in steps if step.before is None]
        broken |= dict.fromkeys(path for path in coming if not has_room(parent, path, going))
        if broken:
            return Reversal(blocked=self._blocked(broken, parent, {one.id for one in chosen}))
        return Reversal(
            tuple(steps),
            modes | {folder: mode for folder, mode in folders.items() if mode is not None},
            tuple(sorted(folder for folder, mode in folders.items() if mode is not None)),
            tuple(sorted(folder for folder, mode in folders.items() if mode is None)),
        )

    def _blocked(self, paths: Iterable[str], parent: int, chosen: set[str]) -> tuple[Blocked, ...]:
        others = [one for one in self.all() if one.id not in chosen and not self.is_undone(one.id)]
        found: list[Blocked] = []
        for path in paths:
            now = state_at(parent, path)
            by = [one.id for one in others for file in one.files if (file.path, file.after) == (path, now)]
            found.append(Blocked(path, by[-1] if by else ""))
        return tuple(found)

    def _file(self, receipt_id: str) -> Path:
        if not _ID.fullmatch(receipt_id):
            raise NotFoundError("changes.gone", f"{receipt_id!r:.80} names no merge")
        return self._layout.receipts / f"{receipt_id}.json"

    def _undone(self, receipt_id: str) -> Path:
        return self._file(receipt_id).with_suffix(".undone")


def _folders_at(parent: int, paths: set[str], revision: Revision) -> dict[str, int]:
    around = ancestors(paths | {f"{folder}/." for folder in revision.folders_gone})
    found = {folder: manner_of(parent, folder) for folder in sorted(around)}
    return {folder: manner[0] for folder, manner in found.items() if manner is not None}


def _mode_at(parent: int, path: str) -> int | None:
    try:
        with spot_beneath(parent, path) as spot:
            status = spot.status()
    except (FileNotFoundError, PathProblem):
        return None
    return stat.S_IMODE(status.st_mode) if status is not None and stat.S_ISREG(status.st_mode) else None


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What waits."""

    id: str
    session: str
    base: str
    created_ms: int
    write_set: tuple[str, ...] | None
    changes: tuple[Change, ...]
    revision: Revision
    origin: str = ""
    """What its child was made for."""


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
        """Keep a revision whose content the store has. One session has one proposal: the newest."""
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
        self.note(proposal.id).unlink(missing_ok=True)  # of an earlier one of this session
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
        """Every proposal, oldest first."""
        found = [self.get(file.stem) for file in self._layout.proposals.glob("p*.json")]
        return sorted(found, key=lambda proposal: (proposal.created_ms, proposal.id))

    def drop(self, proposal_id: str) -> None:
        trash.throw_away(self._file(proposal_id), self._layout.trash)
        self.note(proposal_id).unlink(missing_ok=True)

    def note(self, proposal_id: str) -> Path:
        """Where it is written down that a proposal was applied, until it is dropped."""
        return self._file(proposal_id).with_suffix(".applied")

    def _file(self, proposal_id: str) -> Path:
        if not _PROPOSAL_ID.fullmatch(proposal_id):
            raise NotFoundError("workspace.no_proposal", f"{proposal_id!r:.80} names no proposal")
        return self._layout.proposals / f"{proposal_id}.json"


def keep_content(revision: Revision, before: Content, after: Content, objects: Objects) -> None:
    """Put both sides of a revision into the store."""
    for file in revision.files:
        if file.before is not None:
            before.keep(file.path, file.before, objects)
        if file.after is not None:
            after.keep(file.path, file.after, objects)


def draw_diff(revision: Revision, objects: Objects) -> str:
    """The revision as a patch that `git apply` understands; its content is in the store."""
    before = {file.path: file.before for file in revision.files if file.before is not None}
    after = {file.path: file.after for file in revision.files if file.after is not None}
    sides = [objects.put_tree(before), objects.put_tree(after)]
    options = ["-r", "-p", "--binary", "--full-index", "-M", "--no-color", "--no-ext-diff", "--no-textconv"]
    return objects.git(["diff-tree", *options, *sides])[1].decode("utf-8", "replace")
