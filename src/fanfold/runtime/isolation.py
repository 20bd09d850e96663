"""Where a step works, and how what it changed comes home.

An isolated step gets a snapshot of the workspace; its changes are compared with its write-set and merged
while it still holds its sets, so that the next writer starts from the result. A command without a
write-set works in a snapshot that is thrown away. What happened is evidence for the log.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node

if TYPE_CHECKING:
    from fanfold.workspace.children import Child
    from fanfold.workspace.results import Merged
    from fanfold.workspace.workspaces import Workspaces

MAX_NAMED = 20
HINTS = {
    "workspace.violation": "widen the step's write_set, or tell the agent where it may write",
    "workspace.conflict": "look at both sides, then run the step again: it starts from what is there then",
}


class Place:
    """Where one execution works. `child` is None when it works in the project itself."""

    def __init__(self, path: str, child: Child | None) -> None:
        self.path = path
        self.child = child
        self.evidence: list[dict[str, Any]] = []

    def note_sandbox(self, level: str) -> None:
        """Programs run here at this level of the sandbox; the log says so once."""
        fact = {"what": "sandbox", "level": level}
        if fact not in self.evidence:
            self.evidence.append(fact)


class Isolation:
    """The workspaces of one project, opened when the first isolated step needs one."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._places: dict[str, Place] = {}

    @cached_property
    def spaces(self) -> Workspaces:
        from fanfold.workspace.workspaces import Workspaces

        spaces = Workspaces(self._project)
        spaces.recover()
        return spaces

    def recover(self) -> None:
        """Finish or undo what dead processes left, where any isolated step ever ran."""
        if (self._project / ".fanfold" / "subagents").is_dir():
            _ = self.spaces

    async def open(self, node: Node, session: str, execution: int) -> Place:
        """The project itself, or a snapshot; a session that goes on after a crash finds its own again."""
        if node.step.workspace_mode == "isolated":
            child = await asyncio.to_thread(self._open_child, node, session, execution)
            place = Place(str(child.path), child)
            place.evidence.append({"what": "snapshot", "method": child.method, "session_id": session})
        else:
            place = Place(str(self._project), None)
        self._places[session] = place
        return place

    def place_of(self, session: str) -> Place:
        """Where a session that is under way works: the project itself, unless it has a place of its own."""
        return self._places.get(session) or Place(str(self._project), None)

    def _open_child(self, node: Node, session: str, execution: int) -> Child:
        found = self.spaces.find_child(session) if execution > 1 else None
        if found is not None:
            return found
        reads = node.step.posture == "read_only" and node.step.type != "command"
        return self.spaces.open_child(session, read_only=reads, write_set=node.write_set or None)

    async def bring_home(self, node: Node, place: Place) -> Failure | None:
        """Merge what an execution changed; the failure when it may not or cannot be merged."""
        child = place.child
        if child is None or (node.step.type == "command" and node.step.posture == "read_only"):
            return None
        merged = await asyncio.to_thread(self.spaces.merge, child, node.write_set, node.step.merge)
        if merged.violations:
            place.evidence.append(_told("violation", merged.violations))
            return _refusal(node, "violation", "changed what it may not", merged)
        if merged.conflicts:
            place.evidence.append(_told("conflict", merged.conflicts))
            return _refusal(node, "conflict", "changed what somebody else changed too", merged)
        if merged.changes:
            place.evidence.append(
                {
                    "what": "merge",
                    "mode": node.step.merge,
                    "proposal": merged.proposal,
                    "changes": [{"path": c.path, "kind": c.kind} for c in merged.changes],
                }
            )
        return None

    async def close(self, session: str, place: Place, failure: Failure | None) -> None:
        """Leave nothing behind after success; keep and name the workspace after a failure."""
        self._places.pop(session, None)
        if place.child is not None:
            # The code alone: a message may quote what a program said, and this file is not redacted.
            why = failure.code if failure is not None else ""
            await asyncio.to_thread(self._close, place.child, failure is not None, why)

    def _close(self, child: Child, keep: bool, why: str) -> None:
        self.spaces.close(child, keep=keep, why=why)

    def leave(self, session: str, place: Place) -> None:
        """The execution was cut short: its snapshot stays, for the one that goes on, or for `gc`."""
        self._places.pop(session, None)
        if place.child is not None:
            place.child.detach()


def _told(what: str, rows: Any) -> dict[str, Any]:
    import msgspec

    return {"what": what, "paths": [msgspec.to_builtins(row) for row in rows[:MAX_NAMED]], "count": len(rows)}


def _refusal(node: Node, kind: str, what: str, merged: Merged) -> Failure:
    paths = [row.path for row in (merged.violations or merged.conflicts)]
    named = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    code = f"workspace.{kind}"
    message = f"{node.path} {what}: {named}; nothing of it was merged"
    return Failure(kind, code, message, HINTS[code], retryable=kind == "conflict", step=node.path)
