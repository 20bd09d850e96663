"""Reads a mapping by its table of keys: known words, valid types, numbers in range.

Rules
* Every problem is reported at its position, and reading continues. A refused value is left out of `Entries`.
  `has` still returns True for it, so that it is not also reported as missing.
* Results use the key's own name, even if the author used an alias.
* Only the form is checked here. Other modules check the meaning (does the role exist, is the glob valid).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, partialmethod
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from fanfold.language import tree
from fanfold.language.diagnostics import Fix, Report, Severity, Source, Span, nearest
from fanfold.language.json_text import JSON
from fanfold.language.terminal import shorten
from fanfold.language.tree import Node, Scalar, plain

# -----------------------------------------------------------------------------------------------------------
# Reporting for one file: the destination of problems, and the display of words in messages.

MAX_SHOWN_CHARS = 60
MAX_EFFORT_FOR_HINTS = 20_000_000
"""Limit of letter comparisons for hints in one file; a hint costs words times letters squared."""


class Notes:
    """The report, restricted to one file."""

    __slots__ = ("_effort", "report", "source")

    def __init__(self, report: Report, source: Source) -> None:
        self.report = report
        self.source = source
        self._effort = MAX_EFFORT_FOR_HINTS

    def add(
        self,
        severity: Severity,
        code: str,
        message: str,
        at: Node | Span,
        hint: str = "",
        fix: Fix | None = None,
    ) -> None:
        self.report.report(severity, code, message, self.source, span_of(at), hint, fix)

    error = partialmethod(add, "error")
    warning = partialmethod(add, "warning")
    note = partialmethod(add, "note")

    def did_you_mean(self, word: str, known: Collection[str]) -> str:
        """Return the hint to the nearest known word, or an empty text."""
        found = self.nearest(word, known)
        return f"did you mean {quoted(found)}?" if found else ""

    def nearest(self, word: str, known: Collection[str]) -> str | None:
        """Return the known word that was probably meant; the total effort per file is limited."""
        self._effort -= len(known) * len(word) ** 2
        return nearest(word, known) if self._effort >= 0 else None

    def is_alias(self, node: Node) -> bool:
        """Return whether the node is an alias, which the parser has reported and given no value."""
        return (
            isinstance(node, Scalar)
            and node.value is None
            and self.source.text[node.start : node.end][:1] == "*"
        )

    def fix(self, start: int, end: int, text: str) -> Fix:
        """Return a fix that puts `text` between two offsets."""
        return Fix(self.source.range(start, end), text)


def span_of(at: Node | Span) -> Span:
    return at if isinstance(at, tuple) else (at.start, at.end)


def quoted(text: str) -> str:
    """Return the author's word for a message, shortened if it is very long."""
    return json.dumps(shorten(text, MAX_SHOWN_CHARS), ensure_ascii=False)


def with_article(word: str) -> str:
    """`a step`, `an input`."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def listed(words: Sequence[str], last: str = "and") -> str:
    """Return words joined for a sentence.

    >>> listed(("run", "prompt", "steps"), "or")
    'run, prompt or steps'
    """
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def json_type(value: JSON) -> str:
    """Return the JSON Schema name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), ((list, tuple), "array")):
        if isinstance(value, kind):
            return name
    return "object"


def kind_of(node: Node) -> str:
    """Return the kind of the author's value for a message."""
    if isinstance(node, tree.Sequence):
        return "a list"
    if isinstance(node, tree.Mapping):
        return "a map"
    words = {"null": "empty", "string": "text", "boolean": "true or false", "integer": "an integer"}
    return words.get(json_type(node.value), "a number")


# -----------------------------------------------------------------------------------------------------------
# Durations in recipes: `500ms`, `90s`, `5m`, `2h`, or a plain number of seconds.

