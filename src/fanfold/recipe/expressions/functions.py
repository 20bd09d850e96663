"""The functions of expressions: CEL's own, those of its string and math extensions, and ours.

Rules
* One table names every function. The documentation and the error for an unknown one are made from it.
* The library brings the extensions for text and numbers. Those for lists are not part of it, so `distinct`,
  `flatten`, `reverse`, `slice`, `sort` and `lists.range` are given here, with the meaning CEL defines.
  `lines` and `json` turn what a program printed into lists and values; `sortBy` takes the name of a field,
  because macros cannot be added.
* A function of ours raises `ValueError` with words for the author; the library hands them on.
* What a function can make of its arguments is bounded in `work`, by the two sets at the end of this module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_RANGE = 10_000
"""As many as a loop may have rounds."""
MAX_JSON_DEPTH = 100
NAMESPACES = frozenset({"lists", "math", "strings"})
"""Names before a `.` that belong to a function: `math.greatest(1, 2)`."""


class Described(Struct, frozen=True):
    """A function as the documentation shows it."""

    call: str
    """How it is written, with `text`, `list` … for what it is applied to."""
    doc: str

    @property
    def name(self) -> str:
        head = self.call.partition("(")[0]
        return head if head.partition(".")[0] in NAMESPACES else head.rpartition(".")[2]


FUNCTIONS = (
    Described("lines(text)", "Its lines as a list, without line ends; no empty last line."),
    Described("json(text)", "The value that a JSON text stands for."),
    Described("size(value)", "Characters of a text, elements of a list, fields of an object."),
    Described("has(object.field)", "Whether the field is there."),
    Described("text.contains(part)", "Whether the part occurs in the text."),
    Described("text.startsWith(part)", "Whether the text begins so."),
    Described("text.endsWith(part)", "Whether the text ends so."),
    Described("text.matches(regex)", "Whether an RE2 pattern is found in the text."),
    Described("text.split(separator)", "The parts as a list; a second argument bounds their number."),
    Described("list.join(separator)", "Texts of a list as one."),
    Described("text.trim()", "Without white space at both ends."),
    Described("text.replace(old, new)", "With every occurrence replaced; a third argument bounds how many."),
    Described("text.substring(start, end)", "From a place to before another; without `end` to the end."),
    Described("text.indexOf(part)", "Where the part first stands, -1 where it does not."),
    Described("text.lastIndexOf(part)", "Where the part last stands, -1 where it does not."),
    Described("text.charAt(index)", "One character, or an empty text at the end."),
    Described("text.lowerAscii()", "With A to Z in lower case."),
    Described("text.upperAscii()", "With a to z in upper case."),
    Described("text.format(list)", 'Values put in: `"%s has %d".format([a, b])`.'),
    Described("strings.quote(text)", "In quotation marks, special characters escaped."),
    Described("text.reverse()", "Backwards; a list too."),
    Described("list.all(x, test)", "Whether the test holds for every element."),
    Described("list.exists(x, test)", "Whether it holds for one at least."),
    Described("list.exists_one(x, test)", "Whether it holds for exactly one."),
    Described("list.filter(x, test)", "The elements for which it holds."),
    Described("list.map(x, value)", "A value for each element; `list.map(x, test, value)` for some."),
    Described("list.distinct()", "Without repeated elements, the first of each kept."),
    Described("list.flatten()", "Lists in a list put in its place; an argument says how many levels deep."),
    Described("list.slice(start, end)", "The elements from a place to before another."),
    Described("list.sort()", "In order: numbers, or texts, or truth values."),
    Described("list.sortBy(field)", "Objects in the order of one field, given by its name."),
    Described("lists.range(count)", "The whole numbers from 0 to before `count`."),
    Described("math.greatest(list)", "The greatest of a list, or of several arguments."),
    Described("math.least(list)", "The least of a list, or of several arguments."),
    Described("math.abs(number)", "Without its sign."),
    Described("math.ceil(number)", "The next whole number, as a number with a point."),
    Described("math.floor(number)", "The whole number before, as a number with a point."),
    Described("math.round(number)", "The nearest whole number, as a number with a point."),
    Described("int(value)", "As a whole number; from text too."),
    Described("double(value)", "As a number with a point."),
    Described("string(value)", "As text."),
    Described("bool(value)", "As true or false; from text too."),
    Described("type(value)", "Its type, such as `string`."),
)  # fmt: skip
"""Every function, those of the language's own first that people look for most."""

