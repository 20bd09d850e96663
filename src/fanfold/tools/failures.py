"""Errors as data: every failure of a tool is one of a few codes that a model can act on.

The code that Fanfold uses everywhere else stands in `details`, with whatever that error tells besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from fanfold.errors import (
    EXIT_BUDGET,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    BugError,
    FanfoldError,
)
from fanfold.kernel.plan import JSON
from fanfold.runtime.views.errors import ErrorBody, ErrorDocument
from fanfold.text.excerpts import shorten_middle

FailureCode: TypeAlias = Literal[
    "invalid_args",
    "not_found",
    "permission_denied",
    "detached",
    "limit_exceeded",
    "timeout",
    "busy",
    "internal",
]
CODES: tuple[FailureCode, ...] = get_args(FailureCode)

MAX_MESSAGE_CHARS = 4_000
MAX_DETAILS = 20
"""Of each list in the details; how long it was stands beside it."""

_BY_CODE: dict[str, FailureCode] = {
    "subagent.detached": "detached",
    "subagent.limit_exceeded": "permission_denied",  # how deep agents may delegate is nobody's to widen
    "run.busy": "busy",
    "lease.held": "busy",
    "tool.timeout": "timeout",
    "world.io": "internal",
}
_BY_WORD: dict[str, FailureCode] = {code: code for code in CODES}
_BY_STATUS: dict[int, FailureCode] = {
    EXIT_PERMISSION: "permission_denied",
    EXIT_NOT_FOUND: "not_found",
    EXIT_BUDGET: "limit_exceeded",
}


def failure_document(error: FanfoldError) -> ErrorDocument:
    """What a model is told instead of a result; an error may quote all that it was given."""
    details = {"code": error.code, **_bounded(error.details)}
    message = shorten_middle(error.message, MAX_MESSAGE_CHARS)
    hint = shorten_middle(error.hint, MAX_MESSAGE_CHARS)
    return ErrorDocument(False, ErrorBody(code_of(error), message, hint, details))


def _bounded(details: Mapping[str, JSON]) -> dict[str, JSON]:
    found = dict(details)
    for name, value in details.items():
        if isinstance(value, list | tuple) and len(value) > MAX_DETAILS:
            found |= {name: sorted(value, key=_is_warning)[:MAX_DETAILS], f"{name}_total": len(value)}
    return found


def _is_warning(detail: JSON) -> bool:
    return isinstance(detail, dict) and detail.get("severity") == "warning"


def code_of(error: FanfoldError) -> FailureCode:
    """Which of the codes an error is: by what it is about, then by whose fault it is."""
    known = _BY_CODE.get(error.code) or _BY_STATUS.get(error.exit_status)
    if known is not None:
        return known
    if isinstance(error, BugError):
        return "internal"
    last = error.code.rpartition(".")[2]
    return _BY_WORD.get(last, "invalid_args")


def crashed(name: str, error: Exception) -> ErrorDocument:
    """A mistake of ours; the words of the exception may hold anything, so only its kind is told."""
    message = f"{name} broke: {type(error).__name__}"
    return ErrorDocument(False, ErrorBody("internal", message, "try again; if it stays, report it", {}))
