"""Edit JSON with comments without disturbing it: the settings of editors and of programs that agents use.

Such a file is the user's, with comments, trailing commas and an order of its own. So it is never parsed and
written back: a scanner finds the place, and one entry is put there, or taken away, as text. Everything else
stays as it was, character by character. What the scanner does not understand is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from fanfold.text.json_value import JSON

_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"/]+|\s+', re.DOTALL)
_INDENT = "  "


class SettingsUnreadableError(Exception):
    """The file is not an object in JSON with comments."""


class _Entry(NamedTuple):
    """A key of an object, where it starts, and where its value is."""

    key: str
    at: int
    value_at: int
    end: int


def set_entry(text: str, path: Sequence[str], value: JSON) -> str:
    """The text with `value` under a path of keys; unchanged where it says so already.

    >>> set_entry('{"a": 1}', ["b", "c"], [2])
    '{\\n  "b": {\\n    "c": [2]\\n  },"a": 1}'
    """
    if not text.strip():
        text = "{}\n"
    at = _begin(text)
    for depth, key in enumerate(path):
        entries, _ = _read_object(text, at)
        found = _find(entries, key)
        if found is None:
            wrapped = value
            for inner in reversed(path[depth + 1 :]):
                wrapped = {inner: wrapped}
            return _insert(text, at, key, wrapped, depth + 1, bool(entries))
        if depth == len(path) - 1:
            return _replaced(text, found, value, depth + 1)
        at = found.value_at
    return text


def remove_entry(text: str, path: Sequence[str]) -> str:
    """The text without what is under a path of keys; unchanged where there is nothing."""
    if not text.strip():
        return text
    at = _begin(text)
    for depth, key in enumerate(path):
        entries, end = _read_object(text, at)
        found = _find(entries, key)
        if found is None:
            return text
        if depth == len(path) - 1:
            return _cut(text, entries, found, end)
        at = found.value_at
    return text


def has_entry(text: str, path: Sequence[str]) -> bool:
    """Whether there is anything under a path of keys."""
    return remove_entry(text, path) != text


def line_end(text: str) -> str:
    """How the lines of a file end: what is added to it ends its lines in the same way."""
    return "\r\n" if "\r\n" in text else "\n"


def _begin(text: str) -> int:
    """Where the one object of a file starts, and nothing but comments stands around it."""
    at = _skip(text, 0)
    _, end = _read_object(text, at)
    if _skip(text, end) != len(text):
        raise SettingsUnreadableError
    return at


def _find(entries: Sequence[_Entry], key: str) -> _Entry | None:
    """The last of that name: what readers of JSON take."""
    return next((one for one in reversed(entries) if one.key == key), None)


def _written(value: JSON, depth: int) -> str:
    """An object with an entry a line, a list on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = _INDENT * (depth + 1)
    lines = [f"{inner}{json.dumps(key)}: {_written(one, depth + 1)}" for key, one in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{_INDENT * depth}}}"


def _insert(text: str, brace: int, key: str, value: JSON, depth: int, others: bool) -> str:
    newline = line_end(text)
    entry = f"{json.dumps(key)}: {_written(value, depth)}".replace("\n", newline)
    comma = "," if others else newline + _INDENT * (depth - 1)
    rest = text[brace + 1 :]
    if not others:  # white space of an empty object is not worth keeping; a comment is
        rest = rest.lstrip() if rest.lstrip().startswith("}") else rest
    return f"{text[: brace + 1]}{newline}{_INDENT * depth}{entry}{comma}{rest}"


def _replaced(text: str, found: _Entry, value: JSON, depth: int) -> str:
    try:
        if json.loads(text[found.value_at : found.end]) == value:
            return text
    except ValueError:
        pass  # comments inside: it says something else, or says it in another way
    written = _written(value, depth).replace("\n", line_end(text))
    return f"{text[: found.value_at]}{written}{text[found.end :]}"


def _cut(text: str, entries: Sequence[_Entry], found: _Entry, end: int) -> str:
    """Without an entry, the comma that belonged to it, and the line it stood on."""
    after = _skip(text, found.end)
    if text[after : after + 1] == ",":
        tail = text[after + 1 :]
        start = found.at
    else:
        place = entries.index(found)
        start = entries[place - 1].end if place else found.at
        tail = text[found.end :]
    head = text[:start].rstrip(" \t")
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        tail = tail.removeprefix("\r").removeprefix("\n")
    if len(entries) == 1 and text[found.end : end - 1].isspace():
        head = head.rstrip()
        tail = tail.lstrip()
    return head + tail


def _read_object(text: str, at: int) -> tuple[list[_Entry], int]:
    """Keys of the object that starts at `at`, and where it ends."""
    _expect(text, at, "{")
    entries: list[_Entry] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        key_at = at
        key, at = _token(text, at)
        if not key.startswith('"'):
            raise SettingsUnreadableError
        at = _skip(text, at)
        _expect(text, at, ":")
        value_at = _skip(text, at + 1)
        end = _skip_value(text, value_at)
        entries.append(_Entry(_unquote(key), key_at, value_at, end))
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        else:
            _expect(text, at, "}")
    return entries, at + 1


def _skip_value(text: str, at: int) -> int:
    """The end of any value; brackets are counted, so depth costs nothing."""
    depth = 0
    while True:
        token, at = _token(text, at)
        if token in ("{", "["):
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
        if depth == 0 and not _is_space(token):
            return at
        if depth < 0:
            raise SettingsUnreadableError


def _skip(text: str, at: int) -> int:
    while at < len(text):
        token, end = _token(text, at)
        if not _is_space(token):
            return at
        at = end
    return at


def _token(text: str, at: int) -> tuple[str, int]:
    found = _TOKEN.match(text, at)
    if found is None:
        raise SettingsUnreadableError
    return found[0], found.end()


def _is_space(token: str) -> bool:
    return token.isspace() or token.startswith(("//", "/*"))


def _expect(text: str, at: int, char: str) -> None:
    if text[at : at + 1] != char:
        raise SettingsUnreadableError


def _unquote(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        raise SettingsUnreadableError from None
