"""Front matter: the `---` block of keys at the top of a markdown file.

This is deliberately not YAML. People write such blocks by hand and rarely quote (`description: Use when:
tests fail`), which a YAML parser refuses; and agents must not depend on the recipe layer. Read are
`key: text`, quoted text, numbers and booleans, `[a, b]`, indented `- item` lists, `|` and `>` blocks.
Anything nested deeper is kept as text: the caller does not need it.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"([A-Za-z_][\w-]*)\s*:(?:\s+|$)(.*)")
_NUMBER = re.compile(r"-?\d{1,15}\Z")
MAX_KEYS = 100


class FrontMatterError(Exception):
    """The block is missing or broken; `line` is 1-based."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_front_matter(text: str) -> tuple[dict[str, object], str]:
    """The keys and the text below them.

    >>> read_front_matter("---\\nname: reader\\ntools: [Read, Grep]\\n---\\nLook.")
    ({'name': 'reader', 'tools': ['Read', 'Grep']}, 'Look.')
    """
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise FrontMatterError('the file must begin with a "---" line', 1)
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise FrontMatterError('the front matter is not closed by a "---" line', len(lines))
    return _read_block(lines, end), "\n".join(lines[end + 1 :])


def _read_block(lines: list[str], end: int) -> dict[str, object]:
    values: dict[str, object] = {}
    at = 1
    while at < end:
        line = lines[at]
        if not line.strip() or line.lstrip().startswith("#"):
            at += 1
            continue
        found = _KEY.match(line)
        if found is None:
            raise FrontMatterError('expected "key: value"', at + 1)
        key, rest = found[1], found[2].strip()
        if key in values:
            raise FrontMatterError(f'"{key}" is given twice', at + 1)
        if len(values) == MAX_KEYS:
            raise FrontMatterError(f"more than {MAX_KEYS} keys", at + 1)
        below = at + 1
        while below < end and (not lines[below].strip() or lines[below][:1] in " \t-"):
            below += 1
        values[key] = _value(rest, lines[at + 1 : below])
        at = below
    return values


def _value(rest: str, below: list[str]) -> object:
    if rest[:1] in ("|", ">") and len(rest) <= 2:
        return _block(below, " " if rest[0] == ">" else "\n")
    items = [line.strip() for line in below if line.strip()]
    if not rest and items and all(item.startswith("-") for item in items):
        return [_scalar(item[1:].strip()) for item in items]
    if rest.startswith("[") and rest.endswith("]"):
        return [_scalar(word.strip()) for word in rest[1:-1].split(",") if word.strip()]
    return _scalar(" ".join([rest, *items]).strip())


def _block(lines: list[str], joint: str) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return joint.join(line[margin:] for line in lines).strip()


def _scalar(text: str) -> object:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1]
        return inner.replace("\\n", "\n").replace('\\"', '"') if text[0] == '"' else inner.replace("''", "'")
    if _NUMBER.match(text):
        return int(text)
    return {"true": True, "false": False}.get(text, text)
