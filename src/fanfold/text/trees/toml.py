"""TOML bytes → the same tree as YAML's, so that a mistake in a role file has a line and a column too.

The standard library reads TOML and says what it means, but not where. So the text is read twice: `tomllib`
judges and gives the values, and the walk below, which need not judge any more, finds where each of them is.
Dates and times are taken as the text they are written as: JSON has none.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from fanfold.text.diagnostics import Source, Span
from fanfold.text.report import Report
from fanfold.text.trees.scalars import INT_MAX, INT_MIN
from fanfold.text.trees.tree import Mapping, Node, Scalar, Sequence
from fanfold.text.trees.yaml import TextFormat, decode

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INDENT = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")
_QUOTED = re.compile(
    r"'''(?s:.*?)'{3,5}(?!')|\"\"\"(?s:(?:\\.|[^\\])*?)\"{3,5}(?!\")|'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\""
)
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class _Leaf:
    """Where one value stands, and how it is written."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Table:
    """A table under way: headers further down may add to it."""

    __slots__ = ("end", "fields", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.fields: dict[str, tuple[Span, _Part]] = {}


class _Array:
    __slots__ = ("end", "items", "start")

    def __init__(self, start: int, end: int, items: list[_Part]) -> None:
        self.start = start
        self.end = end
        self.items = items


_Part: TypeAlias = _Leaf | _Table | _Array


def parse_toml(data: bytes, file: str, form: TextFormat) -> tuple[Mapping | None, Source, Report]:
    """Read one file. The tree is None when the text is no TOML.

    >>> tree, source, report = parse_toml(b"[a]\\nb = [1, 'x']", "a.toml", Format(name="role"))
    >>> source.position(tree.get("a").get("b").items[1].start)
    Position(line=2, column=9)
    """
    import tomllib

    report = Report(form.name)
    source = decode(data, file, form, report)
    if not report.ok:
        return None, source, report
    try:
        values = tomllib.loads(source.text)
        table = _TomlWalk(source.text, form.max_depth).document()
    except tomllib.TOMLDecodeError as error:
        report.error(".syntax", *_told(error, source))
        return None, source, report
    except RecursionError:
        message = f"the {form.name} nests more than {form.max_depth} levels deep"
        report.error(".too_deep", message, source, (0, 0))
        return None, source, report
    except ValueError:  # more digits than Python turns into an integer
        report.error(".bad_value", "a number is too large", source, (0, 0))
        return None, source, report
    tree = _Builder(source, report).node(table, values)
    assert isinstance(tree, Mapping)
    return tree, source, report


def _told(error: ValueError, source: Source) -> tuple[str, Source, Span]:
    message = str(error)
    place = _PLACE.search(message)
    at = len(source.text)
    if place is not None and place[1] is not None:
        at = source.offset(int(place[1]), int(place[2]))
    return f"this is no TOML: {_PLACE.sub('', message)}", source, (at, at + 1)


class _TomlWalk:
    """Finds the places of everything in a text that is known to be TOML."""

    def __init__(self, text: str, max_depth: int) -> None:
        self._text = text
        self._at = 0
        self._max_depth = max_depth

    def document(self) -> _Table:
        root = current = _Table(0, len(self._text))
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                current = self._header(root)
            else:
                self._pair(current, 1)
        return root

    def _header(self, root: _Table) -> _Table:
        start, many = self._at, self._text.startswith("[[", self._at)
        self._at += 1 + many
        *path, (name, span) = self._keys()
        self._at = self._text.index("]", self._at) + 1 + many
        around = self._inside(root, path)
        before = around.fields.get(name)
        table = _Table(start, self._at)
        if many and before is not None and isinstance(before[1], _Array):
            before[1].items.append(table)
        elif many:
            around.fields[name] = (span, _Array(start, self._at, [table]))
        elif before is not None and isinstance(before[1], _Table):
            return before[1]
        else:
            around.fields[name] = (span, table)
        return table

    def _inside(self, table: _Table, path: list[tuple[str, Span]]) -> _Table:
        """The table that a dotted key leads to; of a list of tables its last is meant."""
        if len(path) > self._max_depth:
            raise RecursionError
        for name, span in path:
            _, found = table.fields.setdefault(name, (span, _Table(*span)))
            inner = found.items[-1] if isinstance(found, _Array) else found
            assert isinstance(inner, _Table), "nothing else can be entered"
            table = inner
        return table

    def _pair(self, table: _Table, depth: int) -> None:
        *path, (name, span) = self._keys()
        self._at = self._text.index("=", self._at) + 1
        self._inside(table, path).fields[name] = (span, self._value(depth + len(path)))

    def _keys(self) -> list[tuple[str, Span]]:
        keys = []
        while True:
            start = self._skip(_INDENT)
            found = _QUOTED.match(self._text, start) or _BARE.match(self._text, start)
            assert found is not None, "it is TOML"
            self._at = found.end()
            keys.append((_key(found[0]), (start, self._at)))
            if self._text[self._skip(_INDENT)] != ".":
                return keys
            self._at += 1

    def _value(self, depth: int) -> _Part:
        start = self._skip(_INDENT)
        if depth > self._max_depth:
            raise RecursionError
        if self._text[start] == "[":
            return self._array(depth)
        if self._text[start] == "{":
            return self._inline_table(depth)
        found = _QUOTED.match(self._text, start) or _PLAIN.match(self._text, start)
        assert found is not None, "it is TOML"
        self._at = found.end()
        return _Leaf(start, self._at)

    def _array(self, depth: int) -> _Array:
        start, items = self._at, list[_Part]()
        self._at += 1
        while self._text[self._skip(_BLANK)] != "]":
            items.append(self._value(depth + 1))
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1
        return _Array(start, self._at, items)

    def _inline_table(self, depth: int) -> _Table:
        table = _Table(self._at, self._at)
        self._at += 1
        while self._text[self._skip(_BLANK)] != "}":
            self._pair(table, depth + 1)
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1
        table.end = self._at
        return table

    def _skip(self, what: re.Pattern[str]) -> int:
        found = what.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at


def _key(written: str) -> str:
    if written[0] not in "\"'":
        return written
    import tomllib

    return next(iter(tomllib.loads(f"{written} = 0")))


class _Builder:
    """Puts values and places together."""

    def __init__(self, source: Source, report: Report) -> None:
        self._source = source
        self._report = report

    def node(self, part: _Part, value: Any) -> Node:
        if isinstance(part, _Table):
            entries = [
                (Scalar(name, name, *span, "", self._source.text), self.node(inner, value[name]))
                for name, (span, inner) in part.fields.items()
            ]
            return Mapping(entries, part.start, part.end)
        if isinstance(part, _Array):
            items = [self.node(inner, one) for inner, one in zip(part.items, value, strict=True)]
            return Sequence(items, part.start, part.end)
        text = self._source.text
        written = text[part.start : part.end]
        if isinstance(value, str):
            style = written[:3] if written[:3] in ("'''", '"""') else written[0]
            return Scalar(value, value, part.start, part.end, style, text)
        if not isinstance(value, bool | int | float):  # a date or a time
            return Scalar(written, written, part.start, part.end, "", text)
        if isinstance(value, float) and value - value != 0:
            message = "infinity and NaN are not allowed: JSON has no such numbers"
            self._report.error(".bad_value", message, self._source, (part.start, part.end))
        elif not isinstance(value, bool) and not INT_MIN <= value <= INT_MAX:
            message = "the integer does not fit in 64 bits"
            self._report.error(".bad_value", message, self._source, (part.start, part.end))
        return Scalar(value, written, part.start, part.end, "", text)
