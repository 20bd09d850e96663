"""What the value of a key must look like, one check per kind of the table.

A check reports what is wrong where it is and returns whether the value can be used. It judges the form
only; what the value means is judged by the modules that know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fanfold.text.diagnostics import Fix
from fanfold.text.notes import Notes, kind_of, quoted
from fanfold.text.patterns import regex
from fanfold.text.tables.durations import duration_ms, meant_duration
from fanfold.text.tables.shapes import Key, Kind
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar, plain

SLUG = regex(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
ID = regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_SEVERAL_IDS = regex(rf"{ID.pattern}( *, *{ID.pattern})+", re.ASCII)
ID_ALLOWED = "use letters, digits, - and _, beginning with a letter or digit, at most 128 of them"
IDENTIFIER = regex(r"[A-Za-z_][A-Za-z0-9_-]{0,127}", re.ASCII)


_TRUTHS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
"""What older YAML takes for a truth value, and what people mean by it."""


def has_form(node: Node, key: Key, notes: Notes) -> bool:
    """Whether the value has the form of its key; what is wrong is reported."""
    return _FORMS[key.kind](node, key, notes)


def _refuse(node: Node, key: Key, notes: Notes, wanted: str, hint: str = "", fix: Fix | None = None) -> bool:
    if notes.is_alias(node):
        return False
    notes.error(".bad_type", f"{quoted(key.name)} must be {wanted}, not {kind_of(node)}", node, hint, fix)
    return False


def _text(node: Node, key: Key, notes: Notes) -> bool:
    return _is_text(node, key, notes, "text")


def _is_text(
    node: Node, key: Key, notes: Notes, wanted: str, form: re.Pattern[str] | None = None, allowed: str = ""
) -> bool:
    """Whether it is text. Where it must have a form too, quotes are proposed only if they make it right."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            return True
        if node.value is not None:
            if form is not None and not form.fullmatch(node.text):
                return _refuse(node, key, notes, wanted, allowed)
            in_quotes = json.dumps(node.text)
            fix = notes.fix(node.start, node.end, in_quotes)
            return _refuse(node, key, notes, wanted, f"write it in quotes: {in_quotes}", fix)
    return _refuse(node, key, notes, wanted)


def _id(node: Node, key: Key, notes: Notes) -> bool:
    """Digits alone are a number to YAML and an id to people."""
    if isinstance(node, Scalar) and type(node.value) is int:
        pass
    elif not _is_text(node, key, notes, "an id", ID, ID_ALLOWED):
        return False
    assert isinstance(node, Scalar)
    if ID.fullmatch(node.text):
        return True
    notes.error(".bad_id", f"{quoted(node.text)} cannot be an id", node, ID_ALLOWED)
    return False


def _matches(node: Node, key: Key, notes: Notes, form: re.Pattern[str], allowed: str) -> bool:
    if not _is_text(node, key, notes, "text", form, allowed):
        return False
    assert isinstance(node, Scalar)
    if form.fullmatch(node.text):
        return True
    notes.error(".bad_value", f"{quoted(node.text)} cannot be used as {quoted(key.name)}", node, allowed)
    return False


def _slug(node: Node, key: Key, notes: Notes) -> bool:
    allowed = "use lower-case letters, digits, - and _, beginning with a letter or digit, at most 64 of them"
    if isinstance(node, Scalar) and not SLUG.fullmatch(node.text):
        meant = _meant_slug(node.text)
        if SLUG.fullmatch(meant):
            # Of a number another one may be left.
            allowed = f"write {meant if isinstance(node.value, str) else json.dumps(meant)}"
    return _matches(node, key, notes, SLUG, allowed)


def _meant_slug(text: str) -> str:
    """The same without capitals and accents, its words joined; nothing where letters would be left out."""
    from unicodedata import combining, normalize

    letters = "".join(char for char in normalize("NFKD", text.lower()) if not combining(char))
    if any(char.isalnum() and not char.isascii() for char in letters):
        return ""
    return re.sub(r"[^a-z0-9_]+", "-", letters).strip("-_")


def _identifier(node: Node, key: Key, notes: Notes) -> bool:
    allowed = "use letters, digits, _ and -, beginning with a letter or _"
    return _matches(node, key, notes, IDENTIFIER, allowed)


