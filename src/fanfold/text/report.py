"""What is wrong with a file: collected, never thrown.

Rules
* Diagnostics never stop the one who found them: they are collected, sorted by file and place, and
  reported together. A hostile file cannot make a report keep more than `MAX_DIAGNOSTICS` of either
  severity.
* A code that begins with a dot belongs to the language that is read: `.syntax` is `recipe.syntax` in a
  recipe and `script.syntax` in a script.
"""

from __future__ import annotations

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

    def error(
        self,
        code: str,
        message: str,
        source: Source,
        span: Span,
        help: str = "",
        fix: Fix | None = None,
    ) -> None:
        """The file is refused because of `span`."""
        self._keep(self._errors, self._found(code, "error", message, source, span, help, fix))

    def warning(
        self,
        code: str,
        message: str,
        source: Source,
        span: Span,
        help: str = "",
        fix: Fix | None = None,
    ) -> None:
        """The file can be used, but the author should know."""
        self._keep(self._warnings, self._found(code, "warning", message, source, span, help, fix))

    def note(self, code: str, message: str, source: Source, span: Span) -> None:
        """Nothing is wrong; it may explain something."""
        self.add(self._found(code, "note", message, source, span, "", None))

    def add(self, diagnostic: Diagnostic) -> None:
        """Take over what somebody else found."""
        self._keep(self._errors if diagnostic.severity == "error" else self._warnings, diagnostic)

    def extend(self, other: Report) -> None:
        """Take over what another report holds (a sub-workflow's file)."""
        for diagnostic in other.diagnostics:
            self.add(diagnostic)
        self.dropped += other.dropped

    def _found(
        self,
        code: str,
        severity: Severity,
        message: str,
        source: Source,
        span: Span,
        help: str,
        fix: Fix | None,
    ) -> Diagnostic:
        code = self._language + code if code.startswith(".") else code
        return Diagnostic(code, severity, message, source.file, source.range(*span), help, fix)

    def _keep(self, kept: list[Diagnostic], diagnostic: Diagnostic) -> None:
        if len(kept) < MAX_DIAGNOSTICS:
            kept.append(diagnostic)
        else:
            self.dropped += 1


def _order(diagnostic: Diagnostic) -> tuple[str, Range, str, str, str]:
    return (diagnostic.file, diagnostic.range, diagnostic.severity, diagnostic.code, diagnostic.message)
