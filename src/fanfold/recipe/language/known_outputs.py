"""What can be known about an output before anything runs."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

Known: TypeAlias = "Anything | Text | ListOf | ObjectOf"


class Anything(Struct, frozen=True):
    """Nothing is known."""


class Text(Struct, frozen=True):
    """Text: no path leads into it."""


class ListOf(Struct, frozen=True):
    """A list, one element per item."""

    element: Known


class ObjectOf(Struct, frozen=True):
    """An object with exactly these fields."""

    fields: dict[str, Known]


ANYTHING = Anything()
TEXT = Text()