OTHER_NAMES = {
    "lower": "lowerAscii", "toLowerCase": "lowerAscii", "upper": "upperAscii", "toUpperCase": "upperAscii",
    "len": "size", "length": "size", "count": "size", "strip": "trim", "splitlines": "lines",
    "includes": "contains", "startswith": "startsWith", "endswith": "endsWith", "find": "indexOf",
    "range": "lists.range", "max": "math.greatest", "min": "math.least", "abs": "math.abs",
    "round": "math.round", "str": "string", "float": "double", "any": "exists", "fromJSON": "json",
    "parse": "json", "sorted": "sort", "unique": "distinct", "concat": "join", "quote": "strings.quote",
}  # fmt: skip
"""What other languages call them."""

MULTIPLYING = frozenset({"replace", "format"})
"""Their result may be as long as what they are applied to times what they are given."""
SPREADING = frozenset({"json", "lines", "split"})
"""Their result may hold a value for every character."""


def declared_functions() -> list[cel.FunctionDecl]:
    """Our functions as the library wants them."""
    from cel_expr_python import cel

    text, whole, any_list = cel.Type.STRING, cel.Type.INT, cel.Type.List(cel.Type.DYN)

    def member(name: str, result: cel.Type, parameters: list[cel.Type], do: Any) -> cel.Overload:
        return cel.Overload(f"fanfold_{name}_{len(parameters)}_{result.name()}", result, parameters, True, do)

    return [
        cel.FunctionDecl(
            "lines", [cel.Overload("fanfold_lines", cel.Type.List(text), [text], False, _lines)]
        ),
        cel.FunctionDecl("json", [cel.Overload("fanfold_json", cel.Type.DYN, [text], False, _json)]),
        cel.FunctionDecl(
            "lists.range", [cel.Overload("fanfold_range", cel.Type.List(whole), [whole], False, _range)]
        ),
        cel.FunctionDecl(
            "reverse",
            [
                member("reverse", any_list, [any_list], lambda values: values[::-1]),
                member("reverse", text, [text], lambda value: value[::-1]),
            ],
        ),
        cel.FunctionDecl("distinct", [member("distinct", any_list, [any_list], _distinct)]),
        cel.FunctionDecl(
            "flatten",
            [
                member("flatten", any_list, [any_list], _flatten),
                member("flatten", any_list, [any_list, whole], _flatten),
            ],
        ),
        cel.FunctionDecl("slice", [member("slice", any_list, [any_list, whole, whole], _slice)]),
        cel.FunctionDecl("sort", [member("sort", any_list, [any_list], _sort)]),
        cel.FunctionDecl("sortBy", [member("sortBy", any_list, [any_list, text], _sort_by)]),
    ]


def _lines(text: str) -> list[str]:
    return text.splitlines()


def _json(text: str) -> Any:
    depth = deepest = 0
    for mark in text:  # more than is right inside strings, never less
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    if deepest > MAX_JSON_DEPTH:
        raise ValueError(f"the text nests more than {MAX_JSON_DEPTH} levels deep")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"the text is not JSON ({error.msg} at {place})") from None
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"the text is not JSON ({word} is no number)")


def _whole_number(digits: str) -> int | float:
    value = int(digits) if len(digits) < 25 else float(digits)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else float(digits)


def _range(count: int) -> list[int]:
    if not 0 <= count <= MAX_RANGE:
        raise ValueError(f"lists.range takes 0 to {MAX_RANGE:,}")
    return list(range(count))


def _distinct(values: list[Any]) -> list[Any]:
    seen: set[str] = set()
    kept = []
    for value in values:
        key = json.dumps(_comparable(value), sort_keys=True)
        if key not in seen:
            seen.add(key)
            kept.append(value)
    return kept


def _comparable(value: Any) -> Any:
    """Numbers that CEL calls equal as one: 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _comparable(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 1:
        raise ValueError("flatten goes one level deep at least")
    for _ in range(min(depth, MAX_JSON_DEPTH)):
        if not any(isinstance(value, list) for value in values):
            break
        values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return values


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise ValueError(f"slice({start}, {end}) is outside a list of {len(values)}")
    return values[start:end]


def _sort(values: list[Any]) -> list[Any]:
    return [value for _, value in _in_order([(value, value) for value in values])]


def _sort_by(values: list[Any], field: str) -> list[Any]:
    keyed = []
    for value in values:
        if not isinstance(value, dict) or field not in value:
            raise ValueError(f"sortBy({json.dumps(field)}) needs objects that all have the field")
        keyed.append((value[field], value))
    return [value for _, value in _in_order(keyed)]


def _in_order(keyed: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    kinds = {
        "text" if isinstance(key, str) else "truth" if isinstance(key, bool)
        else "number" if isinstance(key, int | float) else "other"
        for key, _ in keyed
    }  # fmt: skip
    if len(kinds) > 1 or "other" in kinds:
        raise ValueError("only numbers, or only texts, or only truth values can be sorted")
    return sorted(keyed, key=lambda pair: pair[0])
