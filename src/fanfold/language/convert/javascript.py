"""The tokens of a JavaScript file, with positions: enough to read calls and plain data without running it.

Rules
* Comments are not tokens. A string, a template with its content, and a regular expression are one token each.
* A text without an end is refused with its line, so that the text after it is not misread.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fanfold.errors import AuthorError
from fanfold.language.convert.source import ForeignFile

MAX_NESTING = 20
_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|\A#![^\n]*)+", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$]*")
_NUMBER = re.compile(r"0[xXbBoO][\w]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?n?")
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_REGEX = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.){0,200}\]){1,200}/\w*")
_MARK = re.compile(r"=>|\?\.|\.\.\.|[=!]==?|&&|\|\||\?\?|[-+*/%]=|\+\+|--|[^\s\w]")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)
_ESCAPE = r"(?s)\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r\n|.))"
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "\r\n": ""}
_BEFORE_A_VALUE = frozenset("return typeof await case in of delete void throw new else do yield".split())
NO_LITERAL = object()
Constant: TypeAlias = Callable[[list[str]], Any]
"""Returns the value of a name with its fields, as tokens: `LENSES`, or `LIMITS . most`; or `NO_LITERAL`."""


class JsWord(NamedTuple):
    kind: str
    """`name`, `text`, `template`, `number`, `regex` or `mark`."""
    start: int
    end: int
    text: str


def words_of(text: str, start: int = 0, *, inside: int = 0) -> list[JsWord]:
    """Return all tokens; with `inside`, those of a placeholder, up to and including its closing brace.

    A text without an end raises `ValueError` with its start and the reason.
    """
    found: list[JsWord] = []
    at, open_braces = start, 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space is not None else at
        if at >= len(text):
            if inside:
                raise ValueError(start, "a placeholder of a template has no end")
            return found
        word = _word(text, at, found[-1] if found else None, inside)
        found.append(word)
        at = word.end
        if word.kind == "mark" and word.text in "{}":
            open_braces += 1 if word.text == "{" else -1
            if inside and open_braces < 0:
                return found


def _word(text: str, at: int, last: JsWord | None, inside: int) -> JsWord:
    char = text[at]
    if char in "'\"":
        if (string := _STRING.match(text, at)) is None:
            raise ValueError(at, "a text is not closed")
        return JsWord("text", at, string.end(), string[0])
    if char == "`":
        return _template(text, at, inside)
    if text.startswith("/*", at):
        raise ValueError(at, "a comment has no end")
    for kind, pattern in (("name", _NAME), ("number", _NUMBER)):
        if (found := pattern.match(text, at)) is not None:
            return JsWord(kind, at, found.end(), found[0])
    if char == "/" and _may_begin(last) and (regex := _REGEX.match(text, at)) is not None:
        return JsWord("regex", at, regex.end(), regex[0])
    mark = _MARK.match(text, at)
    end = mark.end() if mark is not None else at + 1
    return JsWord("mark", at, end, text[at:end])


def _may_begin(last: JsWord | None) -> bool:
    """Return whether a value can follow this token, so that a slash starts a regular expression."""
    if last is None or last.text in _BEFORE_A_VALUE:
        return True
    return last.kind == "mark" and last.text not in (")", "]", "}", "++", "--")


def _template(text: str, start: int, inside: int) -> JsWord:
    if inside >= MAX_NESTING:
        raise ValueError(start, "templates are nested too deeply")
    at = start + 1
    while True:
        plain = _TEMPLATE.match(text, at)
        at = plain.end() if plain is not None else at
        if at >= len(text) or text[at] == "\\":
            raise ValueError(start, "a template has no end")
        if text[at] == "`":
            return JsWord("template", start, at + 1, text[start : at + 1])
        at = words_of(text, at + 2, inside=inside + 1)[-1].end


def holes_of(text: str, template: JsWord) -> list[str | tuple[int, int]]:
    """Return the parts of a template: texts, and the positions of the placeholders between them."""
    parts: list[str | tuple[int, int]] = []
    at = template.start + 1
    while at < template.end - 1:
        plain = _TEMPLATE.match(text, at, template.end - 1)
        end = plain.end() if plain is not None else at
        if end > at:
            parts.append(unescaped(text[at:end]))
        if end >= template.end - 1:
            break
        closing = words_of(text, end + 2, inside=1)[-1]
        parts.append((end + 2, closing.start))
        at = closing.end
    return parts


def unescaped(text: str) -> str:
    """Return the value of a quoted text."""

    def one(found: re.Match[str]) -> str:
        if (code := found[1] or found[2] or found[3]) is None:
            return _ESCAPED.get(found[4], found[4])
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"

    return re.sub(_ESCAPE, one, text)


def literal(
    text: str, words: list[JsWord], at: int, constant: Constant = lambda _: NO_LITERAL, depth: int = 0
) -> tuple[Any, int]:
    """Return the plain data that starts at a token, and the index after it; `NO_LITERAL` for anything else.

    `constant` returns the value of a name and its fields. Texts joined with `+` are one text.
    """
    value, end = _one_literal(text, words, at, constant, depth)
    if isinstance(value, list) and [word.text for word in words[end : end + 3]] == [".", "join", "("]:
        sign, behind = _one_literal(text, words, end + 3, constant, depth)
        if not isinstance(sign, str) or not all(isinstance(item, str) for item in value):
            return NO_LITERAL, at
        value, end = sign.join(value), behind + 1
    while isinstance(value, str) and end + 1 < len(words) and words[end].text == "+":
        more, behind = _one_literal(text, words, end + 1, constant, depth)
        if not isinstance(more, str | int) or isinstance(more, bool):
            break
        value, end = f"{value}{more}", behind
    return value, end


def _one_literal(text: str, words: list[JsWord], at: int, constant: Constant, depth: int) -> tuple[Any, int]:
    if (word := words[at] if at < len(words) and depth < MAX_NESTING else None) is None:
        return NO_LITERAL, at
    if word.kind == "text":
        return unescaped(word.text[1:-1]), at + 1
    if word.kind == "template":
        parts = [
            part if isinstance(part, str) else constant_text(text[part[0] : part[1]], constant)
            for part in holes_of(text, word)
        ]
        whole = all(isinstance(part, str) for part in parts)
        return ("".join(map(str, parts)), at + 1) if whole else (NO_LITERAL, at)
    if word.kind == "number" or (word.text == "-" and at + 1 < len(words) and words[at + 1].kind == "number"):
        end = at + 1 if word.kind == "number" else at + 2
        number = "".join(word.text for word in words[at:end])
        try:
            return (int(number, 10) if re.fullmatch(r"-?\d{1,18}", number) else float(number)), end
        except ValueError:
            return NO_LITERAL, at
    if word.text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word.text], at + 1
    if word.text in "[{" and word.kind == "mark":
        return _collection(text, words, at, constant, depth)
    if word.kind == "name":
        end = at + 1
        while [word.text for word in words[end : end + 1]] == ["."] and words[end + 1 : end + 2]:
            if words[end + 1].kind != "name" or [word.text for word in words[end + 2 : end + 3]] == ["("]:
                break
            end += 2
        if words[end : end + 1] and words[end].text in ("(", "[", "?.", "=>"):
            return NO_LITERAL, at
        value = constant([word.text for word in words[at:end]])
        return (value, end) if value is not NO_LITERAL else (NO_LITERAL, at)
    return NO_LITERAL, at


def constant_text(source: str, constant: Constant) -> Any:
    """Return the text of a placeholder that has only constants, or `NO_LITERAL`."""
    words = words_of(source)
    value, end = literal(source, words, 0, constant)
    plain = isinstance(value, str | int | float) and not isinstance(value, bool) and end == len(words)
    return str(value) if plain else NO_LITERAL


def _collection(text: str, words: list[JsWord], at: int, constant: Constant, depth: int) -> tuple[Any, int]:
    is_list, start = words[at].text == "[", at
    closing = "]" if is_list else "}"
    items: list[Any] = []
    fields: dict[str, Any] = {}
    at += 1
    while at < len(words) and words[at].text != closing:
        key = ""
        if not is_list:
            if words[at].kind not in ("name", "text") or words[at + 1 : at + 2][0:1] == []:
                return NO_LITERAL, start
            word = words[at]
            key = unescaped(word.text[1:-1]) if word.kind == "text" else word.text
            if words[at + 1].text != ":" or key in fields:
                return NO_LITERAL, start
            at += 2
        value, at = literal(text, words, at, constant, depth + 1)
        if value is NO_LITERAL or at >= len(words) or words[at].text not in (",", closing):
            return NO_LITERAL, start
        items.append(value)
        fields[key] = value
        at += words[at].text == ","
    if at >= len(words):
        return NO_LITERAL, start
    return (items if is_list else fields), at + 1


# -----------------------------------------------------------------------------------------------------------
# A script as tokens, each converted or not: the unconverted ones are listed by line at the end.
#
# So no loss can be overlooked: a reader marks the tokens that it converted, and the rest is listed
# automatically.

Span = tuple[int, int]
"""Indexes of tokens: the first, and the one after the last."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SILENT = frozenset("{}()[];,")
"""Tokens without a meaning of their own: the content around them is listed itself."""
_BEFORE_AN_OBJECT = frozenset("= ( [ , : ? || && ?? ... return throw const let var".split())
MAX_SHOWN = 100
_CLOSED_BEFORE = frozenset(")}];,")
_MAX_GAP = 3
"""Converted tokens between lost ones that are shown with them."""
MAX_DEPTH = 100


