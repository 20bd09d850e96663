"""Waiting for a run, whichever process drives it: for what it records, or for the effect of a request.

A follower gets the events of a run tree from a sequence number on, in order, without gap or duplicate. It
holds no lease and asks nothing of the owner; the store wakes it when the owner has committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Protocol, TypeVar

from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, WAITING
from fanfold.runtime.operations.project import Project
from fanfold.store.protocol import Store

ORPHAN_S = 2.0
"""A run without a process for this long is not about to be taken over by one that is just starting."""
_T = TypeVar("_T")


class Living(Protocol):
    """A process that was started to drive a run."""

    def lives(self) -> bool: ...


async def follow(
    project: Project, root: str, after: int = 0, *, starting: Living | None = None
) -> AsyncIterator[list[Envelope]]:
    """What is recorded beyond `after`, in pieces, until the run has ended or nobody drives it.

    `starting` is about to become the owner: as long as it lives, somebody drives the run or soon will.
    """
    ownerless = Ownerless(project, root, starting)
    async for fresh in follow_tree(project.store, root, after):
        if fresh:
            after = fresh[-1].tree_seq
            yield fresh
            continue
        head = project.store.head(root)
        if head is None or head.status in RUN_TERMINAL or ownerless.for_a_while():
            last = list(project.store.tree(root, after))  # written since the reading above
            if last:
                yield last
            return


class Ownerless:
    """Tells when nobody drives a run any more, without being fooled by a change of owners."""

    def __init__(self, project: Project, root: str, starting: Living | None = None) -> None:
        self._project = project
        self._root = root
        self._starting = starting
        self._since: float | None = None

    def for_a_while(self) -> bool:
        if self._project.has_owner(self._root):
            self._since = None
            return False
        if self._starting is not None:
            return self._rests() or not self._starting.lives()
        now = monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= ORPHAN_S

    def _rests(self) -> bool:
        head = self._project.store.head(self._root)
        return head is not None and head.status in (WAITING, PAUSED)


async def until(project: Project, root: str, look: Callable[[], _T | None], within_s: float) -> _T | None:
    """What `look` finds, as soon as it finds something; it looks whenever the run's owner did something.

    None when it found nothing in time.
    """
    deadline = monotonic() + within_s
    with project.store.follow(root) as signal:
        while (found := look()) is None and (left := deadline - monotonic()) > 0:
            await signal.wait(left)
    return found


async def follow_tree(store: Store, root: str, after: int = 0) -> AsyncIterator[list[Envelope]]:
    """The events of a tree from a number on: those that are there, then each commit's as it happens.

    An empty list comes when somebody took the tree or gave it back, and every `RECHECK_S`: time for the
    caller to ask `Store.owner` whether anybody is left to wait for. It never ends by itself; whoever leaves
    the loop has left nothing behind.
    """
    with store.follow(root) as signal:
        while True:
            fresh = list(store.tree(root, after))
            if fresh:
                after = fresh[-1].tree_seq
            yield fresh
            await signal.wait()
