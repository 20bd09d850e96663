"""What can be known about an output before anything runs."""

from __future__ import annotations

from typing import TypeAlias, cast

from msgspec import Struct

from fanfold.kernel.plan import JSON

Known: TypeAlias = "Anything | Text | Number | Truth | ListOf | ObjectOf"

_MAX_SCHEMA_DEPTH = 20
_OPEN_KEYWORDS = frozenset(
    {"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not", "if", "patternProperties"}
)
"""Where one of these stands beside `type`, only the validator knows what comes out."""


class Anything(Struct, frozen=True):
    """Nothing is known."""


class Text(Struct, frozen=True):
    """Text: no path leads into it. With `choices` it is one of them."""

    choices: tuple[str, ...] = ()


class Number(Struct, frozen=True):
    """A number, whole or not."""


class Truth(Struct, frozen=True):
    """True or false."""


class ListOf(Struct, frozen=True):
    """A list, one element per item."""

    element: Known


class ObjectOf(Struct, frozen=True):
    """An object with these fields, and others too when it is `open`."""

    fields: dict[str, Known]
    open: bool = False


ANYTHING = Anything()
TEXT = Text()


def known_from_schema(schema: JSON, depth: int = 0) -> Known:
    """What a JSON Schema says for certain."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH or _OPEN_KEYWORDS & schema.keys():
        return ANYTHING
    enum = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(enum, list) and enum and all(isinstance(value, str) for value in enum):
        return Text(tuple(cast(list[str], enum)))
    match schema.get("type"):
        case "string":
            return TEXT
        case "integer" | "number":
            return Number()
        case "boolean":
            return Truth()
        case "array":
            return ListOf(known_from_schema(schema.get("items"), depth + 1))
        case "object":
            properties = schema.get("properties")
            fields = properties if isinstance(properties, dict) else {}
            return ObjectOf(
                {str(name): known_from_schema(one, depth + 1) for name, one in fields.items()},
                open=schema.get("additionalProperties") is not False,
            )
    return ANYTHING


def known_from_type(kind: str | None, enum: tuple[JSON, ...] | None) -> Known:
    """What the declaration of an input says."""
    if enum and all(isinstance(value, str) for value in enum):
        return Text(cast(tuple[str, ...], enum))
    return known_from_schema({"type": kind} if kind is not None else None)


def described(known: Known) -> str:
    """What it is, in words."""
    return _WORDS[type(known)]


def part_of(known: Known, parts: tuple[str | int, ...]) -> Known:
    """What is known where a path leads that is possible."""
    for part in parts:
        if isinstance(known, ListOf) and isinstance(part, int):
            known = known.element
        elif isinstance(known, ObjectOf) and isinstance(part, str):
            known = known.fields.get(part, ANYTHING)
        else:
            return ANYTHING
    return known


_WORDS: dict[type[Struct], str] = {
    Anything: "anything",
    Text: "text",
    Number: "a number",
    Truth: "true or false",
    ListOf: "a list",
    ObjectOf: "an object",
}
