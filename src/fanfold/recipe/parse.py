"""Recipe bytes → a tree that knows where every character came from (being filled in)."""

from __future__ import annotations

from typing import TypeAlias

from fanfold.kernel.plan import JSON
from fanfold.recipe.diagnostics import Report, Source, Span


class Scalar:
    __slots__ = ("end", "start", "style", "text", "value")

    def __init__(self, value: None | bool | int | float | str, text: str, start: int, end: int, style: str):
        self.value, self.text, self.start, self.end, self.style = value, text, start, end, style

    def at(self, i: int) -> int:
        raise NotImplementedError

    def span(self, i: int, j: int) -> Span:
        raise NotImplementedError


class Sequence:
    __slots__ = ("end", "items", "start")

    def __init__(self, items: list[Node], start: int, end: int):
        self.items, self.start, self.end = items, start, end


class Mapping:
    __slots__ = ("end", "entries", "start")

    def __init__(self, entries: list[tuple[Scalar, Node]], start: int, end: int):
        self.entries, self.start, self.end = entries, start, end

    def get(self, name: str) -> Node | None:
        raise NotImplementedError

    def key(self, name: str) -> Scalar | None:
        raise NotImplementedError


Node: TypeAlias = Scalar | Sequence | Mapping


def parse(data: bytes, file: str) -> tuple[Node | None, Source, Report]:
    raise NotImplementedError


def plain(node: Node) -> JSON:
    raise NotImplementedError