class ScriptWords:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.text = source.text
        self._lines = [0, *(at + 1 for at, char in enumerate(self.text) if char == "\n")]
        try:
            self.words: list[JsWord] = words_of(self.text)
        except ValueError as error:
            raise self._unreadable(*error.args) from None
        self.taken = bytearray(len(self.words))
        # The index of each opening bracket with the index of its closing bracket.
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
        self.partner = found

    def _unreadable(self, place: int, why: object) -> AuthorError:
        return AuthorError("convert.unreadable", f"{self.source.file}:{self.line_of(place)}: {why}")

    def says(self, at: int, *texts: str) -> bool:
        """Return whether these tokens follow from here."""
        found = self.words[at : at + len(texts)]
        is_code = all(word.kind in ("mark", "name") for word in found)
        return is_code and [word.text for word in found] == list(texts)

    def is_name(self, at: int) -> bool:
        return at < len(self.words) and self.words[at].kind == "name"

    def line_of(self, place: int) -> int:
        return bisect_right(self._lines, place)

    def line(self, at: int) -> int:
        return self.line_of(self.words[at].start)

    def source_of(self, span: Span) -> str:
        """Return the source of some tokens."""
        start, end = span
        return self.text[self.words[start].start : self.words[end - 1].end] if end > start else ""

    def take(self, *spans: Span) -> None:
        """Mark tokens that are in the recipe or already listed."""
        for start, end in spans:
            self.taken[start:end] = b"\1" * (end - start)

    def parts(self, opening: int) -> list[Span]:
        """Return the parts between a bracket and its partner, separated by commas; the commas are marked."""
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
        """List every statement with unmarked tokens."""
        statements: list[list[int]] = []
        number, open_brackets = 0, 0
        last = -1
        objects: set[int] = set()
        """Braces of objects, which do not separate statements."""
        for at, word in enumerate(self.words):
            new_line = at > 0 and self.line(at) > self.line(at - 1)
            separated = self.words[at - 1].text in (";", "{", "}") and at - 1 not in objects
            ended = not open_brackets and (new_line or separated)
            if at and (ended or (new_line and self.taken[at - 1])):
                number += 1
            if (
                word.kind == "mark"
                and word.text == "{"
                and at
                and self.words[at - 1].text in _BEFORE_AN_OBJECT
            ):
                objects |= {at, self.partner[at]}
            if word.kind == "mark" and (word.text in "()[]" or at in objects):
                open_brackets += 1 if word.text in "([{" else -1
            if not self.taken[at]:
                if number != last:
                    statements.append([])
                    last = number
                statements[-1].append(at)
        for found in statements:
            if any(self.words[at].text not in _SILENT for at in found):
                self.lose(*self._shown(found), "JavaScript is not run")

    def _shown(self, unmarked: list[int]) -> tuple[int, str]:
        """Return the first token with a meaning, and the source; an ellipsis replaces what was converted."""
        pieces: list[list[int]] = []
        for at in unmarked:
            if not pieces or at - pieces[-1][-1] > _MAX_GAP:
                pieces.append([])
            pieces[-1].append(at)
        clear = [piece for piece in pieces if any(self.words[at].text not in _SILENT for at in piece)]
        first = next(at for at in clear[0] if self.words[at].text not in _CLOSED_BEFORE)
        starts = [first, *(piece[0] for piece in clear[1:])]
        texts = [self.source_of((at, piece[-1] + 1)) for at, piece in zip(starts, clear, strict=True)]
        return first, " … ".join(texts)


