"""Parses YAML to a tree with the position of every character: recipes, scripts, inputs, front matter.

Rules
* libyaml's parser produces events; this module composes the tree itself. PyYAML's own composer and
  constructors are never used: they follow aliases, build objects from tags, read `on` as true, and overflow
  the stack on deep input.
* Input is hostile. Size, depth and the number of values are limited before they cost anything. libyaml is
  quadratic in flow depth, so composing stops at the first collection that is too deep.
* Nothing is raised to the caller. Problems that need no stop (duplicate keys, anchors, tags, keys and numbers
  of the wrong kind) are reported, and composing continues. A syntax error ends it, and the tree is None.
* JSON is YAML with one exception: libyaml refuses a pair of surrogate escapes (`\\ud83d\\ude00`). Such text
  is read with the one equivalent escape. Columns after it shift by two, lines do not.
* `yaml` is imported when the first file is parsed, because it is the slowest package to load.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fanfold.language.diagnostics import Fix, Report, Source, Span
from fanfold.language.terminal import shorten
from fanfold.language.tree import Mapping, Node, Scalar, Sequence, Value, resolve

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_VALUES = 50_000
"""No recipe has more than one value per five bytes of the maximum size."""
MAX_ENCODING_ERRORS = 20
MAX_SHOWN_CHARS = 60

# Control characters except tab and line breaks, and characters that differ in YAML 1.1 and 1.2 (line
# separators).
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_FORBIDDEN_VALUES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Patterns that only files with mistakes need are compiled on demand.
_QUOTABLE = r'[^"\\\r\n]*'
_ENDS_VALUE = r"[ \t]*(?:[\]}\r\n]|#|$)"
_PAIR = rb"((?<!\\)(?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
_PROPERTY = r"([&!])[^\s,\[\]{}]*(?:\s|#[^\r\n]*(?=[\r\n]))*"


class TextFormat(Struct, frozen=True, kw_only=True):
    """The name of a file format in codes and messages, and its limits."""

    name: str
    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH
    """Nesting of collections; the outermost counts."""
    max_values: int = MAX_VALUES
    clean_text: bool = True
    """Whether control characters in the text are refused."""
    clean_values: bool = True
    """Whether they are also refused as escapes."""
    begin_with: str = ""
    """The hint for an empty file."""
    too_large: str = ""
    """The hint for a file that is too large."""


RECIPE = TextFormat(
    name="recipe", begin_with="begin with name: and steps:", too_large="move long texts to roles or files"
)
BUILT_RECIPE = TextFormat(
    name="recipe",
    max_bytes=2**40,
    max_depth=200,  # beyond it Python's own stack is the limit
    max_values=2**40,
    clean_text=False,
    clean_values=False,
)
"""Text that this program generated from a recipe in code."""


class _Stop(BaseException):
    """A signal that composing cannot continue; the reason is in the report."""


def parse_yaml(data: bytes, file: str, form: TextFormat = RECIPE) -> tuple[Node | None, Source, Report]:
    """Parse one file; the tree is None if the text could not be read to its end.

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
    """Return JSON with its pairs of surrogate escapes written as one; any other text unchanged."""
    if not re.search(_PAIR, data) or data.lstrip()[:1] not in (b"{", b"["):
        return data
    try:
        msgspec.json.decode(data)  # then a backslash can only be in quoted text
    except (msgspec.DecodeError, RecursionError):
        return data
    return re.sub(_PAIR, lambda found: found[1] + b"\\U%08x" % _joined(found[2], found[3]), data)


def _joined(high: bytes, low: bytes) -> int:
    return 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)


def decode(data: bytes, file: str, form: TextFormat, report: Report) -> Source:
    """Return the text of the file; anything except clean UTF-8 is reported."""
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
    forbidden = _FORBIDDEN_VALUES if source.text.isascii() else FORBIDDEN  # much faster to compile
    wide = _wide_encoding(data)
    for count, match in enumerate(forbidden.finditer(source.text) if form.clean_text else ()):
        if count == MAX_ENCODING_ERRORS:
            break
        char, span = match.group(), match.span()
        if wide:
            message = f"the file is {wide}, not UTF-8"
            report.error(".encoding", message, source, (0, 1), "save the file as UTF-8")
            break
        if char == "\ufeff" and span[0] == 0:
            message, hint = "the file begins with a byte order mark", "save without BOM"
        elif char in "\u2028\u2029":
            message, hint = (
                f"character U+{ord(char):04X} breaks lines in some editors only",
                "use a line break",
            )
        else:
            message, hint = f"control character U+{ord(char):04X} is not allowed", "remove it"
        report.error(".encoding", message, source, span, hint, Fix(source.range(*span), ""))
    return source


def _wide_encoding(data: bytes) -> str:
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or b"\0\0\0" in data[:4]:
        return "UTF-32"
    return "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:2] else ""


