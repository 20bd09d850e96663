"""The type of JSON values, their form as text, and the check of Python values.

Values from programs (a function's result, an input) are first checked with `strict`. It refuses everything
that JSON could not return unchanged, and returns an independent copy.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice, pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from fanfold.language.terminal import shorten, shorten_line

if TYPE_CHECKING:
    import jsonschema_rs

JSON: TypeAlias = Any
"""Any JSON value. The serializer does not support recursive aliases, so this name documents the meaning."""

MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
FITTING_CHARS = 200
_LARGEST = 2**63
_LONGEST = 13
"""How many times longer than the estimate of `_Strict` a value can be: a character is up to 6 bytes, a number
26."""


class TooLarge(ValueError):
    """A value that is valid JSON, but too large for a log."""


def as_text(value: JSON) -> str:
    """Return a value as a prompt shows it: text unchanged, anything else as compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def with_text_only(value: JSON) -> JSON:
    """Return the value with valid Unicode texts, because file names can contain any bytes and logs cannot.

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


def whole_text(text: str) -> str:
    """Return the text with surrogate pairs joined, and single halves replaced.

    >>> whole_text("a" + chr(0xD83D) + chr(0xDE00) + chr(0xD83D)) == "a" + chr(0x1F600) + chr(0xFFFD)
    True
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def read_json(text: str | bytes, what: str = "the output") -> JSON:
    """Return the JSON value in an untrusted text; `ValueError` names the problem.

    >>> read_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise ValueError(f"{what} is nested more than {MAX_DEPTH} deep") from None
    return strict(value, what)


def strict(value: object, what: str = "the output") -> JSON:
    """Return a copy of a value that JSON can represent unchanged.

    For any other value, `ValueError` names the problem.

    >>> strict({"a": (1, 2.5, "x", None)})
    {'a': [1, 2.5, 'x', None]}
    """
    reading = _Strict(what)
    plain = reading.read(value, 0)
    if reading.room * _LONGEST < MAX_VALUE_BYTES * (_LONGEST - 1):  # it may be too long
        size = len(msgspec.json.encode(plain))
        if size > MAX_VALUE_BYTES:
            raise _too_large(what, f"{size:,}")
    return plain


def _too_large(what: str, size: str) -> TooLarge:
    return TooLarge(f"{what} has {size} bytes, {MAX_VALUE_BYTES:,} are allowed")


class _Strict:
    """Reads one value; stops as soon as it is certainly too large."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.room = MAX_VALUE_BYTES
        """The remaining bytes if every character takes one byte, and every other value at least two."""

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
                raise ValueError(f"{self._what} contains text that is not Unicode") from None
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
    """Return the description of a required schema, the same for all interfaces."""
    return shorten_line(f"JSON that fits {as_text(schema)}", limit)


# -----------------------------------------------------------------------------------------------------------
# JSON Schema: validation of schemas and of values.
#
# A schema must be self-contained: no reference is ever fetched. Checking a recipe or a tool must not depend
# on the network, and a frozen run must not change because of a remote document.
#
# Schemas and values come from recipes, models and servers, so their cost is limited. First the maximum number
# of applied parts of a schema is counted, including references. A check that may take long runs in a separate
# process, which the kernel ends after `MAX_S` seconds. Few schemas need it. An event loop waits for it in a
# thread (`aside`). Where that is not possible, the loop blocks for a limited share of the time, so that a
# recipe with many such schemas does not stop it.

MAX_ERRORS = 5
MAX_WORDS_CHARS = 200
JSON_SCHEMA_MAX_DEPTH = 200
MAX_COST = 20_000_000
"""Applied parts times bytes of the value, up to which a check runs in this process: a fraction of a second.
"""
MAX_DESCRIBED = 200_000
"""The same for an invalid value, because each error takes a thousand times as long to describe."""
MAX_S, MAX_WALL_S = 2, 10
"""Limits of a process that checks: its CPU time, and the elapsed time on a busy machine."""
MAX_ASKED_CHARS = 4_000
MAX_MEMORY_BYTES = 1024**3
MAX_HELD_S, SHARE = 4.0, 0.1
"""How long a loop can block for such processes at once, and the share of the time that it regains."""
TOO_LONG = f"it cannot be checked within {MAX_S} s: use a simpler schema"
_ELSEWHERE = frozenset({"$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"})


