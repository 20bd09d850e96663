"""What went wrong, as every surface says it."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from fanfold.errors import FanfoldError
from fanfold.kernel.events import Failure
from fanfold.text.diagnostics import Diagnostic
from fanfold.text.patterns import regex
from fanfold.text.refusal import FileRefused
from fanfold.text.terminal import one_line

PROGRAM_FAILED = "command.failed"
_ENDED = regex(r".*? ended with status -?\d+(?=: )")
"""How a program ended, also where the failure of a child run says it."""
GIST_CHARS = 160
REASON_CHARS = 600
"""The same where there is room for more than a line."""


class AnyFailure(Protocol):
    """A failure, as it was recorded or as it is shown."""

    @property
    def code(self) -> str: ...
    @property
    def message(self) -> str: ...


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


class RefusedDocument(ErrorDocument, frozen=True):
    """The same where a text is wrong: with `ok` it is what `check --json` says. Each problem has its code,
    message, help, and its place in a file; none where it is no text that is wrong.
    """

    diagnostics: list[Diagnostic]


def gist(error: AnyFailure, most: int = GIST_CHARS) -> str:
    """A failure in one short line. Of what a program said its last line, where the reason mostly stands."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    ended = _ENDED.match(lines[0]) if len(lines) > 1 else None
    if ended is None or not (error.code == PROGRAM_FAILED or error.code.startswith("run.")):
        return one_line(error.message or error.code, most)
    return one_line(f"{ended[0]}: … {lines[-1]}", most)


def last_words(error: Failure, most: int) -> list[str]:
    """The last lines that a program said before it failed; none where `gist` holds all there is."""
    lines = [line.rstrip() for line in error.message.splitlines() if line.strip()]
    return lines[1:][-most:] if error.code == PROGRAM_FAILED else []


def error_body(error: FanfoldError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.hint, error.details)


def error_document(error: FanfoldError) -> ErrorDocument:
    """The document that stands for a result where there is none."""
    return ErrorDocument(False, error_body(error))


def refused_document(error: FanfoldError) -> RefusedDocument:
    """The document that stands for what a text would have been good for."""
    found = list(error.diagnostics) if isinstance(error, FileRefused) else []
    return RefusedDocument(False, error_body(error), found)
