"""The nodes of a parsed recipe: values with their positions in the file.

Offsets count characters of `Source.text`; ends are exclusive. The parser creates the nodes, and nothing
changes them afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from fanfold.language.diagnostics import lines_of
from fanfold.language.json_text import JSON

# -----------------------------------------------------------------------------------------------------------
# The meaning of a YAML scalar, and the characters of the file that produced each of its characters.
#
# Rules
# * Only plain scalars have a type, by the YAML 1.2 core schema: `null`, `true`, `12`, `0o17`, `0xff`,
#   `1.5e3`. Everything that older YAML guesses (`yes`, `on`, dates, `1_000`, `12:30`) is text.
# * Numbers that JSON and CEL cannot represent are refused, not rounded: infinity, NaN, integers above 64
#   bits.
# * libyaml returns the value of a scalar but only its start and end. A caret inside a prompt needs the
#   position of every character, so `character_map` repeats libyaml's folding with positions instead of text.
#   It runs only on demand, which a recipe without mistakes never needs.

Value: TypeAlias = bool | int | float | str | None
Pieces: TypeAlias = list[tuple[str, int, int]]
"""Characters of a value, each with the source range that produced it."""

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MAX_NUMBER_CHARS = 400

_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS = frozenset("+-.0123456789")
_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_NOT_FINITE = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"

_JOINED = r"[ \t]*\r?\n[ \t\r\n]*"
"""The text that an escaped line break of TOML removes."""
_SIMPLE_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028",
    "P": "\u2029",
}  # fmt: skip
_ESCAPE_DIGITS = {"x": 2, "u": 4, "U": 8}


def resolve(text: str) -> Value:
    """Return the value of a plain scalar; raise ValueError for numbers that cannot be represented."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if re.fullmatch(_INT, text):
        too_large = "the integer does not fit in 64 bits"
        # Checked first: converting digits to an integer is quadratic, and Python refuses more than 4,300.
        if len(text) > MAX_NUMBER_CHARS:
            raise ValueError(too_large)
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        integer = int(text if base == 10 else text[2:], base)
        if not INT_MIN <= integer <= INT_MAX:
            raise ValueError(too_large)
        return integer
    if re.fullmatch(_FLOAT, text):
        number = float(text) if len(text) <= MAX_NUMBER_CHARS else float("inf")
        if number - number != 0:  # infinite
            raise ValueError("the number is too large for a 64-bit float")
        return number
    if re.fullmatch(_NOT_FINITE, text):
        raise ValueError("infinity and NaN are not allowed: JSON has no such numbers")
    return text


def character_map(source: str, start: int, end: int, style: str, value: str) -> Pieces:
    """Return each character of the scalar at `source[start:end]` with its source range.

    `style` is `""`, `'`, `"`, `|` or `>` as in libyaml, or one of TOML's with three quotes. `value` is the
    parsed value. It determines the indentation of a block scalar if the text alone does not.
    """
    if style in ("'''", '"""'):
        return _lines_of_toml(source, start + 3, end - 3, escapes=style[0] == '"')
    if style == "":
        return _flow(source, start, end, "")
    if style in ("'", '"'):
        return _flow(source, start + 1, end - 1, style)
    # The characters of a block scalar; the value determines the parent's indentation.
    at = start + 1
    while at < end and source[at] in "+-0123456789":
        at += 1
    header = source[start + 1 : at]
    while at < end and source[at] not in "\r\n":
        at += 1
    body = _after_break(source, at) if at < end else end
    lines = list(lines_of(source, body, end))
    return _block_lines(source, lines, _block_indent(source, lines, value), style, header)


