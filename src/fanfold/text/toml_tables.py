"""Edit one table of a TOML file without disturbing the rest: the configuration of a program that agents use.

The table is a block of lines of its own, from its header to the next. Comments, order and unknown keys of
everything else stay as they are; what came of an edit is read again, and one that would change anything else
is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence

from fanfold.text.json_comments import SettingsUnreadableError, line_end
from fanfold.text.json_value import JSON

_HEADER = re.compile(r"^[ \t]*\[")


def set_table(text: str, path: Sequence[str], values: Mapping[str, JSON]) -> str:
    """The text with a table of these values; unchanged where it says so already."""
    before = _read(text)
    if _inside(before, path) == values:
        return text
    rest = remove_table(text, path)
    table = [f"[{'.'.join(path)}]", *(f"{key} = {_written(one)}" for key, one in values.items())]
    gap = [] if not rest.strip() else [""] if rest.endswith("\n") else ["", ""]
    added = line_end(text).join([*gap, *table, ""])
    return _checked(f"{rest}{added}", _with(_read(rest), path, dict(values)))


def remove_table(text: str, path: Sequence[str]) -> str:
    """The text without a table and the tables inside it; unchanged where there is none."""
    before = _read(text)
    if _inside(before, path) is None:
        return text
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    inside = False
    for line in lines:
        if _HEADER.match(line):
            inside = _named(line)[: len(path)] == list(path)
        if not inside:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return _checked("".join(kept), _with(before, path, None))


def _named(line: str) -> list[str]:
    """The keys of a header."""
    try:
        value: JSON = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    names: list[str] = []
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        names.append(name)
        if isinstance(value, list):
            value = value[0]
    return names


def _read(text: str) -> dict[str, JSON]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise SettingsUnreadableError from None


def _inside(value: JSON, path: Sequence[str]) -> JSON:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _with(value: dict[str, JSON], path: Sequence[str], new: JSON) -> dict[str, JSON]:
    """A copy with another value under a path; without it for None, and without what is empty then."""
    head, *rest = path
    inner = value.get(head)
    changed = _with(inner if isinstance(inner, dict) else {}, rest, new) if rest else new
    copied = {key: one for key, one in value.items() if key != head}
    return copied if changed in (None, {}) else {**copied, head: changed}


def _checked(text: str, expected: dict[str, JSON]) -> str:
    """The text, if it says exactly what it should: a table may be written in ways that lines do not show."""
    if _read(text) != expected:
        raise SettingsUnreadableError
    return text


def _written(value: JSON) -> str:
    # JSON's texts, numbers, booleans and lists of them are TOML's too.
    return json.dumps(value, ensure_ascii=False)
