"""Proposals: revisions that wait for somebody to apply them, with nothing needed but the private store.

A proposal holds its revision (states by hash), the base it was made from, the write-set it was checked
against and its diff as text. Its content is in the store, so the child can go.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from fanfold.errors import NotFoundError, WorldError
from fanfold.workspace.files import trash
from fanfold.workspace.files.kept import read_kept
from fanfold.workspace.files.layout import Layout, write_whole
from fanfold.workspace.merges.objects import Objects
from fanfold.workspace.merges.revision import Content, Revision
from fanfold.workspace.snapshots.changes import Change

_ID = re.compile(r"p[0-9a-z_.:#@=+-]{1,220}", re.IGNORECASE)


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
        if not _ID.fullmatch(proposal_id):
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
