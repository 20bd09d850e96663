"""Permissions of an agent: `read_only`, `ask` or `auto`.

Rules
* A posture is inherited and can only be narrowed. A child or a role removes permissions and never adds any.
* `read_only` denies every mutation before it happens. `auto` allows everything that the workspace and the
  write-set allow. `ask` asks a person, unless the question at the start of the run already covered the
  action. If no person can answer, the action is denied.
* A denial is data for the agent, which can try another way. It names who can change the permission.
* A person can grant every action of one kind in this run, for as long as this process owns it. A person can
  also grant one command in this project permanently. A role that is not allowed to ask gets neither grant.
* Questions are asked one at a time, because two agents must not write to one terminal at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.language.consent import ConsentRequest

Posture: TypeAlias = Literal["read_only", "ask", "auto"]
Kind: TypeAlias = Literal["write", "command", "tool", "network", "spawn"]

POSTURES: tuple[Posture, ...] = ("read_only", "ask", "auto")
"""From the narrowest to the widest."""


_WANTS = {
    "write": "wants to write",
    "command": "wants to run",
    "tool": "wants to call",
    "network": "wants to fetch",
    "spawn": "wants to do this",
}


class Action(Struct, frozen=True):
    """An action that an agent requests, described so that a person can decide."""

    kind: Kind
    what: str
    session_id: str = ""
    step: str = ""
    request: ConsentRequest | None = None
    """The question for an action with several effects."""

    @property
    def is_command(self) -> bool:
        """Whether it is one command line; only those can be granted for a whole project."""
        return self.kind == "command" and self.request is None

    @property
    def question(self) -> ConsentRequest:
        """The complete question for a person."""
        who = self.step or "an agent"
        return self.request or ConsentRequest(f"{who} {_WANTS[self.kind]}:", (self.what,))


class PermissionDenied(WorldError):
    """The action was denied and did not happen."""

    def __init__(self, action: Action, why: str, hint: str) -> None:
        message = f"{action.kind} denied: {why} ({action.what.partition(chr(10))[0]})"
        super().__init__("permission_denied", message, hint=hint, exit_status=EXIT_PERMISSION)
        self.action = action


Answer: TypeAlias = bool | Literal["run", "project"]
"""No, yes for this action, yes for its kind in this run, or yes for this command in this project."""
Ask: TypeAlias = Callable[[Action], Awaitable[Answer]]
"""Asks a person about an action and returns the answer."""


class StoredGrants(Protocol):
    """The commands that a person granted permanently in one project."""

    def allows(self, command: str) -> bool: ...

    def add(self, command: str) -> None: ...


class Grants:
    """Grants for more than one action: kinds of actions in this run, and commands in this project."""

    def __init__(self, stored: StoredGrants | None = None) -> None:
        self._stored = stored
        self._kinds: set[Kind] = set()

    def cover(self, action: Action) -> bool:
        """Return whether an earlier grant covers the action."""
        if action.kind in self._kinds:
            return True
        return self._stored is not None and action.is_command and self._stored.allows(action.what)

    def add(self, action: Action, answer: Answer) -> None:
        if answer == "run":
            self._kinds.add(action.kind)
        elif answer == "project" and self._stored is not None and action.is_command:
            with suppress(OSError):  # if it cannot be stored, the question is repeated next time
                self._stored.add(action.what)


def narrower(one: Posture, other: Posture) -> Posture:
    """Return the narrower of two postures, so that a child is never wider than its parent.

    >>> narrower("auto", "read_only")
    'read_only'
    """
    return POSTURES[min(POSTURES.index(one), POSTURES.index(other))]


class Permissions:
    """The permissions of one session.

    `covered` has the kinds of actions that the question at the start of the run already allowed. Sessions
    with the same `turn` ask the same person, one question at a time.
    """

    def __init__(
        self,
        posture: Posture = "ask",
        ask: Ask | None = None,
        covered: frozenset[Kind] = frozenset({"write", "network"}),
        turn: asyncio.Lock | None = None,
        grants: Grants | None = None,
    ) -> None:
        self.posture: Posture = posture
        self._ask = ask
        self._covered = covered
        self._turn = turn or asyncio.Lock()
        self._grants = grants or Grants()

    def narrowed(self, to: Posture) -> Permissions:
        """Return the same permissions, no wider than `to`. Questions still reach the same person, in turn."""
        return Permissions(narrower(self.posture, to), self._ask, self._covered, self._turn, self._grants)

    def unasked(self) -> Permissions:
        """Return the same permissions without questions: an action that needs a question is denied."""
        return Permissions(self.posture, None, self._covered, self._turn)

    async def check(self, action: Action) -> None:
        """Return if the action is allowed; raise `PermissionDenied` if not."""
        if self.posture == "auto" or (self.posture == "ask" and action.kind in self._covered):
            return
        if self.posture == "read_only":
            raise PermissionDenied(action, "this session may only read", "give the step a role that writes")
        if self._grants.cover(action):
            return
        if self._ask is None:
            raise PermissionDenied(
                action, "no person is there to allow it", "use --permission auto, or a terminal"
            )
        async with self._turn:
            agreed = self._grants.cover(action) or await self._ask(action)  # maybe granted meanwhile
        self._grants.add(action, agreed)
        if not agreed:
            raise PermissionDenied(
                action, "the user denied it", "find another way, or explain why it is needed"
            )
