"""Parses TOML to the same tree as YAML, so that mistakes in role files have a line and a column.

The standard library returns the values of TOML, but not their positions. So the text is read twice: `tomllib`
checks it, and the walk below finds the positions and reads each value. Dates and times are kept as text,
because JSON has none.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import abc
from typing import NamedTuple

from fanfold.language.diagnostics import Diagnostic, Report, Source, Span, lines_of
from fanfold.language.json_text import JSON, SettingsUnreadableError, line_end
from fanfold.language.tree import INT_MAX, INT_MIN, Mapping, Node, Scalar, Sequence, character_map, resolve
from fanfold.language.yaml_text import TextFormat, decode, parse_yaml

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INDENT = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")
_QUOTED = re.compile(
    r"'''(?s:.*?)'{3,5}(?!')|\"\"\"(?s:(?:\\.|[^\\])*?)\"{3,5}(?!\")|'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\""
)
MAX_KEY_PARTS = 64
_TOKEN = rf"(?P<part>{_QUOTED.pattern}|[A-Za-z0-9_-]+|[ \t]+)|(?P<dot>\.)|#[^\n]*|[^#.]"
"""The tokens of keys: parts and dots; anything else ends a key."""
_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"


def parse_toml(data: bytes, file: str, form: TextFormat) -> tuple[Mapping | None, Source, Report]:
    """Parse one file; the tree is None if the text is not TOML.

    >>> tree, source, report = parse_toml(b"[a]\\nb = [1, 'x']", "a.toml", Format(name="role"))
    >>> source.position(tree.get("a").get("b").items[1].start)
    Position(line=2, column=9)
    """
    report = Report(form.name)
    source = decode(data, file, form, report)
    if not report.ok:
        return None, source, report
    if (at := find_long_key(source.text)) is not None:
        message = f"a key of the {form.name} has more than {MAX_KEY_PARTS} parts"
        report.error(".too_deep", message, source, (at, at + 1))
        return None, source, report
    try:
        tomllib.loads(source.text)
        tree = _TomlWalk(source, form.max_depth, report).document()
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(_PLACE, message)
        at = len(source.text)
        if place is not None and place[1] is not None:
            at = source.offset(int(place[1]), int(place[2]))
        report.error(
            ".syntax", f"this is not valid TOML: {re.sub(_PLACE, '', message)}", source, (at, at + 1)
        )
        return None, source, report
    except RecursionError:
        message = f"the {form.name} nests more than {form.max_depth} levels deep"
        report.error(".too_deep", message, source, (0, 0))
        return None, source, report
    except ValueError:  # more digits than Python converts to an integer
        report.error(".bad_value", "a number is too large", source, (0, 0))
        return None, source, report
    return tree, source, report


def find_long_key(text: str) -> int | None:
    """Return where a key with more than `MAX_KEY_PARTS` parts ends; `tomllib` takes cubic time for one."""
    parts = 1
    for token in re.finditer(_TOKEN, text):
        if token.lastgroup is None:
            parts = 1
        elif token.lastgroup == "dot":
            parts += 1
            if parts > MAX_KEY_PARTS:
                return token.start()
    return None


class _TomlWalk:
    """Builds the tree of a valid TOML text."""

    def __init__(self, source: Source, max_depth: int, report: Report) -> None:
        self._source = source
        self._text = source.text
        self._at = 0
        self._max_depth = max_depth
        self._report = report

    def document(self) -> Mapping:
        root = current = Mapping([], 0, len(self._text))
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                current = self._header(root)
            else:
                self._pair(current, 1)
        return root

    def _header(self, root: Mapping) -> Mapping:
        start, many = self._at, self._text.startswith("[[", self._at)
        self._at += 1 + many
        *path, name = self._keys()
        self._at = self._text.index("]", self._at) + 1 + many
        around = self._inside(root, path)
        before = around.get(name.text)
        table = Mapping([], start, self._at)
        if many and isinstance(before, Sequence):
            before.items.append(table)
        elif many:
            around.add(name, Sequence([table], start, self._at))
        elif isinstance(before, Mapping):
            return before
        else:
            around.add(name, table)
        return table

    def _inside(self, table: Mapping, path: list[Scalar]) -> Mapping:
        """Return the table at a dotted key; for a list of tables the last one."""
        if len(path) > self._max_depth:
            raise RecursionError
        for name in path:
            if (inner := table.get(name.text)) is None:
                inner = Mapping([], name.start, name.end)
                table.add(name, inner)
            inner = inner.items[-1] if isinstance(inner, Sequence) else inner
            assert isinstance(inner, Mapping), "nothing else can be entered"
            table = inner
        return table

    def _pair(self, table: Mapping, depth: int) -> None:
        *path, name = self._keys()
        self._at = self._text.index("=", self._at) + 1
        self._inside(table, path).add(name, self._value(depth + len(path)))

    def _keys(self) -> list[Scalar]:
        keys = []
        while True:
            start = self._skip(_INDENT)
            found = _QUOTED.match(self._text, start) or _BARE.match(self._text, start)
            assert found is not None, "it is TOML"
            self._at = found.end()
            key = found[0] if found[0][0] not in "\"'" else next(iter(tomllib.loads(f"{found[0]} = 0")))
            keys.append(Scalar(key, key, start, self._at, "", self._text))
            if self._text[self._skip(_INDENT)] != ".":
                return keys
            self._at += 1

    def _value(self, depth: int) -> Node:
        start = self._skip(_INDENT)
        if depth > self._max_depth:
            raise RecursionError
        if (closing := {"[": "]", "{": "}"}.get(self._text[start])) is None:
            return self._scalar(start)
        items: list[Node] = []
        table = Mapping([], start, start)
        self._at += 1
        while self._text[self._skip(_BLANK)] != closing:
            if closing == "]":
                items.append(self._value(depth + 1))
            else:
                self._pair(table, depth + 1)
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1
        table.end = self._at
        return table if closing == "}" else Sequence(items, start, self._at)

    def _scalar(self, start: int) -> Scalar:
        found = _QUOTED.match(self._text, start) or _PLAIN.match(self._text, start)
        assert found is not None, "it is TOML"
        self._at = end = found.end()
        written = found[0]
        value = tomllib.loads(f"value = {written}")["value"]
        if isinstance(value, str):
            style = written[:3] if written[:3] in ("'''", '"""') else written[0]
            return Scalar(value, value, start, end, style, self._text)
        if not isinstance(value, bool | int | float):  # a date or a time
            return Scalar(written, written, start, end, "", self._text)
        message = ""
        if isinstance(value, float) and value - value != 0:
            message = "infinity and NaN are not allowed: JSON has no such numbers"
        elif not isinstance(value, bool) and not INT_MIN <= value <= INT_MAX:
            message = "the integer does not fit in 64 bits"
        if message:
            self._report.error(".bad_value", message, self._source, (start, end))
        return Scalar(value, written, start, end, "", self._text)

    def _skip(self, what: re.Pattern[str]) -> int:
        found = what.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at


