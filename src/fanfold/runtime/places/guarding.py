"""What programs of shared steps made that tells other programs what to do: it does not stay in the project.

Functions are code of the user and readers cannot write, so neither is guarded.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fanfold.errors import WorldError
from fanfold.kernel.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanfold.workspace.guard import Guard, GuardFindings
    from fanfold.workspace.snapshots.changes import WriteViolation
    from fanfold.workspace.workspaces import Workspaces

_log = logging.getLogger(__name__)


def guard_for(writer: object, spaces: Callable[[], Workspaces]) -> Guard | None:
    """A guard over the project for a writer that shares it; None for one that runs no programs."""
    from fanfold.workspace.guard import Guard

    if isinstance(writer, Node) and writer.step.traits.workspace == "project":
        return None
    try:
        return Guard(spaces().project)
    except WorldError:
        return None  # where no workspace can be opened no program can be started


def settled(guard: Guard) -> tuple[list[WriteViolation], str]:
    """What a step is blamed for by its guard, and where that is now."""
    from fanfold.workspace.snapshots.changes import WriteViolation

    found = guard.settle(_is_confined)
    rows = [WriteViolation(path, "protected") for path in (*found.moved, *found.changed)]
    return rows, _where(found)


def clear(guard: Guard, session: str) -> None:
    """Settle a guard whose step was cut short: nobody is told but the log of this process."""
    rows, where = settled(guard)
    if rows:
        _log.warning("%s made %s; %s", session, ", ".join(row.path for row in rows), where)


def _where(found: GuardFindings) -> str:
    if not found.moved:
        return ""
    return f"{', '.join(found.moved)} did not stay in the project and is in {found.folder} now"


def _is_confined(project: Path) -> bool:
    """Whether programs run in a sandbox here: the strongest level there is is always taken."""
    from fanfold.workspace.sandbox.levels import detect

    levels = detect(project)
    return levels.bubblewrap.available or levels.landlock.available
