"""YAML bytes → a tree that knows where every character came from: recipes, scripts, inputs, front matter.

Rules
* libyaml's parser gives events; this module composes the tree itself. PyYAML's own composer and
  constructors are never used: they follow aliases, build objects from tags, read `on` as true, and
  overflow the stack on deep input.
* Input is hostile. Size, depth and the number of values are limited before they can cost anything;
  libyaml is quadratic in flow depth, so composing stops at the first collection too deep.
* Nothing is raised to the caller. What can be reported without stopping (duplicate keys, anchors,
  tags, keys and numbers of the wrong kind) is, and composing goes on; at a syntax error it ends and the
  tree is None.
* JSON is YAML but for one thing: what it writes as a pair of escapes (`\\ud83d\\ude00`) libyaml refuses. Such
  text is read with the one escape that means the same; columns behind it shift by two, lines do not.
* `yaml` is imported when the first file is parsed: it costs more than any other package.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.text.diagnostics import Fix, Source, Span
from fanfold.text.excerpts import shorten
from fanfold.text.patterns import regex
from fanfold.text.report import Report
from fanfold.text.trees.libyaml import import_yaml
from fanfold.text.trees.scalars import Value, resolve
from fanfold.text.trees.tree import Mapping, Node, Scalar, Sequence

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_VALUES = 50_000
"""More than one value in five bytes of the largest recipe is no recipe."""
MAX_ENCODING_ERRORS = 20
MAX_SHOWN_CHARS = 60

# Control characters but tab and line breaks, and what YAML 1.1 and 1.2 disagree about (line separators).
FORBIDDEN = regex("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_FORBIDDEN_VALUES = regex("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# What only a file with mistakes needs is compiled then.
_QUOTABLE = r'[^"\\\r\n]*'
_ENDS_VALUE = r"[ \t]*(?:[\]}\r\n]|#|$)"
_PAIR = rb"((?<!\\)(?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
_PROPERTY = r"([&!])[^\s,\[\]{}]*(?:\s|#[^\r\n]*(?=[\r\n]))*"


class TextFormat(Struct, frozen=True, kw_only=True):
    """What a kind of file is called in codes and messages, and how much of it is read."""

    name: str
    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH
    """Collections inside one another; the outermost counts."""
    max_values: int = MAX_VALUES
    clean_text: bool = True
    """Whether control characters in the text are refused."""
    clean_values: bool = True
    """Whether they are refused where an escape stands for them, too."""
    begin_with: str = ""
    """What to write into an empty file."""
    too_large: str = ""
    """What to do when there is too much of it."""


RECIPE = TextFormat(
    name="recipe", begin_with="begin with name: and steps:", too_large="move long texts to roles or files"
)
BUILT_RECIPE = TextFormat(
    name="recipe",
    max_bytes=2**40,
    max_depth=200,  # beyond it Python's own stack would decide
    max_values=2**40,
    clean_text=False,
    clean_values=False,
)
"""Text that this program wrote itself from a recipe built in code."""


class _Stop(BaseException):
    """Composing cannot go on; the reason is in the report. A signal, not an error."""


def parse_yaml(data: bytes, file: str, form: TextFormat = RECIPE) -> tuple[Node | None, Source, Report]:
    """Read one file. The tree is None when the text could not be read to its end.

    >>> tree, source, report = parse_yaml(b"name: hello", "hello.yaml")
    >>> report.ok, plain(tree)
    (True, {'name': 'hello'})
    """
    report = Report(form.name)
    source = decode(data, file, form, report)
    if not report.ok:
        return None, source, report
    try:
        tree = _Composer(data, source, report, form).document()
    except _Stop:
        joined = _with_joined_pairs(data)
        if joined != data:
            return parse_yaml(joined, file, form)
        tree = None
    return tree, source, report


def _with_joined_pairs(data: bytes) -> bytes:
    """JSON with its pairs of surrogate escapes written as one; any other text as it is."""
    if not re.search(_PAIR, data) or data.lstrip()[:1] not in (b"{", b"["):
        return data
    try:
        msgspec.json.decode(data)  # then a backslash can only stand in quoted text
    except (msgspec.DecodeError, RecursionError):
        return data
    return re.sub(_PAIR, lambda found: found[1] + b"\\U%08x" % _joined(found[2], found[3]), data)


def _joined(high: bytes, low: bytes) -> int:
    return 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)


def decode(data: bytes, file: str, form: TextFormat, report: Report) -> Source:
    """The text of the file; anything that is not clean UTF-8 is reported."""
    if len(data) > form.max_bytes:
        source = Source(data[: form.max_bytes].decode("utf-8", "replace"), file)
        message = f"the {form.name} has {len(data):,} bytes; at most {form.max_bytes:,} are allowed"
        report.error(".too_large", message, source, (0, 0), form.too_large)
        return source
    try:
        source = Source(data.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        at = len(data[: error.start].decode("utf-8"))
        source = Source(data.decode("utf-8", "replace"), file)
        wide = _wide_encoding(data)
        message = f"the file is {wide}, not UTF-8" if wide else f"byte 0x{data[error.start]:02x} is not UTF-8"
        report.error(".encoding", message, source, (at, at + 1), "save the file as UTF-8")
        return source
    forbidden = _FORBIDDEN_VALUES if source.text.isascii() else FORBIDDEN  # a tenth of it to compile
    for count, match in enumerate(forbidden.finditer(source.text) if form.clean_text else ()):
        if count == MAX_ENCODING_ERRORS:
            break
        if not _report_character(match.group(), match.span(), data, source, report):
            break
    return source


def _wide_encoding(data: bytes) -> str:
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or b"\0\0\0" in data[:4]:
        return "UTF-32"
    return "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:2] else ""


def _report_character(char: str, span: Span, data: bytes, source: Source, report: Report) -> bool:
    """Whether others like it are worth reporting too."""
    wide = _wide_encoding(data)
    if wide:
        message, hint = f"the file is {wide}, not UTF-8", "save the file as UTF-8"
        report.error(".encoding", message, source, (0, 1), hint)
        return False
    if char == "\ufeff" and span[0] == 0:
        message, hint = "the file begins with a byte order mark", "save without BOM"
    elif char in "\u2028\u2029":
        message, hint = f"character U+{ord(char):04X} breaks lines in some editors only", "use a line break"
    else:
        message, hint = f"control character U+{ord(char):04X} is not allowed", "remove it"
    report.error(".encoding", message, source, span, hint, Fix(source.range(*span), ""))
    return True


class _Composer:
    """Builds the tree of one document from libyaml's events."""

    def __init__(self, data: bytes, source: Source, report: Report, form: TextFormat) -> None:
        yaml = import_yaml()
        self._parser: Any = yaml.cyaml.CParser(data)
        self._events = yaml.events
        self._yaml_error = yaml.YAMLError
        self._marked_error = yaml.MarkedYAMLError
        self._source = source
        self._text = source.text
        self._report = report
        self._form = form
        self._values = 0
        self._template_at = -1  # the last unquoted template; the syntax error it causes says nothing new

    def document(self) -> Node | None:
        """The only document of the stream."""
        self._next()  # the stream starts
        start = self._next()
        if isinstance(start, self._events.StreamEndEvent):
            self._error(".syntax", f"the {self._form.name} is empty", (0, 0), self._form.begin_with)
            return None
        if start.tags:
            self._error(".tag", "tags are not allowed", self._first_word("%TAG"))
        tree = self._node(self._next(), 0)
        if isinstance(tree, Scalar) and tree.value is None and self._report.ok:
            self._error(
                ".syntax", f"the {self._form.name} is empty", (tree.start, tree.end), self._form.begin_with
            )
            return None
        self._next()  # the document ends
        after = self._next()
        if not isinstance(after, self._events.StreamEndEvent):
            span = (after.start_mark.index, after.end_mark.index)
            self._error(".syntax", "only one document is allowed", span)
        return tree

    def _next(self) -> Any:
        try:
            return self._parser.get_event()
        except self._yaml_error as error:
            if not isinstance(error, self._marked_error):
                self._error(".encoding", "a control character is not allowed", (0, 0), "remove it")
                raise _Stop from None
            from fanfold.text.trees.syntax import explain

            at, began = error.problem_mark, error.context_mark
            found = explain(
                self._text,
                error.problem or "",
                at.index if at is not None else 0,
                error.context or "",
                began.index if began is not None else None,
            )
            if found.span[0] != self._template_at:
                self._error(found.code, found.message, found.span, found.help)
        raise _Stop

    def _node(self, event: Any, depth: int) -> Node:
        events = self._events
        start, end = event.start_mark.index, event.end_mark.index
        self._values += 1
        if self._values > self._form.max_values:
            message = f"the {self._form.name} has more than {self._form.max_values:,} values"
            self._error(".too_large", message, (start, start + 1))
            raise _Stop
        if isinstance(event, events.AliasEvent):
            message = "aliases are not allowed"
            self._error(".alias", message, (start, end), "repeat the value")
            return Scalar(None, "", start, end, "", self._text)
        if event.anchor is not None or event.tag is not None:
            # An empty node ends with its properties: what follows them belongs to the next one.
            start = min(self._refuse_properties(start), end)
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event, start)
        if depth == self._form.max_depth:
            message = f"the {self._form.name} nests more than {self._form.max_depth} levels deep"
            self._error(".too_deep", message, (start, start + 1))
            raise _Stop
        if isinstance(event, events.SequenceStartEvent):
            return self._sequence(event, start, depth + 1)
        return self._mapping(event, start, depth + 1)

    def _scalar(self, event: Any, start: int) -> Scalar:
        text: str = event.value
        style: str = event.style or ""
        value: Value = text
        end = event.end_mark.index
        if style == "":
            try:
                value = resolve(text)
            except ValueError as error:
                self._error(".bad_value", str(error), (start, end), "quote it if it is meant as text")
                value = 1  # within every range: one mistake is told once
        scalar = Scalar(value, text, start, end, style, self._text)
        if self._form.clean_values and style == '"' and (found := _FORBIDDEN_VALUES.search(text)):
            message = f"control character U+{ord(found.group()):04X} is not allowed"
            self._error(".encoding", message, scalar.span(*found.span()), "remove it")
        return scalar

    def _sequence(self, event: Any, start: int, depth: int) -> Sequence:
        items: list[Node] = []
        while not isinstance(item := self._next(), self._events.SequenceEndEvent):
            items.append(self._node(item, depth))
        return Sequence(items, start, self._end(event, item, start, items))

    def _mapping(self, event: Any, start: int, depth: int) -> Node:
        entries: list[tuple[Scalar, Node]] = []
        firsts: dict[str, Scalar] = {}
        last: list[Node] = []
        template = self._text.startswith("{{", start)
        while not isinstance(item := self._next(), self._events.MappingEndEvent):
            key = self._node(item, depth)
            value = self._node(self._next(), depth)
            last = [value]
            if not isinstance(key, Scalar):
                if not template:
                    self._refuse_key(key)
            elif key.text in firsts:
                self._refuse_duplicate(key, firsts[key.text])
            else:
                self._require_text(key)
                firsts[key.text] = key
                entries.append((key, value))
        end = self._end(event, item, start, last)
        if template:
            return self._unquoted_template(start, end)
        return Mapping(entries, start, end)

    def _end(self, event: Any, closing: Any, start: int, nodes: list[Node]) -> int:
        """Flow collections end at their bracket; libyaml ends block ones only where the next thing begins."""
        if event.flow_style:
            return int(closing.end_mark.index)
        return nodes[-1].end if nodes else start

    def _require_text(self, key: Scalar) -> None:
        if isinstance(key.value, str):
            return
        written = shorten(key.text, MAX_SHOWN_CHARS) or "an empty key"
        fix = Fix(self._source.range(key.start, key.end), f'"{key.text}"') if key.text else None
        message = f"keys must be text, and {written} is not"
        self._error(".bad_type", message, (key.start, key.end), "put the key in quotes", fix)
        key.value = key.text

    def _refuse_key(self, key: Node) -> None:
        kind = "list" if isinstance(key, Sequence) else "mapping"
        self._error(".bad_type", f"keys must be text, not a {kind}", (key.start, key.end))

    def _refuse_duplicate(self, key: Scalar, first: Scalar) -> None:
        place = self._source.position(first.start)
        shown = shorten(key.text, MAX_SHOWN_CHARS)
        message = f'key "{shown}" is already given at line {place.line}, column {place.column}'
        self._error(".duplicate_key", message, (key.start, key.end), "remove one of them")

    def _unquoted_template(self, start: int, end: int) -> Scalar:
        """`{{inputs.x}}` without quotes is a mapping to YAML; go on with the text that was meant."""
        from fanfold.text.trees.syntax import QUOTE_TEMPLATE, TEMPLATE_AT_START

        text = self._text[start:end]
        fix = None
        if re.fullmatch(_QUOTABLE, text) and re.compile(_ENDS_VALUE).match(self._text, end):
            fix = Fix(self._source.range(start, end), f'"{text}"')
        self._error(".syntax", TEMPLATE_AT_START, (start, end), QUOTE_TEMPLATE, fix)
        self._template_at = start
        return Scalar(text, text, start, end, "", self._text)

    def _refuse_properties(self, at: int) -> int:
        """Report the anchor and the tag before a node; returns where the node itself begins."""
        while match := re.compile(_PROPERTY).match(self._text, at):
            span = (at, at + len(match.group().split()[0]))
            if match.group(1) == "&":
                self._error(".alias", "anchors are not allowed", span, "repeat the value")
            else:
                self._error(".tag", "tags are not allowed", span, "remove the tag")
            at = match.end()
        return at

    def _first_word(self, word: str) -> Span:
        at = max(self._text.find(word), 0)
        return (at, at + len(word))

    def _error(self, code: str, message: str, span: Span, hint: str = "", fix: Fix | None = None) -> None:
        self._report.error(code, message, self._source, span, hint, fix)
