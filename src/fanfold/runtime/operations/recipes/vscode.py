"""Edit VS Code's settings without disturbing them.

The file is JSON with comments and trailing commas, and it is the user's. So it is never parsed and
written back: a scanner finds the place, and one entry is inserted there as text. Everything else stays
as it was, character by character. Whatever the scanner does not understand is left alone.
"""

from __future__ import annotations

import json
import re

KEY = "yaml.schemas"
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"/]+|\s+', re.DOTALL)


class SettingsUnreadableError(Exception):
    """The file is not an object in JSON with comments."""


class _Entry:
    """A key of an object and where its value starts."""

    def __init__(self, key: str, value_at: int) -> None:
        self.key = key
        self.value_at = value_at


def add_schema(text: str, schema: str, globs: list[str]) -> str:
    """The settings with an entry for `schema`; unchanged when there is one already.

    >>> add_schema('{"a": 1}', "./s.json", ["*.yaml"])
    '{\\n  "yaml.schemas": {\\n    "./s.json": ["*.yaml"]\\n  },"a": 1}'
    """
    entry = f"{json.dumps(schema)}: {json.dumps(globs)}"
    if not text.strip():
        return f'{{\n  "{KEY}": {{\n    {entry}\n  }}\n}}\n'
    start = _skip(text, 0)
    entries, _ = _read_object(text, start)
    schemas = next((one for one in entries if one.key == KEY), None)
    if schemas is None:
        return _insert(text, start, f'"{KEY}": {{\n    {entry}\n  }}', "  ", bool(entries))
    inner, _ = _read_object(text, schemas.value_at)
    if any(one.key == schema for one in inner):
        return text
    return _insert(text, schemas.value_at, entry, "    ", bool(inner))


def _insert(text: str, brace: int, entry: str, indent: str, others: bool) -> str:
    comma = "," if others else "\n" + indent[2:]
    return f"{text[: brace + 1]}\n{indent}{entry}{comma}{text[brace + 1 :]}"


def _read_object(text: str, at: int) -> tuple[list[_Entry], int]:
    """Keys of the object that starts at `at`, and where it ends."""
    _expect(text, at, "{")
    entries: list[_Entry] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = _token(text, at)
        if not key.startswith('"'):
            raise SettingsUnreadableError
        at = _skip(text, at)
        _expect(text, at, ":")
        at = _skip(text, at + 1)
        entries.append(_Entry(_unquote(key), at))
        at = _skip(text, _skip_value(text, at))
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
