"""What a YAML scalar means, and which characters of the file made each character of it.

Rules
* Only plain scalars have a type, by the YAML 1.2 core schema: `null`, `true`, `12`, `0o17`, `0xff`,
  `1.5e3`. Everything older YAML guesses (`yes`, `on`, dates, `1_000`, `12:30`) is text.
* Numbers that JSON and CEL cannot hold are refused, not rounded: infinity, NaN, integers past 64 bits.
* libyaml gives the value of a scalar but only the ends of its place. A caret inside a prompt needs the
  place of every character, so `character_map` repeats libyaml's folding with places instead of text.
  It runs only when someone asks, which a recipe without mistakes never does.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from fanfold.text.diagnostics import lines_of
from fanfold.text.patterns import regex

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
_INT = regex(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = regex(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"

_JOINED = r"[ \t]*\r?\n[ \t\r\n]*"
"""What an escaped line break of TOML swallows."""
_SIMPLE_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "e": "\x1b", " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028",
    "P": "\u2029",
}  # fmt: skip
_ESCAPE_DIGITS = {"x": 2, "u": 4, "U": 8}


def resolve(text: str) -> Value:
    """The value of a plain scalar; raises ValueError with a message for numbers that cannot be held."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        number = float(text) if len(text) <= MAX_NUMBER_CHARS else float("inf")
        if number - number != 0:  # infinite
            raise ValueError("the number is too large for a 64-bit float")
        return number
    if re.fullmatch(_NOT_FINITE, text):
        raise ValueError("infinity and NaN are not allowed: JSON has no such numbers")
    return text


def _integer(text: str) -> int:
    too_large = "the integer does not fit in 64 bits"
    # Measured first: turning digits into an integer is quadratic, and Python refuses it past 4,300.
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(too_large)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = int(text if base == 10 else text[2:], base)
    if not INT_MIN <= number <= INT_MAX:
        raise ValueError(too_large)
    return number


def character_map(source: str, start: int, end: int, style: str, value: str) -> Pieces:
    """Each character of the scalar at `source[start:end]` with the range it was written in.

    `style` is `""`, `'`, `"`, `|` or `>` as libyaml names them, or one of TOML's with three quotes. `value`
    is what was read, which tells the indentation of a block scalar when the text alone does not.
    """
    if style in ("'''", '"""'):
        return _lines_of_toml(source, start + 3, end - 3, escapes=style[0] == '"')
    if style == "":
        return _flow(source, start, end, "")
    if style in ("'", '"'):
        return _flow(source, start + 1, end - 1, style)
    return _block(source, start, end, style, value)


def _flow(source: str, at: int, end: int, quote: str) -> Pieces:
    """Plain and quoted scalars: escapes, and line breaks folded into spaces."""
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
    """A text of several lines in TOML: the first break is not part of it, an escaped one joins lines."""
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
    """A run of white space inside a flow scalar; returns where it ends."""
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


def _block(source: str, start: int, end: int, style: str, value: str) -> Pieces:
    """Block scalars. libyaml knows the parent's indentation and we do not, so the value decides."""
    at = start + 1
    while at < end and source[at] in "+-0123456789":
        at += 1
    header = source[start + 1 : at]
    while at < end and source[at] not in "\r\n":
        at += 1
    body = _after_break(source, at) if at < end else end
    lines = list(lines_of(source, body, end))
    return _block_lines(source, lines, _block_indent(source, lines, value), style, header)


def _block_indent(source: str, lines: list[tuple[int, int, int]], value: str) -> int:
    """How far the lines of a block are indented: what the first one with content lost on its way."""
    written = next(((a, b) for a, b, _ in lines if source[a:b].strip(" ")), None)
    if written is not None:
        first = len(value) - len(value.lstrip(" \n"))
        kept = first - (value.rfind("\n", 0, first) + 1)
        return _indent(source, *written) - kept
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


def _indent(source: str, start: int, end: int) -> int:
    return end - start - len(source[start:end].lstrip(" "))


def _after_break(source: str, at: int) -> int:
    return at + 2 if source.startswith("\r\n", at) else at + 1