def _expression(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and (isinstance(node.value, str) or type(node.value) is bool):
        return True
    if isinstance(node, tree.Sequence):
        as_text = "'" + json.dumps(plain(node), ensure_ascii=False).replace("'", "''") + "'"
        fix = (
            notes.fix(node.start, node.end, as_text) if len(as_text) <= 200 and "\n" not in as_text else None
        )
        hint = f"write the list as an expression: {as_text}" if fix else "write the list as an expression"
        return _refuse(node, key, notes, "an expression", hint, fix)
    count = key.name == "for_each" and isinstance(node, Scalar) and type(node.value) is int
    hint = f"write lists.range({node.text}) to count" if isinstance(node, Scalar) and count else ""
    return _refuse(node, key, notes, "an expression", hint)


def _expressions(node: Node, key: Key, notes: Notes) -> bool:
    """A map; a number or a truth value is an expression as it stands."""
    if not isinstance(node, tree.Mapping):
        return _refuse(node, key, notes, "a map of names to expressions")
    values = [value for _, value in node.entries if not isinstance(value, Scalar) or value.value is None]
    return _each(_expression, values, key, notes)


def _moment(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and (duration_ms(node.value) is not None or isinstance(node.value, str)):
        return True
    return _refuse(node, key, notes, "a duration or an expression", "write it as 90s, 5m or 2h")


def _choices(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return True
    return _list_of(_text, "a list of text, or an expression that gives one")(node, key, notes)


def _word(node: Node, key: Key, notes: Notes) -> bool:
    if not _is_text(node, key, notes, "one of " + ", ".join(key.words)):
        return False
    assert isinstance(node, Scalar)
    if node.text in key.words:
        return True
    meant = dict(key.meant).get(node.text.lower())
    fix = notes.fix(node.start, node.end, meant) if meant is not None else None
    hint = f"write {meant}" if meant is not None else notes.did_you_mean(node.text, key.words)
    hint = hint or "use one of " + ", ".join(key.words)
    notes.error(".bad_value", f"{quoted(key.name)} cannot be {quoted(node.text)}", node, hint, fix)
    return False


def _integer(node: Node, key: Key, notes: Notes) -> bool:
    return (isinstance(node, Scalar) and type(node.value) is int) or _refuse(node, key, notes, "an integer")


def _number(node: Node, key: Key, notes: Notes) -> bool:
    number = node.value if isinstance(node, Scalar) else None
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        return True
    return _refuse(node, key, notes, "a number")


def _boolean(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return True
    meant = _TRUTHS.get(node.text.lower()) if isinstance(node, Scalar) else None
    if meant is None:
        return _refuse(node, key, notes, "true or false")
    return _refuse(
        node, key, notes, "true or false", f"write {meant}", notes.fix(node.start, node.end, meant)
    )


def _duration(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and duration_ms(node.value) is not None:
        return True
    hint = "write it as 500ms, 90s, 5m or 2h, or as a number of seconds"
    if isinstance(node, Scalar) and node.value is not None:
        meant = meant_duration(node.text)
        fix = notes.fix(node.start, node.end, meant) if meant else None
        hint = f"write {meant}" if meant else hint
        notes.error(".bad_duration", f"{quoted(node.text)} is not a duration", node, hint, fix)
        return False
    return _refuse(node, key, notes, "a duration", hint)


def _each(check: Callable[[Node, Key, Notes], bool], nodes: list[Node], key: Key, notes: Notes) -> bool:
    """True when all have the form; looks at every one, because every problem is reported."""
    bad = [node for node in nodes if not check(node, key, notes)]
    return not bad


def _list_of(item: Callable[[Node, Key, Notes], bool], wanted: str) -> Callable[[Node, Key, Notes], bool]:
    """A list of which every item has the form; one bad item spoils the list, all are reported."""

    def check(node: Node, key: Key, notes: Notes) -> bool:
        if key.kind == "ids" and isinstance(node, Scalar) and not _SEVERAL_IDS.fullmatch(node.text):
            return item(node, key, notes)
        if isinstance(node, tree.Sequence):
            return _each(item, node.items, key, notes)
        if isinstance(node, Scalar) and isinstance(node.value, str):
            raw = node.text if key.kind == "ids" else notes.source.text[node.start : node.end]
            fix = notes.fix(node.start, node.end, f"[{raw}]") if "\n" not in raw else None
            return _refuse(node, key, notes, wanted, f"write [{raw}]" if fix else "", fix)
        return _refuse(node, key, notes, wanted)

    return check


def _argument(node: Node, key: Key, notes: Notes) -> bool:
    good = isinstance(node, Scalar) and node.value is not None
    return good or _refuse(node, key, notes, "made of text")


def _arguments(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return True
    if isinstance(node, tree.Sequence):
        return _each(_argument, node.items, key, notes)
    return _refuse(node, key, notes, "a list of arguments")


def _variables(node: Node, key: Key, notes: Notes) -> bool:
    if not isinstance(node, tree.Mapping):
        return _refuse(node, key, notes, "a map of names to text")
    return _each(_argument, [value for _, value in node.entries], key, notes)


def _map(node: Node, key: Key, notes: Notes) -> bool:
    return isinstance(node, tree.Mapping) or _refuse(node, key, notes, "a map")


def _output(node: Node, key: Key, notes: Notes) -> bool:
    return isinstance(node, tree.Mapping) or _is_text(node, key, notes, "a template or a map")


def _schema(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, tree.Mapping) or (isinstance(node, Scalar) and isinstance(node.value, bool)):
        return True
    if not notes.is_alias(node):
        notes.error(".bad_schema", f"{quoted(key.name)} must be a JSON Schema, not {kind_of(node)}", node)
    return False


def _list(node: Node, key: Key, notes: Notes) -> bool:
    return isinstance(node, tree.Sequence) or _refuse(node, key, notes, "a list")


def _list_or_map(node: Node, key: Key, notes: Notes) -> bool:
    return isinstance(node, tree.Sequence | tree.Mapping) or _refuse(node, key, notes, "a list")


def _anything(node: Node, key: Key, notes: Notes) -> bool:  # noqa: ARG001 (one signature for all forms)
    return True


_FORMS: dict[Kind, Callable[[Node, Key, Notes], bool]] = {
    "slug": _slug,
    "id": _id,
    "identifier": _identifier,
    "text": _text,
    "template": _text,
    "expression": _expression,
    "expressions": _expressions,
    "moment": _moment,
    "choices": _choices,
    "word": _word,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "duration": _duration,
    "milliseconds": _integer,
    "ids": _list_of(_id, "a list of ids"),
    "words": _list_of(_word, "a list"),
    "texts": _list_of(_text, "a list of text"),
    "identifiers": _list_of(_identifier, "a list of names"),
    "globs": _list_of(_text, "a list of globs"),
    "arguments": _arguments,
    "variables": _variables,
    "values": _map,
    "output": _output,
    "schema": _schema,
    "json": _anything,
    "jsons": _list,
    "free": _map,
    "object": _anything,  # read by its own table
    "objects": _list,
    "named_objects": _list_or_map,
}
