"""What went wrong, as every surface says it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fanfold.errors import FanfoldError


class ErrorBody(Struct, frozen=True):
    """`code` is for programs, `message` and `hint` are for people, `details` depend on the code."""

    code: str
    message: str
    hint: str
    details: dict[str, Any]


class ErrorDocument(Struct, frozen=True):
    ok: bool
    """Always false."""
    error: ErrorBody


def error_body(error: FanfoldError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.hint, error.details)


def error_document(error: FanfoldError) -> ErrorDocument:
    """The document that stands for a result where there is none."""
    return ErrorDocument(False, error_body(error))