_Checked = TypeVar("_Checked")
_asks_aside: Final = ContextVar("_asks_aside", default=False)


class _Costly(Exception):  # a signal between the functions of this module
    """The check needs a separate process."""


class _Patience:
    """The remaining time for which a loop can be blocked."""

    def __init__(self) -> None:
        self._left = MAX_HELD_S
        self._at = time.monotonic()

    def spend(self, seconds: float = 0.0) -> bool:
        """Use some of the time; return whether any was left before."""
        now = time.monotonic()
        left = min(MAX_HELD_S, self._left + (now - self._at) * SHARE)
        self._left, self._at = left - seconds, now
        return left > 0


_patience: Final = _Patience()


class SchemaProblem(Struct, frozen=True):
    """Why a value is not a valid schema, and the path to the invalid part."""

    message: str
    path: tuple[str | int, ...] = ()


def schema_problem(schema: JSON) -> SchemaProblem | None:
    """Return the problem of a schema; None if it is valid.

    >>> schema_problem({"properties": {"a": {"type": 5}}}).path
    ('properties', 'a', 'type')
    """
    import jsonschema_rs

    if not isinstance(schema, dict | bool):  # text would be parsed as JSON
        return SchemaProblem("a schema is an object, true or false")
    try:
        jsonschema_rs.validator_for(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        return SchemaProblem(_first_line(error.message), tuple(error.instance_path))
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return SchemaProblem(_first_line(str(error)))
    return None


def schema_of(kind: type) -> JSON:
    """Return the JSON Schema of a class: a pydantic model, dataclass, msgspec struct or typed dictionary."""
    make = getattr(kind, "model_json_schema", None)
    schema: JSON = make() if make is not None else msgspec.json.schema(kind)
    return schema


def misfits(schema: JSON, value: JSON, whole: str = "") -> str:
    """Return the errors of a value against a schema, each with its path; empty if the value is valid.

    `whole` is the name of the whole value in messages, if it is useful.

    >>> misfits({"items": {"type": "integer"}}, [1, "2"])
    '1: "2" is not of type "integer"'
    """
    encoded, given = msgspec.json.encode(schema), msgspec.json.encode(value)
    cost = _weight(encoded) * len(given)
    if cost <= MAX_COST and _validator(encoded).is_valid(value):
        return ""
    if cost > MAX_DESCRIBED:
        # The first error, from a separate process with a timeout.
        if _asks_aside.get():
            raise _Costly
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:  # no event loop in this thread
            return _answer_from(encoded, given, whole)
        if not _patience.spend():
            return TOO_LONG
        began = time.monotonic()
        try:
            return _answer_from(encoded, given, whole)
        finally:
            _patience.spend(time.monotonic() - began)
    errors = islice(_validator(encoded).iter_errors(value), MAX_ERRORS)  # computes all errors
    return "; ".join(_words(error, whole) for error in errors)


async def aside(check: Callable[..., _Checked], *given: object) -> _Checked:
    """Call a function that checks values; in a thread if it needs a separate process."""
    import asyncio

    token = _asks_aside.set(True)
    try:
        return check(*given)
    except _Costly:
        pass
    finally:
        _asks_aside.reset(token)

    return await asyncio.to_thread(check, *given)


def _words(error: jsonschema_rs.ValidationError, whole: str) -> str:
    place = "/".join(str(part) for part in error.instance_path) or whole
    return f"{place}: {error.message}" if place else error.message


def _answer_from(schema: bytes, value: bytes, whole: str) -> str:
    import subprocess

    # -I: no modules from the current folder or the environment.
    program = [sys.executable, "-I", "-c", f"from {__name__} import answer; answer()"]
    asked = msgspec.json.encode([schema.decode(), value.decode(), whole])
    try:
        done = subprocess.run(
            program,
            input=asked,
            capture_output=True,
            env={"LC_ALL": "C.UTF-8"},
            timeout=MAX_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TOO_LONG
    return done.stdout.decode() if done.returncode == 0 else TOO_LONG


def answer() -> None:
    """Check a schema and a value from stdin in the separate process, and write the errors to stdout."""
    import resource

    for limit, most in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_S)):
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schema, value, whole = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, str, str])
    import jsonschema_rs

    try:
        _validator(schema.encode()).validate(msgspec.json.decode(value))
    except jsonschema_rs.ValidationError as error:
        sys.stdout.buffer.write(shorten(_words(error, whole), MAX_ASKED_CHARS).encode())


