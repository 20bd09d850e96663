"""What a forecast takes for granted where nobody can know, and how it says so.

| what is known only during the run | is taken as |
|---|---|
| a condition | true |
| a list | one item, shown as `id[*]` |
| a condition of a step that ends the run | false: what comes after it is shown |
| whether a loop goes on | no: one iteration is shown |
| the answer of a person | the one that goes on |
| whether a step succeeds | it does, at the first attempt |
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fanfold.kernel.nodes import Node

MAX_NAMED = 8
_INSTANCE = re.compile(r"\[\d+\]|#\d+")

_SENTENCES = {
    "conditions": "conditions that are known only during the run are taken as true: {}",
    "lists": "lists that are known only during the run are shown with one item: {}",
    "loops": "loops whose end is known only during the run are shown with one iteration: {}",
    "ends": "steps that end the run under a condition are taken not to be reached: {}",
    "people": "people are taken to agree: {}",
}


class Assumptions:
    """By kind, the steps of the recipe for which something was assumed."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, None]] = {kind: {} for kind in _SENTENCES}
        self.conditions: set[Node] = set()
        """Instances whose condition was taken as true."""
        self.lists: set[Node] = set()
        self.loops: set[Node] = set()

    def condition(self, node: Node) -> None:
        self.conditions.add(node)
        self._note("conditions", node)

    def end(self, node: Node) -> None:
        self._note("ends", node)

    def list(self, node: Node) -> None:
        self.lists.add(node)
        self._note("lists", node)

    def loop(self, node: Node) -> None:
        self.loops.add(node)
        self._note("loops", node)

    def answer(self, node: Node) -> None:
        self._note("people", node)

    def _note(self, kind: str, node: Node) -> None:
        self._made[kind].setdefault(declared_path(node))

    def told(self) -> Iterator[str]:
        """A sentence for each kind of assumption."""
        for kind, sentence in _SENTENCES.items():
            paths = list(self._made[kind])
            if paths:
                more = f" and {len(paths) - MAX_NAMED:,} more" if len(paths) > MAX_NAMED else ""
                yield sentence.format(", ".join(paths[:MAX_NAMED]) + more)


def declared_path(node: Node) -> str:
    """Where the recipe declares a step: its tree path without items and iterations."""
    return _INSTANCE.sub("", node.run.tree_path(node.path))
