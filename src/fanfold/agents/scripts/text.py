"""The text of a script as plain values that remember where they were written.

Rules
* YAML with the scalars of YAML 1.2's core schema (`yes` is text), or JSON, which is nearly a part of it; what
  libyaml refuses of JSON (paired surrogate escapes) is read by a JSON parser, then without places.
* No aliases, tags or repeated keys; bytes, values and depth are limited. A script is a file somebody may
  have been handed, so reading it must cost what its size says and mean what it shows.
* Every refusal is an `AuthorError` that begins with `file:line:column`.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 500_000
MAX_NUMBER_CHARS = 400
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

Way: TypeAlias = tuple[str | int, ...]
"""How to get to a value from the top: `("steps", "gather", 0, "fail")`."""

_WORDS: dict[str, JSON] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class Places:
    """Where each value of one file stands, and errors that say so."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._starts: dict[Way, tuple[int, int]] = {}

    def put(self, way: Way, mark: Any) -> None:
        """Remember the first place of a value: a key's comes before that of what it leads to."""
        self._starts.setdefault(way, (mark.line + 1, mark.column + 1))

    def find(self, way: Way) -> tuple[int, int]:
        """Line and column of a value, or of the nearest one around it that has a place."""
        while way and way not in self._starts:
            way = way[:-1]
        return self._starts.get(way, (1, 1))

    def error(self, code: str, message: str, way: Way, hint: str) -> AuthorError:
        return self.error_at(code, message, self.find(way), hint)

    def error_at(self, code: str, message: str, place: tuple[int, int], hint: str) -> AuthorError:
        line, column = place
        details = {"file": self.file, "line": line, "column": column}
        return AuthorError(code, f"{self.file}:{line}:{column}: {message}", hint=hint, details=details)


def read_text(data: bytes, file: str) -> tuple[JSON, Places]:
    """The value of the whole file and the places of its parts; raises AuthorError.

    >>> read_text(b"steps: {a: yes, b: 1}", "script.yaml")[0]
    {'steps': {'a': 'yes', 'b': 1}}
    """
    places = Places(file)
    if len(data) > MAX_BYTES:
        message = f"the script has {len(data):,} bytes; at most {MAX_BYTES:,} are allowed"
        raise places.error("script.too_large", message, (), "split the run, or answer more steps by default")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise places.error_at("script.encoding", message, (line, 1), "save the file as UTF-8") from None
    try:
        return _Reader(data, places).document(), places
    except AuthorError as error:
        if error.code == "script.syntax" and data.lstrip()[:1] == b"{":
            value = _json(data)
            if value is not None:
                return value, Places(file)
        raise


def _json(data: bytes) -> JSON:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


class _Reader:
    """Builds values from libyaml's events; its composer would follow aliases and overflow the stack."""

    def __init__(self, data: bytes, places: Places) -> None:
        import yaml
        from yaml import events
        from yaml._yaml import CParser

        self._parser: Any = CParser(data)
        self._events = events
        self._yaml_error = yaml.MarkedYAMLError
        self._places = places
        self._values = 0

    def document(self) -> JSON:
        self._next()  # the stream starts
        if isinstance(self._next(), self._events.StreamEndEvent):
            return None
        value = self._value(self._next(), ())
        self._next()  # the document ends
        after = self._next()
        if not isinstance(after, self._events.StreamEndEvent):
            raise self._refuse(
                "script.syntax", "a script is one document", after, 'remove what follows "---"'
            )
        return value

    def _next(self) -> Any:
        try:
            return self._parser.get_event()
        except self._yaml_error as error:
            mark = error.problem_mark or error.context_mark
            place = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
            message = f"this cannot be read: {error.problem or 'not YAML'}"
            hint = "quote text that holds any of : # { } [ ] *"
            raise self._places.error_at("script.syntax", message, place, hint) from None

    def _refuse(self, code: str, message: str, event: Any, hint: str) -> AuthorError:
        mark = event.start_mark
        return self._places.error_at(code, message, (mark.line + 1, mark.column + 1), hint)

    def _value(self, event: Any, way: Way) -> JSON:
        events = self._events
        self._values += 1
        if self._values > MAX_VALUES:
            message = f"the script has more than {MAX_VALUES:,} values"
            raise self._refuse("script.too_large", message, event, "answer more steps by default")
        if isinstance(event, events.AliasEvent) or event.anchor is not None or event.tag is not None:
            message = "anchors, aliases and tags are not allowed in a script"
            raise self._refuse("script.alias", message, event, "write the value out, or quote it as text")
        self._places.put(way, event.start_mark)
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event)
        if len(way) >= MAX_DEPTH:
            message = f"values nest more than {MAX_DEPTH} levels deep"
            raise self._refuse("script.too_deep", message, event, "flatten the value")
        if isinstance(event, events.SequenceStartEvent):
            return self._sequence(way)
        return self._mapping(way)

    def _scalar(self, event: Any) -> JSON:
        text: str = event.value
        if event.style:
            return text
        if text in _WORDS:
            return _WORDS[text]
        try:
            return _number(text)
        except ValueError as error:
            raise self._refuse("script.bad_value", str(error), event, "quote it if it is text") from None

    def _sequence(self, way: Way) -> list[JSON]:
        items: list[JSON] = []
        while not isinstance(event := self._next(), self._events.SequenceEndEvent):
            items.append(self._value(event, (*way, len(items))))
        return items

    def _mapping(self, way: Way) -> dict[str, JSON]:
        fields: dict[str, JSON] = {}
        while not isinstance(key := self._next(), self._events.MappingEndEvent):
            if not isinstance(key, self._events.ScalarEvent) or key.anchor is not None or key.tag is not None:
                raise self._refuse("script.bad_key", "a key must be text", key, "quote the key")
            if key.value in fields:
                raise self._refuse(
                    "script.duplicate", f'"{key.value}" is given twice', key, "keep one of them"
                )
            self._places.put((*way, key.value), key.start_mark)
            fields[key.value] = self._value(self._next(), (*way, key.value))
        return fields


def _number(text: str) -> JSON:
    """A plain scalar as a number where it is one, else as the text it is."""
    if text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        number = int(text) if len(text) <= MAX_NUMBER_CHARS else INT_MAX + 1
        if not INT_MIN <= number <= INT_MAX:
            raise ValueError("the integer does not fit in 64 bits")
        return number
    if _FLOAT.fullmatch(text):
        real = float(text) if len(text) <= MAX_NUMBER_CHARS else float("inf")
        if real in (float("inf"), float("-inf")):
            raise ValueError("the number is too large")
        return real
    return text
