"""Values that other systems write as Jinja texts, as expressions of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fanfold.recipe.conversion.conditions import in_cel, to_cel

_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_LITERAL = r"""'[^'\\]*'|"[^"\\]*"|-?\d+(?:\.\d+)?|true|false"""
_OTHERWISE = re.compile(
    rf"(?P<path>[\w.\[\]-]+)\s*(?:\|\s*default\(\s*(?P<given>{_LITERAL})\s*(?:,\s*true\s*)?\)|or\s+(?P<or>{_LITERAL}))",
    re.ASCII,
)
_CHOICE = re.compile(r"(?P<then>.+?)\s+if\s+(?P<when>.+?)\s+else\s+(?P<other>.+)", re.DOTALL)


def to_value(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """The value that a text stands for, as CEL; None when it says something that has no counterpart here."""
    if "{%" in text:
        return None
    holes = list(_HOLE.finditer(text))
    if not holes:
        return json.dumps(text, ensure_ascii=False) if text else '""'
    if len(holes) == 1 and holes[0][0] == text.strip():
        return _expression(holes[0][1].strip(), resolve)
    parts: list[str] = []
    at = 0
    for hole in holes:
        found = _expression(hole[1].strip(), resolve)
        if found is None:
            return None
        before = text[at : hole.start()]
        parts += [json.dumps(before, ensure_ascii=False)] if before else []
        parts.append(f"string({found})")
        at = hole.end()
    parts += [json.dumps(text[at:], ensure_ascii=False)] if text[at:] else []
    return " + ".join(parts)


def _expression(text: str, resolve: Callable[[str], str | None]) -> str | None:
    otherwise = _OTHERWISE.fullmatch(text)
    if otherwise is not None:
        path = resolve(otherwise["path"])
        if path is None:
            return None
        name = in_cel(path)
        # What is empty counts as missing only for `or`.
        other = to_cel(otherwise["given"] or otherwise["or"], resolve)
        missing = f"{name} == null" if otherwise["given"] else f'{name} == null || {name} == ""'
        return f"{missing} ? {other} : {name}"
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        parts = [_expression(choice[one].strip(), resolve) for one in ("when", "then", "other")]
        return None if None in parts else f"({parts[0]}) ? ({parts[1]}) : ({parts[2]})"
    if re.search(r"(?<![\w'\"])(?:or|and)(?![\w'\"])", text):
        return None  # of values, not of conditions: which of them is given depends on what is empty
    return to_cel(text, resolve)
