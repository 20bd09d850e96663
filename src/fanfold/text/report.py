"""What is wrong with a file: collected, never thrown.

Rules
* Diagnostics never stop the one who found them: they are collected, sorted by file and place, and
  reported together. A hostile file cannot make a report keep more than `MAX_DIAGNOSTICS` of either
  severity.
* A code that begins with a dot belongs to the language that is read: `.syntax` is `recipe.syntax` in a
  recipe and `script.syntax` in a script.
"""

from __future__ import annotations

from functools import partialmethod

from fanfold.text.diagnostics import Diagnostic, Fix, Range, Severity, Source, Span

MAX_DIAGNOSTICS = 500


class Report:
    """The diagnostics of one or more files, collected while they are read and compiled."""

    __slots__ = ("_errors", "_language", "_warnings", "dropped")

    def __init__(self, language: str = "") -> None:
        self._language = language
        self._errors: list[Diagnostic] = []
        self._warnings: list[Diagnostic] = []
        self.dropped = 0
        """How many were not kept because `MAX_DIAGNOSTICS` of their severity came before."""

    @property
    def ok(self) -> bool:
        """No errors; warnings do not count."""
        return not self._errors

    @property
    def full(self) -> bool:
        """No further error would be kept: a caller may stop looking for more."""
        return len(self._errors) >= MAX_DIAGNOSTICS

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything found, by file, then place; of one place errors first."""
        return tuple(sorted(self._errors + self._warnings, key=_order))

    def tell(
        self,
        severity: Severity,
        code: str,
        message: str,
        source: Source,
        span: Span,
        help: str = "",
        fix: Fix | None = None,
    ) -> None:
        """After an error at `span` the file is refused, after a warning it can be used; a note explains."""
        code = self._language + code if code.startswith(".") else code
        self.add(Diagnostic(code, severity, message, source.file, source.range(*span), help, fix))

    error = partialmethod(tell, "error")
    warning = partialmethod(tell, "warning")
    note = partialmethod(tell, "note")

    def add(self, diagnostic: Diagnostic) -> None:
        """Take over what somebody else found."""
        kept = self._errors if diagnostic.severity == "error" else self._warnings
        if len(kept) < MAX_DIAGNOSTICS:
            kept.append(diagnostic)
        else:
            self.dropped += 1

    def extend(self, other: Report) -> None:
        """Take over what another report holds (a sub-workflow's file)."""
        for diagnostic in other.diagnostics:
            self.add(diagnostic)
        self.dropped += other.dropped


def _order(diagnostic: Diagnostic) -> tuple[str, Range, str, str, str]:
    return (diagnostic.file, diagnostic.range, diagnostic.severity, diagnostic.code, diagnostic.message)
