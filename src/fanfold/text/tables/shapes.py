"""Tables of keys: what may stand in one object of a language, as data.

Why a table: the check that refuses an unknown word, the JSON Schema that editors use and the reference page
of the documentation must never disagree, so all are read from one. Recipes, scripts and the stages of roles
are read by such tables (`entries`).

Rules
* An object is a name and its keys. A key has a kind (what its value looks like), and where they apply a
  range, the allowed words and a default. What relates several keys to each other is not in the table;
  those rules live beside the code that applies them.
* An `alias` is another spelling of the named key. Both together are an error.
* Wherever a duration key exists, `<key>_ms` exists too and takes an integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

Kind: TypeAlias = Literal[
    "slug",  # [a-z0-9][a-z0-9_-]{0,63}
    "id",  # [A-Za-z0-9][A-Za-z0-9_-]*
    "identifier",  # a name that expressions can use
    "text",
    "template",  # text with {{path}}
    "expression",  # CEL
    "expressions",  # map of name to CEL
    "moment",  # a duration, or CEL that gives a time
    "choices",  # a list of text, or CEL that gives one
    "word",  # one of `words`
    "integer",
    "number",
    "boolean",
    "duration",  # 500ms 90s 5m 2h, or a number of seconds
    "milliseconds",
    "ids",  # a list of them, or one
    "words",
    "texts",
    "identifiers",
    "globs",
    "arguments",  # a list of arguments, or text that is split
    "variables",  # map of name to template
    "values",  # map of name to reference, template or literal
    "output",  # template, or a map as `values`
    "schema",  # JSON Schema
    "json",
    "jsons",
    "free",  # a map nobody looks into
    "object",  # another object of this table, named by `of`
    "objects",  # a list of them
    "named_objects",  # a list of them, or a map by their names
]


class Key(Struct, frozen=True):
    """One key: how it is spelled, what its value looks like, and one line for its reader."""

    name: str
    kind: Kind
    doc: str
    default: str = ""
    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()
    of: str = ""
    required: bool = False
    only: tuple[str, ...] = ()
    alias: str = ""
    meant: tuple[tuple[str, str], ...] = ()
    """Words that people write instead of one of `words`, and which they mean."""


class Shape(Struct, frozen=True):
    """One object of the language: its keys by name, in the order the reference prints them."""

    name: str
    doc: str
    keys: dict[str, Key]
    hint: str = ""
    """What to do about an unknown word that resembles no known one."""
    open: bool = False
    """Others may have keys of their own in it: an unknown one is noted, not refused."""
    short: str = ""
    """The key that a bare value in the place of the whole object is meant for."""
    instead: Mapping[str, str] = {}
    """Words of other languages for a key: which it is here, or, where none is, what to write instead."""


def shape(
    name: str,
    doc: str,
    *keys: Key,
    hint: str = "",
    open: bool = False,
    short: str = "",
    instead: Mapping[str, str] | None = None,
) -> Shape:
    """Collect the keys; each duration key brings its `_ms` twin."""
    table: dict[str, Key] = {}
    for key in keys:
        table[key.name] = key
        if key.kind == "duration":
            twin = f"{key.name}_ms"
            doc_of_twin = f"`{key.name}` in milliseconds."
            table[twin] = Key(
                twin, "milliseconds", doc_of_twin, low=key.low, high=key.high, only=key.only, alias=key.name
            )
    return Shape(name, doc, table, hint, open, short, instead or {})