def _flow(source: str, at: int, end: int, quote: str) -> Pieces:
    """Return the characters of plain and quoted scalars: escapes, and line breaks folded into spaces."""
    pieces: Pieces = []
    while at < end:
        char = source[at]
        if char in " \t\r\n":
            at = _fold(source, at, end, pieces)
        elif quote == '"' and char == "\\" and source[at + 1] in "\r\n":
            # An escaped break joins the lines; blank lines after it stay.
            at = _fold(source, at + 1, end, pieces, joined=True)
        elif quote == '"' and char == "\\":
            at = _escape(source, at, pieces)
        elif quote == "'" and char == "'":
            pieces.append(("'", at, at + 2))
            at += 2
        else:
            pieces.append((char, at, at + 1))
            at += 1
    return pieces


def _lines_of_toml(source: str, at: int, end: int, *, escapes: bool) -> Pieces:
    """Return the characters of a multi-line TOML string.

    The first line break is not part of it, and an escaped one joins lines.
    """
    pieces: Pieces = []
    if source[at : at + 1] in ("\r", "\n"):
        at = _after_break(source, at)
    while at < end:
        stop = at + 1
        if escapes and source[at] == "\\":
            joined = re.compile(_JOINED).match(source, stop, end)
            at = joined.end() if joined else _escape(source, at, pieces)
            continue
        stop = _after_break(source, at) if source[at] == "\r" else stop
        pieces.append(("\n" if source[at] == "\r" else source[at], at, stop))
        at = stop
    return pieces


def _fold(source: str, at: int, end: int, pieces: Pieces, joined: bool = False) -> int:
    """Add a run of white space inside a flow scalar; return its end."""
    first = at
    breaks: Pieces = []
    while at < end and source[at] in " \t\r\n":
        stop = at + 1
        if source[at] in "\r\n":
            stop = _after_break(source, at)
            breaks.append(("\n", at, stop))
        at = stop
    if not breaks:
        pieces.extend((source[i], i, i + 1) for i in range(first, at))
    elif joined or len(breaks) > 1:
        pieces.extend(breaks[1:])
    else:
        pieces.append((" ", breaks[0][1], breaks[0][2]))
    return at


def _escape(source: str, at: int, pieces: Pieces) -> int:
    kind = source[at + 1]
    digits = _ESCAPE_DIGITS.get(kind, 0)
    stop = at + 2 + digits
    char = chr(int(source[at + 2 : stop], 16)) if digits else _SIMPLE_ESCAPES[kind]
    pieces.append((char, at, stop))
    return stop


def _block_indent(source: str, lines: list[tuple[int, int, int]], value: str) -> int:
    """Return the indentation of a block: the spaces that its first line with content lost."""
    if (written := next(((a, b) for a, b, _ in lines if source[a:b].strip(" ")), None)) is not None:
        first = len(value) - len(value.lstrip(" \n"))
        kept = first - (value.rfind("\n", 0, first) + 1)
        start, end = written
        return end - start - len(source[start:end].lstrip(" ")) - kept
    # Only blank lines: those that are longer than the indentation keep the rest.
    first = len(value) - len(value.lstrip("\n"))
    if first == len(value):
        return max((end - start for start, end, _ in lines), default=0)
    start, end, _ = lines[first]
    return end - start - len(value[first:].split("\n", 1)[0])


def _block_lines(
    source: str, lines: list[tuple[int, int, int]], indent: int, style: str, header: str
) -> Pieces:
    pieces: Pieces = []
    pending: Pieces = []  # the break that ended the last line of text
    blanks: Pieces = []  # the breaks of empty lines since
    was_indented = False
    for start, end, after in lines:
        if end - start <= indent and not source[start:end].strip(" "):
            if after > end:
                blanks.append(("\n", end, after))
            continue
        is_indented = source[start + indent] in " \t"
        if style == ">" and pending and not was_indented and not is_indented:
            if not blanks:
                pieces.append((" ", pending[0][1], pending[0][2]))
        else:
            pieces += pending
        pieces += blanks
        pieces.extend((source[i], i, i + 1) for i in range(start + indent, end))
        pending = [("\n", end, after)] if after > end else []
        blanks = []
        was_indented = is_indented
    if "-" not in header:
        pieces += pending
    if "+" in header:
        pieces += blanks
    return pieces


