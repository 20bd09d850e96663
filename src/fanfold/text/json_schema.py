"""JSON Schema: whether something is one, and what it says against a value.

A schema stands on its own: none is ever fetched, whoever wrote it. Checking a recipe or a tool must not
depend on the network, and a frozen run must not change because a document somewhere else did.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from fanfold.text.excerpts import shorten
from fanfold.text.json_value import JSON

if TYPE_CHECKING:
    import jsonschema_rs

MAX_ERRORS = 5
MAX_WORDS_CHARS = 200


class SchemaProblem(Struct, frozen=True):
    """Why a value is no schema, and the way to the part that is wrong."""

    message: str
    path: tuple[str | int, ...] = ()


def schema_problem(schema: JSON) -> SchemaProblem | None:
    """What is wrong with a schema; None when it can be used.

    >>> schema_problem({"properties": {"a": {"type": 5}}}).path
    ('properties', 'a', 'type')
    """
    import jsonschema_rs

    if not isinstance(schema, dict | bool):  # text would be taken for JSON
        return SchemaProblem("a schema is an object, true or false")
    try:
        jsonschema_rs.validator_for(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        return SchemaProblem(_first_line(error.message), tuple(error.instance_path))
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return SchemaProblem(_first_line(str(error)))
    return None


def misfits(schema: JSON, value: JSON, whole: str = "") -> str:
    """What the schema says against a value, each with its place; empty when the value fits.

    `whole` is what the value as a whole is called where that is worth saying.

    >>> misfits({"items": {"type": "integer"}}, [1, "2"])
    '1: "2" is not of type "integer"'
    """
    problems: list[str] = []
    for error in _validator(msgspec.json.encode(schema)).iter_errors(value):
        place = "/".join(str(part) for part in error.instance_path) or whole
        problems.append(f"{place}: {error.message}" if place else error.message)
        if len(problems) == MAX_ERRORS:
            break
    return "; ".join(problems)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # only what has a schema pays for it

    return jsonschema_rs.validator_for(msgspec.json.decode(schema), offline=True)


def _first_line(text: str) -> str:
    return shorten(text.strip().splitlines()[0] if text.strip() else "it cannot be read", MAX_WORDS_CHARS)
