"""What is wrong with a recipe, where, and how to say so.

Rules
* Offsets inside the package count characters of the file's text; positions that leave it are 1-based
  lines and columns, both counted in characters, the end exclusive. Only `Source` converts.
* A diagnostic is data with a fixed JSON shape (`check --json`, HTTP 422, the tools' `details`); how it
  looks on a terminal or in a pull request is decided in `renderings`, re-exported here.
* Diagnostics never stop the one who found them: they are collected, sorted by file and place, and
  reported together. A hostile file cannot produce more than `MAX_DIAGNOSTICS` of either severity.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.recipe.renderings import render_github, render_text

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

Severity: TypeAlias = Literal["error", "warning"]
Span: TypeAlias = tuple[int, int]
"""Offsets into `Source.text`, the end exclusive."""


class Position(Struct, frozen=True, order=True):
    """A place in a file as editors show it: 1-based line and column."""

    line: int
    column: int


class Range(Struct, frozen=True, order=True):
    """From `start` up to, not including, `end`."""

    start: Position
    end: Position


class Fix(Struct, frozen=True):
    """A mechanical repair: put `text` in place of `range` (`check --fix`)."""

    range: Range
    text: str


class Diagnostic(Struct, frozen=True):
    """One problem. All keys are always present in JSON; `fix` is null when there is none."""

    code: str
    severity: Severity
    message: str
    file: str
    range: Range
    help: str = ""
    fix: Fix | None = None


class Source:
    """The text of one file, and where its lines begin.

    A line ends at `\\n`, `\\r\\n` or `\\r`, as in every editor.
    """

    __slots__ = ("_starts", "file", "text")

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts: list[int] | None = None

    def position(self, offset: int) -> Position:
        """Line and column of a character offset; offsets outside the text mean its ends."""
        starts = self._line_starts()
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(starts, offset)
        return Position(line, offset - starts[line - 1] + 1)

    def range(self, start: int, end: int) -> Range:
        """The range between two character offsets."""
        return Range(self.position(start), self.position(max(start, end)))

    def line(self, n: int) -> str:
        """The text of the 1-based line `n` without its line break; empty when there is no such line."""
        starts = self._line_starts()
        if not 1 <= n <= len(starts):
            return ""
        end = starts[n] if n < len(starts) else len(self.text)
        return self.text[starts[n - 1] : end].rstrip("\r\n")

    def _line_starts(self) -> list[int]:
        """Found at the first question: most recipes are right and nobody asks."""
        if self._starts is None:
            starts = [0]
            text = self.text
            at = 0
            if "\r" not in text:
                while (at := text.find("\n", at) + 1) > 0:
                    starts.append(at)
            else:
                for i, char in enumerate(text):
                    if char == "\n" or (char == "\r" and text[i + 1 : i + 2] != "\n"):
                        starts.append(i + 1)
            self._starts = starts
        return self._starts


class Report:
    """The diagnostics of one or more files, collected while they are read and compiled."""

    __slots__ = ("_errors", "_warnings", "dropped")

    def __init__(self) -> None:
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
        self, code: str, message: str, source: Source, span: Span, help: str = "", fix: Fix | None = None
    ) -> None:
        """The recipe is refused because of `span`."""
        self._add(self._errors, "error", code, message, source, span, help, fix)

    def warning(
        self, code: str, message: str, source: Source, span: Span, help: str = "", fix: Fix | None = None
    ) -> None:
        """The recipe can run, but the author should know."""
        self._add(self._warnings, "warning", code, message, source, span, help, fix)

    def extend(self, other: Report) -> None:
        """Take over what another report holds (a sub-workflow's file)."""
        for diagnostic in other.diagnostics:
            kept = self._errors if diagnostic.severity == "error" else self._warnings
            self._keep(kept, diagnostic)
        self.dropped += other.dropped

    def _add(
        self,
        kept: list[Diagnostic],
        severity: Severity,
        code: str,
        message: str,
        source: Source,
        span: Span,
        help: str,
        fix: Fix | None,
    ) -> None:
        place = source.range(*span)
        self._keep(kept, Diagnostic(code, severity, message, source.file, place, help, fix))

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
