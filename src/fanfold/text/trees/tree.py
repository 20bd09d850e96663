"""The nodes of a parsed recipe: values that remember where they stand.

Offsets count characters of `Source.text`; ends are exclusive. Nodes are slotted and built once by the
parser; nothing changes them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from fanfold.text.json_value import JSON
from fanfold.text.trees.scalars import Pieces, Value, character_map


class Scalar:
    """A single value. `text` is what was written (quotes and folding resolved), `value` what it means."""

    __slots__ = ("_limit", "_pieces", "_source", "end", "start", "style", "text", "value")

    def __init__(self, value: Value, text: str, start: int, end: int, style: str, source: str) -> None:
        self.value = value
        self.text = text
        self.start = start
        self.style = style
        """`""` plain, `'` and `"` quoted, `|` literal, `>` folded."""
        self._source = source
        self._limit = end
        self._pieces: Pieces | None = None
        if style in ("|", ">"):  # libyaml ends these after the blank lines that follow
            end = start + len(source[start:end].rstrip())
        self.end = end

    def at(self, i: int) -> int:
        """The source offset of the `i`-th character of `text`; of its end for `i == len(text)`."""
        return self.span(i, i)[0]

    def span(self, i: int, j: int) -> tuple[int, int]:
        """The source range that characters `i` up to `j` of `text` were written in."""
        pieces = self._characters()
        i = min(max(i, 0), len(pieces))
        j = min(max(j, i), len(pieces))
        if not pieces:
            inside = self.start + (self.style in ("'", '"'))
            return inside, inside
        start = pieces[i][1] if i < len(pieces) else pieces[-1][2]
        return start, (pieces[j - 1][2] if j > i else start)

    def _characters(self) -> Pieces:
        if self._pieces is None:
            found = character_map(self._source, self.start, self._limit, self.style, self.text)
            self._pieces = found
        return self._pieces

    def __repr__(self) -> str:
        return f"Scalar({self.value!r}, {self.start}:{self.end})"


class Sequence:
    """A list."""

    __slots__ = ("end", "items", "start")

    def __init__(self, items: list[Node], start: int, end: int) -> None:
        self.items = items
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"Sequence({self.items!r}, {self.start}:{self.end})"


class Mapping:
    """Keys and values in the order written. Keys are text and unique: the parser has seen to it."""

    __slots__ = ("_index", "end", "entries", "start")

    def __init__(self, entries: list[tuple[Scalar, Node]], start: int, end: int) -> None:
        self.entries = entries
        self.start = start
        self.end = end
        self._index = {key.text: i for i, (key, _) in enumerate(entries)}

    def get(self, name: str) -> Node | None:
        """The value under `name`; None when there is no such key."""
        i = self._index.get(name)
        return None if i is None else self.entries[i][1]

    def key(self, name: str) -> Scalar | None:
        """The key itself, for its place."""
        i = self._index.get(name)
        return None if i is None else self.entries[i][0]

    def __repr__(self) -> str:
        return f"Mapping({self.entries!r}, {self.start}:{self.end})"


Node: TypeAlias = Scalar | Sequence | Mapping


def find(node: Node, path: Iterable[str | int]) -> Node:
    """The node at a path of keys and indexes, or the deepest one that exists."""
    for part in path:
        inner: Node | None = None
        if isinstance(node, Mapping) and isinstance(part, str):
            inner = node.get(part)
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            inner = node.items[part]
        if inner is None:
            break
        node = inner
    return node


def texts(node: Node) -> JSON:
    """The same with every scalar as the text it is written as: a variable may be called `ON` and be `no`."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Sequence):
        return [texts(item) for item in node.items]
    return {key.text: texts(value) for key, value in node.entries}


def plain(node: Node) -> JSON:
    """The node as a JSON value, for parts that are kept as data (`metadata`, literals, schemas)."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key.text: plain(value) for key, value in node.entries}