class _Composer:
    """Builds the tree of one document from libyaml's events."""

    def __init__(self, data: bytes, source: Source, report: Report, form: TextFormat) -> None:
        import yaml

        self._parser: Any = yaml.CSafeLoader(data)
        self._events = yaml.events
        self._yaml_error = yaml.YAMLError
        self._marked_error = yaml.MarkedYAMLError
        self._source = source
        self._text = source.text
        self._report = report
        self._form = form
        self._values = 0
        self._template_at = -1  # the last unquoted template; its syntax error is already reported

    def document(self) -> Node | None:
        """Return the only document of the stream."""
        self._next()  # the stream starts
        start = self._next()
        if isinstance(start, self._events.StreamEndEvent):
            self._error(".syntax", f"the {self._form.name} is empty", (0, 0), self._form.begin_with)
            return None
        if start.tags:
            at = max(self._text.find("%TAG"), 0)
            self._error(".tag", "tags are not allowed", (at, at + len("%TAG")))
        tree = self._node(self._next(), 0)
        if isinstance(tree, Scalar) and tree.value is None and self._report.ok:
            message = f"the {self._form.name} is empty"
            self._error(".syntax", message, (tree.start, tree.end), self._form.begin_with)
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

            at, began = error.problem_mark, error.context_mark
            place = at.index if at is not None else 0
            start = began.index if began is not None else None
            complaint = explain(self._text, error.problem or "", place, error.context or "", start)
            if complaint.span[0] != self._template_at:
                self._error(*complaint)
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
            # Report the anchor and the tag. An empty node ends with them; the text after belongs to the next.
            at = start
            while match := re.compile(_PROPERTY).match(self._text, at):
                span = (at, at + len(match.group().split()[0]))
                if match.group(1) == "&":
                    self._error(".alias", "anchors are not allowed", span, "repeat the value")
                else:
                    self._error(".tag", "tags are not allowed", span, "remove the tag")
                at = match.end()
            start = min(at, end)
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event, start)
        if depth == self._form.max_depth:
            message = f"the {self._form.name} nests more than {self._form.max_depth} levels deep"
            self._error(".too_deep", message, (start, start + 1))
            raise _Stop
        if isinstance(event, events.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := self._next(), self._events.SequenceEndEvent):
                items.append(self._node(item, (depth + 1)))
            return Sequence(items, start, self._end(event, item, start, items))
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
                value = 1  # within every range, so that one mistake is reported once
        scalar = Scalar(value, text, start, end, style, self._text)
        if self._form.clean_values and style == '"' and (found := _FORBIDDEN_VALUES.search(text)):
            message = f"control character U+{ord(found.group()):04X} is not allowed"
            self._error(".encoding", message, scalar.span(*found.span()), "remove it")
        return scalar

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
                    kind = "list" if isinstance(key, Sequence) else "mapping"
                    self._error(".bad_type", f"keys must be text, not a {kind}", (key.start, key.end))
            elif key.text in firsts:
                place = self._source.position(firsts[key.text].start)
                shown = shorten(key.text, MAX_SHOWN_CHARS)
                message = f'key "{shown}" is already given at line {place.line}, column {place.column}'
                self._error(".duplicate_key", message, (key.start, key.end), "remove one of them")
            else:
                if not isinstance(key.value, str):
                    written = shorten(key.text, MAX_SHOWN_CHARS) or "an empty key"
                    span = (key.start, key.end)
                    fix = Fix(self._source.range(*span), f'"{key.text}"') if key.text else None
                    message = f"keys must be text; {written} is not"
                    self._error(".bad_type", message, span, "put the key in quotes", fix)
                    key.value = key.text
                firsts[key.text] = key
                entries.append((key, value))
        end = self._end(event, item, start, last)
        if template:
            # Report `{{inputs.x}}` without quotes, which is a mapping in YAML; return the intended text.
            text = self._text[start:end]
            fix = None
            if re.fullmatch(_QUOTABLE, text) and re.compile(_ENDS_VALUE).match(self._text, end):
                fix = Fix(self._source.range(start, end), f'"{text}"')
            self._error(".syntax", TEMPLATE_AT_START, (start, end), QUOTE_TEMPLATE, fix)
            self._template_at = start
            return Scalar(text, text, start, end, "", self._text)
        return Mapping(entries, start, end)

    def _end(self, event: Any, closing: Any, start: int, nodes: list[Node]) -> int:
        """Return the end of a collection: the bracket of a flow, or the last node of a block."""
        if event.flow_style:
            return int(closing.end_mark.index)
        return nodes[-1].end if nodes else start

    def _error(self, code: str, message: str, span: Span, hint: str = "", fix: Fix | None = None) -> None:
        self._report.error(code, message, self._source, span, hint, fix)


# -----------------------------------------------------------------------------------------------------------
# Messages of libyaml, rewritten for authors of YAML.
#
# libyaml reports the expectation of its state machine, but an author needs to know what to change. Each entry
# converts one message to a message, a hint, and the better of libyaml's two positions: of the error, or of
# the start of the construct. Other messages are passed on unchanged.

