"""A place in a file, and a problem found there: plain data, below the report and its renderings.

Rules
* Offsets inside the package count characters of the file's text; positions that leave it are 1-based
  lines and columns, both counted in characters, the end exclusive. Only `Source` converts.
* A diagnostic has a fixed JSON shape: `check --json`, HTTP 422, the tools' `details`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, TypeAlias

from msgspec import Struct

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
