"""Which names a CEL expression uses, and where it loops.

The CEL library parses, checks and evaluates, but does not tell which `steps.<id>` an expression needs, nor
bounds what its loops may cost. Both questions need only names, paths and loops, so that is what is read.

Rules
* Only expressions that the library has accepted are read. Precedence does not matter here: an expression
  is a bag of names with their paths, and of loops (the macros `map`, `filter`, `all`, `exists` …), each
  with what it runs over and what it repeats. Strings, comments and loop variables are never taken for
  references.
* Literals are kept only as what they weigh, in the units of `work`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

from msgspec import Struct

from fanfold.recipe.expressions.functions import NAMESPACES

MAX_DEPTH = 100
"""Brackets inside one another. The library allows 32 levels, so this is only a net."""
CHARS_PER_UNIT = 8

LOOPS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})
_CONSTANTS = frozenset({"true", "false", "null"})
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\(.)")
_UNUSUAL_ESCAPE = re.compile(r"""(?<!\\)(?:\\\\)*\\[^ntr\\"'`]""")
_LEXICON = r"""(?P<skip>\s+|//[^\n]*)
    |(?P<raw>(?:[rR][bB]?|[bB][rR])(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*'))
    |(?P<string>[bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
        |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<quoted>`[^`\n]*`)
    |(?P<mark>.)"""


@cache
def _token_pattern() -> re.Pattern[str]:
    """Compiled when the first expression is read: it takes milliseconds, and most recipes have none."""
    return re.compile(_LEXICON, re.VERBOSE | re.DOTALL)


class Use(Struct, frozen=True):
    """A name and the path after it; `spans` holds the place of the name and of each part."""

    name: str
    parts: tuple[str | int, ...]
    spans: tuple[tuple[int, int], ...]


class UsedConstant(Struct, frozen=True):
    """A literal and the units it weighs."""

    units: int


class UsedCall(Struct, frozen=True):
    """A function: what it is applied to, and what it is given."""

    name: str
    of: tuple[Usage, ...]
    given: tuple[Usage, ...]
    literal: str | int | None = None
    """The first argument, where it is written out: what a `split` looks for, how far a range goes."""
    given_at: tuple[int, int] = (0, 0)
    """Where in the text its arguments stand."""


class UsedLoop(Struct, frozen=True):
    """A macro: `over` is the receiver, `variable` is bound in `body`."""

    macro: str
    over: tuple[Usage, ...]
    variable: str
    body: tuple[Usage, ...]


class Selection(Struct, frozen=True):
    """A part of something computed, such as `inputs.all[inputs.which]`; what it gives is not known."""

    of: tuple[Usage, ...]


Usage: TypeAlias = Use | UsedConstant | UsedCall | UsedLoop | Selection


class Token(Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """The words of an expression without white space and comments."""
    return [
        Token(m.lastgroup or "", m.group(), m.start(), m.end())
        for m in _token_pattern().finditer(text)
        if m.lastgroup != "skip"
    ]


def read(text: str) -> tuple[Usage, ...]:
    """The names and loops of an expression that the library has accepted."""
    return tuple(_UsageReader(tokens(text)).until_closed(0))


def every_use(usages: Sequence[Usage]) -> Iterator[Use]:
    """Every use of a name, loop variables too."""
    for usage in usages:
        if isinstance(usage, Use):
            yield usage
        elif isinstance(usage, UsedLoop):
            yield from every_use((*usage.over, *usage.body))
        elif isinstance(usage, UsedCall):
            yield from every_use((*usage.of, *usage.given))
        elif isinstance(usage, Selection):
            yield from every_use(usage.of)


def free_uses(usages: Sequence[Usage], bound: frozenset[str] = frozenset()) -> Iterator[Use]:
    """Every use of a name that is not a loop variable there, in reading order."""
    for usage in usages:
        if isinstance(usage, Use):
            if usage.name not in bound:
                yield usage
        elif isinstance(usage, UsedLoop):
            yield from free_uses(usage.over, bound)
            yield from free_uses(usage.body, bound | {usage.variable})
        elif isinstance(usage, UsedCall):
            yield from free_uses(usage.of, bound)
            yield from free_uses(usage.given, bound)
        elif isinstance(usage, Selection):
            yield from free_uses(usage.of, bound)


def literal_text(quoted: str) -> str | None:
    """What a text in single quotation marks stands for; None where only the library knows."""
    inside = quoted[1:-1]
    if _UNUSUAL_ESCAPE.search(inside):
        return None
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), inside)


