"""Front matter: the `---` block of keys at the top of a markdown file, as the same tree as a recipe's.

People write such blocks by hand and rarely quote (`description: Use when: tests fail`), which YAML refuses.
So a block that is YAML is read as YAML; in any other, each key is read by itself, and what is text to people
is text. What neither way can make sense of is kept as text and told in `unread`, for whoever needs that key.

A reader may name keys that hold prose (`Habits`): their text goes on over lines that nobody indented, up to
the next key that the reader knows, and is text whatever quotes stand in it. Elsewhere such a line is refused,
since it could be a key that says what a file may not do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fanfold.text.diagnostics import Diagnostic, Source, Span, lines_of
from fanfold.text.report import Report
from fanfold.text.trees.scalars import character_map, resolve
from fanfold.text.trees.tree import Mapping, Node, Scalar
from fanfold.text.trees.yaml import TextFormat, decode, parse_yaml

MAX_KEYS = 100
_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+|$)")
_FENCE = re.compile(r"---[ \t]*$")
_BLOCK = re.compile(r"[ \t]*:[ \t]*[|>][-+\d]*[ \t]*(?:#.*)?$", re.MULTILINE)
_STRUCTURED = ("[", "{", '"', "'", "|", ">")


class Habits(NamedTuple):
    """How files of one kind are written by hand."""

    known: frozenset[str] = frozenset()
    """Keys that end a text, in lower case."""
    prose: frozenset[str] = frozenset()
    """Keys whose values are text for people."""
    repeated: frozenset[str] = frozenset()
    """Keys that may stand twice, since nothing hangs on them; the last holds."""


NO_HABITS = Habits()
INDENT = "indent it, so that it belongs to the key above"


class FrontMatter(NamedTuple):
    """A file with front matter; without a `tree` it has none that can be read."""

    tree: Mapping | None
    body: str
    source: Source
    report: Report
    unread: dict[str, Diagnostic]
    """By key: why its value could only be taken as text."""


def parse_front_matter(data: bytes, file: str, form: TextFormat, habits: Habits = NO_HABITS) -> FrontMatter:
    """Read one file.

    >>> found = parse_front_matter(b"---\\ntools: [Read, Grep]\\n---\\nLook.", "a.md", Format(name="role"))
    >>> found.tree.get("tools").items[1].text, found.body
    ('Grep', 'Look.')
    """
    report = Report(form.name)
    source = decode(data, file, form, report)
    fences = _fences(source, report) if report.ok else None
    if fences is None:
        return FrontMatter(None, "", source, report, {})
    start, end, rest = fences
    body = source.text[rest:]
    whole = _read(source, (start, end), form)
    if isinstance(whole, Mapping):
        return FrontMatter(whole, body, source, report, {})
    unread: dict[str, Diagnostic] = {}
    entries: list[tuple[Scalar, Node]] = []
    for key, span in _Chunks(source, report, habits).read(start, end):
        found = _value(source, key, span, form, is_prose=key.text in habits.prose)
        if isinstance(found, Diagnostic) and key.text in habits.prose and _is_quoted(source, key.end):
            found = _text(source, key.end, span[1])
        if isinstance(found, Diagnostic):
            unread[key.text] = found
            found = _text(source, key.end, span[1])
        entries.append((key, found))
    return FrontMatter(Mapping(entries, start, end), body, source, report, unread)


def _fences(source: Source, report: Report) -> tuple[int, int, int] | None:
    """Where the block begins and ends, and where the text below begins."""
    lines = lines_of(source.text, 0, len(source.text))
    first = next((one for one in lines if source.text[one[0] : one[1]].strip()), (0, 0, 0))
    if not _FENCE.match(source.text[first[0] : first[1]]):
        message = 'there is no front matter: the file must begin with a "---" line'
        report.error(".syntax", message, source, first[:2])
        return None
    for start, end, after in lines:
        if _FENCE.match(source.text[start:end]):
            return first[2], start, after
    last = len(source.text.rstrip())
    report.error(".syntax", 'the front matter is not closed by a "---" line', source, (last, last))
    return None


class _Chunks:
    """Each key with the lines that belong to it: its own, and those below that are indented or items."""

    def __init__(self, source: Source, report: Report, habits: Habits) -> None:
        self._source = source
        self._report = report
        self._habits = habits
        self._found: dict[str, tuple[Scalar, Span]] = {}
        self._current = ""

    def read(self, start: int, end: int) -> list[tuple[Scalar, Span]]:
        text = self._source.text
        for at, stop, after in lines_of(text, start, end):
            line = text[at:stop]
            key = _KEY.match(line)
            if not line.strip() or self._is_comment(line):
                continue  # part of a value only where that goes on behind it
            if self._current and self._goes_on(line, key[1] if key else ""):
                word, span = self._found[self._current]
                self._found[self._current] = (word, (span[0], after))
            elif key is None:
                self._report.error(".syntax", 'expected "key: value"', self._source, (at, stop), INDENT)
            elif key[1] in self._found and key[1] not in self._habits.repeated:
                self._refuse_second(key[1], (at, at + key.end(1)))
            elif len(self._found) == MAX_KEYS:
                self._report.error(".too_large", f"more than {MAX_KEYS} keys", self._source, (at, stop))
                break
            else:
                self._current = key[1]
                word = Scalar(key[1], key[1], at, at + key.end(1), "", text)
                self._found[self._current] = (word, (at, after))
        return list(self._found.values())

    def _is_comment(self, line: str) -> bool:
        """Whether nobody is to read a line; in a block of text it is a line like any other."""
        if not line.lstrip().startswith("#"):
            return False
        if line[0] == "#" or not self._current:
            return True
        word, _ = self._found[self._current]
        return _BLOCK.match(self._source.text, word.end) is None

    def _goes_on(self, line: str, key: str) -> bool:
        """Whether a line belongs to the key above it."""
        if line[0] in " \t-]}":
            return True
        return self._current in self._habits.prose and key.lower() not in self._habits.known

    def _refuse_second(self, key: str, at: Span) -> None:
        line_before = self._source.position(self._found[key][0].start).line
        message = f'key "{key}" is already given at line {line_before}'
        self._report.error(".duplicate_key", message, self._source, at, "remove one of them")


def _is_quoted(source: Source, colon: int) -> bool:
    return source.text[source.text.index(":", colon) + 1 :].lstrip(" \t").startswith(("'", '"'))


def _value(source: Source, key: Scalar, span: Span, form: TextFormat, *, is_prose: bool) -> Node | Diagnostic:
    """The value of one key: YAML where it is YAML, and otherwise what is text to a person is text."""
    rest = source.text[key.end + 1 : span[1]].lstrip(" \t")
    structured = rest.startswith(_STRUCTURED) and not rest.startswith("{{")
    is_text = not structured and rest[:1] not in ("\n", "\r", "#", "")
    if is_text and is_prose:
        return _text(source, key.end, span[1])
    read = _read(source, span, form)
    if isinstance(read, Mapping):
        return read.entries[0][1]
    return _text(source, key.end, span[1]) if is_text else read


def _read(source: Source, span: Span, form: TextFormat) -> Mapping | Diagnostic:
    """A part of the file as YAML, at its place: what stands before it is blanked."""
    written = source.text[span[0] : span[1]]
    if not written.strip():
        return Mapping([], *span)
    before = re.sub(r"[^\r\n]", " ", source.text[: span[0]])
    tree, _, report = parse_yaml((before + written).encode(), source.file, form)
    if isinstance(tree, Mapping) and report.ok:
        return tree
    if report.ok:
        report.error(".syntax", "this is no list of keys", source, span)
    return report.diagnostics[0]


def _text(source: Source, colon: int, end: int) -> Scalar:
    """What was written behind the colon, its lines joined."""
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
