"""Following a run tree that another process drives, whatever store is behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fanfold.kernel.events import Envelope
from fanfold.store.protocol import Store


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
