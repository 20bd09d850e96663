"""Comparisons that can never be meant: an object with text, text with a number, a word that is no choice.

Such an expression has a value (false), so nothing fails when it runs: `steps.ok.output == "stop"` compares an
object with text, is false whatever was answered, and the deployment it should hold back goes on.

Rules
* Only what is certain is refused: both sides are a literal, or a path into something whose kind is known.
* null may be compared with everything: it is what a skipped step gives.
* A loop's variable is known where the loop runs over a path and its name is bound once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from fanfold.recipe.checks.known_values import Look, with_variables
from fanfold.recipe.expressions.usage import Token, Usage, every_use, literal_text, read, tokens
from fanfold.recipe.language.known_outputs import (
    ANYTHING,
    Anything,
    Known,
    Number,
    ObjectOf,
    Text,
    Truth,
    described,
    part_of,
)
from fanfold.text.notes import quoted
from fanfold.text.spelling import nearest

_CONSTANTS = {"true": Truth(), "false": Truth()}
_AROUND = frozenset("(,?:&|![{")
"""Marks that may stand before an operand that is compared as a whole."""
_AFTER = frozenset("),?:&|]}")


class Mistake(Struct, frozen=True):
    """What is wrong with one comparison, and where."""

    message: str
    hint: str
    start: int
    end: int
    meant: str = ""
    """What to put in place of it, where that is certain."""


class _Operand(Struct, frozen=True):
    known: Known
    start: int
    end: int
    literal: str | None = None
    """Its text, when it is one that is written out."""
    path: str = ""


def impossible_comparisons(text: str, look: Look) -> Iterator[Mistake]:
    """Every comparison in an expression whose outcome does not depend on any value."""
    words, usages = tokens(text), read(text)
    resolve = with_variables(usages, look)
    yield from _missing_fields(usages, resolve)
    operands = _Operands(words, text, resolve)
    for at, sign, after in _signs(words):
        left = operands.ending(at)
        for right in operands.listed(after) if sign == "in" else [operands.starting(after)]:
            mistake = _judge(left, right, sign) if left is not None and right is not None else None
            if mistake is not None:
                yield mistake


def _judge(left: _Operand, right: _Operand, sign: str) -> Mistake | None:
    if isinstance(left.known, Anything) or isinstance(right.known, Anything):
        return None
    if type(left.known) is not type(right.known):
        return _of_two_kinds(left, right, sign)
    for word, choice in ((left, right), (right, left)):
        choices = choice.known.choices if isinstance(choice.known, Text) else ()
        if word.literal is not None and choice.literal is None and choices and word.literal not in choices:
            meant = nearest(word.literal, choices)
            hint = f"did you mean {quoted(meant)}?" if meant else "it is one of " + ", ".join(choices)
            return Mistake(f"{choice.path} is never {quoted(word.literal)}", hint, word.start, word.end)
    return None


def _of_two_kinds(left: _Operand, right: _Operand, sign: str) -> Mistake:
    what = "be equal" if sign in ("==", "!=", "in") else "be compared"
    message = f"{described(left.known)} and {described(right.known)} can never {what}"
    for one in (left, right):
        if isinstance(one.known, ObjectOf) and one.path:
            field = "decision" if "decision" in one.known.fields else next(iter(one.known.fields), "")
            hint = f"{one.path} is an object" + (f"; write {one.path}.{field}" if field else "")
            meant = f"{one.path}.{field}" if field == "decision" else ""
            return Mistake(message, hint, one.start, one.end, meant)
    number = next((one for one in (left, right) if isinstance(one.known, Number)), None)
    text = next((one for one in (left, right) if isinstance(one.known, Text)), None)
    if number and text and (text.literal or "").isdecimal():
        written = text.literal or ""
        return Mistake(message, f"write {written} without quotes", text.start, text.end, written)
    truth = next((one for one in (left, right) if isinstance(one.known, Truth)), None)
    if truth and text and (text.literal or "").lower() in ("true", "false"):
        written = (text.literal or "").lower()
        return Mistake(message, f"write {written} without quotes", text.start, text.end, written)
    hint = f"int({text.path}) makes a number of text" if number and text and text.path else ""
    return Mistake(message, hint, left.start, right.end)


def _missing_fields(usages: Sequence[Usage], look: Look) -> Iterator[Mistake]:
    """Fields that an item or a variable of a loop cannot have; paths of steps are judged with their edges."""
    for use in every_use(usages):
        known: Known = ANYTHING if use.name in ("inputs", "steps") else look(use.name, ())
        for i, part in enumerate(use.parts, 1):
            if isinstance(known, ObjectOf) and isinstance(part, str) and part not in known.fields:
                if not known.open:
                    meant = nearest(part, known.fields)
                    hint = f"did you mean {quoted(meant)}?" if meant else "it has " + ", ".join(known.fields)
                    yield Mistake(f"{use.name} has no field {quoted(part)}", hint, *use.spans[i])
                break
            known = part_of(known, (part,))


def _signs(words: Sequence[Token]) -> Iterator[tuple[int, str, int]]:
    """Each sign of comparison: the index of its first word, the sign, the index of what follows."""
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else None
        joined = following is not None and following.text == "=" and following.start == word.end
        if word.kind == "name" and word.text == "in":
            yield i, "in", i + 1
        elif word.kind == "mark" and word.text in "=!<>" and joined:
            yield i, word.text + "=", i + 2
        elif word.kind == "mark" and word.text in "<>":
            yield i, word.text, i + 1


class _Operands:
    def __init__(self, words: Sequence[Token], text: str, look: Look) -> None:
        self._words = words
        self._text = text
        self._look = look

    def starting(self, first: int) -> _Operand | None:
        """The operand that begins with this word and is compared as a whole."""
        found = self._read(first)
        if found is None:
            return None
        operand, after = found
        ended = after == len(self._words) or self._words[after].text in _AFTER
        return operand if ended else None

    def ending(self, sign: int) -> _Operand | None:
        """The operand that ends before this word."""
        first = sign
        while first > 0:
            word = self._words[first - 1]
            if word.text == "]":
                opening = self._opening(first - 1)
                if opening is None or self._words[opening - 1].kind not in ("name", "mark"):
                    return None
                first = opening
                continue
            if word.kind == "mark" and word.text != ".":
                if word.text not in _AROUND:
                    return None
                break
            first -= 1
        found = self._read(first)
        return found[0] if found is not None and found[1] == sign else None

    def listed(self, first: int) -> list[_Operand | None]:
        """The literals of a list, or nothing where it is no list of literals."""
        if first >= len(self._words) or self._words[first].text != "[":
            return []
        found: list[_Operand | None] = []
        at = first + 1
        while at < len(self._words) and self._words[at].text != "]":
            read_one = self._read(at)
            if read_one is None:
                return []
            found.append(read_one[0])
            at = read_one[1]
            if at < len(self._words) and self._words[at].text == ",":
                at += 1
        return found

    def _opening(self, closing: int) -> int | None:
        depth = 0
        for i in range(closing, 0, -1):
            depth += (self._words[i].text == "]") - (self._words[i].text == "[")
            if depth == 0:
                return i
        return None

    def _read(self, first: int) -> tuple[_Operand, int] | None:
        """A literal or a path that begins here, and the index after it."""
        if first >= len(self._words):
            return None
        word = self._words[first]
        if word.kind == "string" and word.text[0] in "\"'" and word.text[:3] not in ('"""', "'''"):
            literal = literal_text(word.text)
            known: Known = ANYTHING if literal is None else Text((literal,))
            return _Operand(known, word.start, word.end, literal), first + 1
        if word.kind == "number":
            return _Operand(Number(), word.start, word.end), first + 1
        if word.text in ("true", "false", "null"):
            return _Operand(_CONSTANTS.get(word.text, ANYTHING), word.start, word.end), first + 1
        return self._path(first) if word.kind == "name" else None

    def _path(self, first: int) -> tuple[_Operand, int]:
        parts: list[str | int] = []
        at = first + 1
        while at + 1 < len(self._words):
            mark, word = self._words[at], self._words[at + 1]
            closed = at + 2 < len(self._words) and self._words[at + 2].text == "]"
            if mark.text == "." and word.kind in ("name", "quoted"):
                parts.append(word.text.strip("`"))
                at += 2
            elif mark.text == "[" and closed and word.kind == "number" and word.text.isdecimal():
                parts.append(int(word.text))
                at += 3
            elif mark.text == "[" and closed and word.kind == "string":
                parts.append(literal_text(word.text) or "")
                at += 3
            else:
                break
        end = self._words[at - 1].end
        start = self._words[first].start
        known = self._look(self._words[first].text, tuple(parts))
        return _Operand(known, start, end, path=self._text[start:end]), at
