"""Any JSON value, by one name: how it reads as text, and which Python values are one.

What programs hand in (a function's result, an input) is held against `strict` before anything else sees it:
whatever JSON could not give back unchanged is refused there, and what comes out shares nothing with it.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, TypeAlias

import msgspec

from fanfold.text.excerpts import shorten_line

JSON: TypeAlias = Any
"""Any JSON value. The serializer knows no recursive aliases, so the name carries the meaning."""

MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
FITTING_CHARS = 200
_LARGEST = 2**63
_LONGEST = 13
"""How many times longer than `_Strict` counts a value may be: a character is up to 6 bytes, a number 26."""


class TooLarge(ValueError):
    """A value that is JSON, but more of it than a log can hold."""


def as_text(value: JSON) -> str:
    """A value as a prompt shows it: text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def with_text_only(value: JSON) -> JSON:
    """The same value, but for texts that are no Unicode: names of files may hold any byte, logs may not.

    >>> with_text_only(["a", {"b": "\\udcff.txt"}])
    ['a', {'b': '\\\\xff.txt'}]
    """
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, list | tuple):
        return [with_text_only(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(key): with_text_only(item) for key, item in value.items()}
    return value


def _escaped(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # not from a file name
        return text.encode("utf-8", "backslashreplace").decode()


def read_json(text: str | bytes, what: str = "the output") -> JSON:
    """The value that a text of somebody else's is; `ValueError` says what is wrong with any other.

    >>> read_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise ValueError(f"{what} is nested more than {MAX_DEPTH} deep") from None
    return strict(value, what)


def strict(value: object, what: str = "the output") -> JSON:
    """A copy of a value that JSON can hold and give back unchanged; `ValueError` says what is wrong with any
    other.

    >>> strict({"a": (1, 2.5, "x", None)})
    {'a': [1, 2.5, 'x', None]}
    """
    reading = _Strict(what)
    plain = reading.read(value, 0)
    if reading.room * _LONGEST < MAX_VALUE_BYTES * (_LONGEST - 1):  # it may be too long after all
        size = len(msgspec.json.encode(plain))
        if size > MAX_VALUE_BYTES:
            raise _too_large(what, f"{size:,}")
    return plain


def _too_large(what: str, size: str) -> TooLarge:
    return TooLarge(f"{what} has {size} bytes, {MAX_VALUE_BYTES:,} are allowed")


class _Strict:
    """Reads one value; it stops as soon as there is certainly too much of it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.room = MAX_VALUE_BYTES
        """What is left if every character takes one byte, and every other value at least two."""

    def read(self, value: object, depth: int) -> JSON:
        if depth > MAX_DEPTH:
            raise ValueError(f"{self._what} is nested more than {MAX_DEPTH} deep")
        if isinstance(value, str):
            return self._text(value)
        self._take(2)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if not -_LARGEST <= value < _LARGEST:
                raise ValueError(f"{self._what} is not JSON: an integer of more than 64 bits")
            return value if type(value) is int else int.__int__(value)
        if isinstance(value, float):
            if not isfinite(value):
                raise ValueError(f"{self._what} is not JSON: {float.__repr__(value)}")
            return value if type(value) is float else float.__float__(value)
        if isinstance(value, list | tuple):
            return [self.read(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {self._key(key): self.read(item, depth + 1) for key, item in value.items()}
        raise ValueError(f"{self._what} is not JSON: {type(value).__name__}")

    def _text(self, value: str) -> str:
        self._take(len(value))
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{self._what} holds text that is not Unicode") from None
        return value if type(value) is str else str.__str__(value)

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return self._text(key)
        raise ValueError(f"{self._what} is not JSON: a key is {type(key).__name__}, not text")

    def _take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _too_large(self._what, f"more than {MAX_VALUE_BYTES:,}")


def fitting(schema: object, limit: int = FITTING_CHARS) -> str:
    """What is asked of who answers by a schema, as every surface says it."""
    return shorten_line(f"JSON that fits {as_text(schema)}", limit)