# -----------------------------------------------------------------------------------------------------------
# Editing of one table in a TOML file: the configuration of a program that agents use.
#
# The table is a separate block of lines, from its header to the next. Comments, order and unknown keys of
# everything else stay unchanged. The result of an edit is parsed again, and an edit that would change
# anything else is refused.

_HEADER = r"^[ \t]*\["


def set_table(text: str, path: abc.Sequence[str], values: abc.Mapping[str, JSON]) -> str:
    """Return the text with a table of these values; unchanged if it is already there."""
    before = _read(text)
    if _inside(before, path) == values:
        return text
    rest = remove_table(text, path)
    table = [f"[{'.'.join(path)}]", *(f"{key} = {_written(one)}" for key, one in values.items())]
    gap = [] if not rest.strip() else [""] if rest.endswith("\n") else ["", ""]
    added = line_end(text).join([*gap, *table, ""])
    return _checked(f"{rest}{added}", _with(_read(rest), path, dict(values)))


def table_at(text: str, path: abc.Sequence[str]) -> JSON:
    """Return the table under a path of keys; None if there is none."""
    return _inside(_read(text), path)


def remove_table(text: str, path: abc.Sequence[str]) -> str:
    """Return the text without a table and the tables inside it; unchanged if there is none."""
    before = _read(text)
    if _inside(before, path) is None:
        return text
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    inside = False
    for line in lines:
        if re.match(_HEADER, line):
            inside = _named(line)[: len(path)] == list(path)
        if not inside:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return _checked("".join(kept), _with(before, path, None))