class _UsageReader:
    """Recursive descent over operands; operators and commas only separate them."""

    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._at = 0

    def until_closed(self, depth: int) -> list[Usage]:
        """Everything up to the bracket that closes this level, which is consumed."""
        if depth > MAX_DEPTH:
            raise RecursionError("the expression nests too deeply")
        found: list[Usage] = []
        while self._at < len(self._words):
            if self._peek() in (")", "]", "}"):
                self._at += 1
                break
            found += self._operand(depth)
        return found

    def _peek(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._words[i].text if i < len(self._words) else ""

    def _take(self) -> Token:
        self._at += 1
        return self._words[self._at - 1]

    def _operand(self, depth: int) -> list[Usage]:
        word = self._take()
        if word.text == "." and self._kind() == "name":  # `.name` is the same name from the outermost scope
            word = self._take()
        if word.kind == "name" and word.text != "in":
            if word.text in _CONSTANTS:
                return [UsedConstant(1)]
            if self._peek() == "(":
                self._at += 1
                return self._postfix([self._call(word.text, [], depth)], depth)
            if word.text in NAMESPACES and self._peek() == "." and self._peek(2) == "(":
                name = f"{word.text}.{self._peek(1)}"
                self._at += 3
                return self._postfix([self._call(name, [], depth)], depth)
            return self._path(word, depth)
        if word.kind in ("string", "raw", "number"):
            return self._postfix([UsedConstant(1 + len(word.text) // CHARS_PER_UNIT)], depth)
        if word.text == "(":
            return self._postfix(self.until_closed(depth + 1), depth)
        if word.text in ("[", "{"):  # a literal of its own, so that `[a]` is not taken for `a`
            return self._postfix([UsedConstant(1), *self.until_closed(depth + 1)], depth)
        return []

    def _call(self, name: str, of: list[Usage], depth: int) -> UsedCall:
        """A call whose opening bracket was taken."""
        literal = self._literal_key(0) if self._peek(1) in (")", ",") else None
        start = self._words[self._at - 1].end
        given = tuple(self.until_closed(depth + 1))
        return UsedCall(name, tuple(of), given, literal, (start, self._words[self._at - 1].start))

    def _kind(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._words[i].kind if i < len(self._words) else ""

    def _path(self, root: Token, depth: int) -> list[Usage]:
        """A name and what selects from it, as far as it can be known without evaluating."""
        parts: list[str | int] = []
        spans = [(root.start, root.end)]
        while True:
            if self._peek() == "." and self._kind(1) in ("name", "quoted") and self._peek(2) != "(":
                self._at += 1
                word = self._take()
                parts.append(word.text.strip("`"))
            elif self._peek() == "[" and self._peek(2) == "]" and self._literal_key(1) is not None:
                key = self._literal_key(1)
                assert key is not None
                parts.append(key)
                self._at += 1
                word = self._take()
                self._at += 1
            else:
                return self._postfix([Use(root.text, tuple(parts), tuple(spans))], depth)
            spans.append((word.start, word.end))

    def _literal_key(self, ahead: int) -> str | int | None:
        kind, text = self._kind(ahead), self._peek(ahead)
        if kind == "number" and text.isdecimal() and len(text) < 10:
            return int(text)
        if kind == "string" and text[0] in "\"'" and text[:3] not in ('"""', "'''"):
            return literal_text(text)
        return None

    def _postfix(self, found: list[Usage], depth: int) -> list[Usage]:
        """Calls, macros, and selections that depend on values."""
        while True:
            if self._peek() in ("[", "{"):
                self._at += 1
                found = [Selection((*found, *self.until_closed(depth + 1)))]
            elif self._peek() == "." and self._peek(2) == "(":
                macro = self._peek(1)
                self._at += 3
                if macro in LOOPS and self._kind() == "name" and self._peek(1) == ",":
                    variable = self._take().text
                    found = [UsedLoop(macro, tuple(found), variable, tuple(self.until_closed(depth + 1)))]
                else:
                    found = [self._call(macro, found, depth)]
            elif self._peek() == "." and self._kind(1) in ("name", "quoted"):
                self._at += 2
                found = [Selection(tuple(found))]
            else:
                return found
