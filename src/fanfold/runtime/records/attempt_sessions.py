"""Which sessions worked on one attempt of a step, besides its own.

Agents that settle its conflicts and agents that sum up parts for a fold have sessions that are named after
the attempt's own. Whoever counts what was spent, ends what was left, or shows what was said has to know all
of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from fanfold.kernel.nodes import Node
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.records.ids import session_id, settling_ids
from fanfold.store.protocol import Store

PARTS_AT_ONCE = 4
"""How many parts of a fold are summed up side by side."""


def is_fold(node: Node) -> bool:
    """Whether a step sums up a phase."""
    said = find_body(AgentBody, node.step)
    return said is not None and said.purpose == "fold"


def part_id(session: str, number: int) -> str:
    """The session that sums up one part for a fold.

    >>> part_id("s1", 0)
    's1-d0'
    """
    return f"{session}-d{number}"


def sessions_of(store: Store, node: Node, attempt: int) -> list[str]:
    """The sessions of an attempt: its own, which may have said nothing yet, and those beside it that did."""
    own = session_id(node.run.id, node.path, attempt)
    beside = [one for one in settling_ids(own) if _has_spoken(store, one)]
    return [own, *beside, *(_parts(store, own) if is_fold(node) else ())]


def _parts(store: Store, own: str) -> Iterator[str]:
    silent = 0
    for number in count():
        # They begin in order, a few at a time: one that says nothing yet may stand before others.
        if _has_spoken(store, part_id(own, number)):
            silent = 0
            yield part_id(own, number)
        else:
            silent += 1
        if silent == PARTS_AT_ONCE:
            return


def _has_spoken(store: Store, session: str) -> bool:
    return next(store.log(session), None) is not None
