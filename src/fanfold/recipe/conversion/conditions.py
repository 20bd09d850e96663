"""Conditions and values of other languages as CEL: names, signs, quotes; anything else is nobody's guess."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<path>\$?[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*)(?P<length>\s*\|\s*length\b)?"
    r"|(?P<sign>===|!==|==|!=|<=|>=|&&|\|\||<|>|!|\(|\)|\[|\]|,))",
    re.ASCII,
)
_WORDS = {
    "and": "&&", "or": "||", "not": "!", "true": "true", "false": "false", "True": "true", "False": "false",
    "null": "null", "None": "null", "none": "null", "in": "in",
}  # fmt: skip
_SIGNS = {"===": "==", "!==": "!="}
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_LITERAL = r"""'[^'\\]*'|"[^"\\]*"|-?\d+(?:\.\d+)?|true|false"""
_OTHERWISE = re.compile(
    rf"(?P<path>[\w.\[\]-]+)\s*(?:\|\s*default\(\s*(?P<given>{_LITERAL})\s*(?:,\s*true\s*)?\)|or\s+(?P<or>{_LITERAL}))",
    re.ASCII,
)
_CHOICE = re.compile(r"(?P<then>.+?)\s+if\s+(?P<when>.+?)\s+else\s+(?P<other>.+)", re.DOTALL)


def to_cel(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """The condition as an expression of ours; None when it says something that has no counterpart here."""
    inside = text.strip()
    if inside.startswith("{{") and inside.endswith("}}"):
        inside = inside[2:-2].strip()
    words: list[str] = []
    at = 0
    while at < len(inside):
        found = _TOKEN.match(inside, at)
        if found is None:
            return None if inside[at:].strip() else " ".join(words)
        at = found.end()
        if found["string"] is not None:
            words.append('"' + found["string"][1:-1].replace('"', '\\"') + '"')
        elif found["path"] is not None:
            word = _WORDS.get(found["path"]) or resolve(found["path"])
            if word is None:
                return None
            word = in_cel(word) if "." in word else word
            words.append(f"size({word})" if found["length"] else word)
        else:
            sign = found["sign"]
            words.append(found["number"] if sign is None else _SIGNS.get(sign, sign))
    return " ".join(words) or None


def in_cel(path: str) -> str:
    """A path as expressions write it: `-` in a name is `_` there."""
    return path.replace("-", "_")


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
