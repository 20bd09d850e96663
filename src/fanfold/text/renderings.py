"""Diagnostics for people: compiler style on a terminal, annotations in a pull request.

Rules
* Whatever a file holds is shown, never obeyed: see `terminal`. GitHub's command syntax is escaped.
* Carets stand under the characters they mean: tabs are shown as spaces, wide characters take two cells,
  combining ones none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fanfold.text.diagnostics import Diagnostic, Range, Source
from fanfold.text.terminal import cells, cut_end, cut_start, visible

MAX_LINE_CELLS = 100
"""Longer source lines are clipped around the caret."""
MAX_INLINE_HELP_CHARS = 80
TAB = "    "

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "gutter": "\x1b[1;34m", "bold": "\x1b[1m"}
_RESET = "\x1b[0m"


def render_text(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, Source], colour: bool = False
) -> str:
    """All diagnostics as rustc shows them, a blank line between; empty when there are none."""
    blocks = [_block(d, sources.get(d.file), colour) for d in diagnostics]
    return "\n".join(blocks)


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """One workflow command per diagnostic; GitHub shows them at the lines of a pull request."""
    lines = []
    for d in diagnostics:
        start, end = d.range.start, d.range.end
        if start.line == end.line:
            place = f"line={start.line},col={start.column},endColumn={end.column}"
        else:  # GitHub takes columns only for ranges within one line
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
        shown, margin, carets = _excerpt(source.line(d.range.start.line), d.range)
        marks = _paint("^" * carets + (f" {_clean(d.help)}" if d.help and short else ""), d.severity, colour)
        lines += [bar, f"{_paint(f'{number} |', 'gutter', colour)} {shown}".rstrip()]
        lines.append(f"{bar} {' ' * margin}{marks}")
    if d.help and not (short and source is not None):
        equals = _paint(f"{pad} =", "gutter", colour)
        indent = "\n" + " " * (len(number) + 9)
        lines.append(f"{equals} help: {indent.join(_clean(part) for part in d.help.splitlines())}")
    return "\n".join(lines) + "\n"


def _excerpt(line: str, place: Range) -> tuple[str, int, int]:
    """The line as shown, the cells before the caret, and how many carets; never past the line's end."""
    first = min(place.start.column - 1, len(line))
    last = place.end.column - 1 if place.end.line == place.start.line else len(line)
    last = min(max(last, first), len(line))
    # A line may be the whole file: nothing past these ends can be in view.
    seen = 4 * MAX_LINE_CELLS
    parts = (
        line[max(first - seen, 0) : first],
        line[first : min(last, first + seen)],
        line[last : last + seen],
    )
    before, marked, after = map(_show, parts)
    room = MAX_LINE_CELLS
    marked = cut_end(marked, room)
    room -= cells(marked)
    # What stands before the caret explains it better than what follows.
    before = cut_start(before, max(room - min(cells(after), room // 3), 10))
    after = cut_end(after, max(room - cells(before), 10))
    return before + marked + after, cells(before), max(cells(marked), 1)


def _show(text: str) -> str:
    return _clean(text.replace("\t", TAB))


def _clean(text: str) -> str:
    return visible(text.replace("\n", " "))


def _paint(text: str, role: str, colour: bool) -> str:
    return f"{_COLOURS[role]}{text}{_RESET}" if colour else text


def _data(text: str) -> str:
    return visible(text, keep="\n").replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
