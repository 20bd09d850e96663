"""How a step is told that its changes may not be, or do not go together: the paths, why, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.runtime.records.ids import root_of, typed_path

if TYPE_CHECKING:
    from fanfold.workspace.snapshots.changes import FoundChanges, WriteViolation

WHY = {
    "outside_write_set": (
        "outside write_set",
        "widen the step's write_set, or tell the agent where it may write",
    ),
    "read_only": ("it may only read", "give the step a write_set if it is to change files"),
    "protected": (
        "git's, Fanfold's or a role's",
        "what belongs to git, Fanfold, Codex or Claude Code is no step's to change, whatever write_set says",
    ),
    "special_file": (
        "no file, link or folder",
        "pipes, sockets and devices cannot be merged: have the step delete them before it ends",
    ),
    "leads_out": ("a link that leads out", "a link must stay inside the workspace and be relative"),
    "bad_name": ("a name that is not text", "a name must be UTF-8"),
}
"""Why a change may not be, for the message, and what helps."""


def violated(node: Node, rows: Sequence[WriteViolation], rest: str = "nothing of it was merged") -> Failure:
    """The failure of a step that changed what it may not: each path with the reason, and what helps."""
    reasons = {row.why for row in rows}
    usual = reasons == {"outside_write_set"}  # then the hint says it all
    paths = [row.path if usual else f"{row.path} ({WHY[row.why][0]})" for row in rows]
    hint = "; ".join(helps for why, (_, helps) in WHY.items() if why in reasons)
    return refusal(node, "violation", paths, rest, hint)


def refusal(
    node: Node, kind: str, paths: list[str], rest: str = "nothing of it was merged", hint: str = ""
) -> Failure:
    """The failure of a step whose changes may not be, or do not go together with others."""
    what = "changed what it may not" if kind == "violation" else "changed what somebody else changed too"
    named = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    message = f"{node.path} {what}: {named}; {rest}"
    if kind == "conflict" and not hint:
        again = f"fanfold fork {root_of(node)} --from {typed_path(node)}"
        hint = f"look at both sides, then run the step again from what is there now: {again}"
    return Failure(kind, f"workspace.{kind}", message, hint, retryable=kind == "conflict", step=node.path)


def ignored_hint(found: FoundChanges | None, paths: list[str]) -> str:
    """What helps where a step made a file anew that was there and that it could not see."""
    asked = found.asked if found is not None else frozenset()
    named = [path for path in paths if path in asked]
    if not named:
        return ""
    return (
        f"the project has {named[0]} already, but git ignores it, so no snapshot holds it:"
        " move it away, or no longer ignore it"
    )
