"""A place in a file, and a problem found there: plain data, below the report and its renderings.

Rules
* Offsets inside the package count characters of the file's text; positions that leave it are 1-based
  lines and columns, both counted in characters, the end exclusive. Only `Source` converts.
* A diagnostic has a fixed JSON shape: `check --json`, HTTP 422, the tools' `details`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.text.patterns import regex

Severity: TypeAlias = Literal["error", "warning", "note"]
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


_BREAK = regex(r"\r\n|\n|\r")


def lines_of(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and start of the next, of each line of `text[start:end]`."""
    for found in _BREAK.finditer(text, start, end):
        yield start, found.start(), found.end()
        start = found.end()
    if start < end:
        yield start, end, end


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

    def offset(self, line: int, column: int) -> int:
        """The character offset of a line and column; places outside the text mean its ends."""
        starts = self._line_starts()
        start = starts[min(max(line, 1), len(starts)) - 1]
        return min(start + max(column, 1) - 1, len(self.text))

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
            self._starts = [0, *(found.end() for found in _BREAK.finditer(self.text))]
        return self._starts
