"""How the compiler speaks about one file: where problems go and how words are shown in messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from fanfold.text.diagnostics import Fix, Source, Span
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import JSON
from fanfold.text.report import Report
from fanfold.text.spelling import nearest
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar

MAX_SHOWN_CHARS = 60
MAX_EFFORT_FOR_HINTS = 20_000_000
"""Comparisons of letters spent on hints for one file; the nearest word costs words times letters squared."""


class Notes:
    """The report, seen from one file."""

    __slots__ = ("_effort", "report", "source")

    def __init__(self, report: Report, source: Source) -> None:
        self.report = report
        self.source = source
        self._effort = MAX_EFFORT_FOR_HINTS

    def error(self, code: str, message: str, at: Node | Span, hint: str = "", fix: Fix | None = None) -> None:
        self.report.error(code, message, self.source, span_of(at), hint, fix)

    def warning(
        self, code: str, message: str, at: Node | Span, hint: str = "", fix: Fix | None = None
    ) -> None:
        self.report.warning(code, message, self.source, span_of(at), hint, fix)

    def note(self, code: str, message: str, at: Node | Span) -> None:
        self.report.note(code, message, self.source, span_of(at))

    def did_you_mean(self, word: str, known: Collection[str]) -> str:
        """The hint to the nearest known word, or nothing."""
        found = self.nearest(word, known)
        return f"did you mean {quoted(found)}?" if found else ""

    def nearest(self, word: str, known: Collection[str]) -> str | None:
        """The known word that was probably meant; a hostile file soon gets no more answers."""
        self._effort -= len(known) * len(word) ** 2
        return nearest(word, known) if self._effort >= 0 else None

    def is_alias(self, node: Node) -> bool:
        """Whether an alias stands there, which the parser has reported and given no value."""
        return (
            isinstance(node, Scalar)
            and node.value is None
            and self.source.text[node.start : node.end][:1] == "*"
        )

    def fix(self, start: int, end: int, text: str) -> Fix:
        """Put `text` in place of what stands between two offsets."""
        return Fix(self.source.range(start, end), text)


def span_of(at: Node | Span) -> Span:
    return at if isinstance(at, tuple) else (at.start, at.end)


def quoted(text: str) -> str:
    """A word of the author's inside a message, cut when it is very long."""
    return json.dumps(shorten(text, MAX_SHOWN_CHARS), ensure_ascii=False)


def with_article(word: str) -> str:
    """`a step`, `an input`."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence has them.

    >>> listed(("run", "prompt", "steps"), "or")
    'run, prompt or steps'
    """
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def json_type(value: JSON) -> str:
    """The JSON Schema name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), ((list, tuple), "array")):
        if isinstance(value, kind):
            return name
    return "object"


def kind_of(node: Node) -> str:
    """What the author wrote, in the words of a message."""
    if isinstance(node, tree.Sequence):
        return "a list"
    if isinstance(node, tree.Mapping):
        return "a map"
    words = {"null": "empty", "string": "text", "boolean": "true or false", "integer": "an integer"}
    return words.get(json_type(node.value), "a number")
