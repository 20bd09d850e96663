"""What an agent may do: `read_only`, `ask` or `auto`.

Rules
* A posture is inherited and only ever narrowed: a child or a role can take away, never add.
* `read_only` denies every mutation before it happens. `auto` allows what the workspace and the write-set
  allow. `ask` asks a person, unless the question at the start of the run covered it already; where nobody
  can answer, the answer is no.
* A denial is data for the agent, which may find another way. It names who can change it.
* One question at a time: two agents must not talk over each other at a terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.errors import EXIT_PERMISSION, WorldError

Posture: TypeAlias = Literal["read_only", "ask", "auto"]
Kind: TypeAlias = Literal["write", "command", "network", "spawn"]

POSTURES: tuple[Posture, ...] = ("read_only", "ask", "auto")
"""From the narrowest to the widest."""


class Action(Struct, frozen=True):
    """Something an agent wants to do, in words a person can judge."""

    kind: Kind
    what: str
    session_id: str = ""
    step: str = ""


class PermissionDenied(WorldError):
    """The action was not allowed; nothing happened."""

    def __init__(self, action: Action, why: str, hint: str) -> None:
        message = f"{action.kind} denied: {why} ({action.what.partition(chr(10))[0]})"
        super().__init__("permission_denied", message, hint=hint, exit_status=EXIT_PERMISSION)
        self.action = action


Ask: TypeAlias = Callable[[Action], Awaitable[bool]]
"""Puts an action to a person; whether they agreed."""


def narrower(one: Posture, other: Posture) -> Posture:
    """The posture of a child: never wider than its parent's.

    >>> narrower("auto", "read_only")
    'read_only'
    """
    return POSTURES[min(POSTURES.index(one), POSTURES.index(other))]


class Permissions:
    """The permission of one session.

    `covered` names the kinds that the question at the start of the run already allowed. Whoever has the same
    `turn` asks the same person, one question at a time.
    """

    def __init__(
        self,
        posture: Posture = "ask",
        ask: Ask | None = None,
        covered: frozenset[Kind] = frozenset({"write", "network"}),
        turn: asyncio.Lock | None = None,
    ) -> None:
        self.posture: Posture = posture
        self._ask = ask
        self._covered = covered
        self._turn = turn or asyncio.Lock()

    def narrowed(self, to: Posture) -> Permissions:
        """The same permission, no wider than `to`; questions still go to the same person, in turn."""
        return Permissions(narrower(self.posture, to), self._ask, self._covered, self._turn)

    def unasked(self) -> Permissions:
        """The same permission for who may not bother anybody: what would be a question is denied."""
        return Permissions(self.posture, None, self._covered, self._turn)

    async def check(self, action: Action) -> None:
        """Return when the action may go ahead; raise `PermissionDenied` when not."""
        if self.posture == "auto" or (self.posture == "ask" and action.kind in self._covered):
            return
        if self.posture == "read_only":
            raise PermissionDenied(action, "this session may only read", "give the step a role that writes")
        if self._ask is None:
            raise PermissionDenied(
                action, "nobody is there to allow it", "use --permission auto, or a terminal"
            )
        async with self._turn:
            agreed = await self._ask(action)
        if not agreed:
            raise PermissionDenied(action, "the user said no", "find another way, or say why it is needed")
