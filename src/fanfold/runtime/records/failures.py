"""A failure as a value: what scripts, templates and expressions see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    from fanfold.kernel.nodes import Node


def failure_value(failure: Failure | None, node: Node | None = None) -> dict[str, JSON] | None:
    """A failure as a value: what scripts, templates and expressions see. `node` is the step that has it."""
    if failure is None:
        return None
    return {
        "class": failure.kind,
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "retryable": failure.retryable,
        "step": failure.step or (node.path if node is not None else ""),
        "attempt": failure.attempt or (node.attempt if node is not None else 0),
    }
