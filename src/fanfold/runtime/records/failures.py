"""Failures: what scripts, templates and expressions see of one, and which of them concern a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    from fanfold.kernel.nodes import Node


def is_provider_refusal(failure: Failure) -> bool:
    """Whether the provider behind an agent refuses us: every other agent step would be told the same."""
    if failure.kind == "quota":
        return True
    refused = failure.code.startswith("model.") or failure.code == "agent.key_refused"
    return failure.kind == "permission" and refused


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
