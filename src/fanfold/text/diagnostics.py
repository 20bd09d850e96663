"""What is wrong with a file: collected, never thrown.

Rules
* Diagnostics never stop the one who found them: they are collected, sorted by file and place, and
  reported together. A hostile file cannot make a report keep more than `MAX_DIAGNOSTICS` of either
  severity.
* A code that begins with a dot belongs to the language that is read: `.syntax` is `recipe.syntax` in a
  recipe and `script.syntax` in a script.
* Other modules take everything about diagnostics from here; `places` and `renderings` are its parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanfold.text.positions import Diagnostic, Fix, Position, Range, Severity, Source, Span
from fanfold.text.renderings import render_github, render_text

__all__ = [
    "MAX_DIAGNOSTICS",
    "Diagnostic",
    "Fix",
    "Position",
    "Range",
    "Report",
    "Severity",
    "Source",
    "Span",
    "nearest",
    "render_github",
    "render_text",
]

MAX_DIAGNOSTICS = 500
MAX_WORD_CHARS = 64
MAX_KNOWN_WORDS = 2_000


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


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None.

    >>> nearest("gahter", ["angles", "gather"])
    'gather'
    """
    wanted = word.lower()
    words = known if isinstance(known, (list, tuple, set, frozenset, dict)) else list(known)
    if not wanted or len(wanted) > MAX_WORD_CHARS or len(words) > MAX_KNOWN_WORDS:
        return None
    limit = max(1, len(wanted) // 3)
    letters = set(wanted)
    best: tuple[int, str] | None = None
    for candidate in words:
        other = candidate.lower()
        # Cheap lower bounds first: a hostile file asks this for every one of its words.
        if abs(len(other) - len(wanted)) > limit or len(letters ^ set(other)) > 2 * limit:
            continue
        found = (_edits(wanted, other), candidate)
        if found[0] <= limit and (best is None or found < best):
            best = found
    return None if best is None else best[1]


def _edits(a: str, b: str) -> int:
    """Letters inserted, removed, replaced or swapped with a neighbour to make `b` of `a`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = previous
    return row[-1]