_FORM = r"(?a)([0-9]{1,12})(ms|s|m|h)"
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MOST_SECONDS = 10**12
_IN_WORDS = r"(?ai)([0-9]{1,9}) *([a-z]+)"
_UNIT_WORDS = {
    **dict.fromkeys(("millisecond", "milliseconds", "msec", "msecs"), "ms"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **{unit: unit for unit in _UNIT_MS},
}
_DAYS = ("d", "day", "days")


def parse_duration(text: str) -> int | None:
    """Return milliseconds, or None if the text is not a duration.

    >>> parse_duration("90s")
    90000
    """
    found = re.fullmatch(_FORM, text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


def meant_duration(text: str) -> str:
    """Return the probable duration for a text that is not a duration; empty if it is unclear.

    >>> meant_duration("5 minutes"), meant_duration("2d"), meant_duration("soon")
    ('5m', '48h', '')
    """
    if (found := re.fullmatch(_IN_WORDS, text.strip())) is None:
        return ""
    number, word = found[1], found[2].lower()
    if word in _DAYS:
        return f"{24 * int(number)}h"
    return f"{number}{_UNIT_WORDS[word]}" if word in _UNIT_WORDS else ""


def duration_ms(value: object) -> int | None:
    """Return the milliseconds of a recipe's value, or None if it is no duration.

    >>> duration_ms(1.5)
    1500
    """
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_SECONDS:
        return round(value * 1_000)
    return None


# -----------------------------------------------------------------------------------------------------------
# Tables of keys: the keys of one object of a language, as data.
#
# The check for unknown words, the JSON Schema for editors and the reference page of the documentation must
# never disagree. So all are generated from one table. Recipes, scripts and the stages of roles are read by
# such tables (`read_entries`).
#
# Rules
# * An object is a name and its keys. A key has a kind (the form of its value), and if applicable a range, the
#   allowed words and a default. Rules between several keys are not in the table. They are next to the code
#   that applies them.
# * An `alias` is another spelling of the named key. Both together are an error.
# * For every duration key there is also `<key>_ms`, which takes an integer.


class Key(Struct, frozen=True):
    """One key: its spelling, the form of its value, and one line of documentation."""

    name: str
    kind: str
    """A row of `FORMS`."""
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
    """Common wrong words for one of `words`, and the words they mean."""
    lenient: bool = False
    """Whether those words are accepted, with a warning that has a fix."""


class Shape(Struct, frozen=True):
    """One object of the language: its keys by name, in the order of the reference page."""

    name: str
    doc: str
    keys: dict[str, Key]
    hint: str = ""
    """The hint for an unknown word that resembles no known one."""
    open: bool = False
    """Whether other programs can have their own keys in it: an unknown key is noted, not refused."""
    short: str = ""
    """The key that a bare value in place of the whole object is meant for."""
    instead: Mapping[str, str] = {}
    """Words of other languages for a key: the key here or, if there is none, a hint."""


def shape(
    name: str,
    doc: str,
    *keys: Key,
    hint: str = "",
    open: bool = False,
    short: str = "",
    instead: Mapping[str, str] | None = None,
) -> Shape:
    """Return a shape with these keys; each duration key adds its `_ms` variant."""
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


# -----------------------------------------------------------------------------------------------------------
# What the value of a key must look like, one check per kind of the table.
#
# A check reports what is wrong where it is and returns whether the value can be used. It judges the form
# only; what the value means is judged by the modules that know.

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_SEVERAL_IDS = rf"(?a){ID.pattern}( *, *{ID.pattern})+"
ID_ALLOWED = "use letters, digits, - and _, beginning with a letter or digit, at most 128 of them"
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}", re.ASCII)


_TRUTHS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
"""Truth values of older YAML, and their meaning."""


def _refuse(node: Node, key: Key, notes: Notes, wanted: str, hint: str = "", fix: Fix | None = None) -> bool:
    if notes.is_alias(node):
        return False
    notes.error(".bad_type", f"{quoted(key.name)} must be {wanted}, not {kind_of(node)}", node, hint, fix)
    return False


def _is_text(
    node: Node, key: Key, notes: Notes, wanted: str, form: re.Pattern[str] | None = None, allowed: str = ""
) -> bool:
    """Return whether it is text; quotes are proposed only if they make the value valid."""
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
    """Check an id; digits alone are a number in YAML, but a valid id."""
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
            # The result for a number may be another number.
            allowed = f"write {meant if isinstance(node.value, str) else json.dumps(meant)}"
    return _matches(node, key, notes, SLUG, allowed)


def _meant_slug(text: str) -> str:
    """Return the text without capitals and accents, its words joined; empty if letters would be lost."""
    from unicodedata import combining, normalize

    letters = "".join(char for char in normalize("NFKD", text.lower()) if not combining(char))
    if any(char.isalnum() and not char.isascii() for char in letters):
        return ""
    return re.sub(r"[^a-z0-9_]+", "-", letters).strip("-_")


def _expression(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and (isinstance(node.value, str) or type(node.value) is bool):
        return True
    if isinstance(node, tree.Sequence):
        as_text = "'" + json.dumps(plain(node), ensure_ascii=False).replace("'", "''") + "'"
        short = len(as_text) <= 200 and "\n" not in as_text
        fix = notes.fix(node.start, node.end, as_text) if short else None
        hint = f"write the list as an expression: {as_text}" if fix else "write the list as an expression"
        return _refuse(node, key, notes, "an expression", hint, fix)
    count = key.name == "for_each" and isinstance(node, Scalar) and type(node.value) is int
    hint = f"write lists.range({node.text}) to count" if isinstance(node, Scalar) and count else ""
    return _refuse(node, key, notes, "an expression", hint)


def _word(node: Node, key: Key, notes: Notes) -> bool:
    if not _is_text(node, key, notes, "one of " + ", ".join(key.words)):
        return False
    assert isinstance(node, Scalar)
    if node.text in key.words:
        return True
    meant = dict(key.meant).get(node.text.lower())
    fix = notes.fix(node.start, node.end, meant) if meant is not None else None
    hint = f"write {meant}" if meant is not None else notes.did_you_mean(node.text, key.words)
    if meant is not None and key.lenient:
        notes.warning(".spelling", f"{quoted(node.text)} is read as {quoted(meant)}", node, hint, fix)
        return True
    hint = hint or "use one of " + ", ".join(key.words)
    notes.error(".bad_value", f"{quoted(key.name)} cannot be {quoted(node.text)}", node, hint, fix)
    return False


def _boolean(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return True
    if (meant := _TRUTHS.get(node.text.lower()) if isinstance(node, Scalar) else None) is None:
        return _refuse(node, key, notes, "true or false")
    fix = notes.fix(node.start, node.end, meant)
    return _refuse(node, key, notes, "true or false", f"write {meant}", fix)


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


Check: TypeAlias = Callable[[Node, Key, Notes], bool]


def _form(wanted: str, accepts: Callable[[Node], bool], hint: str = "") -> Check:
    """Return a check that accepts some nodes and refuses all others."""
    return lambda node, key, notes: accepts(node) or _refuse(node, key, notes, wanted, hint)


def _kind(*kinds: type) -> Callable[[Node], bool]:
    """Accept collections and scalar values of exactly these types."""
    return lambda node: type(node.value if isinstance(node, Scalar) else node) in kinds


def _either(accepts: Callable[[Node], bool], check: Check) -> Check:
    return lambda node, key, notes: accepts(node) or check(node, key, notes)


def _has_value(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is not None


def _is_moment(node: Node) -> bool:
    return isinstance(node, Scalar) and (duration_ms(node.value) is not None or isinstance(node.value, str))


def _each(check: Check, nodes: list[Node], key: Key, notes: Notes) -> bool:
    """Return whether all have the form; checks every one, because every problem is reported."""
    bad = [node for node in nodes if not check(node, key, notes)]
    return not bad


def _list_of(item: Check, wanted: str) -> Check:
    """Return a check for a list in which every item has the form; all invalid items are reported."""

    def check(node: Node, key: Key, notes: Notes) -> bool:
        if key.kind == "ids" and isinstance(node, Scalar) and not re.fullmatch(_SEVERAL_IDS, node.text):
            return item(node, key, notes)
        if isinstance(node, tree.Sequence):
            return _each(item, node.items, key, notes)
        if isinstance(node, Scalar) and isinstance(node.value, str):
            raw = node.text if key.kind == "ids" else notes.source.text[node.start : node.end]
            fix = notes.fix(node.start, node.end, f"[{raw}]") if "\n" not in raw else None
            return _refuse(node, key, notes, wanted, f"write [{raw}]" if fix else "", fix)
        return _refuse(node, key, notes, wanted)

    return check


def _map_of(value: Check, wanted: str) -> Check:
    """Return a check for a map in which every value has the form."""

    def check(node: Node, key: Key, notes: Notes) -> bool:
        if not isinstance(node, tree.Mapping):
            return _refuse(node, key, notes, wanted)
        return _each(value, [inner for _, inner in node.entries], key, notes)

    return check


def _schema(node: Node, key: Key, notes: Notes) -> bool:
    if isinstance(node, tree.Mapping) or (isinstance(node, Scalar) and isinstance(node.value, bool)):
        return True
    if not notes.is_alias(node):
        notes.error(".bad_schema", f"{quoted(key.name)} must be a JSON Schema, not {kind_of(node)}", node)
    return False


_text: Check = partial(_is_text, wanted="text")
_identifier: Check = partial(
    _matches, form=IDENTIFIER, allowed="use letters, digits, _ and -, beginning with a letter or _"
)
_integer = _form("an integer", _kind(int))
_argument = _form("made of text", _has_value)
_map = _form("a map", _kind(tree.Mapping))
_list = _form("a list", _kind(tree.Sequence))
_anything = _form("", lambda _: True)
_moment = _form("a duration or an expression", _is_moment, "write it as 90s, 5m or 2h")
_number = _form("a number", _kind(int, float))
_list_or_map = _form("a list", _kind(tree.Sequence, tree.Mapping))
_items = _either(_kind(tree.Sequence), _expression)
_expressions = _map_of(_either(_has_value, _expression), "a map of names to expressions")
_choices = _either(_kind(str), _list_of(_text, "a list of text, or an expression that gives one"))
_arguments = _either(_kind(str), _list_of(_argument, "a list of arguments"))
_variables = _map_of(_argument, "a map of names to text")
_output = _either(_kind(tree.Mapping), partial(_is_text, wanted="a template or a map"))

_ONE_ID = {"type": ["string", "integer"], "pattern": f"^{ID.pattern}$"}
_NAME = {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}
_BY_NAME = {"type": "object", "propertyNames": {"pattern": _NAME["pattern"]}}
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_SCALAR = {"type": ["string", "number", "boolean"]}
_DURATION = {"anyOf": [{"type": "string", "pattern": "^[0-9]{1,12}(ms|s|m|h)$"}, {"type": "number"}]}

FORMS: dict[str, tuple[Check, dict[str, JSON]]] = {
    "slug": (_slug, {"type": "string", "pattern": f"^{SLUG.pattern}$"}),
    "id": (_id, _ONE_ID),
    "identifier": (_identifier, _NAME),  # a name that expressions can use
    "text": (_text, _TEXT),
    "template": (_text, _TEXT),  # text with {{path}}
    "expression": (_expression, {"type": ["string", "boolean"]}),  # CEL
    "items": (_items, {"type": ["string", "array"]}),  # CEL that gives a list, or a list
    "expressions": (_expressions, _BY_NAME),  # map of name to CEL
    "moment": (_moment, {"type": ["string", "number"]}),  # a duration, or CEL that gives a time
    "choices": (_choices, {"anyOf": [_TEXT, _TEXTS]}),  # a list of text, or CEL that gives one
    "word": (_word, {}),  # one of `words`
    "integer": (_integer, {}),
    "number": (_number, {}),
    "boolean": (_boolean, {"type": "boolean"}),
    "duration": (_duration, _DURATION),  # 500ms 90s 5m 2h, or a number of seconds
    "milliseconds": (_integer, {}),
    "ids": (_list_of(_id, "a list of ids"), {"anyOf": [{"type": "array", "items": _ONE_ID}, _ONE_ID]}),
    "words": (_list_of(_word, "a list"), {}),
    "texts": (_list_of(_text, "a list of text"), _TEXTS),
    "identifiers": (_list_of(_identifier, "a list of names"), {"type": "array", "items": _NAME}),
    "globs": (_list_of(_text, "a list of globs"), _TEXTS),
    # a list of arguments, or text that is split
    "arguments": (_arguments, {"anyOf": [_TEXT, {"type": "array", "items": _SCALAR}]}),
    "variables": (_variables, {"type": "object", "additionalProperties": _SCALAR}),  # name to template
    "values": (_map, _BY_NAME),  # map of name to reference, template or literal
    "output": (_output, {"anyOf": [_TEXT, {"type": "object"}]}),  # template, or a map as `values`
    "schema": (_schema, {"type": ["object", "boolean"]}),  # JSON Schema
    "json": (_anything, {}),
    "jsons": (_list, {"type": "array", "minItems": 1}),
    "free": (_map, {"type": "object"}),  # a map that is not checked
    "object": (_anything, {}),  # another object, named by `of` and read by its own table
    "objects": (_list, {}),  # a list of them
    "named_objects": (_list_or_map, {}),  # a list of them, or a map by their names
}
"""By kind: the check of a value, and its JSON Schema; `schema` adds what depends on the key."""

MIN_ALIKE = 4
_CAPITAL = r"(?<=[a-z0-9])[A-Z]"


class Replacement(NamedTuple):
    """The text to write in place of another; `check --fix` can write it if it is certain."""

    text: str
    certain: bool = False


class Entries:
    """One mapping of a recipe, read by its table."""

    __slots__ = ("keys", "mapping", "meant", "nodes", "shape")

    def __init__(self, mapping: tree.Mapping, shape: Shape) -> None:
        self.mapping = mapping
        self.shape = shape
        self.keys: dict[str, Scalar] = {}
        """Every known key in the file, including those whose value was refused."""
        self.nodes: dict[str, Node] = {}
        self.meant: set[str] = set()
        """Known keys that unknown words were probably meant to be."""

    def lacks(self, name: str) -> bool:
        """Return whether the key is missing and not only misspelled, which is already reported."""
        return name not in self.keys and name not in self.meant

    def has(self, name: str) -> bool:
        return name in self.keys

    def text(self, name: str) -> str | None:
        node = self.nodes.get(name)
        return node.text if isinstance(node, Scalar) else None

    def integer(self, name: str) -> int | None:
        node = self.nodes.get(name)
        return node.value if isinstance(node, Scalar) and isinstance(node.value, int) else None

    def flag(self, name: str) -> bool:
        node = self.nodes.get(name)
        return isinstance(node, Scalar) and node.value is True

    def milliseconds(self, name: str) -> int | None:
        """Return a duration in milliseconds, from either spelling."""
        node = self.nodes.get(name)
        if not isinstance(node, Scalar):
            return None
        # `timeout_ms: 500` is stored under `timeout`; the key's text determines the unit.
        in_milliseconds = self.keys[name].text.endswith("_ms") and type(node.value) is int
        return node.value if in_milliseconds else duration_ms(node.value)  # type: ignore[return-value]  # an int

    def scalars(self, name: str) -> list[Scalar]:
        """Return the items of a list of scalars, or a single scalar; empty if there is none."""
        node = self.nodes.get(name)
        if isinstance(node, Scalar) and self.shape.keys[name].kind == "ids":
            return [node]
        if not isinstance(node, tree.Sequence):
            return []
        return [item for item in node.items if isinstance(item, Scalar)]

    def items(self, name: str) -> list[Node]:
        """Return the items of a list; for a map by name the values, each with its name."""
        node = self.nodes.get(name)
        if isinstance(node, tree.Mapping) and self.shape.keys[name].kind == "named_objects":
            return [_named(word, value) for word, value in node.entries]
        return node.items if isinstance(node, tree.Sequence) else []

    def pairs(self, name: str) -> list[tuple[Scalar, Node]]:
        node = self.nodes.get(name)
        return node.entries if isinstance(node, tree.Mapping) else []

    def head(self) -> Span:
        """Return the position for reports of missing keys: the first word of the mapping."""
        if self.mapping.entries:
            return span_of(self.mapping.entries[0][0])
        return (self.mapping.start, self.mapping.end)


def _named(word: Scalar, value: Node) -> Node:
    """Return `name: {…}` as `{name: name, …}`; an empty value is an object without other keys."""
    if isinstance(value, Scalar) and value.value is None:
        value = tree.Mapping([], word.start, word.end)
    if not isinstance(value, tree.Mapping):
        return value
    key = Scalar("name", "name", word.start, word.end, word.style, "")
    return tree.Mapping([(key, word), *value.entries], word.start, value.end)


def read_entries(
    node: Node,
    shape: Shape,
    notes: Notes,
    highs: Mapping[str, int] | None = None,
    *,
    meant: Replacement | None = None,
) -> Entries | None:
    """Return the entries of one object; None if the node is not a mapping.

    `highs` raises the maximum of a range, because the user's configuration can raise limits. `meant` is the
    replacement for a value of another form.
    """
    if not isinstance(node, tree.Mapping):
        message = f"{with_article(shape.name)} must be a map of keys, not {kind_of(node)}"
        if not notes.is_alias(node):
            fix, hint = None, shape.hint
            if shape.short and isinstance(node, Scalar) and node.value is not None:
                meant = Replacement(f"{{{shape.short}: {node.text}}}", certain=True)
            if meant is not None:
                hint = f"write {meant.text}"
                fix = notes.fix(node.start, node.end, meant.text) if meant.certain else None
            notes.error(".bad_type", message, node, hint, fix)
        return None
    entries = Entries(node, shape)
    for word, value in node.entries:
        _read_entry(entries, word, value, notes, highs or {})
    for key in shape.keys.values():
        if key.required and entries.lacks(key.name):
            message = f"{with_article(shape.name)} needs {quoted(key.name)}"
            notes.error(".missing_key", message, entries.head(), shape.hint)
    return entries


def read_inner(
    entries: Entries, name: str, shape: Shape, notes: Notes, highs: Mapping[str, int] | None = None
) -> Entries | None:
    """Return the entries of an object under a key; None if the key is missing or was refused."""
    node = entries.nodes.get(name)
    return None if node is None else read_entries(node, shape, notes, highs)


def _read_entry(entries: Entries, word: Scalar, value: Node, notes: Notes, highs: Mapping[str, int]) -> None:
    shape = entries.shape
    key = shape.keys.get(word.text) or _camel_case(entries, word, notes)
    if key is None and shape.open:
        notes.note(".note", f"key {quoted(word.text)} is not used here", word)
        return
    if key is None:
        _refuse_key(entries, word, notes)
        return
    name = key.alias or key.name
    if (first := entries.keys.get(name)) is not None:
        if first.text != word.text:  # the parser reports the same word twice
            message = f"{quoted(first.text)} and {quoted(word.text)} have the same meaning"
            notes.error(".conflicting_keys", message, word, "keep one of them")
        return
    entries.keys[name] = word
    has_form = FORMS[key.kind][0]
    if has_form(value, key, notes) and _in_range(value, key, notes, highs):
        entries.nodes[name] = value


def _camel_case(entries: Entries, word: Scalar, notes: Notes) -> Key | None:
    """Return the `max_iterations` key for `maxIterations`; it is accepted with a fix."""
    plain = re.sub(_CAPITAL, r"_\g<0>", word.text).lower()
    if (key := entries.shape.keys.get(plain) if plain != word.text else None) is not None:
        fix = notes.fix(word.start, word.end, plain)
        message = f"{quoted(word.text)} is read as {quoted(plain)}"
        notes.warning(".spelling", message, word, f"write {plain}", fix)
    return key


def _refuse_key(entries: Entries, word: Scalar, notes: Notes) -> None:
    shape = entries.shape
    instead = shape.instead.get(word.text, "")
    certain = instead in shape.keys
    meant = instead if certain else None
    if not instead:
        # Otherwise the only key that starts with the word: `workspace_mode` for `workspace`.
        begun = [key for key in shape.keys if len(word.text) >= MIN_ALIKE and key.startswith(f"{word.text}_")]
        meant = notes.nearest(word.text, shape.keys) or (begun[0] if len(begun) == 1 else None)
    if meant is not None:
        entries.meant.add(shape.keys[meant].alias or meant)
    if instead:
        hint = f"write {instead}"
    elif meant is not None:
        hint = f"did you mean {quoted(meant)}?"
    else:
        hint = shape.hint or f"{with_article(shape.name)} has {', '.join(sorted(shape.keys))}"
    there = any(other.text == meant for other, _ in entries.mapping.entries)
    fix = notes.fix(word.start, word.end, instead) if certain and not there else None
    message = f"{with_article(shape.name)} has no key {quoted(word.text)}"
    notes.error(".unknown_key", message, word, hint, fix)


def _in_range(value: Node, key: Key, notes: Notes, highs: Mapping[str, int]) -> bool:
    if key.low is None or not isinstance(value, Scalar):
        return True
    number = duration_ms(value.value) if key.kind == "duration" else value.value
    assert isinstance(number, (int, float))
    high = max(key.high or 0, highs.get(key.name, 0))
    # Money has no smallest unit: any positive amount is valid.
    low_enough = number > key.low if key.kind == "number" else number >= key.low
    if low_enough and number <= high:
        return True
    if key.kind == "duration":
        bounds = "must be more than 0" if number < key.low else f"must be at most {high // 3_600_000}h"
    elif key.kind == "number":
        bounds = f"must be more than {key.low} and at most {high:,}"
    else:
        bounds = f"must be from {key.low:,} to {high:,}"
    notes.error(".limit", f"{quoted(key.name)} is {value.text[:MAX_SHOWN_CHARS]}; it {bounds}", value)
    return False