def _named(line: str) -> list[str]:
    """Return the keys of a header."""
    try:
        value: JSON = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    names: list[str] = []
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        names.append(name)
        if isinstance(value, list):
            value = value[0]
    return names


def _read(text: str) -> dict[str, JSON]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise SettingsUnreadableError from None


def _inside(value: JSON, path: abc.Sequence[str]) -> JSON:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _with(value: dict[str, JSON], path: abc.Sequence[str], new: JSON) -> dict[str, JSON]:
    """Return a copy with another value under a path; None removes it, and tables that become empty."""
    head, *rest = path
    inner = value.get(head)
    changed = _with(inner if isinstance(inner, dict) else {}, rest, new) if rest else new
    copied = {key: one for key, one in value.items() if key != head}
    return copied if changed in (None, {}) else {**copied, head: changed}


def _checked(text: str, expected: dict[str, JSON]) -> str:
    """Return the text if it has exactly the expected content, because not every table is a block of lines."""
    if _read(text) != expected:
        raise SettingsUnreadableError
    return text


def _written(value: JSON) -> str:
    # Strings, numbers, booleans and lists of JSON are valid TOML.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_written(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


# -----------------------------------------------------------------------------------------------------------
# Front matter: the `---` block of keys at the top of a markdown file, as the same tree as a recipe's.
#
# Authors write such blocks by hand and rarely quote (`description: Use when: tests fail`), which YAML
# refuses. So a block that is valid YAML is read as YAML. In any other block, each key is read separately, and
# plain text is accepted. A value that cannot be read in either way is kept as text, with a diagnostic in
# `unread` for callers that need the key.
#
# A caller can name keys with prose (`Habits`). Their text continues over lines that are not indented, up to
# the next known key, and is text whatever quotes it contains. For other keys such a line is refused, because
# it could be a key that restricts the role.

MAX_KEYS = 100
_KEY = r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+|$)"
_FENCE = r"---[ \t]*$"
_BLOCK = re.compile(r"[ \t]*:[ \t]*[|>][-+\d]*[ \t]*(?:#.*)?$", re.MULTILINE)
_STRUCTURED = ("[", "{", '"', "'", "|", ">")


class Habits(NamedTuple):
    """Common ways to write files of one kind by hand."""

    known: frozenset[str] = frozenset()
    """Keys that end a text, in lower case."""
    prose: frozenset[str] = frozenset()
    """Keys whose values are text for people."""
    repeated: frozenset[str] = frozenset()
    """Keys that can occur twice, because they have no effect; the last one is used."""


NO_HABITS = Habits()
INDENT = "indent it, so that it belongs to the key above"


class FrontMatter(NamedTuple):
    """A file with front matter; without a `tree` it has none that can be read."""

    tree: Mapping | None
    body: str
    source: Source
    report: Report
    unread: dict[str, Diagnostic]
    """By key: why its value could only be read as text."""


def parse_front_matter(data: bytes, file: str, form: TextFormat, habits: Habits = NO_HABITS) -> FrontMatter:
    """Parse one file.

    >>> found = parse_front_matter(b"---\\ntools: [Read, Grep]\\n---\\nLook.", "a.md", Format(name="role"))
    >>> found.tree.get("tools").items[1].text, found.body
    ('Grep', 'Look.')
    """
    report = Report(form.name)
    source = decode(data, file, form, report)
    if (fences := _fences(source, report) if report.ok else None) is None:
        return FrontMatter(None, "", source, report, {})
    start, end, rest = fences
    body = source.text[rest:]
    whole = _read_front_matter(source, (start, end), form)
    if isinstance(whole, Mapping):
        return FrontMatter(whole, body, source, report, {})
    unread: dict[str, Diagnostic] = {}
    entries: list[tuple[Scalar, Node]] = []
    for key, span in _chunks(source, report, habits, start, end):
        found = _value(source, key, span, form, is_prose=key.text in habits.prose)
        if isinstance(found, Diagnostic) and key.text in habits.prose and _is_quoted(source, key.end):
            found = _text(source, key.end, span[1])
        if isinstance(found, Diagnostic):
            unread[key.text] = found
            found = _text(source, key.end, span[1])
        entries.append((key, found))
    return FrontMatter(Mapping(entries, start, end), body, source, report, unread)


