"""`{{ path }}` templates (being filled in)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fanfold.kernel.plan import JSON


class TemplateError(ValueError):
    def __init__(self, message: str, position: int, end: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.end = position + 1 if end is None else end


class UnresolvedPath(ValueError):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Path(Struct, frozen=True):
    root: str
    parts: tuple[str | int, ...]
    text: str


class Hole(Struct, frozen=True):
    path: Path
    start: int
    end: int


def parse_path(text: str) -> Path:
    raise NotImplementedError


def parse_template(text: str) -> tuple[str | Hole, ...]:
    raise NotImplementedError


def sole_path(text: str) -> Path | None:
    raise NotImplementedError


def is_state_path(text: str, item_name: str = "item") -> bool:
    raise NotImplementedError


def resolve(path: Path, lookup: Mapping[str, JSON]) -> JSON:
    raise NotImplementedError


def render(parts: Sequence[str | Hole], lookup: Mapping[str, JSON]) -> str:
    raise NotImplementedError
