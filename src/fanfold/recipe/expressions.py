"""CEL expressions (being filled in)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from fanfold.kernel.plan import JSON


class ExpressionError(ValueError):
    def __init__(self, message: str, position: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.end = end


class Reference(Struct, frozen=True):
    name: str
    key: str
    start: int
    end: int
    parts: tuple[str | int, ...] = ()


def check_expression(
    text: str,
    *,
    inputs: Mapping[str, str | None],
    steps: Iterable[str],
    names: Iterable[str],
    wants: Literal["bool", "list"],
) -> tuple[Reference, ...]:
    raise NotImplementedError


def evaluate(text: str, values: Mapping[str, JSON]) -> JSON:
    raise NotImplementedError