def _fences(source: Source, report: Report) -> tuple[int, int, int] | None:
    """Return where the block starts and ends, and where the text below starts."""
    lines = lines_of(source.text, 0, len(source.text))
    first = next((line for line in lines if source.text[line[0] : line[1]].strip()), (0, 0, 0))
    if not re.match(_FENCE, source.text[first[0] : first[1]]):
        message = 'there is no front matter: the file must begin with a "---" line'
        report.error(".syntax", message, source, first[:2])
        return None
    for start, end, after in lines:
        if re.match(_FENCE, source.text[start:end]):
            return first[2], start, after
    last = len(source.text.rstrip())
    report.error(".syntax", 'the front matter is not closed by a "---" line', source, (last, last))
    return None


def _chunks(
    source: Source, report: Report, habits: Habits, start: int, end: int
) -> list[tuple[Scalar, Span]]:
    """Return each key with its lines: its own, and those below that are indented or list items."""
    text = source.text
    chunks: dict[str, tuple[Scalar, Span]] = {}
    current = ""
    for at, stop, after in lines_of(text, start, end):
        line = text[at:stop]
        if not line.strip():
            continue  # part of a value only if the value continues after it
        if line.lstrip().startswith("#"):
            in_block = current and line[0] != "#" and _BLOCK.match(text, chunks[current][0].end)
            if not in_block:
                continue  # a comment; in a block of text it is a normal line
        found = re.match(_KEY, line)
        key = found[1] if found else ""
        span = (at, at + len(key))
        ends_prose = current not in habits.prose or key.lower() in habits.known
        if current and (line[0] in " \t-]}" or not ends_prose):
            word, (first, _) = chunks[current]
            chunks[current] = (word, (first, after))
        elif not key:
            report.error(".syntax", 'expected "key: value"', source, (at, stop), INDENT)
        elif key in chunks and key not in habits.repeated:
            message = f'key "{key}" is already given at line {source.position(chunks[key][0].start).line}'
            report.error(".duplicate_key", message, source, span, "remove one of them")
        elif len(chunks) == MAX_KEYS:
            report.error(".too_large", f"more than {MAX_KEYS} keys", source, (at, stop))
            break
        else:
            current = key
            chunks[key] = (Scalar(key, key, *span, "", text), (at, after))
    return list(chunks.values())


def _is_quoted(source: Source, colon: int) -> bool:
    return source.text[source.text.index(":", colon) + 1 :].lstrip(" \t").startswith(("'", '"'))


def _value(source: Source, key: Scalar, span: Span, form: TextFormat, *, is_prose: bool) -> Node | Diagnostic:
    """Return the value of one key: YAML if it is valid YAML, otherwise plain text."""
    rest = source.text[key.end + 1 : span[1]].lstrip(" \t")
    structured = rest.startswith(_STRUCTURED) and not rest.startswith("{{")
    is_text = not structured and rest[:1] not in ("\n", "\r", "#", "")
    if is_text and is_prose:
        return _text(source, key.end, span[1])
    read = _read_front_matter(source, span, form)
    if isinstance(read, Mapping):
        return read.entries[0][1]
    return _text(source, key.end, span[1]) if is_text else read


def _read_front_matter(source: Source, span: Span, form: TextFormat) -> Mapping | Diagnostic:
    """Return a part of the file as YAML, with correct positions: everything before it is blanked."""
    written = source.text[span[0] : span[1]]
    if not written.strip():
        return Mapping([], *span)
    before = re.sub(r"[^\r\n]", " ", source.text[: span[0]])
    tree, _, report = parse_yaml((before + written).encode(), source.file, form)
    if isinstance(tree, Mapping) and report.ok:
        return tree
    if report.ok:
        report.error(".syntax", "this is not a list of keys", source, span)
    return report.diagnostics[0]


def _text(source: Source, colon: int, end: int) -> Scalar:
    """Return the text after the colon, with its lines joined."""
    start = source.text.index(":", colon) + 1
    written = source.text[start:end]
    start += len(written) - len(written.lstrip())
    end = start + len(written.strip())
    text = "".join(char for char, _, _ in character_map(source.text, start, end, "", ""))
    try:
        value = resolve(text)
    except ValueError:
        value = text
    return Scalar(value, text, start, end, "", source.text)
