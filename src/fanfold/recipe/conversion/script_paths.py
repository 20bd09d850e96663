"""Paths in a workflow script: names with fields behind them, as a recipe has them."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from fanfold.recipe.conversion.script_words import ScriptWords, Span

Locals: TypeAlias = dict[str, str]
"""Parameters of a function, and what they are in a recipe."""

_NO_FIELDS = frozenset({"length", "size"})
"""What JavaScript knows of every text and list, and a path does not."""
RESERVED = frozenset({"item", "index", "inputs", "steps", "iteration", "feedback", "output", "digest"})
_GUARDED = re.compile(r"\( (\w+) && \1 \. \w+ \)\Z", re.ASCII)
_INDENTED = re.compile(r", null , \d+ \)\Z")


def read_path(
    names: Locals, inputs: dict[str, Any], words: list[str], at: int, local: Locals
) -> tuple[str | None, int]:
    """A path that begins with the first of some words, and how far it goes, counted from `at`."""
    if words[:4] == ["JSON", ".", "stringify", "("]:
        path, behind = read_path(names, inputs, words[4:], 0, local)
        rest = words[4 + behind :]
        if path is not None and rest[:1] == [")"]:
            return path, at + 4 + behind + 1
        if path is not None and _INDENTED.match(" ".join(rest[:5])):
            return path, at + 4 + behind + 5
        return None, at
    guarded = _GUARDED.match(" ".join(words[:7]))
    if guarded is not None and guarded[1] not in local:
        path, behind = read_path(names, inputs, words[3:], 0, local)
        return (path, at + 7) if path is not None and behind == 3 else (None, at)
    return _named(names, inputs, words, at, local)


def _named(
    names: Locals, inputs: dict[str, Any], words: list[str], at: int, local: Locals
) -> tuple[str | None, int]:
    """A path that begins with the name of an input, a parameter or a variable."""
    first = words[0] if words else ""
    is_input = first not in local and names.get(first, "inputs" if first == "args" else "") == "inputs"
    known = "inputs" if is_input else local.get(first) or names.get(first)
    if known is None:
        return None, at
    end, fields = 1, ""
    words = ["." if word == "?." else word for word in words]  # what is looked up in null is null
    while words[end : end + 1] in (["."], ["["]):
        inner = words[end + 1] if end + 1 < len(words) else ""
        if words[end] == "." and is_plain_name(inner) and inner not in _NO_FIELDS:
            fields, end = f"{fields}.{inner}", end + 2
        elif words[end] == "[" and re.fullmatch(r"\d{1,9}", inner) and words[end + 2 : end + 3] == ["]"]:
            fields, end = f"{fields}[{inner}]", end + 3
        else:
            return None, at
    if words[end : end + 1] in (["("], ["`"]):
        return None, at
    if not is_input:
        return known + fields, at + end
    name = re.split(r"[.\[]", fields.removeprefix("."))[0] if fields.startswith(".") else ""
    if fields and not is_plain_name(name):
        return None, at
    inputs.setdefault(name or "args", {})
    return (f"inputs{fields}" if fields else "inputs.args"), at + end


def listed_path(script: ScriptWords, span: Span) -> Span | None:
    """The path of a list, without the way out for none that people write around it."""
    start, end = span
    if not (script.says(start, "(") and script.partner[start] == end - 1):
        return span
    start, end = start + 1, end - 1
    if script.says(end - 2, "[", "]") and script.says(end - 3, "||"):
        return start, end - 3
    if script.says(end - 2, "[", "]") and script.says(end - 3, "??"):
        return start, end - 3
    asked = next((at for at in range(start, end) if script.says(at, "?")), None)
    if asked is None or not script.says(end - 3, ":", "[", "]"):
        return None
    chosen = (asked + 1, end - 3)
    named, first = script.said(chosen), script.words[chosen[0]].text if chosen[1] > chosen[0] else ""
    condition = " ".join(script.said((start, asked)).split())
    return chosen if condition in (named, f"{first} && {named}") else None


def parameters(names: list[str], meant: tuple[str, ...]) -> Locals:
    return dict(zip(names, meant, strict=False))


def is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None


def escaped(text: str) -> str:
    return text.replace("{{", "\\{{")
