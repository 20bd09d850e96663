"""What a child's own log says of it: how it is to be run, and what was said to it.

Rules
* The first entry (`opened`) holds everything needed to run the child again, in any process. What it may do
  is fixed there: nobody who talks to the child later can widen it.
* A turn is rebuilt from the entries that were spoken; the others are about the child, not for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionRequest
from fanfold.agents.entries import Entry, Input
from fanfold.agents.role import Role
from fanfold.agents.roles.session_role import for_step
from fanfold.errors import NotFoundError
from fanfold.sessions.lineage import Child
from fanfold.sessions.log import read_notes
from fanfold.store.protocol import Store

SPAWN_TIMEOUT_S = 120.0

Permission: TypeAlias = Literal["read_only", "ask", "auto"]
Merge: TypeAlias = Literal["auto", "propose", "discard"]


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a child is to be run. Roles are looked up by whoever spawns."""

    backend: str
    name: str = ""
    """What scripts answer by; the role when empty."""
    key: str = ""
    """Chosen by whoever asked for the child from another process, to find it again."""
    role: Role | None = None
    """As it was when the child was spawned; None for one that has no more than a name."""
    workspace: str = "."
    """The folder it works in, or of which it gets a snapshot."""
    isolated: bool = False
    """Whether a child that writes does so in a snapshot."""
    merge: Merge = "auto"
    """What becomes of the changes in a snapshot."""
    read_only: bool = True
    write_set: tuple[str, ...] = ()
    permission: Permission = "ask"
    """What its tools may do without asking."""
    unsafe: bool = False
    """Whether programs run for it even where this machine cannot confine them."""
    timeout_s: float = SPAWN_TIMEOUT_S


class Opened(Struct, frozen=True, kw_only=True):
    """The first entry of a child's log: all that is needed to run it, again if need be."""

    kind: str = "opened"
    parent_id: str
    root_id: str
    role: str
    task: str
    depth: int
    settings: Settings


def read_opened(store: Store, session_id: str) -> Opened:
    """How a child was opened; raises NotFoundError for a session that nobody spawned."""
    for entry in read_notes(store, session_id)[:1]:
        if entry.get("kind") == "opened":
            return msgspec.convert(entry, Opened)
    raise NotFoundError("subagent.not_found", f"there is no subagent {session_id!r}")


def make_request(child: Child, opened: Opened, entries: Sequence[Entry], workspace: str) -> SessionRequest:
    """What a back end needs for the child's next turn."""
    settings = opened.settings
    role = settings.role or Role(name=child.role, description="")
    asked = [entry.text for entry in entries if isinstance(entry, Input)]
    return SessionRequest(
        session_id=child.session_id,
        run_id=child.session_id,
        step=settings.name or child.role,
        attempt=child.attempt,
        execution=child.execution,
        role=for_step(role, model=role.model, read_only=settings.read_only),
        prompt=asked[-1],
        workspace=workspace,
        write_set=settings.write_set,
        entries=entries,
    )


def unheard(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Input that waited for the end of a turn which never came."""
    waiting: list[str] = []
    for entry in entries:
        if entry.get("kind") == "pending_input":
            waiting.append(entry["text"])
        elif entry.get("kind") == "input" and waiting and waiting[0] == entry["text"]:
            waiting.pop(0)
    return waiting
