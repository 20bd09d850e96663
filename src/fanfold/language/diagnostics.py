"""Positions in a file, problems found there, the report that collects them, and its renderings.

Rules
* Offsets inside the package count characters of the file's text. Positions for users are 1-based lines and
  columns, both counted in characters, the end exclusive. Only `Source` converts.
* A diagnostic has a fixed JSON shape: `check --json`, HTTP 422, the tools' `details`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partialmethod
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.errors import AuthorError
from fanfold.language.terminal import cells, cut_end, cut_start, visible

Severity: TypeAlias = Literal["error", "warning", "note"]
Span: TypeAlias = tuple[int, int]
"""Offsets into `Source.text`, the end exclusive."""


class Position(Struct, frozen=True, order=True):
    """A position in a file as editors show it: 1-based line and column."""

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


_BREAK = re.compile(r"\r\n|\n|\r")


def lines_of(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and start of the next line, for each line of `text[start:end]`."""
    for found in _BREAK.finditer(text, start, end):
        yield start, found.start(), found.end()
        start = found.end()
    if start < end:
        yield start, end, end


class Source:
    """The text of one file, and the positions of its lines.

    A line ends at `\\n`, `\\r\\n` or `\\r`, as in every editor.
    """

    __slots__ = ("_starts", "file", "text")

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts: list[int] | None = None

    def position(self, offset: int) -> Position:
        """Return line and column of a character offset; offsets outside the text mean its ends."""
        starts = self._line_starts()
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(starts, offset)
        return Position(line, offset - starts[line - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the character offset of a line and column; positions outside the text mean its ends."""
        starts = self._line_starts()
        start = starts[min(max(line, 1), len(starts)) - 1]
        return min(start + max(column, 1) - 1, len(self.text))

    def range(self, start: int, end: int) -> Range:
        """Return the range between two character offsets."""
        return Range(self.position(start), self.position(max(start, end)))

    def line(self, n: int) -> str:
        """Return the text of the 1-based line `n` without its line break; empty if there is no such line."""
        starts = self._line_starts()
        if not 1 <= n <= len(starts):
            return ""
        end = starts[n] if n < len(starts) else len(self.text)
        return self.text[starts[n - 1] : end].rstrip("\r\n")

    def _line_starts(self) -> list[int]:
        """Return the starts of all lines; computed on demand, because correct recipes need none."""
        if self._starts is None:
            self._starts = [0, *(found.end() for found in _BREAK.finditer(self.text))]
        return self._starts


# -----------------------------------------------------------------------------------------------------------
# The problems of a file: collected, never raised.
#
# Rules
# * A diagnostic never stops the code that found it. All are collected, sorted by file and position, and
#   reported together. A hostile file cannot make a report keep more than `MAX_DIAGNOSTICS` of either
#   severity.
# * A code that starts with a dot belongs to the language of the file: `.syntax` is `recipe.syntax` in a
#   recipe and `script.syntax` in a script.

MAX_DIAGNOSTICS = 500


class Report:
    """The diagnostics of one or more files, collected while they are read and compiled."""

    __slots__ = ("_errors", "_language", "_warnings", "dropped")

    def __init__(self, language: str = "") -> None:
        self._language = language
        self._errors: list[Diagnostic] = []
        self._warnings: list[Diagnostic] = []
        self.dropped = 0
        """Number of diagnostics that were dropped because their severity had reached `MAX_DIAGNOSTICS`."""

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings do not count."""
        return not self._errors

    @property
    def full(self) -> bool:
        """Whether no further error would be kept, so that a caller can stop checking."""
        return len(self._errors) >= MAX_DIAGNOSTICS

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All diagnostics by file, then position; errors first at the same position."""
        return tuple(sorted(self._errors + self._warnings, key=_order))

    @property
    def first_error(self) -> Diagnostic | None:
        """The first error by position; None if there are only warnings, or nothing."""
        return min(self._errors, key=_order, default=None)

    def report(
        self,
        severity: Severity,
        code: str,
        message: str,
        source: Source,
        span: Span,
        help: str = "",
        fix: Fix | None = None,
    ) -> None:
        """Add a diagnostic at `span`: an error refuses the file, a warning does not, a note explains."""
        code = self._language + code if code.startswith(".") else code
        self.add(Diagnostic(code, severity, message, source.file, source.range(*span), help, fix))

    error = partialmethod(report, "error")
    warning = partialmethod(report, "warning")
    note = partialmethod(report, "note")

    def add(self, diagnostic: Diagnostic) -> None:
        """Add an existing diagnostic."""
        kept = self._errors if diagnostic.severity == "error" else self._warnings
        if len(kept) < MAX_DIAGNOSTICS:
            kept.append(diagnostic)
        else:
            self.dropped += 1

    @property
    def errors(self) -> int:
        """The number of errors, including dropped diagnostics."""
        return len(self._errors) + self.dropped

    def extend(self, other: Report) -> None:
        """Add the diagnostics of another report (of a sub-workflow's file)."""
        for diagnostic in other.diagnostics:
            self.add(diagnostic)
        self.dropped += other.dropped


def _order(diagnostic: Diagnostic) -> tuple[str, Range, str, str, str]:
    return (diagnostic.file, diagnostic.range, diagnostic.severity, diagnostic.code, diagnostic.message)


# -----------------------------------------------------------------------------------------------------------
# Diagnostics for people: compiler style on a terminal, annotations in a pull request.
#
# Rules
# * The content of a file is shown and never interpreted, see `terminal`. GitHub's command syntax is escaped.
# * Carets are under the characters they refer to: tabs are shown as spaces, wide characters take two cells,
#   combining ones none.

MAX_LINE_CELLS = 100
"""Longer source lines are clipped around the caret."""
MAX_INLINE_HELP_CHARS = 80
TAB = "    "

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "gutter": "\x1b[1;34m", "bold": "\x1b[1m"}
_RESET = "\x1b[0m"


def render_text(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, Source], colour: bool = False
) -> str:
    """Return all diagnostics in the style of rustc, with a blank line between; empty if there are none."""
    return "\n".join([_block(d, sources.get(d.file), colour) for d in diagnostics])


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """Return one workflow command per diagnostic; GitHub shows them at the lines of a pull request."""
    lines = []
    for d in diagnostics:
        start, end = d.range.start, d.range.end
        if start.line == end.line:
            place = f"line={start.line},col={start.column},endColumn={end.column}"
        else:  # GitHub accepts columns only for ranges within one line
            place = f"line={start.line},endLine={end.line}"
        text = f"{d.message}\n{d.help}" if d.help else d.message
        lines.append(
            f"::{d.severity} file={_property(d.file)},{place},title={_property(d.code)}::{_data(text)}\n"
        )
    return "".join(lines)


def _block(d: Diagnostic, source: Source | None, colour: bool) -> str:
    number = str(d.range.start.line)
    pad = " " * len(number)
    head = _paint(f"{d.severity}[{d.code}]", d.severity, colour)
    head += _paint(f": {_clean(d.message)}", "bold", colour)
    arrow = _paint(f"{pad}-->", "gutter", colour)
    lines = [head, f"{arrow} {_clean(d.file)}:{d.range.start.line}:{d.range.start.column}"]
    bar = _paint(f"{pad} |", "gutter", colour)
    short = "\n" not in d.help and len(d.help) <= MAX_INLINE_HELP_CHARS
    if source is not None:
        # The shown line, the cells before the caret, and the number of carets within the line.
        line = source.line(d.range.start.line)
        first = min(d.range.start.column - 1, len(line))
        last = d.range.end.column - 1 if d.range.end.line == d.range.start.line else len(line)
        last = min(max(last, first), len(line))
        # A line may be the whole file: text beyond these limits is never visible.
        seen = 4 * MAX_LINE_CELLS
        parts = (
            line[max(first - seen, 0) : first],
            line[first : min(last, first + seen)],
            line[last : last + seen],
        )
        before, marked, after = (_clean(part.replace("\t", TAB)) for part in parts)
        room = MAX_LINE_CELLS
        marked = cut_end(marked, room)
        room -= cells(marked)
        # The text before the caret explains it better than the text after it.
        before = cut_start(before, max(room - min(cells(after), room // 3), 10))
        after = cut_end(after, max(room - cells(before), 10))
        shown, margin, carets = before + marked + after, cells(before), max(cells(marked), 1)
        marks = _paint("^" * carets + (f" {_clean(d.help)}" if d.help and short else ""), d.severity, colour)
        lines += [bar, f"{_paint(f'{number} |', 'gutter', colour)} {shown}".rstrip()]
        lines.append(f"{bar} {' ' * margin}{marks}")
    if d.help and not (short and source is not None):
        equals = _paint(f"{pad} =", "gutter", colour)
        indent = "\n" + " " * (len(number) + 9)
        lines.append(f"{equals} help: {indent.join(_clean(part) for part in d.help.splitlines())}")
    return "\n".join(lines) + "\n"


def _clean(text: str) -> str:
    return visible(text.replace("\n", " "))


def _paint(text: str, role: str, colour: bool) -> str:
    return f"{_COLOURS[role]}{text}{_RESET}" if colour else text


def _data(text: str) -> str:
    return visible(text, keep="\n").replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# -----------------------------------------------------------------------------------------------------------
# The error for the use of a file with mistakes.


class FileRefused(AuthorError):
    """A file has errors.

    `rendered` shows them to a person, and `details` has the output of `check --json`. `file`, `line` and
    `column` are the position of the first error.
    """

    def __init__(
        self, diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source], hint: str = ""
    ) -> None:
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        details = {"ok": False, "diagnostics": msgspec.to_builtins(diagnostics)}
        first = errors[0]
        place = f"{first.file}:{first.range.start.line}:{first.range.start.column}"
        message = f"{place}: {first.message}{more}"
        super().__init__(first.code, message, hint=hint or first.help, details=details)
        self.diagnostics = tuple(diagnostics)
        self.file, self.line, self.column = first.file, first.range.start.line, first.range.start.column
        self._sources = sources

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # a hint may still change
        """Every mistake with its line and a caret, as in `fanfold check`."""
        return [self.rendered(False).rstrip(), *super().__notes__]

    def rendered(self, colour: bool) -> str:
        """Return the diagnostics in compiler style."""
        return render_text(self.diagnostics, self._sources, colour)


# -----------------------------------------------------------------------------------------------------------
# Suggestions for misspelled words.

MAX_WORD_CHARS = 64
MAX_KNOWN_WORDS = 2_000
MIN_PART_CHARS = 4
_PARTS = "[-_.]"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` probably means, or None.

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
        # Cheap lower bounds first, because a hostile file causes this check for every one of its words.
        if abs(len(other) - len(wanted)) > limit or len(letters ^ set(other)) > 2 * limit:
            continue
        found = (edits(wanted, other), candidate)
        if found[0] <= limit and (best is None or found < best):
            best = found
    return _longer(wanted, words) if best is None else best[1]


def _longer(wanted: str, words: Collection[str]) -> str | None:
    """Return the only known word that starts with `wanted` or has it as a part.

    For example, `audit` is a part of `audit-fix-verify`.
    """
    if len(wanted) < MIN_PART_CHARS:
        return None
    found = [
        word for word in words if word.lower().startswith(wanted) or wanted in re.split(_PARTS, word.lower())
    ]
    return found[0] if len(found) == 1 else None


def edits(a: str, b: str) -> int:
    """Return how many insertions, removals, replacements or swaps of letters make `b` of `a`."""
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
