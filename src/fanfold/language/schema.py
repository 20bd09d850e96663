"""The recipe language for editors, generated from the tables of keys.

`json_schema` is the output of `fanfold schema`: closed objects, a sentence for every key, the known roles as
suggestions. It accepts every recipe that the compiler accepts. It refuses less than the compiler, because
references, globs and expressions cannot be checked by a schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fanfold.language import keys
from fanfold.language.draft import Ceilings
from fanfold.language.leaf_steps import STEPS
from fanfold.language.phases import GATES
from fanfold.language.tables import FORMS, Key, Shape

_ROLE_KEYS = frozenset({"agent", "subagent", "role"})


def shapes() -> dict[str, Shape]:
    """Return every object of the language, in the order of the reference page."""
    found = (
        keys.RECIPE, keys.INPUT, keys.LIMITS, keys.BUDGET, keys.DEFAULTS, STEPS.shape, keys.RETRY,
        keys.REPEAT, keys.DELIVER, keys.PULL_REQUEST, keys.PHASE, keys.REVIEW, GATES.shape, keys.CONVERGE,
    )  # fmt: skip
    return {shape.name: shape for shape in found}


def json_schema(roles: Iterable[str] = (), ceilings: Ceilings | None = None) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file."""
    names = sorted(roles)
    highs = ceilings.highs if ceilings is not None else {}
    objects = {name: _object(shape, names, highs) for name, shape in shapes().items()}
    recipe = objects.pop("recipe")
    recipe["oneOf"] = [{"required": ["steps"]}, {"required": ["phases"]}]
    # A step needs at least one of these keys, in any of their spellings.
    typed = STEPS.deciding | STEPS.hinting
    spelled = [key.name for key in STEPS.shape.keys.values() if (key.alias or key.name) in typed]
    objects["step"]["anyOf"] = [{"required": [name]} for name in (*spelled, "type")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fanfold recipe",
        **recipe,
        "$defs": objects,
    }


def _object(shape: Shape, roles: list[str], highs: dict[str, int]) -> dict[str, Any]:
    properties = {}
    for key in shape.keys.values():
        form = _form(key, roles, highs)
        text = key.doc if not key.default else f"{key.doc} Default: {key.default}."
        properties[key.name] = {**form, "description": text}
    required = [key.name for key in shape.keys.values() if key.required]
    closed: dict[str, Any] = {
        "type": "object",
        "description": shape.doc,
        "properties": properties,
        "additionalProperties": False,
    }
    return closed | ({"required": required} if required else {})


def _form(key: Key, roles: list[str], highs: dict[str, int]) -> dict[str, Any]:
    """Return the schema for a value of the key."""
    if key.name in _ROLE_KEYS and roles:
        # The second branch accepts unknown names, because a role may be added after the schema was written.
        return {"anyOf": [{"enum": roles}, {"type": "string"}]}
    if key.kind == "word":
        return {"enum": list(key.words)}
    if key.kind == "words":
        return {"type": "array", "items": {"enum": list(key.words)}}
    if key.kind in {"integer", "milliseconds"}:
        return {"type": "integer", "minimum": key.low, "maximum": max(key.high or 0, highs.get(key.name, 0))}
    if key.kind == "number":
        return {"type": "number", "exclusiveMinimum": key.low, "maximum": key.high}
    if key.kind == "object":
        return {"$ref": f"#/$defs/{key.of}"}
    if key.kind == "objects":
        return {"type": "array", "items": {"$ref": f"#/$defs/{key.of}"}}
    if key.kind == "named_objects":
        one = {"$ref": f"#/$defs/{key.of}"}
        by_name = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
        return {"anyOf": [{"type": "array", "items": one}, by_name]}
    return dict(FORMS[key.kind][1])
