"""Having it in the log what people did to the project's files: applied a proposal, took a merge back.

Whoever drives the run writes its log. When nobody does, the lease is taken for a moment; also of a run that
has ended.
"""

from __future__ import annotations

from typing import TypeAlias

from fanfold.errors import WorldError
from fanfold.runtime.hosting.requests import AppliedRequest, UndoneRequest, note_applied, note_undone
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import PATIENCE_S, leave, until_taken
from fanfold.runtime.operations.runs.ownership import own
from fanfold.store.protocol import LeaseHeld, RunHead

Done: TypeAlias = AppliedRequest | UndoneRequest


async def record(project: Project, head: RunHead, done: Done) -> None:
    """Have it in the log of the run: by its owner, or here when nobody owns it."""
    root = head.root_run_id
    number: int | None = None
    while True:
        try:
            owned = own(project, root)
        except LeaseHeld:
            number = leave(project, head, done) if number is None else number
            taken = await until_taken(project, root, number)
            if taken:
                return
            if taken is None:
                raise _unrecorded(root) from None
            continue
        try:
            now = owned.tree.now_ms()
            if isinstance(done, AppliedRequest):
                note_applied(owned.tree, head.run_id, done, now)
            else:
                note_undone(owned.tree, head.run_id, done, now)
            owned.tree.requests_done += [] if number is None else [number]
            owned.tree.commit()
        finally:
            owned.done()
        return


def _unrecorded(root: str) -> WorldError:
    return WorldError(
        "run.busy",
        f"the files of the project are as asked, but the process that drives run {root} has not recorded it"
        f" within {PATIENCE_S:g} s",
        hint="say it again when it has ended: nothing is done twice",
    )
