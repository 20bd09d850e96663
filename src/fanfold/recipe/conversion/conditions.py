"""Conditions of other languages as CEL: names, signs and quotes; anything else is nobody's guess."""

from __future__ import annotations

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
