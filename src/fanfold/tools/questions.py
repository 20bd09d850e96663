"""Questions of a run, as forms for the person behind a client; and what their answer means."""

from __future__ import annotations

from typing import Any

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import answer, reply
from fanfold.runtime.views.approvals import OpenApproval
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text, fitting
from fanfold.text.terminal import visible
from fanfold.tools.caller import Filled, Form

APPROVE, REJECT = "approve", "reject"
QUESTION, ANSWER = "question", "answer"
ANSWERED = ("approval.closed", "approval.not_open")
PRIMITIVES = ("string", "integer", "number", "boolean")
MAX_SCHEMA_CHARS = 500
MAX_SHOWN_CHARS = 4_000


def approval_form(run: str, asked: OpenApproval, again: str = "") -> Form:
    """An approval as a person is asked it: what is to be decided, what they should look at, the choices.

    `again` is why their last answer was not taken.
    """
    shown = f"\n\n{_clean(asked.show)}" if asked.show else ""
    before = f"{_clean(again)}\n\n" if again else ""
    message = f"{before}Run {run}, step {asked.path}: {_clean(asked.question)}{shown}"
    properties, required = _fields(asked)
    return Form(key=f"{run}/{asked.path}", message=message, properties=properties, required=required)


def _fields(asked: OpenApproval) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    text = {"type": "string"}
    if asked.kind != QUESTION:
        choices = list(asked.choices) or [APPROVE, REJECT]
        decision = {**text, "title": "Decision", "enum": choices}
        return {"decision": decision, "comment": {**text, "title": "Comment"}}, ("decision",)
    if _is_flat(asked.schema):
        return asked.schema["properties"], tuple(asked.schema.get("required", ()))
    about = "" if asked.schema is None else fitting(asked.schema, MAX_SCHEMA_CHARS)
    field = {**text, "title": "Answer", "description": about}
    return {ANSWER: field | ({"enum": list(asked.choices)} if asked.choices else {})}, (ANSWER,)


def _is_flat(schema: JSON) -> bool:
    """Whether a form can ask for it field by field."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    fields = schema.get("properties")
    return (
        isinstance(fields, dict)
        and bool(fields)
        and all(isinstance(one, dict) and one.get("type") in PRIMITIVES for one in fields.values())
    )


async def give_answer(project: Project, run: str, asked: OpenApproval, filled: Filled) -> bool:
    """Hand the person's answer to the run; False when they sent the question away."""
    values = {name: value for name, value in (filled.values or {}).items() if value is not None}
    try:
        if asked.kind == QUESTION:
            if not values:
                return False
            text = as_text(values) if _is_flat(asked.schema) else as_text(values.get(ANSWER, ""))
            await reply(project, run, asked.path, text)
            return True
        decision, comment = values.get("decision"), values.get("comment")
        if decision not in (asked.choices or (APPROVE, REJECT)):
            return False
        await answer(project, run, asked.path, str(decision), str(comment) if comment else None)
    except AuthorError as error:
        if error.code not in ANSWERED:
            raise  # otherwise somebody else answered it meanwhile
    return True


def _clean(text: str) -> str:
    return shorten("\n".join(visible(line) for line in text.splitlines()), MAX_SHOWN_CHARS)
