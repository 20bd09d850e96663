"""Folded trees that are kept for the next look, and caught up instead of being folded anew.

For a process in which one thread looks at runs again and again. A kept tree is shared: whoever gets one only
reads it, and lets go of it before the next look.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.store.protocol import Store

MAX_TREES = 32
MAX_PAST = 2
"""Trees as they were at some moment: somebody drags a slider over one run."""


class KeptTrees:
    def __init__(self) -> None:
        self._now: OrderedDict[str, RunTree] = OrderedDict()
        self._past: OrderedDict[str, RunTree] = OrderedDict()

    def view(self, store: Store, root: str, at: int | None) -> RunTree:
        """A tree as its log is now, or as it was after the event `at`."""
        if at is None:
            return self._current(store, root)
        tree = self._past.pop(root, None)
        if tree is None or tree.tree_seq > at:
            tree = RunTree.load(store, root, until=at)
        elif tree.tree_seq < at:
            after = store.tree(root, tree.tree_seq)
            tree.catch_up(takewhile(lambda envelope: envelope.tree_seq <= at, after))
        self._past[root] = tree
        if len(self._past) > MAX_PAST:
            self._past.popitem(last=False)
        return tree

    def _current(self, store: Store, root: str) -> RunTree:
        tree = self._now.pop(root, None)
        if tree is None or store.reach(root) < tree.tree_seq:  # another one, of the same name
            tree = RunTree.load(store, root)
        else:
            tree.catch_up(store.tree(root, tree.tree_seq))
        self._now[root] = tree
        if len(self._now) > MAX_TREES:
            self._now.popitem(last=False)
        return tree