def _after_break(source: str, at: int) -> int:
    return at + 2 if source.startswith("\r\n", at) else at + 1


class Scalar:
    """A single value: `text` is the text with quotes and folding resolved, `value` its meaning."""

    __slots__ = ("_limit", "_pieces", "_source", "end", "start", "style", "text", "value")

    def __init__(self, value: Value, text: str, start: int, end: int, style: str, source: str) -> None:
        self.value = value
        self.text = text
        self.start = start
        self.style = style
        """`""` plain, `'` and `"` quoted, `|` literal, `>` folded."""
        self._source = source
        self._limit = end
        self._pieces: Pieces | None = None
        if style in ("|", ">"):  # libyaml includes the blank lines that follow
            end = start + len(source[start:end].rstrip())
        self.end = end

    def at(self, i: int) -> int:
        """Return the source offset of the `i`-th character of `text`; of its end for `i == len(text)`."""
        return self.span(i, i)[0]

    def span(self, i: int, j: int) -> tuple[int, int]:
        """Return the source range of the characters `i` up to `j` of `text`."""
        pieces = self._characters()
        i = min(max(i, 0), len(pieces))
        j = min(max(j, i), len(pieces))
        if not pieces:
            inside = self.start + (self.style in ("'", '"'))
            return inside, inside
        start = pieces[i][1] if i < len(pieces) else pieces[-1][2]
        return start, (pieces[j - 1][2] if j > i else start)

    def _characters(self) -> Pieces:
        if self._pieces is None:
            self._pieces = character_map(self._source, self.start, self._limit, self.style, self.text)
        return self._pieces

    def __repr__(self) -> str:
        return f"Scalar({self.value!r}, {self.start}:{self.end})"


class Sequence:
    """A list."""

    __slots__ = ("end", "items", "start")

    def __init__(self, items: list[Node], start: int, end: int) -> None:
        self.items = items
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"Sequence({self.items!r}, {self.start}:{self.end})"


class Mapping:
    """Keys and values in their order in the file; the parser guarantees that keys are unique text."""

    __slots__ = ("_index", "end", "entries", "start")

    def __init__(self, entries: list[tuple[Scalar, Node]], start: int, end: int) -> None:
        self.entries = entries
        self.start = start
        self.end = end
        self._index = {key.text: i for i, (key, _) in enumerate(entries)}

    def add(self, key: Scalar, value: Node) -> None:
        """Add an entry; for parsers of formats in which a later line can extend an earlier table."""
        self._index[key.text] = len(self.entries)
        self.entries.append((key, value))

    def get(self, name: str) -> Node | None:
        """Return the value under `name`; None if there is no such key."""
        i = self._index.get(name)
        return None if i is None else self.entries[i][1]

    def key(self, name: str) -> Scalar | None:
        """Return the key itself, for its position."""
        i = self._index.get(name)
        return None if i is None else self.entries[i][0]

    def __repr__(self) -> str:
        return f"Mapping({self.entries!r}, {self.start}:{self.end})"


Node: TypeAlias = Scalar | Sequence | Mapping


def find(node: Node, path: Iterable[str | int]) -> Node:
    """Return the node at a path of keys and indexes, or the deepest one that exists."""
    for part in path:
        inner: Node | None = None
        if isinstance(node, Mapping) and isinstance(part, str):
            inner = node.get(part)
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            inner = node.items[part]
        if inner is None:
            break
        node = inner
    return node


def texts(node: Node) -> JSON:
    """Return the node as JSON with every scalar as its text: a variable may be `ON` with value `no`."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Sequence):
        return [texts(item) for item in node.items]
    return {key.text: texts(value) for key, value in node.entries}


def plain(node: Node) -> JSON:
    """Return the node as a JSON value, for parts that are kept as data (`metadata`, literals, schemas)."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key.text: plain(value) for key, value in node.entries}