@lru_cache(maxsize=256)
def _weight(schema: bytes) -> float:
    """Return how many parts of a schema can apply to one value, with references; infinite for cycles."""
    whole = msgspec.json.decode(schema)
    known: dict[str, float] = {}

    def of(part: JSON, depth: int) -> float:
        if depth > JSON_SCHEMA_MAX_DEPTH:
            return inf
        if isinstance(part, list):
            return sum((of(value, depth + 1) for value in part), 1.0)
        if not isinstance(part, dict):
            return 1.0
        if not _ELSEWHERE.isdisjoint(part) or ("$id" in part and part is not whole):
            return inf
        target = part.get("$ref")
        reached = referred(target, depth) if isinstance(target, str) else 0.0
        return sum((of(value, depth + 1) for value in part.values()), 1.0 + reached)

    def referred(target: str, depth: int) -> float:
        if target not in known:
            known[target] = inf  # a temporary value that marks a cycle
            known[target] = of(_resolve(whole, target), depth + 1)
        return known[target]

    return of(whole, 0)


def _resolve(schema: JSON, target: str) -> JSON:
    """Return the target of a reference inside a schema; None, which cannot apply, if there is none."""
    if not target.startswith("#"):
        return None
    found = schema
    for part in target.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # imported only if there is a schema

    return jsonschema_rs.validator_for(msgspec.json.decode(schema), offline=True)


def _first_line(text: str) -> str:
    return shorten(text.strip().splitlines()[0] if text.strip() else "it cannot be read", MAX_WORDS_CHARS)


# -----------------------------------------------------------------------------------------------------------
# Editing of JSON with comments: the settings of editors and of programs that agents use.
#
# Such a file belongs to the user and has comments, trailing commas and its own order. So it is never parsed
# and rewritten. A scanner finds the position, and one entry is added or removed as text. Everything else
# stays unchanged. A file that the scanner does not understand is not changed.

_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"/]+|\s+', re.DOTALL)
_INDENT = "  "


class SettingsUnreadableError(Exception):
    """The file is not an object in JSON with comments."""


class _Entry(NamedTuple):
    """An entry of an object: its key, and the numbers of the first and last token of its value."""

    key: str
    first: int
    last: int


def set_entry(text: str, path: Sequence[str], value: JSON) -> str:
    """Return the text with `value` under a path of keys; unchanged if it is already there.

    >>> set_entry('{"a": 1}', ["b", "c"], [2])
    '{\\n  "b": {\\n    "c": [2]\\n  },"a": 1}'
    """
    if not text.strip():
        text = "{}\n"
    tokens, brace, entries, found, depth = _locate(text, path)
    newline = line_end(text)
    if found is not None:
        if _value_of(tokens, found) == [value]:
            return text
        written = _written(value, depth + 1).replace("\n", newline)
        return f"{text[: tokens[found.first].start()]}{written}{text[tokens[found.last].end() :]}"
    for inner in reversed(path[depth + 1 :]):
        value = {inner: value}
    entry = f"{json.dumps(path[depth])}: {_written(value, depth + 1)}".replace("\n", newline)
    start = tokens[brace].end()
    comma, rest = ",", text[start:]
    if not entries:  # white space of an empty object is dropped; a comment is kept
        comma = newline + _INDENT * depth
        rest = rest.lstrip() if rest.lstrip().startswith("}") else rest
    return f"{text[:start]}{newline}{_INDENT * (depth + 1)}{entry}{comma}{rest}"


