"""What goes back over HTTP: documents, errors with their status, and the headers that every reply has."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fanfold.errors import (
    EXIT_BUDGET,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    AuthorError,
    FanfoldError,
    NotFoundError,
)
from fanfold.runtime.views.errors import error_document, refused_document
from fanfold.store.protocol import LeaseHeld
from fanfold.text.refusal import FileRefused

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""On every reply, whatever it is."""

_CONFLICTS = frozenset(
    {
        "approval.changed",
        "approval.closed",
        "approval.none",
        "approval.not_open",
        "approval.which",
        "archive.known",
        "changes.changed_since",
        "idempotency.in_progress",
        "idempotency.unknown",
        "recipe.changed",
        "run.busy",
        "run.ended",
        "run.not_over",
        "run.nothing_failed",
        "run.open",
        "workspace.conflict",
    }
)
"""What was asked for was fine, but things are not as they would have to be."""
UNUSABLE = 422
"""What was sent can be read, and cannot be used: a text with mistakes, a key of another request."""
_STATUSES = {
    "request.forbidden": 403,
    "request.method": 405,
    "request.slow": 408,
    "request.too_large": 413,
    "request.media_type": 415,
    "request.host": 421,
    "request.unauthorized": 401,
    "server.busy": 503,
    "server.stopping": 503,
}


def status_of(error: FanfoldError) -> int:
    """The HTTP status that says what kind of error it is."""
    if error.code in _STATUSES:
        return _STATUSES[error.code]
    if isinstance(error, NotFoundError) or error.exit_status == EXIT_NOT_FOUND:
        return 404
    if isinstance(error, LeaseHeld) or error.code in _CONFLICTS or error.exit_status == EXIT_BUDGET:
        return 409
    if error.exit_status == EXIT_PERMISSION:
        return 403
    if isinstance(error, AuthorError):
        is_text = isinstance(error, FileRefused) or error.code.startswith("recipe.")
        return UNUSABLE if is_text or error.code.startswith("idempotency.") else 400
    return 500


def failure(error: FanfoldError, headers: dict[str, str] | None = None) -> Response:
    """An error as every surface says it."""
    status = status_of(error)
    document = refused_document(error) if status == UNUSABLE else error_document(error)
    # Never kept by anybody: the next answer may be another one.
    sent = {"cache-control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(document), status, sent, "application/json")