QUOTE_TEMPLATE = 'put the whole text in quotes: "{{…}}"'
QUOTE_BRACKETS = "quote a text in it that holds a bracket or a comma, such as an expression"
TEMPLATE_AT_START = "text that begins with {{ must be quoted, or YAML reads it as a mapping"

# An unquoted `{{` at the start of a value.
_BARE_TEMPLATE = r"(?:^|[:\-,\[{?]\s)\s*(\{\{.*?(?:\}\}|$))"


class Complaint(NamedTuple):
    """An error that is ready to be reported."""

    code: str
    message: str
    span: Span
    help: str = ""


_REWORDED = {
    "mapping values are not allowed": (
        'a ": " is not possible here',
        "quote text that contains a colon followed by a space, or check the indentation",
    ),
    "found unexpected end of stream": ("this quoted text never ends", "close the quote"),
    "found unexpected document indicator": ("this quoted text never ends", "close the quote"),
    "could not find expected ':'": ("this line is not a key with a value", 'write "key: value"'),
    "did not find expected ',' or ']'": (
        'the list that opens on line {line} needs "," or "]" here',
        QUOTE_BRACKETS,
    ),
    "did not find expected ',' or '}'": (
        'the mapping that opens on line {line} needs "," or "}" here',
        QUOTE_BRACKETS,
    ),
    "did not find expected '-' indicator": (
        'a list item that starts with "- " was expected here',
        "check the indentation",
    ),
    "did not find expected key": ("a key was expected here", "check the indentation and the quotes"),
    "did not find expected node content": ("a value was expected here", ""),
    "found unknown escape character": (
        "double quotes do not know this escape",
        "write \\\\ for a backslash, or use single quotes",
    ),
    "did not find expected hexdecimal number": ("this escape needs more hexadecimal digits", ""),
    "block sequence entries are not allowed": ('a list item is not possible here, after "key:"', ""),
    "block mapping keys are not allowed": ("a key is not possible here", ""),
    "did not find expected <document start>": ("only one document is allowed", ""),
    "did not find expected comment or line break": ("only a comment may follow | or > on its line", ""),
    "did not find expected alphabetic": ("a name must follow & or *", "quote text that begins with & or *"),
    "found undefined tag handle": ("this tag is not known", "quote text that begins with !"),
}
"""By the start of libyaml's message: our message and a hint."""
_AT_ITS_START = (
    "found unexpected end of stream",
    "found unexpected document indicator",
    "could not find expected ':'",
    "found undefined tag handle",
)
"""Errors that are shown at the start of the construct, not where libyaml noticed them."""


def explain(text: str, problem: str, at: int, context: str = "", context_at: int | None = None) -> Complaint:
    """Return the error for one libyaml error at offset `at` of `text`."""
    at = min(at, len(text))
    span = (at, min(at + 1, len(text)))
    char = text[at : at + 1]
    if "Unicode character escape" in problem:
        # The error for `\ud800`: half of a surrogate pair, or above the Unicode range.
        start = text.rfind("\\", 0, at + 1)
        digits = {"x": 2, "u": 4, "U": 8}.get(text[start + 1 : start + 2], 0)
        span = (start, start + 2 + digits)
        hint = "write the character itself, or \\U and 8 digits"
        return Complaint(".encoding", "this escape is not a Unicode character", span, hint)
    if char == "\t" or "tab character" in problem:
        return Complaint(".syntax", "tabs cannot indent YAML", span, "indent with spaces")
    if (bare := _bare_template(text, at)) is not None:
        return Complaint(".syntax", TEMPLATE_AT_START, bare, QUOTE_TEMPLATE)
    if "cannot start any token" in problem:
        return Complaint(".syntax", f'text cannot begin with "{char}"', span, "put the text in quotes")
    for known, (message, hint) in _REWORDED.items():
        if problem.startswith(known):
            began = at if context_at is None else context_at
            if known in _AT_ITS_START:
                span = (began, min(began + 1, len(text)))
            line = text.count("\n", 0, began) + 1
            return Complaint(".syntax", message.replace("{line}", str(line)), span, hint)
    return Complaint(".syntax", f"{context}: {problem}" if context else problem, span, "")


def _bare_template(text: str, at: int) -> Span | None:
    """Return an unquoted `{{` at the start of a value, on the line of the error or the previous one."""
    start = text.rfind("\n", 0, at) + 1
    for line_start in (start, text.rfind("\n", 0, max(start - 1, 0)) + 1):
        line = text[line_start:].split("\n", 1)[0]
        if (found := re.search(_BARE_TEMPLATE, line)) and line_start + found.start(1) <= at:
            before = line[: found.start(1)]
            if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
                return (line_start + found.start(1), line_start + found.end(1))
    return None