def remove_entry(text: str, path: Sequence[str]) -> str:
    """Return the text without the entry under a path of keys; unchanged if there is none."""
    if not text.strip():
        return text
    tokens, _, entries, found, _ = _locate(text, path)
    if found is None:
        return text
    start, end, after = tokens[found.first - 2].start(), tokens[found.last].end(), tokens[found.last + 1]
    place = entries.index(found)
    if after[0] == ",":
        tail = text[after.end() :]
    else:
        start = tokens[entries[place - 1].last].end() if place else start
        tail = text[end:]
    head = text[:start].rstrip(" \t")
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        tail = tail.removeprefix("\r").removeprefix("\n")
    if len(entries) == 1 and after[0] == "}" and text[end : after.start()].isspace():
        return head.rstrip() + tail.lstrip()
    return head + tail


def entry_at(text: str, path: Sequence[str]) -> JSON:
    """Return the value under a path of keys; None if there is none, or if it is invalid."""
    if not text.strip():
        return None
    tokens, _, _, found, _ = _locate(text, path)
    values = _value_of(tokens, found) if found is not None else []
    return values[0] if values else None


def line_end(text: str) -> str:
    """Return the line ending of a file, so that added lines use the same."""
    return "\r\n" if "\r\n" in text else "\n"


def _locate(
    text: str, path: Sequence[str]
) -> tuple[list[re.Match[str]], int, list[_Entry], _Entry | None, int]:
    """Follow a path of keys as far as it exists; of equal keys the last one counts, as in JSON parsers.

    Return all tokens, the brace and entries of the deepest object, its entry for the next key, and the depth.
    """
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        if (token := _TOKEN.match(text, at)) is None:
            raise SettingsUnreadableError
        at = token.end()
        if not token[0].isspace() and not token[0].startswith(("//", "/*")):
            tokens.append(token)
    entries, end = _read_object(tokens, 0)
    if end != len(tokens) - 1:
        raise SettingsUnreadableError
    brace = 0
    for depth, key in enumerate(path):
        found = next((entry for entry in reversed(entries) if entry.key == key), None)
        if found is None or depth == len(path) - 1:
            return tokens, brace, entries, found, depth
        brace = found.first
        entries, _ = _read_object(tokens, brace)
    raise ValueError("the path is empty")


def _read_object(tokens: Sequence[re.Match[str]], brace: int) -> tuple[list[_Entry], int]:
    """Return the entries of the object that starts at a token, and the number of its last token."""
    entries: list[_Entry] = []
    at = brace + 1
    try:
        readable = tokens[brace][0] == "{"
        while readable and tokens[at][0] != "}":
            readable = tokens[at][0].startswith('"') and tokens[at + 1][0] == ":"
            last, depth = at + 2, 0
            while (depth := depth + _NESTING.get(tokens[last][0], 0)) > 0:  # without recursion
                last += 1
            entries.append(_Entry(str(json.loads(tokens[at][0])), at + 2, last))
            at = last + 1
            readable = readable and depth == 0 and tokens[at][0] in (",", "}")
            at += tokens[at][0] == ","
    except (IndexError, ValueError):
        readable = False
    if not readable:
        raise SettingsUnreadableError
    return entries, at


_NESTING = {"{": 1, "[": 1, "}": -1, "]": -1}


def _value_of(tokens: Sequence[re.Match[str]], entry: _Entry) -> list[JSON]:
    """Return the value of an entry in a list, which is empty if the value is invalid."""
    span = [token[0] for token in tokens[entry.first : entry.last + 1]]
    kept = (one for one, after in pairwise([*span, ""]) if one != "," or after not in ("}", "]"))
    try:
        return [json.loads("".join(kept))]
    except ValueError:
        return []


def _written(value: JSON, depth: int) -> str:
    """Return an object with one entry per line, and lists on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = _INDENT * (depth + 1)
    lines = [f"{inner}{json.dumps(key)}: {_written(entry, depth + 1)}" for key, entry in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{_INDENT * depth}}}"
