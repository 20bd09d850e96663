"""A script as words, each carried over or not: what nobody took is listed by its line in the end.

This is what makes losses impossible to overlook: a reader marks what it understood, and has to do nothing
about the rest.
"""

from __future__ import annotations

from bisect import bisect_right

from fanfold.errors import AuthorError
from fanfold.recipe.conversion.javascript import JsWord, Unreadable, words_of
from fanfold.recipe.conversion.source import ForeignFile

Span = tuple[int, int]
"""Indexes of words: the first, and the one behind the last."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SILENT = frozenset("{}()[];,")
"""Words that say nothing alone: what they close or part is listed itself."""
MAX_SHOWN = 100
MAX_DEPTH = 100


class ScriptWords:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.text = source.text
        self._lines = [0, *(at + 1 for at, char in enumerate(self.text) if char == "\n")]
        try:
            self.words: list[JsWord] = words_of(self.text)
        except Unreadable as error:
            raise self._unreadable(error.at, error) from None
        self._taken = bytearray(len(self.words))
        self.partner = self._pairs()

    def _pairs(self) -> dict[int, int]:
        """Each opening bracket's index, and that of the one which closes it."""
        opened: list[int] = []
        found: dict[int, int] = {}
        for at, word in enumerate(self.words):
            if word.kind != "mark":
                continue
            if word.text in _CLOSING:
                opened.append(at)
                if len(opened) > MAX_DEPTH:
                    raise self._unreadable(word.start, f"more than {MAX_DEPTH} brackets are open")
            elif word.text in ")]}":
                start = opened.pop() if opened else -1
                if start < 0 or _CLOSING[self.words[start].text] != word.text:
                    raise self._unreadable(word.start, f"{word.text} closes nothing")
                found[start] = at
        if opened:
            last = self.words[opened[-1]]
            raise self._unreadable(last.start, f"{last.text} is not closed")
        return found

    def _unreadable(self, place: int, why: object) -> AuthorError:
        return AuthorError("convert.unreadable", f"{self.source.file}:{self.line_of(place)}: {why}")

    def says(self, at: int, *texts: str) -> bool:
        """Whether these words follow one another from here on."""
        found = self.words[at : at + len(texts)]
        return [word.text for word in found] == list(texts) and all(
            word.kind in ("mark", "name") for word in found
        )

    def is_name(self, at: int) -> bool:
        return at < len(self.words) and self.words[at].kind == "name"

    def line_of(self, place: int) -> int:
        return bisect_right(self._lines, place)

    def line(self, at: int) -> int:
        return self.line_of(self.words[at].start)

    def said(self, span: Span) -> str:
        """The source of some words."""
        start, end = span
        return self.text[self.words[start].start : self.words[end - 1].end] if end > start else ""

    def take(self, *spans: Span) -> None:
        """These words are in the recipe, or listed already."""
        for start, end in spans:
            self._taken[start:end] = b"\1" * (end - start)

    def is_taken(self, at: int) -> bool:
        return bool(self._taken[at])

    def parts(self, opening: int) -> list[Span]:
        """What stands between a bracket and its partner, parted by commas; the commas are taken."""
        end = self.partner[opening]
        found: list[Span] = []
        at = start = opening + 1
        while at < end:
            if self.says(at, ","):
                found.append((start, at))
                start = at + 1
            at = self.partner.get(at, at) + 1
        return [*found, (start, end)] if end > start else found

    def lose(self, at: int, what: str, why: str) -> None:
        self.source.lose(self.line(at), " ".join(what.split())[:MAX_SHOWN], why)

    def lose_rest(self) -> None:
        """List every line with words that nobody took."""
        lines: dict[int, list[int]] = {}
        for at in range(len(self.words)):
            if not self._taken[at]:
                lines.setdefault(self.line(at), []).append(at)
        for found in lines.values():
            if any(self.words[at].text not in _SILENT for at in found):
                first, last = self.words[found[0]], self.words[found[-1]]
                self.lose(found[0], self.text[first.start : last.end].split("\n")[0], "JavaScript is not run")
