"""What a round of a loop is told of the one before, where its recipe does not say so itself.

Rules
* It is for agents with which a round begins: those that wait for no other step of it. Who comes later in a
  round, a reviewer for example, is told what its prompt says and no more.
* A recipe that places `{{feedback}}` anywhere in the loop has decided who hears of it.
"""

from __future__ import annotations

import msgspec

from fanfold.kernel.nodes import Loop, Node
from fanfold.kernel.plan import JSON
from fanfold.runtime.records.values import FEEDBACK_CHARS
from fanfold.text.excerpts import shorten_middle
from fanfold.text.json_value import as_text
from fanfold.text.patterns import regex

FROM_ROUND_BEFORE = "What came of the last round:"
_PLACED = regex(rb'\{\{\s*feedback\b|:"feedback(?:"|\.|\[| [=!])')
"""In a template, or as the value or the beginning of an expression; never the name of a field."""


def told_of_round_before(node: Node, feedback: JSON) -> str:
    """The section that is appended to the prompt of an agent; empty where there is none."""
    if feedback in (None, ""):
        return ""
    child, above = node, node.parent
    while above is not None and not isinstance(above, Loop):
        if child.step.depends_on:
            return ""
        child, above = above, above.parent
    if above is None or _PLACED.search(msgspec.json.encode(above.step)):
        return ""
    return f"{FROM_ROUND_BEFORE}\n{shorten_middle(as_text(feedback), FEEDBACK_CHARS)}"
