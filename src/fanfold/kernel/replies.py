"""What an answer makes of the step that waits for it, whoever gave it: a person, a default, a tool.

Every answer is judged here, so that the same word cannot complete a step when it comes from one side and
fail it when it comes from another.
"""

from __future__ import annotations

from typing import Final

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node

REJECT: Final = "reject"
BY_DEFAULT: Final = "default"
"""Who answered when nobody did in time."""


def judge(node: Node, decision: str, by: str, comment: str | None = None) -> Failure | None:
    """What the step fails with because of this answer; None: it completes."""
    if decision != REJECT or not node.step.traits.rejectable:
        return None
    said = f"nobody answered {node.path} in time, which rejects it" if by == BY_DEFAULT else ""
    message = comment or said or f"{by} rejected {node.path}"
    return Failure("permission", "approval.rejected", message, "", False, node.path, node.attempt)