# -----------------------------------------------------------------------------------------------------------
# Paths in a workflow script: names with fields, converted to the notation of recipes.

Locals: TypeAlias = dict[str, str]
"""Parameters of a function, and their paths in a recipe."""

_NO_FIELDS = frozenset({"length", "size"})
"""Properties of every text and list in JavaScript that a path does not have."""
RESERVED = frozenset({"item", "index", "inputs", "steps", "iteration", "feedback", "output", "digest"})
_GUARDED = r"(?a)\( (\w+) && \1 \. \w+ \)\Z"
_CLOSED = r"(?:, null , \d+ )?\)"


def read_path(
    names: Locals, inputs: dict[str, Any], words: list[str], at: int, local: Locals
) -> tuple[str | None, int]:
    """Return a path that starts with the first of some tokens, and its end, counted from `at`."""
    if words[:4] == ["JSON", ".", "stringify", "("]:
        path, behind = read_path(names, inputs, words[4:], 0, local)
        rest = words[4 + behind :]
        closed = re.match(_CLOSED, " ".join(rest[:5]))
        if path is None or closed is None:
            return None, at
        return path, at + 4 + behind + len(closed[0].split())
    if (guarded := re.match(_GUARDED, " ".join(words[:7]))) is not None and guarded[1] not in local:
        path, behind = read_path(names, inputs, words[3:], 0, local)
        return (path, at + 7) if path is not None and behind == 3 else (None, at)
    # A path that starts with the name of an input, a parameter or a variable.
    first = words[0] if words else ""
    is_input = first not in local and names.get(first, "inputs" if first == "args" else "") == "inputs"
    if (known := "inputs" if is_input else local.get(first) or names.get(first)) is None:
        return None, at
    end, fields = 1, ""
    words = ["." if word == "?." else word for word in words]  # a field of null is null
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
    """Return the path of a list without the fallback for an empty list around it."""
    start, end = span
    if not (script.says(start, "(") and script.partner[start] == end - 1):
        return span
    start, end = start + 1, end - 1
    if script.says(end - 3, "||", "[", "]") or script.says(end - 3, "??", "[", "]"):
        return start, end - 3
    asked = next((at for at in range(start, end) if script.says(at, "?")), None)
    if asked is None or not script.says(end - 3, ":", "[", "]"):
        return None
    chosen = (asked + 1, end - 3)
    named, first = script.source_of(chosen), script.words[chosen[0]].text if chosen[1] > chosen[0] else ""
    condition = " ".join(script.source_of((start, asked)).split())
    return chosen if condition in (named, f"{first} && {named}") else None


def parameters(names: list[str], meant: tuple[str, ...]) -> Locals:
    return dict(zip(names, meant, strict=False))


def is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None
