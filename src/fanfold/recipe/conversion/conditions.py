"""Conditions and values of other languages as CEL: names, signs, quotes; anything else is nobody's guess."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fanfold.recipe.conversion.source import holes_of
from fanfold.text.trees.yaml import FORBIDDEN

NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
"""As long as expressions take one for certain."""
_TOKEN = re.compile(
    rf"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>{NUMBER})"
    r"|(?P<path>\$?[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*)(?P<length>\s*\|\s*length\b)?"
    r"|(?P<sign>===|!==|==|!=|<=|>=|&&|\|\||<|>|!|\(|\)|\[|\]|,|-))",
    re.ASCII,
)
_VALUES = {
    "true": "true", "false": "false", "True": "true", "False": "false", "null": "null", "None": "null",
    "none": "null",
}  # fmt: skip
_RESERVED = frozenset({"and", "or", "not", "in", "is", "if", "else"})
_COMPARISONS = {one: one for one in ("==", "!=", "<=", ">=", "<", ">", "in")} | {"===": "==", "!==": "!="}
_MAX_DEPTH = 50
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_LITERAL = rf"""'[^'\\]*'|"[^"\\]*"|-?{NUMBER}|true|false"""
_OTHERWISE = re.compile(
    rf"(?P<path>[\w.\[\]-]+)\s*(?:\|\s*default\(\s*(?P<given>{_LITERAL})\s*(?:,\s*true\s*)?\)|or\s+(?P<or>{_LITERAL}))",
    re.ASCII,
)
_IF, _ELSE = (re.compile(rf"(?<!\s)\s+{word}\s") for word in ("if", "else"))


def to_cel(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """The condition as an expression of ours; None when it says something that has no counterpart here."""
    inside = text.strip()
    if inside.startswith("{{") and inside.endswith("}}"):
        inside = inside[2:-2].strip()
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(inside):
        found = _TOKEN.match(inside, at)
        if found is None:
            return None
        tokens.append(found)
        at = found.end()
    try:
        return _Condition(tokens, resolve).read()
    except _NoCounterpartError:
        return None


class _NoCounterpartError(Exception):
    """Something that is no condition here."""


class _Condition:
    """Reads a condition by what binds stronger: `or`, `and`, `not`, one comparison, values."""

    def __init__(self, tokens: list[re.Match[str]], resolve: Callable[[str], str | None]) -> None:
        self._tokens = tokens
        self._resolve = resolve
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        found = self._either()
        if self._at < len(self._tokens):
            raise _NoCounterpartError
        return found

    def _next(self) -> str:
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def _takes(self, *words: str) -> bool:
        found = self._next() in words
        self._at += found
        return found

    def _either(self) -> str:
        parts = [self._both()]
        while self._takes("or", "||"):
            parts.append(self._both())
        return " || ".join(parts)

    def _both(self) -> str:
        parts = [self._negated()]
        while self._takes("and", "&&"):
            parts.append(self._negated())
        return " && ".join(parts)

    def _negated(self) -> str:
        turned = False
        while self._takes("not"):
            turned = not turned
        found = self._compared()
        return f"!({found})" if turned else found

    def _compared(self) -> str:
        left = self._value()
        if self._takes("is"):
            sign = "!=" if self._takes("not") else "=="
            if not self._takes("none", "None", "null"):
                raise _NoCounterpartError
            return f"{left} {sign} null"
        if self._takes("not"):
            if self._next() != "in":
                raise _NoCounterpartError
            self._at += 1
            return f"!({left} in {self._value()})"
        sign = self._next()
        if sign not in _COMPARISONS:
            return left
        self._at += 1
        return f"{left} {_COMPARISONS[sign]} {self._value()}"

    def _value(self) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NoCounterpartError
        found = self._one_value()
        self._depth -= 1
        return found

    def _one_value(self) -> str:
        if self._takes("!"):
            return f"!{self._value()}"
        if self._takes("("):
            found = self._either()
            self._close(")")
            return f"({found})"
        if self._takes("["):
            items = [] if self._next() == "]" else [self._value()]
            while items and self._takes(","):
                items.append(self._value())
            self._close("]")
            return f"[{', '.join(items)}]"
        minus = "-" if self._takes("-") else ""
        if self._at >= len(self._tokens):
            raise _NoCounterpartError
        token = self._tokens[self._at]
        self._at += 1
        if token["number"] is not None:
            return minus + token["number"]
        if minus or token["sign"] is not None:
            raise _NoCounterpartError
        if token["string"] is not None:
            return cel_text(_unescaped(token["string"][1:-1]))
        return self._named(token)

    def _close(self, sign: str) -> None:
        if not self._takes(sign):
            raise _NoCounterpartError

    def _named(self, token: re.Match[str]) -> str:
        path = token["path"]
        word = None if path in _RESERVED else _VALUES.get(path) or self._resolve(path)
        if word is None:
            raise _NoCounterpartError
        word = in_cel(word) if "." in word else word
        return f"size({word})" if token["length"] else word


def _unescaped(text: str) -> str:
    """What stands between quotes; escapes that the languages do not share are nobody's guess."""
    if any(one not in _ESCAPED for one in _ESCAPE.findall(text)):
        raise _NoCounterpartError
    return _ESCAPE.sub(lambda found: _ESCAPED[found[1]], text)


def cel_text(text: str) -> str:
    """A text as expressions write it, on one line and without what recipes do not take."""
    quoted = json.dumps(text, ensure_ascii=False)
    return FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def in_cel(path: str) -> str:
    """A path as expressions write it: `-` in a name is `_` there."""
    return path.replace("-", "_")


def to_value(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """The value that a text stands for, as CEL; None when it says something that has no counterpart here."""
    if "{%" in text:
        return None
    holes = holes_of(text)
    if not holes:
        return cel_text(text)
    if len(holes) == 1 and holes[0][0] == text.strip():
        return _expression(holes[0][1].strip(), resolve)
    parts: list[str] = []
    at = 0
    for hole in holes:
        found = _expression(hole[1].strip(), resolve)
        if found is None:
            return None
        before = text[at : hole.start()]
        parts += [cel_text(before)] if before else []
        parts.append(f"string({found})")
        at = hole.end()
    parts += [cel_text(text[at:])] if text[at:] else []
    return " + ".join(parts)


def _expression(text: str, resolve: Callable[[str], str | None], depth: int = 0) -> str | None:
    if depth > _MAX_DEPTH:
        return None
    otherwise = _OTHERWISE.fullmatch(text)
    if otherwise is not None:
        path = resolve(otherwise["path"])
        if path is None:
            return None
        name = in_cel(path)
        # What is empty counts as missing only for `or`.
        instead = to_cel(otherwise["given"] or otherwise["or"], resolve)
        missing = f"{name} == null" if otherwise["given"] else f'{name} == null || {name} == ""'
        return f"{missing} ? {instead} : {name}"
    when = _IF.search(text)
    other = None if when is None else _ELSE.search(text, when.end())
    if when is not None and other is not None:
        words = (text[when.end() : other.start()], text[: when.start()], text[other.end() :])
        parts = [_expression(one.strip(), resolve, depth + 1) for one in words]
        return None if None in parts else f"({parts[0]}) ? ({parts[1]}) : ({parts[2]})"
    if re.search(r"(?<![\w'\"])(?:or|and)(?![\w'\"])", text):
        return None  # of values, not of conditions: which of them is given depends on what is empty
    return to_cel(text, resolve)
