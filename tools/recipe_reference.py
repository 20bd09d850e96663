"""Reference of the recipe language, made from its tables of keys: docs/recipes.md."""

from __future__ import annotations

from collections.abc import Iterable

from fanfold.language.expression_work import FUNCTIONS
from fanfold.language.leaf_steps import STEPS
from fanfold.language.schema import shapes
from fanfold.language.tables import Key, listed


def reference_markdown() -> str:
    """The reference of the recipe language: one table per object, steps by type."""
    parts: list[str] = []
    for name, shape in shapes().items():
        parts += [f"## {_title(name)}", shape.doc]
        if name != "step":
            parts.append(_table(shape.keys.values(), "gates"))
            continue
        own = {key.name for syntax in STEPS.syntaxes.values() for key in syntax.keys}
        parts.append(_table(key for key in shape.keys.values() if key.name not in own))
        for kind, syntax in STEPS.syntaxes.items():
            parts += [f"### `{kind}` steps", _table(syntax.keys)]
    return "\n\n".join(parts)


def expression_functions() -> str:
    """The functions of expressions as a table."""
    rows = [f"| `{function.call}` | {function.doc} |" for function in FUNCTIONS]
    return "\n".join(["| function | result |", "|---|---|", *rows])


def _title(name: str) -> str:
    return {"recipe": "Top level", "step": "Steps", "input": "Inputs", "phase": "Phases"}.get(
        name, f"`{name}`"
    )


def _table(keys: Iterable[Key], what: str = "steps") -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{key.name}` | {_value(key)} | {key.default} | {_meaning(key, what)} |" for key in keys]
    return "\n".join(lines)


def _meaning(key: Key, what: str) -> str:
    doc = key.doc.replace("|", "\\|")
    doc = f"{doc} **Required.**" if key.required else doc
    return f"{doc} Only on {listed(key.only)} {what}." if len(key.only) > 1 else doc


def _value(key: Key) -> str:
    if key.kind == "word":
        return ", ".join(f"`{word}`" for word in key.words)
    if key.kind == "words":
        return "list of " + ", ".join(f"`{word}`" for word in key.words)
    if key.kind == "integer":
        return f"integer from {key.low:,} to {key.high:,}"
    if key.kind in {"object", "objects", "named_objects"}:
        link = f"[{key.of}](#{_anchor(key.of)})"
        form = {"object": "", "objects": "list of ", "named_objects": "list, or map by name, of "}
        return form[key.kind] + link
    return _VALUES[key.kind]


def _anchor(name: str) -> str:
    return _title(name).strip("`").lower().replace(" ", "-")


_VALUES: dict[str, str] = {
    "slug": "name (`a-z 0-9 _ -`)",
    "id": "id (`A-Z a-z 0-9 _ -`)",
    "identifier": "name",
    "text": "text",
    "template": "template",
    "expression": "expression (CEL)",
    "items": "expression (CEL) or list",
    "expressions": "map of name to CEL",
    "moment": "duration or CEL",
    "choices": "list of text, or CEL",
    "number": "number above 0",
    "boolean": "`true` or `false`",
    "duration": "duration (`500ms`, `90s`, `5m`, `2h`), or seconds",
    "milliseconds": "integer",
    "ids": "list of ids, or one",
    "texts": "list of text",
    "identifiers": "list of names",
    "globs": "list of globs",
    "arguments": "list of arguments, or text",
    "variables": "map of name to template",
    "values": "map of name to value",
    "output": "template, or map of name to value",
    "schema": "JSON Schema",
    "json": "any value",
    "jsons": "list of values",
    "free": "map",
}
