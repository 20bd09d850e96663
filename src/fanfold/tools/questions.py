"""Questions of a run, as forms for the person behind a client; and what their answer means."""

from __future__ import annotations

from typing import Any

from fanfold.runtime.views.approvals import OpenApproval
from fanfold.text.excerpts import shorten
from fanfold.text.terminal import visible
from fanfold.tools.caller import Filled, Form

APPROVE, REJECT = "approve", "reject"
MAX_SHOWN_CHARS = 4_000


def approval_form(run: str, asked: OpenApproval) -> Form:
    """An approval as a person is asked it: what is to be decided, what they should look at, the choices."""
    shown = f"\n\n{_clean(asked.show)}" if asked.show else ""
    decision: dict[str, Any] = {
        "type": "string",
        "title": "Decision",
        "enum": list(asked.choices) or [APPROVE, REJECT],
    }
    return Form(
        key=f"{run}/{asked.path}",
        message=f"Run {run}, step {asked.path}: {_clean(asked.question)}{shown}",
        properties={"decision": decision, "comment": {"type": "string", "title": "Comment"}},
        required=("decision",),
    )


def decision_of(asked: OpenApproval, filled: Filled) -> tuple[str, str | None] | None:
    """The decision and the comment; None when the person sent the question away."""
    values = filled.values or {}
    decision, comment = values.get("decision"), values.get("comment")
    if decision not in (asked.choices or (APPROVE, REJECT)):
        return None
    return str(decision), str(comment) if comment else None


def _clean(text: str) -> str:
    return shorten("\n".join(visible(line) for line in text.splitlines()), MAX_SHOWN_CHARS)
