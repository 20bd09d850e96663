"""The words of a JavaScript file, with their places: enough to read calls and plain data, and nothing is run.

Rules
* Comments are no words; a string, a template with all that stands in it, a regular expression are one each.
* A text that has no end is refused with its line, so that nothing behind it is taken for what it is not.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MAX_NESTING = 20
_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|\A#![^\n]*)+", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$]*")
_NUMBER = re.compile(r"0[xXbBoO][\w]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?n?")
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_REGEX = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.){0,200}\]){1,200}/\w*")
_MARK = re.compile(r"=>|\?\.|\.\.\.|[=!]==?|&&|\|\||\?\?|[-+*/%]=|\+\+|--|[^\s\w]")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r\n|.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "\r\n": ""}
_BEFORE_A_VALUE = frozenset("return typeof await case in of delete void throw new else do yield".split())
NO_LITERAL = object()


class Unreadable(ValueError):
    """Where a text begins that does not end."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


class JsWord(NamedTuple):
    kind: str
    """`name`, `text`, `template`, `number`, `regex` or `mark`."""
    start: int
    end: int
    text: str


def words_of(text: str, start: int = 0, *, inside: int = 0) -> list[JsWord]:
    """All words; `inside` a hole of a template, those up to the brace that closes it, which is the last."""
    found: list[JsWord] = []
    at, open_braces = start, 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space is not None else at
        if at >= len(text):
            if inside:
                raise Unreadable(start, "a hole of a template is not closed")
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
        string = _STRING.match(text, at)
        if string is None:
            raise Unreadable(at, "a text is not closed")
        return JsWord("text", at, string.end(), string[0])
    if char == "`":
        return _template(text, at, inside)
    if text.startswith("/*", at):
        raise Unreadable(at, "a comment is not closed")
    for kind, pattern in (("name", _NAME), ("number", _NUMBER)):
        if (found := pattern.match(text, at)) is not None:
            return JsWord(kind, at, found.end(), found[0])
    if char == "/" and _may_begin(last) and (regex := _REGEX.match(text, at)) is not None:
        return JsWord("regex", at, regex.end(), regex[0])
    mark = _MARK.match(text, at)
    end = mark.end() if mark is not None else at + 1
    return JsWord("mark", at, end, text[at:end])


def _may_begin(last: JsWord | None) -> bool:
    """Whether a value may stand behind this word, so that a stroke begins one."""
    if last is None or last.text in _BEFORE_A_VALUE:
        return True
    return last.kind == "mark" and last.text not in (")", "]", "}", "++", "--")


def _template(text: str, start: int, inside: int) -> JsWord:
    if inside >= MAX_NESTING:
        raise Unreadable(start, "templates stand in templates too deep")
    at = start + 1
    while True:
        plain = _TEMPLATE.match(text, at)
        at = plain.end() if plain is not None else at
        if at >= len(text) or text[at] == "\\":
            raise Unreadable(start, "a template is not closed")
        if text[at] == "`":
            return JsWord("template", start, at + 1, text[start : at + 1])
        at = words_of(text, at + 2, inside=inside + 1)[-1].end


def holes_of(text: str, template: JsWord) -> list[str | tuple[int, int]]:
    """The parts of a template: texts, and where the holes between them begin and end."""
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
    """What a text in quotes says."""

    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code is None:
            return _ESCAPED.get(found[4], found[4])
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"

    return _ESCAPE.sub(one, text)


def literal(text: str, words: list[JsWord], at: int, depth: int = 0) -> tuple[Any, int]:
    """The plain data that begins at a word, and the index behind it; `NO_LITERAL` for anything else."""
    word = words[at] if at < len(words) and depth < MAX_NESTING else None
    if word is None:
        return NO_LITERAL, at
    if word.kind == "text":
        return unescaped(word.text[1:-1]), at + 1
    if word.kind == "template":
        parts = holes_of(text, word)
        return (
            ("".join(map(str, parts)), at + 1)
            if all(isinstance(part, str) for part in parts)
            else (NO_LITERAL, at)
        )
    if word.kind == "number" or (word.text == "-" and at + 1 < len(words) and words[at + 1].kind == "number"):
        end = at + 1 if word.kind == "number" else at + 2
        return _number("".join(one.text for one in words[at:end])), end
    if word.text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word.text], at + 1
    if word.text in "[{" and word.kind == "mark":
        return _collection(text, words, at, depth)
    return NO_LITERAL, at


def _number(said: str) -> Any:
    try:
        return int(said, 10) if re.fullmatch(r"-?\d{1,18}", said) else float(said)
    except ValueError:
        return NO_LITERAL


def _collection(text: str, words: list[JsWord], at: int, depth: int) -> tuple[Any, int]:
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
        value, at = literal(text, words, at, depth + 1)
        if value is NO_LITERAL or at >= len(words) or words[at].text not in (",", closing):
            return NO_LITERAL, start
        items.append(value)
        fields[key] = value
        at += words[at].text == ","
    if at >= len(words):
        return NO_LITERAL, start
    return (items if is_list else fields), at + 1
