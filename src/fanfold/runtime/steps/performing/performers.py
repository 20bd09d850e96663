"""Who carries out which step: in a run of a recipe one performer all of them, in an open run one for each set
of facts that steps were added with.

Facts are a role, a back end, a script, a permission. Children that were added with the same ones share
connections; those that were not share nothing but the project's workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fanfold.kernel.events import Usage
from fanfold.kernel.nodes import Node, State
from fanfold.runtime.records.memory import Memory
from fanfold.runtime.records.subagents import child_of
from fanfold.runtime.steps.performing.performer import Performer


class Performers:
    """`make` gives the performer for facts by the hash of their blob."""

    def __init__(self, own: Performer, make: Callable[[str], Performer]) -> None:
        self._own = own
        self._make = make
        self._made: dict[str, Performer] = {}

    def of(self, node: Node, memory: Memory) -> Performer:
        """The performer of a step."""
        facts = memory.added.get(child_of(node)) if memory.added else None
        if facts is None:
            return self._own
        if facts not in self._made:
            self._made[facts] = self._make(facts)
        return self._made[facts]

    @property
    def _all(self) -> Sequence[Performer]:
        return [self._own, *self._made.values()]

    def pause(self, session: str) -> bool:
        """Let a session end with its turn; False when it does not run here."""
        return any(performer.pause(session) for performer in self._all)

    def spent(self, node: Node, attempt: int) -> Usage | None:
        """What an attempt that gave no result has spent."""
        return self._own.spent(node, attempt)

    def settle(self, session: str) -> None:
        """The log has the end of a step: nobody needs the workspace of its session any more."""
        for performer in self._all:
            performer.settle(session)

    def discard(self, homes: Sequence[str]) -> None:
        """Throw away what is kept of a child that was closed."""
        self._own.discard(homes)

    async def sweep(self, state: State) -> None:
        """Throw away what an earlier owner could not."""
        await self._own.sweep(state)

    async def aclose(self) -> None:
        """The tree's host leaves."""
        for performer in self._all:
            await performer.aclose()
